//! Conversations with the prompt cache on answer like conversations with it off: greedy, token for token, whatever is
//! done to the history, however little room there is, from memory and from disk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may fail

#[path = "conversations/arms.rs"]
mod arms;
#[path = "conversations/reference.rs"]
mod reference;
#[path = "conversations/script.rs"]
mod script;

use arms::{Answer, Arm, Differences, NEAR, golden};
use hearth_core::stats::{CacheStats, SsdState};
use hearth_core::GenerateRequest;
use hearth_engine::CacheOptions;
use reference::{Reference, Trims};
use script::{Lengths, Random, Turn, Words};
use std::time::Duration;
use tempfile::TempDir;

/// Most that a log-probability may differ by where nothing is quantized in between: the same sums in another order.
const TOLERANCE: f32 = 1e-4;

/// Short and long ones: several windows, and several blocks of the disk's.
fn lengths() -> Lengths {
    Lengths { first: vec![1..30, 30..250, 250..600], added: 1..25, generated: 1..9, turns: 3..7 }
}

/// How an arm with a cache is run.
#[derive(Clone, Copy)]
struct Way<'a> {
    name: &'a str,
    /// Requests submitted at once.
    at_once: usize,
    /// Tokens whose keys and values memory has room for; `None`: plenty.
    ram: Option<u64>,
    /// Whether there is a disk: then it is flushed at times.
    disk: bool,
    /// Whether the engine is started again at times, so that memory is empty.
    restarts: bool,
    /// The same for all that is allocated beside the weights.
    room: Option<u64>,
    /// Entries go to disk after this long.
    idle_ms: u64,
}

const AMPLE: Way<'_> =
    Way { name: "in memory", at_once: 1, ram: None, disk: false, restarts: false, room: None, idle_ms: 300_000 };

/// Every way.
const WAYS: [Way<'_>; 9] = [
    AMPLE,
    Way { name: "in memory, batched", at_once: 7, ..AMPLE },
    Way { name: "from disk", disk: true, restarts: true, ..AMPLE },
    Way { name: "from disk, batched", disk: true, restarts: true, at_once: 5, ..AMPLE },
    Way { name: "little memory", ram: Some(700), ..AMPLE },
    Way { name: "little memory, and a disk", ram: Some(500), disk: true, idle_ms: 20, ..AMPLE },
    Way { name: "hardly any memory, and a disk, batched", ram: Some(60), disk: true, at_once: 6, ..AMPLE },
    Way { name: "no room for copies", room: Some(0), ..AMPLE },
    Way { name: "room for few copies, batched", room: Some(2500), at_once: 3, ..AMPLE },
];

/// A tiny model.
#[derive(Clone, Copy)]
struct Tiny<'a> {
    name: &'a str,
    trims: Trims,
    /// Bytes of keys and values that a token leaves.
    per_token: u64,
}

/// Runs these conversations one way. Rounds are in step: the first turns of all, then the second ones.
fn run(tiny: Tiny<'_>, way: Way<'_>, conversations: &[Vec<Turn>], seed: u64) {
    let Tiny { name, trims, per_token } = tiny;
    let what = format!("{name} {}", way.name);
    let dir = golden(name);
    let folder = TempDir::new().unwrap();
    let mut random = Random(seed);
    let weights = std::fs::metadata(dir.join("model.safetensors")).unwrap().len();
    let memory = |room: u64| if room > 0 { weights + room * per_token } else { 1 };
    let start = |random: &mut Random| {
        let cache = CacheOptions {
            ram: way.ram.map_or(8 << 30, |tokens| tokens * per_token),
            ssd: if way.disk { 1 << 30 } else { 0 },
            dir: way.disk.then(|| folder.path().to_owned()),
            memory: way.room.map(memory),
            idle: Duration::from_millis(way.idle_ms),
            ..CacheOptions::default()
        };
        Arm::start(&dir, cache, [16, 100, 2048][random.below(3)])
    };
    let mut arm = start(&mut random);
    let (mut reference, mut differences, mut counts) =
        (Reference::new(trims), Differences::default(), Counts::default());
    let mut from_disk = 0;
    // What is on disk for certain.
    let mut durable = Reference::new(trims);
    let rounds = conversations.iter().map(Vec::len).max().unwrap();
    for round in 0..rounds {
        if way.restarts && round > 0 && random.below(2) == 0 {
            from_disk += counts.check(&what, &arm, way).ssd.hits;
            arm.engine.shutdown();
            counts = Counts::default();
            arm = start(&mut random);
            durable = reference.on_disk();
        }
        let turns: Vec<&Turn> = conversations.iter().filter_map(|turns| turns.get(round)).collect();
        for batch in turns.chunks(way.at_once) {
            let flushed = way.disk && random.below(4) == 0;
            if flushed {
                arm.flush();
                durable = reference.on_disk();
            }
            let requests = batch.iter().map(|turn| {
                // Rows that report nothing draw by another path.
                let logprobs = [None, Some(5)][random.below(2)];
                GenerateRequest { logprobs, ..turn.request.clone() }
            });
            let answers = arm.ask(requests);
            let ended: Vec<(&Turn, &Answer)> = batch.iter().copied().zip(&answers).collect();
            for (i, (turn, answer)) in ended.iter().enumerate() {
                differences.compare(&what, turn, &answer.tokens, NEAR, TOLERANCE);
                let prompt = &turn.request.prompt;
                let others = [&ended[..i], &ended[i + 1..]].concat();
                let most = reference.after(&others).longest(prompt);
                let least = match (way.ram.is_none() && way.room.is_none(), flushed && batch.len() == 1) {
                    (true, _) if way.restarts => durable.longest(prompt).max(reference.on_disk().longest(prompt)),
                    (true, _) => reference.longest(prompt),
                    (_, true) => durable.longest(prompt),
                    _ => 0,
                };
                let cached = answer.usage.cached_tokens;
                assert!(
                    (least..=most).contains(&cached),
                    "{what}: {} prompt of {} tokens: {cached} cached, expected {least} to {most}",
                    turn.what,
                    prompt.len()
                );
                counts.add(turn, answer);
            }
            reference = reference.after(&ended);
        }
    }
    let CacheStats { ram, ssd } = counts.check(&what, &arm, way);
    from_disk += ssd.hits;
    arm.engine.shutdown();
    match way.room {
        Some(0) => assert!(ram.moved > 0 && ram.moved == ram.hits, "{what}: {ram:?}"),
        Some(_) => {}
        None => assert_eq!(ram.moved, 0, "{what}"),
    }
    assert!(way.ram.is_none() || way.disk || ram.evicted > 0, "{what}: {ram:?}");
    assert_eq!(from_disk > 0, way.disk, "{what}: {ssd:?}");
    println!("{what}: {differences:?}; {} of {} hits moved, {from_disk} from disk", ram.moved, ram.hits);
}

/// What an engine should have counted.
#[derive(Default)]
struct Counts {
    requests: u64,
    cached: u64,
    computed: u64,
}

impl Counts {
    fn add(&mut self, turn: &Turn, answer: &Answer) {
        self.requests += 1;
        self.cached += answer.usage.cached_tokens as u64;
        self.computed += (turn.request.prompt.len() - answer.usage.cached_tokens) as u64;
    }

    fn check(&self, what: &str, arm: &Arm, way: Way<'_>) -> CacheStats {
        let stats = arm.settled();
        let (ram, ssd) = (&stats.cache.ram, &stats.cache.ssd);
        assert_eq!(ram.hits + ram.misses + ssd.hits, self.requests, "{what}: {stats:?}");
        assert_eq!(ram.reused_tokens + ssd.reused_tokens, self.cached, "{what}: {stats:?}");
        assert_eq!(stats.totals.prompt_tokens, self.computed, "{what}: {stats:?}");
        assert_eq!((ram.lent, ssd.corrupt, ssd.failed_restores), (0, 0, 0), "{what}: {stats:?}");
        assert_eq!(ssd.state, if way.disk { SsdState::Ready } else { SsdState::Off }, "{what}: {stats:?}");
        stats.cache
    }
}

/// 34 conversations, each of them at least one way.
fn like_without(tiny: Tiny<'_>, seed: u64) {
    let cold = Arm::cold(&golden(tiny.name), None);
    let conversations = script::conversations(&cold.engine, &cold.model, (&Words::Ids(250), &lengths()), 34, seed);
    cold.engine.shutdown();
    let share = conversations.len().div_ceil(WAYS.len());
    for (i, way) in WAYS.into_iter().enumerate() {
        let from = (i * share).min(conversations.len() - share);
        run(tiny, way, &conversations[from..from + share], seed + i as u64);
    }
}

#[test]
fn llama_answers_as_without_a_cache() {
    like_without(Tiny { name: "llama-f32", trims: Trims::Any, per_token: 1024 }, 1);
}

#[test]
fn four_bit_weights_answer_as_without_a_cache() {
    like_without(Tiny { name: "llama-q4", trims: Trims::Any, per_token: 1024 }, 2);
}

#[test]
fn sliding_windows_answer_as_without_a_cache() {
    like_without(Tiny { name: "llama_swa-f32", trims: Trims::Within(16), per_token: 256 }, 3);
}

#[test]
fn gemma3_answers_as_without_a_cache() {
    like_without(Tiny { name: "gemma3_text-f32", trims: Trims::Within(16), per_token: 512 }, 4);
}

#[test]
fn lfm2_answers_as_without_a_cache() {
    like_without(Tiny { name: "lfm2-f32", trims: Trims::None, per_token: 512 }, 5);
}

#[test]
fn qwen3_5_answers_as_without_a_cache() {
    like_without(Tiny { name: "qwen3_5-f32", trims: Trims::None, per_token: 512 }, 6);
}
