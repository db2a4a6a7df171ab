//! One file while its job runs: which chunks are complete, claimed or free, where it comes from, and beginning it anew when what came
//! cannot be right.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use reqwest::Url;

use super::part::{Part, chunks};
use super::state::FileRecord;
use super::{DownloadFile, FileState};
use crate::LibraryError;

/// Chunks that one request asks for at most: few enough that the gapless beginning, which the checksum follows, keeps up
/// with all connections, and so many that asking costs little.
const MOST_CHUNKS: usize = 16;
/// How often a file is begun anew before the job gives up.
pub(super) const MOST_RESTARTS: u32 = 4;

/// A file of a running job.
#[derive(Debug)]
pub(super) struct FileJob {
    /// What it is.
    pub record: FileRecord,
    /// Where its content belongs.
    pub blob: PathBuf,
    /// Bytes that are here, for showing.
    bytes: AtomicU64,
    /// Counts the times it was begun anew; what belongs to an older one is dropped.
    generation: AtomicU32,
    inner: Mutex<Inner>,
    /// Signals that the frontier moved, or the file was begun anew, or given up.
    moved: Condvar,
}

#[derive(Debug)]
struct Inner {
    state: FileState,
    part: Option<Arc<Part>>,
    claimed: Vec<bool>,
    done: Vec<bool>,
    /// Leading chunks that are all complete.
    frontier: usize,
    /// Where the content itself is, and the tag it has there.
    source: Option<Url>,
    tag: Option<String>,
    /// The source does not give ranges: the whole file in one request.
    whole: bool,
    /// Whether `tag` is sent along; no longer after sources disagreed about it.
    use_tag: bool,
    mismatches: u32,
    given_up: bool,
}

/// Some consecutive chunks to fetch.
#[derive(Debug)]
pub(super) struct Span {
    /// Of which beginning of the file.
    pub generation: u32,
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// Where the bytes go.
    pub part: Arc<Part>,
    /// Nobody has begun this file before: its checksum is not being computed yet.
    pub first: bool,
}

impl FileJob {
    /// A file that is not begun, or `done`.
    pub fn new(record: FileRecord, blob: PathBuf, done: bool) -> Self {
        let bytes = if done { record.size } else { super::part::bytes_there(&blob, record.size) };
        Self {
            blob,
            bytes: AtomicU64::new(bytes),
            generation: AtomicU32::new(0),
            inner: Mutex::new(Inner {
                state: if done { FileState::Done } else { FileState::Waiting },
                part: None,
                claimed: Vec::new(),
                done: Vec::new(),
                frontier: 0,
                source: None,
                tag: None,
                whole: false,
                use_tag: true,
                mismatches: 0,
                given_up: false,
            }),
            moved: Condvar::new(),
            record,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next chunks that nobody fetches, for one of `connections`.
    pub fn claim(&self, chunk: u64, connections: usize) -> Result<Option<Span>, LibraryError> {
        let mut inner = self.lock();
        let first = match inner.state {
            FileState::Waiting => {
                self.open(&mut inner, chunk)?;
                true
            }
            FileState::Downloading => false,
            FileState::Verifying | FileState::Done => return Ok(None),
        };
        let Some(part) = inner.part.clone() else { return Ok(None) };
        let free = inner.claimed.iter().filter(|c| !**c).count();
        let Some(start) = inner.claimed.iter().position(|c| !c) else {
            // Nothing to fetch, as everything was here: only its checksum is missing.
            let empty = Span { generation: self.generation(), start: 0, end: 0, part, first };
            return Ok(first.then_some(empty));
        };
        // Large requests first and smaller ones towards the end, so that all connections end together.
        let most = if inner.whole { usize::MAX } else { free.div_ceil(connections.max(1)).min(MOST_CHUNKS) };
        let count = inner.claimed[start..].iter().take(most).take_while(|c| !**c).count();
        inner.claimed[start..start + count].fill(true);
        let size = self.record.size;
        let at = |i: usize| (i as u64 * part.chunk()).min(size);
        Ok(Some(Span { generation: self.generation(), start: at(start), end: at(start + count), part, first }))
    }

    fn open(&self, inner: &mut Inner, chunk: u64) -> Result<(), LibraryError> {
        let (part, done) = Part::open(&self.blob, self.record.size, chunk)?;
        inner.frontier = done.iter().take_while(|d| **d).count();
        inner.claimed = done.clone();
        inner.done = done;
        inner.part = Some(Arc::new(part));
        inner.state = if inner.frontier == inner.done.len() { FileState::Verifying } else { FileState::Downloading };
        Ok(())
    }

    /// Which beginning of the file is the current one.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Counts bytes that came.
    pub fn came(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that the bytes `from..to` are written, of which the chunk that ends at or before `to` may be complete now.
    pub fn wrote(&self, span: &Span, from: u64, to: u64) -> Result<(), LibraryError> {
        let chunk = span.part.chunk();
        let last = to == self.record.size;
        let (first_done, until) = (from / chunk, if last { chunks(to, chunk) as u64 } else { to / chunk });
        if first_done >= until {
            return Ok(());
        }
        let mut inner = self.lock();
        if span.generation != self.generation() {
            return Ok(());
        }
        for i in first_done..until {
            span.part.complete(i as usize)?;
            if let Some(done) = inner.done.get_mut(i as usize) {
                *done = true;
            }
        }
        while inner.done.get(inner.frontier) == Some(&true) {
            inner.frontier += 1;
        }
        if inner.frontier == inner.done.len() {
            inner.state = FileState::Verifying;
        }
        self.moved.notify_all();
        Ok(())
    }

    /// Begins the file anew: what came cannot be right. `false` when that was done too often, or somebody else has done it.
    pub fn restart(&self, generation: u32, why: Restart) -> Result<bool, LibraryError> {
        let mut inner = self.lock();
        if generation != self.generation() {
            return Ok(true);
        }
        if generation >= MOST_RESTARTS {
            return Ok(false);
        }
        if let Some(part) = &inner.part {
            part.reset()?;
        }
        match why {
            Restart::NoRange => {
                // Once: the content has another tag now. Twice: the source does not know ranges.
                inner.whole = !inner.use_tag;
                inner.use_tag = false;
            }
            // Twice: its tags say nothing of the content, such as those of several machines that disagree. The checksum does.
            Restart::Changed => inner.use_tag &= generation == 0,
            Restart::Mismatch => inner.mismatches += 1,
        }
        (inner.source, inner.tag) = (None, None);
        inner.claimed.fill(false);
        inner.done.fill(false);
        inner.frontier = 0;
        inner.state = FileState::Downloading;
        self.bytes.store(0, Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Release);
        self.moved.notify_all();
        Ok(true)
    }

    /// How often a whole file had the wrong checksum.
    pub fn mismatches(&self) -> u32 {
        self.lock().mismatches
    }

    /// Where the content was found to be, and the tag to send along.
    pub fn source(&self) -> (Option<Url>, Option<String>) {
        let inner = self.lock();
        (inner.source.clone(), inner.tag.clone().filter(|_| inner.use_tag))
    }

    /// Notes where the content is; `false` if its tag is another one than before.
    pub fn found(&self, span: &Span, url: &Url, tag: Option<&str>) -> bool {
        let mut inner = self.lock();
        if span.generation != self.generation() {
            return true;
        }
        // A weak tag says nothing of the bytes.
        let tag = tag.filter(|t| t.starts_with('"'));
        let same = match (&inner.tag, tag) {
            (Some(known), Some(now)) => known == now || !inner.use_tag,
            _ => true,
        };
        inner.source = Some(url.clone());
        inner.tag = inner.tag.take().or_else(|| tag.map(str::to_owned));
        same
    }

    /// Forgets where the content is: its address may have expired.
    pub fn lose_source(&self) {
        self.lock().source = None;
    }

    /// Waits until bytes beyond `at` are complete; how far they reach. `None` when `generation` is over, or the file given up.
    pub fn wait_beyond(&self, at: u64, generation: u32) -> Option<u64> {
        let mut inner = self.lock();
        loop {
            if inner.given_up || generation != self.generation() {
                return None;
            }
            let chunk = inner.part.as_ref().map_or(1, |p| p.chunk());
            let reach = (inner.frontier as u64 * chunk).min(self.record.size);
            if reach > at || reach == self.record.size {
                return Some(reach);
            }
            inner = self.moved.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether nobody wants it any more.
    pub fn is_given_up(&self) -> bool {
        self.lock().given_up
    }

    /// Ends everything that waits for it.
    pub fn give_up(&self) {
        self.lock().given_up = true;
        self.moved.notify_all();
    }

    /// Moves the verified content to its place.
    pub fn settle(&self) -> Result<(), LibraryError> {
        let mut inner = self.lock();
        if let Some(part) = inner.part.take() {
            part.finish(&self.blob)?;
        }
        inner.state = FileState::Done;
        self.bytes.store(self.record.size, Ordering::Relaxed);
        Ok(())
    }

    /// Where it is.
    pub fn state(&self) -> FileState {
        self.lock().state
    }

    /// As shown.
    pub fn view(&self) -> DownloadFile {
        let total = self.record.size;
        let bytes = self.bytes.load(Ordering::Relaxed).min(total);
        DownloadFile { name: self.record.path.clone(), bytes, total, state: self.state() }
    }
}

/// Why a file is begun anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Restart {
    /// A range was asked for, and the whole file came.
    NoRange,
    /// It is not the same content any more.
    Changed,
    /// The whole has the wrong checksum.
    Mismatch,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::hub::Checksum;

    fn file(dir: &Path, size: u64) -> FileJob {
        let checksum = Checksum::Sha256("a".repeat(64));
        let record = FileRecord { path: "m".into(), size, checksum, verified: false, made: false };
        FileJob::new(record, dir.join("blob"), false)
    }

    #[test]
    fn every_byte_is_claimed_once_and_the_frontier_is_what_is_gapless() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path(), 1005);
        let mut spans = Vec::new();
        while let Some(span) = file.claim(10, 4).unwrap() {
            assert_eq!(span.first, spans.is_empty());
            spans.push(span);
        }
        let mut at = 0;
        for span in &spans {
            assert_eq!(span.start, at);
            at = span.end;
        }
        assert_eq!(at, 1005);
        assert!(
            spans.len() > 8 && spans[0].end == 160 && spans.last().unwrap().end - spans.last().unwrap().start <= 10
        );
        // Out of order: the frontier waits for the first.
        for span in spans.iter().skip(1) {
            file.wrote(span, span.start, span.end).unwrap();
        }
        assert_eq!(file.state(), FileState::Downloading);
        let first = &spans[0];
        file.wrote(first, 0, 15).unwrap();
        assert_eq!(file.wait_beyond(0, 0), Some(10));
        file.wrote(first, 15, 160).unwrap();
        assert_eq!((file.wait_beyond(10, 0), file.state()), (Some(1005), FileState::Verifying));
    }

    #[test]
    fn a_file_begun_anew_takes_nothing_from_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(dir.path(), 100);
        let old = file.claim(10, 1).unwrap().unwrap();
        file.wrote(&old, 0, 50).unwrap();
        assert!(file.restart(0, Restart::NoRange).unwrap());
        file.wrote(&old, 50, 100).unwrap();
        assert_eq!(file.wait_beyond(0, 0), None, "the old beginning is over");
        assert_eq!(super::super::part::bytes_there(&dir.path().join("blob"), 100), 0);
        assert!(file.restart(1, Restart::NoRange).unwrap());
        let whole = file.claim(10, 4).unwrap().unwrap();
        assert_eq!((whole.start, whole.end, whole.generation, whole.first), (0, 100, 2, false));
        for generation in 2..MOST_RESTARTS {
            assert!(file.restart(generation, Restart::Changed).unwrap());
        }
        assert!(!file.restart(MOST_RESTARTS, Restart::Changed).unwrap(), "not for ever");
    }
}
