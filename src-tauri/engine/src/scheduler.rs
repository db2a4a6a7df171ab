//! Who runs next, decided over integers: no MLX, no clocks, no channels. Four verbs: `add` a request, `admit_one` that
//! gets a row (and say where it `start`s), `plan` the next round, tell what happened (`prefilled`, `remove`).
//!
//! A round is at most one prefill chunk, shared first come first served by the rows that still have prompt left,
//! and one decode step of all rows that are past their prompt.

use std::collections::VecDeque;

/// The scheduler's fixed numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Rows computed at once.
    pub max_rows: usize,
    /// Prompt tokens in one chunk when nothing else runs.
    pub chunk: usize,
    /// The least that a chunk shrinks to while others decode.
    pub least_chunk: usize,
    /// How long a chunk may keep decoding rows waiting, in milliseconds.
    pub chunk_ms: u64,
    /// How long a chunk may take when nothing decodes: only between chunks are cancelled rows seen.
    pub lone_chunk_ms: u64,
}

/// Prompt tokens of a lone chunk before any speed was measured.
const FIRST_CHUNK: usize = 512;

/// A row that is being computed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Active {
    id: u64,
    prompt: usize,
    done: usize,
    /// Where chunks have to end, ascending.
    stops: Vec<usize>,
    /// Holds its place and is not computed yet: its state is being read.
    held: bool,
}

impl Active {
    /// Prompt tokens that one chunk may take.
    fn chunk(&self, budget: usize) -> usize {
        let left = self.prompt - self.done;
        let until_stop = self.stops.iter().find(|&&stop| stop > self.done).map_or(left, |stop| stop - self.done);
        left.min(until_stop).min(budget)
    }
}

/// What one round does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Round {
    /// Prompt tokens to compute: row and how many, in order.
    pub prefill: Vec<(u64, usize)>,
    /// Rows that decode one token.
    pub decode: Vec<u64>,
}

/// How many requests may begin before one that came earlier and has no memory yet; then all wait for it, so that the
/// rows that run end and it gets its turn.
const MOST_OVERTAKING: u32 = 8;

/// A request in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    id: u64,
    prompt: usize,
    /// How many began before it that came after it.
    overtaken: u32,
}

/// The queue and the rows.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    waiting: VecDeque<Waiting>,
    active: Vec<Active>,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits) -> Self {
        Scheduler { limits, waiting: VecDeque::new(), active: Vec::new() }
    }

    /// A stand-in that has no rows to give.
    pub fn idle() -> Self {
        Self::new(Limits { max_rows: 0, chunk: 1, least_chunk: 1, chunk_ms: 0, lone_chunk_ms: 0 })
    }

    /// Queues a request of this many prompt tokens.
    pub fn add(&mut self, id: u64, prompt: usize) {
        self.waiting.push_back(Waiting { id, prompt, overtaken: 0 });
    }

    /// Queues a row again that had begun, before everything that came after it; nothing overtakes it.
    pub fn add_again(&mut self, id: u64, prompt: usize) {
        let place = self.waiting.iter().position(|waiting| waiting.id > id).unwrap_or(self.waiting.len());
        self.waiting.insert(place, Waiting { id, prompt, overtaken: MOST_OVERTAKING });
    }

    /// Takes a request out of the queue, if there is a row for one: the first that `fits` into memory. One that does
    /// not is overtaken [`MOST_OVERTAKING`] times at most. It is held until it is started.
    pub fn admit_one(&mut self, mut fits: impl FnMut(u64) -> bool) -> Option<u64> {
        if self.active.len() >= self.limits.max_rows {
            return None;
        }
        let mut place = 0;
        loop {
            let waiting = self.waiting.get(place)?;
            if fits(waiting.id) {
                break;
            }
            if waiting.overtaken >= MOST_OVERTAKING {
                return None;
            }
            place += 1;
        }
        self.waiting.iter_mut().take(place).for_each(|waiting| waiting.overtaken += 1);
        let Waiting { id, prompt, .. } = self.waiting.remove(place)?;
        self.active.push(Active { id, prompt, done: 0, stops: Vec::new(), held: true });
        Some(id)
    }

    /// The request whose turn is next.
    pub fn first_waiting(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.id)
    }

    /// Whether a row is free.
    pub fn has_free_row(&self) -> bool {
        self.active.len() < self.limits.max_rows
    }

    /// From now on so many rows are computed at once; those that run stay.
    pub fn set_max_rows(&mut self, rows: usize) {
        self.limits.max_rows = rows.max(1);
    }

    /// From now on a chunk has at most so many tokens.
    pub fn set_chunk(&mut self, tokens: usize) {
        self.limits.chunk = tokens.max(1);
    }

    /// Lets an admitted row run, with its first `done` prompt tokens computed. Its chunks end at `stops` (ascending),
    /// at least.
    pub fn start(&mut self, id: u64, done: usize, stops: Vec<usize>) {
        if let Some(row) = self.active.iter_mut().find(|a| a.id == id) {
            (row.done, row.stops, row.held) = (done.min(row.prompt), stops, false);
        }
    }

    /// Makes a row's chunks end at one more place.
    pub fn stop_at(&mut self, id: u64, stop: usize) {
        if let Some(row) = self.active.iter_mut().find(|a| a.id == id)
            && let Err(at) = row.stops.binary_search(&stop)
        {
            row.stops.insert(at, stop);
        }
    }

    /// Decides the next round. `prefill_rate` is the measured speed in tokens per second, if known; `can_decode`
    /// says whether a row takes part in this step (a client that does not read pauses its own row).
    pub fn plan(&mut self, prefill_rate: Option<f64>, mut can_decode: impl FnMut(u64) -> bool) -> Round {
        let mut round = Round::default();
        let runs = self.active.iter().filter(|a| !a.held);
        round.decode = runs.clone().filter(|a| a.done == a.prompt && can_decode(a.id)).map(|a| a.id).collect();
        let fits = |ms: u64, unknown| prefill_rate.map_or(unknown, |rate| (rate * ms as f64 / 1000.0) as usize);
        let fits = match round.decode.is_empty() {
            true => fits(self.limits.lone_chunk_ms, FIRST_CHUNK),
            false => fits(self.limits.chunk_ms, 0),
        };
        let mut budget = fits.clamp(self.limits.least_chunk.min(self.limits.chunk), self.limits.chunk);
        for row in runs.filter(|a| a.done < a.prompt) {
            let n = row.chunk(budget);
            if n == 0 {
                break;
            }
            round.prefill.push((row.id, n));
            budget -= n;
        }
        round
    }

    /// Tells that `n` prompt tokens of a row were computed; true when its prompt is complete.
    pub fn prefilled(&mut self, id: u64, n: usize) -> bool {
        match self.active.iter_mut().find(|a| a.id == id) {
            Some(row) => {
                row.done = (row.done + n).min(row.prompt);
                row.done == row.prompt
            }
            None => false,
        }
    }

    /// Forgets a row, waiting or active: finished, failed or cancelled.
    pub fn remove(&mut self, id: u64) {
        self.waiting.retain(|waiting| waiting.id != id);
        self.active.retain(|a| a.id != id);
    }

    /// Takes requests out of the queue while there are rows for them.
    #[cfg(test)]
    pub fn admit(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.admit_one(|_| true)).collect()
    }

    /// Rows being computed.
    #[cfg(test)]
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Requests in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const LIMITS: Limits = Limits { max_rows: 3, chunk: 20, least_chunk: 4, chunk_ms: 300, lone_chunk_ms: 2000 };

    #[test]
    fn rows_share_a_chunk_in_order_and_join_the_next_step() {
        let mut s = Scheduler::new(LIMITS);
        for (id, prompt) in [(1, 5), (2, 30), (3, 1), (4, 9)] {
            s.add(id, prompt);
        }
        assert_eq!(admit(&mut s), [1, 2, 3]);
        let round = s.plan(None, |_| true);
        assert_eq!(round.prefill, [(1, 5), (2, 15)]);
        assert!(s.prefilled(1, 5) && !s.prefilled(2, 15));
        let round = s.plan(Some(20.0), |_| true);
        assert_eq!(round.decode, [1]);
        assert_eq!(round.prefill, [(2, 6)], "300 ms at 20 tokens/s while row 1 decodes");
        s.remove(1);
        assert_eq!(admit(&mut s), [4], "a freed row is taken at once");
    }

    #[test]
    fn a_held_row_keeps_its_place_and_a_started_one_begins_where_it_is_told() {
        let mut s = Scheduler::new(LIMITS);
        s.add(1, 30);
        s.add(2, 10);
        assert_eq!(s.admit(), [1, 2]);
        assert_eq!(s.plan(None, |_| true), Round::default());
        s.start(2, 9, vec![]);
        assert_eq!(s.plan(None, |_| true).prefill, [(2, 1)]);
        s.start(1, 12, vec![8, 29]);
        s.stop_at(1, 15);
        s.stop_at(1, 29);
        assert_eq!(s.plan(None, |_| true).prefill, [(1, 3), (2, 1)], "a chunk ends at a stop");
        s.prefilled(1, 3);
        assert_eq!(s.plan(None, |_| true).prefill, [(1, 14), (2, 1)]);
        s.prefilled(1, 14);
        assert_eq!(s.plan(None, |_| true).prefill, [(1, 1), (2, 1)]);
    }

    #[test]
    fn a_request_without_memory_is_overtaken_a_few_times_and_then_waited_for() {
        let mut s = Scheduler::new(Limits { max_rows: 100, ..LIMITS });
        for id in 1..=20 {
            s.add(id, 5);
        }
        let small = |id: u64| id != 1;
        let began: Vec<u64> = std::iter::from_fn(|| s.admit_one(small)).collect();
        assert_eq!(began, (2..=9).collect::<Vec<_>>());
        assert_eq!((s.first_waiting(), s.waiting()), (Some(1), 12));
        assert_eq!(s.admit_one(|_| true), Some(1));
        // A row that begins again goes before everything younger, and nothing overtakes it.
        s.remove(4);
        s.add_again(4, 30);
        s.add(21, 5);
        assert_eq!(s.admit_one(|id| id != 4), None);
        assert_eq!(s.admit_one(|_| true), Some(4));
        assert_eq!(s.admit_one(|_| true), Some(10));
    }

    /// Admits and starts at once, from nothing.
    fn admit(s: &mut Scheduler) -> Vec<u64> {
        let admitted = s.admit();
        for &id in &admitted {
            s.start(id, 0, Vec::new());
        }
        admitted
    }

    #[test]
    fn a_lone_chunk_is_bounded_in_time_too() {
        let mut s = Scheduler::new(LIMITS);
        s.add(1, 100);
        admit(&mut s);
        assert_eq!(s.plan(None, |_| true).prefill, [(1, 20)]);
        assert_eq!(s.plan(Some(7.0), |_| true).prefill, [(1, 14)], "2 s at 7 tokens/s");
        assert_eq!(s.plan(Some(0.1), |_| true).prefill, [(1, 4)]);
    }

    #[test]
    fn a_paused_row_does_not_decode_and_does_not_shrink_the_chunk() {
        let mut s = Scheduler::new(LIMITS);
        s.add(1, 1);
        admit(&mut s);
        s.prefilled(1, 1);
        s.add(2, 50);
        admit(&mut s);
        let round = s.plan(Some(20.0), |_| false);
        assert_eq!((round.decode.len(), round.prefill), (0, vec![(2, 20)]));
    }

    proptest! {
        /// Any mix of arrivals, cancellations, lengths, cached prefixes and stops: every row is served, in order of
        /// arrival where it matters, nobody waits while a slot is free, no chunk passes a stop, and no slot leaks.
        #[test]
        fn nobody_starves_and_no_slot_leaks(
            rows in proptest::collection::vec((1usize..60, 1usize..12, 0usize..40, proptest::option::of(0usize..60)), 1..30),
            (cached, stops) in (0usize..60, proptest::collection::btree_set(1usize..60, 0..4)),
            rate in proptest::option::of(1f64..200.0),
        ) {
            let mut s = Scheduler::new(LIMITS);
            // id → (prompt left, tokens left)
            let mut left: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
            let mut admitted = Vec::new();
            let mut served = std::collections::BTreeSet::new();
            let last_arrival = rows.iter().map(|r| r.2).max().unwrap_or(0);
            let mut round_number = 0;
            loop {
                for (id, (prompt, tokens, arrives, _)) in rows.iter().enumerate() {
                    if *arrives == round_number {
                        s.add(id as u64, *prompt);
                        left.insert(id as u64, (*prompt, *tokens));
                    }
                }
                for (id, row) in rows.iter().enumerate() {
                    if row.3 == Some(round_number) && left.remove(&(id as u64)).is_some() {
                        s.remove(id as u64);
                    }
                }
                for id in s.admit() {
                    let done = cached.min(rows[id as usize].0 - 1);
                    s.start(id, done, stops.iter().copied().collect());
                    left.get_mut(&id).unwrap().0 -= done;
                    admitted.push(id);
                }
                let round = s.plan(rate, |_| true);
                prop_assert!(s.active() <= LIMITS.max_rows);
                prop_assert!(s.waiting() == 0 || s.active() == LIMITS.max_rows, "a free slot and a waiting row");
                prop_assert!(round.prefill.iter().map(|p| p.1).sum::<usize>() <= LIMITS.chunk);
                prop_assert!(s.active() == 0 || !(round.prefill.is_empty() && round.decode.is_empty()), "an idle round");
                for (id, n) in &round.prefill {
                    let row = left.get_mut(id).unwrap();
                    prop_assert!(*n > 0 && *n <= row.0);
                    let done = rows[*id as usize].0 - row.0;
                    prop_assert!(!stops.iter().any(|&stop| stop > done && stop < done + n), "past a stop");
                    row.0 -= n;
                    prop_assert_eq!(s.prefilled(*id, *n), row.0 == 0);
                }
                for id in &round.decode {
                    let row = left.get_mut(id).unwrap();
                    prop_assert_eq!(row.0, 0, "decoding before the prompt is done");
                    row.1 -= 1;
                    if row.1 == 0 {
                        served.insert(*id);
                        left.remove(id);
                        s.remove(*id);
                    }
                }
                if left.is_empty() && round_number > last_arrival {
                    break;
                }
                round_number += 1;
                prop_assert!(round_number < 20_000, "a row starves");
            }
            prop_assert_eq!((s.active(), s.waiting()), (0, 0));
            let cancelled = rows.iter().filter(|r| r.3.is_some()).count();
            prop_assert!(served.len() + cancelled >= rows.len());
            let mut by_arrival = admitted.clone();
            by_arrival.sort_by_key(|id| (rows[*id as usize].2, *id));
            prop_assert_eq!(admitted, by_arrival, "first come, first served");
        }
    }
}
