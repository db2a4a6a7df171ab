//! Text to token ids and back, over the `tokenizers` crate. What this adds: the exact bytes behind every token,
//! so that streaming never shows half a character and never loses a leading space.

use crate::config::read_file;
use crate::error::CoreError;
use serde::Deserialize;
use std::path::Path;
use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

/// More ids than any vocabulary has; beyond it a file is damaged, and would ask for gigabytes.
const MOST_IDS: usize = 1 << 24;

/// A model's tokenizer. Cheap to share behind an `Arc`; every method is `&self`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Bytes of all tokens, one after the other; token `i` is `bytes[starts[i]..starts[i + 1]]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    special: Vec<bool>,
    bos: Option<u32>,
    longest: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

/// How a tokenizer's vocabulary spells bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Spelling {
    /// GPT-2's printable stand-ins for bytes.
    ByteLevel,
    /// SentencePiece: `▁` for a space, `<0xNN>` for a byte.
    Metaspace,
    /// The token's own text.
    Plain,
}

impl Tokenizer {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// [`CoreError::Missing`] or [`CoreError::Invalid`] naming the file.
    pub fn from_file(file: &Path) -> Result<Self, CoreError> {
        let json = read_file(file, "a tokenizer in Hugging Face's format")?;
        Self::from_json(&json, file)
    }

    /// Parses the contents of a `tokenizer.json`; `file` is only for messages.
    ///
    /// # Errors
    /// [`CoreError::Invalid`] naming the file.
    pub fn from_json(json: &[u8], file: &Path) -> Result<Self, CoreError> {
        let invalid = |found: String| CoreError::Invalid {
            file: file.to_owned(),
            what: "tokenizer".into(),
            expected: "a tokenizer in Hugging Face's format".into(),
            found,
        };
        let head: Head = serde_json::from_slice(json).map_err(|e| invalid(e.to_string()))?;
        let mut inner = parse(json, head.model.kind.as_deref()).map_err(|e| invalid(e.to_string()))?;
        // Both would silently change what a prompt means; a server never wants them.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| invalid(e.to_string()))?;
        let spelling = spelling(&head.decoder);
        let added = inner.get_added_tokens_decoder();
        let ids = ids(&inner, added.keys().copied().max());
        if ids > MOST_IDS {
            let file = file.to_owned();
            let (expected, found) = (format!("token ids below {MOST_IDS}"), format!("id {}", ids - 1));
            return Err(CoreError::Invalid { file, what: "tokenizer".into(), expected, found });
        }
        let (mut bytes, mut starts, mut special) = (Vec::new(), Vec::with_capacity(ids + 1), vec![false; ids]);
        for id in 0..ids as u32 {
            starts.push(bytes.len() as u32);
            if let Some(token) = added.get(&id) {
                special[id as usize] = token.special;
                bytes.extend_from_slice(token.content.as_bytes());
            } else if let Some(token) = inner.id_to_token(id) {
                spell(&token, spelling, &mut bytes);
            }
        }
        starts.push(bytes.len() as u32);
        // What the post-processor puts before a text, if it is one id: the bos token.
        let bos = inner.encode("", true).ok().and_then(|e| e.get_ids().first().copied());
        let longest = starts.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0);
        Ok(Tokenizer { inner, bytes, starts, special, bos, longest })
    }

    /// One more than the largest id; ids from here on have no text.
    pub fn vocab_size(&self) -> usize {
        self.special.len()
    }

    /// Token ids of a text; with `add_special`, what the post-processor adds (bos, usually) is there too.
    ///
    /// # Errors
    /// The tokenizer's own message; a text it cannot encode is rare (a model without an unknown token).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, String> {
        self.inner.encode_fast(text, add_special).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
    }

    /// The text of these ids, special tokens left out, invalid UTF-8 replaced.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.text_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id of a token by its exact spelling in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The bytes behind a token, special tokens spelled out; empty beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let i = id as usize;
        if i + 1 < self.starts.len() {
            self.bytes.get(self.starts[i] as usize..self.starts[i + 1] as usize).unwrap_or(&[])
        } else {
            &[]
        }
    }

    /// The bytes that a token adds to the visible text; empty for special tokens.
    pub fn text_bytes(&self, id: u32) -> &[u8] {
        if self.is_special(id) { &[] } else { self.token_bytes(id) }
    }

    /// Whether the token is special (never part of the visible text).
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(true)
    }

    /// Bytes of the longest token.
    pub fn longest_token(&self) -> usize {
        self.longest
    }

    /// The id that the post-processor puts before a text, if any.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }
}

/// The parts of a `tokenizer.json` that are looked at apart from the tokenizer itself; the others are skipped over.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    decoder: serde_json::Value,
    #[serde(default)]
    model: Kind,
}

#[derive(Deserialize, Default)]
struct Kind {
    #[serde(rename = "type", default)]
    kind: Option<String>,
}

/// The tokenizer. Where the model is said to be BPE, as nearly always, it is read as one straight away: to find that
/// out by itself the library makes a tree of the whole vocabulary first, which takes twice as long.
fn parse(json: &[u8], kind: Option<&str>) -> Result<tokenizers::Tokenizer, tokenizers::Error> {
    type Bpe = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;
    match kind {
        Some("BPE") => Ok(serde_json::from_slice::<Bpe>(json)?.into()),
        _ => tokenizers::Tokenizer::from_bytes(json),
    }
}

/// One more than the largest id. `added` is the largest of the added tokens.
fn ids(tokenizer: &tokenizers::Tokenizer, added: Option<u32>) -> usize {
    let (model, size) = (tokenizer.get_model(), tokenizer.get_vocab_size(false));
    // Nearly always the ids have no gaps, and their number says it all; a copy of the vocabulary costs more.
    let dense = u32::try_from(size).is_ok_and(|size| (0..size).all(|id| model.id_to_token(id).is_some()));
    let of_model = if dense { size } else { model.get_vocab().values().max().map_or(0, |&id| id as usize + 1) };
    of_model.max(added.map_or(0, |id| id as usize + 1))
}

fn spelling(decoder: &serde_json::Value) -> Spelling {
    match decoder["type"].as_str() {
        Some("ByteLevel") => Spelling::ByteLevel,
        Some("Metaspace" | "ByteFallback") => Spelling::Metaspace,
        Some("Replace") if decoder["pattern"]["String"] == "▁" => Spelling::Metaspace,
        Some("Sequence") => decoder["decoders"]
            .as_array()
            .and_then(|all| all.iter().map(spelling).find(|s| *s != Spelling::Plain))
            .unwrap_or(Spelling::Plain),
        _ => Spelling::Plain,
    }
}

fn spell(token: &str, spelling: Spelling, out: &mut Vec<u8>) {
    match spelling {
        Spelling::Plain => out.extend_from_slice(token.as_bytes()),
        Spelling::ByteLevel => {
            // A token with a character outside the alphabet is spelled as it is.
            let start = out.len();
            for c in token.chars() {
                match byte_of(c) {
                    Some(b) => out.push(b),
                    None => {
                        out.truncate(start);
                        out.extend_from_slice(token.as_bytes());
                        return;
                    }
                }
            }
        }
        Spelling::Metaspace => {
            let hex = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>')).filter(|h| h.len() == 2);
            match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                Some(b) => out.push(b),
                None => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
            }
        }
    }
}

/// The inverse of GPT-2's byte-to-unicode table: printable Latin-1 stands for itself, the other 68 bytes, in
/// order, for U+0100 and up.
const BYTE_OF: [Option<u8>; 0x144] = {
    let mut table = [None; 0x144];
    let (mut byte, mut other) = (0, 0x100);
    while byte <= 0xff {
        if matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
            table[byte] = Some(byte as u8);
        } else {
            table[other] = Some(byte as u8);
            other += 1;
        }
        byte += 1;
    }
    table
};

fn byte_of(c: char) -> Option<u8> {
    BYTE_OF.get(c as usize).copied().flatten()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A byte-level tokenizer with one token per byte, two specials, and ids in alphabet order.
    pub(crate) fn byte_tokenizer() -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        for b in 0..=255u8 {
            let c = (0u32..0x144).filter_map(char::from_u32).find(|&c| byte_of(c) == Some(b)).unwrap();
            vocab.insert(c.to_string(), b.into());
        }
        let special = |id: u32, content: &str, special: bool| {
            serde_json::json!({"id": id, "content": content, "special": special, "single_word": false,
                               "lstrip": false, "rstrip": false, "normalized": false})
        };
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [special(256, "<|end|>", true), special(257, "<think>", false)],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                      "vocab": vocab, "merges": []},
        });
        Tokenizer::from_json(json.to_string().as_bytes(), Path::new("tokenizer.json")).unwrap()
    }

    #[test]
    fn every_byte_has_its_token_and_back() {
        let t = byte_tokenizer();
        for text in ["Hello, world", "ďábel 🦀\n\ttabs", "日本語", " leading"] {
            let ids = t.encode(text, false).unwrap();
            assert_eq!(ids.len(), text.len(), "one token a byte");
            assert_eq!(t.decode(&ids), text);
        }
    }

    #[test]
    fn specials_are_spelled_out_but_not_visible() {
        let t = byte_tokenizer();
        let ids = t.encode("a<|end|><think>b", false).unwrap();
        assert_eq!(ids, [97, 256, 257, 98]);
        assert_eq!(t.decode(&ids), "a<think>b");
        assert_eq!(t.token_bytes(256), b"<|end|>");
        assert_eq!((t.token_bytes(5000), t.text_bytes(5000)), (&b""[..], &b""[..]));
    }

    #[test]
    fn gaps_between_ids_count() {
        let json = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "KIND", "unk_token": "a",
            "vocab": {"a": 0, "b": 9}, "merges": []}}"#;
        for kind in ["BPE", "WordLevel"] {
            let t = Tokenizer::from_json(json.replace("KIND", kind).as_bytes(), Path::new("t.json")).unwrap();
            assert_eq!(t.vocab_size(), 10, "{kind}");
            assert_eq!((t.token_bytes(9), t.token_bytes(5)), (&b"b"[..], &b""[..]));
        }
    }

    #[test]
    fn sentencepiece_spelling() {
        let mut out = Vec::new();
        for t in ["▁Hello", "<0xC4>", "<0x8F>", "▁▁x", "<0xZZ>"] {
            spell(t, Spelling::Metaspace, &mut out);
        }
        assert_eq!(String::from_utf8(out).unwrap(), " Helloď  x<0xZZ>");
    }

    #[test]
    fn a_broken_file_is_named() {
        let e = Tokenizer::from_json(b"{", Path::new("m/tokenizer.json")).unwrap_err().to_string();
        assert!(e.starts_with("m/tokenizer.json: tokenizer: expected"), "{e}");
        let huge = r#"{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}"#;
        let e = Tokenizer::from_json(huge.as_bytes(), Path::new("m/tokenizer.json")).unwrap_err().to_string();
        assert!(e.contains("below 16777216, found id 4000000000"), "{e}");
        let e = Tokenizer::from_file(Path::new("/nowhere/tokenizer.json")).unwrap_err();
        assert!(matches!(e, CoreError::Missing { .. }), "{e}");
    }
}
