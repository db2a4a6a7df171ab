//! `POST /v1/completions`: plain prompts as text or token ids, several at once.

use super::logprobs;
use super::wire::{CompletionChoice, CompletionLogprobs, Reply, Timings, Usage, finish_reason};
use crate::body::JsonObject;
use crate::error::ServerError;
use crate::generate::{Collected, Encoder, Running, respond};
use crate::params::{Common, Fields};
use crate::sse::Frames;
use crate::state::{AppState, now};
use crate::tokens::{self, Tokens, encode};
use crate::transcripts::{Memo, Recorder};
use axum::extract::State;
use axum::response::Response;
use hearth_core::backend::ServedModel;
use hearth_core::event::{Delta, Finish, TokenInfo};
use hearth_core::tokenizer::Tokenizer;
use hearth_core::{EngineError, GenerateRequest};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What `max_tokens` is when the request does not say.
const DEFAULT_MAX_TOKENS: usize = 512;
/// Most prompts in one request; each takes a row, and a batch that can never be queued should say so at once.
const MOST_PROMPTS: usize = 64;

/// Fill-in-the-middle tokens of the model families that have them: prefix, suffix, middle.
const FIM_TOKENS: [[&str; 3]; 4] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// Continues one or more prompts.
pub(crate) async fn create(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Response, ServerError> {
    let request = CompletionRequest::read(&body)?;
    respond(&state, request.common.stream, start(state.clone(), request)).await
}

/// One prompt as it was given.
#[derive(Debug, Clone, PartialEq)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A completion request, checked as far as it can be without a model.
struct CompletionRequest {
    common: Common,
    prompts: Vec<Prompt>,
    suffix: Option<String>,
    echo: bool,
    max_tokens: usize,
    logprobs: Option<u8>,
}

impl CompletionRequest {
    fn read(body: &Map<String, Value>) -> Result<Self, ServerError> {
        let f = Fields::new(body);
        let prompts = prompts(f)?;
        let common = Common::read(f)?;
        f.only_one("best_of")?;
        let echo = f.bool("echo")?.unwrap_or(false);
        let logprobs = f.integer("logprobs", 0, 20, "a whole number between 0 and 20")?.map(|k| k as u8);
        if echo && logprobs.is_some() {
            return Err(ServerError::unsupported(
                "echo",
                "`echo` with `logprobs` is not supported: prompts are not scored",
            ));
        }
        Ok(CompletionRequest {
            common,
            prompts,
            suffix: f.string("suffix")?.filter(|s| !s.is_empty()).map(str::to_owned),
            echo,
            max_tokens: f.count("max_tokens", 0)?.unwrap_or(DEFAULT_MAX_TOKENS),
            logprobs,
        })
    }
}

fn prompts(f: Fields<'_>) -> Result<Vec<Prompt>, ServerError> {
    let allowed = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let given = f.get("prompt").unwrap_or(&Value::Null);
    let refuse = || f.refuse("prompt", allowed, given);
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|v| v.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let prompts: Option<Vec<Prompt>> = match given {
        Value::String(text) => Some(vec![Prompt::Text(text.clone())]),
        Value::Array(list) => match list.first() {
            Some(Value::Number(_)) => ids(list).map(|ids| vec![Prompt::Ids(ids)]),
            Some(Value::String(_)) => list.iter().map(|v| v.as_str().map(|s| Prompt::Text(s.to_owned()))).collect(),
            Some(Value::Array(_)) => list
                .iter()
                .map(|v| v.as_array().filter(|l| !l.is_empty()).and_then(|l| ids(l)).map(Prompt::Ids))
                .collect(),
            _ => None,
        },
        _ => None,
    };
    let prompts = prompts.ok_or_else(refuse)?;
    if prompts.len() > MOST_PROMPTS {
        return Err(f.refuse("prompt", &format!("at most {MOST_PROMPTS} prompts"), given));
    }
    Ok(prompts)
}

/// Token ids of a prompt, and what remembering its answer needs.
type Ids = (Vec<u32>, Option<Memo>);

/// Token ids of a prompt, at least one, all of them in the model's vocabulary; and what remembering its answer needs,
/// where the prompt is a text that a later one may begin with.
fn prompt_ids(
    state: &AppState,
    prompt: &Prompt,
    suffix: Option<&str>,
    model: &ServedModel,
) -> Result<Ids, ServerError> {
    let tokenizer = &model.tokenizer;
    let (mut ids, memo) = match (prompt, suffix) {
        (Prompt::Text(text), None) => {
            let Tokens { ids, memo, .. } = tokens::plain(state, model, text)?;
            (ids, Some(memo))
        }
        (Prompt::Text(text), Some(_)) => {
            model.check_length(text)?;
            (encode(tokenizer, text, false)?, None)
        }
        (Prompt::Ids(ids), _) => (ids.clone(), None),
    };
    if let Some(suffix) = suffix {
        model.check_length(suffix)?;
        let [before, between, after] = fim_tokens(tokenizer).ok_or_else(|| {
            let message = format!("the model `{}` has no fill-in-the-middle; leave `suffix` out", model.id);
            ServerError::unsupported("suffix", message)
        })?;
        ids.splice(0..0, tokenizer.bos().into_iter().chain([before]));
        ids.push(between);
        ids.extend(encode(tokenizer, suffix, false)?);
        ids.push(after);
    }
    if let Some(id) = ids.iter().find(|&&id| id as usize >= model.vocab_size) {
        return Err(EngineError::param("prompt", &format!("made of token ids below {}", model.vocab_size), id).into());
    }
    if ids.is_empty() {
        let message =
            "`prompt` is empty, and this model has no beginning-of-text token to start from; give it some text";
        return Err(ServerError::param("prompt", message));
    }
    Ok((ids, memo))
}

fn fim_tokens(tokenizer: &Tokenizer) -> Option<[u32; 3]> {
    FIM_TOKENS
        .iter()
        .find_map(|[a, b, c]| Some([tokenizer.token_to_id(a)?, tokenizer.token_to_id(b)?, tokenizer.token_to_id(c)?]))
}

async fn start(state: AppState, request: CompletionRequest) -> Result<(Running, CompletionEncoder), ServerError> {
    let CompletionRequest { common, prompts, suffix, echo, max_tokens, logprobs } = request;
    let model = state.backend().resolve(common.model.as_deref()).await?;
    let sampling = common.sampling(&model)?;
    let (s, m) = (state.clone(), model.clone());
    let work = move || -> Result<Vec<(Ids, String)>, ServerError> {
        let each = prompts.into_iter().map(|prompt| {
            let ids = prompt_ids(&s, &prompt, suffix.as_deref(), &m)?;
            let echoed = match prompt {
                _ if !echo => String::new(),
                Prompt::Text(text) => text,
                Prompt::Ids(ids) => m.tokenizer.decode(&ids),
            };
            Ok((ids, echoed))
        });
        each.collect()
    };
    let (prompts, echoes): (Vec<_>, Vec<String>) = state.prepare(work).await?.into_iter().unzip();
    let (prompts, memos): (Vec<Vec<u32>>, Vec<Option<Memo>>) = prompts.into_iter().unzip();
    let encoder = CompletionEncoder {
        id: state.response_id("cmpl"),
        created: now(),
        prompts: if common.return_token_ids { prompts.clone() } else { Vec::new() },
        token_ids: common.return_token_ids,
        // A choice's text begins with the echo.
        offsets: echoes.iter().map(|e| e.chars().count()).collect(),
        echoes,
        include_usage: common.include_usage,
        logprobs: logprobs.is_some(),
        ignore_eos: common.ignore_eos,
        usage: Usage::default(),
        model: model.clone(),
    };
    if max_tokens == 0 {
        // Nothing to generate: only whether the prompts would fit can go wrong.
        if let Some(long) = prompts.iter().map(Vec::len).find(|&len| len >= model.context) {
            return Err(EngineError::ContextLengthExceeded { prompt: long, limit: model.context }.into());
        }
        return Ok((Running::nothing(prompts.iter().map(Vec::len)), encoder));
    }
    let rows = prompts.into_iter().zip(memos).map(|(prompt, memo)| {
        let recorder = memo.map(|memo| Recorder::new(state.transcripts().clone(), model.clone(), memo, &prompt));
        let row = GenerateRequest {
            prompt,
            max_tokens: Some(max_tokens),
            sampling: sampling.clone(),
            stop: common.stop.clone(),
            logprobs,
            ignore_eos: common.ignore_eos,
            boundaries: Vec::new(),
        };
        (row, recorder)
    });
    let running = Running::start(&state, &model, rows.collect(), common.keep_alive).await?;
    Ok((running, encoder))
}

struct CompletionEncoder {
    id: String,
    created: u64,
    model: Arc<ServedModel>,
    /// The prompts' ids, when the request wants token ids back.
    prompts: Vec<Vec<u32>>,
    token_ids: bool,
    echoes: Vec<String>,
    /// Characters of each choice's text so far.
    offsets: Vec<usize>,
    include_usage: bool,
    logprobs: bool,
    ignore_eos: bool,
    usage: Usage,
}

impl CompletionEncoder {
    fn reply<'a>(&'a self, choices: Vec<CompletionChoice<'a>>) -> Reply<'a, CompletionChoice<'a>> {
        Reply {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model.id,
            choices,
            usage: None,
            timings: None,
            prompt_token_ids: None,
        }
    }

    fn chunk<'a>(&'a self, choices: Vec<CompletionChoice<'a>>) -> Reply<'a, CompletionChoice<'a>> {
        Reply { usage: self.include_usage.then_some(None), ..self.reply(choices) }
    }

    fn logprobs(&mut self, row: usize, tokens: &[TokenInfo]) -> Option<CompletionLogprobs> {
        let visible = logprobs::visible(&self.model, tokens, self.ignore_eos);
        self.logprobs.then(|| logprobs::completion(&self.model, visible, &mut self.offsets[row]))
    }

    fn ids(&self, tokens: &[TokenInfo]) -> Option<Vec<u32>> {
        self.token_ids.then(|| tokens.iter().map(|t| t.id).collect())
    }

    /// The ids of the only prompt; of several, each choice carries its own.
    fn only_prompt(&self) -> Option<&[u32]> {
        self.prompts.first().filter(|_| self.prompts.len() == 1).map(Vec::as_slice)
    }
}

fn choice(index: usize, text: &str) -> CompletionChoice<'_> {
    CompletionChoice { index, text, logprobs: None, finish_reason: None, token_ids: None, prompt_token_ids: None }
}

impl Encoder for CompletionEncoder {
    fn begin(&mut self, out: &mut Frames) {
        if !self.token_ids && self.echoes.iter().all(String::is_empty) {
            return;
        }
        for (row, echo) in self.echoes.iter().enumerate() {
            let mut first = choice(row, echo);
            first.token_ids = self.ids(&[]);
            first.prompt_token_ids = self.prompts.get(row).map(Vec::as_slice);
            let mut chunk = self.chunk(vec![first]);
            chunk.prompt_token_ids = self.only_prompt();
            out.data(&chunk);
        }
    }

    fn delta(&mut self, row: usize, delta: &Delta, out: &mut Frames) {
        let logprobs = self.logprobs(row, &delta.tokens).filter(|l| !l.tokens.is_empty());
        if delta.text.is_empty() && logprobs.is_none() && !self.token_ids {
            return;
        }
        let token_ids = self.ids(&delta.tokens);
        out.data(&self.chunk(vec![CompletionChoice { logprobs, token_ids, ..choice(row, &delta.text) }]));
    }

    fn finish(&mut self, row: usize, finish: &Finish, out: &mut Frames) {
        self.usage.add(&finish.usage);
        let last = CompletionChoice { finish_reason: Some(finish_reason(finish.reason)), ..choice(row, "") };
        let mut chunk = self.chunk(vec![last]);
        chunk.timings = Some(Timings::new(finish));
        out.data(&chunk);
    }

    fn end(&mut self, out: &mut Frames) {
        if self.include_usage {
            out.data(&Reply { usage: Some(Some(self.usage)), ..self.chunk(Vec::new()) });
        }
        out.text("[DONE]");
    }

    fn whole(&mut self, rows: &[Collected]) -> Value {
        rows.iter().for_each(|row| self.usage.add(&row.finish.usage));
        let logprobs: Vec<_> = rows.iter().enumerate().map(|(i, row)| self.logprobs(i, &row.tokens)).collect();
        let texts: Vec<String> =
            self.echoes.iter().zip(rows).map(|(echo, row)| format!("{echo}{}", row.text)).collect();
        let choices = rows.iter().zip(logprobs).enumerate().map(|(i, (row, logprobs))| CompletionChoice {
            index: i,
            text: &texts[i],
            logprobs,
            finish_reason: Some(finish_reason(row.finish.reason)),
            token_ids: self.ids(&row.tokens),
            prompt_token_ids: self.prompts.get(i).map(Vec::as_slice),
        });
        let mut reply = self.reply(choices.collect());
        reply.usage = Some(Some(self.usage));
        reply.timings = rows.first().filter(|_| rows.len() == 1).map(|row| Timings::new(&row.finish));
        reply.prompt_token_ids = self.only_prompt();
        json!(reply)
    }
}
