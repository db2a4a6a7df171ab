//! Engines with and without a prompt cache, their answers, and how two answers are compared.

use crate::script::Turn;
use hearth_core::event::{TokenInfo, Usage};
use hearth_core::kv_policy::Asked;
use hearth_core::stats::Stats;
use hearth_core::{Backend, Event, GenerateRequest, Generation, Limits, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions, MemoryOptions};
use hearth_machine::pressure::{Shared, Told};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two logits this close are a tie that rounding may break either way.
pub const NEAR: f32 = 0.01;

/// A tiny model made by `cargo xtask goldens`.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

/// An engine with its model.
pub struct Arm {
    pub engine: EngineHandle,
    pub model: Arc<ServedModel>,
}

impl Arm {
    /// With this cache and largest prefill chunk.
    pub fn start(dir: &Path, cache: CacheOptions, prefill_chunk: usize) -> Self {
        Self::start_with(dir, EngineOptions { cache, prefill_chunk, ..EngineOptions::default() })
    }

    /// With these options.
    pub fn start_with(dir: &Path, options: EngineOptions) -> Self {
        let engine = Engine::start(options).unwrap();
        let model = engine.load(dir.to_owned(), "model".into()).blocking_recv().unwrap().unwrap();
        Arm { engine, model }
    }

    /// Without a cache.
    pub fn cold(dir: &Path, kv_bits: Option<u8>) -> Self {
        Self::start(dir, CacheOptions { ram: 0, ssd: 0, kv: Asked::bits(kv_bits), ..CacheOptions::default() }, 2048)
    }

    /// Memory with room for a context of so many tokens in chunks of this size, and no more.
    pub fn tight(dir: &Path, context: u64, prefill_chunk: usize) -> MemoryOptions {
        let pressure = Shared(Arc::new(Told::default()));
        let roomy = MemoryOptions { budget: Some(1 << 30), reserve: Some(0), pressure, ..MemoryOptions::default() };
        let arm =
            Self::start_with(dir, EngineOptions { memory: roomy.clone(), prefill_chunk, ..EngineOptions::default() });
        let fits = |&mb: &u64| {
            let limits = Limits { budget: Some(mb << 16), ..Limits::default() };
            arm.engine.preview_limits(limits).unwrap().largest_context >= context
        };
        let budget = (1..1 << 14).find(fits).map(|mb| mb << 16);
        arm.engine.shutdown();
        MemoryOptions { budget, ..roomy }
    }

    /// All answers, the requests submitted at once.
    pub fn ask(&self, requests: impl Iterator<Item = GenerateRequest>) -> Vec<Answer> {
        let running: Vec<Generation> =
            requests.map(|request| self.engine.submit(&self.model, request).unwrap()).collect();
        running.into_iter().map(answer).collect()
    }

    /// Waits, for at most twenty seconds, until every request has ended and is counted.
    pub fn settled(&self) -> Stats {
        for _ in 0..4000 {
            let stats = self.engine.stats();
            let ended = stats.totals.finished + stats.totals.cancelled + stats.totals.failed;
            if stats.rows.is_empty() && stats.waiting == 0 && ended == stats.totals.requests {
                return stats;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("rows are left over: {:?}", self.engine.stats());
    }

    /// Brings everything to disk.
    pub fn flush(&self) {
        let flushed = block_on(self.engine.flush_cache()).unwrap();
        assert!(flushed.failed.is_empty(), "{flushed:?}");
    }
}

/// Waits for a future that another thread completes.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// What came back.
pub struct Answer {
    pub tokens: Vec<TokenInfo>,
    pub usage: Usage,
}

fn answer(mut generation: Generation) -> Answer {
    let (mut tokens, mut admitted) = (Vec::new(), None);
    loop {
        match generation.events.blocking_recv().expect("the stream ends with Finished or Failed") {
            Event::Admitted { cached_tokens } => admitted = Some(cached_tokens),
            Event::Prefill { .. } => {}
            Event::Delta(delta) => tokens.extend(delta.tokens),
            Event::Finished(finish) => {
                assert_eq!(finish.usage.completion_tokens, tokens.len());
                assert_eq!(admitted, Some(finish.usage.cached_tokens), "what was said at first");
                return Answer { tokens, usage: finish.usage };
            }
            Event::Failed(e) => panic!("{e}"),
        }
    }
}

/// How far an arm's answers were from the ones without a cache.
#[derive(Debug, Default)]
pub struct Differences {
    /// Steps compared.
    pub steps: usize,
    /// Of these, with two best logits nearer than [`NEAR`].
    pub near: usize,
    /// Of these, decided differently. What follows such a step is another text and is not compared.
    pub parted: usize,
    /// Log-probabilities compared, and the sum of their differences.
    pub compared: usize,
    pub sum: f64,
    /// The largest difference of a log-probability.
    pub worst: f32,
    /// The largest gap of the two best logits at a step that was decided differently.
    pub widest: f32,
}

impl Differences {
    /// Compares one answer, step by step, up to the first that was decided differently. That one has to have been as
    /// good as a tie: nothing else is tolerated. Log-probabilities may differ by `tolerance`.
    pub fn compare(&mut self, what: &str, turn: &Turn, warm: &[TokenInfo], near: f32, tolerance: f32) {
        assert_eq!(turn.cold.len(), warm.len(), "{what}: {}", turn.what);
        for (step, gap) in turn.near_ties() {
            let prompt = turn.request.prompt.len();
            println!("{what}: near tie in step {step} after a {} prompt of {prompt} tokens, {gap} apart", turn.what);
        }
        for (step, (cold, warm)) in turn.cold.iter().zip(warm).enumerate() {
            let (best, second) = (cold.top[0].1, cold.top[1].1);
            self.steps += 1;
            self.near += usize::from(best - second < NEAR);
            let place = || {
                format!(
                    "{what}: {} prompt of {} tokens, step {step}: {:?} without the cache, {:?} with it",
                    turn.what,
                    turn.request.prompt.len(),
                    cold.top,
                    warm
                )
            };
            for (id, logprob) in &warm.top {
                if let Some((_, without)) = cold.top.iter().find(|(other, _)| other == id) {
                    let difference = (logprob - without).abs();
                    self.worst = self.worst.max(difference);
                    self.sum += f64::from(difference);
                    self.compared += 1;
                    assert!(difference <= tolerance, "{} differ by {difference}", place());
                }
            }
            if cold.id != warm.id {
                let behind = cold.top.iter().find(|(id, _)| *id == warm.id).map_or(f32::INFINITY, |t| best - t.1);
                assert!(behind < near, "{}: not a tie", place());
                println!("decided differently, {behind} apart: {}", place());
                self.parted += 1;
                self.widest = self.widest.max(behind);
                return;
            }
        }
    }
}
