//! From an entry in memory to files: what is missing on disk, and the pieces that the engine fills layer by layer.

use super::format::{Array, Header, Kind, Layer};
use super::index::Node;
use super::key::{Key, Namespace};
use super::shared::{Job, Shared};
use super::{Parts, Strip, Whole};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// What is to be done to have an entry on disk.
#[derive(Debug)]
pub struct Plan {
    /// The pieces to fill and hand over, in this order. A piece that is dropped instead is not written.
    pub pieces: Vec<Piece>,
    /// Becomes durable once these pieces are, and those that others are filling already.
    pub ticket: Ticket,
}

/// Whether an entry is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Not all of it yet.
    Pending,
    /// All of it, and it would survive a loss of power.
    Durable,
    /// Not all of it, and nothing more comes: why.
    Failed(String),
}

/// Follows an entry to the disk.
#[derive(Debug, Clone, Default)]
pub struct Ticket(Arc<Mutex<(usize, Option<String>)>>);

impl Ticket {
    /// How far it is.
    pub fn progress(&self) -> Progress {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*inner {
            (left, _) if *left > 0 => Progress::Pending,
            (_, None) => Progress::Durable,
            (_, Some(why)) => Progress::Failed(why.clone()),
        }
    }

    pub(super) fn settle(&self, outcome: &Result<(), String>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.0 = inner.0.saturating_sub(1);
        if let (None, Err(why)) = (&inner.1, outcome) {
            inner.1 = Some(why.clone());
        }
    }

    fn expect_one_more(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 += 1;
    }
}

/// A file in the making.
#[derive(Debug)]
pub struct Draft {
    /// Its key.
    pub key: Key,
    /// Its header; the layers' hashes are still to come.
    pub header: Header,
    /// The arrays of each layer.
    pub layers: Vec<Vec<Vec<u8>>>,
    /// Their bytes, counted in the backlog.
    pub bytes: u64,
    /// When it was planned.
    pub epoch: u64,
    /// It was filled with what does not fit.
    pub wrong: Option<String>,
}

impl Draft {
    /// As the index sees it.
    pub fn node(&self) -> Node {
        Node::of(&self.header)
    }
}

/// One file to be filled: every layer once, in order, then [`Piece::put`].
pub struct Piece {
    shared: Arc<Shared>,
    draft: Option<Draft>,
    range: Range<usize>,
}

impl Piece {
    /// The tokens whose strips a block takes; of a snapshot, all tokens up to it.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Whether this is the snapshot: its layers are wholes, not strips.
    pub fn is_snapshot(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.header.kind == Kind::Snapshot)
    }

    /// The next layer of a block: its strips for the tokens of [`Piece::range`]; none for an untrimmable layer.
    pub fn push_strips(&mut self, strips: Vec<Strip>) {
        let tokens = self.range.len();
        let arrays = strips.into_iter().map(|strip| {
            let dims = vec![strip.heads, strip.width];
            let expected = (strip.heads as usize).saturating_mul(tokens).saturating_mul(strip.width as usize);
            (Array { dtype: strip.dtype, dims, bytes: strip.bytes.len() as u64 }, strip.bytes, expected)
        });
        self.push(Kind::Block, arrays.collect());
    }

    /// The next layer of a snapshot: its arrays; none for a trimmable layer.
    pub fn push_wholes(&mut self, wholes: Vec<Whole>) {
        let arrays = wholes.into_iter().map(|whole| {
            let length = whole.bytes.len();
            (Array { dtype: whole.dtype, dims: whole.shape, bytes: length as u64 }, whole.bytes, length)
        });
        self.push(Kind::Snapshot, arrays.collect());
    }

    fn push(&mut self, kind: Kind, arrays: Vec<(Array, Vec<u8>, usize)>) {
        let Some(draft) = &mut self.draft else { return };
        let number = draft.layers.len();
        let wrong = arrays.iter().find(|(_, bytes, expected)| bytes.len() != *expected);
        if let Some((_, bytes, expected)) = wrong {
            draft.wrong = Some(format!("layer {number} came with {} bytes, expected {expected}", bytes.len()));
        }
        if kind != draft.header.kind || arrays.len() > 255 || arrays.iter().any(|(array, ..)| array.dims.len() > 255) {
            draft.wrong = Some(format!("layer {number} came with arrays of another kind or too many"));
        }
        let (arrays, bytes): (Vec<Array>, Vec<Vec<u8>>) = arrays.into_iter().map(|(a, bytes, _)| (a, bytes)).unzip();
        let layer = Layer { hash: [0; 32], arrays };
        draft.bytes += layer.bytes();
        self.shared.backlog.fetch_add(layer.bytes(), Ordering::Relaxed);
        draft.header.layers.push(layer);
        draft.layers.push(bytes);
    }

    /// Bytes that it holds by now.
    pub fn bytes(&self) -> u64 {
        self.draft.as_ref().map_or(0, |draft| draft.bytes)
    }

    /// Hands the file over to the writer. Returns at once.
    pub fn put(mut self) {
        if let Some(draft) = self.draft.take() {
            self.shared.push(Job::Write(draft));
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(draft) = self.draft.take() {
            self.shared.backlog.fetch_sub(draft.bytes, Ordering::Relaxed);
            self.shared.lock().settle(&draft.key, &Err("it was given up".to_owned()));
            self.shared.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Piece").field("range", &self.range).field("snapshot", &self.is_snapshot()).finish()
    }
}

/// See [`super::Disk::plan`].
pub fn plan(shared: &Arc<Shared>, namespace: &Namespace, tokens: &[u32], min_reusable: usize, parts: Parts) -> Plan {
    let mut found = Plan { pieces: Vec::new(), ticket: Ticket::default() };
    let min_reusable = u32::try_from(min_reusable).unwrap_or(u32::MAX);
    let (mut used, mut missing) = (Vec::new(), Vec::new());
    let header = |kind, parent, start: usize, tokens: &[u32]| Header {
        kind,
        continues_blocks: kind == Kind::Snapshot && parts.strips,
        namespace: *namespace,
        parent,
        start: start as u32,
        min_reusable,
        tokens: tokens.to_vec(),
        layers: Vec::new(),
    };
    let mut headers = Vec::new();
    let mut parent = namespace.root();
    let length = shared.options.block;
    let full = tokens.len() / length * length;
    for start in (0..full).step_by(length) {
        let block = header(Kind::Block, parent, start, &tokens[start..start + length]);
        parent = block.key();
        headers.extend(parts.strips.then_some((parent, block)));
    }
    let tail = &tokens[full..];
    if parts.strips && !tail.is_empty() {
        headers.push((namespace.block(&parent, tail), header(Kind::Block, parent, full, tail)));
    }
    if parts.snapshot && !tokens.is_empty() {
        headers.push((namespace.snapshot(&parent, tail), header(Kind::Snapshot, parent, full, tail)));
    }
    // What somebody removed is written again instead of being called durable.
    let held: Vec<Key> = {
        let mut state = shared.lock();
        headers.iter().filter_map(|(key, header)| state.holder(key, &Node::of(header))).collect()
    };
    shared.verify(&held);
    let mut state = shared.lock();
    let refusal = state.refusal();
    let epoch = state.epoch;
    for (key, header) in headers {
        if let Some(held) = state.holder(&key, &Node::of(&header)) {
            used.push(held);
        } else if let Some(waiting) = state.in_flight.get_mut(&key) {
            found.ticket.expect_one_more();
            waiting.push(found.ticket.clone());
        } else {
            missing.push((key, header));
        }
    }
    // What it shares with others counts as used now, so that it is not what has to go to make room for the rest.
    if !used.is_empty() {
        state.touch(&used);
        state.queue.push_back(Job::Touch(used));
        shared.wake.notify_one();
    }
    if let Some(why) = refusal.filter(|_| !missing.is_empty()) {
        drop(state);
        found.ticket.settle(&Err(why));
        return found;
    }
    for (key, header) in missing {
        found.ticket.expect_one_more();
        state.in_flight.insert(key, vec![found.ticket.clone()]);
        let start = header.start as usize;
        let end = start + header.tokens.len();
        let range = if header.kind == Kind::Block { start..end } else { 0..end };
        let draft = Draft { key, header, layers: Vec::new(), bytes: 0, epoch, wrong: None };
        found.pieces.push(Piece { shared: Arc::clone(shared), draft: Some(draft), range });
    }
    found
}
