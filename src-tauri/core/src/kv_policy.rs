//! How keys and values are kept: as computed, or in 4 or 8 bits, layer by layer. The command line gives the rule for
//! all layers, a model's `kv_config.json` its exceptions:
//!
//! ```json
//! { "bits": 8, "layers": { "0": { "bits": null }, "5": { "bits": 4 } } }
//! ```

use crate::config::read_json;
use crate::error::CoreError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Elements that share a scale.
pub const GROUP: usize = 64;

/// Bits of keys and values; `None` is as computed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvPolicy {
    /// For layers that are not listed.
    pub bits: Option<u8>,
    /// Layers that differ.
    pub layers: BTreeMap<usize, Option<u8>>,
}

impl KvPolicy {
    /// The policy for the model in this folder of `layers` layers: `asked` (a command line's) goes before the
    /// file's own rule for all layers, the file's single layers go before both.
    ///
    /// # Errors
    /// [`CoreError`] naming the file and the field.
    pub fn for_model(folder: &Path, layers: usize, asked: Option<u8>) -> Result<Self, CoreError> {
        let file = folder.join("kv_config.json");
        let mut policy = if file.exists() { Self::parse(&read_json(&file)?, layers, &file)? } else { Self::default() };
        policy.bits = asked.or(policy.bits);
        Ok(policy)
    }

    fn parse(json: &Value, layers: usize, file: &Path) -> Result<Self, CoreError> {
        let invalid = |what: &str, expected: &str, found: &Value| CoreError::Invalid {
            file: file.to_owned(),
            what: what.into(),
            expected: expected.into(),
            found: found.to_string(),
        };
        let fields = |what: &str, value: &Value, known: &[&str]| match value.as_object() {
            None => Err(invalid(what, "an object", value)),
            Some(map) => match map.iter().find(|(name, _)| !known.contains(&name.as_str())) {
                Some((name, value)) => Err(invalid(name, &format!("only {}", known.join(", ")), value)),
                None => Ok(()),
            },
        };
        let bits = |value: &Value| match value.as_u64() {
            None if value.is_null() => Ok(None),
            Some(n @ (4 | 8)) => Ok(Some(n as u8)),
            _ => Err(invalid("bits", "4, 8 or null", value)),
        };
        fields("kv_config.json", json, &["bits", "group_size", "layers"])?;
        if let Some(group) = json.get("group_size").filter(|g| g.as_u64() != Some(GROUP as u64)) {
            return Err(invalid("group_size", &GROUP.to_string(), group));
        }
        let mut policy = KvPolicy { bits: bits(&json["bits"])?, layers: BTreeMap::new() };
        let listed = &json["layers"];
        if !listed.is_null() && !listed.is_object() {
            return Err(invalid("layers", "an object of layer numbers", listed));
        }
        for (name, layer) in listed.as_object().into_iter().flatten() {
            let Some(n) = name.parse().ok().filter(|&n: &usize| n < layers) else {
                return Err(invalid("layers", &format!("layer numbers below {layers}"), &Value::from(name.as_str())));
            };
            fields("layers", layer, &["bits"])?;
            policy.layers.insert(n, bits(&layer["bits"])?);
        }
        Ok(policy)
    }

    /// Bits of a layer's keys and values.
    pub fn layer(&self, layer: usize) -> Option<u8> {
        self.layers.get(&layer).copied().unwrap_or(self.bits)
    }

    /// The policy as a short text, different for different policies.
    pub fn signature(&self) -> String {
        let name = |bits: Option<u8>| bits.map_or("float".to_owned(), |bits| bits.to_string());
        let layers = self.layers.iter().map(|(n, bits)| format!(",{n}={}", name(*bits)));
        std::iter::once(name(self.bits)).chain(layers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(json: Value) -> Result<KvPolicy, CoreError> {
        KvPolicy::parse(&json, 6, Path::new("m/kv_config.json"))
    }

    #[test]
    fn layers_differ_where_the_file_says_so() {
        let policy = parse(json!({"bits": 8, "layers": {"0": {"bits": null}, "5": {"bits": 4}}})).unwrap();
        assert_eq!([0, 1, 5].map(|n| policy.layer(n)), [None, Some(8), Some(4)]);
        assert_eq!(policy.signature(), "8,0=float,5=4");
        assert_eq!(parse(json!({})).unwrap(), KvPolicy::default());
    }

    #[test]
    fn the_command_line_goes_before_the_file_but_not_before_its_layers() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(KvPolicy::for_model(dir.path(), 6, Some(8)).unwrap().bits, Some(8));
        std::fs::write(dir.path().join("kv_config.json"), r#"{"bits": 4, "layers": {"1": {}}}"#).unwrap();
        let policy = KvPolicy::for_model(dir.path(), 6, Some(8)).unwrap();
        assert_eq!([0, 1].map(|n| policy.layer(n)), [Some(8), None]);
        assert_eq!(KvPolicy::for_model(dir.path(), 6, None).unwrap().layer(0), Some(4));
    }

    #[test]
    fn every_bad_field_is_named() {
        for (json, says) in [
            (json!([]), "kv_config.json: expected an object, found []"),
            (json!({"bits": 3}), "bits: expected 4, 8 or null, found 3"),
            (json!({"bit": 8}), "bit: expected only bits, group_size, layers"),
            (json!({"group_size": 32}), "group_size: expected 64, found 32"),
            (json!({"layers": [1]}), "layers: expected an object"),
            (json!({"layers": {"6": {}}}), "layer numbers below 6"),
            (json!({"layers": {"0": 4}}), "layers: expected an object, found 4"),
            (json!({"layers": {"0": {"bits": "8"}}}), "4, 8 or null"),
        ] {
            let e = parse(json).unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
