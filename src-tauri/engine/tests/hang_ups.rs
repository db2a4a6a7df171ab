//! Two hundred clients that hang up at random moments. A test binary of its own: it measures the process's memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may fail

use hearth_core::{Backend, Event, GenerateRequest, Generation};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions};
use std::path::Path;
use std::time::Duration;

fn tokens_of(mut generation: Generation) -> usize {
    loop {
        match generation.events.blocking_recv().expect("the stream ends with Finished or Failed") {
            Event::Finished(finish) => return finish.usage.completion_tokens,
            Event::Failed(e) => panic!("{e}"),
            _ => {}
        }
    }
}

/// Waits, for at most ten seconds, until every request has ended; returns MLX's live bytes.
fn settled(engine: &EngineHandle) -> u64 {
    for _ in 0..2000 {
        let stats = engine.stats();
        let ended = stats.totals.finished + stats.totals.cancelled + stats.totals.failed;
        if stats.rows.is_empty() && stats.waiting == 0 && ended == stats.totals.requests {
            return stats.memory.mlx_active;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("rows are left over: {:?}", engine.stats());
}

#[test]
fn two_hundred_hang_ups_leave_nothing_behind() {
    // Without the prompt cache, which keeps what they computed.
    let cache = CacheOptions { ram: 0, ..CacheOptions::default() };
    let options = EngineOptions { max_rows: 3, prefill_chunk: 16, cache, ..EngineOptions::default() };
    let engine = Engine::start(options).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/llama-q4");
    let model = engine.load(dir, "model".into()).blocking_recv().unwrap().unwrap();
    assert_eq!(tokens_of(engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 5)).unwrap()), 5);
    let before = settled(&engine);
    let mut state = 1u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % n
    };
    let mut held = Vec::new();
    for i in 0..200 {
        let prompt: Vec<u32> = (0..1 + random(60) as u32).map(|t| t % 250).collect();
        let mut generation = engine.submit(&model, GenerateRequest::greedy(&prompt, 400)).unwrap();
        // Some hang up in the queue, some in prefill, some while decoding.
        for _ in 0..random(12) {
            if i % 3 == 0 && generation.events.try_recv().is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        held.push(generation);
        if held.len() > 5 {
            held.remove(random(held.len() as u64) as usize);
        }
    }
    drop(held);
    let after = settled(&engine);
    assert!(after.abs_diff(before) <= before / 50, "{before} bytes before, {after} after");
    assert!(engine.stats().totals.cancelled >= 100, "{:?}", engine.stats().totals);
    assert_eq!(tokens_of(engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 5)).unwrap()), 5);
    engine.shutdown();
}
