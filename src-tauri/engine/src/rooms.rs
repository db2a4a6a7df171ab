//! Who gets memory, decided over integers: what a row costs, whether a request gets a row now, and how rows grow.
//!
//! The rules, which the test below plays through:
//!
//! * A request gets a row when the ledger stays below the hard mark with it; where nothing else runs, when it stays within
//!   the budget. `max_tokens` costs nothing at that moment: a row reserves its prompt and the first buffer step.
//! * A row that needs the next step takes it, the oldest row first. Between the hard mark and the budget there is room
//!   that only growing rows get. The prompt cache gives way to both.
//! * A row that cannot grow waits while others run. When no row can go on, the youngest one is parked: its memory goes
//!   back, and it is computed again from its tokens when there is room, before anything younger. So the oldest row
//!   always gets on, and in the end everybody does.
//! * The row that cannot grow although it is alone ends there (`length`).

use crate::ledger::Ledger;
use hearth_core::layout::room_for;
use std::collections::BTreeMap;

/// The least number of prompt tokens in a chunk when memory is short.
const LEAST_CHUNK: u64 = 64;

/// What things cost with the loaded model, in bytes.
pub trait Costs {
    /// Keys, values and states with room for so many tokens, at the most on the way there.
    fn row(&self, tokens: u64) -> u64;
    /// The same of a row whose keys and values are quantized already, where they are to be.
    fn settled(&self, tokens: u64) -> u64;
    /// What a chunk of a prompt holds for a moment, in rows of up to `context` tokens.
    fn chunk(&self, chunk: u64, context: u64) -> u64;
    /// What one token for each of `rows` rows of up to `context` tokens holds for a moment.
    fn step(&self, rows: u64, context: u64) -> u64;
    /// What the allocator keeps of it afterwards.
    fn allocator(&self, transient: u64) -> u64;
}

/// What one row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// Tokens that it was made for; what its buffers have room for is a little more.
    tokens: u64,
    bytes: u64,
    /// Whether its prompt is complete.
    decodes: bool,
    /// Whether its keys and values are quantized.
    settled: bool,
}

/// What a request would take, and what it could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Bytes.
    pub needed: u64,
    /// Bytes.
    pub free: u64,
}

impl Asked {
    /// Whether it gets them.
    pub fn fits(&self) -> bool {
        self.needed <= self.free
    }
}

/// What the rows hold, those that were admitted and have not begun included.
#[derive(Debug, Clone)]
pub struct Rooms {
    rows: BTreeMap<u64, Held>,
    /// Prompt tokens of a chunk, at least.
    least: u64,
}

impl Rooms {
    /// Nobody holds anything; chunks have at most so many tokens.
    pub fn new(most_chunk: u64) -> Self {
        Rooms { rows: BTreeMap::new(), least: LEAST_CHUNK.min(most_chunk).max(1) }
    }

    /// Tokens of the smallest chunk.
    pub fn least_chunk(&self) -> u64 {
        self.least
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.rows.values().map(|held| held.bytes).sum()
    }

    /// Reserves a row's prompt of so many tokens, and its first step.
    pub fn take(&mut self, id: u64, prompt: u64, costs: &impl Costs) {
        let tokens = prompt + 1;
        self.rows.insert(id, Held { tokens, bytes: costs.row(room_for(tokens)), decodes: false, settled: false });
    }

    /// A row's prompt is complete.
    pub fn decodes(&mut self, id: u64) {
        if let Some(held) = self.rows.get_mut(&id) {
            held.decodes = true;
        }
    }

    /// A row's keys and values are quantized now.
    pub fn settle(&mut self, id: u64, costs: &impl Costs) {
        if let Some(held) = self.rows.get_mut(&id) {
            (held.settled, held.bytes) = (true, costs.settled(room_for(held.tokens)));
        }
    }

    /// Gives back what a row held.
    pub fn release(&mut self, id: u64) {
        self.rows.remove(&id);
    }

    /// The youngest of the rows that decode.
    pub fn youngest(&self) -> Option<u64> {
        self.rows.iter().rev().find(|(_, held)| held.decodes).map(|(id, _)| *id)
    }

    /// How many rows hold something.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether a row has to grow to hold so many tokens.
    pub fn must_grow(&self, id: u64, tokens: u64) -> bool {
        self.rows.get(&id).is_some_and(|held| tokens > room_for(held.tokens))
    }

    /// Makes room for so many tokens of a row.
    pub fn grow(&mut self, id: u64, tokens: u64, costs: &impl Costs) {
        if let Some(held) = self.rows.get_mut(&id) {
            held.tokens = tokens.max(held.tokens);
            let room = room_for(held.tokens);
            held.bytes = if held.settled { costs.settled(room) } else { costs.row(room) };
        }
    }

    /// What the next chunk, of at most so many tokens, and the next step hold for a moment; and what the allocator
    /// keeps of it. A row's step is counted from the beginning where it has company, so that no row takes more when its
    /// prompt is complete.
    pub fn work(&self, chunk: u64, costs: &impl Costs) -> (u64, u64) {
        let (mut longest, mut widest) = (0, 0);
        for held in self.rows.values() {
            widest = held.tokens.max(widest);
            if !held.decodes {
                longest = held.tokens.max(longest);
            }
        }
        let chunk = if longest > 0 { costs.chunk(chunk.min(longest), longest) } else { 0 };
        let rows = self.rows.len() as u64;
        let step = if rows > 1 || rows == 1 && chunk == 0 { costs.step(rows, widest) } else { 0 };
        let transient = chunk.saturating_add(step);
        (transient, if transient > 0 { costs.allocator(transient) } else { 0 })
    }

    /// What a request of so many prompt tokens would take, and what it could have. In `ledger` count the weights, the
    /// reserve, of the prompt cache what does not give way, and what the allocator keeps now. `excess` is what the process holds and the ledger does
    /// not know of: a request that is alone gets its chance all the same.
    pub fn asked(&self, prompt: u64, ledger: &Ledger, excess: u64, costs: &impl Costs) -> Asked {
        let mut with = self.clone();
        with.take(u64::MAX, prompt, costs);
        let alone = self.is_empty() && ledger.kv == 0;
        let (mark, excess) = if alone { (ledger.budget, 0) } else { (ledger.hard(), excess) };
        let (now, then) = (self.held(self.least, ledger, costs), with.held(self.least, ledger, costs));
        let free = mark.saturating_sub(now.total().saturating_add(excess));
        Asked { needed: then.total().saturating_sub(now.total()), free }
    }

    /// Whether a row can have room for so many tokens, in the same terms.
    pub fn asked_to_grow(&self, id: u64, tokens: u64, ledger: &Ledger, costs: &impl Costs) -> Asked {
        let mut with = self.clone();
        with.grow(id, tokens, costs);
        let (now, then) = (self.held(self.least, ledger, costs), with.held(self.least, ledger, costs));
        Asked { needed: then.total().saturating_sub(now.total()), free: ledger.budget.saturating_sub(now.total()) }
    }

    /// The ledger with these rows and their work in chunks of so many tokens. What `ledger` has of rows and of their work
    /// is another model's.
    pub fn held(&self, chunk: u64, ledger: &Ledger, costs: &impl Costs) -> Ledger {
        let (transient, allocator) = self.work(chunk, costs);
        Ledger {
            kv: ledger.kv.saturating_add(self.bytes()),
            transient: ledger.transient.saturating_add(transient),
            allocator: allocator.max(ledger.allocator),
            ..*ledger
        }
    }

    /// The largest chunk, halving `most`, with which the ledger stays below `mark`; the smallest where none does.
    pub fn chunk(&self, most: u64, mark: u64, ledger: &Ledger, costs: &impl Costs) -> u64 {
        let mut chunk = most;
        while chunk > self.least {
            if self.held(chunk, ledger, costs).total() <= mark {
                return chunk;
            }
            chunk = (chunk / 2).max(self.least);
        }
        chunk
    }
}

#[cfg(test)]
#[path = "rooms_tests.rs"]
mod tests;
