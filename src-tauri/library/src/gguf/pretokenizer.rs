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
        "deepseek-coder" => plain(splits(&[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
            r"\p{N}",
        ])),
        "deepseek-llm" => plain(splits(&[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            r"\s+$",
            r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
            r"\p{N}+",
        ])),
        "deepseek-v3" => plain(splits(&[
            r"\p{N}{1,3}",
            r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ])),
        "default" => plain(splits(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"])),
        _ => None,
    }
}

/// The letters of the alphabets with case, in deepseek-llm's own enumeration.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}",
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}",
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}",
    r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}",
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}",
    r"\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}",
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}",
    r"\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}",
    r"\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}",
    r"\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
);

fn byte_level(use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn splits(patterns: &[&str]) -> Json {
    let split = |p: &&str| json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": false});
    let steps: Vec<Json> = patterns.iter().map(split).chain([byte_level(false)]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}
