//! What is on disk, in memory: which file continues which, who was used last, and the search for a prompt's prefix.

use super::Parts;
use super::format::{Header, Kind};
use super::key::{Key, Namespace};
use super::trie::Trie;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

/// One file.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// When it was used last, in nanoseconds since 1970; 0: nothing leads to it any more.
    pub used: u64,
    /// Restores and searches that need it to stay.
    pub pins: u32,
    /// What it holds; `None` for a file that is counted and never read.
    pub node: Option<Node>,
}

/// The part of a header that searches need.
#[derive(Debug, Clone)]
pub struct Node {
    /// See [`Header`].
    pub kind: Kind,
    /// See [`Header`].
    pub continues_blocks: bool,
    /// See [`Header`].
    pub parent: Key,
    /// See [`Header`].
    pub start: u32,
    /// See [`Header`].
    pub tokens: Box<[u32]>,
    /// See [`Header`].
    pub min_reusable: u32,
    /// See [`Header::layout`].
    pub layout: u64,
}

impl Node {
    /// Of this header.
    pub fn of(header: &Header) -> Self {
        Node {
            kind: header.kind,
            continues_blocks: header.continues_blocks,
            parent: header.parent,
            start: header.start,
            tokens: header.tokens.as_slice().into(),
            min_reusable: header.min_reusable,
            layout: header.layout(),
        }
    }
}

/// How far from the beginning, a snapshot after the block that begins where it does.
type Rank = Reverse<(u32, bool)>;

impl Entry {
    /// Of two files used at the same time the higher rank goes first: what leads somewhere stays longer than
    /// where it leads.
    fn rank(&self) -> Rank {
        Reverse(self.node.as_ref().map_or((0, false), |n| (n.start, n.kind == Kind::Snapshot)))
    }
}

/// What follows one key.
#[derive(Debug, Default)]
struct Below {
    blocks: Trie,
    snapshots: Trie,
}

impl Below {
    fn of(&mut self, kind: Kind) -> &mut Trie {
        if kind == Kind::Block { &mut self.blocks } else { &mut self.snapshots }
    }
}

/// A prefix of a prompt that is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Its length in tokens.
    pub tokens: usize,
    /// The blocks that hold it, in order; the last one may hold more.
    pub blocks: Vec<Key>,
    /// The snapshot at its end.
    pub snapshot: Option<Key>,
}

impl Path {
    /// Every file.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.blocks.iter().chain(&self.snapshot)
    }
}

/// All files of Hearth in the folder.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<Key, Entry>,
    below: HashMap<Key, Below>,
    order: BTreeSet<(u64, Rank, Key)>,
    bytes: u64,
    /// Nodes that searches looked at: the measure of their cost.
    pub steps: usize,
}

impl Index {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many files.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// One file.
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Every key.
    pub fn keys(&self) -> Vec<Key> {
        self.entries.keys().copied().collect()
    }

    /// Adds a file in place of the one with the same key, which is returned.
    pub fn insert(&mut self, key: Key, entry: Entry) -> Option<Entry> {
        let old = self.remove(&key);
        if let Some(node) = &entry.node {
            self.below.entry(node.parent).or_default().of(node.kind).insert(&node.tokens, key);
        }
        self.order.insert((entry.used, entry.rank(), key));
        self.bytes += entry.bytes;
        self.entries.insert(key, entry);
        old
    }

    /// Takes a file out.
    pub fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&(entry.used, entry.rank(), *key));
        self.bytes -= entry.bytes;
        if let Some(node) = &entry.node
            && let Some(below) = self.below.get_mut(&node.parent)
        {
            below.of(node.kind).remove(&node.tokens);
            if below.blocks.is_empty() && below.snapshots.is_empty() {
                self.below.remove(&node.parent);
            }
        }
        Some(entry)
    }

    /// Sets when a file was used.
    pub fn set_used(&mut self, key: &Key, used: u64) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.order.remove(&(entry.used, entry.rank(), *key));
        entry.used = used;
        self.order.insert((used, entry.rank(), *key));
    }

    /// Adds to or takes from a file's pins.
    pub fn pin(&mut self, key: &Key, up: bool) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.pins = if up { entry.pins + 1 } else { entry.pins.saturating_sub(1) };
        }
    }

    /// The blocks that lead to `parent`, itself included, the last first.
    pub fn chain(&self, parent: &Key) -> Vec<Key> {
        let up = |key: &Key| self.entries.get(key)?.node.as_ref().map(|node| node.parent);
        let mut chain: Vec<Key> = std::iter::successors(Some(*parent), up).collect();
        // The last one is the root, or what is missing.
        if chain.last().is_some_and(|key| !self.entries.contains_key(key)) {
            chain.pop();
        }
        chain
    }

    /// A block after `parent` that begins with `tokens`.
    pub fn covering(&mut self, parent: &Key, tokens: &[u32]) -> Option<Key> {
        let (shared, key) = self.below.get(parent)?.blocks.longest(tokens, &mut self.steps)?;
        (shared == tokens.len()).then_some(key)
    }

    /// The block that holds the last tokens before a snapshot, if there are any and it needs them.
    pub fn cover(&mut self, node: &Node) -> Option<Key> {
        let needed = node.kind == Kind::Snapshot && node.continues_blocks && !node.tokens.is_empty();
        if needed { self.covering(&node.parent, &node.tokens) } else { None }
    }

    /// Blocks after `parent` that hold less than `tokens` do and nothing else.
    pub fn shorter(&mut self, parent: &Key, tokens: &[u32]) -> Vec<Key> {
        let Some(below) = self.below.get(parent) else { return Vec::new() };
        let found = below.blocks.prefixes(tokens, &mut self.steps);
        found.into_iter().filter(|(n, _)| *n < tokens.len()).map(|(_, key)| key).collect()
    }

    /// Whether every file that `key` needs is there.
    pub fn is_reachable(&mut self, node: &Node) -> bool {
        if node.kind == Kind::Snapshot {
            let alone = !node.continues_blocks;
            return alone
                || (node.start == 0 || self.entries.contains_key(&node.parent))
                    && (node.tokens.is_empty() || self.cover(node).is_some());
        }
        node.start == 0 || self.entries.contains_key(&node.parent)
    }

    /// Nothing leads to what follows `key` any more: it is the first to go.
    pub fn cut_off(&mut self, key: &Key) {
        let mut todo = vec![*key];
        while let Some(key) = todo.pop() {
            let Some(below) = self.below.get(&key) else { continue };
            let lone =
                |key: &Key| self.entries.get(key).and_then(|e| e.node.as_ref()).is_some_and(|n| n.continues_blocks);
            let cut: Vec<Key> =
                below.blocks.keys().into_iter().chain(below.snapshots.keys().into_iter().filter(lone)).collect();
            cut.iter().for_each(|key| self.set_used(key, 0));
            todo.extend(cut);
        }
    }

    /// The least recently used files that hold `need` bytes together, but none that is pinned or in `keep`.
    /// `None` if there are not that many.
    pub fn victims(&self, need: u64, keep: &HashSet<Key>) -> Option<Vec<Key>> {
        let (mut freed, mut victims) = (0, Vec::new());
        for (_, _, key) in &self.order {
            if freed >= need {
                break;
            }
            let Some(entry) = self.entries.get(key).filter(|e| e.pins == 0 && !keep.contains(key)) else { continue };
            freed += entry.bytes;
            victims.push(*key);
        }
        (freed >= need).then_some(victims)
    }

    /// The longest prefix of `prompt` that leaves at least one token to compute and that can be continued with
    /// state of these parts. `block` is the length of a full block.
    pub fn find(&mut self, namespace: &Namespace, prompt: &[u32], parts: Parts, block: usize) -> Option<Path> {
        let limit = prompt.len().checked_sub(1)?;
        let (mut at, mut parent, mut blocks) = (0, namespace.root(), Vec::new());
        let (mut least, mut layout) = (0, None);
        // Length, full blocks, a block used in part, snapshot.
        let mut best: Option<(usize, usize, Option<Key>, Option<Key>)> = None;
        loop {
            self.steps += 1;
            let rest = &prompt[at..limit.min(at + block)];
            let mut partial = None;
            if let Some(below) = self.below.get(&parent) {
                if parts.strips {
                    let found = below.blocks.longest(rest, &mut self.steps);
                    partial = found.and_then(|(n, key)| Some((n, key, self.entries.get(&key)?.node.as_ref()?)));
                    partial = partial.filter(|(n, _, node)| *n > 0 && layout.is_none_or(|l| l == node.layout));
                }
                let floor = partial.map_or(least, |(_, _, node)| node.min_reusable.max(least));
                if parts.snapshot {
                    for (n, key) in below.snapshots.prefixes(rest, &mut self.steps) {
                        let Some(node) = self.entries.get(&key).and_then(|e| e.node.as_ref()) else { continue };
                        let covered = n == 0 || partial.is_some_and(|p| p.0 >= n);
                        let floor = if n == 0 { least } else { floor }.max(node.min_reusable) as usize;
                        if at + n >= floor.max(1) && (covered || !parts.strips) {
                            let last = partial.filter(|_| n > 0).map(|p| p.1);
                            best = Some((at + n, blocks.len(), last, Some(key)));
                        }
                    }
                } else if let Some((n, key, _)) = partial.filter(|p| at + p.0 >= floor.max(1) as usize) {
                    best = Some((at + n, blocks.len(), Some(key), None));
                }
            }
            if rest.len() < block {
                break;
            }
            let key = namespace.block(&parent, rest);
            if parts.strips {
                let Some(node) = self.entries.get(&key).and_then(|e| e.node.as_ref()) else { break };
                if *layout.get_or_insert(node.layout) != node.layout {
                    break;
                }
                least = least.max(node.min_reusable);
                blocks.push(key);
            }
            (parent, at) = (key, at + block);
        }
        let (tokens, full, last, snapshot) = best?;
        blocks.truncate(full);
        blocks.extend(last);
        Some(Path { tokens, blocks, snapshot })
    }
}
