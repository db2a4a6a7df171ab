//! A tokenizer's special tokens in a prompt's text: where they begin, and at which of them the text can be cut in
//! two without changing a single id.

use aho_corasick::{AhoCorasick, MatchKind};
use hearth_core::tokenizer::Tokenizer;
use std::sync::OnceLock;

/// Texts before and after a special token that show whether the tokenizer looks across it.
const NEIGHBOURS: [(&str, &str); 4] = [("a", "b"), ("a ", " b"), ("a\n", "\nb"), ("é.", "1")];

/// The special tokens of one tokenizer.
pub(crate) struct Specials {
    /// Finds them as tokenizers do: leftmost, and the longest of those that begin there.
    finder: Option<AhoCorasick>,
    /// The token behind each pattern of `finder`.
    ids: Vec<u32>,
    /// Whether a text can be cut before it; found out when it is first met.
    clean: Vec<OnceLock<bool>>,
}

impl Specials {
    /// Those of this tokenizer.
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        let ids = (0..tokenizer.vocab_size() as u32).filter(|&id| tokenizer.is_special(id));
        let ids: Vec<u32> = ids.filter(|&id| !tokenizer.token_bytes(id).is_empty()).collect();
        let texts = ids.iter().map(|&id| tokenizer.token_bytes(id));
        // Fails beyond billions of bytes only; then nothing is ever cut.
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).ok();
        Specials { finder, clean: ids.iter().map(|_| OnceLock::new()).collect(), ids }
    }

    /// Where the text may be cut, in ascending order: there a special token begins, and the ids of the whole are
    /// the ids of what is before it and of what begins with it, one after the other.
    pub(crate) fn cuts(&self, tokenizer: &Tokenizer, text: &str) -> Vec<usize> {
        let Some(finder) = &self.finder else { return Vec::new() };
        let found = finder.find_iter(text);
        found.filter(|m| self.is_clean(tokenizer, m.pattern().as_usize())).map(|m| m.start()).collect()
    }

    /// Whether the text spells a special token.
    pub(crate) fn any(&self, text: &str) -> bool {
        self.finder.as_ref().is_some_and(|f| f.is_match(text))
    }

    fn is_clean(&self, tokenizer: &Tokenizer, pattern: usize) -> bool {
        *self.clean[pattern].get_or_init(|| {
            let (id, encode) = (self.ids[pattern], |text: &str| tokenizer.encode(text, false).ok());
            let token = String::from_utf8_lossy(tokenizer.token_bytes(id));
            NEIGHBOURS.iter().all(|(before, after)| {
                let whole = encode(&format!("{before}{token}{after}"));
                let Some((mut left, right)) = encode(before).zip(encode(&format!("{token}{after}"))) else {
                    return false;
                };
                let begins = right.first() == Some(&id);
                left.extend(right);
                begins && whole == Some(left)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A tokenizer of single letters with one special token `<x>` of these flags.
    fn tokenizer(flags: Value, normalizer: Value) -> Tokenizer {
        let letters = (b'a'..=b'z').chain(*b"1.<> \n_").map(char::from).chain(['é', '▁']);
        let vocab: serde_json::Map<String, Value> =
            letters.zip(0u32..).map(|(c, i)| (c.to_string(), i.into())).collect();
        let mut token = json!({"id": 100, "content": "<x>", "special": true, "single_word": false, "lstrip": false,
                               "rstrip": false, "normalized": false});
        for (key, value) in flags.as_object().unwrap() {
            token[key] = value.clone();
        }
        let json = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
            "added_tokens": [token], "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        Tokenizer::from_json(json.to_string().as_bytes(), "t.json".as_ref()).unwrap()
    }

    #[test]
    fn only_cuts_that_change_nothing() {
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        for (flags, normalizer, clean) in [
            (json!({}), Value::Null, true),
            (json!({}), prepend.clone(), true),
            // Normalized together with its surroundings: what begins with it gets another first character.
            (json!({"normalized": true}), prepend, false),
            (json!({"lstrip": true}), Value::Null, false),
            (json!({"single_word": true}), Value::Null, false),
        ] {
            let t = tokenizer(flags.clone(), normalizer);
            let specials = Specials::new(&t);
            let text = "ab<x>c <x>";
            assert_eq!(specials.cuts(&t, text), if clean { vec![2, 7] } else { vec![] }, "{flags}");
            assert!(specials.any(text) && !specials.any("<x"));
            for cut in specials.cuts(&t, text) {
                let parts = [&text[..cut], &text[cut..]].map(|part| t.encode(part, false).unwrap()).concat();
                assert_eq!(parts, t.encode(text, false).unwrap(), "{flags}");
            }
        }
    }
}
