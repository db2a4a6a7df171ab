//! Opening model folders: every layout of the weights, and every kind of damage named with file, expected and found.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

#[path = "support/folders.rs"]
mod folders;

use std::path::PathBuf;

use folders::*;
use hearth_library::folder::{Dtype, open};
use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

fn empty() -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("m");
    write(&folder.join("config.json"), config().to_string());
    (home, folder)
}

fn refused(folder: &std::path::Path, words: &[&str]) {
    let message = open(folder).expect_err("has to be refused").to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn a_single_file_is_opened() {
    let (_home, folder) = empty();
    model(&folder);
    let m = open(&folder).unwrap();
    assert_eq!((m.shards.len(), m.weight_bytes(), m.parameters()), (1, 160, 40));
    let b = &m.tensors["b.weight"];
    assert_eq!((b.dtype, b.shape.as_slice(), b.bytes), (Dtype::F32, &[8][..], 32));
    assert_eq!(b.offset, m.shards[0].data_start + 128);
    assert_eq!(m.file_of(b).unwrap(), folder.join("model.safetensors"));
    assert_eq!(m.precision(), "f32");
    assert_eq!(m.summary().model_type.as_deref(), Some("llama"));
}

#[test]
fn shards_are_opened_with_and_without_an_index() {
    let (_home, folder) = empty();
    write(&folder.join("model-00001-of-00002.safetensors"), shard(&[("a", &[2])]));
    write(&folder.join("model-00002-of-00002.safetensors"), shard(&[("b", &[3])]));
    let without = open(&folder).unwrap();
    index(&folder, &[("a", "model-00001-of-00002.safetensors"), ("b", "model-00002-of-00002.safetensors")]);
    let with = open(&folder).unwrap();
    assert_eq!(with.tensors, without.tensors);
    assert_eq!(with.tensors["b"].shard, 1);
    assert_eq!(with.weight_bytes(), 20);
}

#[test]
fn a_missing_shard_is_named() {
    let (_home, folder) = empty();
    write(&folder.join("model-00001-of-00003.safetensors"), shard(&[("a", &[2])]));
    write(&folder.join("model-00003-of-00003.safetensors"), shard(&[("c", &[2])]));
    refused(&folder, &["model-00002-of-00003.safetensors", "missing", "2 of 3"]);
    index(&folder, &[("a", "model-00001-of-00003.safetensors"), ("b", "model-00002-of-00003.safetensors")]);
    refused(&folder, &["model.safetensors.index.json", "2 files", "1 missing: model-00002-of-00003.safetensors"]);
}

#[test]
fn an_index_that_contradicts_the_files_is_refused() {
    let (_home, folder) = empty();
    write(&folder.join("model-1.safetensors"), shard(&[("a", &[2])]));
    write(&folder.join("model-2.safetensors"), shard(&[("b", &[2])]));
    index(&folder, &[("a", "model-1.safetensors"), ("b", "model-2.safetensors"), ("c", "model-2.safetensors")]);
    refused(&folder, &["tensor c", "model-2.safetensors", "nowhere"]);
    index(&folder, &[("a", "model-2.safetensors"), ("b", "model-1.safetensors")]);
    refused(&folder, &["tensor a", "it in model-2.safetensors", "it in model-1.safetensors"]);
    for outside in ["../model-1.safetensors", "/etc/model.safetensors", "sub/m.safetensors", "model.bin"] {
        index(&folder, &[("a", outside)]);
        refused(&folder, &["tensor a", outside, "in this folder"]);
    }
    write(&folder.join("model.safetensors.index.json"), "{\"weight_map\": [1]}");
    refused(&folder, &["model.safetensors.index.json", "line 1", "weight_map"]);
}

#[test]
fn an_old_index_beside_a_single_file_is_ignored() {
    let (_home, folder) = empty();
    model(&folder);
    index(&folder, &[("x", "model-00001-of-00002.safetensors"), ("y", "model-00002-of-00002.safetensors")]);
    assert_eq!(open(&folder).unwrap().tensors.len(), 2);
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let (_home, folder) = empty();
    write(&folder.join("model-00001-of-00002.safetensors"), shard(&[("a", &[2])]));
    write(&folder.join("model-00002-of-00002.safetensors"), shard(&[("a", &[2])]));
    refused(&folder, &["model-00002-of-00002.safetensors", "tensor a", "model-00001-of-00002.safetensors too"]);
}

#[test]
fn a_truncated_or_overlong_file_is_named_with_both_lengths() {
    let (_home, folder) = empty();
    let bytes = shard(&[("a", &[1000])]);
    let full = bytes.len();
    let path = folder.join("model.safetensors");
    for cut in [full - 1, full - 3999, 30, 8, 7, 0] {
        write(&path, &bytes[..cut]);
        refused(&folder, &["model.safetensors", "cut short", &format!("{cut} bytes")]);
    }
    write(&path, &bytes[..full - 1]);
    refused(&folder, &[&format!("expected {full} bytes")]);
    write(&path, [bytes.as_slice(), b"tail"].concat());
    refused(&folder, &[&format!("expected {full} bytes"), &format!("{} bytes", full + 4)]);
}

#[test]
fn damaged_headers_are_refused() {
    let (_home, folder) = empty();
    let tensor = |shape: &str, from: u64, to: u64| {
        format!("{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}")
    };
    let cases: [(String, usize, &[&str]); 9] = [
        ("{".to_owned(), 0, &["line 1", "a safetensors header"]),
        ("[]".to_owned(), 0, &["an object of tensors"]),
        ("{\"a\":{\"dtype\":\"F32\"}}".to_owned(), 0, &["tensor a", "shape"]),
        (format!("{{\"a\":{}}}", tensor("[3]", 0, 8)), 8, &["tensor a", "12 bytes", "from 0 to 8"]),
        (format!("{{\"a\":{}}}", tensor("[2]", 8, 0)), 8, &["tensor a", "from 8 to 0"]),
        (
            format!("{{\"a\":{},\"b\":{}}}", tensor("[2]", 0, 8), tensor("[2]", 4, 12)),
            12,
            &["tensor b", "after a", "data at byte"],
        ),
        (format!("{{\"a\":{},\"a\":{}}}", tensor("[2]", 0, 8), tensor("[2]", 8, 16)), 16, &["tensor a twice"]),
        (format!("{{\"a\":{}}}", tensor("[4294967296,4294967296,4294967296]", 0, 8)), 8, &["tensor a", "memory"]),
        (format!("{{\"a\":{}}}", tensor("[2]", 0, 8).replace("F32", "Q9")), 8, &["tensor a", "dtype", "Q9"]),
    ];
    for (header, data, words) in cases {
        write(&folder.join("model.safetensors"), raw_shard(&header, data));
        refused(&folder, words);
        refused(&folder, &["model.safetensors"]);
    }
    write(&folder.join("model.safetensors"), [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat());
    refused(&folder, &["length of the header", "100000000", "18446744073709551615"]);
    write(&folder.join("model.safetensors"), raw_shard("{}", 0));
    refused(&folder, &["at least one tensor", "none"]);
}

#[test]
fn a_broken_configuration_is_shown_where_it_breaks() {
    let (_home, folder) = empty();
    model(&folder);
    write(&folder.join("config.json"), "{\n  \"model_type\": \"llama\",\n  \"rms_norm_eps\": NaN\n}");
    refused(&folder, &["config.json", "line 3", "NaN"]);
    write(&folder.join("config.json"), "[]");
    refused(&folder, &["config.json", "a JSON object"]);
    write(&folder.join("config.json"), "");
    refused(&folder, &["config.json", "a JSON object"]);
    std::fs::remove_file(folder.join("config.json")).unwrap();
    refused(&folder, &["config.json is missing"]);
}

#[test]
fn what_is_there_instead_of_weights_is_named() {
    let (home, folder) = empty();
    refused(&folder, &["the weights", "model.safetensors", "none"]);
    write(&folder.join("pytorch_model.bin"), "x");
    refused(&folder, &["pytorch_model.bin"]);
    let gguf = home.path().join("a.gguf");
    write(&gguf, "GGUF");
    refused(&gguf, &["a.gguf", "hearth import"]);
    refused(&home.path().join("nothing"), &["nothing", "model folder"]);
}

#[test]
fn percent_signs_in_the_path_are_ordinary() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("100%s %n");
    model(&folder);
    assert_eq!(open(&folder).unwrap().tensors.len(), 2);
}

#[test]
fn packed_weights_count_as_what_they_unpack_to() {
    let (_home, folder) = empty();
    let config = json!({"model_type": "llama", "quantization": {"group_size": 32, "bits": 4, "e": {"group_size": 32, "bits": 8}}});
    write(&folder.join("config.json"), config.to_string());
    // 64 weights of 4 bits, 32 of 8 bits, and a norm of 5.
    let header = json!({
        "l.weight": {"dtype": "U32", "shape": [2, 4], "data_offsets": [0, 32]},
        "l.scales": {"dtype": "F32", "shape": [2, 1], "data_offsets": [32, 40]},
        "l.biases": {"dtype": "F32", "shape": [2, 1], "data_offsets": [40, 48]},
        "e.weight": {"dtype": "U32", "shape": [1, 8], "data_offsets": [48, 80]},
        "e.scales": {"dtype": "F32", "shape": [1, 1], "data_offsets": [80, 84]},
        "e.biases": {"dtype": "F32", "shape": [1, 1], "data_offsets": [84, 88]},
        "n.weight": {"dtype": "F32", "shape": [5], "data_offsets": [88, 108]},
    });
    write(&folder.join("model.safetensors"), raw_shard(&header.to_string(), 108));
    let m = open(&folder).unwrap();
    assert_eq!((m.parameters(), m.weight_bytes(), m.precision().as_str()), (64 + 32 + 5, 108, "4-bit"));
}

proptest! {
    #[test]
    fn random_weight_files_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (_home, folder) = empty();
        write(&folder.join("model.safetensors"), &bytes);
        prop_assert!(open(&folder).is_err());
    }

    #[test]
    fn changed_headers_are_refused_or_read(at in 8usize..150, value in any::<u8>()) {
        let (_home, folder) = empty();
        let mut bytes = shard(&[("a.weight", &[4, 8]), ("b.weight", &[8])]);
        bytes[at] = value;
        write(&folder.join("model.safetensors"), &bytes);
        if let Ok(m) = open(&folder) {
            // Whatever it now says, no tensor reaches beyond the file.
            for t in m.tensors.values() {
                prop_assert!(t.offset + t.bytes <= bytes.len() as u64);
            }
        }
    }
}
