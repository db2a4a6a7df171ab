//! One generation as the engine sees it: token ids in, limits and options. Dialects and templates are long past.

use crate::sampling::SamplingParams;

/// One row's worth of work.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// Prompt token ids, at least one, each below the vocabulary size.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` runs to the context limit. Clamped to what the context leaves.
    pub max_tokens: Option<usize>,
    /// The sampler's parameters.
    pub sampling: SamplingParams,
    /// Generation ends when the decoded text contains one of these; the match itself is not part of the text.
    pub stop: Vec<String>,
    /// `Some(k)`: report each token's logprob and the k best alternatives (0–20).
    pub logprobs: Option<u8>,
    /// Go on past end-of-sequence tokens (benchmarks).
    pub ignore_eos: bool,
    /// Lengths of the prompt's stable prefixes, ascending, each below its length: the end of the system prompt, and
    /// of everything that the next turn will begin with. The prompt cache keeps the state there.
    pub boundaries: Vec<usize>,
}

impl GenerateRequest {
    /// A request with this prompt and default options.
    pub fn new(prompt: Vec<u32>) -> Self {
        GenerateRequest {
            prompt,
            max_tokens: None,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            logprobs: None,
            ignore_eos: false,
            boundaries: Vec::new(),
        }
    }

    /// Exactly `tokens` greedy tokens, past any end of sequence: what comparisons and benchmarks ask for.
    pub fn greedy(prompt: &[u32], tokens: usize) -> Self {
        GenerateRequest {
            max_tokens: Some(tokens),
            sampling: SamplingParams::greedy(),
            ignore_eos: true,
            ..GenerateRequest::new(prompt.to_vec())
        }
    }
}
