//! What was generated lately, as text and as ids. A prompt that begins with the text of an earlier prompt and its
//! answer gets the very ids of both: the same text tokenized anew may have others, and the prompt cache would miss.

use crate::specials::Specials;
use hearth_core::backend::ServedModel;
use hearth_core::event::{Delta, Finish, FinishReason};
use hearth_core::tokenizer::Tokenizer;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Most generations remembered.
const MOST: usize = 256;
/// Most bytes that they may take.
const MOST_BYTES: usize = 64 << 20;

/// A place in a prompt's text and the number of tokens that are before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// In bytes.
    pub(crate) at: usize,
    pub(crate) tokens: usize,
}

/// One finished generation.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// Whose ids these are. Weak: a model that is gone should not stay in memory for them.
    tokenizer: Weak<Tokenizer>,
    prompt: String,
    answer: String,
    /// Of prompt and answer, without an end-of-sequence token at the end.
    ids: Vec<u32>,
    marks: Vec<Mark>,
}

impl Transcript {
    /// Ids of prompt and answer.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Places in the prompt.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    fn bytes(&self) -> usize {
        let ids = self.ids.len() * size_of::<u32>() + self.marks.len() * size_of::<Mark>();
        size_of::<Self>() + self.prompt.len() + self.answer.len() + ids
    }

    /// Whether `text[..end]` is this prompt and answer. `loose`: whitespace around the answer may differ, which
    /// chat templates and clients strip.
    fn is_start_of(&self, text: &str, end: usize, loose: bool) -> bool {
        let answer = text.get(..end).and_then(|start| start.strip_prefix(self.prompt.as_str()));
        answer.is_some_and(|answer| answer == self.answer || (loose && answer.trim() == self.answer.trim()))
    }
}

/// The generations remembered, the least recently used going first.
#[derive(Default)]
pub(crate) struct Transcripts(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_text: HashMap<u64, Slot>,
    /// Keys of `by_text` by the time of their last use.
    by_use: BTreeMap<u64, u64>,
    bytes: usize,
    clock: u64,
}

struct Slot {
    used: u64,
    transcript: Arc<Transcript>,
}

impl Transcripts {
    /// The longest remembered generation that the text begins with, and where it ends in the text: at one of
    /// `cuts`, or at the very end. `chat`: the text is a template's, and before a cut it may have lost whitespace.
    pub(crate) fn longest(
        &self,
        tokenizer: &Arc<Tokenizer>,
        text: &str,
        cuts: &[usize],
        chat: bool,
    ) -> Option<(Arc<Transcript>, usize)> {
        let mut kept = self.lock();
        if kept.by_text.is_empty() {
            return None;
        }
        let ends: Vec<usize> = cuts.iter().copied().filter(|&c| c > 0).chain([text.len()]).collect();
        let keys = keys(tokenizer, text, &ends);
        for (&end, key) in ends.iter().zip(keys).rev() {
            let Some(slot) = kept.by_text.get(&key) else { continue };
            let transcript = slot.transcript.clone();
            // Where nothing follows, the client says how the answer goes on, to the last space.
            let loose = chat && end < text.len();
            let same = std::ptr::eq(transcript.tokenizer.as_ptr(), Arc::as_ptr(tokenizer));
            if same && transcript.is_start_of(text, end, loose) {
                kept.touch(key);
                return Some((transcript, end));
            }
        }
        None
    }

    /// Remembers a generation; others go if there is no room.
    fn remember(&self, tokenizer: &Arc<Tokenizer>, transcript: Transcript) {
        let size = transcript.bytes();
        if size > MOST_BYTES {
            return;
        }
        let text = [transcript.prompt.as_str(), transcript.answer.as_str()].concat();
        let Some(key) = keys(tokenizer, &text, &[text.len()]).pop() else { return };
        let mut kept = self.lock();
        kept.remove(key);
        while kept.by_text.len() >= MOST || kept.bytes + size > MOST_BYTES {
            let Some((_, oldest)) = kept.by_use.first_key_value().map(|(&used, &key)| (used, key)) else { break };
            kept.remove(oldest);
        }
        kept.bytes += size;
        kept.by_text.insert(key, Slot { used: 0, transcript: Arc::new(transcript) });
        kept.touch(key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn touch(&mut self, key: u64) {
        self.clock += 1;
        if let Some(slot) = self.by_text.get_mut(&key) {
            self.by_use.remove(&slot.used);
            slot.used = self.clock;
            self.by_use.insert(self.clock, key);
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(slot) = self.by_text.remove(&key) {
            self.by_use.remove(&slot.used);
            self.bytes -= slot.transcript.bytes();
        }
    }
}

/// A key for the text before each of `ends` (ascending), all in one pass. Whitespace does not count, so that an
/// answer is found under one key however it was trimmed; whoever finds something compares the texts.
fn keys(tokenizer: &Arc<Tokenizer>, text: &str, ends: &[usize]) -> Vec<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325u64 ^ (Arc::as_ptr(tokenizer) as usize as u64);
    let (mut keys, mut from) = (Vec::with_capacity(ends.len()), 0);
    for &end in ends {
        let visible = text[from..end].chars().filter(|c| !c.is_whitespace());
        hash = visible.fold(hash, |h, c| (h ^ u64::from(c)).wrapping_mul(0x0000_0100_0000_01b3));
        keys.push(hash);
        from = end;
    }
    keys
}

/// The text of a prompt whose answer is to be remembered, and what belongs to it.
pub(crate) struct Memo {
    pub(crate) text: String,
    pub(crate) marks: Vec<Mark>,
    pub(crate) specials: Arc<Specials>,
}

/// Writes down one generation while it runs.
pub(crate) struct Recorder {
    kept: Arc<Transcripts>,
    model: Arc<ServedModel>,
    memo: Memo,
    /// Of prompt and answer.
    ids: Vec<u32>,
    /// How many of them are the prompt's.
    prompt: usize,
    answer: String,
}

impl Recorder {
    /// A recorder for the generation of this prompt.
    pub(crate) fn new(kept: Arc<Transcripts>, model: Arc<ServedModel>, memo: Memo, prompt: &[u32]) -> Self {
        Recorder { kept, model, memo, ids: prompt.to_vec(), prompt: prompt.len(), answer: String::new() }
    }

    /// More of the answer.
    pub(crate) fn delta(&mut self, delta: &Delta) {
        self.answer.push_str(&delta.text);
        self.ids.extend(delta.tokens.iter().map(|t| t.id));
    }

    /// The generation is complete: it is remembered, if its ids mean exactly its text.
    pub(crate) fn finished(self, finish: &Finish) {
        let Recorder { kept, model, memo, mut ids, prompt, answer } = self;
        // What a stop string cut off is in the ids and not in the text.
        let whole = finish.stop.is_none() && matches!(finish.reason, FinishReason::Stop | FinishReason::Length);
        let tokenizer = &model.tokenizer;
        let mut generated = &ids[prompt..];
        let ends = generated.last().is_some_and(|id| model.eos.contains(id));
        generated = &generated[..generated.len() - usize::from(ends)];
        let bytes: Vec<u8> = generated.iter().flat_map(|&id| tokenizer.text_bytes(id)).copied().collect();
        // An end in the middle is not what a template would write; a special token that the answer merely spells
        // is one for the tokenizer, in this answer as everywhere else.
        let odd = generated.iter().any(|id| model.eos.contains(id)) || memo.specials.any(&answer);
        if !whole || odd || bytes != answer.as_bytes() {
            return;
        }
        ids.truncate(ids.len() - usize::from(ends));
        let (prompt, marks) = (memo.text, memo.marks);
        let transcript = Transcript { tokenizer: Arc::downgrade(tokenizer), prompt, answer, ids, marks };
        kept.remember(tokenizer, transcript);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ones_push_out_the_oldest() {
        let (kept, tokenizer) = (Transcripts::default(), Arc::new(crate::testing::tokenizer(false)));
        let remember = |prompt: &str, answer: String| {
            let (prompt, tokenizer_of) = (prompt.to_owned(), Arc::downgrade(&tokenizer));
            let ids = vec![0; answer.len()];
            kept.remember(&tokenizer, Transcript { tokenizer: tokenizer_of, prompt, answer, ids, marks: Vec::new() });
        };
        let has = |prompt: &str, answer: &str| {
            let text = format!("{prompt}{answer}");
            kept.longest(&tokenizer, &text, &[], false).is_some_and(|(_, end)| end == text.len())
        };
        let long = "x".repeat(6 << 20);
        remember("small", "ok".into());
        remember("a", long.clone());
        remember("b", long.clone());
        assert!(has("a", &long) && has("b", &long) && has("small", "ok"));
        // Used before the others were asked for.
        has("a", &long);
        remember("c", long.clone());
        assert!(has("a", &long) && has("c", &long) && has("small", "ok") && !has("b", &long));
        remember("d", "x".repeat(20 << 20));
        assert!(!has("d", &"x".repeat(20 << 20)), "more than all the room");
        let counts = || {
            let kept = kept.lock();
            let bytes: usize = kept.by_text.values().map(|slot| slot.transcript.bytes()).sum();
            assert_eq!(kept.bytes, bytes);
            (kept.by_text.len(), kept.by_use.len())
        };
        assert_eq!(counts(), (3, 3));
        // The same text again takes the place of what was there.
        remember("small", "ok".into());
        assert_eq!(counts(), (3, 3));
    }
}
