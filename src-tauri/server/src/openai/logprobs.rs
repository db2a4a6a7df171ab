//! Log-probabilities of generated tokens in both of OpenAI's forms.

use super::wire::{ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, TokenLogprob};
use hearth_core::backend::ServedModel;
use hearth_core::event::TokenInfo;

/// What stands for minus infinity, which JSON cannot write.
const IMPOSSIBLE: f32 = -9999.0;

/// Tokens that are part of the answer: an end-of-sequence token is not, unless the row goes on past it.
pub(super) fn visible<'a>(
    model: &'a ServedModel,
    tokens: &'a [TokenInfo],
    ignore_eos: bool,
) -> impl Iterator<Item = &'a TokenInfo> {
    tokens.iter().filter(move |t| ignore_eos || !model.eos.contains(&t.id))
}

/// The chat form.
pub(super) fn chat<'a>(model: &ServedModel, tokens: impl Iterator<Item = &'a TokenInfo>) -> ChatLogprobs {
    let content = tokens.map(|t| ChatTokenLogprob {
        token: one(model, t.id, t.logprob.unwrap_or(IMPOSSIBLE)),
        top_logprobs: t.top.iter().map(|&(id, logprob)| one(model, id, logprob)).collect(),
    });
    ChatLogprobs { content: content.collect(), refusal: None }
}

/// The completions form. `offset` is where the first token begins, in characters, and is moved on.
pub(super) fn completion<'a>(
    model: &ServedModel,
    tokens: impl Iterator<Item = &'a TokenInfo>,
    offset: &mut usize,
) -> CompletionLogprobs {
    let mut out = CompletionLogprobs::default();
    for t in tokens {
        let logprob = finite(t.logprob.unwrap_or(IMPOSSIBLE));
        let mut top = serde_json::Map::new();
        // The chosen token is always among them. Part of a character is spelled by its bytes, as OpenAI does: as text
        // such tokens would all look the same.
        for &(id, alternative) in t.top.iter().chain(&[(t.id, logprob)]) {
            top.entry(key(model, id)).or_insert_with(|| finite(alternative).into());
        }
        out.tokens.push(spelling(model, t.id));
        out.token_logprobs.push(logprob);
        out.top_logprobs.push(top);
        out.text_offset.push(*offset);
        // A character counts where it begins, so a token with only the rest of one moves nothing.
        *offset += model.tokenizer.text_bytes(t.id).iter().filter(|&&b| b & 0xc0 != 0x80).count();
    }
    out
}

fn one(model: &ServedModel, id: u32, logprob: f32) -> TokenLogprob {
    let bytes = model.tokenizer.token_bytes(id).to_vec();
    TokenLogprob { token: spelling(model, id), logprob: finite(logprob), bytes }
}

fn spelling(model: &ServedModel, id: u32) -> String {
    String::from_utf8_lossy(model.tokenizer.token_bytes(id)).into_owned()
}

/// A token's name among alternatives: its text, or its bytes in hexadecimal where it is not whole characters.
fn key(model: &ServedModel, id: u32) -> String {
    let bytes = model.tokenizer.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |key, b| key + &format!("\\x{b:02x}")),
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}
