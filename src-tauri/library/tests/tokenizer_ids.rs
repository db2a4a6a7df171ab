//! The starter model as imported from its GGUF: token ids equal llama.cpp's, weights equal MLX's own conversion bit for bit.
//!
//! `HEARTH_STARTER` is the imported model folder; `cargo xtask test` sets it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

#[derive(Deserialize)]
struct Goldens {
    made_with: String,
    starter: Vec<Vec<u32>>,
    starter_weights_sha256: String,
}

fn goldens() -> Goldens {
    serde_json::from_str(include_str!("goldens/tokenizer_ids.json")).unwrap()
}

fn starter() -> PathBuf {
    match std::env::var_os("HEARTH_STARTER") {
        Some(folder) => PathBuf::from(folder),
        None => panic!(
            "HEARTH_STARTER is not set: run `cargo xtask test`, or set it to what `cargo xtask starter` prints last"
        ),
    }
}

#[test]
fn token_ids_equal_llama_cpps() {
    let goldens = goldens();
    let strings: Vec<String> = serde_json::from_str(include_str!("goldens/strings.json")).unwrap();
    assert!(strings.len() >= 40 && strings.len() == goldens.starter.len(), "{}", goldens.made_with);
    let tokenizer = Tokenizer::from_file(starter().join("tokenizer.json")).unwrap();
    for (text, expected) in strings.iter().zip(&goldens.starter) {
        let found = tokenizer.encode(text.as_str(), false).unwrap();
        assert_eq!(found.get_ids(), expected, "{text:?}");
        assert_eq!(&tokenizer.decode(expected, false).unwrap(), text);
    }
}

#[test]
fn weights_equal_mlxs_own_conversion() {
    #[derive(Deserialize)]
    struct Entry {
        dtype: String,
        shape: Vec<u64>,
        data_offsets: (u64, u64),
    }
    let mut file = File::open(starter().join("model.safetensors")).unwrap();
    let mut length = [0; 8];
    file.read_exact(&mut length).unwrap();
    let mut header = vec![0; u64::from_le_bytes(length) as usize];
    file.read_exact(&mut header).unwrap();
    let mut header: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&header).unwrap();
    assert_eq!(header.remove("__metadata__").unwrap()["format"], "mlx");
    let base = 8 + u64::from_le_bytes(length);
    let mut digest = Sha256::new();
    for (name, entry) in header {
        let entry: Entry = serde_json::from_value(entry).unwrap();
        let shape: Vec<String> = entry.shape.iter().map(u64::to_string).collect();
        digest.update(format!("{name} {} {}\n", entry.dtype, shape.join(",")));
        let mut data = vec![0; (entry.data_offsets.1 - entry.data_offsets.0) as usize];
        file.read_exact_at(&mut data, base + entry.data_offsets.0).unwrap();
        digest.update(&data);
    }
    let hex: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, goldens().starter_weights_sha256);
}
