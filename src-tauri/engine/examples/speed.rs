//! Times the engine alone on a model folder: `cargo run --release -p hearth-engine --example speed -- FOLDER [TOKENS]`.

use hearth_core::{Backend, Event, Finish, GenerateRequest};
use hearth_engine::{Engine, EngineOptions};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: speed FOLDER [TOKENS]")?;
    let tokens: usize = args.next().map_or(Ok(64), |t| t.parse())?;
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
    let submit = |prompt: usize, seed: u32| {
        let ids: Vec<u32> = (0..prompt as u32).map(|i| (i * 37 + seed * 101 + 5) % model.vocab_size as u32).collect();
        engine.submit(&model, GenerateRequest::greedy(&ids, tokens))
    };
    let wait = |mut g: hearth_core::Generation| -> Result<Finish, Box<dyn std::error::Error>> {
        loop {
            match g.events.blocking_recv().ok_or("the stream ended early")? {
                Event::Finished(finish) => return Ok(finish),
                Event::Failed(e) => return Err(e.into()),
                _ => {}
            }
        }
    };
    wait(submit(5, 0)?)?;
    for prompt in [5, 62, 512] {
        let f = wait(submit(prompt, 1)?)?;
        let (prefill, decode) = (f.timings.prefill_tps(&f.usage), f.timings.decode_tps(&f.usage));
        println!(
            "prompt {prompt}: first token {:.0} ms, prefill {prefill:.1} tok/s, decode {decode:.2} tok/s",
            f.timings.prefill_s * 1e3
        );
    }
    let at = Instant::now();
    let rows = (0..8).map(|i| submit(32, i)).collect::<Result<Vec<_>, _>>()?;
    for row in rows {
        wait(row)?;
    }
    println!("8 at once: {:.1} tok/s in all", (8 * tokens) as f64 / at.elapsed().as_secs_f64());
    println!("peak RSS {:.0} MB", hearth_machine::memory().process_peak as f64 / 1e6);
    engine.shutdown();
    Ok(())
}
