//! `config.json` as data: the numbers that a decoder-only transformer is built from, checked before anything
//! is allocated. What a family adds to the common fields is one row of [`FAMILIES`], and for families that differ by
//! more than defaults a file below.

mod fields;
mod gemma3;
mod lfm2;
mod qwen3_5;
#[cfg(test)]
mod tests;

use crate::error::CoreError;
use crate::files::ordinary;
use crate::layout::{CacheLayout, LayerLayout};
use crate::quantization::QuantizationConfig;
use crate::rope::Rope;
use fields::Fields;
use serde_json::Value;
use std::path::Path;

/// A model family: one architecture, one file of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama and everything shaped like it.
    Llama,
    /// Mistral: Llama's layers under its own name.
    Mistral,
    /// Qwen2: biases on q, k and v.
    Qwen2,
    /// Qwen3: normalized queries and keys.
    Qwen3,
    /// SmolLM3: some layers without rotary embedding.
    SmolLm3,
    /// Gemma 3, text only: sliding windows with their own rotation, four norms to a block.
    Gemma3,
    /// LFM2: short convolutions and attention.
    Lfm2,
    /// Qwen3.5, dense and text only: gated delta nets and gated attention.
    Qwen35,
}

/// The MLP's non-linearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
}

impl Activation {
    /// Its names in configs.
    fn names(self) -> &'static [&'static str] {
        match self {
            Activation::Silu => &["silu", "swish"],
            Activation::GeluTanh => &["gelu_pytorch_tanh"],
        }
    }
}

/// What a family assumes where its config is silent.
struct FamilyRow {
    model_type: &'static str,
    family: Family,
    rope_theta: f64,
    /// Whether the `rope_theta` among the rotary parameters goes before the config's own, as in the reference.
    rope_block_first: bool,
    /// Biases on q, k, v and on o that the family always has.
    qkv_bias: bool,
    /// Whether `attention_bias` and `mlp_bias` are read.
    reads_biases: bool,
    /// Whether `layer_types` may name sliding-window layers.
    reads_layer_types: bool,
    qk_norm: bool,
    /// Key/value heads; `None` is as many as there are query heads.
    kv_heads: Option<usize>,
    /// Elements per head; `None` is the hidden size over the query heads.
    head_dim: Option<usize>,
    /// The field of the norms' epsilon, and its default.
    eps: (&'static str, f64),
    activation: Activation,
    /// What every norm adds to its weights.
    norm_offset: f32,
    /// Whether the config may be inside another one, as its `text_config`.
    nests: bool,
}

const LLAMA: FamilyRow = FamilyRow {
    model_type: "llama",
    family: Family::Llama,
    rope_theta: 10_000.0,
    rope_block_first: false,
    qkv_bias: false,
    reads_biases: true,
    reads_layer_types: true,
    qk_norm: false,
    kv_heads: None,
    head_dim: None,
    eps: ("rms_norm_eps", 1e-5),
    activation: Activation::Silu,
    norm_offset: 0.0,
    nests: false,
};

const QWEN35: FamilyRow = FamilyRow {
    model_type: "qwen3_5",
    family: Family::Qwen35,
    rope_theta: 100_000.0,
    rope_block_first: true,
    reads_layer_types: false,
    qk_norm: true,
    eps: ("rms_norm_eps", 1e-6),
    nests: true,
    ..LLAMA
};

const FAMILIES: &[FamilyRow] = &[
    LLAMA,
    FamilyRow { model_type: "mistral", family: Family::Mistral, ..LLAMA },
    FamilyRow {
        model_type: "qwen2",
        family: Family::Qwen2,
        rope_theta: 1_000_000.0,
        qkv_bias: true,
        reads_biases: false,
        reads_layer_types: false,
        ..LLAMA
    },
    FamilyRow {
        model_type: "qwen3",
        family: Family::Qwen3,
        rope_theta: 1_000_000.0,
        reads_biases: false,
        reads_layer_types: false,
        qk_norm: true,
        ..LLAMA
    },
    FamilyRow { model_type: "smollm3", family: Family::SmolLm3, ..LLAMA },
    FamilyRow {
        model_type: "gemma3_text",
        family: Family::Gemma3,
        rope_theta: 1_000_000.0,
        reads_biases: false,
        reads_layer_types: false,
        qk_norm: true,
        kv_heads: Some(1),
        head_dim: Some(256),
        eps: ("rms_norm_eps", 1e-6),
        activation: Activation::GeluTanh,
        norm_offset: 1.0,
        ..LLAMA
    },
    FamilyRow {
        model_type: "lfm2",
        family: Family::Lfm2,
        rope_theta: 1_000_000.0,
        rope_block_first: true,
        reads_biases: false,
        reads_layer_types: false,
        qk_norm: true,
        eps: ("norm_eps", 1e-5),
        ..LLAMA
    },
    QWEN35,
    FamilyRow { model_type: "qwen3_5_text", ..QWEN35 },
];

/// A short causal convolution, each channel by itself, gated before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConv {
    /// Tokens that it sees, the present one included (at least 2).
    pub taps: usize,
    /// Biases in it and in its projections.
    pub bias: bool,
}

/// Linear attention by the gated delta rule, behind a short convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDelta {
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Elements of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Tokens that its convolution sees (at least 2).
    pub taps: usize,
}

impl GatedDelta {
    /// Channels of its convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
}

/// How a layer looks at other tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixer {
    /// Softmax attention.
    Attention,
    /// A short convolution.
    ShortConv(ShortConv),
    /// Linear attention.
    GatedDelta(GatedDelta),
}

/// One layer's differences from its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerConfig {
    /// How it looks at other tokens.
    pub mixer: Mixer,
    /// Tokens that attention reaches back; `None` is all.
    pub window: Option<usize>,
    /// Whether queries and keys are rotated.
    pub rope: bool,
}

/// A decoder-only transformer's shape.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// `model_type` as written.
    pub model_type: String,
    /// Its family.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads (grouped-query attention).
    pub num_kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Rows of the embedding and of the LM head.
    pub vocab_size: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f32,
    /// What every RMS norm adds to its stored weights.
    pub norm_offset: f32,
    /// The MLP's non-linearity.
    pub activation: Activation,
    /// Embeddings are multiplied by this.
    pub embedding_scale: Option<f32>,
    /// Scores of attention are multiplied by this.
    pub attention_scale: f32,
    /// Attention's outputs are multiplied by the sigmoid of a gate that q's projection makes too.
    pub attention_gate: bool,
    /// The longest context that the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the LM head is the embedding; `None`: it is when the files hold no head.
    pub tie_word_embeddings: Option<bool>,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// A bias on o.
    pub o_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// RMS norms on each head's queries and keys.
    pub qk_norm: bool,
    /// Rotary parameters.
    pub rope: Rope,
    /// Those of layers with a window, where they have their own.
    pub local_rope: Option<Rope>,
    /// The layers.
    pub layers: Vec<LayerConfig>,
    /// Quantization of the weights.
    pub quantization: QuantizationConfig,
    /// `eos_token_id` of the config.
    pub eos: Vec<u32>,
}

/// Whether the engine runs models of this `model_type`.
pub fn is_supported(model_type: &str) -> bool {
    FAMILIES.iter().any(|row| row.model_type == model_type)
}

impl ModelConfig {
    /// Reads and checks a `config.json`.
    ///
    /// # Errors
    /// [`CoreError`] naming the file and the field.
    pub fn read(file: &Path) -> Result<Self, CoreError> {
        Self::from_json(&read_json(file)?, file)
    }

    /// Checks a parsed `config.json`; `file` is only for messages.
    ///
    /// # Errors
    /// [`CoreError`] naming the file and the field.
    pub fn from_json(config: &Value, file: &Path) -> Result<Self, CoreError> {
        let outer = Fields { config, file, within: "" };
        let model_type = match &config["model_type"] {
            Value::String(s) => s.clone(),
            other => return Err(outer.invalid("model_type", "a string", other)),
        };
        let row = FAMILIES.iter().find(|row| row.model_type == model_type).ok_or_else(|| {
            let supported = FAMILIES.iter().map(|row| row.model_type).collect::<Vec<_>>().join(", ");
            outer.unsupported("model_type", &config["model_type"], &supported)
        })?;
        let f = match &config["text_config"] {
            inner @ Value::Object(_) if row.nests => Fields { config: inner, file, within: "text_config." },
            Value::Null => outer,
            other if row.nests => return Err(outer.invalid("text_config", "an object", other)),
            _ => outer,
        };
        for name in ["hidden_act", "hidden_activation"] {
            let names = row.activation.names();
            match f.value(name) {
                Value::Null => {}
                Value::String(found) if names.contains(&found.as_str()) => {}
                other => return Err(f.unsupported(name, other, names[0])),
            }
        }
        let hidden_size = f.count("hidden_size", None, 1 << 20)?;
        let num_heads = f.count("num_attention_heads", None, 1 << 12)?;
        let num_kv_heads = f.count("num_key_value_heads", row.kv_heads.or(Some(num_heads)), 1 << 12)?;
        let head_dim = f.count("head_dim", row.head_dim.or(Some(hidden_size / num_heads)), 1 << 12)?;
        let num_layers = f.count("num_hidden_layers", None, 1 << 10)?;
        if num_heads % num_kv_heads != 0 {
            let expected = format!("a divisor of num_attention_heads ({num_heads})");
            return Err(f.invalid("num_key_value_heads", &expected, &num_kv_heads.into()));
        }
        if head_dim % 2 != 0 {
            return Err(f.invalid("head_dim", "an even number", &head_dim.into()));
        }
        let rope_block = ["rope_scaling", "rope_parameters"].map(|name| f.value(name));
        let rope_block = rope_block.into_iter().find(|v| !v.is_null()).unwrap_or(&Value::Null);
        // Newer configs hold one block for each kind of layer.
        let rope_block = Some(&rope_block["full_attention"]).filter(|v| v.is_object()).unwrap_or(rope_block);
        let theta = f.rope_base("rope_theta", rope_block, row.rope_block_first, row.rope_theta)?;
        let rotated = match row.family {
            Family::Qwen35 => qwen3_5::rotated(&f, rope_block, head_dim)?,
            _ => head_dim,
        };
        let traditional = f.flag("rope_traditional")?.unwrap_or(false);
        let bias = |name: &str| if row.reads_biases { f.flag(name).map(|b| b.unwrap_or(false)) } else { Ok(false) };
        let attention_bias = bias("attention_bias")?;
        let (eps_name, eps) = row.eps;
        let eps = f.number(eps_name)?.unwrap_or(eps);
        if !(eps > 0.0 && eps < 1.0) {
            return Err(f.invalid(eps_name, "a number above 0 and below 1", &eps.into()));
        }
        let mut eos = token_ids(&config["eos_token_id"], "eos_token_id", file)?;
        if !f.within.is_empty() {
            eos.extend(token_ids(f.value("eos_token_id"), "text_config.eos_token_id", file)?);
        }
        let mut model = ModelConfig {
            family: row.family,
            hidden_size,
            intermediate_size: match row.family {
                Family::Lfm2 => lfm2::intermediate_size(&f)?,
                _ => f.count("intermediate_size", None, 1 << 20)?,
            },
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: f.count("vocab_size", None, 1 << 24)?,
            rms_norm_eps: eps as f32,
            norm_offset: row.norm_offset,
            activation: row.activation,
            embedding_scale: None,
            attention_scale: (head_dim as f32).powf(-0.5),
            attention_gate: false,
            max_position_embeddings: f.count("max_position_embeddings", Some(2048), 1 << 30)?,
            tie_word_embeddings: f.flag("tie_word_embeddings")?,
            qkv_bias: row.qkv_bias || attention_bias,
            o_bias: attention_bias,
            mlp_bias: bias("mlp_bias")?,
            qk_norm: row.qk_norm,
            rope: Rope::from_config(rotated, theta, traditional, rope_block, file)?,
            local_rope: None,
            layers: layers(&f, row, num_layers)?,
            quantization: QuantizationConfig::from_config(config, file)?,
            eos,
            model_type,
        };
        match row.family {
            Family::Gemma3 => gemma3::refine(&f, &mut model)?,
            Family::Lfm2 => lfm2::refine(&f, &mut model)?,
            Family::Qwen35 => qwen3_5::refine(&f, &mut model)?,
            Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 => {}
        }
        Ok(model)
    }

    /// The caches that this model's layers need.
    pub fn cache_layout(&self) -> CacheLayout {
        let (kv_heads, head_dim) = (self.num_kv_heads, self.head_dim);
        let layout = |layer: &LayerConfig| match (layer.mixer, layer.window) {
            (Mixer::Attention, None) => LayerLayout::Full { kv_heads, head_dim },
            (Mixer::Attention, Some(window)) => LayerLayout::Sliding { kv_heads, head_dim, window },
            (Mixer::ShortConv(conv), _) => {
                LayerLayout::Recurrent { conv: (conv.taps - 1) * self.hidden_size, state: 0 }
            }
            (Mixer::GatedDelta(delta), _) => LayerLayout::Recurrent {
                conv: (delta.taps - 1) * delta.channels(),
                state: delta.value_heads * delta.value_dim * delta.key_dim,
            },
        };
        CacheLayout { layers: self.layers.iter().map(layout).collect() }
    }
}

/// Reads a file of a model, which is to be `expected`.
///
/// # Errors
/// [`CoreError::Missing`], [`CoreError::Invalid`] where what is there is no file, or [`CoreError::Io`].
pub fn read_file(file: &Path, expected: &str) -> Result<Vec<u8>, CoreError> {
    if ordinary(file).is_err() {
        let (what, found) = ("what is there".into(), "something else".into());
        return Err(CoreError::Invalid { file: file.to_owned(), what, expected: "a file".into(), found });
    }
    std::fs::read(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => CoreError::Missing { file: file.to_owned(), expected: expected.to_owned() },
        _ => CoreError::Io { file: file.to_owned(), message: e.to_string() },
    })
}

/// Parses a JSON file.
///
/// # Errors
/// [`CoreError::Missing`], [`CoreError::Io`] or [`CoreError::Invalid`] with the position of the mistake.
pub fn read_json(file: &Path) -> Result<Value, CoreError> {
    let text = read_file(file, "a JSON file of the model")?;
    serde_json::from_slice(&text).map_err(|e| CoreError::Invalid {
        file: file.to_owned(),
        what: format!("line {} column {}", e.line(), e.column()),
        expected: "JSON".into(),
        found: e.to_string(),
    })
}

/// Reads a field that is a token id, a list of them, or absent.
///
/// # Errors
/// [`CoreError::Invalid`] naming the field.
pub fn token_ids(value: &Value, name: &str, file: &Path) -> Result<Vec<u32>, CoreError> {
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let ids = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(all) => all.iter().map(id).collect(),
        one => id(one).map(|id| vec![id]),
    };
    ids.ok_or_else(|| CoreError::Invalid {
        file: file.to_owned(),
        what: name.into(),
        expected: "a token id or a list of token ids".into(),
        found: value.to_string(),
    })
}

fn layers(f: &Fields<'_>, row: &FamilyRow, count: usize) -> Result<Vec<LayerConfig>, CoreError> {
    match row.family {
        Family::Gemma3 => return gemma3::layers(f, count),
        Family::Lfm2 => return lfm2::layers(f, count),
        Family::Qwen35 => return qwen3_5::layers(f, count),
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::SmolLm3 => {}
    }
    let mut layers = vec![LayerConfig { mixer: Mixer::Attention, window: None, rope: true }; count];
    if let Some(types) = f.per_layer("layer_types", count)?.filter(|_| row.reads_layer_types) {
        for (layer, kind) in layers.iter_mut().zip(types) {
            layer.window = match kind.as_str() {
                Some("full_attention") => None,
                Some("sliding_attention") => Some(f.count("sliding_window", None, 1 << 30)?),
                _ => return Err(f.invalid("layer_types", "full_attention or sliding_attention", kind)),
            };
        }
    }
    if row.family == Family::SmolLm3 {
        let interval = f.count("no_rope_layer_interval", Some(4), 1 << 10)?;
        let listed = f.per_layer("no_rope_layers", count)?;
        for (i, layer) in layers.iter_mut().enumerate() {
            layer.rope = match listed.map(|all| &all[i]) {
                Some(v) => match v.as_u64() {
                    Some(0) => false,
                    Some(1) => true,
                    _ => return Err(f.invalid("no_rope_layers", "a list of 0 and 1", v)),
                },
                None => (i + 1) % interval != 0,
            };
        }
    }
    Ok(layers)
}
