//! The project's own commands: `cargo xtask <command>`.
//!
//! Everything that a person or CI does with this repository starts here, so that it works the same way on a fresh
//! machine and on an old one. What is slow to make lives in a cache folder outside the checkout.

mod bench;
mod bundle;
mod desktop;
mod goldens;
mod http;
mod hub;
mod macos;
mod run;
mod server;
mod setup;
mod sh;
mod soak;
mod starter;
mod test;
mod ui;
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
    /// Ask the hub about the models of the built-in catalogue, and write its file anew
    Catalogue,
    /// Serve a model hub on loopback with tiny models, for trials by hand (`HF_ENDPOINT` is its first line)
    Hub {
        /// `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
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
    /// Build the dashboard into ui/dist, from where the server takes it
    Ui,
    /// Write the dashboard's TypeScript types, which are made from the Rust ones
    Types,
    /// Pack the app: an .app and a .dmg on a Mac, a .deb on Linux, into target/bundle
    Bundle {
        /// Of the development build, to try the packing
        #[arg(long)]
        dev: bool,
    },
    /// Draw the icons anew from their SVGs
    Icons,
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
        /// `cache`: second turns and the prompt cache; `memory`: predicted against measured peaks;
        /// `downloads`: against curl and huggingface_hub
        /// [default: speeds, first tokens, memory against the peer]
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
        /// `memory`: 16 clients in a memory budget with room for three, the figures held against the process;
        /// `downloads`: killed again and again
        /// [default: clients that hang up, then kills]
        #[arg(value_name = "WHAT")]
        what: Option<Soaked>,
        /// How long `memory` takes, in minutes
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=1440))]
        minutes: u64,
        /// Run `memory` in a memory cgroup of budget and baseline and 5 % (Linux, as root)
        #[arg(long)]
        cgroup: bool,
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
    Memory,
    Downloads,
}

/// What `soak` wears out.
#[derive(Clone, Copy, ValueEnum)]
enum Soaked {
    Memory,
    Downloads,
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
        Command::Ui => ui::build(&ws),
        Command::Types => ui::types(&ws),
        Command::Bundle { dev } => bundle::run(&ws, if dev { Profile::Dev } else { Profile::Release }),
        Command::Icons => desktop::icons(&ws),
        Command::Run { port } => run::run(&ws, port),
        Command::Test { only } => test::run(&ws, only.as_deref()),
        Command::Bench { what, json, runs, quick, only } => {
            let options = bench::Options { runs: runs as usize, json, quick, only };
            match what {
                None => bench::run(&ws, &options),
                Some(Contest::Cache) => bench::cache::run(&ws, &options),
                Some(Contest::Memory) => bench::memory::run(&ws, &options),
                Some(Contest::Downloads) => bench::downloads::run(&ws, &options),
            }
        }
        Command::Soak { what: Some(Soaked::Memory), minutes, cgroup, .. } => {
            soak::memory(&ws, std::time::Duration::from_secs(60 * minutes), cgroup)
        }
        Command::Catalogue => hub::refresh_catalogue(&ws),
        Command::Hub { args } => hub::run(&ws, &args),
        Command::Soak { what: Some(Soaked::Downloads), kills, .. } => soak::downloads(&ws, kills),
        Command::Soak { what: None, seconds, clients, kills, .. } => {
            soak::run(&ws, &soak::Options { seconds, clients: clients as usize, kills: kills as usize })
        }
    }
}
