//! The project's own commands: `cargo xtask <command>`.
//!
//! Everything that a person or CI does with this repository starts here, so that it works the same way on a fresh
//! machine and on an old one. What is slow to make lives in a cache folder outside the checkout.

mod goldens;
mod macos;
mod setup;
mod sh;
mod starter;
mod venv;
mod wheel;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use workspace::{Profile, Workspace};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set up, run, test and measure Hearth", disable_version_flag = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what a build needs (Linux: system packages, MLX and mlx-c into the cache). Quick when done already
    Setup,
    /// Fetch the starter model, and print its folder on the last line
    Starter {
        /// Build the importer in release, if it is not there
        #[arg(long)]
        release: bool,
    },
    /// Regenerate the reference outputs in tests/goldens with mlx-lm
    Goldens {
        /// Only these, such as `llama-q4` or `smollm2` [default: all]
        names: Vec<String>,
    },
    /// Type-check and lint the macOS build (on Linux)
    MacosCheck,
}

fn main() -> ExitCode {
    match dispatch(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> Result<()> {
    let ws = Workspace::find()?;
    match command {
        Command::Setup => setup::run(&ws),
        Command::Starter { release } => starter::run(&ws, if release { Profile::Release } else { Profile::Dev }),
        Command::Goldens { names } => goldens::run(&ws, &names),
        Command::MacosCheck => macos::run(&ws),
    }
}
