//! Sizes from a `config.json`, for families that the engine runs and for those that it does not yet. What the engine
//! runs is read by [`ModelConfig`], so that the caches here are the ones that it builds; everything else is read here
//! by the names that configs of that kind have in common. A kind of layer that nobody knows is an error, not a guess.

use crate::config::{Activation, Mixer, ModelConfig};
use crate::error::CoreError;
use crate::layout::LayerLayout;
use serde_json::Value;
use std::path::Path;

/// What one layer keeps for a row. A layer may have several of these, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// What the engine's caches can hold.
    Cached {
        /// The layer's number.
        layer: usize,
        /// What it keeps.
        layout: LayerLayout,
    },
    /// One compressed vector a token, from which keys and values of all heads are made (multi-head latent attention).
    Latent {
        /// The layer's number.
        layer: usize,
        /// Elements a token: the rank, the rotated part, and an index where there is one.
        width: usize,
        /// Elements of one head's key and value when they are made from it.
        head_floats: usize,
    },
}

/// Mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u64,
    /// Experts that one token goes through.
    pub per_token: u64,
    /// Width of one.
    pub width: u64,
    /// Width of those that every token goes through.
    pub shared_width: u64,
}

/// A model's sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// `model_type` of the config.
    pub model_type: String,
    /// Whether the engine runs it.
    pub supported: bool,
    /// Why not, and what else is uncertain, in sentences.
    pub notes: Vec<String>,
    /// Longest context that it was made for, in tokens.
    pub context: u64,
    /// Layers.
    pub layers: usize,
    /// What they keep.
    pub states: Vec<State>,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Whether attention has an output gate.
    pub gated: bool,
    /// Width of the widest dense MLP; 0 where there is none.
    pub mlp_width: u64,
    /// Channels of the recurrent layers.
    pub recurrent_width: u64,
    /// Rows of the LM head.
    pub vocab: u64,
    /// Experts, where there are any.
    pub experts: Option<Experts>,
    /// Whether the LM head is the embedding; `None` is what the files say.
    pub tied: Option<bool>,
}

impl Shape {
    /// Reads a parsed `config.json`; `file` is only for messages.
    ///
    /// # Errors
    /// [`CoreError`] naming the field that sizes cannot do without.
    pub fn from_config(config: &Value, file: &Path) -> Result<Self, CoreError> {
        match ModelConfig::from_json(config, file) {
            Ok(model) => Ok(Self::of_model(&model)),
            Err(why) => {
                let inner = ["text_config", "language_config", "llm_config"].map(|name| &config[name]);
                let inner = inner.into_iter().find(|v| v.is_object()).unwrap_or(config);
                let mut shape = General { outer: config, config: inner, file }.read()?;
                shape
                    .notes
                    .insert(0, format!("Hearth does not run this model yet ({why}); sizes are what it would take"));
                Ok(shape)
            }
        }
    }

    /// What the engine runs.
    fn of_model(model: &ModelConfig) -> Self {
        let layout = model.cache_layout().layers.into_iter().enumerate();
        let width = |mixer: Mixer| match mixer {
            Mixer::Attention => 0,
            Mixer::ShortConv(_) => model.hidden_size,
            Mixer::GatedDelta(delta) => delta.channels() + delta.value_heads * delta.value_dim,
        };
        Shape {
            model_type: model.model_type.clone(),
            supported: true,
            notes: Vec::new(),
            context: model.max_position_embeddings as u64,
            layers: model.layers.len(),
            states: layout.map(|(layer, layout)| State::Cached { layer, layout }).collect(),
            hidden: model.hidden_size as u64,
            heads: model.num_heads as u64,
            gated: model.attention_gate,
            // GELU's curve is one more of them.
            mlp_width: model.intermediate_size as u64 * if model.activation == Activation::Silu { 4 } else { 5 } / 4,
            recurrent_width: model.layers.iter().map(|layer| width(layer.mixer)).max().unwrap_or(0) as u64,
            vocab: model.vocab_size as u64,
            experts: None,
            tied: model.tie_word_embeddings,
        }
    }

    /// Floats of a token on its way through the experts: inputs and outputs of each, and four times their width.
    pub(super) fn expert_floats(&self) -> u64 {
        self.experts.map_or(0, |e| e.per_token * (2 * self.hidden + 4 * e.width) + 4 * e.shared_width)
    }
}

/// A config of a family that the engine does not run.
struct General<'a> {
    outer: &'a Value,
    /// The language model's part of it.
    config: &'a Value,
    file: &'a Path,
}

/// The most that a number of this name may be, as in [`ModelConfig`]: products of several of them stay below 2^64.
fn most(name: &str) -> u64 {
    match name {
        "max_position_embeddings" | "sliding_window" | "attention_chunk_size" => 1 << 30,
        "vocab_size" => 1 << 24,
        "hidden_size" | "intermediate_size" | "moe_intermediate_size" | "shared_expert_intermediate_size" => 1 << 20,
        "num_hidden_layers" => 1 << 10,
        _ => 1 << 12,
    }
}

/// Names of one number in the configs of different families, the commonest first.
type Names = &'static [&'static str];

const HIDDEN: Names = &["hidden_size", "n_embd", "d_model"];
const LAYERS: Names = &["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
const HEADS: Names = &["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: Names = &["num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"];
const HEAD_DIM: Names = &["head_dim", "kv_channels", "attention_head_dim"];
const CONTEXT: Names =
    &["max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "n_ctx", "model_max_length"];
const EXPERTS: Names =
    &["num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_routed_experts"];
const PER_TOKEN: Names = &[
    "num_experts_per_tok",
    "experts_per_token",
    "num_experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_k",
    "moe_topk",
];
const EXPERT_WIDTH: Names = &["moe_intermediate_size", "expert_ffn_hidden_size", "expert_ffn_size"];
const WIDTH: Names = &["intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim"];
/// Mamba: value heads, their dimension, elements of the state for each, groups, taps.
const SSM_HEADS: Names = &["mamba_num_heads", "mamba_n_heads", "num_heads"];
const SSM_HEAD_DIM: Names = &["mamba_head_dim", "mamba_d_head", "head_dim"];
const SSM_STATE: Names = &["ssm_state_size", "mamba_d_state", "state_size", "d_state"];
const SSM_GROUPS: Names = &["n_groups", "mamba_n_groups"];
const SSM_TAPS: Names = &["conv_kernel", "mamba_d_conv", "d_conv"];

/// Kinds of layers that configs list.
const KINDS: &str = "full_attention, sliding_attention, chunked_attention, linear_attention, conv, mamba, mlp or moe";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Full,
    Sliding,
    Chunked,
    /// A gated delta net, or what stands for it in this config.
    Linear,
    Conv,
    Mamba,
    Nothing,
    /// A full and a Mamba part side by side.
    Both,
}

impl General<'_> {
    fn read(&self) -> Result<Shape, CoreError> {
        let model_type = self.text("model_type").unwrap_or("unknown").to_owned();
        let kinds = self.kinds(&model_type)?;
        let layers = kinds.len();
        if layers == 0 || layers as u64 > most(LAYERS[0]) {
            return Err(self.invalid("the list of layers", &format!("from 1 to {}", most(LAYERS[0])), &layers.into()));
        }
        let hidden = self.count(HIDDEN, None)?;
        let heads = self.count(HEADS, Some(1))?;
        let mut notes = Vec::new();
        if self.find(CONTEXT).is_none() {
            notes.push("the config does not say how long the context may be; 32768 tokens are assumed".to_owned());
        }
        let mut states = Vec::new();
        // Layers of the last kind read the keys and values of an earlier one (Gemma 3n and 4).
        let own = layers - (self.number("num_kv_shared_layers")?.unwrap_or(0) as usize).min(layers);
        for (layer, kind) in kinds.iter().enumerate().take(own) {
            self.states(layer, *kind, &model_type, hidden, heads, &mut states)?;
        }
        let experts = self.experts()?;
        let recurrent = states.iter().map(|state| match state {
            State::Cached { layout: LayerLayout::Recurrent { conv, .. }, .. } => *conv as u64,
            _ => 0,
        });
        Ok(Shape {
            supported: false,
            notes,
            context: self.count(CONTEXT, Some(32_768))?,
            layers,
            recurrent_width: recurrent.max().unwrap_or(0),
            states,
            hidden,
            heads,
            gated: self.config["attn_output_gate"] == true || self.find(&["full_attention_interval"]).is_some(),
            mlp_width: self.width()?,
            vocab: self.count(&["vocab_size", "padded_vocab_size"], None)?,
            experts,
            tied: self.config["tie_word_embeddings"].as_bool().or(self.outer["tie_word_embeddings"].as_bool()),
            model_type,
        })
    }

    /// The kind of every layer: as listed, or as the family has it.
    fn kinds(&self, model_type: &str) -> Result<Vec<Kind>, CoreError> {
        for name in ["layer_types", "layers_block_type", "hybrid_override_pattern"] {
            match &self.config[name] {
                Value::Array(all) => return all.iter().map(|kind| self.kind(name, kind)).collect(),
                Value::String(all) => {
                    return all.chars().map(|c| self.kind(name, &Value::from(c.to_string()))).collect();
                }
                _ => {}
            }
        }
        let layers = self.count(LAYERS, None)? as usize;
        let every = |interval: u64, last: Kind, others: Kind| -> Vec<Kind> {
            (1..=layers as u64).map(|n| if n.is_multiple_of(interval.max(1)) { last } else { others }).collect()
        };
        let pattern = |default| {
            let names: Names = &["sliding_window_pattern", "_sliding_window_pattern"];
            self.find(names).and_then(Value::as_u64).unwrap_or(default)
        };
        Ok(match model_type {
            "gemma2" => every(2, Kind::Full, Kind::Sliding),
            "gemma3" | "gemma3_text" => every(pattern(6), Kind::Full, Kind::Sliding),
            "gemma4" | "gemma4_text" | "gemma3n" | "gemma3n_text" => every(pattern(5), Kind::Full, Kind::Sliding),
            "cohere2" | "cohere2_moe" => every(pattern(4), Kind::Full, Kind::Sliding),
            "gpt_oss" => every(2, Kind::Full, Kind::Sliding),
            "llama4" | "llama4_text" => every(4, Kind::Full, Kind::Chunked),
            "falcon_h1" => vec![Kind::Both; layers],
            "mamba" | "mamba2" | "falcon_mamba" => vec![Kind::Mamba; layers],
            "jamba" => {
                let period = self.count(&["attn_layer_period"], None)?;
                let offset = self.count(&["attn_layer_offset"], Some(0))?;
                let kind = |n: u64| if n % period.max(1) == offset { Kind::Full } else { Kind::Mamba };
                (0..layers as u64).map(kind).collect()
            }
            "kimi_linear" => {
                let full = self.config["linear_attn_config"]["full_attn_layers"].as_array();
                let Some(full) = full else {
                    return Err(self.invalid("linear_attn_config.full_attn_layers", "a list of layers", &Value::Null));
                };
                // Counted from 1.
                let is_full = |n: &u64| full.iter().any(|v| v.as_u64() == Some(*n));
                (1..=layers as u64).map(|n| if is_full(&n) { Kind::Full } else { Kind::Linear }).collect()
            }
            _ if self.find(&["linear_num_value_heads"]).is_some() => {
                every(self.count(&["full_attention_interval"], Some(4))?, Kind::Full, Kind::Linear)
            }
            "rwkv7" | "recurrent_gemma" | "plamo2" => {
                let known = "families with attention, latent attention, gated delta nets, short convolutions or Mamba";
                return Err(CoreError::Unsupported {
                    file: self.file.to_owned(),
                    what: "the size of a model of model_type".into(),
                    found: model_type.to_owned(),
                    supported: known.into(),
                });
            }
            _ => vec![Kind::Full; layers],
        })
    }

    fn kind(&self, name: &str, value: &Value) -> Result<Kind, CoreError> {
        Ok(match value.as_str() {
            Some("full_attention" | "attention" | "global_attention" | "*") => Kind::Full,
            Some("sliding_attention" | "local_attention") => Kind::Sliding,
            Some("chunked_attention") => Kind::Chunked,
            Some("linear_attention") if self.find(SSM_STATE).is_some() => Kind::Mamba,
            Some("linear_attention") => Kind::Linear,
            Some("conv") if self.find(SSM_STATE).is_some() => Kind::Mamba,
            Some("conv") => Kind::Conv,
            Some("mamba" | "mamba2" | "M") => Kind::Mamba,
            Some("mlp" | "moe" | "-" | "E") => Kind::Nothing,
            Some("hybrid") => Kind::Both,
            _ => return Err(self.invalid(name, KINDS, value)),
        })
    }

    /// What a layer of this kind keeps.
    fn states(
        &self,
        layer: usize,
        kind: Kind,
        model_type: &str,
        hidden: u64,
        heads: u64,
        states: &mut Vec<State>,
    ) -> Result<(), CoreError> {
        let mut keep = |layout| states.push(State::Cached { layer, layout });
        match kind {
            Kind::Nothing => {}
            Kind::Full if self.find(&["kv_lora_rank"]).is_some() => {
                let state = self.latent(layer)?;
                states.push(state);
                // Two attentions to a layer.
                if model_type.starts_with("longcat_flash") {
                    states.push(state);
                }
            }
            Kind::Full => {
                let (kv_heads, head_dim) = self.attention(layer, true, hidden, heads)?;
                keep(LayerLayout::Full { kv_heads, head_dim });
            }
            Kind::Sliding | Kind::Chunked => {
                let (kv_heads, head_dim) = self.attention(layer, false, hidden, heads)?;
                let name: Names = if kind == Kind::Sliding { &["sliding_window"] } else { &["attention_chunk_size"] };
                let window = self.count(name, None)? as usize;
                keep(LayerLayout::Sliding { kv_heads, head_dim, window });
            }
            Kind::Linear => keep(self.linear()?),
            Kind::Conv => {
                let taps = self.count(&["conv_L_cache", "conv_kernel"], Some(3))?;
                keep(LayerLayout::Recurrent { conv: ((taps - 1) * hidden) as usize, state: 0 });
            }
            Kind::Mamba => keep(self.mamba(model_type, hidden)?),
            Kind::Both => {
                keep(self.mamba(model_type, hidden)?);
                let (kv_heads, head_dim) = self.attention(layer, true, hidden, heads)?;
                keep(LayerLayout::Full { kv_heads, head_dim });
            }
        }
        Ok(())
    }

    /// Key/value heads and their dimension; Gemma 4 has others in the layers that see everything.
    fn attention(&self, layer: usize, global: bool, hidden: u64, heads: u64) -> Result<(usize, usize), CoreError> {
        let found = self.find(KV_HEADS);
        let listed = found.and_then(Value::as_array).and_then(|all| all.get(layer)).and_then(Value::as_u64);
        let mut kv_heads = match listed {
            Some(n) if (1..=most(KV_HEADS[0])).contains(&n) => n,
            _ => self.count(KV_HEADS, Some(heads))?,
        };
        let mut head_dim = self.count(HEAD_DIM, Some((hidden / heads).max(1)))?;
        if global {
            head_dim = self.number("global_head_dim")?.unwrap_or(head_dim);
            if self.config["attention_k_eq_v"] == true {
                kv_heads = self.number("num_global_key_value_heads")?.unwrap_or(kv_heads);
            }
        }
        Ok((kv_heads as usize, head_dim as usize))
    }

    /// DeepSeek's latent: its rank and the part that is rotated; with sparse attention an index key as well.
    fn latent(&self, layer: usize) -> Result<State, CoreError> {
        let rank = self.count(&["kv_lora_rank"], None)?;
        let rotated = self.count(&["qk_rope_head_dim"], None)?;
        let index = self.number("index_head_dim")?.unwrap_or(0);
        let key = self.number("qk_nope_head_dim")?.unwrap_or(128);
        let value = self.number("v_head_dim")?.unwrap_or(128);
        Ok(State::Latent { layer, width: (rank + rotated + index) as usize, head_floats: (key + value) as usize })
    }

    /// A gated delta net (Qwen3-Next, Qwen3.5) or Kimi's: the last inputs of its convolutions, and a matrix per head.
    fn linear(&self) -> Result<LayerLayout, CoreError> {
        let kimi = &self.config["linear_attn_config"];
        if kimi.is_object() {
            let inner = General { config: kimi, ..*self };
            let (heads, dim) = (inner.count(&["num_heads"], None)?, inner.count(&["head_dim"], None)?);
            let taps = inner.count(&["short_conv_kernel_size"], Some(4))?;
            let (conv, state) = ((taps - 1) * 3 * heads * dim, heads * dim * dim);
            return Ok(LayerLayout::Recurrent { conv: conv as usize, state: state as usize });
        }
        let key_heads = self.count(&["linear_num_key_heads"], None)?;
        let value_heads = self.count(&["linear_num_value_heads"], None)?;
        let (key, value) = (self.count(&["linear_key_head_dim"], None)?, self.count(&["linear_value_head_dim"], None)?);
        let taps = self.count(&["linear_conv_kernel_dim"], Some(4))?;
        let conv = (taps - 1) * (2 * key_heads * key + value_heads * value);
        Ok(LayerLayout::Recurrent { conv: conv as usize, state: (value_heads * value * key) as usize })
    }

    /// Mamba's convolution and state; the first Mamba has channels, the second heads.
    fn mamba(&self, model_type: &str, hidden: u64) -> Result<LayerLayout, CoreError> {
        let elements = self.count(SSM_STATE, None)?;
        let taps = self.count(SSM_TAPS, Some(4))?;
        let first = matches!(model_type, "mamba" | "falcon_mamba" | "jamba");
        let (channels, groups) = if first {
            let expanded = self.count(&["mamba_expand", "expand"], Some(2))? * hidden;
            (self.number("intermediate_size")?.filter(|_| model_type != "jamba").unwrap_or(expanded), 0)
        } else {
            (self.count(SSM_HEADS, None)? * self.count(SSM_HEAD_DIM, None)?, self.count(SSM_GROUPS, Some(1))?)
        };
        let conv = (taps - 1) * (channels + 2 * groups * elements);
        Ok(LayerLayout::Recurrent { conv: conv as usize, state: (channels * elements) as usize })
    }

    fn experts(&self) -> Result<Option<Experts>, CoreError> {
        let count = match self.find(EXPERTS) {
            Some(v) if v.as_u64() == Some(0) => return Ok(None),
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_u64).max().unwrap_or(0).min(most(EXPERTS[0])),
            Some(_) => self.count(EXPERTS, None)?,
            None => return Ok(None),
        };
        let per_token = match self.find(PER_TOKEN) {
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_u64).max().unwrap_or(1),
            // Llama 4 and the like: one.
            _ => self.count(PER_TOKEN, Some(1))?,
        };
        let width = match self.find(EXPERT_WIDTH) {
            Some(Value::Array(all)) => {
                all.iter().filter_map(Value::as_u64).max().unwrap_or(0).min(most(EXPERT_WIDTH[0]))
            }
            _ => self.count(EXPERT_WIDTH, Some(self.width()?))?,
        };
        let shared = ["n_shared_experts", "num_shared_experts"].map(|name| self.config[name].as_u64());
        let shared = shared.into_iter().flatten().next().unwrap_or(0).min(64) * width;
        let shared_width = self.number("shared_expert_intermediate_size")?.unwrap_or(shared);
        Ok(Some(Experts { count: count.max(1), per_token: per_token.min(count.max(1)), width, shared_width }))
    }

    /// Width of the widest MLP.
    fn width(&self) -> Result<u64, CoreError> {
        match self.find(WIDTH) {
            Some(Value::Array(all)) => Ok(all.iter().filter_map(Value::as_u64).max().unwrap_or(0).min(most(WIDTH[0]))),
            Some(_) => self.count(WIDTH, None),
            None => Ok(0),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.config[name].as_str().or_else(|| self.outer[name].as_str())
    }

    /// The value under the first of these names that is there.
    fn find(&self, names: &[&str]) -> Option<&Value> {
        names.iter().map(|name| &self.config[*name]).find(|v| !v.is_null())
    }

    /// A whole number from 0 on, if it is there.
    fn number(&self, name: &str) -> Result<Option<u64>, CoreError> {
        match &self.config[name] {
            Value::Null => Ok(None),
            v => match v.as_u64().filter(|n| *n <= most(name)) {
                Some(n) => Ok(Some(n)),
                None => Err(self.invalid(name, &format!("a whole number up to {}", most(name)), v)),
            },
        }
    }

    /// A whole number from 1 on, under the first of these names; without it the default, if there is one.
    fn count(&self, names: &[&str], default: Option<u64>) -> Result<u64, CoreError> {
        let (found, name) = (self.find(names), names.first().copied().unwrap_or_default());
        match (found, default) {
            (None, Some(default)) => Ok(default.max(1)),
            (found, _) => {
                let value = found.unwrap_or(&Value::Null);
                // Some write counts as floats.
                let n = value
                    .as_u64()
                    .or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x > 0.0).map(|x| x as u64));
                let expected = format!("a whole number from 1 to {}", most(name));
                n.filter(|n| (1..=most(name)).contains(n)).ok_or_else(|| self.invalid(name, &expected, value))
            }
        }
    }

    fn invalid(&self, what: &str, expected: &str, found: &Value) -> CoreError {
        CoreError::Invalid {
            file: self.file.to_owned(),
            what: what.to_owned(),
            expected: expected.to_owned(),
            found: if found.is_null() { "nothing".into() } else { found.to_string() },
        }
    }
}
