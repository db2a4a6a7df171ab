//! Times the engine alone on a model folder:
//! `cargo run --release -p hearth-engine --example speed -- FOLDER [TOKENS [ROWS [PROMPT [REPEATS]]]]`.
//!
//! With a number of rows: that many prompts of PROMPT tokens at once, again and again, and the best and the median
//! step. Without: a little of everything.

use hearth_core::{Backend, Event, Finish, GenerateRequest, Generation, ServedModel};
use hearth_engine::{Engine, EngineHandle, EngineOptions};
use std::error::Error;
use std::time::Instant;

/// The engine and its model.
struct Bench {
    engine: EngineHandle,
    model: std::sync::Arc<ServedModel>,
    tokens: usize,
}

impl Bench {
    fn submit(&self, prompt: usize, seed: u32) -> Result<Generation, Box<dyn Error>> {
        let vocab = self.model.vocab_size as u32;
        let ids: Vec<u32> = (0..prompt as u32).map(|i| (i * 37 + seed * 101 + 5) % vocab).collect();
        Ok(self.engine.submit(&self.model, GenerateRequest::greedy(&ids, self.tokens))?)
    }

    /// These prompts at once: the seconds to each row's end, and how the last one ended.
    fn together(&self, rows: usize, prompt: usize, seed: u32) -> Result<(f64, Finish), Box<dyn Error>> {
        let at = Instant::now();
        let rows = (0..rows as u32).map(|i| self.submit(prompt, seed + i)).collect::<Result<Vec<_>, _>>()?;
        let mut last = None;
        for row in rows {
            last = Some(wait(row)?);
        }
        Ok((at.elapsed().as_secs_f64(), last.ok_or("no rows")?))
    }

    /// `rows` prompts at once, `repeats` times.
    fn repeat(&self, rows: usize, prompt: usize, repeats: usize) -> Result<(), Box<dyn Error>> {
        let (mut steps, mut totals) = (Vec::new(), Vec::new());
        for i in 0..=repeats {
            let (seconds, finish) = self.together(rows, prompt, 8 * i as u32)?;
            if i > 0 {
                steps.push(1e3 / finish.timings.decode_tps(&finish.usage));
                totals.push((rows * self.tokens) as f64 / seconds);
            }
        }
        steps.sort_by(f64::total_cmp);
        totals.sort_by(f64::total_cmp);
        println!(
            "{rows} rows: step best {:.2} ms, median {:.2} ms; in all best {:.1} tok/s, median {:.1} tok/s",
            steps[0],
            steps[steps.len() / 2],
            totals[totals.len() - 1],
            totals[totals.len() / 2],
        );
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

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.first().ok_or("usage: speed FOLDER [TOKENS [ROWS [PROMPT [REPEATS]]]]")?;
    let number = |i: usize, or: usize| args.get(i).map_or(Ok(or), |text| text.parse());
    let tokens = number(1, 64)?;
    let started = Instant::now();
    let engine = Engine::start(EngineOptions::default())?;
    let model = engine.load(dir.into(), "model".into()).blocking_recv()??;
    let memory = hearth_machine::memory();
    println!(
        "load {:.2} s, RSS {:.0} MB, peak {:.0} MB",
        started.elapsed().as_secs_f64(),
        memory.process as f64 / 1e6,
        memory.process_peak as f64 / 1e6
    );
    let bench = Bench { engine, model, tokens };
    if args.len() > 2 {
        bench.repeat(number(2, 1)?, number(3, 32)?, number(4, 5)?)?;
    } else {
        bench.together(1, 5, 0)?;
        for prompt in [5, 62, 512] {
            let (_, f) = bench.together(1, prompt, 1)?;
            let (prefill, decode) = (f.timings.prefill_tps(&f.usage), f.timings.decode_tps(&f.usage));
            println!(
                "prompt {prompt}: first token {:.0} ms, prefill {prefill:.1} tok/s, decode {decode:.2} tok/s",
                f.timings.prefill_s * 1e3
            );
        }
        let (seconds, _) = bench.together(8, 32, 1)?;
        println!("8 at once: {:.1} tok/s in all", (8 * tokens) as f64 / seconds);
    }
    println!("peak RSS {:.0} MB", hearth_machine::memory().process_peak as f64 / 1e6);
    bench.engine.shutdown();
    Ok(())
}
