//! What the handle, the writer and the restores share, and the two things all of them do: make room and give up a file.

use super::DiskOptions;
use super::files::Files;
use super::format::{self, Kind};
use super::index::{Entry, Index, Node};
use super::key::Key;
use super::plan::{Draft, Ticket};
use super::{Cleared, Flushed};
use hearth_core::stats::{SsdCacheStats, SsdState};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Work for the writer's thread.
pub enum Job {
    /// Write a file.
    Write(Draft),
    /// Set modification times.
    Touch(Vec<Key>),
    /// Make the tier ready, which could not be done at the start.
    Prepare,
    /// Say what became of everything before.
    Flush { reply: Sender<Flushed>, files: u64, bytes: u64 },
    /// Remove files until the folder is within its cap.
    Shrink,
    /// Remove everything.
    Clear(Sender<Cleared>),
}

/// Why nothing is written.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What is wrong and what to do.
    pub message: String,
    /// When writing is tried again; `None`: never.
    pub retry_at: Option<Instant>,
}

/// The part behind the lock.
pub struct State {
    /// The files.
    pub index: Index,
    /// Bytes on disk or soon there that the index does not count: a file being written, files being removed.
    pub reserved: u64,
    /// Pieces between their plan and their end, and who waits for them.
    pub in_flight: HashMap<Key, Vec<Ticket>>,
    /// Drafts that wait for the end of another piece.
    pub parked: HashMap<Key, Vec<Draft>>,
    /// Work to do.
    pub queue: VecDeque<Job>,
    /// Why nothing is written.
    pub failure: Option<Failure>,
    /// What could not be written since the last flush: bytes and reason.
    pub unwritten: BTreeMap<Key, (u64, String)>,
    /// Counters; the other figures are filled in when asked for.
    pub counts: SsdCacheStats,
    /// Files written since the start.
    pub files_written: u64,
    /// Raised by each clearing: what was planned before is not written.
    pub epoch: u64,
    /// The last handle is gone.
    pub stopped: bool,
    /// The folder was read into the index; until then nothing is found and nothing written.
    pub prepared: bool,
    /// The writer is about to try it again.
    pub preparing: bool,
    /// The folder's lock. Without it nothing is written or removed.
    pub lock: Option<File>,
    /// The last moment given out.
    pub clock: u64,
}

/// See the module.
pub struct Shared {
    /// Folder, rate.
    pub options: DiskOptions,
    /// Most bytes in the folder; it can be changed.
    pub cap: AtomicU64,
    /// The file system.
    pub files: Arc<dyn Files>,
    /// Bytes in memory that are to be written.
    pub backlog: AtomicU64,
    /// Rows are being decoded.
    pub busy: AtomicBool,
    /// Flushes under way.
    pub flushing: AtomicUsize,
    state: Mutex<State>,
    /// Something was added to the queue.
    pub wake: Condvar,
}

/// Nanoseconds since 1970.
pub fn nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl State {
    /// A moment later than all before.
    pub fn now(&mut self) -> u64 {
        self.clock = nanos(SystemTime::now()).max(self.clock + 1);
        self.clock
    }

    /// Bytes that the folder holds or is about to.
    pub fn bytes(&self) -> u64 {
        self.index.bytes() + self.reserved
    }

    /// Files were used, all at one moment.
    pub fn touch<'a>(&mut self, keys: impl IntoIterator<Item = &'a Key>) {
        let now = self.now();
        keys.into_iter().for_each(|key| self.index.set_used(key, now));
    }

    /// The message of a failure that still holds.
    pub fn refusal(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        let holds = failure.retry_at.is_none_or(|at| Instant::now() < at);
        holds.then(|| failure.message.clone())
    }

    /// The file that already holds what `node` would, if it may be continued from as short a prefix.
    pub fn holder(&mut self, key: &Key, node: &Node) -> Option<Key> {
        let good = |index: &Index, key: &Key| {
            let held = index.get(key)?.node.as_ref()?;
            (held.min_reusable <= node.min_reusable).then_some(*key)
        };
        let exact = good(&self.index, key);
        if exact.is_some() || node.kind == Kind::Snapshot {
            return exact;
        }
        let longer = self.index.covering(&node.parent, &node.tokens)?;
        good(&self.index, &longer)
    }

    /// A piece came to its end.
    pub fn settle(&mut self, key: &Key, outcome: &Result<(), String>) {
        for ticket in self.in_flight.remove(key).into_iter().flatten() {
            ticket.settle(outcome);
        }
        for draft in self.parked.remove(key).into_iter().flatten().rev() {
            self.queue.push_front(Job::Write(draft));
        }
    }
}

impl Shared {
    /// Nothing indexed yet.
    pub fn new(options: DiskOptions, files: Arc<dyn Files>) -> Self {
        let state = State {
            index: Index::default(),
            reserved: 0,
            in_flight: HashMap::new(),
            parked: HashMap::new(),
            queue: VecDeque::new(),
            failure: None,
            unwritten: BTreeMap::new(),
            counts: SsdCacheStats::default(),
            files_written: 0,
            epoch: 0,
            stopped: false,
            prepared: false,
            preparing: false,
            lock: None,
            clock: 0,
        };
        Shared {
            cap: AtomicU64::new(options.cap),
            options,
            files,
            backlog: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            flushing: AtomicUsize::new(0),
            state: Mutex::new(state),
            wake: Condvar::new(),
        }
    }

    /// The state; a panic elsewhere does not make it unusable.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something in the queue.
    pub fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.wake.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work.
    pub fn push(&self, job: Job) {
        self.lock().queue.push_back(job);
        self.wake.notify_one();
    }

    /// Where a file is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.options.dir.join(name)
    }

    /// Nothing is written for a while, or ever.
    pub fn fail(&self, message: String, retry: Option<Duration>) {
        let retry_at = retry.map(|after| Instant::now() + after);
        let mut state = self.lock();
        // Not again with every attempt.
        if state.failure.as_ref().is_none_or(|failure| failure.message != message) {
            tracing::warn!("prompt cache on disk: {message}");
        }
        state.failure = Some(Failure { message, retry_at });
    }

    /// What went wrong at `doing`, and what to do.
    pub fn explain(&self, doing: &str, error: &io::Error) -> String {
        let dir = self.options.dir.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
                "{dir} is full: free space or lower --cache-ssd; until then the prompt cache on disk is only read"
            ),
            io::ErrorKind::ReadOnlyFilesystem => format!(
                "{dir} is read-only: make it writable or give another folder with --cache-dir; \
                 until then the prompt cache on disk is only read"
            ),
            io::ErrorKind::PermissionDenied => format!(
                "no permission to {doing} in {dir}: allow it or give another folder with --cache-dir; \
                 until then the prompt cache on disk is only read"
            ),
            _ => format!("cannot {doing} in {dir}: {error}; check the disk or give another folder with --cache-dir"),
        }
    }

    /// Removes least recently used files until `size` more bytes fit under the cap, and reserves them. Never
    /// removes files in use or in `keep`; removes nothing if it would not be enough.
    ///
    /// # Errors
    /// Why it does not fit.
    pub fn make_room(&self, size: u64, keep: &HashSet<Key>) -> Result<(), String> {
        let cap = self.cap.load(Ordering::Relaxed);
        let victims = {
            let mut state = self.lock();
            let need = (state.bytes() + size).saturating_sub(cap);
            let Some(victims) = state.index.victims(need, keep) else {
                return Err(format!(
                    "{size} bytes do not fit into the cap of {cap} bytes beside what is in use: raise --cache-ssd"
                ));
            };
            self.take_out(&mut state, &victims)
        };
        let count = self.unlink(victims).0;
        let mut state = self.lock();
        state.counts.evicted += count as u64;
        if state.bytes() + size > cap {
            return Err(format!("the files in {} cannot be removed", self.options.dir.display()));
        }
        state.reserved += size;
        Ok(())
    }

    /// Takes files out of the index; their bytes stay counted until [`Shared::unlink`].
    pub fn take_out(&self, state: &mut State, keys: &[Key]) -> Vec<(Key, Entry)> {
        let taken: Vec<_> = keys.iter().filter_map(|key| Some((*key, state.index.remove(key)?))).collect();
        state.reserved += taken.iter().map(|(_, entry)| entry.bytes).sum::<u64>();
        taken
    }

    /// Removes files that were taken out; those that cannot be removed stay counted. Returns how many files and
    /// bytes are gone.
    pub fn unlink(&self, taken: Vec<(Key, Entry)>) -> (usize, u64) {
        let (mut count, mut bytes) = (0, 0);
        for (key, entry) in taken {
            let gone = self.remove_file(&entry.name);
            let mut state = self.lock();
            state.reserved -= entry.bytes;
            if gone {
                (count, bytes) = (count + 1, bytes + entry.bytes);
            } else {
                state.index.insert(key, Entry { pins: 0, ..entry });
            }
        }
        (count, bytes)
    }

    /// Whether the file is gone now, or not Hearth's any more: then it stays, and counts no longer. Without the
    /// folder's lock nothing is removed.
    pub fn remove_file(&self, name: &str) -> bool {
        if self.lock().lock.is_none() {
            return false;
        }
        let path = self.path(name);
        match format::may_go(self.files.as_ref(), &path, name) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("prompt cache on disk: {} is not Hearth's any more and stays", path.display());
                return true;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return true,
            Err(e) => {
                tracing::warn!("prompt cache on disk: cannot read {}, so it stays: {e}", path.display());
                return false;
            }
        }
        match self.files.remove(&path) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => {
                tracing::warn!("prompt cache on disk: cannot remove {}: {e}", path.display());
                false
            }
        }
    }

    /// A file is damaged: it is removed, and what follows it is of no use.
    pub fn give_up(&self, key: &Key, what: &str) {
        let taken = {
            let mut state = self.lock();
            state.counts.corrupt += 1;
            state.index.cut_off(key);
            self.take_out(&mut state, &[*key])
        };
        for (key, mut entry) in taken {
            let path = self.path(&entry.name);
            // If it has to stay it counts, but is not found again.
            entry.node = None;
            let gone = self.unlink(vec![(key, entry)]).0 > 0;
            let removed = if gone { " and removed" } else { "" };
            tracing::warn!("prompt cache on disk: {} is damaged{removed}: {what}", path.display());
        }
    }

    /// A file is not there or not ours any more.
    pub fn forget(&self, key: &Key) {
        let mut state = self.lock();
        state.index.cut_off(key);
        state.index.remove(key);
    }

    /// Looks whether indexed files are still there, as long as they were; forgets those that are gone, and removes
    /// those that have another length.
    pub fn verify(&self, keys: &[Key]) {
        let changed = |entry: &Entry| match self.files.len(&self.path(&entry.name)) {
            Ok(length) if length == entry.bytes => None,
            Ok(length) => Some(Some(format!("{length} bytes long, expected {}", entry.bytes))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Some(None),
            // Not a file any more, or not to be told.
            Err(_) => Some(None),
        };
        let held: Vec<(Key, Entry)> = {
            let state = self.lock();
            let bare = |key: &Key| Some((*key, Entry { node: None, ..state.index.get(key)?.clone() }));
            keys.iter().filter_map(bare).collect()
        };
        for (key, _) in held.iter().filter(|(_, entry)| changed(entry).is_some()) {
            // Once more, with nobody else at it: meanwhile it may have been given up or written anew.
            let mut state = self.lock();
            match state.index.get(key).and_then(changed) {
                None => {}
                Some(Some(what)) => {
                    drop(state);
                    self.give_up(key, &what);
                }
                Some(None) => {
                    state.index.cut_off(key);
                    state.index.remove(key);
                }
            }
        }
    }

    /// The same for all files.
    pub fn forget_vanished(&self) {
        let keys = self.lock().index.keys();
        self.verify(&keys);
    }

    /// The figures.
    pub fn stats(&self) -> SsdCacheStats {
        let state = self.lock();
        SsdCacheStats {
            state: if state.failure.is_some() { SsdState::Failed } else { SsdState::Ready },
            message: state.failure.as_ref().map(|failure| failure.message.clone()),
            dir: Some(self.options.dir.clone()),
            cap: self.cap.load(Ordering::Relaxed),
            bytes: state.bytes(),
            files: state.index.len(),
            pending: self.backlog.load(Ordering::Relaxed),
            ..state.counts.clone()
        }
    }
}
