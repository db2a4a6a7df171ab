//! One job from the question to the hub to the links of the snapshot.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::files::{FileJob, Restart};
use super::lock::{self, Locked};
use super::state::{FileRecord, Record};
use super::transfer::{Context, Fault, Signal};
use super::{DownloadFile, DownloadOptions, DownloadState, FileState, plan, size, verify};
use crate::LibraryError;
use crate::hf_cache::RepoFolder;
use crate::hub::{Hub, HubError, RemoteFile, Repo, Revision};

/// What is shown of a running job; shared with whoever shows it.
#[derive(Debug)]
pub(super) struct Live {
    inner: Mutex<LiveInner>,
}

#[derive(Debug)]
struct LiveInner {
    state: DownloadState,
    files: Vec<Arc<FileJob>>,
    /// What is waited for now.
    note: Option<String>,
    /// What was unusual, and stays.
    remarks: Vec<String>,
}

impl Live {
    /// Nothing known yet.
    pub fn new() -> Self {
        let inner = LiveInner { state: DownloadState::Checking, files: Vec::new(), note: None, remarks: Vec::new() };
        Self { inner: Mutex::new(inner) }
    }

    fn with<T>(&self, work: impl FnOnce(&mut LiveInner) -> T) -> T {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// State, files and message.
    pub fn view(&self) -> (DownloadState, Vec<DownloadFile>, Option<String>) {
        let (state, files, note, remarks) =
            self.with(|live| (live.state, live.files.clone(), live.note.clone(), live.remarks.clone()));
        let files: Vec<DownloadFile> = files.iter().map(|f| f.view()).collect();
        let verifying = state == DownloadState::Downloading
            && files.iter().all(|f| matches!(f.state, FileState::Verifying | FileState::Done));
        let state = if verifying { DownloadState::Verifying } else { state };
        (state, files, note.or_else(|| (!remarks.is_empty()).then(|| remarks.join("; "))))
    }

    /// What was unusual.
    pub fn remarks(&self) -> Option<String> {
        self.with(|live| (!live.remarks.is_empty()).then(|| live.remarks.join("; ")))
    }

    fn remark(&self, text: String) {
        self.with(|live| {
            if !live.remarks.contains(&text) {
                live.remarks.push(text);
            }
        });
    }

    fn note(&self, text: Option<String>) {
        self.with(|live| live.note = text);
    }

    /// Which of the job's files are verified now.
    pub fn verified(&self) -> Vec<String> {
        let files = self.with(|live| live.files.clone());
        files.iter().filter(|f| f.state() == FileState::Done).map(|f| f.record.path.clone()).collect()
    }
}

/// What a job needs.
pub(super) struct Job {
    /// What is known of it; gains commit and files.
    pub record: Record,
    /// The hub.
    pub hub: Hub,
    /// How.
    pub options: DownloadOptions,
    /// What it is told.
    pub signal: watch::Receiver<Signal>,
    /// What is shown of it.
    pub live: Arc<Live>,
    /// Writes the record down; called when it has changed.
    pub keep: Keep,
}

/// Writes a record down.
pub(super) type Keep = Box<dyn Fn(&Record) -> Result<(), LibraryError> + Send + Sync>;

impl Job {
    /// Runs it to its end; the record then says what is there.
    pub async fn run(&mut self) -> Result<(), Fault> {
        let result = self.work().await;
        // Seen in the first request or in any later one.
        if let Some(note) = self.hub.token_note() {
            self.live.remark(note);
        }
        let verified = self.live.verified();
        for file in &mut self.record.files {
            file.verified |= verified.contains(&file.path);
        }
        result
    }

    async fn work(&mut self) -> Result<(), Fault> {
        if self.record.commit.is_none() || self.record.files.is_empty() {
            self.ask().await?;
        }
        let repo = Repo::parse(&self.record.repo)?;
        let commit = self.record.commit.clone().unwrap_or_default();
        let folder = RepoFolder::new(&self.record.hub, &repo);
        let _lock = match lock::acquire(&folder.lock_file())? {
            Locked::Ours(lock) => lock,
            Locked::Theirs(pid) => return Err(LibraryError::Downloading { pid }.into()),
        };
        self.look_at_what_is_there(&folder).await?;
        (self.keep)(&self.record)?;
        self.check_space(&folder)?;
        let files: Vec<Arc<FileJob>> = self
            .record
            .files
            .iter()
            .map(|f| Arc::new(FileJob::new(f.clone(), folder.blob(f.checksum.hex()), f.verified)))
            .collect();
        self.live.with(|live| (live.files, live.state) = (files.clone(), DownloadState::Downloading));
        self.fetch(&files, repo, commit.clone()).await?;
        for file in &self.record.files {
            folder.link(&commit, &file.path, file.checksum.hex())?;
        }
        folder.set_ref(&self.record.revision, &commit)?;
        if self.record.files.iter().any(|f| f.made) {
            crate::remove::note_made(&folder, &commit)?;
        }
        Ok(())
    }

    fn context(&self, repo: Repo, commit: String) -> Context {
        let live = self.live.clone();
        Context {
            hub: self.hub.clone(),
            repo,
            commit,
            options: self.options.clone(),
            signal: self.signal.clone(),
            note: Box::new(move |text| live.note(text)),
        }
    }

    /// Asks the hub what there is.
    async fn ask(&mut self) -> Result<(), Fault> {
        let (asked, revision) = (Repo::parse(&self.record.asked)?, Revision::parse(&self.record.revision)?);
        let context = self.context(asked.clone(), String::new());
        let info = patiently(&context, || self.hub.info(&asked, &revision)).await?;
        if info.repo != asked {
            self.live.remark(format!("{asked} is called {} now, and is downloaded under that name", info.repo));
        }
        let mut files = Vec::new();
        for file in plan::needed(&info.repo, &info.files)? {
            files.push(self.described(&context, &info.repo, &info.commit, file).await?);
        }
        // What an earlier run of this job verified is not read again.
        for file in &mut files {
            let known = self.record.files.iter().find(|f| f.checksum == file.checksum && f.size == file.size);
            (file.verified, file.made) = known.map_or((false, false), |f| (f.verified, f.made));
        }
        self.record.repo = info.repo.to_string();
        self.record.commit = Some(info.commit);
        self.record.files = files;
        Ok(())
    }

    async fn described(
        &self,
        context: &Context,
        repo: &Repo,
        commit: &str,
        file: RemoteFile,
    ) -> Result<FileRecord, Fault> {
        let (size, checksum) = match (file.size, file.checksum) {
            (Some(size), Some(checksum)) => (size, checksum),
            _ => patiently(context, || self.hub.describe(repo, commit, &file.path)).await?,
        };
        Ok(FileRecord { path: file.path, size, checksum, verified: false, made: false })
    }

    /// Looks which contents the cache has already: those of an earlier run are known to be right, others are read.
    async fn look_at_what_is_there(&mut self, folder: &RepoFolder) -> Result<(), Fault> {
        let referred = folder.referred(None);
        for i in 0..self.record.files.len() {
            let Some(file) = self.record.files.get(i).cloned() else { continue };
            let blob = folder.blob(file.checksum.hex());
            let length = std::fs::metadata(&blob).ok().map(|m| m.len());
            let right = match length {
                None => false,
                Some(length) if file.verified && length == file.size => true,
                Some(_) => {
                    if *self.signal.borrow() != Signal::Go {
                        return Err(Fault::Stopped);
                    }
                    self.live.note(Some(format!("checking {}, which is here already", file.path)));
                    let (blob, sum) = (blob.clone(), file.checksum.clone());
                    let right = tokio::task::spawn_blocking(move || verify::is_right(&blob, file.size, &sum)).await;
                    let right = right.map_err(broken)??;
                    if !right {
                        self.live.remark(format!("{} was damaged on disk, and is replaced", file.path));
                    }
                    right
                }
            };
            if let Some(file) = self.record.files.get_mut(i) {
                file.verified = right;
                file.made = if right { file.made } else { !referred.contains(file.checksum.hex()) };
            }
        }
        self.live.note(None);
        Ok(())
    }

    /// Refuses to begin what cannot end well.
    fn check_space(&self, folder: &RepoFolder) -> Result<(), LibraryError> {
        let missing = |f: &FileRecord| match f.verified {
            true => 0,
            false => f.size - super::part::bytes_there(&folder.blob(f.checksum.hex()), f.size).min(f.size),
        };
        let needed: u64 = self.record.files.iter().map(missing).sum();
        if needed == 0 {
            return Ok(());
        }
        let blobs = folder.blobs();
        std::fs::create_dir_all(&blobs).map_err(LibraryError::io("create", &blobs))?;
        let stat =
            rustix::fs::statvfs(&blobs).map_err(|e| LibraryError::io("ask for free space in", &blobs)(e.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed.saturating_add(self.options.spare) {
            let (needed, spare, free) = (size(needed), size(self.options.spare), size(free));
            return Err(LibraryError::DiskFull { path: self.record.hub.clone(), needed, spare, free });
        }
        Ok(())
    }

    /// Fetches and verifies all files.
    async fn fetch(&self, files: &[Arc<FileJob>], repo: Repo, commit: String) -> Result<(), Fault> {
        // Small files are over before a connection is at its speed: more of them at once.
        let least = self.options.connections.max(1);
        let missing = files.iter().filter(|f| f.state() != FileState::Done).count();
        let crew = Arc::new(Crew {
            context: self.context(repo, commit),
            files: files.to_vec(),
            wake: Notify::new(),
            connections: missing.clamp(least, 2 * least),
        });
        let mut workers = JoinSet::new();
        for _ in 0..crew.connections {
            workers.spawn(Crew::work(crew.clone()));
        }
        let mut result = Ok(());
        while let Some(ended) = workers.join_next().await {
            let ended = ended.map_err(broken).map_err(Fault::from).and_then(|r| r);
            if result.is_ok() && ended.is_err() {
                result = ended;
                for file in files {
                    file.give_up();
                }
                // They stop at their next wait; what they have written is in the journals.
                workers.abort_all();
            }
        }
        self.live.note(None);
        result
    }
}

/// The connections of a job.
struct Crew {
    context: Context,
    files: Vec<Arc<FileJob>>,
    wake: Notify,
    connections: usize,
}

impl Crew {
    /// What each connection does: take a span, fetch it, until everything is settled.
    async fn work(self: Arc<Self>) -> Result<(), Fault> {
        let mut checks = JoinSet::new();
        loop {
            while let Some(check) = checks.try_join_next() {
                check.map_err(broken)??;
            }
            let mut taken = None;
            // Files that come at the same time share the connections: a small one in a second request only waits once more.
            let unfinished = self.files.iter().filter(|f| f.state() != FileState::Done).count();
            let share = self.connections.div_ceil(unfinished.max(1));
            for file in &self.files {
                if let Some(span) = file.claim(self.context.options.chunk, share)? {
                    taken = Some((file, span));
                    break;
                }
            }
            match taken {
                Some((file, span)) => {
                    if span.first {
                        checks.spawn(Self::check(self.clone(), file.clone(), span.part.clone()));
                    }
                    self.context.fetch(file, &span).await?;
                    (self.context.note)(None);
                }
                None if self.files.iter().all(|f| f.state() == FileState::Done) => break,
                None => {
                    // Another one may begin a file anew, or end the last check.
                    tokio::select! {
                        () = self.wake.notified() => {}
                        Some(check) = checks.join_next() => check.map_err(broken)??,
                        stopped = self.context.pause(Duration::from_millis(20)) => stopped?,
                    }
                }
            }
        }
        while let Some(check) = checks.join_next().await {
            check.map_err(broken)??;
        }
        Ok(())
    }

    /// Computes a file's checksum while it comes, and moves the file to its place if it is right.
    async fn check(self: Arc<Self>, file: Arc<FileJob>, part: Arc<super::part::Part>) -> Result<(), Fault> {
        loop {
            let (followed, read) = (file.clone(), part.clone());
            let sum = tokio::task::spawn_blocking(move || verify::follow(&followed, &read)).await.map_err(broken)??;
            let Some((generation, found)) = sum else { return Ok(()) };
            let expected = file.record.checksum.hex();
            if found == expected {
                let settled = file.clone();
                tokio::task::spawn_blocking(move || settled.settle()).await.map_err(broken)??;
                self.wake.notify_waiters();
                return Ok(());
            }
            if file.mismatches() > 0 || !file.restart(generation, Restart::Mismatch)? {
                super::part::discard(&file.blob)?;
                return Err(LibraryError::Checksum {
                    file: file.record.path.clone(),
                    repo: self.context.repo.to_string(),
                    expected: expected.to_owned(),
                    found,
                }
                .into());
            }
            tracing::warn!(file = file.record.path, found, expected, "wrong checksum; fetching it again");
            (self.context.note)(Some(format!("{} came damaged, and is fetched again", file.record.path)));
            self.wake.notify_waiters();
        }
    }
}

/// Asks until there is an answer or a refusal that will stay. A hub that cannot be reached at all is one.
async fn patiently<T, F: Future<Output = Result<T, HubError>>>(
    context: &Context,
    ask: impl Fn() -> F,
) -> Result<T, Fault> {
    let mut failures = 0;
    let mut signal = context.signal.clone();
    loop {
        let answer = tokio::select! {
            _ = signal.wait_for(|s| *s != Signal::Go) => return Err(Fault::Stopped),
            answer = ask() => answer,
        };
        match answer {
            Ok(answer) => {
                (context.note)(None);
                return Ok(answer);
            }
            Err(e @ HubError::Unreachable { .. }) => return Err(e.into()),
            Err(e) => {
                failures += 1;
                let wait = context.wait_after(failures, e.clone())?;
                (context.note)(Some(format!("{e}; trying again in {} s", wait.as_secs_f32().ceil())));
                context.pause(wait).await?;
            }
        }
    }
}

/// A task that ended by a panic: a defect, said as one.
fn broken(e: tokio::task::JoinError) -> LibraryError {
    LibraryError::Defect { what: e.to_string() }
}
