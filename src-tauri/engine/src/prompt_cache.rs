//! The prompt cache's tier in memory: entries of tokens and the state after them, lent to rows, least recently used
//! out first. What leaves for want of room is handed back to whoever called, to be written to disk.

mod tree;

pub use tree::EntryId;

use crate::cache::{LayerCache, Lease};
use crate::disk::Namespace;
use hearth_core::stats::RamCacheStats;
use hearth_mlx::Tensor;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;
use tree::{Leaf, Tree};

/// Something that belongs to an entry as a whole, and that no prefix of it can use (an image's features, the state of
/// a draft model).
#[derive(Debug)]
pub struct Attachment {
    /// What it is.
    pub name: &'static str,
    /// Its arrays.
    pub tensors: Vec<Tensor>,
}

impl Attachment {
    fn share(&self) -> Self {
        Attachment { name: self.name, tensors: self.tensors.iter().map(Tensor::share).collect() }
    }
}

/// A sequence and the state after it.
#[derive(Debug)]
pub struct Entry {
    /// Which model computed it, and how.
    pub namespace: Namespace,
    /// The tokens, at least one.
    pub tokens: Vec<u32>,
    /// One cache per layer, each after exactly these tokens.
    pub caches: Vec<LayerCache>,
    /// What else belongs to it.
    pub attachments: Vec<Attachment>,
}

impl Entry {
    /// Bytes of its arrays.
    pub fn bytes(&self) -> u64 {
        let attached = self.attachments.iter().flat_map(|a| &a.tensors).map(|t| t.nbytes() as u64);
        self.caches.iter().map(|c| c.bytes() as u64).chain(attached).sum()
    }

    /// The shortest prefix that can be reused, in tokens; `None`: only all of it.
    pub fn reusable_from(&self) -> Option<usize> {
        let trims = self.attachments.is_empty() && self.caches.iter().all(LayerCache::can_trim);
        trims.then(|| self.min_reusable())
    }

    /// The largest of the caches' minimum reusable offsets.
    pub fn min_reusable(&self) -> usize {
        self.caches.iter().map(LayerCache::min_reusable).max().unwrap_or(0)
    }

    /// Views of its first `tokens` tokens.
    pub fn lend(&self, tokens: usize, lease: &Lease) -> Lent {
        let caches = self.caches.iter().map(|c| c.lend(tokens, lease)).collect();
        Lent { caches, attachments: self.attachments.iter().map(Attachment::share).collect() }
    }

    /// Whether tokens and caches belong together, and the arrays are the entry's own.
    fn is_valid(&self) -> bool {
        let belongs = |c: &LayerCache| c.offset() == self.tokens.len() && !c.is_lent();
        !self.tokens.is_empty() && self.caches.iter().all(belongs)
    }
}

/// A prefix that an entry can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// The entry.
    pub id: EntryId,
    /// Tokens of the prompt that need not be computed.
    pub tokens: usize,
}

/// What a row goes on from.
#[derive(Debug, Default)]
pub struct Lent {
    /// One cache per layer.
    pub caches: Vec<LayerCache>,
    /// Shares of the entry's attachments.
    pub attachments: Vec<Attachment>,
}

/// What became of an entry.
#[derive(Debug)]
pub enum Put {
    /// It is kept, and these have no room any more, least recently used first.
    Kept(Vec<(EntryId, Entry)>),
    /// It is larger than the cache: a matter for the disk.
    TooLarge(Entry),
    /// Its tokens and caches do not belong together, or its arrays are another's.
    Invalid,
}

#[derive(Debug)]
struct Held {
    entry: Entry,
    bytes: u64,
    lease: Lease,
    /// When it was used last, as a number and as a time.
    tick: u64,
    used: Instant,
}

/// The tier.
#[derive(Debug)]
pub struct PromptCache {
    cap: u64,
    bytes: u64,
    trees: HashMap<Namespace, Tree>,
    held: HashMap<EntryId, Held>,
    /// By last use, oldest first.
    order: BTreeMap<u64, EntryId>,
    /// Entries that are gone while rows still read their arrays: bytes, and who counts them.
    orphans: Vec<(u64, Lease)>,
    next: u64,
    counts: RamCacheStats,
}

impl PromptCache {
    /// An empty cache of at most `cap` bytes; with 0 everything is too large for it.
    pub fn new(cap: u64) -> Self {
        PromptCache {
            cap,
            bytes: 0,
            trees: HashMap::new(),
            held: HashMap::new(),
            order: BTreeMap::new(),
            orphans: Vec::new(),
            next: 1,
            counts: RamCacheStats { cap, ..RamCacheStats::default() },
        }
    }

    /// The most bytes that it may hold.
    pub fn cap(&self) -> u64 {
        self.cap
    }

    /// From now on it holds at most so many bytes; what has no room leaves, least recently used first.
    pub fn set_cap(&mut self, cap: u64) -> Vec<(EntryId, Entry)> {
        (self.cap, self.counts.cap) = (cap, cap);
        let over = self.bytes.saturating_sub(cap);
        self.evict(over, None)
    }

    /// Takes entries out until these bytes are free, least recently used first; those that rows read stay, as that
    /// would free nothing, and so does `keep`.
    pub fn evict(&mut self, bytes: u64, keep: Option<EntryId>) -> Vec<(EntryId, Entry)> {
        let (mut freed, mut evicted) = (0, Vec::new());
        for id in self.ids() {
            if freed >= bytes {
                break;
            }
            let Some(held) = self.held.get(&id).filter(|held| held.lease.lent() == 0 && Some(id) != keep) else {
                continue;
            };
            freed += held.bytes;
            evicted.extend(self.remove(id).map(|entry| (id, entry)));
            self.counts.evicted += 1;
        }
        evicted
    }

    /// Bytes of an entry.
    pub fn bytes_of(&self, id: EntryId) -> u64 {
        self.held.get(&id).map_or(0, |held| held.bytes)
    }

    /// Bytes of all entries that nobody reads: what an eviction would free.
    pub fn evictable(&self) -> u64 {
        self.held.values().filter(|held| held.lease.lent() == 0).map(|held| held.bytes).sum()
    }

    /// Bytes of every entry, least recently used first.
    pub fn sizes(&self) -> Vec<u64> {
        self.order.values().map(|id| self.bytes_of(*id)).collect()
    }

    /// The longest prefix of the prompt that an entry can give; the last token is always left to compute.
    pub fn longest(&self, namespace: &Namespace, prompt: &[u32]) -> Option<Hit> {
        let (_, known) = prompt.split_last()?;
        let found = self.trees.get(namespace)?.longest(known)?;
        Some(Hit { id: found.id, tokens: found.tokens })
    }

    /// Lends views of an entry's first tokens; the entry stays.
    pub fn lend(&mut self, hit: Hit) -> Option<Lent> {
        self.touch(hit.id);
        let Held { entry, lease, .. } = self.held.get(&hit.id)?;
        let lent = entry.lend(hit.tokens, lease);
        self.counts.hits += 1;
        self.counts.reused_tokens += hit.tokens as u64;
        Some(lent)
    }

    /// Whether a hit needs at least half of its entry, so that handing that over loses little.
    pub fn is_mostly(&self, hit: Hit) -> bool {
        self.held.get(&hit.id).is_some_and(|held| 2 * hit.tokens >= held.entry.tokens.len())
    }

    /// Hands an entry over, cut to its first tokens: for when there is no room for a copy.
    pub fn hand_over(&mut self, hit: Hit) -> Option<Lent> {
        let Entry { mut caches, attachments, .. } = self.remove(hit.id)?;
        for cache in &mut caches {
            cache.trim(hit.tokens);
        }
        self.counts.hits += 1;
        self.counts.moved += 1;
        self.counts.reused_tokens += hit.tokens as u64;
        Some(Lent { caches, attachments })
    }

    /// Counts a hit on an entry that has left already.
    pub fn found_elsewhere(&mut self, tokens: usize) {
        self.counts.hits += 1;
        self.counts.reused_tokens += tokens as u64;
    }

    /// Counts a request that found nothing.
    pub fn missed(&mut self) {
        self.counts.misses += 1;
    }

    /// Stores an entry whose arrays are computed or being computed.
    pub fn put(&mut self, entry: Entry) -> Put {
        if !entry.is_valid() {
            return Put::Invalid;
        }
        let bytes = entry.bytes();
        if bytes > self.cap {
            return Put::TooLarge(entry);
        }
        let tree = self.trees.entry(entry.namespace).or_default();
        let reusable_from = entry.reusable_from();
        if let Some(from) = reusable_from {
            // Whatever a true prefix could give, this entry gives as well.
            for id in tree.ancestors(&entry.tokens, from) {
                self.remove(id);
                self.counts.superseded += 1;
            }
        }
        let id = self.next;
        self.next += 1;
        let replaced = self.trees.entry(entry.namespace).or_default().insert(&entry.tokens, Leaf { id, reusable_from });
        if let Some(old) = replaced.and_then(|old| self.held.remove(&old)) {
            self.forget(&old);
        }
        self.bytes += bytes;
        self.order.insert(id, id);
        self.held.insert(id, Held { entry, bytes, lease: Lease::default(), tick: id, used: Instant::now() });
        self.counts.stored += 1;
        let mut evicted = Vec::new();
        while self.bytes > self.cap {
            let Some((_, &oldest)) = self.order.first_key_value() else { break };
            evicted.extend(self.remove(oldest).map(|entry| (oldest, entry)));
            self.counts.evicted += 1;
        }
        Put::Kept(evicted)
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: EntryId) -> Option<Entry> {
        let held = self.held.remove(&id)?;
        if let Some(tree) = self.trees.get_mut(&held.entry.namespace) {
            tree.remove(&held.entry.tokens);
            if tree.is_empty() {
                self.trees.remove(&held.entry.namespace);
            }
        }
        self.forget(&held);
        Some(held.entry)
    }

    /// An entry that left the tree: its bytes, and its arrays where rows still read them.
    fn forget(&mut self, held: &Held) {
        self.order.remove(&held.tick);
        self.bytes -= held.bytes;
        if held.lease.lent() > 0 {
            self.orphans.push((held.bytes, held.lease.clone()));
        }
    }

    fn touch(&mut self, id: EntryId) {
        if let Some(held) = self.held.get_mut(&id) {
            self.order.remove(&held.tick);
            (held.tick, held.used) = (self.next, Instant::now());
            self.order.insert(self.next, id);
            self.next += 1;
        }
    }

    /// An entry.
    pub fn entry(&self, id: EntryId) -> Option<&Entry> {
        self.held.get(&id).map(|held| &held.entry)
    }

    /// Every entry, least recently used first.
    pub fn ids(&self) -> Vec<EntryId> {
        self.order.values().copied().collect()
    }

    /// Entries that nobody used since this moment, least recently used first.
    pub fn unused_since(&self, moment: Instant) -> Vec<EntryId> {
        let old = |id: &&EntryId| self.held.get(id).is_some_and(|held| held.used <= moment);
        self.order.values().take_while(old).copied().collect()
    }

    /// When the entry that nobody used for longest was used last.
    pub fn oldest_use(&self) -> Option<Instant> {
        let (_, oldest) = self.order.first_key_value()?;
        self.held.get(oldest).map(|held| held.used)
    }

    /// Bytes held: entries, and what outlives them while rows read it.
    pub fn bytes(&mut self) -> u64 {
        self.orphans.retain(|(_, lease)| lease.lent() > 0);
        self.bytes + self.orphans.iter().map(|(bytes, _)| bytes).sum::<u64>()
    }

    /// Removes everything; how many entries and bytes that were.
    pub fn clear(&mut self) -> (usize, u64) {
        let (ids, bytes) = (self.ids(), self.bytes);
        for &id in &ids {
            self.remove(id);
        }
        (ids.len(), bytes)
    }

    /// The figures.
    pub fn stats(&mut self) -> RamCacheStats {
        RamCacheStats {
            bytes: self.bytes(),
            entries: self.held.len(),
            tokens: self.held.values().map(|held| held.entry.tokens.len() as u64).sum(),
            lent: self.held.values().filter(|held| held.lease.lent() > 0).count(),
            ..self.counts.clone()
        }
    }
}

#[cfg(test)]
#[path = "prompt_cache_tests.rs"]
mod tests;
