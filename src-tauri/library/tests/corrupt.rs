//! Damaged GGUF files: always an error or a correct result, never a panic, a hang or a huge allocation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

#[path = "support/gguf_writer.rs"]
mod gguf_writer;

use std::path::Path;

use gguf_writer::*;
use hearth_library::gguf::{GgufFile, import_gguf};
use proptest::prelude::*;

fn parse(bytes: &[u8]) -> Result<GgufFile, hearth_library::LibraryError> {
    GgufFile::parse(bytes, bytes.len() as u64, Path::new("x.gguf"))
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(parse(&bytes).is_err());
    }

    #[test]
    fn random_bytes_after_a_valid_start_are_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        tensors in prop_oneof![1u64..5, any::<u64>()],
        keys in prop_oneof![0u64..5, any::<u64>()],
    ) {
        let mut file = b"GGUF\x03\x00\x00\x00".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(keys.to_le_bytes());
        file.extend(bytes);
        // 400 random bytes hold no well-formed tensor: its four dimensions would have to fit into the file.
        prop_assert!(parse(&file).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_changed_header_is_an_error_or_still_imports(
        position in any::<prop::sample::Index>(),
        value in prop_oneof![Just(0u8), Just(255), any::<u8>()],
        run in 1usize..9,
    ) {
        let (mut bytes, header) = tiny("llama", Q4_0).bytes();
        let at = position.index(header);
        let end = (at + run).min(header);
        bytes[at..end].fill(value);
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("m.gguf");
        std::fs::write(&file, &bytes).unwrap();
        let out = home.path().join("out");
        match import_gguf(&file, &out, &mut |_, _| {}) {
            Ok(_) => prop_assert!(out.join("model.safetensors").is_file()),
            Err(e) => {
                prop_assert!(e.to_string().contains("m.gguf"), "{}", e);
                prop_assert!(!out.exists());
            }
        }
    }

    #[test]
    fn every_cut_is_an_error(position in any::<prop::sample::Index>()) {
        let (bytes, _) = tiny("qwen3", Q8_0).bytes();
        let cut = position.index(bytes.len());
        prop_assert!(parse(&bytes[..cut]).is_err());
    }
}

/// A file of one metadata key with the given value bytes.
fn with_value(kind: u32, value: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\x00\x00\x00".to_vec();
    file.extend(0u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.extend(1u64.to_le_bytes());
    file.push(b'k');
    file.extend(kind.to_le_bytes());
    file.extend(value);
    file
}

#[test]
fn lengths_beyond_the_file_are_refused_before_allocating() {
    let huge = u64::MAX.to_le_bytes();
    let big = (1u64 << 40).to_le_bytes();
    for len in [huge, big] {
        // A string, an array of bytes, an array of strings, an array of arrays.
        for (kind, head) in [
            (8u32, vec![]),
            (9, 0u32.to_le_bytes().to_vec()),
            (9, 8u32.to_le_bytes().to_vec()),
            (9, 9u32.to_le_bytes().to_vec()),
        ] {
            let value = [head, len.to_vec(), vec![0; 64]].concat();
            let message = parse(&with_value(kind, &value)).unwrap_err().to_string();
            assert!(message.contains("x.gguf") && message.contains("byte"), "{message}");
        }
    }
}

#[test]
fn arrays_in_arrays_without_end_are_refused() {
    let mut value = Vec::new();
    for _ in 0..1000 {
        value.extend(9u32.to_le_bytes());
        value.extend(1u64.to_le_bytes());
    }
    let message = parse(&with_value(9, &value)).unwrap_err().to_string();
    assert!(message.contains("deep"), "{message}");
}

#[test]
fn repeated_keys_and_tensors_are_refused() {
    let mut g = tiny("llama", F32);
    g.metadata.push(("general.architecture".to_owned(), s("llama")));
    assert!(parse(&g.bytes().0).unwrap_err().to_string().contains("general.architecture"));
    let mut g = tiny("llama", F32);
    let again = g.get("output_norm.weight").clone();
    g.tensors.push(again);
    assert!(parse(&g.bytes().0).unwrap_err().to_string().contains("output_norm.weight"));
}

#[test]
fn overlapping_tensors_are_refused() {
    let (mut bytes, header) = tiny("llama", F32).bytes();
    // The last tensor info ends with its offset; point it at the start.
    let info = bytes[..header].windows(18).rposition(|w| w == b"output_norm.weight").unwrap();
    let offset = info + 18 + 4 + 8 + 4;
    bytes[offset..offset + 8].copy_from_slice(&0u64.to_le_bytes());
    let message = parse(&bytes).unwrap_err().to_string();
    assert!(message.contains("data from byte"), "{message}");
}
