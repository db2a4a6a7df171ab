//! The prompt cache on disk: state of prompts in files, named after the tokens it was computed from.
//!
//! Trimmable state (keys and values) is kept in blocks of 32 tokens, all layers of a block in one file, the last
//! block as short as it is; a block's name is a hash of the name before it and its own tokens, so that what many
//! prompts begin with is there once. Untrimmable state is kept as snapshots. A [`Disk`] is a handle: searching and
//! planning take microseconds, a thread writes, and each restore has a thread of its own. Nothing here knows MLX:
//! state comes and goes as bytes.
//!
//! The folder never holds more than the cap, the file in the making included. Files are written under a temporary
//! name, made durable and then renamed, so that a run may be killed at any moment. Damaged files are a miss and
//! removed; files of other models and format versions count and go by age; files that do not have one of Hearth's
//! names and begin as Hearth's files do are neither counted nor touched.

mod files;
mod format;
mod index;
mod key;
mod open;
mod pace;
mod plan;
mod restore;
mod shared;
mod sys;
mod trie;
mod writer;

#[cfg(test)]
mod tests;

pub use key::Namespace;
pub use plan::{Piece, Plan, Progress, Ticket};
pub use restore::{Found, RestoreEvent};

use files::{Files, System};
use hearth_core::stats::SsdCacheStats;
use shared::{Job, Shared};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One array of a layer's trimmable state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// Heads.
    pub heads: u32,
    /// Bytes of one token in one head.
    pub width: u32,
    /// The engine's mark of its type.
    pub dtype: u8,
    /// `[heads, tokens, width]`.
    pub bytes: Vec<u8>,
}

/// One array of a layer's untrimmable state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// Its shape.
    pub shape: Vec<u32>,
    /// The engine's mark of its type.
    pub dtype: u8,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Which kinds of state a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Trimmable state, in blocks.
    pub strips: bool,
    /// Untrimmable state, in snapshots.
    pub snapshot: bool,
}

/// The tier's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; made if it is not there.
    pub dir: PathBuf,
    /// Most bytes that Hearth's files may take in it.
    pub cap: u64,
    /// Bytes per second that the writer handles at most while rows are decoded. Hashing and copying cost about a
    /// millisecond of one core per megabyte, so that the default takes a twentieth of a core.
    pub rate: u64,
    /// How long writing is not tried again after it failed.
    pub retry: Duration,
    /// Tokens of a full block, at most 256. Prompts share whole blocks only: what the last shared one holds of their
    /// own is stored for each. Longer blocks are fewer files.
    pub block: usize,
}

impl DiskOptions {
    /// The defaults for this folder and cap.
    pub fn new(dir: impl Into<PathBuf>, cap: u64) -> Self {
        DiskOptions { dir: dir.into(), cap, rate: 48_000_000, retry: Duration::from_secs(30), block: 32 }
    }
}

/// What a flush did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flushed {
    /// Files written for it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What could not be written since the last flush, and why.
    pub failed: Vec<String>,
}

/// What a clearing did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cleared {
    /// Files removed.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that could not be removed.
    pub left: usize,
}

/// A handle on the tier. With the last one the writer's thread ends; what is not written by then is lost.
#[derive(Clone)]
pub struct Disk {
    shared: Arc<Shared>,
    writer: Option<Arc<Writer>>,
}

/// Ends the thread and gives the folder back.
struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the writer was logged where it happened.
            _ = thread.join();
        }
        if let Some(lock) = self.shared.lock().lock.take() {
            // Not left to the closing: a process that is being started may have a copy of the descriptor.
            _ = lock.unlock();
        }
    }
}

impl Disk {
    /// Opens the folder: removes what a killed run left, reads all headers, evicts down to the cap. Whatever is
    /// wrong is in [`Disk::stats`], and the tier then only reads, or finds nothing.
    pub fn open(options: DiskOptions) -> Disk {
        Self::open_with(options, Arc::new(System))
    }

    fn open_with(options: DiskOptions, files: Arc<dyn Files>) -> Disk {
        let shared = Arc::new(Shared::new(options, files));
        open::prepare(&shared);
        let for_thread = Arc::clone(&shared);
        let spawned =
            std::thread::Builder::new().name("hearth-disk".to_owned()).spawn(move || writer::run(&for_thread));
        match spawned {
            Ok(thread) => {
                let writer = Writer { shared: Arc::clone(&shared), thread: Some(thread) };
                Disk { shared, writer: Some(Arc::new(writer)) }
            }
            Err(e) => {
                shared.fail(format!("no thread to write with: {e}; the prompt cache on disk is only read"), None);
                Disk { shared, writer: None }
            }
        }
    }

    /// The longest prefix on disk that state of these parts can be continued from, leaving at least one token of
    /// the prompt to compute. `None` unless it is longer than `longer_than`. Its files stay while the value lives.
    pub fn find(&self, namespace: &Namespace, prompt: &[u32], parts: Parts, longer_than: usize) -> Option<Found> {
        let path = {
            let mut state = self.shared.lock();
            if !state.prepared && !state.preparing && state.refusal().is_none() {
                // Whoever had the folder may be gone.
                state.preparing = true;
                state.queue.push_back(Job::Prepare);
                self.shared.wake.notify_one();
            }
            state.index.find(namespace, prompt, parts, self.shared.options.block)?
        };
        (path.tokens > longer_than).then(|| Found::new(Arc::clone(&self.shared), path))
    }

    /// Reads a prefix: one event per layer in order, with strips for `room` tokens (at least the prefix), then
    /// `Done`; or `Failed` at any point, after which a damaged file is gone. The thread reads two layers ahead and
    /// waits while the receiver does not take them; it ends when the receiver is dropped.
    pub fn restore(&self, found: Found, room: usize) -> Receiver<RestoreEvent> {
        restore::restore(found, room)
    }

    /// What is missing on disk of the state of `tokens`, which may be continued from prefixes of `min_reusable`
    /// tokens and more. What is there already counts as used. While writing fails there are no pieces, and the
    /// ticket says why.
    pub fn plan(&self, namespace: &Namespace, tokens: &[u32], min_reusable: usize, parts: Parts) -> Plan {
        plan::plan(&self.shared, namespace, tokens, min_reusable, parts)
    }

    /// Bytes in memory that wait to be written, those of unfinished pieces included.
    pub fn backlog(&self) -> u64 {
        self.shared.backlog.load(Ordering::Relaxed)
    }

    /// Whether rows are being decoded: then the writer keeps to its rate.
    pub fn set_busy(&self, busy: bool) {
        self.shared.busy.store(busy, Ordering::Relaxed);
    }

    /// Whatever failed is tried again with the next file, flush or clearing instead of after a while.
    pub fn retry_now(&self) {
        if let (Some(_), Some(failure)) = (&self.writer, &mut self.shared.lock().failure) {
            failure.retry_at = Some(Instant::now());
        }
    }

    /// Sends its result once everything that was handed over before is durable or has failed. Until then the
    /// writer goes as fast as it can.
    ///
    /// What failed before is tried again at once: call [`Disk::retry_now`] before the plans that it is to wait for.
    pub fn flush(&self) -> Receiver<Flushed> {
        self.retry_now();
        let (reply, receiver) = channel();
        let mut state = self.shared.lock();
        if self.writer.is_none() {
            _ = reply.send(Flushed::default());
            return receiver;
        }
        self.shared.flushing.fetch_add(1, Ordering::Relaxed);
        let (files, bytes) = (state.files_written, state.counts.written);
        state.queue.push_back(Job::Flush { reply, files, bytes });
        self.shared.wake.notify_one();
        receiver
    }

    /// From now on the folder holds at most so many bytes; what is too much leaves soon, least recently used first.
    pub fn set_cap(&self, cap: u64) {
        self.shared.cap.store(cap, Ordering::Relaxed);
        self.shared.lock().queue.push_back(Job::Shrink);
        self.shared.wake.notify_one();
    }

    /// Removes all of Hearth's files, of every model. What is waiting to be written is dropped.
    pub fn clear(&self) -> Receiver<Cleared> {
        self.retry_now();
        let (reply, receiver) = channel();
        let mut state = self.shared.lock();
        if self.writer.is_none() {
            _ = reply.send(Cleared::default());
            return receiver;
        }
        state.epoch += 1;
        state.queue.push_back(Job::Clear(reply));
        self.shared.wake.notify_one();
        receiver
    }

    /// The figures.
    pub fn stats(&self) -> SsdCacheStats {
        self.shared.stats()
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("dir", &self.shared.options.dir).finish()
    }
}
