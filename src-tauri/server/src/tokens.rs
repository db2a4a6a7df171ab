//! From a prompt's text to its ids: earlier answers keep the ids that were generated, the rest is tokenized once, and
//! the prompt's stable beginnings are counted in tokens on the way.

use crate::error::ServerError;
use crate::state::AppState;
use crate::transcripts::{Mark, Memo};
use hearth_core::backend::ServedModel;
use hearth_core::tokenizer::Tokenizer;

/// Shorter prompts get no boundaries: computing them anew costs less than keeping their state.
const LEAST_PROMPT: usize = 256;
/// A boundary before this is not worth a snapshot.
const LEAST_BOUNDARY: usize = 64;
/// A place this close behind a special token, in bytes, is not looked for: the special token's will do.
const CLOSE: usize = 64;
/// How far around a place the text is tokenized again to find a boundary between ordinary tokens, in bytes.
const AROUND: usize = 512;

/// A prompt ready for the engine.
pub(crate) struct Tokens {
    /// Its ids.
    pub(crate) ids: Vec<u32>,
    /// Lengths of its stable beginnings in tokens, ascending, each below its length.
    pub(crate) boundaries: Vec<usize>,
    /// What remembering the answer needs.
    pub(crate) memo: Memo,
}

/// A prompt as a chat template wrote it.
#[derive(Debug, Default)]
pub(crate) struct Rendered {
    /// The prompt.
    pub(crate) text: String,
    /// Other texts that the same template writes, and with which the prompt has a beginning in common.
    pub(crate) stable: Vec<Stable>,
}

/// A beginning that the prompt shares with others.
#[derive(Debug)]
pub(crate) struct Stable {
    /// Bytes in common.
    at: usize,
    /// The other text.
    other: String,
}

impl Stable {
    /// What `text` and `other` have in common.
    pub(crate) fn new(text: &str, other: String) -> Self {
        let mut at = text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        while !text.is_char_boundary(at) || !other.is_char_boundary(at) {
            at -= 1;
        }
        Stable { at, other }
    }
}

/// Prompts with fewer bytes than this cannot have enough tokens for boundaries.
pub(crate) fn may_have_boundaries(text: &str) -> bool {
    text.len() >= LEAST_PROMPT
}

/// Ids of a template's text; the beginning-of-text token is there exactly once, where the model has one.
///
/// # Errors
/// 400 for a text that the tokenizer cannot spell, or that is far too long.
pub(crate) fn chat(state: &AppState, model: &ServedModel, rendered: Rendered) -> Result<Tokens, ServerError> {
    let Rendered { text, stable } = rendered;
    model.check_length(&text)?;
    let tokenizer = &model.tokenizer;
    let specials = state.specials(tokenizer);
    let cuts = specials.cuts(tokenizer, &text);
    let (mut ids, mut marks, start) = known(state, model, &text, &cuts, true);
    // Each stable beginning with the last cut in it. What is in the known part has its mark there, or had its
    // snapshot when that part was new.
    let ahead = stable.iter().filter(|s| s.at >= start).map(|s| {
        let cut = cuts.iter().rev().find(|&&c| c <= s.at).copied().unwrap_or(0);
        (s, cut.max(start))
    });
    let ahead: Vec<(&Stable, usize)> = ahead.collect();
    let inner = ahead.iter().map(|&(_, cut)| cut).filter(|&cut| cut > start);
    let mut ends: Vec<usize> = inner.chain([text.len()]).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut from = start;
    for end in ends {
        let piece = Piece { text: &text[from..end], ids: encode(tokenizer, &text[from..end], false)? };
        for (s, cut) in ahead.iter().filter(|(_, cut)| *cut == from) {
            let more = piece.shared(tokenizer, s.at - cut, s.other.get(*cut..).unwrap_or_default());
            marks.push(Mark { at: s.at, tokens: ids.len() + more.unwrap_or(0) });
        }
        ids.extend(piece.ids);
        from = end;
    }
    if let Some(bos) = tokenizer.bos().filter(|bos| ids.first() != Some(bos)) {
        ids.insert(0, bos);
        marks.iter_mut().for_each(|m| m.tokens += 1);
    }
    let wanted = marks.iter().filter(|m| stable.iter().any(|s| s.at == m.at)).map(|m| m.tokens);
    let mut boundaries: Vec<usize> = wanted.filter(|t| (LEAST_BOUNDARY..ids.len()).contains(t)).collect();
    boundaries.sort_unstable();
    boundaries.dedup();
    if ids.len() < LEAST_PROMPT {
        boundaries.clear();
    }
    Ok(Tokens { ids, boundaries, memo: Memo { text, marks, specials } })
}

/// Ids of a plain prompt; the beginning-of-text token comes first where the model has one, and never twice.
///
/// # Errors
/// 400 for a text that the tokenizer cannot spell, or that is far too long.
pub(crate) fn plain(state: &AppState, model: &ServedModel, text: &str) -> Result<Tokens, ServerError> {
    model.check_length(text)?;
    let tokenizer = &model.tokenizer;
    let specials = state.specials(tokenizer);
    let cuts = specials.cuts(tokenizer, text);
    let (mut ids, marks, start) = known(state, model, text, &cuts, false);
    let has_bos = tokenizer.bos().is_some_and(|bos| text.as_bytes().starts_with(tokenizer.token_bytes(bos)));
    ids.extend(encode(tokenizer, &text[start..], start == 0 && !has_bos)?);
    Ok(Tokens { ids, boundaries: Vec::new(), memo: Memo { text: text.to_owned(), marks, specials } })
}

/// Ids of a text as it stands.
///
/// # Errors
/// 400 for a text that the tokenizer cannot spell.
pub(crate) fn encode(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, ServerError> {
    if text.is_empty() && !add_special {
        return Ok(Vec::new());
    }
    tokenizer.encode(text, add_special).map_err(|e| ServerError::bad(format!("the prompt cannot be tokenized: {e}")))
}

/// The ids of the part of the text that was a prompt and its answer before, with its marks and its length in bytes.
fn known(
    state: &AppState,
    model: &ServedModel,
    text: &str,
    cuts: &[usize],
    chat: bool,
) -> (Vec<u32>, Vec<Mark>, usize) {
    match state.transcripts().longest(&model.tokenizer, text, cuts, chat) {
        Some((transcript, end)) => (transcript.ids().to_vec(), transcript.marks().to_vec(), end),
        None => (Vec::new(), Vec::new(), 0),
    }
}

/// A part of the text between two cuts, with its ids.
struct Piece<'a> {
    text: &'a str,
    ids: Vec<u32>,
}

impl Piece<'_> {
    /// How many of the piece's ids it has in common with `other`, of which the first `at` bytes are the same text;
    /// `None` when that is not worth a look, or cannot be told. Only the text around the place is tokenized again.
    fn shared(&self, tokenizer: &Tokenizer, at: usize, other: &str) -> Option<usize> {
        if at < CLOSE {
            return None;
        }
        // Before it words end in both texts alike.
        let near = self.text.floor_char_boundary(at.saturating_sub(AROUND));
        let from = self.text[near..at].find([' ', '\n']).map_or(near, |i| near + i);
        let from = if near == 0 { 0 } else { from };
        let around = |text: &str| {
            let part = text[from..text.floor_char_boundary(at + CLOSE)].to_owned();
            tokenizer.encode(&part, false).ok().map(|ids| (part, ids))
        };
        let (part, ours) = around(self.text)?;
        let (_, theirs) = around(other)?;
        let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        let cut = from + spelled(tokenizer, &ours[..same]).checked_sub(extra(tokenizer, &ours, &part)?)?;
        // The last of the piece's own tokens that ends there or before.
        let (mut end, extra) = (0, extra(tokenizer, &self.ids, self.text)?);
        let ends = self.ids.iter().map(|&id| {
            end += tokenizer.token_bytes(id).len();
            end
        });
        Some(ends.take_while(|&end| end <= cut + extra).count()).filter(|&n| n > 0)
    }
}

/// Bytes that these tokens spell.
fn spelled(tokenizer: &Tokenizer, ids: &[u32]) -> usize {
    ids.iter().map(|&id| tokenizer.token_bytes(id).len()).sum()
}

/// Bytes that a tokenizer put before a text (SentencePiece puts a space there); `None` when its ids do not spell it.
fn extra(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> Option<usize> {
    spelled(tokenizer, ids).checked_sub(text.len()).filter(|&extra| extra <= 1)
}

#[cfg(test)]
mod tests;
