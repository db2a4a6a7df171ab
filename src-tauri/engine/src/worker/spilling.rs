//! From memory to disk, a layer at a time between the steps: entries that have no room, entries that nobody used for
//! long, and everything when a flush asks for it.

use super::Worker;
use crate::cache::{LayerCache, Lease};
use crate::disk::{Cleared, Flushed, Namespace, Piece, Progress, Ticket};
use crate::error::Result;
use crate::prompt_cache::{Entry, EntryId, Lent};
use hearth_core::stats::{CacheClear, CacheFlush};
use hearth_mlx::Tensor;
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Bytes that may wait for the disk; until they are fewer, nothing more is taken out of memory.
const BACKLOG: u64 = 64 << 20;
/// Bytes taken out in one round while rows are computed, or for each second that the round before took, as a chunk of a
/// prompt can take several; and while nothing else is to do.
const PER_ROUND: usize = 2 << 20;
const PER_SECOND: f64 = (32 << 20) as f64;
const PER_IDLE_ROUND: usize = 32 << 20;
/// Evicted entries that wait for the disk hold at most a quarter of what the cache may hold, and this much at least:
/// with a cache in memory, and without one.
const LEAST_QUEUE: u64 = 64 << 20;
const QUEUE_ALONE: u64 = 256 << 20;
/// How long moving idle entries is not tried again after the disk refused one.
const RETRY: Duration = Duration::from_secs(30);

/// Where the state is that goes to disk.
enum Source {
    /// Nowhere else any more.
    Evicted(Entry),
    /// In the cache, as long as it stays there.
    Held(EntryId),
}

/// An entry on its way to disk.
struct Spill {
    number: u64,
    source: Source,
    /// Whether it leaves memory once it is on disk.
    moves: bool,
    pieces: VecDeque<Piece>,
    /// The next layer of the first piece.
    layer: usize,
    /// What became of it; `None` before it was planned.
    ticket: Option<Ticket>,
}

/// A flush that somebody waits for.
struct Flush {
    reply: oneshot::Sender<CacheFlush>,
    /// Spills that it waits for.
    left: BTreeSet<u64>,
    report: CacheFlush,
    /// Bytes that the disk had written when it began.
    written_before: u64,
    /// The disk's own answer, once all was handed over.
    disk: Option<Receiver<Flushed>>,
}

/// What may be taken out of memory in a round.
struct Turn {
    /// Bytes, so that rows are not kept waiting.
    share: usize,
    /// Bytes that there is room for, as copies.
    room: usize,
    /// Whether the piece that is begun goes in any case.
    must: bool,
}

/// What is on its way to disk.
#[derive(Default)]
pub(super) struct Spilling {
    queue: VecDeque<Spill>,
    /// Handed over whole, not durable yet.
    settling: Vec<Spill>,
    flushes: Vec<Flush>,
    next: u64,
    /// When the last round was.
    looked: Option<Instant>,
    /// Until when idle entries stay where they are.
    refused_until: Option<Instant>,
}

impl Spilling {
    /// Whether there is something to do.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.settling.is_empty() && self.flushes.is_empty()
    }

    /// Entries that left the cache and are not safe on disk yet. There are few: their bytes are bounded.
    fn evicted(&self) -> impl Iterator<Item = &Entry> {
        self.queue.iter().chain(&self.settling).filter_map(|spill| match &spill.source {
            Source::Evicted(entry) => Some(entry),
            Source::Held(_) => None,
        })
    }

    /// The longest prefix of the prompt that an entry on its way to disk can give, in tokens.
    pub(super) fn longest(&self, namespace: &Namespace, prompt: &[u32]) -> usize {
        self.best(namespace, prompt).map_or(0, |(tokens, _)| tokens)
    }

    /// Views of it, if it is longer than `longer_than`.
    pub(super) fn lend(&self, namespace: &Namespace, prompt: &[u32], longer_than: usize) -> Option<(Lent, usize)> {
        let best = self.best(namespace, prompt).filter(|(tokens, _)| *tokens > longer_than);
        best.map(|(tokens, entry)| (entry.lend(tokens, &Lease::default()), tokens))
    }

    fn best(&self, namespace: &Namespace, prompt: &[u32]) -> Option<(usize, &Entry)> {
        let usable = |entry: &Entry| {
            let shared = entry.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            let tokens = shared.min(prompt.len().saturating_sub(1));
            let gives = tokens == entry.tokens.len() || entry.reusable_from().is_some_and(|from| from <= tokens);
            (entry.namespace == *namespace && gives).then_some(tokens)
        };
        self.evicted().filter_map(|entry| Some((usable(entry)?, entry))).max_by_key(|(tokens, _)| *tokens)
    }
}

impl Worker<'_> {
    /// Bytes of entries that are nowhere else any more.
    pub(super) fn spilling_bytes(&self) -> u64 {
        self.spilling.evicted().map(Entry::bytes).sum()
    }

    /// An entry that has no room in memory any more goes to disk, if there is one that keeps up.
    pub(super) fn spill_evicted(&mut self, id: Option<EntryId>, entry: Entry) {
        if self.disk.is_none() || self.is_for_memory_only(&entry) {
            return;
        }
        let is_same = |spill: &&mut Spill| matches!((&spill.source, id), (Source::Held(held), Some(id)) if *held == id);
        if let Some(spill) = self.spilling.queue.iter_mut().find(is_same) {
            spill.source = Source::Evicted(entry);
            return;
        }
        let cap = self.cache.cap();
        let most = if cap == 0 { QUEUE_ALONE } else { LEAST_QUEUE.max(cap / 4) };
        let waiting = self.spilling_bytes();
        if waiting > 0 && waiting + entry.bytes() > most {
            tracing::warn!(tokens = entry.tokens.len(), "the disk does not keep up; an evicted prompt is forgotten");
            return;
        }
        self.spill(Source::Evicted(entry), false);
    }

    fn spill(&mut self, source: Source, moves: bool) -> u64 {
        let number = self.spilling.next;
        self.spilling.next += 1;
        self.spilling.queue.push_back(Spill { number, source, moves, pieces: VecDeque::new(), layer: 0, ticket: None });
        number
    }

    /// A little of the way to disk. True if something was done.
    pub(super) fn spill_some(&mut self) -> bool {
        let Some(disk) = self.disk else { return false };
        let busy = self.slots().any(|slot| !slot.rows.is_empty());
        disk.set_busy(busy);
        self.demote_idle();
        let idle = !busy && self.slots().all(|slot| slot.in_flight.is_empty());
        // What goes to disk is copied first, and the copy needs room beside what it is a copy of. One piece goes in any case
        // where nothing else is on its way: else nothing would ever be freed.
        let begun = self.spilling.queue.front().and_then(|spill| spill.pieces.front()).map_or(0, Piece::bytes);
        let must = disk.backlog() <= begun;
        // Asked for in every round, and mostly nothing waits.
        let room = match self.spilling.queue.is_empty() {
            true => 0,
            false => usize::try_from(self.ledger(self.slot.rooms.least_chunk()).free()).unwrap_or(usize::MAX),
        };
        let since = self.spilling.looked.replace(Instant::now()).map_or(0.0, |at| at.elapsed().as_secs_f64());
        let share = PER_ROUND.max((since * PER_SECOND) as usize).min(PER_IDLE_ROUND);
        let mut turn = Turn { share: if idle { PER_IDLE_ROUND } else { share }, room, must };
        let mut progress = false;
        while turn.share > 0 && disk.backlog() < BACKLOG {
            let Some(mut spill) = self.spilling.queue.pop_front() else { break };
            let before = turn.share;
            let filled = self.fill(&mut spill, &mut turn);
            progress |= turn.share < before;
            match filled {
                // Its arrays are still being computed, or there is no room for a copy.
                Ok(false) => {
                    self.spilling.queue.push_front(spill);
                    break;
                }
                Ok(true) if !spill.pieces.is_empty() => self.spilling.queue.push_front(spill),
                Ok(true) => self.spilling.settling.push(spill),
                Err(error) => {
                    tracing::warn!(%error, "a prompt is not written to disk");
                    spill.pieces.clear();
                    self.spilling.settling.push(spill);
                }
            }
            progress = true;
        }
        self.settle();
        self.answer_flushes();
        progress
    }

    /// Hands layers of a spill's next piece over. False where that has to wait.
    fn fill(&mut self, spill: &mut Spill, turn: &mut Turn) -> Result<bool> {
        let Some(disk) = self.disk else {
            spill.pieces.clear();
            return Ok(true);
        };
        let entry = match &spill.source {
            Source::Evicted(entry) => Some(entry),
            Source::Held(id) => self.cache.entry(*id),
        };
        let Some(entry) = entry else {
            // It was superseded, replaced or taken over: what came after it has the same tokens, or will.
            spill.pieces.clear();
            return Ok(true);
        };
        if spill.ticket.is_none() {
            // One whose model is gone was saved when that left.
            let Some(parts) = self.parts_of(&entry.namespace) else { return Ok(true) };
            let plan = disk.plan(&entry.namespace, &entry.tokens, entry.min_reusable(), parts);
            (spill.pieces, spill.ticket) = (plan.pieces.into(), Some(plan.ticket));
        }
        while turn.share > 0
            && let Some(piece) = spill.pieces.front_mut()
        {
            let Some(cache) = entry.caches.get(spill.layer) else {
                spill.layer = 0;
                if let Some(full) = spill.pieces.pop_front() {
                    full.put();
                    turn.must = false;
                }
                continue;
            };
            if !cache.is_ready()? {
                return Ok(false);
            }
            if bytes_of(piece, cache) > turn.room && !turn.must {
                return Ok(false);
            }
            let bytes = push(piece, cache)?;
            (turn.share, turn.room) = (turn.share.saturating_sub(bytes), turn.room.saturating_sub(bytes));
            spill.layer += 1;
        }
        Ok(true)
    }

    /// Looks what became of what was handed over.
    fn settle(&mut self) {
        let mut settling = std::mem::take(&mut self.spilling.settling);
        settling.retain(|spill| {
            let progress = spill.ticket.as_ref().map_or(Progress::Failed("it was given up".into()), Ticket::progress);
            let given_up = matches!(spill.source, Source::Held(id) if self.cache.entry(id).is_none());
            match progress {
                Progress::Pending => return true,
                Progress::Durable => {
                    if let (true, Source::Held(id)) = (spill.moves, &spill.source) {
                        self.cache.remove(*id);
                    }
                }
                // The entry stays, and no other is tried for a while.
                Progress::Failed(_) if !given_up => self.spilling.refused_until = Some(Instant::now() + RETRY),
                Progress::Failed(_) => {}
            }
            for flush in &mut self.spilling.flushes {
                if flush.left.remove(&spill.number) {
                    match spill.ticket.as_ref().map(Ticket::progress) {
                        Some(Progress::Failed(why)) if !given_up => flush.report.failed.push(why),
                        _ => flush.report.entries += usize::from(!given_up),
                    }
                }
            }
            false
        });
        self.spilling.settling.extend(settling);
    }

    /// Entries that nobody used for long move to disk.
    fn demote_idle(&mut self) {
        if self.spilling.refused_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let Some(moment) = Instant::now().checked_sub(self.options.cache.idle) else { return };
        for id in self.cache.unused_since(moment) {
            if self.cache.entry(id).is_some_and(|entry| self.is_for_memory_only(entry)) {
                self.cache.remove(id);
                continue;
            }
            let under_way = |spill: &Spill| matches!(spill.source, Source::Held(held) if held == id);
            if !self.spilling.queue.iter().chain(&self.spilling.settling).any(under_way) {
                self.spill(Source::Held(id), true);
            }
        }
    }

    /// When the next entry will have been idle for long.
    pub(super) fn next_demotion(&self) -> Option<Duration> {
        self.disk?;
        let due = self.cache.oldest_use()? + self.options.cache.idle;
        let due = self.spilling.refused_until.map_or(due, |until| due.max(until));
        Some(due.saturating_duration_since(Instant::now()).max(Duration::from_millis(50)))
    }

    /// Starts a flush of everything in memory.
    pub(super) fn flush_prompt_cache(&mut self, reply: oneshot::Sender<CacheFlush>) {
        let Some(disk) = self.disk else {
            let failed = match self.cache.ids().len() {
                0 => Vec::new(),
                n => vec![format!("{n} prompts are only in memory: the cache on disk is off (--cache-ssd)")],
            };
            return drop(reply.send(CacheFlush { failed, ..CacheFlush::default() }));
        };
        // Whoever asks for a flush may just have made room for it.
        disk.retry_now();
        let written_before = disk.stats().written;
        // What is on its way already counts as well.
        let on_its_way = self.spilling.queue.iter().chain(&self.spilling.settling).map(|spill| spill.number);
        let mut left: BTreeSet<u64> = on_its_way.collect();
        for id in self.cache.ids() {
            if self.cache.entry(id).is_some_and(|entry| !self.is_for_memory_only(entry)) {
                left.insert(self.spill(Source::Held(id), false));
            }
        }
        self.spilling.flushes.push(Flush { reply, left, report: CacheFlush::default(), written_before, disk: None });
    }

    fn answer_flushes(&mut self) {
        let Some(disk) = self.disk else { return };
        for mut flush in std::mem::take(&mut self.spilling.flushes) {
            if !flush.left.is_empty() {
                self.spilling.flushes.push(flush);
                continue;
            }
            let answer = flush.disk.get_or_insert_with(|| disk.flush()).try_recv();
            match answer {
                Err(TryRecvError::Empty) => self.spilling.flushes.push(flush),
                answer => {
                    let flushed = answer.unwrap_or_default();
                    flush.report.bytes = disk.stats().written.saturating_sub(flush.written_before);
                    // The disk gives the same reasons, and says for how much.
                    flush.report.failed.retain(|why| !flushed.failed.iter().any(|told| told.ends_with(why.as_str())));
                    flush.report.failed.extend(flushed.failed);
                    flush.report.failed.sort();
                    flush.report.failed.dedup();
                    self.publish(true);
                    let _ = flush.reply.send(flush.report);
                }
            }
        }
    }

    /// Brings everything in memory to disk and waits for it, for at most this long. Says what is lost.
    pub(super) fn save(&mut self, patience: Duration) {
        if self.disk.is_none() || self.cache.ids().is_empty() && self.spilling.is_idle() {
            return;
        }
        let until = Instant::now() + patience;
        let (reply, mut answer) = oneshot::channel();
        self.flush_prompt_cache(reply);
        loop {
            self.spill_some();
            match answer.try_recv() {
                Ok(report) => {
                    for why in report.failed {
                        tracing::warn!("a prompt is not on disk: {why}");
                    }
                    return;
                }
                Err(oneshot::error::TryRecvError::Closed) => return,
                Err(oneshot::error::TryRecvError::Empty) if Instant::now() > until => {
                    return tracing::warn!("the prompt cache was not saved in {} s", patience.as_secs());
                }
                Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Empties both tiers.
    pub(super) fn clear_prompt_cache(&mut self) -> CacheClear {
        self.spilling.queue.clear();
        self.spilling.settling.clear();
        let (entries, bytes) = self.cache.clear();
        let _ = hearth_mlx::clear_cache();
        let Cleared { files, bytes: file_bytes, .. } =
            self.disk.and_then(|disk| disk.clear().recv().ok()).unwrap_or_default();
        self.publish(true);
        CacheClear { entries, bytes, files, file_bytes }
    }
}

/// Bytes of a layer of a piece, at most.
fn bytes_of(piece: &Piece, cache: &LayerCache) -> usize {
    let bytes = |t: &Tensor| match piece.is_snapshot() {
        true => t.nbytes(),
        false => t.nbytes() / (t.dim(2).max(1) as usize) * piece.range().len(),
    };
    match cache {
        LayerCache::Plain(_) | LayerCache::Quantized(_) if piece.is_snapshot() => 0,
        LayerCache::Rotating(_) | LayerCache::Recurrent(_) if !piece.is_snapshot() => 0,
        _ => cache.tensors().map(bytes).sum(),
    }
}

/// One layer of a piece; its bytes.
fn push(piece: &mut Piece, cache: &LayerCache) -> Result<usize> {
    if piece.is_snapshot() {
        let wholes = cache.wholes()?;
        let bytes = wholes.iter().map(|w| w.bytes.len()).sum();
        piece.push_wholes(wholes);
        return Ok(bytes);
    }
    let strips = cache.strips(piece.range())?;
    let bytes = strips.iter().map(|s| s.bytes.len()).sum();
    piece.push_strips(strips);
    Ok(bytes)
}
