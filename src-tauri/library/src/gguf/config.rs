//! GGUF metadata → `config.json`, and the list of tensors that a model of that configuration has to have.

use serde_json::{Map, Value as Json, json};

use super::reader::{GgufFile, Value};
use super::rope;
use crate::LibraryError;

/// The architectures that can be imported, as printed in errors.
pub(crate) const SUPPORTED_ARCHITECTURES: &str = "llama (with mistral and smollm2), qwen2, qwen3, smollm3";

/// A supported `general.architecture`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    Llama,
    Qwen2,
    Qwen3,
    SmolLm3,
}

impl Arch {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "llama" => Self::Llama,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "smollm3" => Self::SmolLm3,
            _ => return None,
        })
    }

    /// The metadata prefix.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::SmolLm3 => "smollm3",
        }
    }

    /// Whether llama.cpp stores the rows of q and k with the two rotary halves of each head interleaved.
    fn interleaves(self) -> bool {
        matches!(self, Self::Llama | Self::SmolLm3)
    }
}

/// What the import needs to know of the model.
#[derive(Debug, Clone)]
pub(crate) struct ModelConfig {
    pub(crate) arch: Arch,
    pub(crate) layers: u64,
    pub(crate) hidden: u64,
    pub(crate) intermediate: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) vocab: u64,
    pub(crate) context: u64,
    pub(crate) tied: bool,
    attention_bias: bool,
    mlp_bias: bool,
    rms_norm_eps: f64,
    rope_theta: f64,
    rope_scaling: Json,
    sliding_window: Option<u64>,
    /// Per layer: whether it attends through the sliding window only.
    sliding_layers: Vec<bool>,
}

/// One tensor that the model has to have or may have.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// Its name in GGUF.
    pub(crate) gguf: String,
    /// Its name in the Hugging Face model.
    pub(crate) hf: String,
    /// Its shape, rows first.
    pub(crate) shape: Vec<u64>,
    /// The head dimension, where its rows are interleaved.
    pub(crate) interleaved: Option<u64>,
    /// Whether the model works without it.
    pub(crate) optional: bool,
}

impl ModelConfig {
    /// Reads the configuration. `rope_factors` is the content of the tensor `rope_freqs.weight`, if the file has it.
    pub(crate) fn read(file: &GgufFile, rope_factors: Option<&[f32]>) -> Result<Self, LibraryError> {
        let path = &file.path;
        let name = file.need_str("general.architecture")?;
        let arch = Arch::parse(name)
            .ok_or_else(|| LibraryError::unsupported(path, "the architecture", name, SUPPORTED_ARCHITECTURES))?;
        let key = |k: &str| format!("{}.{k}", arch.key());

        if let Some(n) = file.opt_u64(&key("expert_count"))?
            && n > 0
        {
            return Err(LibraryError::unsupported(path, "the number of experts", n, "0 (dense models)"));
        }
        let layers = positive(file, &key("block_count"), 4096)?;
        let hidden = positive(file, &key("embedding_length"), 1 << 24)?;
        let context = positive(file, &key("context_length"), 1 << 40)?;
        let intermediate = per_layer(file, &key("feed_forward_length"), layers)?
            .ok_or_else(|| LibraryError::missing(path, format!("metadata key {}", key("feed_forward_length"))))?;
        let heads = per_layer(file, &key("attention.head_count"), layers)?
            .ok_or_else(|| LibraryError::missing(path, format!("metadata key {}", key("attention.head_count"))))?;
        let kv_heads = per_layer(file, &key("attention.head_count_kv"), layers)?.unwrap_or(heads);
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(LibraryError::mismatch(
                path,
                "the attention heads",
                "a number of heads that is a multiple of the key/value heads",
                format!("{heads} and {kv_heads}"),
            ));
        }
        let head_dim = match file.opt_u64(&key("attention.key_length"))? {
            Some(n) => n,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(LibraryError::mismatch(
                    path,
                    "the embedding length",
                    format!("a multiple of {heads} heads"),
                    hidden,
                ));
            }
        };
        if head_dim == 0 || head_dim > 1 << 16 || !head_dim.is_multiple_of(2) {
            return Err(LibraryError::mismatch(path, "the head dimension", "an even number from 2 to 65536", head_dim));
        }
        for (k, what) in
            [("attention.value_length", "the value length"), ("rope.dimension_count", "the rope dimension count")]
        {
            if let Some(n) = file.opt_u64(&key(k))?
                && n != head_dim
            {
                return Err(LibraryError::unsupported(path, what, n, format!("{head_dim} (the head dimension)")));
            }
        }
        let embedding =
            file.tensor("token_embd.weight").ok_or_else(|| LibraryError::missing(path, "tensor token_embd.weight"))?;
        let vocab = embedding.shape.first().copied().unwrap_or(0);

        let rope_theta = file.opt_f64(&key("rope.freq_base"))?.unwrap_or(10_000.0);
        if rope_theta <= 0.0 {
            return Err(LibraryError::mismatch(path, "the rope base", "a positive number", rope_theta));
        }
        let rms_norm_eps = file.opt_f64(&key("attention.layer_norm_rms_epsilon"))?.ok_or_else(|| {
            LibraryError::missing(path, format!("metadata key {}", key("attention.layer_norm_rms_epsilon")))
        })?;
        let rope_scaling = rope::scaling(file, arch.key(), rope_theta, head_dim, context, rope_factors)?;

        let sliding_window = file.opt_u64(&key("attention.sliding_window"))?.filter(|n| *n > 0);
        let sliding_layers = match sliding_window {
            None => Vec::new(),
            Some(_) => sliding_pattern(file, &key("attention.sliding_window_pattern"), layers)?,
        };
        let bias = |suffix: &str| file.tensor(&format!("blk.0.{suffix}.bias")).is_some();
        Ok(Self {
            arch,
            layers,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            vocab,
            context,
            tied: file.tensor("output.weight").is_none(),
            attention_bias: bias("attn_q"),
            mlp_bias: bias("ffn_gate"),
            rms_norm_eps,
            rope_theta,
            rope_scaling,
            sliding_window,
            sliding_layers,
        })
    }

    /// Every tensor of the model, in the order of the layers.
    pub(crate) fn expected(&self) -> Vec<Expected> {
        let mut out = Vec::new();
        let mut add = |gguf: String, hf: String, shape: &[u64], interleaved: Option<u64>, optional: bool| {
            out.push(Expected { gguf, hf, shape: shape.to_vec(), interleaved, optional });
        };
        let (h, i) = (self.hidden, self.intermediate);
        let (q, kv) = (self.heads.saturating_mul(self.head_dim), self.kv_heads.saturating_mul(self.head_dim));
        let interleaved = self.arch.interleaves().then_some(self.head_dim);
        add("token_embd.weight".into(), "model.embed_tokens.weight".into(), &[self.vocab, h], None, false);
        for n in 0..self.layers {
            let mut part = |gguf: &str, hf: &str, shape: &[u64], interleaved: Option<u64>, optional: bool| {
                add(format!("blk.{n}.{gguf}"), format!("model.layers.{n}.{hf}"), shape, interleaved, optional);
            };
            part("attn_norm.weight", "input_layernorm.weight", &[h], None, false);
            part("attn_q.weight", "self_attn.q_proj.weight", &[q, h], interleaved, false);
            part("attn_k.weight", "self_attn.k_proj.weight", &[kv, h], interleaved, false);
            part("attn_v.weight", "self_attn.v_proj.weight", &[kv, h], None, false);
            part("attn_output.weight", "self_attn.o_proj.weight", &[h, q], None, false);
            // Qwen2 always has biases on q, k and v, and never on o; llama has all four or none.
            if self.attention_bias || self.arch == Arch::Qwen2 {
                part("attn_q.bias", "self_attn.q_proj.bias", &[q], interleaved, false);
                part("attn_k.bias", "self_attn.k_proj.bias", &[kv], interleaved, false);
                part("attn_v.bias", "self_attn.v_proj.bias", &[kv], None, false);
                if self.arch != Arch::Qwen2 {
                    part("attn_output.bias", "self_attn.o_proj.bias", &[h], None, true);
                }
            }
            if self.arch == Arch::Qwen3 {
                part("attn_q_norm.weight", "self_attn.q_norm.weight", &[self.head_dim], None, false);
                part("attn_k_norm.weight", "self_attn.k_norm.weight", &[self.head_dim], None, false);
            }
            part("ffn_norm.weight", "post_attention_layernorm.weight", &[h], None, false);
            for (gguf, hf, rows, cols) in
                [("ffn_gate", "gate_proj", i, h), ("ffn_up", "up_proj", i, h), ("ffn_down", "down_proj", h, i)]
            {
                part(&format!("{gguf}.weight"), &format!("mlp.{hf}.weight"), &[rows, cols], None, false);
                if self.mlp_bias {
                    part(&format!("{gguf}.bias"), &format!("mlp.{hf}.bias"), &[rows], None, false);
                }
            }
        }
        add("output_norm.weight".into(), "model.norm.weight".into(), &[h], None, false);
        if !self.tied {
            add("output.weight".into(), "lm_head.weight".into(), &[self.vocab, h], None, false);
        }
        out
    }

    /// `config.json`. `quantization` is the MLX entry, or null; `dtype` the one of the unquantized weights.
    pub(crate) fn to_json(&self, ids: &SpecialIds, dtype: &str, quantization: &Json) -> Json {
        let all_sliding = !self.sliding_layers.is_empty() && self.sliding_layers.iter().all(|s| *s);
        let (class, model_type) = match self.arch {
            // The one difference between the two: every layer of mistral slides.
            Arch::Llama if all_sliding => ("MistralForCausalLM", "mistral"),
            Arch::Llama => ("LlamaForCausalLM", "llama"),
            Arch::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
            Arch::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
            Arch::SmolLm3 => ("SmolLM3ForCausalLM", "smollm3"),
        };
        let mut c = Map::new();
        let mut put = |k: &str, v: Json| {
            c.insert(k.to_owned(), v);
        };
        put("architectures", json!([class]));
        put("model_type", json!(model_type));
        put("hidden_size", json!(self.hidden));
        put("num_hidden_layers", json!(self.layers));
        put("intermediate_size", json!(self.intermediate));
        put("num_attention_heads", json!(self.heads));
        put("num_key_value_heads", json!(self.kv_heads));
        if self.arch == Arch::Qwen3 || self.head_dim.saturating_mul(self.heads) != self.hidden {
            put("head_dim", json!(self.head_dim));
        }
        put("rms_norm_eps", json!(self.rms_norm_eps));
        put("vocab_size", json!(self.vocab));
        put("max_position_embeddings", json!(self.context));
        put("rope_theta", json!(self.rope_theta));
        put("rope_scaling", self.rope_scaling.clone());
        put("rope_traditional", json!(false));
        put("attention_bias", json!(self.attention_bias));
        put("mlp_bias", json!(self.mlp_bias));
        if self.arch == Arch::SmolLm3 {
            // Not in the metadata: llama.cpp has the interval built in.
            put("no_rope_layer_interval", json!(4));
            put("no_rope_layers", json!((0..self.layers).map(|l| u8::from((l + 1) % 4 != 0)).collect::<Vec<_>>()));
        }
        if let Some(window) = self.sliding_window {
            put("sliding_window", json!(window));
            if matches!(self.arch, Arch::Qwen2 | Arch::Qwen3) {
                put("use_sliding_window", json!(true));
            }
            let kind = |s: &bool| if *s { "sliding_attention" } else { "full_attention" };
            put("layer_types", json!(self.sliding_layers.iter().map(kind).collect::<Vec<_>>()));
        }
        put("hidden_act", json!("silu"));
        put("tie_word_embeddings", json!(self.tied));
        put("bos_token_id", json!(ids.bos));
        put("eos_token_id", json!(ids.eos));
        put("pad_token_id", json!(ids.pad));
        put("torch_dtype", json!(dtype));
        if !quantization.is_null() {
            put("quantization", quantization.clone());
            put("quantization_config", quantization.clone());
        }
        Json::Object(c)
    }
}

/// The ids that `config.json` and `generation_config.json` name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SpecialIds {
    /// Begin of sequence.
    pub(crate) bos: Option<u64>,
    /// The one end of sequence that the metadata names.
    pub(crate) eos: Option<u64>,
    /// Padding.
    pub(crate) pad: Option<u64>,
    /// Every id that ends a generation, `eos` first.
    pub(crate) stops: Vec<u64>,
}

impl SpecialIds {
    /// `generation_config.json`.
    pub(crate) fn to_json(&self) -> Json {
        let eos = match self.stops.as_slice() {
            [] => Json::Null,
            [one] => json!(one),
            many => json!(many),
        };
        json!({"_from_model_config": true, "bos_token_id": self.bos, "eos_token_id": eos, "pad_token_id": self.pad})
    }
}

fn positive(file: &GgufFile, key: &str, most: u64) -> Result<u64, LibraryError> {
    let n = file.need_u64(key)?;
    if n == 0 || n > most {
        return Err(LibraryError::mismatch(&file.path, format!("metadata key {key}"), format!("from 1 to {most}"), n));
    }
    Ok(n)
}

/// A number that may be given once or for each layer; per-layer values have to be the same.
fn per_layer(file: &GgufFile, key: &str, layers: u64) -> Result<Option<u64>, LibraryError> {
    let bad = |found: String| {
        LibraryError::mismatch(&file.path, format!("metadata key {key}"), "one positive integer for all layers", found)
    };
    let number = |v: &Value| match v.as_u64() {
        Some(n) if n > 0 && n <= 1 << 24 => Ok(n),
        Some(n) => Err(bad(n.to_string())),
        None => Err(bad(v.kind().to_owned())),
    };
    match file.get(key) {
        None => Ok(None),
        Some(Value::Array(items)) => {
            if items.len() as u64 != layers {
                return Err(bad(format!("{} values for {layers} layers", items.len())));
            }
            let mut first = None;
            for item in items {
                let n = number(item)?;
                if *first.get_or_insert(n) != n {
                    return Err(bad("values that differ between layers".to_owned()));
                }
            }
            Ok(first)
        }
        Some(v) => number(v).map(Some),
    }
}

/// Which layers slide: the given list of booleans, every n-th layer full, or all.
fn sliding_pattern(file: &GgufFile, key: &str, layers: u64) -> Result<Vec<bool>, LibraryError> {
    let bad = |found: String| {
        LibraryError::mismatch(
            &file.path,
            format!("metadata key {key}"),
            format!("{layers} booleans or one integer"),
            found,
        )
    };
    match file.get(key) {
        None => Ok(vec![true; layers as usize]),
        Some(Value::Array(items)) if items.len() as u64 == layers => items
            .iter()
            .map(|v| v.as_bool().or_else(|| v.as_u64().map(|n| n != 0)).ok_or_else(|| bad(v.kind().to_owned())))
            .collect(),
        Some(Value::Array(items)) => Err(bad(format!("{} values", items.len()))),
        Some(v) => match v.as_u64() {
            Some(n) if n > 0 => Ok((0..layers).map(|l| (l + 1) % n != 0).collect()),
            _ => Err(bad(v.kind().to_owned())),
        },
    }
}
