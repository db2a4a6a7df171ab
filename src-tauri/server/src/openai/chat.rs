//! `POST /v1/chat/completions`.

use super::logprobs;
use super::wire::{
    ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs, ChatMessage, Reply, Timings, Usage, finish_reason,
};
use crate::body::JsonObject;
use crate::error::ServerError;
use crate::generate::{Collected, Encoder, Running, respond};
use crate::params::{Common, Fields};
use crate::prompt::ChatPrompt;
use crate::sse::Frames;
use crate::state::{AppState, now};
use crate::tokens::{self, Tokens};
use crate::transcripts::Recorder;
use axum::extract::State;
use axum::response::Response;
use hearth_core::GenerateRequest;
use hearth_core::backend::ServedModel;
use hearth_core::event::{Delta, Finish, TokenInfo};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Answers a conversation.
pub(crate) async fn create(
    State(state): State<AppState>,
    JsonObject(body): JsonObject,
) -> Result<Response, ServerError> {
    let request = ChatRequest::read(&body, state.config().keep_client_headers)?;
    respond(&state, request.common.stream, start(state.clone(), request)).await
}

/// A chat request, checked as far as it can be without a model.
struct ChatRequest {
    common: Common,
    prompt: ChatPrompt,
    max_tokens: Option<usize>,
    logprobs: Option<u8>,
}

impl ChatRequest {
    fn read(body: &Map<String, Value>, keep_headers: bool) -> Result<Self, ServerError> {
        let f = Fields::new(body);
        let prompt = ChatPrompt::read(f, keep_headers)?;
        let common = Common::read(f)?;
        let (old, new) = (f.count("max_tokens", 1)?, f.count("max_completion_tokens", 1)?);
        response_format(f)?;
        let wanted = f.bool("logprobs")?.unwrap_or(false);
        let top = f.integer("top_logprobs", 0, 20, "a whole number between 0 and 20")?.unwrap_or(0) as u8;
        if top > 0 && !wanted {
            return Err(ServerError::param("top_logprobs", "`top_logprobs` needs `logprobs` to be true; it is not"));
        }
        Ok(ChatRequest { common, prompt, max_tokens: new.or(old), logprobs: wanted.then_some(top) })
    }
}

fn response_format(f: Fields<'_>) -> Result<(), ServerError> {
    let Some(format) = f.object("response_format")? else { return Ok(()) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(()),
        Some(kind @ ("json_object" | "json_schema")) => Err(ServerError::unsupported(
            "response_format",
            format!(
                "`response_format` of type `{kind}` is not supported yet; use `text` and ask for JSON in the prompt"
            ),
        )),
        _ => {
            let found = format.get("type").unwrap_or(&Value::Null);
            Err(f.refuse("response_format.type", "text, json_object or json_schema", found))
        }
    }
}

async fn start(state: AppState, request: ChatRequest) -> Result<(Running, ChatEncoder), ServerError> {
    let ChatRequest { common, prompt, max_tokens, logprobs } = request;
    let model = state.backend().resolve(common.model.as_deref()).await?;
    let sampling = common.sampling(&model)?;
    let (s, m) = (state.clone(), model.clone());
    let work = move || {
        let template = s.template(&m, prompt.has_tools())?;
        tokens::chat(&s, &m, prompt.render(&template)?)
    };
    let Tokens { ids: prompt, boundaries, memo } = state.prepare(work).await?;
    let encoder = ChatEncoder {
        id: state.response_id("chatcmpl"),
        created: now(),
        prompt: common.return_token_ids.then(|| prompt.clone()),
        include_usage: common.include_usage,
        logprobs: logprobs.is_some(),
        ignore_eos: common.ignore_eos,
        usage: Usage::default(),
        model: model.clone(),
    };
    let (stop, ignore_eos, keep_alive) = (common.stop, common.ignore_eos, common.keep_alive);
    let recorder = Recorder::new(state.transcripts().clone(), model.clone(), memo, &prompt);
    let row = GenerateRequest { prompt, max_tokens, sampling, stop, logprobs, ignore_eos, boundaries };
    let running = Running::start(&state, &model, vec![(row, Some(recorder))], keep_alive).await?;
    Ok((running, encoder))
}

struct ChatEncoder {
    id: String,
    created: u64,
    model: Arc<ServedModel>,
    /// The prompt's ids, when the request wants token ids back.
    prompt: Option<Vec<u32>>,
    include_usage: bool,
    logprobs: bool,
    ignore_eos: bool,
    usage: Usage,
}

impl ChatEncoder {
    fn reply<C>(&self, object: &'static str, choices: Vec<C>) -> Reply<'_, C> {
        let (id, model) = (&self.id, &self.model.id);
        Reply { id, object, created: self.created, model, choices, usage: None, timings: None, prompt_token_ids: None }
    }

    fn chunk<'a>(&'a self, choices: Vec<ChatChunkChoice<'a>>) -> Reply<'a, ChatChunkChoice<'a>> {
        Reply { usage: self.include_usage.then_some(None), ..self.reply("chat.completion.chunk", choices) }
    }

    fn logprobs(&self, tokens: &[TokenInfo]) -> Option<ChatLogprobs> {
        let visible = logprobs::visible(&self.model, tokens, self.ignore_eos);
        self.logprobs.then(|| logprobs::chat(&self.model, visible))
    }

    fn ids(&self, tokens: &[TokenInfo]) -> Option<Vec<u32>> {
        self.prompt.as_ref().map(|_| tokens.iter().map(|t| t.id).collect())
    }
}

fn choice(delta: ChatDelta<'_>) -> ChatChunkChoice<'_> {
    ChatChunkChoice { index: 0, delta, logprobs: None, finish_reason: None, token_ids: None }
}

impl Encoder for ChatEncoder {
    fn begin(&mut self, out: &mut Frames) {
        let role = choice(ChatDelta { role: Some("assistant"), content: Some("") });
        let mut chunk = self.chunk(vec![role]);
        chunk.prompt_token_ids = self.prompt.as_deref();
        out.data(&chunk);
    }

    fn delta(&mut self, _row: usize, delta: &Delta, out: &mut Frames) {
        let logprobs = self.logprobs(&delta.tokens).filter(|l| !l.content.is_empty());
        if delta.text.is_empty() && logprobs.is_none() && self.prompt.is_none() {
            return;
        }
        let text = choice(ChatDelta { role: None, content: Some(&delta.text) });
        out.data(&self.chunk(vec![ChatChunkChoice { logprobs, token_ids: self.ids(&delta.tokens), ..text }]));
    }

    fn finish(&mut self, _row: usize, finish: &Finish, out: &mut Frames) {
        self.usage.add(&finish.usage);
        let last =
            ChatChunkChoice { finish_reason: Some(finish_reason(finish.reason)), ..choice(ChatDelta::default()) };
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
        let choices = rows.iter().enumerate().map(|(index, row)| ChatChoice {
            index,
            message: ChatMessage { role: "assistant", content: &row.text, refusal: None },
            logprobs: self.logprobs(&row.tokens),
            finish_reason: finish_reason(row.finish.reason),
            token_ids: self.ids(&row.tokens),
        });
        let mut reply = self.reply("chat.completion", choices.collect());
        reply.usage = Some(Some(self.usage));
        reply.timings = rows.first().map(|row| Timings::new(&row.finish));
        reply.prompt_token_ids = self.prompt.as_deref();
        json!(reply)
    }
}
