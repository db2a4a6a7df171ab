//! `hearth pull`: downloads a model. With a server running in this home it is the server's job, so that there is one, whoever asks;
//! else this process does it.

use crate::args::PullArgs;
use crate::client::Client;
use crate::commands::preferences::machine;
use crate::commands::running;
use crate::failure::{Code, Failure};
use crate::output::{self, say};
use crate::system::disk_free;
use hearth_library::LibraryError;
use hearth_library::catalogue::preview;
use hearth_library::download::{Download, DownloadManager, DownloadOptions, DownloadState, ELSEWHERE, FileState};
use hearth_library::home::{Home, process_env};
use hearth_library::hub::{Hub, HubError, HubOptions, Repo, Revision, parse_spec};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::Path;
use std::time::Duration;

/// Who does the job.
enum Worker {
    Server(Client),
    Own(DownloadManager),
}

/// How often its progress is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Downloads the model, or goes on with it.
///
/// # Errors
/// Exit code 2 for a name that cannot be one, 1 with the reason when it could not be downloaded, or was interrupted.
pub async fn run(args: PullArgs, home: &Home) -> Result<(), Failure> {
    let (repo, revision) = parse_spec(&args.model).map_err(|e| failure(e.into()))?;
    if args.dry_run {
        return look(&repo, &revision, args.json, home).await;
    }
    let worker = match running::find(home, None)? {
        Some(server) => Worker::Server(server.client),
        None => Worker::Own(DownloadManager::standard(home)?),
    };
    let others = worker.running().await?;
    let mut job = worker.start(repo.as_str(), revision.as_str()).await?;
    let joined = others.contains(&job.id);
    let bar = bar();
    // Registered once, so that a ctrl-c between two looks counts.
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let mut stopping = false;
    while job.state.is_active() {
        show(&bar, &job);
        tokio::select! {
            // Somebody else has asked for it, and may still wait for it.
            _ = &mut interrupt, if !stopping => {
                if joined {
                    bar.finish_and_clear();
                    let name = &args.model;
                    return Err(Failure::no(format!(
                        "the server goes on downloading {name}: it had begun before this command asked for it"
                    )));
                }
                stopping = true;
                worker.pause(&job.id).await?;
            }
            () = worker.wait(&job.id) => {}
        }
        job = match worker.get(&job.id).await {
            Err(gone) if gone.code == Code::Unreachable => {
                bar.finish_and_clear();
                let name = &args.model;
                return Err(Failure::no(format!(
                    "the server that downloads {name} has ended; `hearth pull {name}` goes on from what is here"
                )));
            }
            found => found?,
        };
    }
    bar.finish_and_clear();
    end(&job, &args)
}

/// What there would be to download, and whether it fits, into memory and on the disk.
async fn look(repo: &Repo, revision: &Revision, json: bool, home: &Home) -> Result<(), Failure> {
    let hub = Hub::new(HubOptions::from_env(&process_env)).map_err(|e| failure(e.into()))?;
    let found = preview(&hub, repo, revision, &machine(home)).await.map_err(failure)?;
    let manager = DownloadManager::standard(home)?;
    let free = disk_free(manager.cache());
    if json {
        let mut all = serde_json::to_value(&found).map_err(|e| Failure::no(e.to_string()))?;
        all["disk_free"] = free.into();
        return output::json(&all);
    }
    let bytes = found.bytes.map_or_else(|| "of unknown size".to_owned(), output::size);
    output::line(&format!(
        "{} at {}: {}, {bytes}",
        found.repo,
        found.commit,
        output::counted(found.files as u64, "file", "files")
    ))?;
    if found.gated {
        output::line("its terms have to be accepted on its page first")?;
    }
    let verdict = match (&found.fit, &found.note) {
        (Some(fit), _) if !fit.supported => "this version of Hearth does not run its family".to_owned(),
        (Some(fit), _) if fit.fits => format!("fits on this computer: it takes {}", output::size(fit.total)),
        (Some(fit), _) => format!("does not fit on this computer: it takes {}", output::size(fit.total)),
        (None, note) => format!("whether it fits is not known: {}", note.as_deref().unwrap_or("no reason is known")),
    };
    output::line(&verdict)?;
    match free {
        Some(free) => output::line(&disk(manager.cache(), found.bytes.unwrap_or(0), free)),
        None => Ok(()),
    }
}

/// Whether so many bytes have room in the cache, none of them being there yet.
fn disk(cache: &Path, needed: u64, free: u64) -> String {
    let spare = DownloadOptions::default().spare;
    if free >= needed.saturating_add(spare) {
        return format!("{} are free on the disk", output::size(free));
    }
    let (needed, spare, free) = (output::size(needed), output::size(spare), output::size(free));
    LibraryError::DiskFull { path: cache.to_owned(), needed, spare, free }.to_string()
}

fn end(job: &Download, args: &PullArgs) -> Result<(), Failure> {
    if args.json {
        output::json(job)?;
    }
    let message = || job.message.clone().unwrap_or_default();
    match job.state {
        DownloadState::Done => {
            if let Some(note) = &job.message {
                say!("note: {note}");
            }
            match &job.path {
                Some(path) if !args.json => output::line(path),
                _ => Ok(()),
            }
        }
        DownloadState::Paused if message().ends_with(ELSEWHERE) => Err(Failure::no(message())),
        DownloadState::Paused => {
            let why = job.message.as_ref().map(|m| format!("{m}\n")).unwrap_or_default();
            let (percent, name) = (job.percent(), &args.model);
            Err(Failure::no(format!("{why}paused at {percent} %; `hearth pull {name}` goes on from there")))
        }
        DownloadState::Cancelled => Err(Failure::no("the download was cancelled, and what it had fetched is removed")),
        _ if job.bytes > 0 => Err(Failure::no(format!(
            "{}\n{} of {} are here; `hearth pull {}` goes on from there",
            message(),
            output::size(job.bytes),
            output::size(job.total),
            args.model
        ))),
        _ => Err(Failure::no(message())),
    }
}

/// The exit code of a download that cannot begin.
fn failure(e: LibraryError) -> Failure {
    match &e {
        LibraryError::Hub(HubError::BadRepo { .. } | HubError::BadRevision { .. } | HubError::BadEndpoint { .. }) => {
            Failure::usage(e.to_string())
        }
        _ => Failure::no(e.to_string()),
    }
}

impl Worker {
    async fn start(&self, repo: &str, revision: &str) -> Result<Download, Failure> {
        match self {
            Self::Server(client) => client.start_download(repo, revision).await,
            Self::Own(manager) => manager.start(repo, Some(revision)).map_err(failure),
        }
    }

    /// The jobs that run before this command asks for its own.
    async fn running(&self) -> Result<Vec<String>, Failure> {
        let jobs = match self {
            Self::Server(client) => client.downloads().await?,
            Self::Own(_) => Vec::new(),
        };
        Ok(jobs.into_iter().filter(|job| job.state.is_active()).map(|job| job.id).collect())
    }

    async fn get(&self, id: &str) -> Result<Download, Failure> {
        match self {
            Self::Server(client) => client.download(id).await,
            Self::Own(manager) => manager.get(id).map_err(failure),
        }
    }

    async fn pause(&self, id: &str) -> Result<Download, Failure> {
        match self {
            Self::Server(client) => client.pause_download(id).await,
            Self::Own(manager) => manager.pause(id).map_err(failure),
        }
    }

    /// Waits until there may be something new.
    async fn wait(&self, id: &str) {
        let settled = async {
            match self {
                Self::Server(_) => std::future::pending().await,
                Self::Own(manager) => drop(manager.settled(id).await),
            }
        };
        let _ = tokio::time::timeout(LOOK, settled).await;
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = "{prefix} {bar:24} {percent:>3} %  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, job: &Download) {
    bar.set_prefix(job.repo.clone());
    bar.set_length(job.total.max(1));
    bar.set_position(job.bytes);
    let done = job.files.iter().filter(|f| f.state == FileState::Done).count();
    let mut text = match job.state {
        DownloadState::Queued => "waits for another download".to_owned(),
        DownloadState::Checking => "asking the hub".to_owned(),
        DownloadState::Verifying => "verifying".to_owned(),
        _ => format!(
            "{} of {}, {}/s, {done} of {} files",
            output::size(job.bytes),
            output::size(job.total),
            output::size(job.speed),
            job.files.len()
        ),
    };
    if let Some(seconds) = job.remaining_s.filter(|_| job.state == DownloadState::Downloading) {
        text = format!("{text}, {} left", output::duration(seconds as f64));
    }
    if let Some(message) = &job.message {
        text = format!("{text}; {message}");
    }
    bar.set_message(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_said_as_the_download_would() {
        let cache = Path::new("/cache");
        assert_eq!(disk(cache, 1_000_000_000, 1_250_000_000), "1.2 GB are free on the disk");
        let text = disk(cache, 1_000_000_000, 1_249_999_999);
        assert!(
            text.starts_with("not enough disk space in /cache: 1.0 GB are needed and 250.0 MB to spare, "),
            "{text}"
        );
    }
}
