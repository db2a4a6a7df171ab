//! The project's own commands: `cargo xtask <command>`.
//!
//! Everything that a person or CI does with this repository starts here, so that it works the same way on a fresh
//! machine and on an old one. What is slow to make lives in a cache folder outside the checkout.

mod bench;
mod goldens;
mod http;
mod macos;
mod run;
mod server;
mod setup;
mod sh;
mod soak;
mod starter;
mod test;
mod venv;
mod wheel;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
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
    MacosCheck {
        /// Only this package; may be given several times [default: the whole workspace]
        #[arg(short, long = "package", value_name = "NAME")]
        packages: Vec<String>,
    },
    /// Set up, build, serve the starter model, ask it one question and keep serving
    Run {
        /// Port on 127.0.0.1
        #[arg(long, default_value_t = 8080)]
        port: u16,
    },
    /// Set up and run every check, as CI does
    Test {
        /// Only checks whose title holds this text, such as `clippy`
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// Measure Hearth against mlx-lm and its server (about half an hour on two cores)
    Bench {
        /// `cache`: second turns and the prompt cache [default: speeds, first tokens, memory]
        #[arg(value_name = "WHAT")]
        what: Option<Contest>,
        /// Print JSON on stdout; the table goes to stderr
        #[arg(long)]
        json: bool,
        /// Rounds that count, after one that does not
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        runs: u32,
        /// One short round, to see that everything works
        #[arg(long)]
        quick: bool,
        /// Only rows whose name holds this text
        #[arg(long, value_name = "TEXT")]
        only: Option<String>,
    },
    /// Let clients connect and hang up for a while, and see that nothing is left of them; then kill the server while it
    /// writes its prompt cache, again and again, and see that it starts and answers as before
    Soak {
        /// How long clients hang up; 0 leaves that out
        #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(0..=86_400))]
        seconds: u64,
        /// Clients at once
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
        clients: u32,
        /// How often it is killed; 0 leaves that out
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=10_000))]
        kills: u32,
    },
}

/// What `bench` measures.
#[derive(Clone, Copy, ValueEnum)]
enum Contest {
    Cache,
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
        Command::MacosCheck { packages } => macos::run(&ws, &packages),
        Command::Run { port } => run::run(&ws, port),
        Command::Test { only } => test::run(&ws, only.as_deref()),
        Command::Bench { what, json, runs, quick, only } => {
            let options = bench::Options { runs: runs as usize, json, quick, only };
            match what {
                None => bench::run(&ws, &options),
                Some(Contest::Cache) => bench::cache::run(&ws, &options),
            }
        }
        Command::Soak { seconds, clients, kills } => {
            soak::run(&ws, &soak::Options { seconds, clients: clients as usize, kills: kills as usize })
        }
    }
}
