//! `config.json` as data: the numbers that a decoder-only transformer is built from, checked before anything
//! is allocated. What a family adds to the common fields is one row of [`FAMILIES`].

use crate::error::CoreError;
use crate::layout::{CacheLayout, LayerLayout};
use crate::quantization::QuantizationConfig;
use crate::rope::Rope;
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
}

/// What a family assumes where its config is silent.
struct FamilyRow {
    model_type: &'static str,
    family: Family,
    rope_theta: f64,
    /// Biases on q, k, v and on o that the family always has.
    qkv_bias: bool,
    /// Whether `attention_bias` and `mlp_bias` are read.
    reads_biases: bool,
    /// Whether `layer_types` may name sliding-window layers.
    reads_layer_types: bool,
    qk_norm: bool,
}

const LLAMA: FamilyRow = FamilyRow {
    model_type: "llama",
    family: Family::Llama,
    rope_theta: 10_000.0,
    qkv_bias: false,
    reads_biases: true,
    reads_layer_types: true,
    qk_norm: false,
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
];

/// One layer's differences from its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerConfig {
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
    /// The layers.
    pub layers: Vec<LayerConfig>,
    /// Quantization of the weights.
    pub quantization: QuantizationConfig,
    /// `eos_token_id` of the config.
    pub eos: Vec<u32>,
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
        let f = Fields { config, file };
        let model_type = match &config["model_type"] {
            Value::String(s) => s.clone(),
            other => return Err(f.invalid("model_type", "a string", other)),
        };
        let row = FAMILIES.iter().find(|row| row.model_type == model_type).ok_or_else(|| CoreError::Unsupported {
            file: file.to_owned(),
            what: "model_type".into(),
            found: model_type.clone(),
            supported: FAMILIES.iter().map(|row| row.model_type).collect::<Vec<_>>().join(", "),
        })?;
        match config["hidden_act"].as_str() {
            None | Some("silu" | "swish") => {}
            Some(other) => {
                return Err(CoreError::Unsupported {
                    file: file.to_owned(),
                    what: "hidden_act".into(),
                    found: other.into(),
                    supported: "silu".into(),
                });
            }
        }
        let hidden_size = f.count("hidden_size", None, 1 << 20)?;
        let num_heads = f.count("num_attention_heads", None, 1 << 12)?;
        let num_kv_heads = f.count("num_key_value_heads", Some(num_heads), 1 << 12)?;
        let head_dim = f.count("head_dim", Some(hidden_size / num_heads), 1 << 12)?;
        let num_layers = f.count("num_hidden_layers", None, 1 << 10)?;
        if num_heads % num_kv_heads != 0 {
            let expected = format!("a divisor of num_attention_heads ({num_heads})");
            return Err(f.invalid("num_key_value_heads", &expected, &num_kv_heads.into()));
        }
        if head_dim % 2 != 0 {
            return Err(f.invalid("head_dim", "an even number", &head_dim.into()));
        }
        let rope_block = ["rope_scaling", "rope_parameters"].map(|name| &config[name]);
        let rope_block = rope_block.into_iter().find(|v| !v.is_null()).unwrap_or(&Value::Null);
        let theta = match (f.number("rope_theta")?, rope_block["rope_theta"].as_f64()) {
            (Some(theta), _) | (None, Some(theta)) => theta,
            (None, None) => row.rope_theta,
        };
        if !(theta > 1.0 && (theta as f32).is_finite()) {
            return Err(f.invalid("rope_theta", "a number above 1 that f32 can hold", &theta.into()));
        }
        let traditional = f.flag("rope_traditional")?.unwrap_or(false);
        let bias = |name: &str| if row.reads_biases { f.flag(name).map(|b| b.unwrap_or(false)) } else { Ok(false) };
        let attention_bias = bias("attention_bias")?;
        let eps = f.number("rms_norm_eps")?.unwrap_or(1e-5);
        if !(eps > 0.0 && eps < 1.0) {
            return Err(f.invalid("rms_norm_eps", "a number above 0 and below 1", &eps.into()));
        }
        Ok(ModelConfig {
            family: row.family,
            hidden_size,
            intermediate_size: f.count("intermediate_size", None, 1 << 20)?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: f.count("vocab_size", None, 1 << 24)?,
            rms_norm_eps: eps as f32,
            max_position_embeddings: f.count("max_position_embeddings", Some(2048), 1 << 30)?,
            tie_word_embeddings: f.flag("tie_word_embeddings")?,
            qkv_bias: row.qkv_bias || attention_bias,
            o_bias: attention_bias,
            mlp_bias: bias("mlp_bias")?,
            qk_norm: row.qk_norm,
            rope: Rope::from_config(head_dim, theta, traditional, rope_block, file)?,
            layers: layers(&f, row, num_layers)?,
            quantization: QuantizationConfig::from_config(config, file)?,
            eos: token_ids(&config["eos_token_id"], "eos_token_id", file)?,
            model_type,
        })
    }

    /// The caches that this model's layers need.
    pub fn cache_layout(&self) -> CacheLayout {
        let (kv_heads, head_dim) = (self.num_kv_heads, self.head_dim);
        let layout = |layer: &LayerConfig| match layer.window {
            None => LayerLayout::Full { kv_heads, head_dim },
            Some(window) => LayerLayout::Sliding { kv_heads, head_dim, window },
        };
        CacheLayout { layers: self.layers.iter().map(layout).collect() }
    }
}

/// Parses a JSON file.
///
/// # Errors
/// [`CoreError::Missing`], [`CoreError::Io`] or [`CoreError::Invalid`] with the position of the mistake.
pub fn read_json(file: &Path) -> Result<Value, CoreError> {
    let text = std::fs::read(file).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            CoreError::Missing { file: file.to_owned(), expected: "a JSON file of the model".into() }
        }
        _ => CoreError::Io { file: file.to_owned(), message: e.to_string() },
    })?;
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
    let mut layers = vec![LayerConfig { window: None, rope: true }; count];
    let list = |name: &str| match &f.config[name] {
        Value::Null => Ok(None),
        Value::Array(all) if all.len() == count => Ok(Some(all)),
        other => Err(f.invalid(name, &format!("a list of {count}, one for each layer"), other)),
    };
    if let Some(types) = list("layer_types")?.filter(|_| row.reads_layer_types) {
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
        let listed = list("no_rope_layers")?;
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

/// Typed access to a config's fields, with errors that name them.
struct Fields<'a> {
    config: &'a Value,
    file: &'a Path,
}

impl Fields<'_> {
    fn invalid(&self, what: &str, expected: &str, found: &Value) -> CoreError {
        CoreError::Invalid {
            file: self.file.to_owned(),
            what: what.into(),
            expected: expected.into(),
            found: if found.is_null() { "nothing".into() } else { found.to_string() },
        }
    }

    /// A whole number from 1 to `most`; absent or null is the default, if there is one.
    fn count(&self, name: &str, default: Option<usize>, most: usize) -> Result<usize, CoreError> {
        let value = &self.config[name];
        let found = match (value, default) {
            (Value::Null, Some(d)) => Some(d),
            (v, _) => v.as_u64().map(|n| n as usize),
        };
        found
            .filter(|n| (1..=most).contains(n))
            .ok_or_else(|| self.invalid(name, &format!("a whole number from 1 to {most}"), value))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, CoreError> {
        match &self.config[name] {
            Value::Null => Ok(None),
            v => v.as_f64().map(Some).ok_or_else(|| self.invalid(name, "a number", v)),
        }
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, CoreError> {
        match &self.config[name] {
            Value::Null => Ok(None),
            Value::Bool(b) => Ok(Some(*b)),
            v => Err(self.invalid(name, "true or false", v)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn base() -> Value {
        json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
               "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 288, "rms_norm_eps": 1e-6})
    }

    fn with(changes: Value) -> Result<ModelConfig, CoreError> {
        let mut config = base();
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelConfig::from_json(&config, Path::new("m/config.json"))
    }

    #[test]
    fn families_differ_where_they_should() {
        let llama = with(json!({"attention_bias": true, "mlp_bias": true})).unwrap();
        assert!(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm);
        assert_eq!((llama.head_dim, llama.tie_word_embeddings), (16, None));
        let qwen2 = with(json!({"model_type": "qwen2"})).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.o_bias);
        assert_eq!(qwen2.rope.base, 1e6);
        assert!(with(json!({"model_type": "qwen3", "head_dim": 32})).unwrap().qk_norm);
        let smol = with(json!({"model_type": "smollm3", "no_rope_layer_interval": 2})).unwrap();
        assert_eq!(smol.layers.iter().map(|l| l.rope).collect::<Vec<_>>(), [true, false, true, false]);
    }

    #[test]
    fn sliding_layers_reach_the_cache_layout() {
        let types = json!(["sliding_attention", "full_attention", "sliding_attention", "full_attention"]);
        let m = with(json!({"layer_types": types, "sliding_window": 16})).unwrap();
        assert_eq!(m.cache_layout().bytes(100, 4), 2 * 2 * 32 * 4 * (100 + 16));
    }

    #[test]
    fn rope_parameters_of_newer_configs_are_read() {
        let m = with(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).unwrap();
        assert_eq!(m.rope.base, 5e5);
    }

    #[test]
    fn eos_may_be_one_or_many() {
        assert_eq!(with(json!({"eos_token_id": [1, 106]})).unwrap().eos, [1, 106]);
        assert_eq!(with(json!({"eos_token_id": 2})).unwrap().eos, [2]);
    }

    #[test]
    fn every_bad_field_is_named_with_what_was_expected() {
        for (changes, says) in [
            (json!({"model_type": "mamba"}), "model_type `mamba` is not supported; supported: llama, mistral"),
            (json!({"model_type": 3}), "model_type: expected a string, found 3"),
            (json!({"hidden_size": null}), "hidden_size: expected a whole number from 1 to 1048576, found nothing"),
            (json!({"hidden_size": 0}), "found 0"),
            (json!({"vocab_size": "many"}), "vocab_size"),
            (json!({"num_key_value_heads": 3}), "a divisor of num_attention_heads (4)"),
            (json!({"head_dim": 15}), "an even number"),
            (json!({"hidden_act": "gelu"}), "hidden_act `gelu` is not supported"),
            (json!({"layer_types": ["full_attention"]}), "a list of 4"),
            (json!({"layer_types": ["a", "a", "a", "a"]}), "full_attention or sliding_attention"),
            (json!({"rope_theta": 0.5}), "a number above 1"),
            (json!({"rope_theta": 1e308}), "that f32 can hold"),
            (json!({"rope_scaling": "x"}), "rope_scaling: expected an object"),
            (json!({"rms_norm_eps": -1}), "above 0 and below 1"),
            (json!({"rms_norm_eps": 1e300}), "above 0 and below 1"),
            (json!({"tie_word_embeddings": "yes"}), "true or false"),
            (json!({"eos_token_id": -1}), "a token id or a list"),
            (json!({"model_type": "smollm3", "no_rope_layers": [1, 1, 2, 1]}), "a list of 0 and 1"),
        ] {
            let e = with(changes).unwrap_err().to_string();
            assert!(e.contains(says) && e.starts_with("m/config.json"), "{e}");
        }
    }

    #[test]
    fn a_config_with_nan_is_refused_with_its_position() {
        let dir = std::env::temp_dir().join(format!("hearth-config-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("config.json");
        std::fs::write(&file, "{\"model_type\": \"llama\",\n \"rope_theta\": NaN}").unwrap();
        let e = ModelConfig::read(&file).unwrap_err().to_string();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(e.contains("line 2") && e.contains("expected JSON"), "{e}");
    }
}
