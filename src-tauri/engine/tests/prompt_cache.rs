//! The prompt cache as a user of the engine sees it: what hits, what moves to disk and comes back, what is said when
//! it cannot.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may fail

use hearth_core::kv_policy::Asked;
use hearth_core::stats::{RamCacheStats, SsdCacheStats, SsdState};
use hearth_core::{Backend, Event, GenerateRequest, Generation, Limits, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions, MemoryOptions};
use hearth_machine::pressure::{Shared, Told};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

fn start(cache: CacheOptions, name: &str) -> (EngineHandle, Arc<ServedModel>) {
    let engine = Engine::start(EngineOptions { cache, ..EngineOptions::default() }).unwrap();
    let model = engine.load(golden(name), name.into()).blocking_recv().unwrap().unwrap();
    (engine, model)
}

fn on_disk(dir: &Path) -> CacheOptions {
    CacheOptions { ssd: 1 << 30, dir: Some(dir.to_owned()), ..CacheOptions::default() }
}

/// Its ids, and how many prompt tokens were cached.
fn answer(mut generation: Generation) -> (Vec<u32>, usize) {
    let mut ids = Vec::new();
    loop {
        match generation.events.blocking_recv().expect("the stream ends with Finished or Failed") {
            Event::Delta(delta) => ids.extend(delta.tokens.iter().map(|t| t.id)),
            Event::Finished(finish) => return (ids, finish.usage.cached_tokens),
            Event::Failed(e) => panic!("{e}"),
            Event::Admitted { .. } | Event::Prefill { .. } => {}
        }
    }
}

fn ask(engine: &EngineHandle, model: &ServedModel, prompt: &[u32], tokens: usize) -> (Vec<u32>, usize) {
    answer(engine.submit(model, GenerateRequest::greedy(prompt, tokens)).unwrap())
}

fn ram(engine: &EngineHandle) -> RamCacheStats {
    engine.stats().cache.ram
}

fn ssd(engine: &EngineHandle) -> SsdCacheStats {
    engine.stats().cache.ssd
}

/// Waits, for at most ten seconds, until something is so.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < until, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn flush(engine: &EngineHandle) -> hearth_core::stats::CacheFlush {
    wait_for(engine.flush_cache()).unwrap()
}

/// Runs a future that another thread completes.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + (i * 7 + i / 11) % 280).collect()
}

#[test]
fn the_second_turn_goes_on_from_the_first() {
    for name in ["llama-q4", "gemma3_text-f32", "lfm2-f32", "qwen3_5-q4"] {
        let (engine, model) = start(CacheOptions::default(), name);
        let mut history = prompt(90);
        let (ids, cached) = ask(&engine, &model, &history, 6);
        assert_eq!(cached, 0, "{name}");
        history.extend(&ids);
        history.extend([20, 21, 22]);
        let (second, cached) = ask(&engine, &model, &history, 6);
        // The last token was drawn and never went through the model.
        assert_eq!(cached, 95, "{name}");
        let (off, fresh) = start(CacheOptions { ram: 0, ..CacheOptions::default() }, name);
        assert_eq!(ask(&off, &fresh, &history, 6), (second, 0), "{name}");
        let stats = ram(&engine);
        assert_eq!((stats.hits, stats.misses, stats.reused_tokens, stats.lent), (1, 1, 95, 0), "{name}");
        assert_eq!(ram(&off).entries, 0);
        engine.shutdown();
        off.shutdown();
    }
}

#[test]
fn a_state_that_cannot_be_trimmed_hits_at_the_boundaries_of_a_long_prompt() {
    for name in ["lfm2-f32", "qwen3_5-f32", "gemma3_text-f32"] {
        let (engine, model) = start(CacheOptions::default(), name);
        let long = prompt(700);
        let request = GenerateRequest { boundaries: vec![300, 690], ..GenerateRequest::greedy(&long, 4) };
        let (_, cached) = answer(engine.submit(&model, request).unwrap());
        assert_eq!(cached, 0, "{name}");
        eventually("two boundaries and the end", || ram(&engine).entries == 3);
        // Another conversation on the same system prompt, and the next turn of one whose answer was not kept.
        let other: Vec<u32> = long[..300].iter().copied().chain([9, 8, 7]).collect();
        assert_eq!(ask(&engine, &model, &other, 2).1, 300, "{name}");
        let next: Vec<u32> = long[..690].iter().copied().chain([5; 20]).collect();
        assert_eq!(ask(&engine, &model, &next, 2).1, 690, "{name}");
        let elsewhere: Vec<u32> = long[..500].iter().copied().chain([5; 20]).collect();
        assert_eq!(ask(&engine, &model, &elsewhere, 2).1, 300, "{name}: between boundaries the one before");
        engine.shutdown();
    }
}

#[test]
fn without_memory_the_disk_has_the_boundaries() {
    for name in ["lfm2-f32", "qwen3_5-f32", "gemma3_text-f32"] {
        let dir = tempfile::tempdir().unwrap();
        let (engine, model) = start(CacheOptions { ram: 0, ..on_disk(dir.path()) }, name);
        let long = prompt(700);
        let request = GenerateRequest { boundaries: vec![300], ..GenerateRequest::greedy(&long, 4) };
        answer(engine.submit(&model, request).unwrap());
        assert_eq!(flush(&engine).failed, Vec::<String>::new(), "{name}");
        let other: Vec<u32> = long[..300].iter().copied().chain([9, 8, 7]).collect();
        assert_eq!(ask(&engine, &model, &other, 2).1, 300, "{name}");
        engine.shutdown();
    }
}

#[test]
fn requests_that_begin_alike_at_the_same_time_compute_it_once() {
    for name in ["llama-f32", "lfm2-f32"] {
        let (engine, model) = start(CacheOptions::default(), name);
        let (off, fresh) = start(CacheOptions { ram: 0, ..CacheOptions::default() }, name);
        let shared = prompt(600);
        let prompts: Vec<Vec<u32>> = (0..5u32).map(|n| [&shared[..], &[40 + n, 7, n + 3]].concat()).collect();
        let running: Vec<_> =
            prompts.iter().map(|p| engine.submit(&model, GenerateRequest::greedy(p, 5)).unwrap()).collect();
        let answers: Vec<_> = running.into_iter().map(answer).collect();
        assert_eq!(answers.iter().map(|a| a.1).collect::<Vec<_>>(), [0, 600, 600, 600, 600], "{name}");
        for (prompt, (ids, _)) in prompts.iter().zip(answers) {
            assert_eq!(ask(&off, &fresh, prompt, 5).0, ids, "{name}");
        }
        assert_eq!(engine.stats().totals.prompt_tokens, 603 + 4 * 3, "{name}");
        // The one that the others wait for goes away: one of them takes its place.
        let other = prompt(601)[1..].to_vec();
        let first = engine.submit(&model, GenerateRequest::greedy(&other, 5)).unwrap();
        let rest: Vec<_> = (0..3u32)
            .map(|n| engine.submit(&model, GenerateRequest::greedy(&[&other[..], &[n + 9]].concat(), 5)).unwrap())
            .collect();
        drop(first);
        assert!(rest.into_iter().map(answer).all(|(ids, _)| ids.len() == 5), "{name}");
        engine.shutdown();
        off.shutdown();
    }
}

#[test]
fn what_a_cancelled_request_computed_is_kept() {
    let (engine, model) = start(CacheOptions::default(), "llama-f32");
    let long = prompt(400);
    let mut generation = engine.submit(&model, GenerateRequest::greedy(&long, 100)).unwrap();
    while !matches!(generation.events.blocking_recv().unwrap(), Event::Delta(_)) {}
    drop(generation);
    eventually("the row's end", || engine.stats().rows.is_empty());
    assert_eq!(ask(&engine, &model, &long, 3).1, 399);
    engine.shutdown();
}

#[test]
fn a_restart_goes_on_from_disk() {
    for (name, kv_bits) in
        [("llama-f32", None), ("lfm2-f32", None), ("gemma3_text-q4", Some(8)), ("qwen3_5-f32", Some(4))]
    {
        let dir = tempfile::tempdir().unwrap();
        let options = CacheOptions { kv: Asked::bits(kv_bits), ..on_disk(dir.path()) };
        let (engine, model) = start(options.clone(), name);
        let mut history = prompt(600);
        let (ids, _) = ask(&engine, &model, &history, 5);
        history.extend(&ids);
        history.extend([20, 21, 22]);
        let (second, cached) = ask(&engine, &model, &history, 5);
        assert_eq!(cached, 604, "{name}");
        engine.shutdown();

        let (engine, model) = start(options.clone(), name);
        let (again, cached) = ask(&engine, &model, &history, 5);
        assert!(cached >= 602, "{name}: {cached}");
        assert_eq!(again, second, "{name}");
        assert_eq!((ssd(&engine).hits, ssd(&engine).reused_tokens, ram(&engine).hits), (1, cached as u64, 0), "{name}");
        assert_eq!(ask(&engine, &model, &history, 5).0, second, "{name}: from memory now");
        engine.shutdown();
        // Another policy for keys and values, or another model, sees nothing of it.
        let other =
            CacheOptions { kv: Asked::bits(if kv_bits == Some(8) { None } else { Some(8) }), ..options.clone() };
        if name != "llama-f32" {
            let (engine, model) = start(other, name);
            assert_eq!(ask(&engine, &model, &history, 1).1, 0, "{name}");
            engine.shutdown();
        }
        let (engine, model) = start(options, "qwen3-f32");
        assert_eq!(ask(&engine, &model, &history, 1).1, 0, "{name}");
        engine.shutdown();
    }
}

#[test]
fn idle_entries_move_to_disk_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = CacheOptions { idle: Duration::from_millis(200), ..on_disk(dir.path()) };
    let (engine, model) = start(options, "llama-f32");
    let history = prompt(300);
    let (ids, _) = ask(&engine, &model, &history, 4);
    eventually("the move", || ram(&engine).entries == 0 && ssd(&engine).files > 0);
    assert_eq!(ram(&engine).bytes, 0);
    assert_eq!(ask(&engine, &model, &history, 4), (ids, 299));
    assert_eq!(ssd(&engine).hits, 1);
    engine.shutdown();
}

#[test]
fn without_memory_everything_goes_to_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, model) = start(CacheOptions { ram: 0, ..on_disk(dir.path()) }, "qwen3_5-f32");
    let mut history = prompt(280);
    let (ids, _) = ask(&engine, &model, &history, 4);
    let report = flush(&engine);
    assert_eq!((report.entries, report.failed.len()), (1, 0), "{report:?}");
    history.extend(ids);
    history.push(9);
    assert_eq!(ask(&engine, &model, &history, 4).1, 283);
    assert_eq!(ram(&engine).entries, 0);
    engine.shutdown();
}

#[test]
fn what_has_no_room_in_memory_is_found_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    // llama-f32 keeps 1 KiB a token: room for about two of these.
    let (engine, model) = start(CacheOptions { ram: 900 << 10, ..on_disk(dir.path()) }, "llama-f32");
    let prompts: Vec<Vec<u32>> = (0..5).map(|n| [vec![10 + n], prompt(300)].concat()).collect();
    let first: Vec<_> = prompts.iter().map(|p| ask(&engine, &model, p, 3).0).collect();
    assert!(ram(&engine).evicted >= 2, "{:?}", ram(&engine));
    eventually("the spill", || ssd(&engine).files >= 6 && ssd(&engine).pending == 0);
    for (prompt, ids) in prompts.iter().zip(first) {
        assert_eq!(ask(&engine, &model, prompt, 3), (ids, 300));
    }
    assert!(ssd(&engine).hits >= 2);
    eventually("a size below the cap", || ram(&engine).bytes <= 900 << 10);
    engine.shutdown();
}

#[test]
fn without_room_for_a_copy_the_entry_moves_into_the_row() {
    let (roomy, model) = start(CacheOptions::default(), "llama-f32");
    let history = prompt(500);
    let (ids, _) = ask(&roomy, &model, &history, 4);
    roomy.shutdown();
    // One sequence fits, two do not.
    let memory = |budget| MemoryOptions {
        budget: Some(budget),
        reserve: Some(0),
        pressure: Shared(Arc::new(Told::default())),
        ..MemoryOptions::default()
    };
    let options = |budget| EngineOptions { memory: memory(budget), prefill_chunk: 16, ..EngineOptions::default() };
    let engine = Engine::start(options(1 << 30)).unwrap();
    engine.load(golden("llama-f32"), "model".into()).blocking_recv().unwrap().unwrap();
    let fits = |&kb: &u64| {
        let limits = Limits { budget: Some(kb << 10), ..Limits::default() };
        engine.preview_limits(limits).unwrap().largest_context >= 520
    };
    let budget = (1..1 << 20).find(fits).unwrap() << 10;
    engine.shutdown();
    let engine = Engine::start(options(budget)).unwrap();
    let model = engine.load(golden("llama-f32"), "model".into()).blocking_recv().unwrap().unwrap();
    assert_eq!(ask(&engine, &model, &history, 4), (ids.clone(), 0));
    assert_eq!(ask(&engine, &model, &history, 4), (ids, 499));
    eventually("its return", || (ram(&engine).moved, ram(&engine).entries) == (1, 1));
    // One that only begins alike takes nothing over.
    let alike: Vec<u32> = history[..1].iter().copied().chain((0..499).map(|n| 3 + n % 200)).collect();
    assert_eq!(ask(&engine, &model, &alike, 4).1, 0);
    assert_eq!((ram(&engine).moved, ram(&engine).evicted), (1, 1), "the entry left for want of room, whole");
    engine.shutdown();
}

#[test]
fn a_flush_makes_everything_durable_and_a_clearing_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (engine, model) = start(on_disk(dir.path()), "lfm2-f32");
    for n in 0..3 {
        ask(&engine, &model, &[vec![10 + n], prompt(270)].concat(), 3);
    }
    let report = flush(&engine);
    assert_eq!((report.entries, report.failed.len()), (3, 0), "{report:?}");
    assert!(report.bytes > 0 && ssd(&engine).files >= 9, "two blocks and a snapshot each: {:?}", ssd(&engine));
    assert_eq!(flush(&engine).bytes, 0, "what is there already is not written again");
    let cleared = wait_for(engine.clear_cache()).unwrap();
    assert_eq!(cleared.entries, 3);
    assert!(cleared.files >= 9 && cleared.file_bytes > 0, "{cleared:?}");
    assert_eq!((ssd(&engine).files, ram(&engine).entries), (0, 0));
    assert_eq!(ask(&engine, &model, &prompt(270), 1).1, 0);
    engine.shutdown();
}

#[test]
fn a_flush_says_what_stays_in_memory() {
    let (engine, model) = start(CacheOptions::default(), "llama-f32");
    ask(&engine, &model, &prompt(20), 2);
    let report = flush(&engine);
    assert!(report.failed[0].contains("1 prompts are only in memory"), "{report:?}");
    engine.shutdown();
    // A folder that cannot be one.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let (engine, model) = start(on_disk(&file), "llama-f32");
    let (ids, _) = ask(&engine, &model, &prompt(20), 2);
    let stats = ssd(&engine);
    assert_eq!(stats.state, SsdState::Failed);
    assert!(stats.message.unwrap().contains("file"));
    let report = flush(&engine);
    assert!(!report.failed.is_empty() && report.entries == 0, "{report:?}");
    assert_eq!(ask(&engine, &model, &prompt(20), 2), (ids, 19), "memory goes on");
    engine.shutdown();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}
