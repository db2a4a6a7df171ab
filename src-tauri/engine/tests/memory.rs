//! Memory from outside: what is refused and why, who waits and who grows, what the guard does under pressure, and limits
//! that change while rows run. Budgets are made from what the engine itself says that a context takes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use hearth_core::fit::learned::{MemoryRun, Record};
use hearth_core::fit::memory::Sizing;
use hearth_core::kv_policy::{Asked, KvPolicy};
use hearth_core::stats::{GuardLevel, LedgerStats, PressureLevel, Stats};
use hearth_core::{Backend, EngineError, Event, FinishReason, GenerateRequest, Generation, Limits, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions, MemoryOptions};
use hearth_library::headers;
use hearth_library::home::Home;
use hearth_library::learned::{Log, key_of};
use hearth_machine::chips;
use hearth_machine::pressure::{Shared, Told};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// MLX's allocator is one for all engines of a process: they take turns.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

fn told() -> (Arc<Told>, Shared) {
    let told = Arc::new(Told::default());
    (told.clone(), Shared(told))
}

/// No reserve, no pressure, no prompt cache, unless a test says so.
fn options(budget: u64) -> EngineOptions {
    EngineOptions {
        prefill_chunk: 16,
        cache: CacheOptions { ram: 0, ..CacheOptions::default() },
        memory: MemoryOptions {
            budget: Some(budget),
            budget_from: "flag".into(),
            reserve: Some(0),
            pressure: told().1,
            ..MemoryOptions::default()
        },
        ..EngineOptions::default()
    }
}

fn load(engine: &EngineHandle, name: &str) -> Result<Arc<ServedModel>, EngineError> {
    engine.load(golden(name), name.into()).blocking_recv().unwrap()
}

fn start(options: EngineOptions) -> (EngineHandle, Arc<ServedModel>) {
    let engine = Engine::start(options).unwrap();
    let model = load(&engine, "llama-f32").unwrap();
    (engine, model)
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// The least budget in which the engine's model has a context of so many tokens.
fn least(engine: &EngineHandle, context: u64) -> u64 {
    let fits = |budget| {
        let limits = Limits { budget: Some(budget), ..Limits::default() };
        engine.preview_limits(limits).unwrap().largest_context >= context
    };
    let (mut no, mut yes) = (0, 1u64 << 30);
    while no + 1 < yes {
        let middle = no + (yes - no) / 2;
        if fits(middle) { yes = middle } else { no = middle }
    }
    yes
}

/// The same for a `llama-f32`.
fn budget_for(context: u64) -> u64 {
    let (engine, _) = start(options(1 << 30));
    let budget = least(&engine, context);
    engine.shutdown();
    budget
}

fn prompt(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 7 + seed * 31) % 250 + 1).collect()
}

#[derive(Debug, Default)]
struct Answer {
    ids: Vec<u32>,
    reason: Option<FinishReason>,
    failed: Option<EngineError>,
}

fn answer(mut generation: Generation) -> Answer {
    let mut all = Answer::default();
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Delta(delta) => all.ids.extend(delta.tokens.iter().map(|t| t.id)),
            Event::Finished(finish) => all.reason = Some(finish.reason),
            Event::Failed(e) => all.failed = Some(e),
            Event::Admitted { .. } | Event::Prefill { .. } => {}
        }
    }
    all
}

fn ask(engine: &EngineHandle, model: &ServedModel, prompt: &[u32], tokens: usize) -> Answer {
    answer(engine.submit(model, GenerateRequest::greedy(prompt, tokens)).unwrap())
}

fn check(ledger: &LedgerStats) {
    let sum = ledger.weights
        + ledger.kv
        + ledger.prompt_cache
        + ledger.prefill_transient
        + ledger.allocator_cache
        + ledger.reserve;
    assert_eq!(sum, ledger.total, "{ledger:?}");
    assert!(ledger.total <= ledger.budget, "{ledger:?}");
    assert_eq!(ledger.free, ledger.budget - ledger.total);
}

fn eventually(engine: &EngineHandle, what: &str, test: impl Fn(&Stats) -> bool) -> Stats {
    for _ in 0..2000 {
        let stats = engine.stats();
        if test(&stats) {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("never happened: {what}: {:?}", engine.stats());
}

fn did(stats: &Stats, what: &str) -> bool {
    stats.memory.guard.actions.iter().any(|action| action.what == what && !action.why.is_empty())
}

/// The weights are counted; what MLX's allocator says of them is the check, for every family and every scheme.
#[test]
fn weights_are_what_the_allocator_says() {
    let _alone = alone();
    let folders = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = folders.map(|name| name.into_string().unwrap()).filter(|n| !n.contains('.')).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let engine = Engine::start(options(1 << 30)).unwrap();
        let before = engine.stats().memory.mlx_active;
        load(&engine, &name).unwrap();
        let memory = engine.stats().memory;
        let allocated = memory.mlx_active - before;
        // The rest: rotary frequencies, the padding of the logits, and the ends of arenas, which nobody touches.
        let (least, most) = (memory.weights, memory.weights + memory.weights / 8 + 4096);
        assert!((least..=most).contains(&allocated), "{name}: {allocated} of {}", memory.weights);
        engine.shutdown();
    }
}

/// What was measured above what was computed is charged for; what was below is no reason to take more.
#[test]
fn what_was_learned_raises_what_a_context_takes() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let home = Home::at(dir.path());
    let log = Log::of(&home);
    let folder = golden("llama-f32");
    let (model, _) = headers::model(&folder).unwrap();
    let kv = KvPolicy::for_model(&folder, model.shape.layers, &Asked::default()).unwrap();
    let here = chips::here();
    let weights = Sizing::new(&model, &here, &kv).weights();
    let key = key_of("llama-f32", &folder, here.device, &kv, &hearth_mlx::version()).unwrap();
    let learn = |measured| {
        let memory = MemoryRun { tokens: 512, rows: 1, predicted: 3000, predicted_transient: 1000, measured };
        let record =
            Record { at: 1, from: "serve".into(), key: key.clone(), weights, memory: Some(memory), speed: None };
        log.append(&record).unwrap();
    };
    let context_in = |budget| {
        let mut options = options(budget);
        options.memory.learned = Some(log.clone());
        let (engine, model) = start(options);
        engine.shutdown();
        model.context
    };
    let budget = budget_for(1000);
    assert_eq!(context_in(budget), 1000);
    learn(2600);
    assert_eq!(context_in(budget), 1000, "less was measured");
    learn(3500);
    let context = context_in(budget);
    assert!((256..1000).contains(&context), "half as much again was measured: {context}");
}

#[test]
fn a_model_without_room_is_refused_with_numbers_that_say_so() {
    let _alone = alone();
    let engine = Engine::start(options(1 << 30)).unwrap();
    load(&engine, "qwen3_5-f32").unwrap();
    let stats = engine.stats().memory;
    check(&stats.ledger);
    assert_eq!((stats.ledger.weights, stats.ledger.budget), (stats.weights, 1 << 30));
    assert_eq!((stats.ledger.kv, stats.ledger.prefill_transient, stats.ledger.reserve), (0, 0, 0));
    assert!(stats.ledger.baseline > 0 && stats.ledger.budget_from == "flag");
    let weights = stats.weights;
    // The other model has no room: the one that is there stays and answers.
    let budget = least(&engine, 256);
    wait_for(engine.set_limits(Limits { budget: Some(budget), ..Limits::default() })).unwrap();
    let refusal = load(&engine, "llama-f32").unwrap_err();
    let EngineError::ModelTooLarge { needed, weights: theirs, reserve, budget: told, .. } = refusal else {
        panic!("{refusal}")
    };
    assert!(needed > budget && told == budget && theirs + reserve < needed, "{refusal}");
    let model = wait_for(engine.resolve(None)).unwrap();
    assert_eq!((model.id.as_str(), ask(&engine, &model, &[1, 2, 3], 4).ids.len()), ("qwen3_5-f32", 4));
    // Case 32: what it holds counts as free for the one that comes in its place.
    wait_for(engine.set_limits(Limits { budget: Some(needed), ..Limits::default() })).unwrap();
    let other = load(&engine, "llama-f32").unwrap();
    assert_eq!(ask(&engine, &other, &[1, 2, 3], 4).ids.len(), 4);
    check(&engine.stats().memory.ledger);
    engine.shutdown();

    let engine = Engine::start(options(weights)).unwrap();
    let refusal = load(&engine, "qwen3_5-f32").unwrap_err();
    assert!(matches!(refusal, EngineError::ModelTooLarge { .. }), "{refusal}");
    assert!(refusal.to_string().contains("--memory-budget"), "{refusal}");
    assert_eq!(engine.stats().memory.ledger.weights, 0);
    engine.shutdown();
}

#[test]
fn case_31_a_large_max_tokens_costs_nothing_before_it_is_used() {
    let _alone = alone();
    let budget = budget_for(600);
    let (engine, model) = start(options(budget));
    assert_eq!(model.context, 600, "the context is what the budget has room for");
    assert_eq!(engine.stats().memory.ledger.largest_context, 600);
    assert_eq!(engine.stats().model.unwrap().context, 600);
    let all = ask(&engine, &model, &prompt(1, 30), 100_000);
    assert_eq!((all.ids.len(), all.reason, all.failed), (570, Some(FinishReason::Length), None));
    check(&engine.stats().memory.ledger);
    // The numbers of a refusal imply it.
    let refusal = engine.submit(&model, GenerateRequest::greedy(&prompt(1, 700), 1)).unwrap_err();
    let EngineError::PromptBeyondMemory { prompt: told, limit, needed, budget: of } = refusal else {
        panic!("{refusal}")
    };
    assert!((told, limit, of) == (700, 600, budget) && needed > budget, "{refusal}");
    assert!(engine.submit(&model, GenerateRequest::greedy(&prompt(1, 600), 1)).is_err());
    assert_eq!(ask(&engine, &model, &prompt(1, 599), 5).ids.len(), 1);
    engine.shutdown();
    // A limit that was set by hand is the model's, and no matter of memory.
    let (engine, model) = start(EngineOptions { context: Some(100), ..options(budget) });
    assert_eq!(
        engine.submit(&model, GenerateRequest::greedy(&prompt(1, 100), 1)).unwrap_err(),
        EngineError::ContextLengthExceeded { prompt: 100, limit: 100 }
    );
    engine.shutdown();
}

#[test]
fn those_without_room_wait_their_turn() {
    let _alone = alone();
    let (engine, model) = start(options(budget_for(600)));
    let generations: Vec<Generation> =
        (0..6).map(|n| engine.submit(&model, GenerateRequest::greedy(&prompt(n, 400), 60)).unwrap()).collect();
    eventually(&engine, "the end of all", |stats| {
        check(&stats.memory.ledger);
        assert!(stats.rows.len() <= 2, "six of 460 tokens where one of 600 fits: {stats:?}");
        stats.totals.finished == 6
    });
    for generation in generations {
        assert_eq!(answer(generation).ids.len(), 60);
    }
    engine.shutdown();
}

#[test]
fn rows_that_cannot_grow_wait_and_nobody_is_cut_short() {
    let _alone = alone();
    let (roomy, model) = start(options(1 << 30));
    let wanted: Vec<Vec<u32>> = (0..4).map(|n| ask(&roomy, &model, &prompt(n, 40), 420).ids).collect();
    roomy.shutdown();
    for ram in [0, 1 << 20] {
        let cache = CacheOptions { ram, ..CacheOptions::default() };
        let (engine, model) = start(EngineOptions { cache, ..options(budget_for(700)) });
        let generations: Vec<Generation> =
            (0..4).map(|n| engine.submit(&model, GenerateRequest::greedy(&prompt(n, 40), 420)).unwrap()).collect();
        // Whoever does not read pauses his row.
        let readers: Vec<_> = generations.into_iter().map(|g| std::thread::spawn(|| answer(g))).collect();
        let stats = eventually(&engine, "the end of all", |stats| {
            check(&stats.memory.ledger);
            stats.totals.finished == 4
        });
        assert!(did(&stats, "park_row"), "four rows of 460 tokens where one of 700 fits: {:?}", stats.memory.guard);
        for (reader, wanted) in readers.into_iter().zip(&wanted) {
            let all = reader.join().unwrap();
            assert_eq!((&all.ids, all.reason), (wanted, Some(FinishReason::Length)));
        }
        let stats = eventually(&engine, "an empty ledger", |stats| stats.memory.ledger.kv == 0);
        check(&stats.memory.ledger);
        engine.shutdown();
    }
}

#[test]
fn pressure_shrinks_trims_demotes_and_stops() {
    let _alone = alone();
    let (told, source) = told();
    let memory = MemoryOptions {
        budget: Some(1 << 30),
        reserve: Some(0),
        pressure: source,
        longest_stall: Duration::from_millis(200),
        ..MemoryOptions::default()
    };
    let cache = CacheOptions { ram: 1 << 28, ..CacheOptions::default() };
    let (engine, model) = start(EngineOptions { memory, cache, prefill_chunk: 2048, ..options(0) });
    let ids = ask(&engine, &model, &prompt(1, 400), 3).ids;
    let before = eventually(&engine, "an entry", |stats| stats.cache.ram.entries == 1);
    assert_eq!((before.memory.guard.level, before.memory.guard.chunk), (GuardLevel::Normal, 2048));
    told.tell(PressureLevel::Warning, None);
    let stats = eventually(&engine, "the warning", |stats| {
        stats.memory.guard.level == GuardLevel::Soft && stats.memory.guard.chunk == 512
    });
    assert!(stats.memory.guard.admitting && stats.memory.guard.pressure == PressureLevel::Warning);
    let stats = eventually(&engine, "the demotion", |stats| stats.cache.ram.entries == 0);
    assert!(did(&stats, "demote") && did(&stats, "shrink_chunk"), "{:?}", stats.memory.guard);
    assert_eq!(ask(&engine, &model, &prompt(1, 400), 3).ids, ids, "it goes on answering");
    told.tell(PressureLevel::Critical, None);
    eventually(&engine, "the stop", |stats| !stats.memory.guard.admitting && stats.memory.guard.chunk == 128);
    let refused = ask(&engine, &model, &prompt(2, 50), 3);
    let Some(EngineError::InsufficientMemory { needed, free, budget, retry_after_s }) = refused.failed else {
        panic!("{refused:?}")
    };
    assert!(needed > free && budget == 1 << 30 && retry_after_s > 0, "{needed} {free}");
    // One that is there when it is over gets its row.
    let waits = engine.submit(&model, GenerateRequest::greedy(&prompt(2, 50), 3)).unwrap();
    told.tell(PressureLevel::Normal, None);
    assert_eq!(answer(waits).ids.len(), 3);
    let stats = eventually(&engine, "the end of it", |stats| {
        stats.memory.guard.level == GuardLevel::Normal && stats.memory.guard.chunk == 2048
    });
    assert!(did(&stats, "resume") && did(&stats, "restore_chunk"), "{:?}", stats.memory.guard);
    engine.shutdown();
}

#[test]
fn what_the_system_has_left_counts() {
    let _alone = alone();
    let (told, source) = told();
    told.tell(PressureLevel::Normal, Some(1 << 20));
    let memory = MemoryOptions { pressure: source, longest_stall: Duration::from_secs(2), ..options(1 << 30).memory };
    let (engine, model) = start(EngineOptions { memory, ..options(0) });
    let refused = ask(&engine, &model, &prompt(2, 50), 3);
    let Some(EngineError::InsufficientMemory { needed, free, .. }) = refused.failed else { panic!("{refused:?}") };
    assert!(needed > free, "{needed} {free}");
    // The next one has the same patience, and is answered if there is memory by then.
    let waits = engine.submit(&model, GenerateRequest::greedy(&prompt(3, 50), 3)).unwrap();
    eventually(&engine, "the next one waits", |stats| stats.waiting == 1);
    told.tell(PressureLevel::Normal, Some(1 << 32));
    assert_eq!(answer(waits).ids.len(), 3);
    assert_eq!(ask(&engine, &model, &prompt(2, 50), 3).ids.len(), 3);
    engine.shutdown();
}

#[test]
fn the_prompt_cache_gives_way_to_rows() {
    let _alone = alone();
    let cache = CacheOptions { ram: 1 << 30, ..CacheOptions::default() };
    let (engine, model) = start(EngineOptions { cache, ..options(budget_for(900)) });
    for n in 0..8 {
        assert_eq!(ask(&engine, &model, &prompt(n, 500), 30).ids.len(), 30);
        check(&engine.stats().memory.ledger);
    }
    let stats = engine.stats();
    assert!(stats.cache.ram.evicted > 0 && stats.cache.ram.entries < 8, "{:?}", stats.cache.ram);
    engine.shutdown();
}

#[test]
fn what_goes_to_disk_has_room_beside_what_it_is_a_copy_of() {
    let _alone = alone();
    // Where nothing is on its way to disk, one block goes in any case.
    const BLOCK: u64 = 32 << 10;
    let dir = TempDir::new().unwrap();
    let cache =
        CacheOptions { ram: 1 << 30, ssd: 1 << 30, dir: Some(dir.path().to_owned()), ..CacheOptions::default() };
    let (engine, model) = start(EngineOptions { cache, ..options(budget_for(2700)) });
    let asking: Vec<_> = (0..4)
        .map(|client| {
            let (engine, model) = (engine.clone(), model.clone());
            std::thread::spawn(move || {
                (0..2).map(|n| ask(&engine, &model, &prompt(2 * client + n, 1000), 30)).collect::<Vec<_>>()
            })
        })
        .collect();
    let stats = eventually(&engine, "the end of all", |stats| {
        let ledger = &stats.memory.ledger;
        assert!(ledger.total <= ledger.budget + BLOCK, "{ledger:?}");
        stats.totals.finished == 8
    });
    assert!(stats.cache.ram.evicted > 0, "{:?}", stats.cache.ram);
    for answers in asking {
        assert!(answers.join().unwrap().iter().all(|answer| answer.ids.len() == 30));
    }
    eventually(&engine, "the disk has it", |stats| stats.cache.ssd.files > 0 && stats.cache.ssd.pending == 0);
    engine.shutdown();
}

#[test]
fn limits_change_while_it_runs() {
    let _alone = alone();
    let cache = CacheOptions { ram: 1 << 28, ..CacheOptions::default() };
    let (engine, model) = start(EngineOptions { cache, ..options(1 << 30) });
    let own = model.context;
    for n in 0..3 {
        ask(&engine, &model, &prompt(n, 200), 2);
    }
    let entries = eventually(&engine, "entries", |stats| stats.cache.ram.entries == 3).cache.ram.bytes;
    let least = least(&engine, 256);
    let limits = |budget| Limits { budget: Some(budget), ..Limits::default() };
    let preview = engine.preview_limits(Limits { cache_ram: Some(0), ..limits(least - 1) }).unwrap();
    assert_eq!((preview.fits, preview.short_by, preview.demoted_entries), (false, 1, 3));
    assert_eq!(preview.demoted_bytes, entries);
    let refusal = wait_for(engine.set_limits(limits(least - 1))).unwrap_err();
    assert!(matches!(&refusal, EngineError::InvalidRequest { param, .. } if param == "budget"), "{refusal}");
    assert_eq!(engine.limits().budget, Some(1 << 30), "nothing was changed");
    assert_eq!(engine.stats().cache.ram.entries, 3);
    let all = wait_for(engine.set_limits(Limits { cache_ram: Some(0), max_rows: Some(2), ..limits(least) })).unwrap();
    assert_eq!((all.budget, all.cache_ram, all.max_rows, all.context), (Some(least), Some(0), Some(2), Some(256)));
    let stats = engine.stats();
    assert_eq!((stats.cache.ram.entries, stats.cache.ram.cap, stats.max_rows), (0, 0, 2));
    assert_eq!((stats.memory.ledger.budget, &*stats.memory.ledger.budget_from), (least, "api"));
    let model = wait_for(engine.resolve(None)).unwrap();
    assert_eq!(model.context, 256);
    assert_eq!(ask(&engine, &model, &prompt(1, 20), 10_000).ids.len(), 236);
    // By hand, and back to what the budget has room for.
    let context = |n| Limits { context: Some(n), ..Limits::default() };
    assert_eq!(wait_for(engine.set_limits(context(100))).unwrap().context, Some(100));
    assert_eq!(wait_for(engine.set_limits(limits(1 << 30))).unwrap().context, Some(100));
    assert_eq!(wait_for(engine.set_limits(context(0))).unwrap().context, Some(own));
    for wrong in [
        Limits { max_rows: Some(0), ..Limits::default() },
        Limits { max_rows: Some(257), ..Limits::default() },
        Limits { cache_ssd: Some(5), ..Limits::default() },
        context(1),
        limits(hearth_machine::memory().total + 1),
    ] {
        let refusal = wait_for(engine.set_limits(wrong)).unwrap_err();
        assert!(matches!(refusal, EngineError::InvalidRequest { .. }), "{wrong:?}: {refusal}");
        assert_eq!(engine.preview_limits(wrong), Err(refusal), "a preview says the same");
    }
    engine.shutdown();
}

#[test]
fn a_budget_that_shrinks_parks_rows_and_loses_none() {
    let _alone = alone();
    let (engine, model) = start(options(1 << 30));
    let generations: Vec<Generation> =
        (0..4).map(|n| engine.submit(&model, GenerateRequest::greedy(&prompt(n, 40), 500)).unwrap()).collect();
    eventually(&engine, "rows", |stats| stats.rows.len() == 4);
    wait_for(engine.set_limits(Limits { budget: Some(budget_for(700)), ..Limits::default() })).unwrap();
    for generation in generations {
        let all = answer(generation);
        assert_eq!((all.ids.len(), all.failed), (500, None));
    }
    check(&eventually(&engine, "an empty ledger", |stats| stats.memory.ledger.kv == 0).memory.ledger);
    engine.shutdown();
}

#[test]
fn requests_are_ended_by_their_number() {
    let _alone = alone();
    let (engine, model) = start(EngineOptions { max_rows: 1, ..options(1 << 30) });
    let runs = engine.submit(&model, GenerateRequest::greedy(&prompt(1, 20), 100_000)).unwrap();
    let waits = engine.submit(&model, GenerateRequest::greedy(&prompt(2, 20), 100_000)).unwrap();
    eventually(&engine, "a row", |stats| stats.rows.len() == 1 && stats.waiting == 1);
    assert!(!engine.cancel(waits.id + 1));
    for generation in [waits, runs] {
        assert!(engine.cancel(generation.id));
        assert_eq!(answer(generation).failed, Some(EngineError::Cancelled));
    }
    let stats = eventually(&engine, "nothing", |stats| stats.rows.is_empty() && stats.waiting == 0);
    assert_eq!((stats.totals.cancelled, stats.memory.ledger.kv), (2, 0));
    assert_eq!(ask(&engine, &model, &prompt(3, 20), 5).ids.len(), 5);
    engine.shutdown();
}
