//! How keys and values are kept: as computed, or in 4 or 8 bits, layer by layer. The command line gives the rule for
//! all layers, a model's `kv_config.json` its exceptions:
//!
//! ```json
//! { "bits": 8, "layers": { "0": { "bits": null }, "5": { "bits": 4 } } }
//! ```
//!
//! Or the command line names a file with a list of all layers, which goes before everything else:
//!
//! ```json
//! [ null, { "bits": 8 }, { "bits": 4, "group": 64 } ]
//! ```

use crate::config::{read_file, read_json};
use crate::error::CoreError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Elements that share a scale.
pub const GROUP: usize = 64;

/// Tokens of a row from which on its keys and values are quantized; a shorter one keeps them as computed. At this length
/// exactly, whether prompt or answer comes to it and in whatever chunks: what a token attends to depends on nothing but
/// the tokens before it, so that a state from the cache says what a computed one would.
pub const FROM: usize = 256;

/// Bits of keys and values; `None` is as computed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvPolicy {
    /// For layers that are not listed.
    pub bits: Option<u8>,
    /// Layers that differ.
    pub layers: BTreeMap<usize, Option<u8>>,
}

/// What somebody asks of keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// Bits of all layers but those that a model's `kv_config.json` lists.
    pub bits: Option<u8>,
    /// The bits of each layer.
    pub list: Option<Arc<LayerList>>,
}

impl Asked {
    /// Of all layers.
    pub fn bits(bits: Option<u8>) -> Self {
        Asked { bits, list: None }
    }

    /// The same, or these bits where nothing is asked for.
    pub fn or_bits(&self, bits: Option<u8>) -> Self {
        if *self == Self::default() { Self::bits(bits) } else { self.clone() }
    }
}

/// A file's list of the bits of each layer.
#[derive(Debug, PartialEq, Eq)]
pub struct LayerList {
    file: PathBuf,
    bits: Vec<Option<u8>>,
}

impl LayerList {
    /// Reads a JSON list with an entry for each layer: null, or an object with `bits` and perhaps `group`.
    ///
    /// # Errors
    /// [`CoreError`] naming the file and the entry.
    pub fn read(file: &Path) -> Result<Self, CoreError> {
        let text = read_file(file, "a JSON list with an entry for each layer, null or {\"bits\": 8}")?;
        let json: Value = serde_json::from_slice(&text)
            .map_err(|e| invalid(file, &format!("line {} column {}", e.line(), e.column()), "JSON", &e))?;
        let list =
            json.as_array().ok_or_else(|| invalid(file, "kv_config", "a list with an entry for each layer", &json))?;
        let one = |(n, entry): (usize, &Value)| {
            let what = format!("layer {n}");
            if entry.is_null() {
                return Ok(None);
            }
            fields(file, &what, entry, &["bits", "group"])?;
            of_group(file, "group", entry)?;
            bits(file, &what, &entry["bits"])
        };
        let bits = list.iter().enumerate().map(one).collect::<Result<_, _>>()?;
        Ok(LayerList { file: file.to_owned(), bits })
    }

    fn policy(&self, folder: &Path, layers: usize) -> Result<KvPolicy, CoreError> {
        if self.bits.len() != layers {
            let expected = format!("an entry for each of the {layers} layers of {}", folder.display());
            return Err(invalid(&self.file, "kv_config", &expected, &format!("{} entries", self.bits.len())));
        }
        Ok(KvPolicy { bits: None, layers: self.bits.iter().copied().enumerate().collect() })
    }
}

fn invalid(file: &Path, what: &str, expected: &str, found: &dyn std::fmt::Display) -> CoreError {
    CoreError::Invalid { file: file.to_owned(), what: what.into(), expected: expected.into(), found: found.to_string() }
}

/// An object of these fields only.
fn fields(file: &Path, what: &str, value: &Value, known: &[&str]) -> Result<(), CoreError> {
    let Some(map) = value.as_object() else { return Err(invalid(file, what, "an object", value)) };
    match map.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, value)) => Err(invalid(file, name, &format!("only {}", known.join(", ")), value)),
        None => Ok(()),
    }
}

fn bits(file: &Path, what: &str, value: &Value) -> Result<Option<u8>, CoreError> {
    match value.as_u64() {
        None if value.is_null() => Ok(None),
        Some(n @ (4 | 8)) => Ok(Some(n as u8)),
        _ => Err(invalid(file, what, "4, 8 or null as bits", value)),
    }
}

/// There is one size of groups, which may be named.
fn of_group(file: &Path, name: &str, value: &Value) -> Result<(), CoreError> {
    match value.get(name).filter(|group| group.as_u64() != Some(GROUP as u64)) {
        Some(group) => Err(invalid(file, name, &GROUP.to_string(), group)),
        None => Ok(()),
    }
}

impl KvPolicy {
    /// The policy for the model in this folder of `layers` layers: a list that was asked for goes before everything in the
    /// folder; bits that were asked for go before the folder's own rule for all layers, its single layers before both.
    ///
    /// # Errors
    /// [`CoreError`] naming the file and the field.
    pub fn for_model(folder: &Path, layers: usize, asked: &Asked) -> Result<Self, CoreError> {
        if let Some(list) = &asked.list {
            return list.policy(folder, layers);
        }
        let file = folder.join("kv_config.json");
        let mut policy = if file.exists() { Self::parse(&read_json(&file)?, layers, &file)? } else { Self::default() };
        policy.bits = asked.bits.or(policy.bits);
        Ok(policy)
    }

    fn parse(json: &Value, layers: usize, file: &Path) -> Result<Self, CoreError> {
        fields(file, "kv_config.json", json, &["bits", "group_size", "layers"])?;
        of_group(file, "group_size", json)?;
        let mut policy = KvPolicy { bits: bits(file, "bits", &json["bits"])?, layers: BTreeMap::new() };
        let listed = &json["layers"];
        if !listed.is_null() && !listed.is_object() {
            return Err(invalid(file, "layers", "an object of layer numbers", listed));
        }
        for (name, layer) in listed.as_object().into_iter().flatten() {
            let Some(n) = name.parse().ok().filter(|&n: &usize| n < layers) else {
                return Err(invalid(file, "layers", &format!("layer numbers below {layers}"), name));
            };
            fields(file, "layers", layer, &["bits"])?;
            policy.layers.insert(n, bits(file, "bits", &layer["bits"])?);
        }
        Ok(policy)
    }

    /// Bits of a layer's keys and values.
    pub fn layer(&self, layer: usize) -> Option<u8> {
        self.layers.get(&layer).copied().unwrap_or(self.bits)
    }

    /// The policy as a short text, different for different policies.
    pub fn signature(&self) -> String {
        let name = |bits: Option<u8>| bits.map_or("float".to_owned(), |bits| format!("{bits}from{FROM}"));
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
        assert_eq!(policy.signature(), "8from256,0=float,5=4from256");
        assert_eq!(parse(json!({})).unwrap(), KvPolicy::default());
    }

    #[test]
    fn the_command_line_goes_before_the_file_but_not_before_its_layers() {
        let dir = tempfile::tempdir().unwrap();
        let eight = Asked::bits(Some(8));
        assert_eq!(KvPolicy::for_model(dir.path(), 6, &eight).unwrap().bits, Some(8));
        std::fs::write(dir.path().join("kv_config.json"), r#"{"bits": 4, "layers": {"1": {}}}"#).unwrap();
        let policy = KvPolicy::for_model(dir.path(), 6, &eight).unwrap();
        assert_eq!([0, 1].map(|n| policy.layer(n)), [Some(8), None]);
        assert_eq!(KvPolicy::for_model(dir.path(), 6, &Asked::default()).unwrap().layer(0), Some(4));
        assert_eq!((eight.or_bits(Some(4)).bits, Asked::default().or_bits(Some(4)).bits), (Some(8), Some(4)));
    }

    #[test]
    fn a_list_goes_before_everything_and_has_an_entry_for_each_layer() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("list.json");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            LayerList::read(&file)
        };
        std::fs::write(dir.path().join("kv_config.json"), r#"{"bits": 4, "layers": {"0": {"bits": 4}}}"#).unwrap();
        let list = read(r#"[null, {"bits": 8, "group": 64}, {"bits": 4}]"#).unwrap();
        let asked = Asked { bits: None, list: Some(Arc::new(list)) };
        let policy = KvPolicy::for_model(dir.path(), 3, &asked).unwrap();
        assert_eq!([0, 1, 2].map(|n| policy.layer(n)), [None, Some(8), Some(4)]);
        assert_eq!(asked.or_bits(Some(8)), asked);
        let refusal = KvPolicy::for_model(dir.path(), 4, &asked).unwrap_err().to_string();
        assert!(refusal.contains("list.json") && refusal.contains("each of the 4 layers"), "{refusal}");
        assert!(refusal.contains("found 3 entries"), "{refusal}");
        for (text, says) in [
            (r#"{"bits": 8}"#, "a list with an entry for each layer"),
            (r#"[null, {"bits": 5}]"#, "layer 1: expected 4, 8 or null as bits, found 5"),
            (r#"[{"bits": 8, "group": 32}]"#, "group: expected 64, found 32"),
            (r#"[{"bit": 8}]"#, "bit: expected only bits, group"),
            ("[8]", "layer 0: expected an object, found 8"),
            ("[", "list.json"),
        ] {
            let refusal = read(text).unwrap_err().to_string();
            assert!(refusal.contains(says), "{refusal}");
        }
    }

    #[test]
    fn every_bad_field_is_named() {
        for (json, says) in [
            (json!([]), "kv_config.json: expected an object, found []"),
            (json!({"bits": 3}), "bits: expected 4, 8 or null as bits, found 3"),
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
