//! The whole engine on tiny real models, and on faulty ones behind the `Model` trait.

use super::*;
use crate::models::Model;
use crate::step::Step;
use hearth_core::event::{Delta, Finish};
use hearth_core::sampling::SamplingParams;
use hearth_core::{Event, FinishReason};
use hearth_mlx::{Dtype, MlxError, Tensor};
use proptest::prelude::*;
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

fn start(options: EngineOptions, name: &str) -> (EngineHandle, Arc<ServedModel>) {
    let engine = Engine::start(options).unwrap();
    let model = engine.load(golden(name), name.into()).blocking_recv().unwrap().unwrap();
    (engine, model)
}

fn small() -> EngineOptions {
    EngineOptions { max_rows: 3, prefill_chunk: 16, ..EngineOptions::default() }
}

type Logprobs = (Option<f32>, Vec<(u32, f32)>);

#[derive(Debug, Default, PartialEq)]
struct Answer {
    text: String,
    ids: Vec<u32>,
    logprobs: Vec<Logprobs>,
    finish: Option<Finish>,
    failed: Option<EngineError>,
}

fn answer(mut generation: Generation) -> Answer {
    let mut all = Answer::default();
    while let Some(event) = generation.events.blocking_recv() {
        match event {
            Event::Delta(Delta { text, tokens }) => {
                all.text.push_str(&text);
                for t in tokens {
                    all.ids.push(t.id);
                    all.logprobs.push((t.logprob, t.top));
                }
            }
            Event::Finished(finish) => all.finish = Some(finish),
            Event::Failed(e) => all.failed = Some(e),
            Event::Admitted { .. } | Event::Prefill { .. } => {}
        }
    }
    all
}

/// Waits, for at most ten seconds, until the engine has nothing to do.
fn settle(engine: &EngineHandle) {
    for _ in 0..2000 {
        let stats = engine.stats();
        if stats.rows.is_empty() && stats.waiting == 0 && engine.shared.in_system.load(Ordering::SeqCst) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("rows are left over: {:?}", engine.stats());
}

#[test]
fn a_request_ends_for_the_right_reason() {
    let (engine, model) = start(small(), "llama-f32");
    let prompt: Vec<u32> = (10..30).collect();
    let long = answer(engine.submit(&model, GenerateRequest::greedy(&prompt, 20)).unwrap());
    assert_eq!((long.ids.len(), long.finish.as_ref().unwrap().reason), (20, FinishReason::Length));
    assert_eq!(long.finish.unwrap().usage.prompt_tokens, 20);

    // A stop string from the middle of what it says; the text ends before it.
    let chars: Vec<char> = long.text.chars().collect();
    let stop: String = chars[chars.len() / 2..][..2].iter().collect();
    let stopped = answer(
        engine
            .submit(&model, GenerateRequest { stop: vec![stop.clone()], ..GenerateRequest::greedy(&prompt, 20) })
            .unwrap(),
    );
    let finish = stopped.finish.unwrap();
    assert_eq!((finish.reason, finish.stop), (FinishReason::Stop, Some(stop.clone())));
    assert_eq!(stopped.text, long.text[..long.text.find(&stop).unwrap()]);

    // No max_tokens: up to the context limit.
    let limited = Engine::start(EngineOptions { context: Some(32), ..small() }).unwrap();
    let model = limited.load(golden("llama-f32"), "m".into()).blocking_recv().unwrap().unwrap();
    let full = answer(
        limited.submit(&model, GenerateRequest { max_tokens: None, ..GenerateRequest::greedy(&prompt, 1) }).unwrap(),
    );
    assert_eq!(full.ids.len(), 12);
    assert_eq!(
        limited.submit(&model, GenerateRequest::greedy(&[1; 32], 1)).unwrap_err(),
        EngineError::ContextLengthExceeded { prompt: 32, limit: 32 }
    );
    limited.shutdown();
    engine.shutdown();
}

#[test]
fn every_end_of_sequence_id_stops() {
    let (engine, model) = start(small(), "llama-f32");
    let prompt: Vec<u32> = (40..60).collect();
    let free = answer(engine.submit(&model, GenerateRequest::greedy(&prompt, 10)).unwrap());
    // The same model with two of the ids that it says as its end-of-sequence ids.
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(golden("llama-f32")).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    let last = *free.ids.last().unwrap();
    let first = free.ids.iter().position(|id| *id == last).unwrap();
    let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["eos_token_id"] = serde_json::json!([0, last]);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let model = engine.load(dir.path().to_owned(), "eos".into()).blocking_recv().unwrap().unwrap();
    assert!(model.eos.contains(&last) && model.eos.contains(&0));
    let stopped = answer(
        engine.submit(&model, GenerateRequest { ignore_eos: false, ..GenerateRequest::greedy(&prompt, 10) }).unwrap(),
    );
    assert_eq!(stopped.finish.unwrap().reason, FinishReason::Stop);
    assert_eq!(stopped.ids, free.ids[..=first]);
    engine.shutdown();
}

#[test]
fn bad_requests_are_refused_by_name() {
    let (engine, model) = start(small(), "llama-f32");
    let refused = |r: GenerateRequest| match engine.submit(&model, r).unwrap_err() {
        EngineError::InvalidRequest { param, .. } => param,
        other => panic!("{other}"),
    };
    assert_eq!(refused(GenerateRequest::greedy(&[], 1)), "prompt");
    assert_eq!(refused(GenerateRequest::greedy(&[100_000], 1)), "prompt");
    assert_eq!(refused(GenerateRequest::greedy(&[1], 0)), "max_tokens");
    assert_eq!(refused(GenerateRequest { logprobs: Some(21), ..GenerateRequest::greedy(&[1], 1) }), "top_logprobs");
    let hot = SamplingParams { temperature: 9.0, ..SamplingParams::default() };
    assert_eq!(refused(GenerateRequest { sampling: hot, ..GenerateRequest::greedy(&[1], 1) }), "temperature");
    assert_eq!(
        answer(engine.submit(&model, GenerateRequest::greedy(&[1], 2)).unwrap()).ids.len(),
        2,
        "the next one works"
    );
    engine.shutdown();
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_engine_alive() {
    let engine = Engine::start(small()).unwrap();
    let nowhere = engine.load("/nowhere/100%s".into(), "x".into()).blocking_recv().unwrap().unwrap_err();
    assert!(nowhere.to_string().contains("/nowhere/100%s"), "{nowhere}");
    assert!(matches!(engine.health(), Health::Failed { .. }));
    let model = engine.load(golden("qwen3-q4"), "y".into()).blocking_recv().unwrap().unwrap();
    assert_eq!(answer(engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 4)).unwrap()).ids.len(), 4);
    engine.shutdown();
}

#[test]
fn seeds_hold_alone_and_in_company_and_the_unseeded_differ() {
    let (engine, model) = start(small(), "llama-f32");
    let prompt: Vec<u32> = (1..20).collect();
    let with = |seed| GenerateRequest {
        sampling: SamplingParams { seed, temperature: 1.5, ..SamplingParams::default() },
        logprobs: Some(2),
        ..GenerateRequest::greedy(&prompt, 12)
    };
    let alone = answer(engine.submit(&model, with(Some(5))).unwrap());
    let rows: Vec<_> = [Some(5), None, None, Some(5), Some(6)].map(|s| engine.submit(&model, with(s)).unwrap()).into();
    let rows: Vec<Answer> = rows.into_iter().map(answer).collect();
    assert_eq!(rows[0].ids, alone.ids);
    assert_eq!(rows[3].ids, alone.ids);
    assert_ne!(rows[1].ids, rows[2].ids, "unseeded requests of the same moment");
    assert_ne!(rows[4].ids, alone.ids);
    for (logprob, top) in &alone.logprobs {
        assert_eq!(top.len(), 2);
        assert!(top[0].1 >= top[1].1 && logprob.unwrap() <= top[0].1 + 1e-6);
    }
    engine.shutdown();
}

#[test]
fn too_many_requests_are_refused_and_none_is_lost() {
    let (engine, model) = start(EngineOptions { max_rows: 1, max_waiting: 2, ..small() }, "llama-f32");
    let results: Vec<_> = (0..6).map(|_| engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 200))).collect();
    let refused: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|e| matches!(e, EngineError::Overloaded { waiting: 2, limit: 2, .. })));
    for generation in results.into_iter().flatten() {
        assert_eq!(answer(generation).ids.len(), 200);
    }
    settle(&engine);
    engine.shutdown();
}

#[test]
fn a_client_that_does_not_read_pauses_only_its_own_row() {
    let (engine, model) = start(small(), "llama-f32");
    let slow = engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 1500)).unwrap();
    let quick = answer(engine.submit(&model, GenerateRequest::greedy(&[4, 5, 6], 50)).unwrap());
    assert_eq!(quick.ids.len(), 50);
    for _ in 0..2000 {
        if engine.stats().rows.iter().any(|r| r.phase == "paused") {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let paused = engine.stats().rows;
    assert_eq!(paused[0].phase, "paused", "{paused:?}");
    assert_eq!(answer(engine.submit(&model, GenerateRequest::greedy(&[4, 5, 6], 50)).unwrap()).ids, quick.ids);
    assert_eq!(answer(slow).ids.len(), 1500, "nothing is lost when it reads again");
    settle(&engine);
    engine.shutdown();
}

#[test]
fn a_client_that_never_reads_loses_its_row_in_the_end() {
    let options = EngineOptions { max_rows: 1, longest_pause: Duration::from_millis(200), ..small() };
    let (engine, model) = start(options, "llama-f32");
    let _stuck = engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 1500)).unwrap();
    let next = answer(engine.submit(&model, GenerateRequest::greedy(&[4, 5, 6], 5)).unwrap());
    assert_eq!(next.ids.len(), 5, "the row behind it gets its turn");
    assert_eq!(engine.stats().totals.cancelled, 1);
    engine.shutdown();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_row_does_not_depend_on_its_neighbours(
        rows in proptest::collection::vec((1usize..50, 1usize..20, 0u32..200, any::<bool>()), 2..7),
    ) {
        let (engine, model) = start(small(), "llama_swa-f32");
        let make = |&(prompt, tokens, from, sampled): &(usize, usize, u32, bool)| {
            let prompt: Vec<u32> = (0..prompt as u32).map(|i| (from + i * 7) % 250).collect();
            let mut r = GenerateRequest::greedy(&prompt, tokens);
            if sampled {
                r.sampling = SamplingParams { seed: Some(u64::from(from)), top_p: 0.9, frequency_penalty: 0.5, ..SamplingParams::default() };
                r.logprobs = Some(1);
            }
            r
        };
        let alone: Vec<Vec<u32>> = rows.iter().map(|r| answer(engine.submit(&model, make(r)).unwrap()).ids).collect();
        let together: Vec<Generation> = rows.iter().map(|r| engine.submit(&model, make(r)).unwrap()).collect();
        for (generation, alone) in together.into_iter().zip(alone) {
            prop_assert_eq!(answer(generation).ids, alone);
        }
        settle(&engine);
        engine.shutdown();
    }
}

/// Says its last id plus one; refuses or panics when a prompt asks for it.
struct Faulty {
    vocab: i32,
    known: usize,
    layers: usize,
    panic: Arc<AtomicBool>,
}

const REFUSE: u32 = 200;
const PANIC: u32 = 201;
/// The row whose last id this is gets logits that are no numbers.
const NAN: u32 = 210;

impl Model for Faulty {
    fn forward(&self, ids: &Tensor, step: &mut Step<'_>) -> crate::error::Result<Tensor> {
        let n = ids.dim(0);
        for row in 0..step.rows() {
            let n = step.tokens(row);
            let kv = Tensor::zeros(&[1, 2, n, 32], Dtype::F32)?;
            for layer in 0..self.layers {
                step.cache(row, layer).update(kv.share(), kv.share())?;
            }
        }
        let told = ids.to_vec_u32()?;
        if told.contains(&REFUSE) {
            return Err(MlxError { operation: "test", message: "refused".into() }.into());
        }
        if told.contains(&PANIC) && self.panic.swap(false, Ordering::SeqCst) {
            panic!("asked to");
        }
        let hidden: Vec<f32> = told.iter().map(|&id| if id == NAN { f32::NAN } else { id as f32 }).collect();
        Ok(Tensor::from_f32(&hidden, &[n, 1])?)
    }

    /// The best id is the one after the last; ids that the tokenizer does not have are better still.
    fn logits(&self, hidden: &Tensor) -> crate::error::Result<Tensor> {
        let ids = Tensor::arange(0, self.vocab, Dtype::F32)?.reshape(&[1, -1])?;
        let distance = ids.subtract(&hidden.add(&Tensor::scalar(1.0))?)?;
        let near = distance.multiply(&distance)?.negative()?;
        let beyond = ids.greater(&Tensor::scalar(self.known as f32 - 0.5))?;
        Ok(Tensor::scalar(1e6).select(&beyond, &near)?)
    }
}

fn faulty(options: EngineOptions) -> (EngineHandle, Arc<ServedModel>) {
    let panic = Arc::new(AtomicBool::new(true));
    let loader: Loader = Box::new(move |dir, id, context, progress| {
        let mut loaded = loader::load(dir, id, context, progress)?;
        let mut served = (*loaded.served).clone();
        served.vocab_size += 64;
        loaded.model = Box::new(Faulty {
            vocab: served.vocab_size as i32,
            known: served.tokenizer.vocab_size(),
            layers: loaded.layout.layers.len(),
            panic: panic.clone(),
        });
        loaded.served = Arc::new(served);
        Ok(loaded)
    });
    let engine = Engine::start_with(options, loader).unwrap();
    let model = engine.load(golden("llama-f32"), "faulty".into()).blocking_recv().unwrap().unwrap();
    (engine, model)
}

#[test]
fn ids_beyond_the_vocabulary_are_masked() {
    let (engine, model) = faulty(small());
    assert!(model.vocab_size > model.tokenizer.vocab_size());
    assert_eq!(answer(engine.submit(&model, GenerateRequest::greedy(&[5], 4)).unwrap()).ids, [6, 7, 8, 9]);
    let sampled = GenerateRequest {
        sampling: SamplingParams { temperature: 0.1, seed: Some(1), ..SamplingParams::default() },
        logprobs: Some(20),
        ..GenerateRequest::greedy(&[5], 4)
    };
    let sampled = answer(engine.submit(&model, sampled).unwrap());
    assert_eq!(sampled.ids, [6, 7, 8, 9]);
    let known = model.tokenizer.vocab_size() as u32;
    assert!(sampled.logprobs.iter().all(|(_, top)| top.iter().all(|(id, _)| *id < known)));
    engine.shutdown();
}

#[test]
fn a_failing_step_ends_its_rows_and_the_engine_goes_on() {
    let (engine, model) = faulty(small());
    let failed = answer(engine.submit(&model, GenerateRequest::greedy(&[REFUSE], 4)).unwrap());
    assert_eq!(failed.failed, Some(EngineError::Compute { message: "test: refused".into() }));
    // In the middle of decoding: 199 is followed by 200.
    let failed = answer(engine.submit(&model, GenerateRequest::greedy(&[REFUSE - 2], 8)).unwrap());
    assert!(failed.failed.is_some() && failed.ids.len() <= 2, "{failed:?}");
    assert_eq!(answer(engine.submit(&model, GenerateRequest::greedy(&[5], 3)).unwrap()).ids, [6, 7, 8]);
    settle(&engine);
    engine.shutdown();
}

#[test]
fn logits_that_are_no_numbers_end_their_row_alone() {
    let (engine, model) = faulty(small());
    for sampling in [SamplingParams::greedy(), SamplingParams { top_p: 0.5, ..SamplingParams::default() }] {
        let bad =
            engine.submit(&model, GenerateRequest { sampling, ..GenerateRequest::greedy(&[NAN - 3], 8) }).unwrap();
        let good = engine.submit(&model, GenerateRequest::greedy(&[5], 8)).unwrap();
        let bad = answer(bad);
        assert!(
            matches!(&bad.failed, Some(EngineError::Compute { message }) if message.contains("not numbers")),
            "{bad:?}"
        );
        assert_eq!(answer(good).ids, (6..14).collect::<Vec<u32>>());
    }
    settle(&engine);
    engine.shutdown();
}

#[test]
fn a_panic_is_reported_and_the_engine_restarted() {
    let (engine, model) = faulty(small());
    let lost = answer(engine.submit(&model, GenerateRequest::greedy(&[PANIC], 4)).unwrap());
    assert_eq!(lost.failed, Some(EngineError::EngineLost));
    let again = answer(engine.submit(&model, GenerateRequest::greedy(&[5], 3)).unwrap());
    assert_eq!(again.ids, [6, 7, 8], "the model is there again");
    assert!(matches!(engine.health(), Health::Ready { .. }));
    settle(&engine);
    engine.shutdown();
}

#[test]
fn shutting_down_tells_whoever_waits() {
    let (engine, model) = start(EngineOptions { max_rows: 1, ..small() }, "llama-f32");
    let rows: Vec<_> =
        (0..3).map(|_| engine.submit(&model, GenerateRequest::greedy(&[1, 2, 3], 3000)).unwrap()).collect();
    engine.clone().shutdown();
    for row in rows {
        let mut row = row;
        let mut last = None;
        while let Some(event) = row.events.blocking_recv() {
            last = Some(event);
        }
        assert_eq!(last, Some(Event::Failed(EngineError::ShuttingDown)));
    }
    assert_eq!(engine.submit(&model, GenerateRequest::greedy(&[1], 1)).unwrap_err(), EngineError::EngineLost);
}
