//! From files to the layers of a row: read, verify, put together, one layer after the other.

use super::format::{self, Header, Kind, Seen};
use super::index::Path;
use super::key::Key;
use super::shared::{Job, Shared};
use super::{Strip, Whole};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Layers that are read ahead of their use: the engine takes them at its own speed.
const AHEAD: usize = 2;

/// A prefix that is on disk. Its files stay as long as this value.
pub struct Found {
    shared: Arc<Shared>,
    path: Path,
    bytes: u64,
}

impl Found {
    /// Pins the files.
    pub(super) fn new(shared: Arc<Shared>, path: Path) -> Self {
        let bytes = {
            let mut state = shared.lock();
            path.keys().for_each(|key| state.index.pin(key, true));
            path.keys().filter_map(|key| state.index.get(key)).map(|entry| entry.bytes).sum()
        };
        Found { shared, path, bytes }
    }

    /// Length of the prefix in tokens.
    pub fn tokens(&self) -> usize {
        self.path.tokens
    }

    /// Bytes to read.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        self.path.keys().for_each(|key| state.index.pin(key, false));
    }
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("path", &self.path).finish()
    }
}

/// What a restore sends.
#[derive(Debug)]
pub enum RestoreEvent {
    /// The next layer, in order from 0.
    Layer {
        /// Its strips `[heads, room, width]`, zeros after the prefix.
        strips: Vec<Strip>,
        /// Its arrays of untrimmable state.
        wholes: Vec<Whole>,
    },
    /// All layers were sent.
    Done {
        /// Length of the prefix.
        tokens: usize,
    },
    /// There is no more to come, and what came is of no use.
    Failed {
        /// Why.
        message: String,
    },
}

/// Why a restore ended early.
enum Trouble {
    /// Nobody listens any more.
    Gone,
    /// The file is damaged: what is wrong.
    Damaged(Key, String),
    /// The file is not there, or not Hearth's any more.
    Missing(Key),
    /// Something else.
    Other(String),
}

/// See [`super::Disk::restore`].
pub fn restore(found: Found, room: usize) -> Receiver<RestoreEvent> {
    let (events, receiver) = sync_channel(AHEAD);
    let failed = events.clone();
    let spawned = std::thread::Builder::new().name("hearth-restore".to_owned()).spawn(move || {
        let room = room.max(found.tokens());
        run(found, room, &events);
    });
    if let Err(e) = spawned {
        _ = failed.try_send(RestoreEvent::Failed { message: format!("no thread to read with: {e}") });
    }
    receiver
}

fn run(found: Found, room: usize, events: &SyncSender<RestoreEvent>) {
    let shared = &Arc::clone(&found.shared);
    let message = match layers(&found, room, events) {
        Ok(()) => {
            let tokens = found.tokens();
            let mut state = shared.lock();
            state.counts.hits += 1;
            state.counts.reused_tokens += tokens as u64;
            state.counts.read += found.bytes;
            let keys: Vec<Key> = found.path.keys().copied().collect();
            state.touch(&keys);
            state.queue.push_back(Job::Touch(keys));
            drop(state);
            shared.wake.notify_one();
            // Whoever hears of the end may count on it.
            drop(found);
            _ = events.send(RestoreEvent::Done { tokens });
            return;
        }
        Err(Trouble::Gone) => return,
        Err(Trouble::Damaged(key, what)) => {
            shared.give_up(&key, &what);
            format!("a file of the cache is damaged: {what}")
        }
        Err(Trouble::Missing(key)) => {
            shared.forget(&key);
            // Whoever took one may have taken more.
            found.path.keys().filter(|key| is_gone(shared, key)).for_each(|key| shared.forget(key));
            "a file of the cache is gone".to_owned()
        }
        Err(Trouble::Other(message)) => message,
    };
    tracing::warn!("prompt cache on disk: a restore of {} tokens failed: {message}", found.tokens());
    shared.lock().counts.failed_restores += 1;
    drop(found);
    _ = events.send(RestoreEvent::Failed { message });
}

fn is_gone(shared: &Shared, key: &Key) -> bool {
    let name = shared.lock().index.get(key).map(|entry| entry.name.clone());
    name.is_some_and(|name| shared.files.len(&shared.path(&name)).is_err_and(|e| e.kind() == io::ErrorKind::NotFound))
}

/// One file of the prefix.
struct Source {
    key: Key,
    path: std::path::PathBuf,
    header: Header,
    /// Where the next layer begins.
    at: u64,
}

impl Source {
    fn open(shared: &Shared, key: &Key) -> Result<Source, Trouble> {
        let name = shared.lock().index.get(key).map(|entry| entry.name.clone()).ok_or(Trouble::Missing(*key))?;
        let path = shared.path(&name);
        let seen = shared.files.len(&path).and_then(|length| format::look(shared.files.as_ref(), &path, &name, length));
        match seen {
            Ok(Seen::Ours(header, at)) if header.key() == *key => Ok(Source { key: *key, path, header, at }),
            Ok(Seen::Damaged(what)) => Err(Trouble::Damaged(*key, what)),
            Ok(_) => Err(Trouble::Missing(*key)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Trouble::Missing(*key)),
            Err(e) => Err(Trouble::Other(format!("cannot read {}: {e}", path.display()))),
        }
    }

    /// Reads the bytes of the next layer, number `layer`, into `bytes`, and verifies them.
    fn next(&mut self, shared: &Shared, layer: usize, bytes: &mut Vec<u8>) -> Result<(), Trouble> {
        let Some(described) = self.header.layers.get(layer) else {
            return Err(Trouble::Other(format!("the files of a prefix differ in their layers at layer {layer}")));
        };
        let length = described.bytes();
        // The header's sum was the file's length, so this is no more than there is.
        bytes.resize(length as usize, 0);
        match shared.files.read(&self.path, self.at, bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(Trouble::Damaged(self.key, format!("it ends within layer {layer}")));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Trouble::Missing(self.key)),
            Err(e) => return Err(Trouble::Other(format!("cannot read {}: {e}", self.path.display()))),
        }
        self.at += length;
        let (expected, found) = (blake3::Hash::from_bytes(described.hash), blake3::hash(bytes));
        if expected != found {
            let what = format!("layer {layer} has the hash {found}, expected {expected}");
            return Err(Trouble::Damaged(self.key, what));
        }
        Ok(())
    }
}

fn layers(found: &Found, room: usize, events: &SyncSender<RestoreEvent>) -> Result<(), Trouble> {
    let shared = &found.shared;
    let open = |key: &Key| Source::open(shared, key);
    let mut blocks = found.path.blocks.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut snapshot = found.path.snapshot.as_ref().map(open).transpose()?;
    let count = snapshot.iter().chain(&blocks).map(|s| s.header.layers.len()).max().unwrap_or(0);
    let mut buffer = Vec::new();
    for layer in 0..count {
        let mut strips = empty_strips(&blocks, layer, room)?;
        for block in &mut blocks {
            block.next(shared, layer, &mut buffer)?;
            let begin = block.header.start as usize;
            let held = block.header.tokens.len();
            copy(&mut strips, &buffer, held, begin, held.min(found.tokens().saturating_sub(begin)), room);
        }
        let mut wholes = Vec::new();
        if let Some(snapshot) = &mut snapshot {
            snapshot.next(shared, layer, &mut buffer)?;
            wholes = cut(&snapshot.header, layer, &buffer);
        }
        events.send(RestoreEvent::Layer { strips, wholes }).map_err(|_| Trouble::Gone)?;
    }
    Ok(())
}

/// Zeros in the shape that all blocks agree on.
fn empty_strips(blocks: &[Source], layer: usize, room: usize) -> Result<Vec<Strip>, Trouble> {
    let Some(first) = blocks.first() else { return Ok(Vec::new()) };
    let layout = first.header.layout();
    let fits = |s: &Source| s.header.kind == Kind::Block && (layer > 0 || s.header.layout() == layout);
    let Some(described) = first.header.layers.get(layer).filter(|_| blocks.iter().all(fits)) else {
        return Err(Trouble::Other("the files of a prefix differ in their layers".to_owned()));
    };
    let strip = |array: &format::Array| {
        let [heads, width] = array.dims[..] else { return None };
        let length = (heads as usize).checked_mul(width as usize)?.checked_mul(room)?;
        Some(Strip { heads, width, dtype: array.dtype, bytes: vec![0; length] })
    };
    let strips = described.arrays.iter().map(strip).collect::<Option<Vec<_>>>();
    strips.ok_or_else(|| Trouble::Other(format!("{room} tokens of room are too many")))
}

/// Puts the first `take` of a block's `held` tokens at `begin` into each strip.
fn copy(strips: &mut [Strip], mut block: &[u8], held: usize, begin: usize, take: usize, room: usize) {
    for strip in strips {
        let width = strip.width as usize;
        let (from, rest) = block.split_at((strip.heads as usize * held * width).min(block.len()));
        block = rest;
        if width == 0 || held == 0 {
            continue;
        }
        for (to, from) in strip.bytes.chunks_exact_mut(room * width).zip(from.chunks_exact(held * width)) {
            if let (Some(to), Some(from)) =
                (to.get_mut(begin * width..(begin + take) * width), from.get(..take * width))
            {
                to.copy_from_slice(from);
            }
        }
    }
}

/// A snapshot's layer as arrays.
fn cut(header: &Header, layer: usize, mut bytes: &[u8]) -> Vec<Whole> {
    let arrays = header.layers.get(layer).map_or(&[][..], |layer| &layer.arrays);
    let mut take = |array: &format::Array| {
        let (own, rest) = bytes.split_at((array.bytes as usize).min(bytes.len()));
        bytes = rest;
        Whole { shape: array.dims.clone(), dtype: array.dtype, bytes: own.to_vec() }
    };
    arrays.iter().map(&mut take).collect()
}
