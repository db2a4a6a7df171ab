//! `hearth`: run local language models and serve them over an OpenAI-compatible API. This file parses the command line,
//! sets up the log, and turns a failure into its exit code.

mod args;
mod client;
mod commands;
mod failure;
mod given;
mod output;
mod sizes;
mod system;

use args::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};
use failure::Failure;
use given::Given;
use hearth_server::logs::LogRing;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

fn main() -> ExitCode {
    hearth_machine::prepare_allocator();
    let matches = Cli::command().get_matches();
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    let logs = LogRing::default();
    if let Command::Serve(args) = &mut cli.command {
        (args.given, args.logs) = (Given::of(&matches), logs.clone());
    }
    match log_to(&cli.log, logs).and_then(|()| commands::dispatch(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Logs to standard error what the filter lets pass, and keeps the last lines for the dashboard.
fn log_to(filter: &str, ring: LogRing) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| Failure::usage(format!("the log filter `{filter}` is not valid: {e}; try `warn` or `info`")))?;
    let shown =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // Without a filter of its own every debug line of every library would be made, and dropped.
    let kept = ring.with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(shown.with_filter(filter)).with(kept).init();
    Ok(())
}
