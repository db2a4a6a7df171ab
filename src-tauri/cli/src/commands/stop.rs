//! `hearth stop`: asks the running server to end, and waits until it has; with a model, to take that out of memory.

use crate::args::StopArgs;
use crate::client::Client;
use crate::commands::running;
use crate::failure::Failure;
use crate::output;
use hearth_core::error::ambiguous;
use hearth_host::ending;
use hearth_library::home::Home;
use hearth_library::scan::fitting;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::time::{Duration, Instant};

/// How long a server may take to end: its prompt cache goes to disk first.
const PATIENCE: Duration = Duration::from_secs(75);
/// After this long the user learns why it takes so long.
const QUIET: Duration = Duration::from_secs(3);

/// Stops the server and waits for its end, or unloads a model.
///
/// # Errors
/// Exit code 4 when there is none, 1 when it does not end, or ended without having saved all of its prompt cache; and when
/// the model is not in memory or has requests to answer.
pub async fn run(args: &StopArgs, home: &Home) -> Result<(), Failure> {
    let server = running::required(home)?;
    if let Some(name) = &args.model {
        return unload(&server.client, name, args.json).await;
    }
    let pid = server.record.pid;
    if let Err(refusal) = server.client.shut_down().await {
        // It holds the home's lock, so the process is a Hearth that lives: a signal asks the same thing.
        tracing::debug!(%refusal, pid, "asking by signal");
        let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let asked = known.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        if !asked && holds(home, pid)? {
            return Err(refusal);
        }
    }
    let start = Instant::now();
    let mut told = false;
    while holds(home, pid)? {
        if start.elapsed() > QUIET && !told {
            eprintln!("waiting for process {pid}, which may have its prompt cache to save");
            told = true;
        }
        if start.elapsed() > PATIENCE {
            return Err(Failure::no(format!(
                "process {pid} has not ended in {} s; `kill {pid}` ends it",
                PATIENCE.as_secs()
            )));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let url = server.client.base();
    let not_saved = ending::not_saved(home, pid);
    if args.json {
        output::json(&json!({"stopped": true, "pid": pid, "url": url, "not_saved": not_saved}))?;
    } else {
        output::line(&format!("stopped {url} (pid {pid})"))?;
    }
    not_saved.map_or(Ok(()), |why| Err(Failure::no(why)))
}

/// Takes one model out of memory.
async fn unload(client: &Client, name: &str, json: bool) -> Result<(), Failure> {
    let Some(gone) = client.unload(name).await? else {
        let there: Vec<String> = client.stats().await?.models.into_iter().map(|model| model.id).collect();
        let fits = fitting(name, there.iter().map(String::as_str));
        let fits: Vec<String> = fits.into_iter().filter_map(|n| there.get(n).cloned()).collect();
        return Err(Failure::no(match there.as_slice() {
            [] => format!("{name} is not in memory; no model is"),
            _ if fits.len() > 1 => ambiguous(name, &fits),
            all => format!("{name} is not in memory; there are: {}", all.join(", ")),
        }));
    };
    if json {
        return output::json(&json!({"unloaded": gone.model, "freed": gone.freed, "url": client.base()}));
    }
    output::line(&format!("unloaded {}, which frees {}", gone.model, output::size(gone.freed)))
}

/// Whether that process still owns the home.
fn holds(home: &Home, pid: u32) -> Result<bool, Failure> {
    Ok(home.inspect()?.is_some_and(|holder| holder.pid == Some(pid)))
}
