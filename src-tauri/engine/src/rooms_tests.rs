//! The rules of memory played through over integers, with made-up costs.

use super::*;
use crate::scheduler::{Limits, Scheduler};
use hearth_core::kv_policy::FROM;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Costs of a model that is not there.
#[derive(Debug, Clone, Copy)]
struct Toy {
    /// A token's floats, and the same quantized.
    token: u64,
    packed: u64,
    state: u64,
    chunk: u64,
    score: u64,
    allocator: u64,
}

impl Costs for Toy {
    fn row(&self, tokens: u64) -> u64 {
        self.state + (self.packed * tokens).max(self.token * tokens.min(FROM as u64))
    }
    fn settled(&self, tokens: u64) -> u64 {
        self.state + self.packed * tokens
    }
    fn chunk(&self, chunk: u64, context: u64) -> u64 {
        self.chunk * chunk + self.score * context
    }
    fn step(&self, rows: u64, context: u64) -> u64 {
        self.chunk(rows, context)
    }
    fn allocator(&self, transient: u64) -> u64 {
        transient.min(self.allocator)
    }
}

const MOST_CHUNK: u64 = 512;

/// What a row of so many tokens takes that is alone, as `fit` counts it.
fn alone(toy: &Toy, tokens: u64) -> u64 {
    let transient = toy.chunk(tokens.min(MOST_CHUNK), tokens);
    toy.row(room_for(tokens)) + transient + toy.allocator(transient)
}

/// One request of the play.
#[derive(Debug, Clone)]
struct Request {
    prompt: u64,
    tokens: u64,
    arrives: usize,
    leaves: Option<usize>,
}

fn request() -> impl Strategy<Value = Request> {
    let numbers = (1u64..1500, 1u64..600, 0usize..60, proptest::option::weighted(0.2, 1usize..400));
    numbers.prop_map(|(prompt, tokens, arrives, leaves)| Request { prompt, tokens, arrives, leaves })
}

#[test]
fn a_long_answer_costs_nothing_before_it_is_written() {
    let toy = Toy { token: 10, packed: 10, state: 0, chunk: 1, score: 0, allocator: 0 };
    let ledger = Ledger { budget: 100_000, ..Ledger::default() };
    let asked = Rooms::new(MOST_CHUNK).asked(30, &ledger, 0, &toy);
    // 64 tokens of room for a prompt of 30, and a chunk of as many tokens as it has.
    assert_eq!(asked, Asked { needed: 640 + 31, free: 100_000 });
}

#[test]
fn alone_up_to_the_budget_and_in_company_up_to_the_hard_mark() {
    let toy = Toy { token: 10, packed: 10, state: 0, chunk: 0, score: 0, allocator: 0 };
    let ledger = Ledger { budget: 10_000, weights: 1000, reserve: 1000, ..Ledger::default() };
    let mut rooms = Rooms::new(MOST_CHUNK);
    assert_eq!(rooms.asked(10, &ledger, 9999, &toy).free, 8000, "what is measured does not keep a lone request out");
    rooms.take(1, 10, &toy);
    assert_eq!(rooms.asked(10, &ledger, 60, &toy), Asked { needed: 640, free: 9500 - 2000 - 640 - 60 });
    assert!(rooms.asked_to_grow(1, 65, &ledger, &toy).fits());
    rooms.grow(1, 65, &toy);
    assert_eq!((rooms.bytes(), rooms.must_grow(1, 128), rooms.must_grow(1, 129)), (1280, false, true));
}

#[test]
fn a_row_that_is_quantized_costs_no_more_than_that() {
    let toy = Toy { token: 40, packed: 10, state: 5, chunk: 0, score: 0, allocator: 0 };
    let mut rooms = Rooms::new(MOST_CHUNK);
    rooms.take(1, 300, &toy);
    assert_eq!(rooms.bytes(), 5 + 40 * 256, "until then it is floats");
    rooms.settle(1, &toy);
    assert_eq!(rooms.bytes(), 5 + 10 * room_for(301));
    rooms.grow(1, 1000, &toy);
    assert_eq!(rooms.bytes(), 5 + 10 * room_for(1000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever comes, and whatever it costs: the ledger never passes the budget, nobody waits for ever, nobody who
    /// asked for what fits is cut short, and every row that began earlier gets on.
    #[test]
    fn everybody_is_served_within_the_budget(
        requests in proptest::collection::vec(request(), 1..24),
        toy in (1u64..20, 1u64..20, 0u64..5000, 0u64..30, 0u64..4, 0u64..2000)
            .prop_map(|(token, packed, state, chunk, score, allocator)| Toy { token, packed: packed.min(token), state, chunk, score, allocator }),
        spare in 0u64..40_000, fixed in 0u64..10_000, max_rows in 1usize..6,
    ) {
        // The largest fits alone; how much more there is varies.
        let most = requests.iter().map(|r| alone(&toy, r.prompt + r.tokens)).max().unwrap();
        let ledger = Ledger { budget: fixed + most + spare, weights: fixed / 2, reserve: fixed - fixed / 2, ..Ledger::default() };
        let limits = Limits { max_rows, chunk: 512, least_chunk: 16, chunk_ms: 300, lone_chunk_ms: 2000 };
        let mut scheduler = Scheduler::new(limits);
        let mut rooms = Rooms::new(MOST_CHUNK);
        let mut generated = vec![0u64; requests.len()];
        let mut waiting: BTreeSet<u64> = BTreeSet::new();
        let mut running: BTreeSet<u64> = BTreeSet::new();
        let (mut gone, mut parks) = (BTreeSet::new(), 0);
        for round in 0.. {
            prop_assert!(round < 200_000, "somebody waits for ever: {waiting:?} {running:?}");
            for (id, request) in requests.iter().enumerate() {
                let id = id as u64;
                if request.arrives == round {
                    scheduler.add(id, request.prompt as usize);
                    waiting.insert(id);
                }
                if request.leaves.is_some_and(|after| request.arrives + after == round) && !gone.contains(&id) {
                    scheduler.remove(id);
                    rooms.release(id);
                    waiting.remove(&id);
                    running.remove(&id);
                    gone.insert(id);
                }
            }
            let length = |id: u64, generated: &[u64]| requests[id as usize].prompt + generated[id as usize];
            // Rows grow, the oldest first.
            let mut stalled = BTreeSet::new();
            for &id in &running {
                let next = length(id, &generated) + 1;
                if rooms.must_grow(id, next) {
                    match rooms.asked_to_grow(id, next, &ledger, &toy).fits() {
                        true => rooms.grow(id, next, &toy),
                        false => drop(stalled.insert(id)),
                    }
                }
            }
            while let Some(id) = scheduler.admit_one(|id| {
                stalled.is_empty() && rooms.asked(length(id, &generated), &ledger, 0, &toy).fits()
            }) {
                waiting.remove(&id);
                running.insert(id);
                rooms.take(id, length(id, &generated), &toy);
                scheduler.start(id, 0, Vec::new());
            }
            prop_assert!(running.len() <= max_rows);
            prop_assert!(!running.is_empty() || waiting.is_empty(), "nobody runs, and somebody waits");
            let chunk = rooms.chunk(MOST_CHUNK, ledger.budget, &ledger, &toy);
            scheduler.set_chunk(chunk as usize);
            let (transient, allocator) = rooms.work(chunk, &toy);
            let now = Ledger { kv: rooms.bytes(), transient, allocator, ..ledger };
            prop_assert!(now.total() <= now.budget, "{now:?}");
            let plan = scheduler.plan(None, |id| !stalled.contains(&id));
            if plan.prefill.is_empty() && plan.decode.is_empty() && !stalled.is_empty() {
                let youngest = rooms.youngest().unwrap();
                prop_assert!(rooms.len() > 1, "a row that fits alone is cut short");
                prop_assert!(running.first() != Some(&youngest), "the oldest row is parked");
                rooms.release(youngest);
                scheduler.remove(youngest);
                running.remove(&youngest);
                scheduler.add_again(youngest, length(youngest, &generated) as usize);
                waiting.insert(youngest);
                parks += 1;
                prop_assert!(parks < 10_000, "rows are parked to and fro");
            }
            for (id, n) in plan.prefill {
                if scheduler.prefilled(id, n) {
                    rooms.decodes(id);
                    if length(id, &generated) >= FROM as u64 {
                        rooms.settle(id, &toy);
                    }
                }
            }
            for id in plan.decode {
                generated[id as usize] += 1;
                if length(id, &generated) == FROM as u64 {
                    rooms.settle(id, &toy);
                }
                if generated[id as usize] == requests[id as usize].tokens {
                    scheduler.remove(id);
                    rooms.release(id);
                    running.remove(&id);
                    gone.insert(id);
                }
            }
            if gone.len() == requests.len() {
                break;
            }
        }
        prop_assert_eq!((rooms.bytes(), scheduler.active(), scheduler.waiting()), (0, 0, 0));
        for (request, done) in requests.iter().zip(generated) {
            prop_assert!(request.leaves.is_some() || done == request.tokens);
        }
    }
}
