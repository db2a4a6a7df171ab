//! `hearth generate`: one prompt, one answer, with the engine in this process and no server.

use crate::args::GenerateArgs;
use crate::commands::{local, model};
use crate::failure::Failure;
use crate::output;
use hearth_core::sampling::SamplingParams;
use hearth_core::{Backend, Event, Finish, GenerateRequest, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions};
use hearth_library::home::Home;
use hearth_server::{ChatTemplate, RenderInput};
use serde::Serialize;
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::time::Instant;

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    text: String,
    prompt_tokens: usize,
    generated_tokens: usize,
    /// The generated ids, an end-of-sequence token included.
    token_ids: Vec<u32>,
    /// Prefill speed in tokens per second.
    prefill_tps: f64,
    /// Decode speed in tokens per second, the first token left out.
    decode_tps: f64,
    /// From the request to the first token.
    ttft_ms: f64,
    /// From the command's start to the loaded model.
    load_ms: f64,
    /// The most memory that this process had resident.
    peak_rss_bytes: u64,
    finish_reason: hearth_core::FinishReason,
}

/// Generates, and prints the text as it comes or the report at the end.
///
/// # Errors
/// Exit code 2 for a wrong parameter, 3 for an unusable model or file, 1 when the prompt is too long or fails.
pub async fn run(args: GenerateArgs, home: &Home) -> Result<(), Failure> {
    let started = Instant::now();
    let Some(entry) = model::pick(Some(&args.model), home)? else {
        return Err(Failure::unusable(format!("there is no model {}", args.model)));
    };
    let prompt = prompt(&args)?;
    let engine = Engine::start(EngineOptions {
        max_rows: 1,
        prefill_chunk: args.engine.prefill_chunk as usize,
        context: args.engine.context.map(|n| n as usize),
        memory: local::memory(&args.engine, home),
        // One prompt: nothing comes back to it.
        cache: CacheOptions { ram: 0, ssd: 0, ..CacheOptions::default() },
        ..EngineOptions::default()
    })?;
    let result = async {
        let model = model::load(&engine, &entry).await?;
        let load_ms = milliseconds(started);
        let request = request(&args, &model, &prompt)?;
        answer(&args, &engine, &model, request, load_ms).await
    };
    let result = result.await;
    let code = result.as_ref().map_or_else(|failure| failure.code as i32, |()| 0);
    local::shut_down(engine, local::BUSY, code).await;
    result
}

/// The prompt's text: from the flag, the file, or standard input.
fn prompt(args: &GenerateArgs) -> Result<String, Failure> {
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => std::fs::read_to_string(file)
            .map_err(|e| Failure::unusable(format!("{}: expected a text file, found: {e}", file.display())))?,
        (None, None) => {
            if std::io::stdin().is_terminal() {
                eprintln!("Reading the prompt from the terminal; Ctrl-D ends it.");
            }
            let mut text = String::new();
            let read = std::io::stdin().lock().read_to_string(&mut text);
            read.map_err(|e| Failure::unusable(format!("standard input: expected text, found: {e}")))?;
            text
        }
    };
    if text.is_empty() {
        return Err(Failure::usage("the prompt is empty; give one with --prompt, --prompt-file or on standard input"));
    }
    Ok(text)
}

/// The prompt as ids, and the sampler's parameters: flag over the model's own defaults.
fn request(args: &GenerateArgs, model: &ServedModel, prompt: &str) -> Result<GenerateRequest, Failure> {
    let ids = if args.chat {
        let mut messages = Vec::new();
        messages.extend(args.system.as_ref().map(|text| json!({"role": "system", "content": text})));
        messages.push(json!({"role": "user", "content": prompt}));
        let source = hearth_server::template_source(model, false).map_err(|e| Failure::unusable(e.to_string()))?;
        let template = ChatTemplate::new(&source, &model.tokenizer_config);
        let template = template.map_err(|e| Failure::unusable(e.to_string()))?;
        let input = RenderInput { messages, add_generation_prompt: true, ..RenderInput::default() };
        let text = template.render(&input).map_err(|e| Failure::unusable(e.to_string()))?;
        model.check_length(&text)?;
        // The template writes the special tokens itself.
        model.tokenizer.encode(&text, false)
    } else {
        model.check_length(prompt)?;
        model.tokenizer.encode(prompt, true)
    };
    let ids = ids.map_err(|e| Failure::unusable(format!("the tokenizer cannot encode this prompt: {e}")))?;
    let base = hearth_server::model_defaults(&model.generation_config, model.vocab_size);
    let sampling = SamplingParams {
        temperature: args.temperature.unwrap_or(base.temperature),
        top_p: args.top_p.unwrap_or(base.top_p),
        top_k: args.top_k.unwrap_or(base.top_k),
        min_p: args.min_p.unwrap_or(base.min_p),
        seed: args.seed,
        ..base
    };
    sampling.validate(model.vocab_size)?;
    Ok(GenerateRequest {
        max_tokens: Some(args.max_tokens as usize),
        sampling,
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        ..GenerateRequest::new(ids)
    })
}

async fn answer(
    args: &GenerateArgs,
    engine: &EngineHandle,
    model: &ServedModel,
    request: GenerateRequest,
    load_ms: f64,
) -> Result<(), Failure> {
    let asked = Instant::now();
    let mut generation = engine.submit(model, request)?;
    let (mut text, mut token_ids, mut ttft_ms) = (String::new(), Vec::new(), None);
    let finish: Finish = loop {
        match generation.events.recv().await {
            Some(Event::Delta(delta)) => {
                ttft_ms.get_or_insert_with(|| milliseconds(asked));
                token_ids.extend(delta.tokens.iter().map(|t| t.id));
                if !args.json {
                    output::print(&delta.text)?;
                }
                text.push_str(&delta.text);
            }
            Some(Event::Admitted { .. } | Event::Prefill { .. }) => {}
            Some(Event::Finished(finish)) => break finish,
            Some(Event::Failed(e)) => return Err(e.into()),
            None => return Err(Failure::no("the engine ended in the middle of the answer")),
        }
    };
    let (prefill_tps, decode_tps) =
        (finish.timings.prefill_tps(&finish.usage), finish.timings.decode_tps(&finish.usage));
    if args.json {
        return output::json(&Report {
            text,
            prompt_tokens: finish.usage.prompt_tokens,
            generated_tokens: finish.usage.completion_tokens,
            token_ids,
            prefill_tps,
            decode_tps,
            ttft_ms: ttft_ms.unwrap_or_default(),
            load_ms,
            peak_rss_bytes: hearth_machine::memory().process_peak,
            finish_reason: finish.reason,
        });
    }
    if !text.ends_with('\n') {
        output::line("")?;
    }
    if std::io::stderr().is_terminal() {
        eprintln!(
            "[{} + {} tokens, prefill {prefill_tps:.1} tok/s, decode {decode_tps:.1} tok/s]",
            finish.usage.prompt_tokens, finish.usage.completion_tokens
        );
    }
    Ok(())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
