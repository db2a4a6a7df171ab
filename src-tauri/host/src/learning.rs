//! What a server learns about memory by itself: whenever one request ran alone, computed its whole prompt, and took MLX to
//! a new peak, that peak is put down beside what had been predicted for it.

use hearth_core::Backend;
use hearth_core::fit::learned::{Key, MemoryRun, Record};
use hearth_core::fit::memory::Sizing;
use hearth_core::kv_policy::{Asked, KvPolicy};
use hearth_core::stats::{Health, Stats};
use hearth_engine::EngineHandle;
use hearth_library::home::{Home, now};
use hearth_library::learned::{Log, key_of};
use hearth_library::{LibraryError, headers};
use hearth_machine::chips;
use std::path::Path;
use std::task::{Context, Poll, Waker};

/// A model as predictions know it.
pub struct Known {
    /// What its measurements are filed under.
    pub key: Key,
    /// The arithmetic for this machine.
    pub sizing: Sizing,
}

impl Known {
    /// The model in this folder, with its keys and values kept as asked.
    ///
    /// # Errors
    /// When its config or headers cannot be read.
    pub fn of(id: &str, dir: &Path, kv: &Asked) -> Result<Self, LibraryError> {
        let (model, _) = headers::model(dir)?;
        let kv = KvPolicy::for_model(dir, model.shape.layers, kv)?;
        let here = chips::here();
        let key = key_of(id, dir, here.device, &kv, &hearth_mlx::version())?;
        Ok(Known { key, sizing: Sizing::new(&model, &here, &kv) })
    }

    /// What is predicted for one row of `tokens` tokens, its prompt of `prompt` tokens computed in chunks of up to
    /// `chunk`, beside `others` bytes of other things: all bytes, and of these the transient.
    pub fn predict(&self, prompt: u64, tokens: u64, chunk: u64, others: u64) -> (u64, u64) {
        let transient = self.sizing.transient(prompt.min(chunk), tokens);
        (self.sizing.weights() + self.sizing.row_bytes(tokens) + others + transient, transient)
    }

    /// A record of now.
    pub fn record(&self, from: &str) -> Record {
        Record {
            at: now(),
            from: from.to_owned(),
            key: self.key.clone(),
            weights: self.sizing.weights(),
            memory: None,
            speed: None,
        }
    }
}

/// What a server has seen of the requests since it was last idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Busy {
    /// MLX's peak before.
    peak: u64,
    /// Requests and computed prompt tokens before.
    requests: u64,
    computed: u64,
    /// Bytes of the prompt cache: the least that was seen.
    cache: u64,
    /// Of the only row: its prompt, and all its tokens.
    prompt: u64,
    tokens: u64,
    /// Whether anything else went on that the prediction does not know of.
    disturbed: bool,
}

/// Looks at a server's figures, and writes down what they teach.
pub struct Learner {
    log: Log,
    chunk: u64,
    model: Option<(String, Option<Known>)>,
    /// The figures when nothing ran.
    idle: Option<Stats>,
    busy: Option<Busy>,
}

impl Learner {
    /// A learner for this home; `chunk` is the longest prefill chunk in tokens.
    pub fn new(home: &Home, chunk: u64) -> Self {
        Learner { log: Log::of(home), chunk, model: None, idle: None, busy: None }
    }

    /// Looks once. To be called several times a second.
    pub fn look(&mut self, engine: &EngineHandle, health: &Health, stats: &Stats) {
        let Health::Ready { model: id } = health else {
            (self.model, self.idle, self.busy) = (None, None, None);
            return;
        };
        if self.model.as_ref().is_none_or(|(known, _)| known != id) {
            let known = folder(engine).and_then(|dir| Known::of(id, &dir, &engine.kv_of(id)).ok());
            self.model = Some((id.clone(), known));
            (self.idle, self.busy) = (None, None);
        }
        if let Some(run) = self.step(stats)
            && let Some((_, Some(known))) = &self.model
        {
            let record = Record { memory: Some(run), ..known.record("serve") };
            if let Err(error) = self.log.append(&record) {
                tracing::warn!(%error, "what was learned about memory is not kept");
            }
        }
    }

    /// Takes note of the figures; a run that is over and taught something.
    fn step(&mut self, stats: &Stats) -> Option<MemoryRun> {
        if !stats.rows.is_empty() || stats.waiting > 0 {
            let before = self.idle.as_ref()?;
            let busy = self.busy.get_or_insert_with(|| Busy::after(before));
            busy.see(stats, self.chunk);
            return None;
        }
        let busy = self.busy.take();
        self.idle = Some(stats.clone());
        let (Some(busy), Some((_, Some(known)))) = (busy, &self.model) else { return None };
        busy.taught(stats).then(|| {
            let (predicted, predicted_transient) = known.predict(busy.prompt, busy.tokens, self.chunk, busy.cache);
            let measured = stats.memory.mlx_peak;
            MemoryRun { tokens: busy.tokens, rows: 1, predicted, predicted_transient, measured }
        })
    }
}

impl Busy {
    fn after(idle: &Stats) -> Self {
        Busy {
            peak: idle.memory.mlx_peak,
            requests: idle.totals.requests,
            computed: idle.totals.prompt_tokens,
            cache: idle.cache.ram.bytes,
            prompt: 0,
            tokens: 0,
            disturbed: false,
        }
    }

    fn see(&mut self, stats: &Stats, chunk: u64) {
        self.cache = self.cache.min(stats.cache.ram.bytes);
        // What waits for the disk is in memory too, and a guard that cuts chunks makes a smaller peak than predicted.
        let guarded = (1..chunk).contains(&(stats.memory.guard.chunk as u64));
        self.disturbed |= stats.waiting > 0 || stats.cache.ram.waiting > 0 || stats.cache.ssd.pending > 0 || guarded;
        match &stats.rows[..] {
            [row] => {
                self.prompt = self.prompt.max(row.prompt_tokens as u64);
                self.tokens = self.tokens.max((row.prompt_tokens + row.generated) as u64);
            }
            [] => {}
            _ => self.disturbed = true,
        }
    }

    /// Whether one request ran alone, computed all of its prompt, and made a new peak.
    fn taught(&self, now: &Stats) -> bool {
        !self.disturbed
            && self.prompt > 0
            && now.totals.requests == self.requests + 1
            && now.totals.prompt_tokens == self.computed + self.prompt
            && now.memory.mlx_peak > self.peak
    }
}

/// The folder of the loaded model. A loaded model is resolved at once; nothing is waited for.
fn folder(engine: &EngineHandle) -> Option<std::path::PathBuf> {
    let mut resolved = engine.resolve(None);
    match resolved.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(model)) => Some(model.path.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::RowStats;
    use std::path::PathBuf;

    fn learner() -> (tempfile::TempDir, Learner) {
        let dir = tempfile::tempdir().unwrap();
        let mut learner = Learner::new(&Home::at(dir.path()), 2048);
        let model = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/llama-q4");
        learner.model = Some(("m".into(), Some(Known::of("m", &model, &Asked::default()).unwrap())));
        (dir, learner)
    }

    fn stats(rows: &[(usize, usize)], requests: u64, computed: u64, peak: u64) -> Stats {
        let mut stats = Stats::default();
        let row = |&(prompt_tokens, generated)| RowStats { prompt_tokens, generated, ..RowStats::default() };
        stats.rows = rows.iter().map(row).collect();
        (stats.totals.requests, stats.totals.prompt_tokens, stats.memory.mlx_peak) = (requests, computed, peak);
        stats
    }

    #[test]
    fn one_request_alone_with_a_new_peak_teaches() {
        let (_dir, mut learner) = learner();
        assert_eq!(learner.step(&stats(&[(100, 1)], 1, 0, 10)), None, "it was never seen idle");
        assert_eq!(learner.step(&stats(&[], 1, 100, 10_000_000)), None);
        assert_eq!(learner.step(&stats(&[(600, 0)], 2, 100, 10_000_000)), None);
        assert_eq!(learner.step(&stats(&[(600, 9)], 2, 700, 20_000_000)), None);
        let run = learner.step(&stats(&[], 2, 700, 20_000_000)).unwrap();
        assert_eq!((run.tokens, run.rows, run.measured), (609, 1, 20_000_000));
        let known = learner.model.as_ref().and_then(|(_, known)| known.as_ref()).unwrap();
        assert_eq!((run.predicted, run.predicted_transient), known.predict(600, 609, 2048, 0));
        assert!(run.predicted > run.predicted_transient && run.predicted_transient > 0);
    }

    #[test]
    fn what_is_no_clean_measurement_does_not() {
        let runs: [(&str, Vec<Stats>); 5] = [
            ("two at once", vec![stats(&[(600, 0), (9, 0)], 2, 0, 9), stats(&[], 2, 609, 9)]),
            ("two in turn", vec![stats(&[(600, 0)], 1, 0, 9), stats(&[(9, 0)], 2, 600, 9), stats(&[], 2, 609, 9)]),
            ("a part came from the cache", vec![stats(&[(600, 0)], 1, 0, 9), stats(&[], 1, 200, 9)]),
            ("no new peak", vec![stats(&[(600, 0)], 1, 0, 5), stats(&[], 1, 600, 5)]),
            ("a guard cut the chunks", {
                let mut cut = stats(&[(600, 0)], 1, 0, 9);
                cut.memory.guard.chunk = 128;
                vec![cut, stats(&[], 1, 600, 9)]
            }),
        ];
        for (why, steps) in runs {
            let (_dir, mut learner) = learner();
            assert_eq!(learner.step(&stats(&[], 0, 0, 5)), None);
            for one in steps {
                assert_eq!(learner.step(&one), None, "{why}");
            }
        }
    }
}
