//! What became of the last requests: the prompt as the model saw it, what the cache gave, the parameters as applied.
//! Kept in memory only, the last ones only, and not at all when it is switched off.

use crate::error::ServerError;
use crate::events::now_ms;
use crate::state::AppState;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use hearth_core::GenerateRequest;
use hearth_core::backend::ServedModel;
use hearth_core::event::{Event, FinishReason};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Requests kept.
const KEPT: usize = 50;
/// Bytes of prompts kept, of all requests together.
const BYTES: usize = 4 << 20;

/// One request, without its prompt.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct RequestSummary {
    /// The row's number.
    pub id: u64,
    /// When it was queued, in milliseconds since 1970.
    pub at: u64,
    /// The model's id.
    pub model: String,
    /// `queued`, `running`, `stop`, `length`, `cancelled` or `failed`.
    pub state: String,
    /// Prompt length in tokens.
    pub prompt_tokens: usize,
    /// Of these, how many the prompt cache had; unknown until it is admitted.
    pub cached_tokens: Option<usize>,
    /// Tokens generated, once it has ended.
    pub generated: Option<usize>,
    /// Milliseconds in the queue, of prefill and of decoding, once it has ended.
    pub timings_ms: Option<[f64; 3]>,
    /// Why it failed.
    pub error: Option<String>,
}

struct Record {
    summary: RequestSummary,
    /// As the model saw it, special tokens spelled out. As text: ids would need the model's tokenizer, and with it
    /// megabytes of each model that is not in memory any more.
    rendered: String,
    parameters: Value,
}

/// The records.
pub(crate) struct Inspector {
    on: AtomicBool,
    records: Mutex<VecDeque<Record>>,
}

impl Default for Inspector {
    fn default() -> Self {
        Inspector { on: AtomicBool::new(true), records: Mutex::default() }
    }
}

impl Inspector {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches it; off forgets everything.
    pub(crate) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        if !on {
            self.lock().clear();
        }
    }

    /// Notes a request that was queued under this number.
    pub(crate) fn queued(&self, state: &AppState, id: u64, model: &ServedModel, request: Prepared) {
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let summary = RequestSummary {
            id,
            at: now_ms(),
            model: model.id.clone(),
            state: "queued".into(),
            prompt_tokens: request.prompt.len(),
            cached_tokens: None,
            generated: None,
            timings_ms: None,
            error: None,
        };
        state.events().publish("request", &summary);
        let Prepared { prompt, parameters } = request;
        let bytes: Vec<u8> = prompt.iter().flat_map(|&id| model.tokenizer.token_bytes(id)).copied().collect();
        let rendered = String::from_utf8_lossy(&bytes).into_owned();
        let mut records = self.lock();
        records.push_back(Record { summary, rendered, parameters });
        let mut bytes: usize = records.iter().map(|r| r.rendered.len()).sum();
        while records.len() > KEPT || (bytes > BYTES && records.len() > 1) {
            bytes -= records.pop_front().map_or(0, |r| r.rendered.len());
        }
    }

    /// Notes what happens to it.
    pub(crate) fn event(&self, state: &AppState, id: u64, event: &Event) {
        if matches!(event, Event::Prefill { .. } | Event::Delta(_)) {
            return;
        }
        let mut records = self.lock();
        let Some(record) = records.iter_mut().rev().find(|r| r.summary.id == id) else { return };
        let s = &mut record.summary;
        match event {
            Event::Admitted { cached_tokens } => {
                s.state = "running".into();
                s.cached_tokens = Some(*cached_tokens);
            }
            Event::Finished(finish) => {
                s.state = match finish.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length => "length",
                    FinishReason::Cancelled => "cancelled",
                }
                .into();
                s.generated = Some(finish.usage.completion_tokens);
                let t = &finish.timings;
                s.timings_ms = Some([t.queued_s, t.prefill_s, t.decode_s].map(|s| s * 1e3));
            }
            Event::Failed(e) => {
                s.state = "failed".into();
                s.error = Some(e.to_string());
            }
            Event::Prefill { .. } | Event::Delta(_) => {}
        }
        let summary = s.clone();
        drop(records);
        state.events().publish("request", &summary);
    }

    /// The client of this request went away.
    pub(crate) fn gone(&self, state: &AppState, id: u64) {
        let mut records = self.lock();
        let Some(record) = records.iter_mut().rev().find(|r| r.summary.id == id) else { return };
        if !matches!(record.summary.state.as_str(), "queued" | "running") {
            return;
        }
        record.summary.state = "cancelled".into();
        let summary = record.summary.clone();
        drop(records);
        state.events().publish("request", &summary);
    }

    /// All of them, the newest first, and whether it is on.
    pub(crate) fn list(&self) -> Value {
        let requests: Vec<_> = self.lock().iter().rev().map(|r| r.summary.clone()).collect();
        json!({"on": self.on.load(Ordering::Relaxed), "requests": requests})
    }
}

/// What a record keeps of a request.
pub(crate) struct Prepared {
    prompt: Vec<u32>,
    parameters: Value,
}

impl Prepared {
    pub(crate) fn new(r: &GenerateRequest) -> Self {
        let s = &r.sampling;
        let parameters = json!({
            "max_tokens": r.max_tokens, "stop": r.stop, "logprobs": r.logprobs, "ignore_eos": r.ignore_eos,
            "temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k, "min_p": s.min_p,
            "xtc_probability": s.xtc_probability, "xtc_threshold": s.xtc_threshold,
            "repetition_penalty": s.repetition_penalty, "repetition_context_size": s.repetition_context_size,
            "presence_penalty": s.presence_penalty, "frequency_penalty": s.frequency_penalty,
            "logit_bias": s.logit_bias, "seed": s.seed, "hlg": s.hlg,
        });
        Prepared { prompt: r.prompt.clone(), parameters }
    }
}

/// `GET /api/hearth/requests`: the last requests, newest first, without their prompts.
pub(crate) async fn list(State(state): State<AppState>) -> Json<Value> {
    Json(state.inspector().list())
}

/// `GET /api/hearth/requests/{id}`: one request with its prompt as the model saw it, special tokens spelled out.
pub(crate) async fn one(State(state): State<AppState>, Path(id): Path<String>) -> Result<Json<Value>, ServerError> {
    let found = {
        let records = state.inspector().lock();
        let record = records.iter().rev().find(|r| id.parse() == Ok(r.summary.id));
        record.map(|r| (json!(r.summary), r.rendered.clone(), r.parameters.clone()))
    };
    let Some((mut reply, rendered, parameters)) = found else {
        return Err(ServerError::Refused {
            status: StatusCode::NOT_FOUND,
            code: "not_kept",
            message: format!("request {id} is not kept: the inspector keeps the last {KEPT}, and only while it is on"),
        });
    };
    reply["rendered_prompt"] = Value::String(rendered);
    reply["parameters"] = parameters;
    Ok(Json(reply))
}
