//! All jobs of a state folder: asked for, queued, run, stopped, shown.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{broadcast, watch};

use super::job::{Job, Live};
use super::lock::{self, Locked};
use super::part;
use super::state::{Record, id};
use super::transfer::{Fault, Signal};
use super::{Download, DownloadOptions, DownloadState};
use hearth_core::fit::Machine;

use crate::LibraryError;
use crate::catalogue::{self, Preview};
use crate::home::{Home, process_env};
use crate::hub::{Hub, HubError, HubOptions, Repo, Revision};
use crate::scan::hf_cache;

/// How the message of a job that another process has ends.
pub const ELSEWHERE: &str = "downloads it now";

/// Who does.
pub(crate) fn elsewhere(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid} {ELSEWHERE}"),
        None => format!("another process {ELSEWHERE}"),
    }
}

/// How often a running job is looked at.
const TICK: Duration = Duration::from_millis(250);
/// Events kept for receivers that are slow.
const EVENTS: usize = 256;
/// Jobs that are over and still shown.
const OVER: usize = 50;

/// All downloads of one Hearth home; cheap to clone. Methods return at once: work goes on in threads of its own.
#[derive(Clone)]
pub struct DownloadManager(Arc<Shared>);

struct Shared {
    folder: PathBuf,
    cache: PathBuf,
    hub: Result<Hub, HubError>,
    options: DownloadOptions,
    jobs: Mutex<BTreeMap<String, Entry>>,
    events: broadcast::Sender<Download>,
    /// Made for the first job.
    runtime: Mutex<Option<Runtime>>,
    /// What the hub said of models, by name.
    previews: Mutex<BTreeMap<String, Preview>>,
}

struct Entry {
    record: Record,
    shown: Download,
    /// Set while it runs.
    running: Option<watch::Sender<Signal>>,
    /// The order of the queue.
    asked: u64,
    /// What it was when it was asked for again: complete.
    before: Option<Record>,
}

impl DownloadManager {
    /// The downloads of `home` into this user's Hugging Face cache, from the hub that the environment names.
    ///
    /// # Errors
    /// [`LibraryError::NoHome`] where there is no place for a cache.
    pub fn standard(home: &Home) -> Result<Self, LibraryError> {
        let cache = hf_cache(&process_env).ok_or(LibraryError::NoHome)?;
        Ok(Self::open(&home.downloads(), &cache, HubOptions::from_env(&process_env), DownloadOptions::default()))
    }

    /// The downloads with this state folder, cache and hub. Jobs that an earlier process left are shown as paused.
    pub fn open(folder: &Path, cache: &Path, hub: HubOptions, options: DownloadOptions) -> Self {
        let shared = Shared {
            folder: folder.to_path_buf(),
            cache: cache.to_path_buf(),
            hub: Hub::new(hub),
            options,
            jobs: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
            runtime: Mutex::new(None),
            previews: Mutex::default(),
        };
        shared.read_folder(&mut shared.lock());
        Self(Arc::new(shared))
    }

    /// The hub that is downloaded from.
    ///
    /// # Errors
    /// When the environment names one that cannot be.
    pub fn hub(&self) -> Result<&Hub, HubError> {
        self.0.hub.as_ref().map_err(Clone::clone)
    }

    /// The cache that is downloaded into.
    pub fn cache(&self) -> &Path {
        &self.0.cache
    }

    /// Every change of every job, at most four a second for each while it runs.
    pub fn subscribe(&self) -> broadcast::Receiver<Download> {
        self.0.events.subscribe()
    }

    /// What the hub says of a model's main branch; asked once for each.
    ///
    /// # Errors
    /// [`LibraryError::Hub`].
    pub async fn preview(&self, repo: &str, machine: &Machine) -> Result<Preview, LibraryError> {
        if let Some(known) = self.known_preview(repo) {
            return Ok(known);
        }
        let found = catalogue::preview(self.hub()?, &Repo::parse(repo)?, &Revision::main(), machine).await?;
        self.0.previews.lock().unwrap_or_else(PoisonError::into_inner).insert(repo.to_owned(), found.clone());
        Ok(found)
    }

    /// What the hub has said of a model already.
    pub fn known_preview(&self, repo: &str) -> Option<Preview> {
        self.0.previews.lock().unwrap_or_else(PoisonError::into_inner).get(repo).cloned()
    }

    /// All jobs, the oldest first.
    pub fn list(&self) -> Vec<Download> {
        let mut jobs = self.0.lock();
        self.0.read_folder(&mut jobs);
        let mut all: Vec<(u64, u64, Download)> =
            jobs.values().map(|e| (e.record.created, e.asked, e.shown.clone())).collect();
        all.sort_by_key(|(created, asked, _)| (*created, *asked));
        all.into_iter().map(|(_, _, shown)| shown).collect()
    }

    /// One job.
    ///
    /// # Errors
    /// [`LibraryError::NoDownload`].
    pub fn get(&self, id: &str) -> Result<Download, LibraryError> {
        let mut jobs = self.0.lock();
        self.0.read_folder(&mut jobs);
        jobs.get(id).map(|e| e.shown.clone()).ok_or_else(|| unknown(id))
    }

    /// Downloads a revision of a repository (`main` without one). What runs already goes on, what was paused or failed is resumed,
    /// what is done is asked for again, in case there is something newer.
    ///
    /// # Errors
    /// A name that cannot be one, a hub that cannot be asked.
    pub fn start(&self, repo: &str, revision: Option<&str>) -> Result<Download, LibraryError> {
        let repo = Repo::parse(repo)?;
        let revision = revision.map_or_else(|| Ok(Revision::main()), Revision::parse)?;
        self.hub()?;
        let id = id(&repo, &revision);
        let mut jobs = self.0.lock();
        self.0.read_folder(&mut jobs);
        match jobs.get_mut(&id) {
            Some(entry) if entry.shown.state.is_active() => return Ok(entry.shown.clone()),
            // The cache is another one now: there it is to be.
            Some(entry) if entry.record.hub != self.0.cache => {
                entry.record = Record::new(&repo, &revision, &self.0.cache);
                entry.queue();
            }
            Some(entry) if matches!(entry.shown.state, DownloadState::Paused | DownloadState::Failed) => {
                // A failure before anything was fetched may have been of the listing.
                if entry.shown.bytes == 0 {
                    entry.record.commit = None;
                }
                entry.queue();
            }
            Some(entry) => {
                entry.before = (entry.shown.state == DownloadState::Done).then(|| entry.record.clone());
                entry.record.commit = None;
                entry.queue();
            }
            None => {
                let record = Record::new(&repo, &revision, &self.0.cache);
                let mut entry = Entry { shown: record.view(), record, running: None, asked: 0, before: None };
                entry.queue();
                jobs.insert(id.clone(), entry);
            }
        }
        self.0.begin(&mut jobs, &id)
    }

    /// Stops a job and keeps what it has; nothing happens to one that does not run.
    ///
    /// # Errors
    /// [`LibraryError::NoDownload`].
    pub fn pause(&self, id: &str) -> Result<Download, LibraryError> {
        let mut jobs = self.0.lock();
        let entry = jobs.get_mut(id).ok_or_else(|| unknown(id))?;
        match &entry.running {
            Some(signal) => {
                // A cancelled one stays cancelled.
                signal.send_if_modified(|s| {
                    std::mem::replace(s, if *s == Signal::Go { Signal::Pause } else { *s }) == Signal::Go
                });
            }
            None if entry.shown.state == DownloadState::Queued => {
                entry.show(DownloadState::Paused, None);
                self.0.keep(entry)?;
            }
            None => {}
        }
        Ok(entry.shown.clone())
    }

    /// Goes on with a paused or failed job; nothing happens to one that runs or is done.
    ///
    /// # Errors
    /// [`LibraryError::NoDownload`].
    pub fn resume(&self, id: &str) -> Result<Download, LibraryError> {
        let shown = self.get(id)?;
        let asked = self.0.lock().get(id).map(|e| e.record.asked.clone()).unwrap_or_default();
        match shown.state {
            DownloadState::Paused | DownloadState::Failed | DownloadState::Cancelled => {
                self.start(&asked, Some(&shown.revision))
            }
            _ => Ok(shown),
        }
    }

    /// Stops a job and removes what it has fetched; a job that is done is only taken from the list, and its model stays.
    ///
    /// # Errors
    /// [`LibraryError::NoDownload`], [`LibraryError::Downloading`] where another process is at it, and what could not be
    /// removed.
    pub fn cancel(&self, id: &str) -> Result<Download, LibraryError> {
        let mut jobs = self.0.lock();
        self.0.read_folder(&mut jobs);
        let entry = jobs.get_mut(id).ok_or_else(|| unknown(id))?;
        if let Some(signal) = &entry.running {
            signal.send_replace(Signal::Cancel);
            return Ok(entry.shown.clone());
        }
        if entry.shown.state == DownloadState::Done {
            entry.record.forget(&self.0.folder)?;
            let shown = entry.shown.clone();
            jobs.remove(id);
            return Ok(shown);
        }
        self.0.clear(entry)?;
        Ok(entry.shown.clone())
    }

    /// Waits until a job is over or stopped.
    ///
    /// # Errors
    /// [`LibraryError::NoDownload`].
    pub async fn settled(&self, id: &str) -> Result<Download, LibraryError> {
        let mut events = self.subscribe();
        loop {
            let shown = self.get(id)?;
            if !shown.state.is_active() {
                return Ok(shown);
            }
            // A slow receiver has missed some, which `get` makes up for.
            let _ = tokio::time::timeout(Duration::from_secs(1), events.recv()).await;
        }
    }
}

fn unknown(id: &str) -> LibraryError {
    LibraryError::NoDownload { id: id.to_owned() }
}

impl Entry {
    /// Whether it has not come to know yet what there is to download, and goes on or may be told to.
    fn knows_nothing(&self) -> bool {
        let open = self.shown.state.is_active() || self.shown.state == DownloadState::Paused;
        open && self.record.commit.is_none()
    }

    fn queue(&mut self) {
        self.show(DownloadState::Queued, None);
    }

    fn show(&mut self, state: DownloadState, message: Option<String>) {
        (self.record.state, self.record.message) = (state, message);
        self.shown = self.record.view();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what is in the state folder: jobs of an earlier process, or of another one.
    fn read_folder(&self, jobs: &mut BTreeMap<String, Entry>) {
        let mut records = Record::load_all(&self.folder);
        // A model that was removed since takes its job along.
        records.retain(|r| r.state != DownloadState::Done || r.snapshot().is_some() || r.forget(&self.folder).is_err());
        // Another process has removed its record: so is its entry here. One that knows nothing yet has none.
        jobs.retain(|id, e| {
            e.running.is_some()
                || e.shown.state.is_active()
                || e.knows_nothing()
                || e.shown.state == DownloadState::Cancelled
                || records.iter().any(|r| r.id == *id)
        });
        for mut record in records {
            let known = jobs.get(&record.id);
            if known.is_some_and(|e| e.running.is_some() || e.shown.state.is_active() || e.record == record) {
                continue;
            }
            if record.state.is_active() {
                record.state = DownloadState::Paused;
                let holder = record.folder().and_then(|folder| lock::holder(&folder.lock_file()));
                record.message = Some(match holder {
                    Some(pid) => elsewhere(pid),
                    None => "it was stopped with the program that ran it".to_owned(),
                });
                if known.is_some_and(|e| e.record == record) {
                    continue;
                }
            }
            jobs.insert(
                record.id.clone(),
                Entry { shown: record.view(), record, running: None, asked: 0, before: None },
            );
        }
    }

    fn keep(&self, entry: &Entry) -> Result<(), LibraryError> {
        let _ = self.events.send(entry.shown.clone());
        // There is nothing to go on from: what is on record stays as it was.
        if entry.knows_nothing() { Ok(()) } else { entry.record.save(&self.folder) }
    }

    /// Removes what a job that does not run has fetched, and its record.
    fn clear(&self, entry: &mut Entry) -> Result<(), LibraryError> {
        if let Some(folder) = entry.record.folder() {
            // What another process is fetching is not to go from under it.
            let _lock = match lock::acquire(&folder.lock_file())? {
                Locked::Ours(lock) => lock,
                Locked::Theirs(pid) => return Err(LibraryError::Downloading { pid }),
            };
            let referred = folder.referred(None);
            for file in &entry.record.files {
                let hex = file.checksum.hex();
                part::discard(&folder.blob(hex))?;
                if file.made && !referred.contains(hex) {
                    let _ = std::fs::remove_file(folder.blob(hex));
                }
            }
            folder.remove_empty();
        }
        entry.record.forget(&self.folder)?;
        entry.record.files.clear();
        entry.record.commit = None;
        entry.show(DownloadState::Cancelled, None);
        let _ = self.events.send(entry.shown.clone());
        Ok(())
    }

    /// Queues the entry `id`, starts what may start, and drops the oldest that are over.
    fn begin(self: &Arc<Self>, jobs: &mut BTreeMap<String, Entry>, id: &str) -> Result<Download, LibraryError> {
        let last = jobs.values().map(|e| e.asked).max().unwrap_or(0);
        if let Some(entry) = jobs.get_mut(id) {
            entry.asked = last + 1;
            self.keep(entry)?;
        }
        let over = |e: &Entry| matches!(e.shown.state, DownloadState::Done | DownloadState::Cancelled);
        let mut old: Vec<(u64, String)> =
            jobs.iter().filter(|(_, e)| over(e)).map(|(id, e)| (e.record.created, id.clone())).collect();
        old.sort();
        for (_, id) in old.iter().take(old.len().saturating_sub(OVER)) {
            if let Some(entry) = jobs.remove(id) {
                entry.record.forget(&self.folder)?;
            }
        }
        self.schedule(jobs)?;
        jobs.get(id).map(|e| e.shown.clone()).ok_or_else(|| unknown(id))
    }

    /// Starts queued jobs while there is room: one for each repository, as they share a folder.
    fn schedule(self: &Arc<Self>, jobs: &mut BTreeMap<String, Entry>) -> Result<(), LibraryError> {
        loop {
            let busy: Vec<String> =
                jobs.values().filter(|e| e.running.is_some()).map(|e| e.record.repo.clone()).collect();
            if busy.len() >= self.options.jobs.max(1) {
                return Ok(());
            }
            let next = jobs
                .values_mut()
                .filter(|e| {
                    e.running.is_none() && e.shown.state == DownloadState::Queued && !busy.contains(&e.record.repo)
                })
                .min_by_key(|e| e.asked);
            let Some(entry) = next else { return Ok(()) };
            let hub = self.hub.clone()?;
            let (send, signal) = watch::channel(Signal::Go);
            let live = Arc::new(Live::new());
            let folder = self.folder.clone();
            let job = Job {
                record: entry.record.clone(),
                hub,
                options: self.options.clone(),
                signal,
                live: live.clone(),
                keep: Box::new(move |record| {
                    // If the process ends now, this is what the next one finds.
                    Record { state: DownloadState::Downloading, ..record.clone() }.save(&folder)
                }),
            };
            entry.shown.state = DownloadState::Checking;
            entry.running = Some(send);
            let _ = self.events.send(entry.shown.clone());
            let (shared, id) = (self.clone(), entry.record.id.clone());
            self.spawn(async move { shared.run(id, job, live).await })?;
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<(), LibraryError> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match runtime.take() {
            Some(running) => running,
            None => tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("hearth-download")
                .enable_all()
                .build()
                .map_err(LibraryError::io("start threads for", &self.folder))?,
        };
        runtime.insert(running).spawn(work);
        Ok(())
    }

    /// Runs a job and shows it meanwhile.
    async fn run(self: Arc<Self>, id: String, mut job: Job, live: Arc<Live>) {
        let (done, mut over) = watch::channel(false);
        let watcher = {
            let (shared, id, live) = (self.clone(), id.clone(), live.clone());
            tokio::spawn(async move {
                let mut pace = Pace::new();
                while tokio::time::timeout(TICK, over.wait_for(|over| *over)).await.is_err() {
                    shared.tick(&id, &live, &mut pace);
                }
            })
        };
        // In a task of its own: a defect in it must not leave the job running for ever.
        let ran = tokio::spawn(async move {
            let result = job.run().await;
            (job.record, result)
        });
        let ran = ran.await;
        done.send_replace(true);
        let _ = watcher.await;
        self.finish(&id, ran, &live);
    }

    fn tick(&self, id: &str, live: &Live, pace: &mut Pace) {
        let (state, files, message) = live.view();
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(id) else { return };
        let mut shown = Download { state, message, ..entry.shown.clone() };
        if !files.is_empty() {
            shown.bytes = files.iter().map(|f| f.bytes).sum();
            shown.total = files.iter().map(|f| f.total).sum();
            shown.files = files;
        }
        (shown.speed, shown.remaining_s) = pace.next(shown.bytes, shown.total);
        if shown != entry.shown {
            entry.shown = shown;
            let _ = self.events.send(entry.shown.clone());
        }
    }

    fn finish(
        self: &Arc<Self>,
        id: &str,
        ran: Result<(Record, Result<(), Fault>), tokio::task::JoinError>,
        live: &Live,
    ) {
        let mut jobs = self.lock();
        let Some(entry) = jobs.get_mut(id) else { return };
        let cancelled = entry.running.take().is_some_and(|signal| *signal.borrow() == Signal::Cancel);
        let before = entry.before.take().filter(|before| before.snapshot().is_some());
        let (state, message) = match ran {
            Ok((record, result)) => {
                entry.record = record;
                match (result, before) {
                    (Ok(()), _) => (DownloadState::Done, live.remarks()),
                    // It was only asked whether there is something newer.
                    (Err(Fault::Stopped), Some(before)) if entry.record.commit.is_none() => {
                        entry.record = before;
                        (DownloadState::Done, live.remarks())
                    }
                    (Err(Fault::Stopped), _) => (DownloadState::Paused, live.remarks()),
                    // Somebody else does it: nothing of this job's is wrong.
                    (Err(Fault::Error(e @ LibraryError::Downloading { .. })), _) => {
                        (DownloadState::Paused, Some(e.to_string()))
                    }
                    // Whether there is something newer is not known; the model that is here is as good as it was.
                    (Err(Fault::Error(e)), Some(before)) if entry.record.commit.is_none() => {
                        entry.record = before;
                        (DownloadState::Done, Some(format!("{e}; the model that is here stays as it is")))
                    }
                    (Err(Fault::Error(e)), _) => (DownloadState::Failed, Some(e.to_string())),
                }
            }
            Err(defect) => (DownloadState::Failed, Some(LibraryError::Defect { what: defect.to_string() }.to_string())),
        };
        entry.show(state, message);
        let kept = match cancelled && state != DownloadState::Done {
            true => self.clear(entry),
            false => self.keep(entry),
        };
        if let Err(e) = kept.and_then(|()| self.schedule(&mut jobs)) {
            tracing::warn!("{e}");
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let runtime = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // Never waits: this may be a thread that must not.
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

/// The speed of the last seconds.
struct Pace {
    at: Instant,
    bytes: Option<u64>,
    speed: f64,
}

impl Pace {
    fn new() -> Self {
        Self { at: Instant::now(), bytes: None, speed: 0.0 }
    }

    /// Bytes per second, and the seconds that are left.
    fn next(&mut self, bytes: u64, total: u64) -> (u64, Option<u64>) {
        let now = Instant::now();
        let passed = now.duration_since(self.at).as_secs_f64();
        if let Some(before) = self.bytes
            && passed > 0.0
        {
            let lately = bytes.saturating_sub(before) as f64 / passed;
            // About two seconds of memory, for numbers that can be read.
            let share = (passed / 2.0).min(1.0);
            self.speed = if self.speed == 0.0 { lately } else { self.speed + share * (lately - self.speed) };
        }
        (self.at, self.bytes) = (now, Some(bytes));
        let left = total.saturating_sub(bytes);
        let remaining = (self.speed >= 1.0 && left > 0).then(|| (left as f64 / self.speed).ceil() as u64);
        (self.speed as u64, remaining)
    }
}
