//! The ledger kept up: what is held now, making room, rows that grow, and rows that are parked because nothing else
//! lets any row go on.

use super::Worker;
use crate::ledger::Ledger;
use crate::prompt_cache::EntryId;
use crate::rooms::Asked;
use crate::row::Row;
use crate::sizes::Sizes;
use hearth_core::EngineError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory of the system that no request gets.
const SYSTEM_MARGIN: u64 = 64 << 20;
/// When to try again what had no memory.
const RETRY_AFTER: u64 = 10;
/// How often to try again whether those who wait have room, while nothing else happens.
const AGAIN: Duration = Duration::from_millis(20);

/// What the worker remembers between rounds.
#[derive(Debug, Default)]
pub(super) struct Tight {
    /// Rows that have to grow and cannot now.
    pub cramped: BTreeSet<u64>,
    /// Whether one of them cannot even when everything that can has given way.
    stuck: bool,
    /// Since when a request waits that is alone.
    stalled: Option<Instant>,
    /// When those who wait were looked at last, and how many rows there were.
    looked: Option<(Instant, usize, usize)>,
}

impl Worker<'_> {
    /// What is held without rows and their work, and of the prompt cache what cannot be had by evicting.
    pub(super) fn pinned(&mut self) -> Ledger {
        let all = self.all();
        Ledger { prompt_cache: all.prompt_cache - self.cache.evictable().min(all.prompt_cache), ..all }
    }

    /// What is held without rows and their work; of the allocator, what it keeps now.
    fn all(&mut self) -> Ledger {
        let on_its_way = self.spilling_bytes() + self.disk.map_or(0, |disk| disk.backlog());
        let allocator = hearth_mlx::cache_memory().unwrap_or(0) as u64;
        Ledger { prompt_cache: self.cache.bytes() + on_its_way, allocator, ..self.fixed }
    }

    /// Everything that is held, and what the next round holds for a moment with chunks of so many tokens.
    pub(super) fn ledger(&mut self, chunk: u64) -> Ledger {
        let all = self.all();
        match &self.slot.sizes {
            Some(sizes) => self.slot.rooms.held(chunk, &all, &**sizes),
            None => all,
        }
    }

    /// Whether this much more may be kept for later: below the soft mark.
    pub(super) fn has_spare_room(&mut self, bytes: u64) -> bool {
        let ledger = self.ledger(self.slot.rooms.least_chunk());
        ledger.total().saturating_add(bytes) <= ledger.soft()
    }

    /// Whether what is held now is within the budget.
    pub(super) fn is_within_budget(&mut self) -> bool {
        let mut ledger = self.ledger(self.slot.rooms.least_chunk());
        if ledger.short(0) > 0 && hearth_mlx::clear_cache().is_ok() {
            ledger = self.ledger(self.slot.rooms.least_chunk());
        }
        ledger.short(0) == 0
    }

    /// What is missing within the budget, after the allocator gave back what it keeps, if anything is.
    fn lacks(&mut self, asked: impl Fn(&Self, &Ledger) -> Asked) -> u64 {
        let all = self.all();
        let Asked { needed, free } = asked(self, &all);
        if needed <= free || all.allocator == 0 {
            return needed.saturating_sub(free);
        }
        let _ = hearth_mlx::clear_cache();
        let all = self.all();
        let Asked { needed, free } = asked(self, &all);
        needed.saturating_sub(free)
    }

    /// Lets entries of the prompt cache go until these bytes are free or on their way: least recently used first, and
    /// not `keep`. Returns how many bytes that were.
    pub(super) fn give_way(&mut self, bytes: u64, keep: Option<EntryId>) -> u64 {
        let coming = if self.disk.is_some() { self.spilling_bytes() } else { 0 };
        let evicted = self.cache.evict(bytes.saturating_sub(coming), keep);
        let mut freed = 0;
        for (id, entry) in evicted {
            freed += entry.bytes();
            self.spill_evicted(Some(id), entry);
        }
        freed
    }

    /// Gives rows to those who wait, as far as there are rows and memory.
    pub(super) fn admit(&mut self) {
        if !self.slot.scheduler.has_free_row() || self.slot.scheduler.waiting() == 0 {
            self.slot.tight.stalled = None;
            return;
        }
        let now = (Instant::now(), self.slot.rooms.len(), self.slot.scheduler.waiting());
        if let Some((at, rows, waiting)) = self.slot.tight.looked
            && (rows, waiting) == (now.1, now.2)
            && at.elapsed() < AGAIN
        {
            return;
        }
        let mut scheduler = std::mem::replace(&mut self.slot.scheduler, crate::scheduler::Scheduler::idle());
        while let Some(id) = scheduler.admit_one(|id| self.gets_room(id)) {
            let Some(submitted) = self.slot.waiting.remove(&id) else { continue };
            self.slot.refused.remove(&id);
            if let Some(sizes) = &self.slot.sizes {
                self.slot.rooms.take(id, submitted.request.prompt.len() as u64, &**sizes);
            }
            std::mem::swap(&mut self.slot.scheduler, &mut scheduler);
            self.begin(submitted);
            std::mem::swap(&mut self.slot.scheduler, &mut scheduler);
        }
        self.slot.scheduler = scheduler;
        self.slot.tight.looked = Some((Instant::now(), self.slot.rooms.len(), self.slot.scheduler.waiting()));
        if self.is_alone() && self.slot.scheduler.waiting() > 0 {
            self.slot.tight.stalled.get_or_insert_with(Instant::now);
        } else {
            self.slot.tight.stalled = None;
        }
    }

    /// Whether a request gets a row now. Entries of the prompt cache give way to it, but not one that it needs most of: that
    /// is handed over where there is no room for both.
    fn gets_room(&mut self, id: u64) -> bool {
        let Some(sizes) = self.slot.sizes.clone() else { return true };
        let Some(submitted) = self.slot.waiting.get(&id) else { return true };
        let prompt = submitted.request.prompt.len() as u64;
        let hit =
            self.slot.model.as_ref().and_then(|model| self.cache.longest(&model.namespace, &submitted.request.prompt));
        let hit = hit.filter(|hit| self.cache.is_mostly(*hit)).map(|hit| hit.id);
        let mut pinned = self.pinned();
        // It gives this back before anybody is refused.
        pinned.allocator = 0;
        let mut asked = self.slot.rooms.asked(prompt, &pinned, self.watch.excess, &*sizes);
        if !self.guard.admits(self.is_alone()) {
            asked.free = 0;
        } else if let Some(available) = self.watch.available {
            let more = available.saturating_sub(SYSTEM_MARGIN).saturating_add(self.cache.evictable());
            asked.free = asked.free.min(more);
        }
        if !asked.fits() {
            self.slot.refused.insert(id, asked);
            // A model that nobody uses gives way to a request that nothing else keeps waiting.
            let lacks = asked.needed.saturating_sub(asked.free);
            return self.is_alone() && self.evict_idle(lacks, "a request needs its memory") && self.gets_room(id);
        }
        let asks = |worker: &Self, all: &Ledger| worker.slot.rooms.asked(prompt, all, worker.watch.excess, &*sizes);
        let lacking = self.lacks(asks);
        if lacking == 0 {
            return true;
        }
        let freed = self.give_way(lacking, hit);
        if freed > 0 {
            self.guard.did("demote", format!("a request needs {}", readable(asked.needed)), freed);
        }
        let lacking = self.lacks(asks);
        lacking == 0 || hit.is_some_and(|hit| lacking <= self.cache.bytes_of(hit))
    }

    /// Refuses a request that is alone and gets no memory all the same, after a while.
    pub(super) fn refuse_stalled(&mut self) {
        let patience = self.options.memory.longest_stall;
        if self.slot.tight.stalled.is_none_or(|since| since.elapsed() < patience) {
            return;
        }
        if let Some(id) = self.slot.scheduler.first_waiting()
            && let Some(error) = self.no_memory(id)
            && let Some(waiting) = self.slot.waiting.remove(&id)
        {
            self.tell(waiting, error);
            self.left(id, |totals| totals.failed += 1);
        }
        // Whoever comes next has a patience of its own.
        self.slot.tight.stalled = None;
    }

    /// Why a request that waits has no row, if that is memory.
    pub(super) fn no_memory(&self, id: u64) -> Option<EngineError> {
        let Asked { needed, free } = *self.slot.refused.get(&id)?;
        let (budget, retry_after_s) = (self.fixed.budget, RETRY_AFTER);
        Some(EngineError::InsufficientMemory { needed, free, budget, retry_after_s })
    }

    /// Gives rows the next step of their buffers, the oldest first; those that get none wait.
    pub(super) fn grow_rows(&mut self) {
        self.slot.tight.cramped.clear();
        self.slot.tight.stuck = false;
        let Some(sizes) = self.slot.sizes.clone() else { return };
        let grows = |(id, row): (&u64, &Row)| {
            let next = row.held_tokens() as u64 + 1;
            (row.wants_token() && self.slot.rooms.must_grow(*id, next)).then_some((*id, next))
        };
        let growing: Vec<(u64, u64)> = self.slot.rows.iter().filter_map(grows).collect();
        for (id, next) in growing {
            if !self.grows(id, next, &sizes) {
                self.slot.tight.cramped.insert(id);
            }
        }
    }

    fn grows(&mut self, id: u64, tokens: u64, sizes: &Arc<Sizes>) -> bool {
        let mut pinned = self.pinned();
        pinned.allocator = 0;
        let asked = self.slot.rooms.asked_to_grow(id, tokens, &pinned, &**sizes);
        if !asked.fits() {
            let lacks = asked.needed.saturating_sub(asked.free);
            if self.evict_idle(lacks, "a row needs its memory to grow in") {
                return self.grows(id, tokens, sizes);
            }
            self.slot.tight.stuck = true;
            return false;
        }
        let asks = |worker: &Self, all: &Ledger| worker.slot.rooms.asked_to_grow(id, tokens, all, &**sizes);
        let lacking = self.lacks(asks);
        if lacking > 0 {
            let freed = self.give_way(lacking, None);
            if freed > 0 {
                self.guard.did("demote", format!("a row grows by {}", readable(asked.needed)), freed);
            }
            if self.lacks(asks) > 0 {
                return false;
            }
        }
        self.slot.rooms.grow(id, tokens, &**sizes);
        true
    }

    /// Chunks of the size that there is room for. The prompt cache gives way to a larger one.
    pub(super) fn choose_chunk(&mut self) {
        let Some(sizes) = self.slot.sizes.clone() else { return };
        let most = self.guard.most_chunk(self.options.prefill_chunk, self.slot.rooms.least_chunk() as usize) as u64;
        let pinned = self.pinned();
        let mark = if self.slot.rooms.len() > 1 { pinned.hard() } else { pinned.budget };
        let wanted = self.slot.rooms.chunk(most, mark, &pinned, &*sizes);
        let with = self.ledger(wanted);
        let mut chunk = wanted;
        if with.short(0) > 0 {
            let freed = self.give_way(with.short(0), None);
            if freed > 0 {
                self.guard.did(
                    "demote",
                    format!("a chunk of {wanted} tokens needs {}", readable(with.transient)),
                    freed,
                );
            }
            let all = self.all();
            chunk = self.slot.rooms.chunk(wanted, all.budget, &all, &*sizes);
        }
        let used = with.total();
        let why = || format!("{} of {} are taken", readable(used), readable(with.budget));
        self.guard.set_chunk(chunk as usize, why);
        self.slot.scheduler.set_chunk(chunk as usize);
    }

    /// The allocator keeps no more than there is room for.
    pub(super) fn settle_allocator(&mut self) {
        let Some(sizes) = self.slot.sizes.clone() else { return };
        let chunk = self.guard.chunk() as u64;
        let without = Ledger { allocator: 0, ..self.all() };
        let with = self.slot.rooms.held(chunk, &without, &*sizes);
        let free = with.allocator.saturating_add(with.free()).min(self.allocator_limit);
        // Steps of some size: the limit is not to be set anew in every round.
        let limit = if free < self.allocator_limit { free / 8 * 7 } else { free };
        if limit != self.allocator_now {
            let _ = hearth_mlx::set_cache_limit(usize::try_from(limit).unwrap_or(usize::MAX));
            self.allocator_now = limit;
        }
        if self.all().allocator > free {
            let _ = hearth_mlx::clear_cache();
        }
    }

    /// Nothing runs because rows cannot grow: the youngest one is parked; the last one ends where it is. True if that
    /// was done.
    pub(super) fn unstick(&mut self) -> bool {
        if !self.slot.tight.stuck || self.spilling_bytes() > 0 || !self.slot.following.is_empty() {
            return false;
        }
        let Some(youngest) = self.slot.rooms.youngest() else { return false };
        let Some(mut row) = self.slot.rows.remove(&youngest) else { return false };
        if self.slot.rooms.len() == 1 && self.fixed.kv == 0 {
            tracing::warn!(row = youngest, "no memory for another token: the answer ends here");
            row.end_here();
            self.keep(&mut row);
            self.retire(row);
            self.left(youngest, |totals| totals.finished += 1);
            return true;
        }
        let bytes = row.cache_bytes();
        let Some(sequence) = row.cached_sequence() else {
            row.fail(EngineError::Compute { message: "a row without a state cannot wait".into() });
            self.left(youngest, |totals| totals.failed += 1);
            return true;
        };
        self.keep(&mut row);
        self.slot.rooms.release(youngest);
        self.slot.scheduler.remove(youngest);
        self.slot.scheduler.add_again(youngest, sequence.len());
        let why = format!("row {youngest} of {} tokens waits until others have ended", sequence.len());
        self.guard.did("park_row", why, bytes);
        self.slot.waiting.insert(youngest, row.park(youngest, sequence));
        self.slot.parked.insert(youngest, row);
        true
    }
}

/// A size as people read it.
pub(super) fn readable(bytes: u64) -> String {
    match bytes {
        0..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
