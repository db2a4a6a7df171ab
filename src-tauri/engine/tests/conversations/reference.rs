//! What the prompt cache has to know, as plainly as it can be said: a list of everything that was computed.

use crate::arms::Answer;
use crate::script::Turn;
use hearth_core::GenerateRequest;

/// Which prefixes of a kept sequence can be continued, beside all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trims {
    /// Any.
    Any,
    /// Any, as long as the sequence is at most this long: then nothing has left a window yet.
    Within(usize),
    /// None.
    None,
}

/// Everything that was kept.
#[derive(Clone)]
pub struct Reference {
    trims: Trims,
    /// The length from which on keys and values are quantized: of a sequence that is as long, no shorter prefix can be
    /// continued, and one that is shorter goes to no disk.
    quantized_from: usize,
    kept: Vec<Vec<u32>>,
}

/// Prompt tokens that have to be computed for a boundary to be kept.
const COLD: usize = 256;

impl Reference {
    pub fn new(trims: Trims) -> Self {
        Reference { trims, quantized_from: 0, kept: Vec::new() }
    }

    /// The same, with keys and values that are quantized from this length on.
    pub fn quantized_from(self, quantized_from: usize) -> Self {
        Reference { quantized_from, ..self }
    }

    /// The same, had it been on disk, where windows are never cut.
    pub fn on_disk(&self) -> Self {
        let trims = if self.trims == Trims::Any { Trims::Any } else { Trims::None };
        let kept = self.kept.iter().filter(|kept| kept.len() >= self.quantized_from).cloned().collect();
        Reference { trims, kept, ..*self }
    }

    /// The longest prefix of the prompt that can be continued; its last token is always computed.
    pub fn longest(&self, prompt: &[u32]) -> usize {
        let known = &prompt[..prompt.len() - 1];
        let usable = |kept: &Vec<u32>| {
            let common = kept.iter().zip(known).take_while(|(a, b)| a == b).count();
            let trims = match self.trims {
                Trims::Any => true,
                Trims::Within(window) => kept.len() <= window,
                Trims::None => false,
            };
            let from = if kept.len() >= self.quantized_from { self.quantized_from } else { 0 };
            if trims && common >= from || common == kept.len() { common } else { 0 }
        };
        self.kept.iter().map(usable).max().unwrap_or(0)
    }

    /// What a request leaves behind: prompt and answer but for its last token, and its prompt's boundaries.
    pub fn keep(&mut self, request: &GenerateRequest, answer: &Answer) {
        let ids = answer.tokens.iter().map(|t| t.id);
        let mut sequence: Vec<u32> = request.prompt.iter().copied().chain(ids).collect();
        sequence.pop();
        self.kept.push(sequence);
        let cold = |&&b: &&usize| b >= answer.usage.cached_tokens + COLD;
        self.kept.extend(request.boundaries.iter().filter(cold).map(|&b| request.prompt[..b].to_vec()));
    }

    /// What this turn's answer leaves behind, among others.
    pub fn after(&self, others: &[(&Turn, &Answer)]) -> Self {
        let mut reference = self.clone();
        others.iter().for_each(|(turn, answer)| reference.keep(&turn.request, answer));
        reference
    }
}
