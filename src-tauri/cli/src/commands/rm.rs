//! `hearth rm`: removes a model, after saying what that frees.

use crate::args::RmArgs;
use crate::client::Client;
use crate::commands::preferences::places;
use crate::commands::running;
use crate::failure::Failure;
use crate::output::{self, say, size};
use hearth_core::stats::Health;
use hearth_library::LibraryError;
use hearth_library::download::{Download, DownloadManager, DownloadState};
use hearth_library::home::Home;
use hearth_library::remove::{self, Removal};
use hearth_library::scan::find;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How long a server may take to end a download.
const LONGEST_END: Duration = Duration::from_secs(30);

/// Says what it would free, asks, and removes it.
///
/// # Errors
/// Exit code 3 when there is no such model, 1 when it is in use, somebody else's, or the user says no.
pub async fn run(args: &RmArgs, home: &Home) -> Result<(), Failure> {
    let server = running::find(home, None)?;
    if let Some(server) = &server {
        let running = server.client.downloads().await?.into_iter();
        if let Some(job) = running.filter(|job| job.state.is_active()).find(|job| is_of(job, args)) {
            return end_download(args, &server.client, &job).await;
        }
    }
    let entry = match find(&args.model, &places(home)) {
        // The name of a download is meant before a part of a model's.
        Ok(entry) if entry.id == args.model => entry,
        other => match (open_download(args, home)?, other) {
            (Some((manager, job)), _) => return remove_download(args, &manager, &job),
            (None, found) => found?,
        },
    };
    let removal = remove::plan(&entry)?;
    if let Some(server) = server {
        let id = &entry.id;
        if matches!(server.client.health().await?, Health::Loading { model, .. } if model == *id) {
            return Err(Failure::no(format!(
                "{id} is being loaded by the running server; `hearth stop {id}` unloads it"
            )));
        }
        if server.client.stats().await?.models.iter().any(|m| m.id == *id) {
            return Err(Failure::no(format!("{id} is loaded by the running server; `hearth stop {id}` unloads it")));
        }
    }
    if !removal.own && !args.foreign {
        return Err(Failure::no(format!("{}; to remove it all the same add --foreign", foreign(&removal))));
    }
    if !args.yes && !agreed(&removal)? {
        return Err(Failure::no("nothing is removed"));
    }
    let done = remove::remove(&removal, args.foreign).map_err(|e: LibraryError| Failure::no(e.to_string()))?;
    if args.json {
        return output::json(&done);
    }
    for kept in &done.kept {
        say!("note: {kept}");
    }
    output::line(&format!("removed {}, which frees {}", done.id, size(done.frees)))
}

/// The download of exactly this name that is not complete.
fn open_download(args: &RmArgs, home: &Home) -> Result<Option<(DownloadManager, Download)>, Failure> {
    let manager = DownloadManager::standard(home)?;
    let open = |job: &Download| matches!(job.state, DownloadState::Paused | DownloadState::Failed);
    let job = manager.list().into_iter().find(|job| open(job) && is_of(job, args));
    Ok(job.map(|job| (manager, job)))
}

/// Whether a download has exactly the name that was given.
fn is_of(job: &Download, args: &RmArgs) -> bool {
    job.repo == args.model || format!("{}@{}", job.repo, job.revision) == args.model
}

/// A download that is not complete goes with what it has fetched.
fn remove_download(args: &RmArgs, manager: &DownloadManager, job: &Download) -> Result<(), Failure> {
    may_remove(args, job)?;
    let done = manager.cancel(&job.id).map_err(|e| match e {
        LibraryError::Downloading { .. } => Failure::no(format!("nothing is removed: {e}; end that first")),
        e => Failure::no(e.to_string()),
    })?;
    removed(args, job, &done)
}

/// The same of one that the running server is at.
async fn end_download(args: &RmArgs, server: &Client, job: &Download) -> Result<(), Failure> {
    may_remove(args, job)?;
    let until = Instant::now() + LONGEST_END;
    let mut now = server.cancel_download(&job.id).await?;
    while now.state.is_active() {
        if Instant::now() > until {
            return Err(Failure::no(format!("the server still downloads {}, and was told to end it", args.model)));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        now = server.download(&job.id).await?;
    }
    removed(args, job, &now)
}

fn may_remove(args: &RmArgs, job: &Download) -> Result<(), Failure> {
    let (wanted, here) = (&args.model, size(job.bytes));
    match args.yes {
        true => Ok(()),
        false => Err(Failure::no(format!("remove the download of {wanted} ({here} are here)? add --yes to say so"))),
    }
}

fn removed(args: &RmArgs, before: &Download, done: &Download) -> Result<(), Failure> {
    if args.json {
        return output::json(done);
    }
    output::line(&format!("removed the download of {}, which frees {}", args.model, size(before.bytes)))
}

fn foreign(removal: &Removal) -> String {
    format!("{} was not made by Hearth, and other programs may use it ({})", removal.id, removal.path.display())
}

fn agreed(removal: &Removal) -> Result<bool, Failure> {
    let mut question = format!(
        "remove {} ({}, {})?",
        removal.id,
        output::counted(removal.files as u64, "file", "files"),
        size(removal.frees)
    );
    if !removal.own {
        question = format!("{}\n{question}", foreign(removal));
    }
    for kept in &removal.kept {
        question = format!("{kept}\n{question}");
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::no(format!("{question} add --yes to say so")));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
