//! The commands, one module each, and which one to run.

mod bench;
mod cache;
mod convert;
mod dashboard;
mod doctor;
mod fit;
mod generate;
mod import;
mod local;
mod ls;
mod model;
mod preferences;
mod preflight;
mod ps;
mod pull;
mod rm;
mod run;
mod running;
mod search;
mod serve;
mod stop;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use hearth_library::home::Home;
use std::future::Future;

/// Runs the command that was asked for.
///
/// # Errors
/// The command's own failure.
pub fn dispatch(cli: Cli) -> Result<(), Failure> {
    let home = Home::locate()?;
    match cli.command {
        Command::Serve(args) => wait(serve::run(args, &home)),
        Command::Run(args) => wait(run::run(args, &home)),
        Command::Generate(args) => wait(generate::run(args, &home)),
        Command::Import(args) => import::run(&args, &home),
        Command::Convert(args) => convert::run(&args, &home),
        Command::Pull(args) => wait(pull::run(args, &home)),
        Command::Search(args) => wait(search::run(&args, &home)),
        Command::Rm(args) => wait(rm::run(&args, &home)),
        Command::Ls(args) => ls::run(&args, &home),
        Command::Ps(args) => wait(ps::run(&args, &home)),
        Command::Stop(args) => wait(stop::run(&args, &home)),
        Command::Cache(command) => wait(cache::run(&command, &home)),
        Command::Dashboard(args) => wait(dashboard::run(&args, &home)),
        Command::Doctor(args) => wait(doctor::run(&args, &home)),
        Command::Fit(args) => fit::run(&args, &home),
        Command::Bench(args) => wait(bench::run(args, &home)),
        Command::Preflight(args) => preflight::run(&args, &home),
    }
}

/// Runs async work to its end. What is left on the runtime then is not waited for.
fn wait<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // Sockets need few threads: what fills a core runs elsewhere. More of them only wake each other for every token, on
    // cores that the engine computes on (3 to 8 % of its speed on two cores).
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / 4).clamp(1, 4);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.map_err(|e| Failure::no(format!("cannot start the runtime: {e}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}
