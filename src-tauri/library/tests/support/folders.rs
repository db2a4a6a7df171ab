//! Small model folders for tests.
#![allow(dead_code)] // Each test target uses a part of it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// One safetensors file of f32 tensors of zeros: names and shapes.
pub fn shard(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in tensors {
        let end = at + shape.iter().product::<u64>() * 4;
        header.insert((*name).to_owned(), json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    raw_shard(&Value::Object(header).to_string(), at as usize)
}

/// A safetensors file with exactly this header and that many bytes of data.
pub fn raw_shard(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

pub fn config() -> Value {
    json!({"model_type": "llama", "max_position_embeddings": 2048})
}

/// A complete single-file model.
pub fn model(folder: &Path) {
    write(&folder.join("config.json"), config().to_string());
    write(&folder.join("tokenizer.json"), "{}");
    write(&folder.join("model.safetensors"), shard(&[("a.weight", &[4, 8]), ("b.weight", &[8])]));
}

/// An index file with the given tensors.
pub fn index(folder: &Path, map: &[(&str, &str)]) {
    let map: BTreeMap<_, _> = map.iter().copied().collect();
    write(&folder.join("model.safetensors.index.json"), json!({"metadata": {}, "weight_map": map}).to_string());
}
