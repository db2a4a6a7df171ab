//! `hearth`: run local language models and serve them over an OpenAI-compatible API. This file parses the command line,
//! sets up the log, and turns a failure into its exit code.

mod args;
mod client;
mod commands;
mod failure;
mod output;
mod sizes;
mod system;

use clap::Parser;
use failure::Failure;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    match log_to_stderr(&cli.log).and_then(|()| commands::dispatch(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn log_to_stderr(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|e| Failure::usage(format!("the log filter `{filter}` is not valid: {e}; try `warn` or `info`")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
