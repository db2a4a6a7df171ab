//! GGUF metadata → `tokenizer.json` and `tokenizer_config.json`.
//!
//! Two kinds of vocabulary: byte-level BPE (`gpt2`), whose pre-tokenizer is named in the metadata, and SentencePiece (`llama`), whose
//! merges are reconstructed from the scores. The result is the `tokenizers` library's own format and is loaded once to check it.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value as Json, json};
use tokenizers::Tokenizer;

use super::config::SpecialIds;
use super::pretokenizer::{self, PreTokenizer};
use super::reader::{GgufFile, Value};
use crate::LibraryError;

/// Token kinds of `tokenizer.ggml.token_type`.
mod kind {
    pub(super) const NORMAL: u64 = 1;
    pub(super) const UNKNOWN: u64 = 2;
    pub(super) const CONTROL: u64 = 3;
    pub(super) const USER_DEFINED: u64 = 4;
}

/// Texts of control tokens that end a turn. Files often name only one of them as end of sequence.
const TURN_ENDS: [&str; 5] = ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"];

/// The tokenizer's part of a model folder.
#[derive(Debug)]
pub(crate) struct TokenizerFiles {
    /// The content of `tokenizer.json`.
    pub(crate) tokenizer: Vec<u8>,
    /// The content of `tokenizer_config.json`, chat template included.
    pub(crate) config: Json,
    /// Further chat templates: name and text.
    pub(crate) named_templates: Vec<(String, String)>,
    /// The special ids.
    pub(crate) ids: SpecialIds,
}

struct Vocabulary<'a> {
    path: &'a Path,
    tokens: Vec<String>,
    kinds: Vec<u64>,
}

/// Converts the tokenizer of `file`. `rows` is the number of rows of the embedding; `extra_stop` names one more control token that
/// ends a generation, where the model family has one.
pub(crate) fn convert(
    file: &GgufFile,
    rows: u64,
    context: u64,
    extra_stop: Option<&str>,
) -> Result<TokenizerFiles, LibraryError> {
    let path = file.path.as_path();
    let vocabulary = Vocabulary::read(file, rows)?;
    let model = file.need_str("tokenizer.ggml.model")?;
    let mut ids = special_ids(file, &vocabulary)?;
    ids.stops = stops(file, &vocabulary, &ids, extra_stop)?;

    let (parts, bos_by_default) = match model {
        "gpt2" => byte_level_bpe(file, &vocabulary)?,
        "llama" => (sentencepiece(file, &vocabulary)?, true),
        other => {
            return Err(LibraryError::unsupported(
                path,
                "the tokenizer model",
                other,
                "gpt2 (byte-level BPE), llama (SentencePiece)",
            ));
        }
    };
    let add_bos = file.opt_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(bos_by_default) && ids.bos.is_some();
    let add_eos = file.opt_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false) && ids.eos.is_some();
    let text = |id: Option<u64>| id.and_then(|i| vocabulary.tokens.get(i as usize)).map(String::as_str);
    let post =
        post_processor(text(ids.bos).zip(ids.bos).filter(|_| add_bos), text(ids.eos).zip(ids.eos).filter(|_| add_eos));
    let added = vocabulary.added_tokens();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let tokenizer = to_bytes(path, &tokenizer)?;
    check(path, &tokenizer, &vocabulary)?;

    let mut config = Map::new();
    let mut put = |k: &str, v: Json| {
        config.insert(k.to_owned(), v);
    };
    put("add_prefix_space", json!(parts.prefix_space));
    put("add_bos_token", json!(add_bos));
    put("add_eos_token", json!(add_eos));
    put("added_tokens_decoder", vocabulary.added_tokens_decoder());
    put("bos_token", json!(text(ids.bos)));
    put("eos_token", json!(text(ids.eos)));
    put("unk_token", json!(text(file.opt_u64("tokenizer.ggml.unknown_token_id")?)));
    put("pad_token", json!(text(ids.pad)));
    if let Some(template) = file.opt_str("tokenizer.chat_template")? {
        put("chat_template", json!(template));
    }
    put("clean_up_tokenization_spaces", json!(false));
    put("model_max_length", json!(context));
    put("tokenizer_class", json!("PreTrainedTokenizerFast"));
    Ok(TokenizerFiles { tokenizer, config: Json::Object(config), named_templates: named_templates(file)?, ids })
}

impl<'a> Vocabulary<'a> {
    fn read(file: &'a GgufFile, rows: u64) -> Result<Self, LibraryError> {
        let path = file.path.as_path();
        let list = array(file, "tokenizer.ggml.tokens")?
            .ok_or_else(|| LibraryError::missing(path, "metadata key tokenizer.ggml.tokens"))?;
        if list.is_empty() || list.len() as u64 > rows {
            return Err(LibraryError::mismatch(
                path,
                "tokenizer.ggml.tokens",
                format!("from 1 to {rows} tokens (the rows of token_embd.weight)"),
                list.len(),
            ));
        }
        let mut tokens = Vec::with_capacity(list.len());
        let mut seen = HashMap::with_capacity(list.len());
        for (id, value) in list.iter().enumerate() {
            let text = value
                .as_str()
                .ok_or_else(|| LibraryError::mismatch(path, "tokenizer.ggml.tokens", "strings", value.kind()))?;
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() };
            if let Some(first) = seen.insert(text.clone(), id) {
                return Err(LibraryError::mismatch(
                    path,
                    "tokenizer.ggml.tokens",
                    "each token once",
                    format!("{text:?} as id {first} and id {id}"),
                ));
            }
            tokens.push(text);
        }
        let kinds = match array(file, "tokenizer.ggml.token_type")? {
            None => vec![kind::NORMAL; tokens.len()],
            Some(list) if list.len() < tokens.len() => {
                return Err(LibraryError::mismatch(path, "tokenizer.ggml.token_type", tokens.len(), list.len()));
            }
            Some(list) => list.iter().map(|v| v.as_u64().unwrap_or(kind::NORMAL)).collect(),
        };
        Ok(Self { path, tokens, kinds })
    }

    fn kind(&self, id: usize) -> u64 {
        self.kinds.get(id).copied().unwrap_or(kind::NORMAL)
    }

    fn id_of(&self, text: &str) -> Option<u64> {
        self.tokens.iter().position(|t| t == text).map(|i| i as u64)
    }

    /// Ids and texts of the tokens that are matched in the text before anything else, and whether each is special.
    fn added(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        self.tokens.iter().enumerate().filter_map(|(id, text)| match self.kind(id) {
            kind::CONTROL | kind::UNKNOWN => Some((id, text.as_str(), true)),
            kind::USER_DEFINED => Some((id, text.as_str(), false)),
            _ => None,
        })
    }

    fn added_tokens(&self) -> Vec<Json> {
        self.added()
            .map(|(id, text, special)| {
                json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special,
                })
            })
            .collect()
    }

    fn added_tokens_decoder(&self) -> Json {
        let entry = |(id, text, special): (usize, &str, bool)| {
            let token = json!({
                "content": text, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
                "special": special,
            });
            (id.to_string(), token)
        };
        Json::Object(self.added().map(entry).collect())
    }

    fn to_map(&self) -> Map<String, Json> {
        self.tokens.iter().enumerate().map(|(id, text)| (text.clone(), json!(id))).collect()
    }
}

/// The parts of `tokenizer.json` that depend on the kind of vocabulary.
struct Parts {
    normalizer: Json,
    pre_tokenizer: Json,
    decoder: Json,
    model: Json,
    prefix_space: bool,
}

fn byte_level_bpe(file: &GgufFile, vocabulary: &Vocabulary<'_>) -> Result<(Parts, bool), LibraryError> {
    let path = vocabulary.path;
    let name = file.opt_str("tokenizer.ggml.pre")?.unwrap_or("default");
    let PreTokenizer { json: pre_tokenizer, ignore_merges, add_bos } =
        pretokenizer::by_name(name).ok_or_else(|| {
            LibraryError::unsupported(path, "the pre-tokenizer (tokenizer.ggml.pre)", name, pretokenizer::SUPPORTED)
        })?;
    let list = array(file, "tokenizer.ggml.merges")?
        .ok_or_else(|| LibraryError::missing(path, "metadata key tokenizer.ggml.merges"))?;
    let known: HashMap<&str, ()> = vocabulary.tokens.iter().map(|t| (t.as_str(), ())).collect();
    let mut merges = Vec::with_capacity(list.len());
    for value in list {
        let bad = |found: String| {
            LibraryError::mismatch(path, "tokenizer.ggml.merges", "two known tokens that make a known token", found)
        };
        let text = value.as_str().ok_or_else(|| bad(value.kind().to_owned()))?;
        // A piece may itself start with a space.
        let cut = text.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let (left, right) =
            cut.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?))).ok_or_else(|| bad(format!("{text:?}")))?;
        if !known.contains_key(left)
            || !known.contains_key(right)
            || !known.contains_key(format!("{left}{right}").as_str())
        {
            return Err(bad(format!("{text:?}")));
        }
        merges.push(json!([left, right]));
    }
    let prefix_space = file.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(false);
    if prefix_space {
        return Err(LibraryError::unsupported(
            path,
            "tokenizer.ggml.add_space_prefix with a BPE vocabulary",
            true,
            false,
        ));
    }
    let parts = Parts {
        normalizer: Json::Null,
        pre_tokenizer,
        decoder: json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        model: bpe(vocabulary.to_map(), merges, None, ignore_merges),
        prefix_space: false,
    };
    Ok((parts, add_bos))
}

fn sentencepiece(file: &GgufFile, vocabulary: &Vocabulary<'_>) -> Result<Parts, LibraryError> {
    let path = vocabulary.path;
    let list = array(file, "tokenizer.ggml.scores")?
        .ok_or_else(|| LibraryError::missing(path, "metadata key tokenizer.ggml.scores"))?;
    if list.len() < vocabulary.tokens.len() {
        return Err(LibraryError::mismatch(path, "tokenizer.ggml.scores", vocabulary.tokens.len(), list.len()));
    }
    let scores: Vec<f64> = list.iter().map(|v| v.as_f64().unwrap_or(0.0)).collect();
    let merges = merges_from_scores(vocabulary, &scores);

    let unk = file.opt_u64("tokenizer.ggml.unknown_token_id")?.unwrap_or(0);
    let unk = vocabulary.tokens.get(unk as usize).ok_or_else(|| {
        LibraryError::mismatch(path, "tokenizer.ggml.unknown_token_id", "an id of the vocabulary", unk)
    })?;
    let prefix_space = file.opt_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let escape = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let normalizer = if prefix_space {
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, escape]})
    } else {
        json!({"type": "Sequence", "normalizers": [escape]})
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix_space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Parts {
        normalizer,
        pre_tokenizer: Json::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        model: bpe(vocabulary.to_map(), merges, Some(unk), false),
        prefix_space,
    })
}

/// SentencePiece joins the pair whose result has the best score, the leftmost first. As BPE merges that is: every split of every token
/// into two tokens, best score first. The splits of one token stand together; their order among each other could only show in long runs
/// of one repeated piece.
fn merges_from_scores(vocabulary: &Vocabulary<'_>, scores: &[f64]) -> Vec<Json> {
    let mergeable = |id: usize| matches!(vocabulary.kind(id), kind::NORMAL | kind::USER_DEFINED);
    let ids: HashMap<&str, usize> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| mergeable(*id))
        .map(|(id, text)| (text.as_str(), id))
        .collect();
    let mut found: Vec<(f64, usize, usize, usize)> = Vec::new();
    for (id, text) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| mergeable(*id)) {
        let score = scores.get(id).copied().unwrap_or(0.0);
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                found.push((score, id, *l, *r));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2, a.3).cmp(&(b.1, b.2, b.3))));
    let text = |id: usize| vocabulary.tokens.get(id).map(String::as_str).unwrap_or_default();
    found.iter().map(|(_, _, l, r)| json!([text(*l), text(*r)])).collect()
}

fn bpe(vocab: Map<String, Json>, merges: Vec<Json>, unk: Option<&str>, ignore_merges: bool) -> Json {
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": unk,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": unk.is_some(),
        "byte_fallback": unk.is_some(),
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    })
}

fn post_processor(bos: Option<(&str, u64)>, eos: Option<(&str, u64)>) -> Json {
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }
    let special = |t: Option<(&str, u64)>, segment: u8| {
        t.map(|(text, _)| json!({"SpecialToken": {"id": text, "type_id": segment}}))
    };
    let around = |name: &str, segment: u8| -> Vec<Json> {
        let text = json!({"Sequence": {"id": name, "type_id": segment}});
        special(bos, segment).into_iter().chain([text]).chain(special(eos, segment)).collect()
    };
    let tokens: Map<String, Json> = bos
        .into_iter()
        .chain(eos)
        .map(|(text, id)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair: Vec<Json> = around("A", 0).into_iter().chain(around("B", 1)).collect();
    json!({"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": tokens})
}

fn special_ids(file: &GgufFile, vocabulary: &Vocabulary<'_>) -> Result<SpecialIds, LibraryError> {
    let id = |name: &str| -> Result<Option<u64>, LibraryError> {
        let key = format!("tokenizer.ggml.{name}");
        match file.opt_u64(&key)? {
            // llama.cpp writes −1 for "none"; as a u32 that is this.
            Some(n) if n == u64::from(u32::MAX) => Ok(None),
            Some(n) if n >= vocabulary.tokens.len() as u64 => Err(LibraryError::mismatch(
                vocabulary.path,
                format!("metadata key {key}"),
                format!("an id under {}", vocabulary.tokens.len()),
                n,
            )),
            other => Ok(other),
        }
    };
    Ok(SpecialIds {
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        pad: id("padding_token_id")?,
        stops: [id("eos_token_id")?, id("eot_token_id")?, id("eom_token_id")?].into_iter().flatten().collect(),
    })
}

fn stops(
    file: &GgufFile,
    vocabulary: &Vocabulary<'_>,
    ids: &SpecialIds,
    extra: Option<&str>,
) -> Result<Vec<u64>, LibraryError> {
    let mut out: Vec<u64> = Vec::new();
    let by_text = TURN_ENDS.iter().copied().chain(extra).filter_map(|text| vocabulary.id_of(text));
    // Only control tokens: in some vocabularies the same text is an ordinary token. A base model, one without a chat template, may
    // have such tokens untrained, and generation stops there just the same.
    let by_text = by_text.filter(|id| vocabulary.kind(*id as usize) == kind::CONTROL);
    let has_template = file.opt_str("tokenizer.chat_template")?.is_some();
    for id in ids.stops.iter().copied().chain(by_text.filter(|_| has_template)) {
        if !out.contains(&id) {
            out.push(id);
        }
    }
    Ok(out)
}

fn named_templates(file: &GgufFile) -> Result<Vec<(String, String)>, LibraryError> {
    let mut out = Vec::new();
    for key in file.metadata.keys() {
        if let Some(name) = key.strip_prefix("tokenizer.chat_template.")
            && !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            && let Some(text) = file.opt_str(key)?
        {
            out.push((name.to_owned(), text.to_owned()));
        }
    }
    out.sort();
    Ok(out)
}

fn array<'a>(file: &'a GgufFile, key: &str) -> Result<Option<&'a [Value]>, LibraryError> {
    file.opt(key, "an array", Value::as_array)
}

fn to_bytes(path: &Path, value: &Json) -> Result<Vec<u8>, LibraryError> {
    serde_json::to_vec(value).map_err(|e| LibraryError::mismatch(path, "the tokenizer", "JSON", e))
}

/// Loads the result and compares every id: whatever this module gets wrong is found at import, not at the first odd answer.
fn check(path: &Path, bytes: &[u8], vocabulary: &Vocabulary<'_>) -> Result<(), LibraryError> {
    let bad = |found: String| LibraryError::mismatch(path, "the tokenizer", "a vocabulary that loads unchanged", found);
    let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| bad(e.to_string()))?;
    for (id, text) in vocabulary.tokens.iter().enumerate() {
        let found = tokenizer.token_to_id(text);
        if found != Some(id as u32) {
            return Err(bad(format!("{text:?} with id {found:?} instead of {id}")));
        }
    }
    Ok(())
}
