//! What the OpenAI routes answer, as types: field for field what the official clients expect, and a few more.

use hearth_core::event::{self, FinishReason};
use serde::Serialize;
use serde_json::Value;

/// Token counts.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl Usage {
    /// Counts another row in.
    pub(crate) fn add(&mut self, row: &event::Usage) {
        self.prompt_tokens += row.prompt_tokens;
        self.completion_tokens += row.completion_tokens;
        self.total_tokens += row.prompt_tokens + row.completion_tokens;
        self.prompt_tokens_details.cached_tokens += row.cached_tokens;
    }
}

/// Where a row's time went; not part of OpenAI's API.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Timings {
    queued_ms: f64,
    prefill_ms: f64,
    decode_ms: f64,
    ttft_ms: f64,
    prefill_tps: f64,
    decode_tps: f64,
}

impl Timings {
    pub(crate) fn new(finish: &event::Finish) -> Self {
        let t = &finish.timings;
        Timings {
            queued_ms: t.queued_s * 1e3,
            prefill_ms: t.prefill_s * 1e3,
            decode_ms: t.decode_s * 1e3,
            ttft_ms: (t.queued_s + t.prefill_s) * 1e3,
            prefill_tps: t.prefill_tps(&finish.usage),
            decode_tps: t.decode_tps(&finish.usage),
        }
    }
}

/// OpenAI's word for the end. A cancelled row never gets here: its failure is an error.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::Stop | FinishReason::Cancelled => "stop",
    }
}

/// A chat response, or a chunk of one: they differ in `object` and in what a choice holds.
#[derive(Debug, Serialize)]
pub(crate) struct Reply<'a, C> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<C>,
    /// Absent, null (in chunks of a stream that ends with usage), or the counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timings: Option<Timings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
}

/// A choice of a chat response.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice<'a> {
    pub(crate) index: usize,
    pub(crate) message: ChatMessage<'a>,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub(crate) struct ChatMessage<'a> {
    pub(crate) role: &'static str,
    pub(crate) content: &'a str,
    pub(crate) refusal: Option<&'a str>,
}

/// A choice of a chat chunk.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunkChoice<'a> {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta<'a>,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

/// What a chunk adds to the message.
#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<&'a str>,
}

/// Log-probabilities in chat form.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ChatTokenLogprob>,
    pub(crate) refusal: Option<Value>,
}

/// One token of the answer.
#[derive(Debug, Serialize)]
pub(crate) struct ChatTokenLogprob {
    #[serde(flatten)]
    pub(crate) token: TokenLogprob,
    pub(crate) top_logprobs: Vec<TokenLogprob>,
}

/// A token and how likely it was; `bytes` are exact where `token` cannot be (a part of a character).
#[derive(Debug, Serialize)]
pub(crate) struct TokenLogprob {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// A choice of a completion or of a chunk of one.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionChoice<'a> {
    pub(crate) index: usize,
    pub(crate) text: &'a str,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
}

/// Log-probabilities in the older completions form: four lists of one length.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CompletionLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f32>,
    pub(crate) top_logprobs: Vec<serde_json::Map<String, Value>>,
    /// In characters from the start of the choice's text.
    pub(crate) text_offset: Vec<usize>,
}
