//! How weights are quantized, as `config.json` says it: one default and exceptions by layer.

use crate::error::CoreError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A quantization scheme of MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// w = scale · q + bias per group; 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128.
    Affine,
    /// OCP microscaling FP4: E2M1 values, an E8M0 scale per 32.
    Mxfp4,
    /// OCP microscaling FP8: E4M3 values, an E8M0 scale per 32.
    Mxfp8,
    /// NVIDIA FP4: E2M1 values, an E4M3 scale per 16.
    Nvfp4,
}

impl Mode {
    /// The name in `config.json` and in MLX.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }
}

/// Scheme, bits and group size of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantization {
    /// The scheme.
    pub mode: Mode,
    /// Bits per weight.
    pub bits: u32,
    /// Weights per scale.
    pub group_size: u32,
}

impl Quantization {
    /// Bytes of one weight matrix of `rows` × `cols`, packed words, scales and biases (of `scale_bytes` each).
    pub fn bytes(&self, rows: u64, cols: u64, scale_bytes: u64) -> u64 {
        let per_group = match self.mode {
            Mode::Affine => 2 * scale_bytes,
            _ => 1,
        };
        rows * (cols * u64::from(self.bits) / 8 + cols / u64::from(self.group_size) * per_group)
    }
}

/// The quantization of a whole model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuantizationConfig {
    default: Option<Quantization>,
    layers: BTreeMap<String, Option<Quantization>>,
}

impl QuantizationConfig {
    /// Reads `quantization`, or `quantization_config` where that is absent, of a `config.json`.
    ///
    /// # Errors
    /// [`CoreError::Unsupported`] for a scheme that is not MLX's, [`CoreError::Invalid`] for impossible numbers.
    pub fn from_config(config: &Value, file: &Path) -> Result<Self, CoreError> {
        let block = match (&config["quantization"], &config["quantization_config"]) {
            (Value::Null, Value::Null) => return Ok(Self::default()),
            (Value::Null, q) | (q, _) => q,
        };
        let Some(fields) = block.as_object() else {
            return Err(invalid(file, "quantization", "an object", block));
        };
        if let (Some(method), None) = (fields.get("quant_method"), fields.get("group_size")) {
            return Err(CoreError::Unsupported {
                file: file.to_owned(),
                what: "quant_method".into(),
                found: method.as_str().unwrap_or("?").into(),
                supported: "MLX's own (affine, mxfp4, mxfp8, nvfp4)".into(),
            });
        }
        let default = scheme(block, file, "quantization")?;
        let mut layers = BTreeMap::new();
        for (path, value) in fields {
            let scheme = match value {
                Value::Object(_) => Some(scheme(value, file, path)?),
                Value::Bool(false) => None,
                Value::Bool(true) => Some(default),
                _ => continue,
            };
            layers.insert(path.clone(), scheme);
        }
        Ok(QuantizationConfig { default: Some(default), layers })
    }

    /// The scheme for the layer at this weight path (without `.weight`); `None` is unquantized.
    /// A layer is quantized only where the files hold scales for it: that is the loader's to see.
    pub fn for_layer(&self, path: &str) -> Option<Quantization> {
        match self.layers.get(path) {
            Some(own) => *own,
            None => self.default,
        }
    }
}

fn invalid(file: &Path, what: &str, expected: &str, found: &Value) -> CoreError {
    CoreError::Invalid { file: file.to_owned(), what: what.into(), expected: expected.into(), found: found.to_string() }
}

fn scheme(block: &Value, file: &Path, at: &str) -> Result<Quantization, CoreError> {
    let mode = match block["mode"].as_str() {
        None if block["mode"].is_null() => Mode::Affine,
        Some("affine") => Mode::Affine,
        Some("mxfp4") => Mode::Mxfp4,
        Some("mxfp8") => Mode::Mxfp8,
        Some("nvfp4") => Mode::Nvfp4,
        _ => {
            return Err(CoreError::Unsupported {
                file: file.to_owned(),
                what: format!("{at}.mode"),
                found: block["mode"].to_string(),
                supported: "affine, mxfp4, mxfp8, nvfp4".into(),
            });
        }
    };
    let number = |name: &str, default: u64| match &block[name] {
        Value::Null => Ok(default),
        v => v.as_u64().ok_or_else(|| invalid(file, &format!("{at}.{name}"), "a whole number", v)),
    };
    let (default_bits, default_group) = match mode {
        Mode::Affine => (4, 64),
        Mode::Mxfp4 => (4, 32),
        Mode::Mxfp8 => (8, 32),
        Mode::Nvfp4 => (4, 16),
    };
    let (bits, group) = (number("bits", default_bits)?, number("group_size", default_group)?);
    let (bits_ok, group_ok, expected) = match mode {
        Mode::Affine => (
            matches!(bits, 2..=6 | 8),
            matches!(group, 32 | 64 | 128),
            "2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
        ),
        Mode::Mxfp4 => (bits == 4, group == 32, "4 bits in groups of 32"),
        Mode::Mxfp8 => (bits == 8, group == 32, "8 bits in groups of 32"),
        Mode::Nvfp4 => (bits == 4, group == 16, "4 bits in groups of 16"),
    };
    if !(bits_ok && group_ok) {
        return Err(CoreError::Invalid {
            file: file.to_owned(),
            what: at.into(),
            expected: format!("{} with {expected}", mode.name()),
            found: format!("{bits} bits in groups of {group}"),
        });
    }
    Ok(Quantization { mode, bits: bits as u32, group_size: group as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(v: Value) -> Result<QuantizationConfig, CoreError> {
        QuantizationConfig::from_config(&v, Path::new("config.json"))
    }

    #[test]
    fn one_default_and_exceptions_by_layer() {
        let q = read(json!({"quantization": {"group_size": 32, "bits": 4,
            "model.embed_tokens": {"group_size": 32, "bits": 8}, "lm_head": false, "a": true}}))
        .unwrap();
        let four = Quantization { mode: Mode::Affine, bits: 4, group_size: 32 };
        assert_eq!(q.for_layer("model.layers.0.mlp.up_proj"), Some(four));
        assert_eq!(q.for_layer("model.embed_tokens"), Some(Quantization { bits: 8, ..four }));
        assert_eq!(q.for_layer("lm_head"), None);
        assert_eq!(q.for_layer("a"), Some(four));
        assert_eq!(read(json!({})).unwrap().for_layer("a"), None);
        assert_eq!(four.bytes(2, 64, 4), 2 * (32 + 2 * 8));
    }

    #[test]
    fn what_mlx_cannot_do_is_refused_by_name() {
        for (v, says) in [
            (json!({"quantization": {"bits": 7, "group_size": 64}}), "found 7 bits in groups of 64"),
            (json!({"quantization": {"mode": "mxfp4", "group_size": 64}}), "4 bits in groups of 32"),
            (json!({"quantization": {"mode": "int4"}}), "not supported"),
            (json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}), "gptq"),
            (json!({"quantization": [4]}), "expected an object"),
            (json!({"quantization": {"bits": "4"}}), "a whole number"),
        ] {
            let e = read(v).unwrap_err().to_string();
            assert!(e.contains(says) && e.contains("config.json"), "{e}");
        }
    }
}
