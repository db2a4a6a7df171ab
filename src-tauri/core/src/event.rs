//! What the engine tells about one generation, in order: `Admitted`, then `Prefill` and `Delta` events,
//! then exactly one `Finished` or `Failed`.

use crate::error::EngineError;
use serde::Serialize;

/// One step in the life of a generation.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The row left the queue and is being computed.
    Admitted {
        /// Prompt tokens that a cache already held.
        cached_tokens: usize,
    },
    /// Prompt tokens computed so far (cached ones included).
    Prefill {
        /// Done, in tokens.
        done: usize,
        /// The prompt's length in tokens.
        total: usize,
    },
    /// Text that became final, with the tokens behind it.
    Delta(Delta),
    /// The generation is complete.
    Finished(Finish),
    /// The generation ended early; nothing follows.
    Failed(EngineError),
}

/// Newly final text, always whole UTF-8 characters and never part of a stop string.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delta {
    /// The text; empty only when the tokens behind it show nothing (specials).
    pub text: String,
    /// Tokens generated since the last delta, the end-of-sequence token included.
    pub tokens: Vec<TokenInfo>,
}

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Its id.
    pub id: u32,
    /// Its log-probability after processors and before truncation; only when logprobs were asked for.
    pub logprob: Option<f32>,
    /// The best alternatives, best first: id and log-probability.
    pub top: Vec<(u32, f32)>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// `max_tokens` or the context limit.
    Length,
    /// The receiver went away or asked for it.
    Cancelled,
}

/// The end of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// The stop string that matched, if one did.
    pub stop: Option<String>,
    /// Token counts.
    pub usage: Usage,
    /// Where the time went.
    pub timings: Timings,
}

/// Token counts of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// Prompt length in tokens.
    pub prompt_tokens: usize,
    /// Of these, how many came from a cache.
    pub cached_tokens: usize,
    /// Generated tokens, the end-of-sequence token included.
    pub completion_tokens: usize,
}

/// Where one generation's time went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Timings {
    /// In the queue.
    pub queued_s: f64,
    /// From admission to the first token (prefill and first sample).
    pub prefill_s: f64,
    /// From the first token to the last.
    pub decode_s: f64,
}

impl Timings {
    /// Prefill speed in tokens per second; 0 when unknown.
    pub fn prefill_tps(&self, usage: &Usage) -> f64 {
        rate(usage.prompt_tokens.saturating_sub(usage.cached_tokens), self.prefill_s)
    }

    /// Decode speed in tokens per second over the tokens after the first; 0 when unknown.
    pub fn decode_tps(&self, usage: &Usage) -> f64 {
        rate(usage.completion_tokens.saturating_sub(1), self.decode_s)
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if count == 0 || seconds <= 0.0 { 0.0 } else { count as f64 / seconds }
}
