//! Headers read once, for sizes: the same counts as opening the folder gives, and how little is read of hundreds of files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

#[path = "support/folders.rs"]
mod folders;

use folders::*;
use hearth_core::fit::{Allowance, Ask, Device, Machine, Model, fit};
use hearth_library::folder::open;
use hearth_library::headers::{self, Work};
use hearth_library::scan::{Place, Places, locate, resolve_id};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn empty() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("m");
    let config = json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 100});
    write(&folder.join("config.json"), config.to_string());
    (home, folder)
}

/// Bytes of the weights on a GPU, as stored.
fn weights(model: &Model) -> u64 {
    let machine = Machine {
        chip: None,
        device: Device::Gpu,
        ram: 1 << 34,
        available: None,
        working_set: None,
        bandwidth: None,
        efficiency: 0.5,
        allowance: Allowance::default(),
    };
    fit(model, &machine, &Ask::default()).terms.weights
}

fn refused(folder: &Path, words: &[&str]) {
    let message = headers::model(folder).expect_err("has to be refused").to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn two_hundred_files_are_opened_once_and_only_their_headers_are_read() {
    let (_home, folder) = empty();
    let (mut map, mut headers_bytes) = (Vec::new(), 0);
    for n in 1..=200 {
        let file = format!("model-{n:05}-of-00200.safetensors");
        let names: Vec<String> = (0..5).map(|t| format!("model.layers.{}.t{n}.{t}.weight", n % 2)).collect();
        let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), &[64, 64][..])).collect();
        let bytes = shard(&tensors);
        headers_bytes += 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        write(&folder.join(&file), bytes);
        map.extend(names.into_iter().map(|name| (name, file.clone())));
    }
    let map: Vec<(&str, &str)> = map.iter().map(|(name, file)| (name.as_str(), file.as_str())).collect();
    let all = Work { files: 200, bytes: headers_bytes, tensors: 1000 };
    let (without, work) = headers::model(&folder).unwrap();
    assert_eq!(work, all);
    index(&folder, &map);
    let (with, work) = headers::model(&folder).unwrap();
    assert_eq!(work, all, "the index changes nothing");
    assert_eq!(weights(&without), open(&folder).unwrap().weight_bytes());
    assert_eq!(weights(&with), weights(&without));
}

#[test]
fn the_tiny_models_count_as_opening_them_does() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    let mut seen = 0;
    for entry in fs::read_dir(goldens).unwrap() {
        let path = entry.unwrap().path();
        if path.join("config.json").exists() {
            let (model, work) = headers::model(&path).unwrap();
            let folder = open(&path).unwrap();
            assert_eq!(work.tensors, folder.tensors.len() as u64);
            assert!(model.shape.supported, "{}: {:?}", path.display(), model.shape.notes);
            // A tied head that the files hold all the same is left out.
            let tied =
                folder.tensors.iter().filter(|(name, _)| model.shape.tied == Some(true) && name.starts_with("lm_head"));
            let left_out: u64 = tied.map(|(_, t)| t.bytes).sum();
            assert_eq!(weights(&model), folder.weight_bytes() - left_out, "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn damage_is_named() {
    let (_home, folder) = empty();
    refused(&folder, &["the weights", "model.safetensors"]);
    let file = folder.join("model.safetensors");
    let whole = shard(&[("a", &[4, 4])]);
    for (bytes, words) in [
        (whole[..whole.len() - 1].to_vec(), vec!["cut short", "the length of the file"]),
        (whole[..20].to_vec(), vec!["cut short"]),
        (vec![1, 2, 3], vec!["8 bytes", "3 bytes"]),
        (vec![255; 64], vec!["the length of the header"]),
        (raw_shard("{\"a\": nonsense}", 0), vec!["model.safetensors", "line 1", "a safetensors header"]),
        (raw_shard("{\"a\": 7}", 0), vec!["the header", "dtype"]),
        (
            raw_shard(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8),
            vec!["tensor a", "12 bytes for 3 elements of F32"],
        ),
        (
            raw_shard(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[8,0]}}"#, 8),
            vec!["tensor a", "data from 8 to 0"],
        ),
        (
            raw_shard(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#, 8),
            vec!["tensor a", "fits into memory"],
        ),
        (raw_shard("{}", 0), vec!["at least one tensor"]),
    ] {
        fs::write(&file, bytes).unwrap();
        refused(&folder, &words);
    }
    fs::write(&file, &whole).unwrap();
    assert!(headers::model(&folder).is_ok());
    write(&folder.join("config.json"), r#"{"model_type": "new"}"#);
    refused(&folder, &["config.json", "num_hidden_layers", "a whole number"]);
    fs::remove_file(folder.join("config.json")).unwrap();
    refused(&folder, &["config.json is missing"]);
}

#[test]
fn names_with_escapes_and_small_types_are_read() {
    let (_home, folder) = empty();
    let header = r#"{"__metadata__":{"format":"mlx"},"model.\u0065mbed_tokens.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "model.x":{"dtype":"F4","shape":[6],"data_offsets":[8,11]}}"#;
    write(&folder.join("model.safetensors"), raw_shard(header, 11));
    let (model, work) = headers::model(&folder).unwrap();
    assert_eq!((work.tensors, weights(&model), model.weights.float()), (2, 11, 4));
}

#[test]
fn a_path_is_located_without_opening_it_and_an_id_is_never_a_path() {
    let (home, folder) = empty();
    write(&folder.join("model.safetensors"), shard(&[("a", &[2])]));
    write(&folder.join("tokenizer.json"), "{}");
    let places = Places::of(vec![Place::Folder(home.path().to_owned())]);
    let path = folder.to_str().unwrap();
    assert_eq!(locate(path, &Places::default()).unwrap(), ("m".to_owned(), folder.clone()));
    assert_eq!(locate("m", &places).unwrap(), ("m".to_owned(), folder.clone()));
    assert_eq!(resolve_id("M", &places).unwrap().path, folder);
    for outside in [path, "./m", "../m", "~/m"] {
        let refusal = resolve_id(outside, &places).unwrap_err().to_string();
        assert!(refusal.contains(outside), "{refusal}");
    }
}
