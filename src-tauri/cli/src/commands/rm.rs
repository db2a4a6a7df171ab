//! `hearth rm`: removes a model, after saying what that frees.

use crate::args::RmArgs;
use crate::commands::preferences::places;
use crate::commands::running;
use crate::failure::Failure;
use crate::output::{self, size};
use hearth_core::stats::Health;
use hearth_library::LibraryError;
use hearth_library::download::{Download, DownloadManager, DownloadState};
use hearth_library::home::Home;
use hearth_library::remove::{self, Removal};
use hearth_library::scan::find;
use std::io::{IsTerminal, Write};

/// Says what it would free, asks, and removes it.
///
/// # Errors
/// Exit code 3 when there is no such model, 1 when it is in use, somebody else's, or the user says no.
pub async fn run(args: &RmArgs, home: &Home) -> Result<(), Failure> {
    let entry = match find(&args.model, &places(home)) {
        // The name of a download is meant before a part of a model's.
        Ok(entry) if entry.id == args.model => entry,
        other => match (open_download(args, home)?, other) {
            (Some((manager, job)), _) => return remove_download(args, &manager, &job),
            (None, found) => found?,
        },
    };
    let removal = remove::plan(&entry)?;
    if let Some(server) = running::find(home, None)? {
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
        eprintln!("note: {kept}");
    }
    output::line(&format!("removed {}, which frees {}", done.id, size(done.frees)))
}

/// The download of exactly this name that is not complete.
fn open_download(args: &RmArgs, home: &Home) -> Result<Option<(DownloadManager, Download)>, Failure> {
    let manager = DownloadManager::standard(home)?;
    let wanted = args.model.as_str();
    let job = manager.list().into_iter().find(|job| {
        let open = matches!(job.state, DownloadState::Paused | DownloadState::Failed);
        open && (job.repo == wanted || format!("{}@{}", job.repo, job.revision) == wanted)
    });
    Ok(job.map(|job| (manager, job)))
}

/// A download that is not complete goes with what it has fetched.
fn remove_download(args: &RmArgs, manager: &DownloadManager, job: &Download) -> Result<(), Failure> {
    let wanted = &args.model;
    if !args.yes {
        let here = size(job.bytes);
        return Err(Failure::no(format!("remove the download of {wanted} ({here} are here)? add --yes to say so")));
    }
    let done = manager.cancel(&job.id).map_err(|e| Failure::no(e.to_string()))?;
    if args.json {
        return output::json(&done);
    }
    output::line(&format!("removed the download of {wanted}, which frees {}", size(job.bytes)))
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
