//! The peak of memory of one case against what was predicted for it, as one line of JSON:
//! `cargo run --release -p hearth-engine --example memory -- FOLDER TOKENS ROWS [kv8|kv4] [cache] [gpu]`.
//!
//! ROWS requests of TOKENS tokens each run at once, prompts that nothing else begins like; each goes on until the last
//! one has generated its 16. `cache` keeps what they leave in memory and runs each once more, to be found there. One case for each
//! process: peaks are those of the whole process. `cargo xtask bench memory` runs it for many.

use hearth_core::fit::memory::{Sizing, heap};
use hearth_core::kv_policy::{Asked, FROM, KvPolicy};
use hearth_core::{Backend, Event, Finish, GenerateRequest, Generation, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions};
use hearth_library::headers;
use hearth_machine::chips;
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Tokens that are generated at least.
const ANSWER: u64 = 16;
/// Room of a row that waits for the last one: more than its channel takes unread.
const STAY: u64 = 1024;
/// Prompt tokens computed at once: few enough that no device takes so long over them that it gets fewer.
const CHUNK: u64 = 256;
/// How long a row may wait for the last one: longer than any prompt takes.
const WAIT: Duration = Duration::from_secs(3600);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, tokens, rows, more @ ..] = &args[..] else {
        return Err("usage: memory FOLDER TOKENS ROWS [kv8|kv4] [cache]".into());
    };
    let (dir, tokens, rows): (PathBuf, u64, u64) = (dir.into(), tokens.parse()?, rows.parse()?);
    let asked = |what: &str| more.iter().any(|arg| arg == what);
    let kv_bits = if asked("kv8") { Some(8) } else { asked("kv4").then_some(4) };
    let kv = Asked::bits(kv_bits);
    let ram = if asked("cache") { 16 << 30 } else { 0 };
    let engine = Engine::start(EngineOptions {
        max_rows: rows as usize,
        prefill_chunk: CHUNK as usize,
        longest_pause: WAIT,
        cache: CacheOptions { ram, kv: kv.clone(), ..CacheOptions::default() },
        ..EngineOptions::default()
    })?;

    let (model, _) = headers::model(&dir)?;
    let here = chips::here();
    let kv = KvPolicy::for_model(&dir, model.shape.layers, &kv)?;
    let sizing = Sizing::new(&model, &here, &kv);
    let baseline = hearth_machine::memory().process;
    let served = engine.load(dir, "model".into()).blocking_recv()??;
    // Where others are to stay beside the last row, the model's context must not end them.
    let most = (served.context as u64).saturating_sub(if rows > 1 { STAY } else { ANSWER }).max(1);
    let prompt = tokens.saturating_sub(ANSWER).clamp(1, most);
    let loaded = (hearth_mlx::peak_memory()? as u64, hearth_mlx::active_memory()? as u64, hearth_machine::memory());

    hearth_mlx::reset_peak_memory()?;
    let watch = Watch::start();
    let mut case = Case { engine, served, seed: 7 };
    let prompts: Vec<Vec<u32>> = (0..rows).map(|_| case.prompt(prompt)).collect();
    case.together(&prompts)?;
    let first = hearth_mlx::peak_memory()? as u64;
    let mut cached = 0;
    if ram > 0 {
        cached = case.engine.stats().cache.ram.bytes;
        case.together(&prompts)?;
    }
    let process = watch.end();
    let all = prompt + ANSWER;
    let (weights, row) = (sizing.weights(), sizing.settled_row_bytes(all));
    let (kv, transient) = (row * rows, sizing.transient((prompt * rows).min(CHUNK), all));
    // The last row, before its keys and values are quantized.
    let floats = (FROM as u64).min(all);
    let begin = sizing.row_bytes(floats) + sizing.transient(CHUNK.min(prompt), floats);
    // A row that is found in the cache computes one token, beside the entry that it copied.
    let found = sizing.transient(rows, all);
    let heap = heap(here.device, rows);
    let end = transient.max(if cached > 0 { cached + found } else { 0 });
    let peak = weights + (kv + end).max(kv - row + begin);
    let stats = case.engine.stats();
    println!(
        "{}",
        json!({
            "tokens": all, "rows": rows, "kv_bits": kv_bits, "cache": ram > 0,
            "predicted": {"peak": peak, "weights": weights, "kv": kv, "transient": transient, "cache": cached,
                "allocator": sizing.terms(all).allocator_cache, "heap": heap},
            "load": {"peak": loaded.0, "active": loaded.1, "process": loaded.2.process, "process_peak": loaded.2.process_peak},
            "peak": hearth_mlx::peak_memory()?, "first_peak": first, "baseline": baseline, "process_peak": process,
            "after": {"active": hearth_mlx::active_memory()?, "process": hearth_machine::memory().process},
            "weights": stats.memory.weights,
        })
    );
    case.engine.shutdown();
    Ok(())
}

/// A model and a stream of tokens.
struct Case {
    engine: EngineHandle,
    served: Arc<ServedModel>,
    seed: u64,
}

impl Case {
    fn prompt(&mut self, tokens: u64) -> Vec<u32> {
        let known = self.served.tokenizer.vocab_size().min(self.served.vocab_size) as u64;
        let next = |_| {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.seed >> 33) % known) as u32
        };
        (0..tokens).map(next).collect()
    }

    fn together(&self, prompts: &[Vec<u32>]) -> Result<(), Box<dyn Error>> {
        let last = prompts.len().saturating_sub(1);
        let mut rows = Vec::new();
        for (number, ids) in prompts.iter().enumerate() {
            // The others stay until the last one ends: all of them are there at once then.
            let room = self.served.context - ids.len();
            let count = if number == last { ANSWER as usize } else { room };
            rows.push(self.engine.submit(&self.served, GenerateRequest::greedy(ids, count))?);
        }
        let mut rows: Vec<Generation> = rows.into_iter().collect();
        let Some(last) = rows.pop() else { return Ok(()) };
        // Whoever is not read from is paused, and stays.
        wait(last)?;
        let there = self.engine.stats().rows.len();
        if there < rows.len() {
            return Err(format!("{there} of {} rows were still there when the last one ended", rows.len()).into());
        }
        drop(rows);
        // The last row's caches go to the prompt cache after its last event.
        while !self.engine.stats().rows.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn wait(mut generation: Generation) -> Result<Finish, Box<dyn Error>> {
    loop {
        match generation.events.blocking_recv().ok_or("the stream ended early")? {
            Event::Finished(finish) => return Ok(finish),
            Event::Failed(e) => return Err(e.into()),
            _ => {}
        }
    }
}

/// The most memory that this process has from now on: the system's own mark where it can be reset, else looked at often.
struct Watch {
    over: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Watch {
    fn start() -> Self {
        // Linux: from now on the mark is that of now.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let (over, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = std::thread::spawn({
            let (over, most) = (over.clone(), most.clone());
            move || {
                while !over.load(Ordering::Relaxed) {
                    most.fetch_max(hearth_machine::memory().process, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        Watch { over, most, thread }
    }

    fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let mark = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024;
        self.most.load(Ordering::Relaxed).max(mark)
    }
}
