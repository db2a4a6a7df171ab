//! `hearth doctor`: is this computer ready, and what to do where it is not.

use crate::args::DataArgs;
use crate::client::Client;
use crate::commands::local;
use crate::commands::preferences::places;
use crate::failure::Failure;
use crate::output::{self, size};
use crate::system;
use hearth_core::model_settings::stands_for;
use hearth_host::unclean;
use hearth_library::home::Home;
use hearth_library::marker;
use hearth_library::scan::{ModelEntry, fitting, scan};
use hearth_server::settings::{ModelsFile, Settings};
use serde::Serialize;
use serde_json::json;

/// The port that `hearth serve` takes when it is not told another.
fn default_port() -> u16 {
    std::env::var("HEARTH_PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(8080)
}

/// How one check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What is there, in a sentence.
    found: String,
    /// What to do; absent when nothing has to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, status: Status::Ok, found: found.into(), remedy: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check { name, status: Status::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Check { status: Status::Fail, ..Self::warn(name, found, remedy) }
    }
}

/// Runs every check.
///
/// # Errors
/// Exit code 1 when one failed; warnings alone are fine.
pub async fn run(args: &DataArgs, home: &Home) -> Result<(), Failure> {
    let mut checks = vec![mlx()];
    if cfg!(target_os = "linux") {
        checks.push(blas());
    }
    checks.extend([home_folder(home), settings(home), port().await, models(home), disk(home), memory()]);
    checks.extend(last_run(home));
    let failed = checks.iter().filter(|c| c.status == Status::Fail).count();
    if args.json {
        output::json(&json!({"ok": failed == 0, "checks": checks}))?;
    } else {
        output::print(&shown(&checks))?;
    }
    match failed {
        0 => Ok(()),
        // The checks have said it.
        _ => Err(Failure::no("")),
    }
}

fn shown(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let word = match check.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        text.push_str(&format!("{word:<5} {:<7} {}\n", check.name, check.found));
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("{:14}→ {remedy}\n", ""));
        }
    }
    text
}

fn mlx() -> Check {
    match hearth_mlx::device() {
        Ok(hearth_mlx::Device::Gpu) => Check::ok("mlx", "MLX computes on the GPU"),
        Ok(hearth_mlx::Device::Cpu) if cfg!(target_os = "macos") => Check::warn(
            "mlx",
            "MLX computes on the CPU: no Metal device was found",
            "Hearth needs a Mac with Apple Silicon; in a virtual machine there may be no Metal",
        ),
        Ok(hearth_mlx::Device::Cpu) => Check::ok("mlx", "MLX computes on the CPU"),
        Err(e) => {
            Check::fail("mlx", format!("MLX does not start: {e}"), "build anew: cargo xtask setup, then cargo build")
        }
    }
}

/// MLX's wheel brings a slow reference BLAS; the build links a fast one over it.
fn blas() -> Check {
    match system::loaded_libraries("openblas").first() {
        Some(file) => Check::ok("blas", format!("OpenBLAS ({file})")),
        None => Check::warn(
            "blas",
            "no OpenBLAS in this process: MLX uses its own BLAS, which is ten times slower",
            "apt-get install libopenblas0-pthread, then cargo xtask setup and build again",
        ),
    }
}

fn home_folder(home: &Home) -> Check {
    let shown = home.root().display();
    let written = home.prepare().map_err(|e| e.to_string()).and_then(|()| {
        tempfile::tempfile_in(home.root()).map(drop).map_err(|e| format!("cannot write into {shown}: {e}"))
    });
    match written {
        Ok(()) => Check::ok("home", format!("{shown} can be written")),
        Err(why) => {
            Check::fail("home", why, "give this user the right to write there, or set HEARTH_HOME to another folder")
        }
    }
}

fn settings(home: &Home) -> Check {
    let path = home.settings();
    let read = Settings::open(&path).and_then(|settings| settings.required_key().map(|_| settings));
    let wrong = match read {
        Err(e) => return Check::fail("config", e.to_string(), "until then neither `hearth serve` nor the app starts"),
        Ok(settings) => {
            let models = ModelsFile::open(&home.models_toml());
            let nowhere = unmeant(home, &models);
            settings.ignored().into_iter().chain(models.problems).chain(nowhere)
        }
    };
    match wrong.reduce(|all, one| format!("{all}; {one}")) {
        Some(wrong) => Check::warn("config", wrong, "correct the file"),
        None if path.exists() => Check::ok("config", format!("{} can be read", path.display())),
        None => Check::ok("config", "no settings.toml: the defaults hold"),
    }
}

/// Aliases that stand for what is not here, a sentence each. A server does not mind: the model may come later.
fn unmeant(home: &Home, models: &ModelsFile) -> Vec<String> {
    if models.aliases.is_empty() {
        return Vec::new();
    }
    let ids: Vec<String> = scan(&places(home)).models.into_iter().map(|entry| entry.id).collect();
    let nowhere = |alias: &&String| {
        let meant = stands_for(&models.aliases, alias);
        // In a circle: that is said already.
        !models.aliases.contains_key(meant) && fitting(meant, ids.iter().map(String::as_str)).is_empty()
    };
    let sentence = |alias: &String| {
        let (file, meant) = (home.models_toml(), stands_for(&models.aliases, alias));
        format!("{}: the alias \"{alias}\" stands for {meant}, which is not on this computer", file.display())
    };
    models.aliases.keys().filter(nowhere).map(sentence).collect()
}

async fn port() -> Check {
    let address = format!("127.0.0.1:{}", default_port());
    if tokio::net::TcpListener::bind(&address).await.is_ok() {
        return Check::ok("port", format!("{address} is free"));
    }
    let health = match Client::new(&format!("http://{address}"), None) {
        Ok(client) => client.health().await.ok(),
        Err(_) => None,
    };
    match health {
        Some(health) => Check::ok("port", format!("on {address} is a Hearth {}", local::doing(&health))),
        None => Check::warn(
            "port",
            format!("another program listens on {address}"),
            "stop it, or start Hearth with another port: hearth serve --port 8081",
        ),
    }
}

/// Only where something went wrong: a server that was never there has no end.
fn last_run(home: &Home) -> Option<Check> {
    let found = marker::unclean(home, unclean::boot().as_deref()).ok().flatten()?;
    let remedy = "`hearth serve MODEL` loads it again, or another one; until then `hearth serve` alone loads nothing";
    Some(Check::warn("ending", unclean::what_happened(&found), remedy))
}

fn models(home: &Home) -> Check {
    let found = scan(&places(home)).models;
    let (complete, broken): (Vec<_>, Vec<_>) = found.into_iter().partition(ModelEntry::is_complete);
    match (complete.len(), broken.len()) {
        (0, 0) => {
            Check::warn("models", "no model on this computer", "hearth pull ORG/NAME, or hearth import FILE.gguf")
        }
        (n, 0) => Check::ok("models", format!("{n} on this computer")),
        (n, bad) => {
            let names: Vec<&str> = broken.iter().map(|m| m.id.as_str()).collect();
            Check::warn(
                "models",
                format!("{n} on this computer, and {bad} that cannot be used: {}", names.join(", ")),
                "`hearth ls` says what is wrong with each",
            )
        }
    }
}

fn disk(home: &Home) -> Check {
    const LITTLE: u64 = 1_000_000_000;
    let remedy = "free some space, or set HEARTH_HOME to a folder on another disk";
    match system::disk_free(home.root()) {
        Some(free) if free < LITTLE => Check::fail("disk", format!("only {} free for models", size(free)), remedy),
        Some(free) if free < 10 * LITTLE => Check::warn("disk", format!("{} free for models", size(free)), remedy),
        Some(free) => Check::ok("disk", format!("{} free for models", size(free))),
        None => Check::warn("disk", "the free space cannot be read", "look whether the disk of HEARTH_HOME is there"),
    }
}

fn memory() -> Check {
    let memory = hearth_machine::memory();
    let found = format!("{} of {} available", size(memory.available), size(memory.total));
    if memory.available < memory.total / 4 {
        Check::warn("memory", found, "close what needs much memory before loading a model")
    } else {
        Check::ok("memory", found)
    }
}
