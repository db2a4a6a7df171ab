//! Several models in one engine: turns, names, who leaves memory for whom, and who waits. Budgets are made from what the
//! engine itself says that its models take.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use hearth_core::stats::{Health, Stats};
use hearth_core::{Backend, EngineError, Event, GenerateRequest, Generation, Limits, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions, MemoryOptions, Serving};
use hearth_library::scan::{Place, Places};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot::error::TryRecvError;

const A: &str = "llama-f32";
const B: &str = "qwen3-f32";
const C: &str = "llama_swa-f32";

/// MLX's allocator is one for all engines of a process: they take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

fn options(budget: u64) -> EngineOptions {
    EngineOptions {
        prefill_chunk: 16,
        cache: CacheOptions { ram: 0, ..CacheOptions::default() },
        memory: MemoryOptions { budget: Some(budget), reserve: Some(0), ..MemoryOptions::default() },
        ..EngineOptions::default()
    }
}

fn engine(options: EngineOptions) -> EngineHandle {
    Engine::start(options).unwrap()
}

fn load(engine: &EngineHandle, name: &str) -> Result<Arc<ServedModel>, EngineError> {
    engine.load(goldens().join(name), name.into()).blocking_recv().unwrap()
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn prompt(of: u32) -> Vec<u32> {
    (of..of + 24).collect()
}

fn ask(engine: &EngineHandle, model: &ServedModel, of: u32, tokens: usize) -> Generation {
    engine.submit(model, GenerateRequest::greedy(&prompt(of), tokens)).unwrap()
}

fn ids(mut generation: Generation) -> Vec<u32> {
    let mut ids = Vec::new();
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Delta(delta) => ids.extend(delta.tokens.iter().map(|token| token.id)),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    ids
}

fn loaded(engine: &EngineHandle) -> Vec<String> {
    let mut ids: Vec<String> = engine.stats().models.into_iter().map(|model| model.id).collect();
    ids.sort();
    ids
}

/// Waits, for at most ten seconds, until the figures are as they should be.
fn until(engine: &EngineHandle, what: &str, so: impl Fn(&Stats) -> bool) {
    for _ in 0..2000 {
        if so(&engine.stats()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("not {what}: {:?}", engine.stats());
}

/// What a model takes: with a context of 256 tokens, and its weights alone.
#[derive(Clone, Copy)]
struct Takes {
    whole: u64,
    weights: u64,
}

fn takes(name: &str) -> Takes {
    let engine = engine(options(1 << 30));
    load(&engine, name).unwrap();
    let fits = |budget| {
        let limits = Limits { budget: Some(budget), ..Limits::default() };
        engine.preview_limits(limits).unwrap().largest_context >= 256
    };
    let (mut no, mut whole) = (0, 1u64 << 30);
    while no + 1 < whole {
        let middle = no + (whole - no) / 2;
        if fits(middle) { whole = middle } else { no = middle }
    }
    let weights = engine.stats().models[0].weights;
    engine.shutdown();
    Takes { whole, weights }
}

/// A budget for any two of the three, and not for all.
fn budget_for_two() -> u64 {
    let all = [A, B, C].map(takes);
    let most = |f: fn(&Takes) -> u64| all.iter().map(f).max().unwrap();
    let budget = most(|t| t.whole) + most(|t| t.weights);
    let (whole, weights) = (all.iter().map(|t| t.whole).min().unwrap(), all.map(|t| t.weights));
    assert!(whole + weights.iter().sum::<u64>() - most(|t| t.weights) > budget, "three would fit");
    budget
}

/// A budget for any one of A and B, and not for both.
fn budget_for_one() -> u64 {
    let (a, b) = (takes(A), takes(B));
    let budget = a.whole.max(b.whole);
    assert!(budget < a.weights + b.whole && budget < b.weights + a.whole, "two would fit");
    budget
}

#[test]
fn two_models_take_turns_and_say_what_each_says_alone() {
    let _alone = alone();
    let expected: Vec<Vec<u32>> = [A, B]
        .map(|name| {
            let engine = engine(options(1 << 30));
            let model = load(&engine, name).unwrap();
            let answer = ids(ask(&engine, &model, 10, 60));
            engine.shutdown();
            answer
        })
        .into();
    let engine = engine(options(1 << 30));
    let (a, b) = (load(&engine, A).unwrap(), load(&engine, B).unwrap());
    assert_eq!(loaded(&engine), [A, B]);
    let rows: Vec<_> = (0..6).map(|n| ask(&engine, if n % 2 == 0 { &a } else { &b }, 10, 60)).collect();
    for (n, row) in rows.into_iter().enumerate() {
        assert_eq!(ids(row), expected[n % 2], "row {n}");
    }
    // A short answer of one does not wait for a long one of the other, whichever of them that is.
    for (first, second) in [(&a, &b), (&b, &a)] {
        let mut long = ask(&engine, first, 10, 3000);
        while !matches!(long.events.blocking_recv().unwrap(), Event::Delta(_)) {}
        assert_eq!(ids(ask(&engine, second, 10, 8)).len(), 8);
        let stats = engine.stats();
        assert!(stats.rows.iter().any(|row| row.model == first.id), "{stats:?}");
        assert!(engine.cancel(long.id));
    }
    until(&engine, "idle", |stats| stats.rows.is_empty());
    let ledger = engine.stats().memory.ledger;
    let weights: u64 = engine.stats().models.iter().map(|model| model.weights).sum();
    assert_eq!((ledger.weights, ledger.kv), (weights, 0));
    engine.shutdown();
}

#[test]
fn what_was_used_least_recently_leaves_and_what_is_pinned_stays() {
    let _alone = alone();
    let budget = budget_for_two();
    let engine = engine(options(budget));
    let a = load(&engine, A).unwrap();
    load(&engine, B).unwrap();
    assert_eq!(ids(ask(&engine, &a, 5, 4)).len(), 4);
    load(&engine, C).unwrap();
    assert_eq!(loaded(&engine), [A, C]);
    let stats = engine.stats();
    assert!(stats.memory.ledger.total <= budget, "{:?}", stats.memory.ledger);
    assert!(stats.memory.guard.actions.iter().any(|action| action.what == "unload" && action.why.contains(B)));
    // The other way round with a pin: A was used before C, and stays.
    engine.pin_model(A, true);
    load(&engine, B).unwrap();
    assert_eq!(loaded(&engine), [A, B]);
    // With everything pinned there is no room, and the refusal's numbers say so.
    engine.pin_model(B, true);
    let refused = load(&engine, C).unwrap_err();
    match refused {
        EngineError::BehindPinned { needed, free, budget: told, ref pinned, .. } => {
            assert!(needed > free && told == budget, "{refused}");
            assert!(pinned.len() == 2 && [A, B].iter().all(|id| pinned.iter().any(|p| p == id)), "{refused}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(loaded(&engine), [A, B]);
    engine.pin_model(A, false);
    load(&engine, C).unwrap();
    assert_eq!(loaded(&engine), [C, B]);
    engine.shutdown();
}

#[test]
fn one_in_place_of_another_has_its_memory() {
    let _alone = alone();
    let budget = budget_for_one();
    let engine = engine(options(budget));
    // Other parts of the process have a few arrays too.
    let before = engine.stats().memory.mlx_active;
    for name in [A, B, A, B] {
        load(&engine, name).unwrap();
        let stats = engine.stats();
        assert_eq!(loaded(&engine), [name]);
        assert_eq!(stats.memory.ledger.weights, stats.models[0].weights);
        assert!(stats.memory.ledger.total <= budget, "{:?}", stats.memory.ledger);
        // Measured: what MLX holds is the one model, and not a part of the other one.
        let active = stats.memory.mlx_active - before;
        assert!(active < stats.models[0].weights * 5 / 4, "{active} of {}", stats.models[0].weights);
    }
    engine.shutdown();
}

#[test]
fn a_busy_model_stays_and_whoever_came_late_waits() {
    let _alone = alone();
    let engine = engine(options(budget_for_one()));
    let a = load(&engine, A).unwrap();
    let mut long = ask(&engine, &a, 10, 200);
    while !matches!(long.events.blocking_recv().unwrap(), Event::Delta(_)) {}
    match wait_for(engine.unload_model(A)) {
        Err(EngineError::ModelBusy { model, requests }) => assert_eq!((model.as_str(), requests), (A, 1)),
        other => panic!("{other:?}"),
    }
    let mut b = engine.load(goldens().join(B), B.into());
    // A request for A that comes after somebody asked for B does not go before B.
    let late = ask(&engine, &a, 10, 6);
    assert_eq!(b.try_recv().unwrap_err(), TryRecvError::Empty);
    assert_eq!(loaded(&engine), [A]);
    assert!(ids(long).len() > 150, "it was not cut short");
    let b = b.blocking_recv().unwrap().unwrap();
    let of_b = ask(&engine, &b, 10, 6);
    assert_eq!((ids(of_b).len(), ids(late).len()), (6, 6), "both are answered, with a load each");
    until(&engine, "idle", |stats| stats.rows.is_empty() && stats.waiting == 0);
    assert_eq!(loaded(&engine).len(), 1);
    engine.shutdown();
}

#[test]
fn a_model_that_cannot_be_loaded_costs_nobody_anything() {
    let _alone = alone();
    let engine = engine(options(1 << 30));
    let at_first = engine.stats().memory.mlx_active;
    let a = load(&engine, A).unwrap();
    let before = ids(ask(&engine, &a, 10, 8));
    let nowhere = engine.load("/nowhere".into(), "x".into()).blocking_recv().unwrap().unwrap_err();
    assert!(nowhere.to_string().contains("/nowhere"), "{nowhere}");
    assert_eq!(engine.health(), Health::Ready { model: A.into() });
    assert_eq!(ids(ask(&engine, &a, 10, 8)), before);
    let freed = wait_for(engine.unload_model(A)).unwrap().freed;
    assert_eq!(freed, engine.stats().memory.guard.actions.last().unwrap().freed);
    assert_eq!((engine.health(), loaded(&engine).len()), (Health::Empty, 0));
    let left = engine.stats().memory.mlx_active;
    assert!(left < at_first + freed / 4, "{left} are left, {at_first} before, {freed} freed");
    // Who resolved it before it left is answered all the same.
    assert_eq!(ids(ask(&engine, &a, 10, 8)), before);
    engine.shutdown();
}

#[test]
fn who_is_not_used_leaves_after_its_time() {
    let _alone = alone();
    let serving = Serving { ttl: Some(Duration::from_millis(50)), ..Serving::default() };
    let engine = engine(EngineOptions { serving, ..options(1 << 30) });
    let (a, b) = (load(&engine, A).unwrap(), load(&engine, B).unwrap());
    engine.keep_alive(&a, None);
    engine.pin_model(C, true);
    load(&engine, C).unwrap();
    until(&engine, "without B", |stats| !stats.models.iter().any(|model| model.id == B));
    assert_eq!(loaded(&engine), [A, C], "one is to stay for ever, one is pinned");
    // No time at all: it leaves when it has answered.
    engine.keep_alive(&a, Some(Duration::ZERO));
    assert_eq!(ids(ask(&engine, &b, 10, 4)).len(), 4);
    until(&engine, "without A", |stats| !stats.models.iter().any(|model| model.id == A));
    engine.shutdown();
}

#[test]
fn names_find_models_and_many_wait_for_one_load() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    for name in [A, B, C] {
        let to = dir.path().join(name);
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(goldens().join(name)).unwrap() {
            let file = file.unwrap().path();
            std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    let places = Places::of(vec![Place::Folder(dir.path().to_owned())]);
    let aliases = BTreeMap::from([("gpt-4o".to_owned(), B.to_owned())]);
    let serving = Serving { places: Some(places), aliases, ..Serving::default() };
    let engine = engine(EngineOptions { serving, ..options(1 << 30) });
    let find = |name: &str| wait_for(engine.resolve(Some(name)));
    let not_found = |name: &str| match find(name) {
        Err(EngineError::ModelNotFound { available, .. }) => available,
        Err(EngineError::ModelAmbiguous { candidates, .. }) => candidates,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(not_found("mistral-large"), [A, C, B]);
    assert_eq!(not_found("LLAMA"), [A, C], "more than one");
    assert!(matches!(wait_for(engine.resolve(None)), Err(EngineError::ModelNotFound { .. })));
    let twenty = (0..20).map(|_| {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let model = wait_for(engine.resolve(Some("gpt-4o"))).unwrap();
            ids(ask(&engine, &model, 10, 5))
        })
    });
    let answers: Vec<Vec<u32>> = twenty.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(answers.iter().all(|answer| answer.len() == 5 && *answer == answers[0]));
    assert_eq!(loaded(&engine), [B]);
    assert_eq!(find("swa").unwrap().id, C, "a part that fits one only");
    assert_eq!(find("LLAMA-F32").unwrap().id, A);
    assert_eq!(wait_for(engine.resolve(None)).unwrap().id, A, "the one that was used last");
    let cards = wait_for(engine.models());
    assert!(cards.iter().all(|card| card.loaded && card.state == "loaded") && cards.len() == 3, "{cards:?}");
    assert_eq!(wait_for(engine.unload_model("qwen3")).unwrap().id, B, "a part that fits one in memory");
    let cards = wait_for(engine.models());
    let b = cards.iter().find(|card| card.id == B).unwrap();
    assert_eq!((b.loaded, b.state, cards.len()), (false, "on_disk", 3));
    engine.shutdown();
}
