//! The writer's thread: drafts become files, one at a time, without getting in the way of those that compute.

use super::files::Output;
use super::format::{self, ENDING, Kind, MAGIC, Seen, TEMPORARY};
use super::index::{Entry, Node};
use super::key::Key;
use super::pace::{PIECE, Pace};
use super::plan::Draft;
use super::shared::{Job, Shared, State, nanos};
use super::{Cleared, Flushed, open, sys};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Rests shorter than this are put together.
const SHORTEST_REST: Duration = Duration::from_millis(2);
/// After this long the writer looks whether it still has to rest.
const LONGEST_NAP: Duration = Duration::from_millis(20);
/// Failed files that a flush tells apart.
const MOST_UNWRITTEN: usize = 4096;

/// Why a file was not written.
enum Trouble {
    /// It is not the disk's fault.
    Refused(String),
    /// It is: at this, with this error.
    Disk(&'static str, io::Error),
}

/// Works until the last handle is gone.
pub fn run(shared: &Shared) {
    sys::step_back();
    let mut pace = Pace::new(shared.options.rate);
    loop {
        let mut state = shared.lock();
        let job = loop {
            if state.stopped {
                break None;
            }
            match state.queue.pop_front() {
                Some(job) => break Some(job),
                None => state = shared.wait(state),
            }
        };
        drop(state);
        let Some(job) = job else { return end(shared) };
        match job {
            Job::Write(draft) => handle(shared, &mut pace, draft),
            Job::Touch(keys) => touch(shared, &keys),
            Job::Prepare => open::prepare_again(shared),
            Job::Flush { reply, files, bytes } => flushed(shared, &reply, files, bytes),
            Job::Shrink => shrink(shared),
            Job::Clear(reply) => clear(shared, &reply),
        }
    }
}

/// Removes files until the folder is within its cap.
fn shrink(shared: &Shared) {
    if let Err(why) = shared.make_room(0, &HashSet::new()) {
        tracing::warn!("prompt cache on disk: over its cap: {why}");
    }
}

/// What was not written by now is not written any more.
fn end(shared: &Shared) {
    let jobs = std::mem::take(&mut shared.lock().queue);
    let parked: Vec<Draft> = std::mem::take(&mut shared.lock().parked).into_values().flatten().collect();
    let drafts = jobs.into_iter().filter_map(|job| if let Job::Write(draft) = job { Some(draft) } else { None });
    for draft in parked.into_iter().chain(drafts) {
        settle(shared, &draft.key, draft.bytes, Err("Hearth ended".to_owned()));
    }
}

/// A draft's end: its bytes leave the backlog, and those who wait for it learn of it.
fn settle(shared: &Shared, key: &Key, bytes: u64, outcome: Result<(), String>) {
    shared.backlog.fetch_sub(bytes, Ordering::Relaxed);
    let mut state = shared.lock();
    match &outcome {
        Ok(()) => _ = state.unwritten.remove(key),
        Err(why) if state.unwritten.len() < MOST_UNWRITTEN => _ = state.unwritten.insert(*key, (bytes, why.clone())),
        Err(_) => {}
    }
    state.settle(key, &outcome);
}

/// The piece in flight that `draft` has to wait for.
fn missing(state: &mut State, draft: &Draft, node: &Node) -> Option<Key> {
    let tail = (node.kind == Kind::Snapshot && node.continues_blocks && !node.tokens.is_empty())
        .then(|| draft.header.namespace.block(&node.parent, &node.tokens));
    let needs = (node.kind == Kind::Block || node.continues_blocks).then_some(node.parent);
    needs.into_iter().chain(tail).find(|key| state.index.get(key).is_none() && state.in_flight.contains_key(key))
}

fn handle(shared: &Shared, pace: &mut Pace, mut draft: Draft) {
    let (key, node) = (draft.key, draft.node());
    open::prepare_again(shared);
    let verdict = {
        let mut state = shared.lock();
        let pinned = state.index.get(&key).is_some_and(|entry| entry.pins > 0);
        if draft.epoch != state.epoch {
            Some(Err("the cache was cleared".to_owned()))
        } else if pinned || state.holder(&key, &node).is_some() {
            Some(Ok(()))
        } else if let Some(wrong) = draft.wrong.take() {
            Some(Err(wrong))
        } else if draft.layers.is_empty() {
            Some(Err("it came without layers".to_owned()))
        } else if let Some(other) = missing(&mut state, &draft, &node) {
            state.parked.entry(other).or_default().push(draft);
            return;
        } else if let Some(why) = state.refusal() {
            Some(Err(why))
        } else if state.index.is_reachable(&node) {
            None
        } else {
            Some(Err("the blocks before it are not on disk".to_owned()))
        }
    };
    let outcome = match verdict {
        Some(outcome) => outcome,
        None => match write(shared, pace, &mut draft, node) {
            Ok(()) => Ok(()),
            Err(Trouble::Refused(why)) => Err(why),
            Err(Trouble::Disk(doing, error)) => {
                let message = shared.explain(doing, &error);
                shared.fail(message.clone(), Some(shared.options.retry));
                Err(message)
            }
        },
    };
    settle(shared, &key, draft.bytes, outcome);
}

/// One file: room first, a temporary file, its contents made durable, its name made durable.
fn write(shared: &Shared, pace: &mut Pace, draft: &mut Draft, node: Node) -> Result<(), Trouble> {
    open::take_lock(shared).map_err(Trouble::Refused)?;
    let name = draft.key.hex() + ENDING;
    let (path, temporary) = (shared.path(&name), shared.path(&(draft.key.hex() + TEMPORARY)));
    let replaces = shared.lock().index.get(&draft.key).is_some();
    if !replaces {
        clear_way(shared, &path, &name)?;
    }
    if !shared.lock().index.is_reachable(&node) {
        return Err(Trouble::Refused("the blocks before it are not on disk".to_owned()));
    }
    let head = draft.header.encode().len() as u64;
    let size = head + draft.header.payload();
    let keep: HashSet<Key> = shared.lock().index.chain(&node.parent).into_iter().collect();
    let keep = keep.into_iter().chain(shared.lock().index.cover(&node)).chain([draft.key]).collect();
    shared.make_room(size, &keep).map_err(Trouble::Refused)?;
    let written = contents(shared, pace, draft, head).and_then(|()| {
        // While nobody can begin to read the file that this one takes the place of.
        let state = replaces.then(|| shared.lock());
        if state.as_ref().and_then(|s| s.index.get(&draft.key)).is_some_and(|entry| entry.pins > 0) {
            return Err(Trouble::Refused("the file that it would replace is being read".to_owned()));
        }
        shared.files.rename(&temporary, &path).map_err(|e| Trouble::Disk("rename files", e))?;
        drop(state);
        // A name that may be gone after a loss of power is still right: it is indexed, but not called durable.
        Ok(shared.files.sync_dir(&shared.options.dir).map_err(|e| Trouble::Disk("sync the folder", e)))
    });
    let durable = match written {
        Ok(durable) => durable,
        Err(trouble) => {
            let gone = shared.remove_file(&(draft.key.hex() + TEMPORARY));
            let mut state = shared.lock();
            state.reserved -= size;
            if !gone {
                let name = draft.key.hex() + TEMPORARY;
                let entry = Entry { name: name.clone(), bytes: size, used: 0, pins: 0, node: None };
                state.index.insert(Key::of_name(&name), entry);
            }
            return Err(trouble);
        }
    };
    let shorter = {
        let mut state = shared.lock();
        state.reserved -= size;
        if draft.epoch != state.epoch {
            drop(state);
            shared.remove_file(&name);
            return Err(Trouble::Refused("the cache was cleared".to_owned()));
        }
        let shorter = if node.kind == Kind::Block { superseded(&mut state, &node) } else { Vec::new() };
        let mut before = state.index.chain(&node.parent);
        before.extend(state.index.cover(&node));
        let used = state.now();
        state.index.insert(draft.key, Entry { name, bytes: size, used, pins: 0, node: Some(node) });
        before.iter().for_each(|key| state.index.set_used(key, used));
        state.counts.written += size;
        state.files_written += 1;
        if durable.is_ok() {
            state.failure = None;
        }
        shared.take_out(&mut state, &shorter)
    };
    shared.unlink(shorter);
    durable
}

/// Removes what is under a new file's name, if it is Hearth's: damaged, or of another format version.
fn clear_way(shared: &Shared, path: &Path, name: &str) -> Result<(), Trouble> {
    let files = shared.files.as_ref();
    let seen = match files.len(path).and_then(|length| format::look(files, path, name, length)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Not a regular file, or not to be read.
        Err(_) => Seen::Foreign,
        Ok(seen) => seen,
    };
    let refused = |why: &str| Err(Trouble::Refused(format!("{} is in the way and {why}", path.display())));
    if let Seen::Foreign = seen {
        return refused("not a file of Hearth's cache");
    }
    let counted = {
        let mut state = shared.lock();
        state.counts.corrupt += u64::from(matches!(seen, Seen::Damaged(_)));
        shared.take_out(&mut state, &[Key::of_name(name)])
    };
    let gone = if counted.is_empty() { shared.remove_file(name) } else { shared.unlink(counted).0 > 0 };
    if gone { Ok(()) } else { refused("cannot be removed") }
}

/// Shorter blocks at the same place that a new one takes the place of.
fn superseded(state: &mut State, node: &Node) -> Vec<Key> {
    let mut shorter = state.index.shorter(&node.parent, &node.tokens);
    shorter.retain(|key| {
        let Some((entry, old)) = state.index.get(key).and_then(|e| Some((e, e.node.as_ref()?))) else { return false };
        entry.pins == 0 && old.min_reusable >= node.min_reusable && old.layout == node.layout
    });
    shorter
}

/// The temporary file, durable.
fn contents(shared: &Shared, pace: &mut Pace, draft: &mut Draft, head: u64) -> Result<(), Trouble> {
    let name = draft.key.hex() + TEMPORARY;
    let temporary = shared.path(&name);
    let made = shared.files.create(&temporary).or_else(|e| {
        if e.kind() != io::ErrorKind::NotFound {
            return Err(e);
        }
        // Somebody removed the whole folder.
        shared.files.make_dir(&shared.options.dir)?;
        shared.files.create(&temporary)
    });
    let mut out = made.map_err(|e| match format::may_go(shared.files.as_ref(), &temporary, &name) {
        Ok(false) if e.kind() == io::ErrorKind::AlreadyExists => {
            Trouble::Refused(format!("{} is in the way and not a file of Hearth's cache", temporary.display()))
        }
        _ => Trouble::Disk("make files", e),
    })?;
    // The header is known once all layers went by; until then the file only says whose it is.
    let mut start = MAGIC.to_vec();
    start.resize(head as usize, 0);
    out.write(&start).map_err(|e| Trouble::Disk("write", e))?;
    for (layer, arrays) in draft.header.layers.iter_mut().zip(&mut draft.layers) {
        layer.hash = layer_out(shared, pace, out.as_mut(), arrays)?;
        arrays.clear();
        shared.backlog.fetch_sub(layer.bytes(), Ordering::Relaxed);
        draft.bytes -= layer.bytes();
    }
    out.write_start(&draft.header.encode()).map_err(|e| Trouble::Disk("write", e))?;
    out.sync().map_err(|e| Trouble::Disk("write", e))
}

/// One layer's bytes, in pieces; returns their hash.
fn layer_out(shared: &Shared, pace: &mut Pace, out: &mut dyn Output, arrays: &[Vec<u8>]) -> Result<[u8; 32], Trouble> {
    let mut hasher = blake3::Hasher::new();
    for piece in arrays.iter().flat_map(|bytes| bytes.chunks(PIECE)) {
        hasher.update(piece);
        out.write(piece).map_err(|e| Trouble::Disk("write", e))?;
        rest(shared, pace, piece.len())?;
    }
    Ok(hasher.finalize().into())
}

/// Keeps to the rate while rows are decoded and nobody waits for a flush.
fn rest(shared: &Shared, pace: &mut Pace, bytes: usize) -> Result<(), Trouble> {
    let is_busy = || shared.busy.load(Ordering::Relaxed) && shared.flushing.load(Ordering::Relaxed) == 0;
    let mut left = pace.rest(bytes, is_busy(), Instant::now());
    loop {
        if shared.lock().stopped {
            return Err(Trouble::Refused("Hearth ended".to_owned()));
        }
        if left < SHORTEST_REST || !is_busy() {
            return Ok(());
        }
        let nap = left.min(LONGEST_NAP);
        std::thread::sleep(nap);
        left -= nap;
    }
}

/// The order of use outlives the process as modification times.
pub fn touch(shared: &Shared, keys: &[Key]) {
    for key in keys {
        let file = shared.lock().index.get(key).map(|entry| (entry.name.clone(), entry.used));
        let Some((name, used)) = file else { continue };
        let time = UNIX_EPOCH + Duration::from_nanos(if used == 0 { nanos(SystemTime::now()) } else { used });
        // Only the order of eviction after a restart depends on it.
        _ = shared.files.touch(&shared.path(&name), time);
    }
}

fn flushed(shared: &Shared, reply: &Sender<Flushed>, files: u64, bytes: u64) {
    // Whatever still waits, waits for something that was not handed over before the flush.
    let parked: Vec<Draft> = std::mem::take(&mut shared.lock().parked).into_values().flatten().collect();
    for draft in parked {
        settle(shared, &draft.key, draft.bytes, Err("the blocks before it were not handed over".to_owned()));
    }
    open::prepare_again(shared);
    let mut state = shared.lock();
    let mut reasons: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for (bytes, why) in std::mem::take(&mut state.unwritten).into_values() {
        let sum = reasons.entry(why).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }
    let told = |(why, (n, bytes)): (String, (usize, u64))| {
        let files = if n == 1 { "file" } else { "files" };
        format!("{n} {files} ({:.1} MB): {why}", bytes as f64 / 1e6)
    };
    let failed = reasons.into_iter().map(told).collect();
    let done = Flushed { files: state.files_written - files, bytes: state.counts.written - bytes, failed };
    shared.flushing.fetch_sub(1, Ordering::Relaxed);
    // Nobody may be waiting any more.
    _ = reply.send(done);
}

fn clear(shared: &Shared, reply: &Sender<Cleared>) {
    open::prepare_again(shared);
    let taken = {
        let mut state = shared.lock();
        let keys = state.index.keys();
        state.unwritten.clear();
        shared.take_out(&mut state, &keys)
    };
    let all = taken.len();
    let (files, bytes) = shared.unlink(taken);
    _ = reply.send(Cleared { files, bytes, left: all - files });
}
