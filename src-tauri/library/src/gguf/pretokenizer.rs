//! The pre-tokenizers that GGUF names in `tokenizer.ggml.pre`, in the `tokenizers` library's form.
//!
//! Each name stands for one or more patterns applied one after the other, every match and every rest a piece of its own.

use serde_json::{Value as Json, json};

/// The names that are known, as printed in errors.
pub(crate) const SUPPORTED: &str = "smollm, llama-bpe, llama3, llama-v3, falcon3, pixtral, lfm2, smaug-bpe, dbrx, qwen2, \
     deepseek-r1-qwen, megrez, stablelm2, hunyuan, tekken, gpt-2, phi-2, olmo, mpt, exaone4, trillion, starcoder, refact, command-r, \
     codeshell, exaone, minerva-7b, falcon, deepseek-llm, deepseek-coder, deepseek-v3, gpt-4o, llama4, default";

/// What a name of `tokenizer.ggml.pre` means.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    /// The `pre_tokenizer` entry of `tokenizer.json`.
    pub(crate) json: Json,
    /// Whether a piece that is a token as a whole is taken without looking at the merges.
    pub(crate) ignore_merges: bool,
    /// Whether a begin-of-sequence token is added unless the file says otherwise.
    pub(crate) add_bos: bool,
}

/// English contractions in any case. Spelled out: a case-insensitive group would also match the long s (ſ).
const CONTRACTIONS: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The pattern of llama 3 and its many descendants; `digits` is how digits group.
fn llama3(digits: &str) -> String {
    format!(
        r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

/// The case-aware pattern of tekken and gpt-4o; `tail` follows a word, `digits` is how digits group.
fn cased(tail: &str, digits: &str) -> String {
    let (upper, lower) = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
    let lead = r"[^\r\n\p{L}\p{N}]?";
    format!(
        r"{lead}{upper}*{lower}+{tail}|{lead}{upper}+{lower}*{tail}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

/// The pre-tokenizer of that name.
pub(crate) fn by_name(name: &str) -> Option<PreTokenizer> {
    let plain = |json: Json| Some(PreTokenizer { json, ignore_merges: false, add_bos: false });
    match name {
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => plain(json!({
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level(true)],
        })),
        "gpt-2" | "phi-2" | "olmo" | "mpt" | "exaone4" | "trillion" => plain(byte_level(true)),
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "lfm2" => {
            Some(PreTokenizer { json: splits(&[&llama3(r"\p{N}{1,3}")]), ignore_merges: true, add_bos: true })
        }
        "smaug-bpe" | "dbrx" => plain(splits(&[&llama3(r"\p{N}{1,3}")])),
        "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" => plain(splits(&[&llama3(r"\p{N}")])),
        "tekken" => Some(PreTokenizer { json: splits(&[&cased("", r"\p{N}")]), ignore_merges: true, add_bos: true }),
        "gpt-4o" | "llama4" => plain(splits(&[&cased(&format!("{CONTRACTIONS}?"), r"\p{N}{1,3}")])),
        "falcon" => plain(splits(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"])),
        "deepseek-coder" => plain(splits(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"])),
        "deepseek-llm" => plain(splits(&[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            "[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ])),
        "deepseek-v3" => plain(splits(&[
            r"\p{N}{1,3}",
            "[一-龥぀-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ])),
        "default" => plain(splits(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"])),
        _ => None,
    }
}

/// The letters of the alphabets with case, in deepseek-llm's own enumeration.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn splits(patterns: &[&str]) -> Json {
    let split = |p: &&str| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false});
    let steps: Vec<Json> = patterns.iter().map(split).chain([byte_level(false)]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}
