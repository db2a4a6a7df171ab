//! What a model's `config.json` says about it in short: family, context, quantization.

use serde_json::Value;

/// A quantization setting of `config.json`, in MLX's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantization {
    /// Bits of one weight.
    pub bits: u64,
    /// Weights that share a scale.
    pub group_size: u64,
    /// `affine`, `mxfp4`, `mxfp8` or `nvfp4`.
    pub mode: String,
}

/// The short facts of one `config.json`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// `model_type`, such as `llama`.
    pub model_type: Option<String>,
    /// Longest context in tokens.
    pub context: Option<u64>,
    /// The general quantization setting; single layers may have their own.
    pub quantization: Option<Quantization>,
    /// The quantization method of another library (`gptq`, `awq`, …), which MLX cannot run.
    pub foreign_quantization: Option<String>,
}

impl Summary {
    /// Reads the facts from a parsed `config.json`. What is absent or of another type is `None`.
    pub fn of(config: &Value) -> Self {
        // Models that also see or hear keep the language model's numbers one level down.
        let get = |key: &str| match config.get(key) {
            Some(v) if !v.is_null() => Some(v),
            _ => config.get("text_config").and_then(|t| t.get(key)).filter(|v| !v.is_null()),
        };
        let context = ["max_position_embeddings", "max_sequence_length", "n_positions", "n_ctx", "seq_length"];
        let entry = config.get("quantization").filter(|q| q.is_object());
        let entry = entry.or_else(|| config.get("quantization_config").filter(|q| q.is_object()));
        let method = entry.and_then(|q| q.get("quant_method")).and_then(Value::as_str);
        Self {
            model_type: get("model_type").and_then(Value::as_str).map(str::to_owned),
            context: context.iter().find_map(|key| get(key).and_then(Value::as_u64)),
            quantization: entry.and_then(Quantization::of),
            // MLX reads mxfp4 of other libraries as it is.
            foreign_quantization: method.filter(|m| *m != "mxfp4").map(str::to_owned),
        }
    }

    /// The bits of the layer with that name (`model.layers.0.mlp.up_proj`): its own setting, or the general one.
    pub fn bits(config: &Value, layer: &str) -> Option<u64> {
        let entry = |key: &str| config.get(key).filter(|q| q.is_object());
        let all = entry("quantization").or_else(|| entry("quantization_config"))?;
        match all.get(layer) {
            Some(own) if own.is_object() => Quantization::of(own).map(|q| q.bits),
            _ => Quantization::of(all).map(|q| q.bits),
        }
    }
}

impl Quantization {
    /// Reads one setting; the mode decides what is left out.
    fn of(entry: &Value) -> Option<Self> {
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let number = |key: &str| entry.get(key).and_then(Value::as_u64);
        let mode = match (text("mode"), text("quant_method")) {
            (Some(m), _) => m,
            (None, Some("mxfp4")) => "mxfp4",
            (None, _) => "affine",
        };
        let (bits, group) = match mode {
            "mxfp4" => (Some(4), Some(32)),
            "mxfp8" => (Some(8), Some(32)),
            "nvfp4" => (Some(4), Some(16)),
            _ => (None, None),
        };
        Some(Self {
            bits: number("bits").or(bits)?,
            group_size: number("group_size").or(group).unwrap_or(64),
            mode: mode.to_owned(),
        })
    }

    /// As shown to people: `4-bit`, `mxfp4`.
    pub fn label(&self) -> String {
        match self.mode.as_str() {
            "affine" => format!("{}-bit", self.bits),
            other => other.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn general_and_own_settings_are_told_apart() {
        let config = json!({
            "model_type": "llama", "max_position_embeddings": 8192,
            "quantization": {"group_size": 32, "bits": 4, "a.b": {"group_size": 64, "bits": 8}, "a.c": false},
        });
        let summary = Summary::of(&config);
        assert_eq!(summary.context, Some(8192));
        assert_eq!(summary.quantization.unwrap().label(), "4-bit");
        assert_eq!(Summary::bits(&config, "a.b"), Some(8));
        assert_eq!(Summary::bits(&config, "x"), Some(4));
    }

    #[test]
    fn modes_bring_their_bits_and_groups() {
        let summary = Summary::of(&json!({"quantization": {"mode": "nvfp4"}}));
        let q = summary.quantization.unwrap();
        assert_eq!((q.bits, q.group_size, q.label().as_str()), (4, 16, "nvfp4"));
    }

    #[test]
    fn the_language_part_of_a_multimodal_model_is_read() {
        let summary = Summary::of(&json!({"model_type": "gemma3", "text_config": {"max_position_embeddings": 131072}}));
        assert_eq!((summary.model_type.as_deref(), summary.context), (Some("gemma3"), Some(131_072)));
    }

    #[test]
    fn other_libraries_methods_are_named() {
        let summary = Summary::of(&json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}));
        assert_eq!(summary.foreign_quantization.as_deref(), Some("gptq"));
    }
}
