//! Importing whole (tiny) GGUF files: every value survives, the configuration is right, and what cannot be imported is refused clearly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers of tests, outside of `#[test]`.

#[path = "support/gguf_writer.rs"]
mod gguf_writer;

use std::path::Path;

use gguf_writer::*;
use half::{bf16, f16};
use hearth_library::LibraryError;
use hearth_library::gguf::{ImportReport, import_gguf};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An import into a fresh folder.
struct Imported {
    _home: TempDir,
    config: Value,
    weights: Vec<u8>,
    report: ImportReport,
}

fn import(g: &Gguf) -> Result<Imported, LibraryError> {
    let home = tempfile::tempdir().unwrap();
    let file = g.write(home.path(), "model.gguf");
    let out = home.path().join("out");
    let result = import_gguf(&file, &out, &mut |_, _| {});
    let left: Vec<String> =
        std::fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    match result {
        Ok(report) => Ok(Imported {
            config: read_json(&out.join("config.json")),
            weights: std::fs::read(out.join("model.safetensors")).unwrap(),
            report,
            _home: home,
        }),
        Err(e) => {
            assert_eq!(left, ["model.gguf"], "nothing may stay behind after {e}");
            Err(e)
        }
    }
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

impl Imported {
    fn file(&self, name: &str) -> Value {
        read_json(&self.report.folder.join(name))
    }

    /// The layer's weight as MLX computes it.
    fn values(&self, layer: &str) -> Vec<f32> {
        let st = SafeTensors::deserialize(&self.weights).unwrap();
        let weight = st.tensor(&format!("{layer}.weight")).or_else(|_| st.tensor(layer)).unwrap();
        let f32s = |b: &[u8]| -> Vec<f32> { b.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect() };
        match weight.dtype() {
            Dtype::F32 => f32s(weight.data()),
            Dtype::F16 => weight.data().chunks(2).map(|c| f16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
            Dtype::BF16 => weight.data().chunks(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
            Dtype::U32 => {
                let q = &self.config["quantization"];
                let own = &q[layer];
                let bits = if own.is_object() { &own["bits"] } else { &q["bits"] }.as_u64().unwrap() as usize;
                let scales = f32s(st.tensor(&format!("{layer}.scales")).unwrap().data());
                let biases = f32s(st.tensor(&format!("{layer}.biases")).unwrap().data());
                let mask = (1u32 << bits) - 1;
                let words = weight.data().chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap()));
                let quants = words.flat_map(|w| (0..32 / bits).map(move |k| (w >> (k * bits)) & mask));
                quants.enumerate().map(|(i, q)| scales[i / 32] * q as f32 + biases[i / 32]).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What llama.cpp's converter did to the rows of q and k, undone: within a head, stored row 2j + s is row s·half + j.
fn uninterleave(values: &[f32], head_dim: usize, columns: usize) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (stored, row) in values.chunks(columns).enumerate() {
        let (head, within) = (stored / head_dim, stored % head_dim);
        let to = head * head_dim + (within % 2) * (head_dim / 2) + within / 2;
        out[to * columns..(to + 1) * columns].copy_from_slice(row);
    }
    out
}

/// GGUF tensor and Hugging Face layer, of layer 1.
const PAIRS: [(&str, &str); 9] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

fn check_all_values(g: &Gguf, arch: &str, interleaved: bool) {
    let imported = import(g).unwrap();
    for (gguf, hf) in PAIRS {
        let source = g.get(&format!("blk.1.{gguf}.weight"));
        let mut expected = values(source);
        if interleaved && matches!(gguf, "attn_q" | "attn_k") {
            expected = uninterleave(&expected, HEAD_DIM as usize, HIDDEN as usize);
        }
        assert_eq!(imported.values(&format!("model.layers.1.{hf}")), expected, "{arch} {gguf}");
    }
    assert_eq!(imported.values("model.embed_tokens"), values(g.get("token_embd.weight")));
    assert_eq!(imported.values("model.norm"), values(g.get("output_norm.weight")));
}

#[test]
fn every_value_of_every_type_and_architecture_survives() {
    for kind in [F32, F16, BF16, Q4_0, Q4_1, Q8_0] {
        for (arch, interleaved) in [("llama", true), ("smollm3", true), ("qwen2", false), ("qwen3", false)] {
            check_all_values(&tiny(arch, kind), arch, interleaved);
        }
    }
}

#[test]
fn floats_keep_their_bytes_even_where_they_are_no_numbers() {
    let mut g = tiny("llama", F32);
    g.tensors.iter_mut().find(|t| t.name == "output_norm.weight").unwrap().data[..4]
        .copy_from_slice(&0x7fc0_1234u32.to_le_bytes());
    let imported = import(&g).unwrap();
    let st = SafeTensors::deserialize(&imported.weights).unwrap();
    assert_eq!(st.tensor("model.norm.weight").unwrap().data(), g.get("output_norm.weight").data);
}

#[test]
fn tensors_larger_than_one_chunk_are_streamed_in_order() {
    // 65,536 rows of 64 f32 are 16 MiB, four times the chunk.
    let mut g = tiny("llama", F32);
    g.tensor("token_embd.weight", &[65_536, HIDDEN], F32);
    let imported = import(&g).unwrap();
    assert_eq!(imported.values("model.embed_tokens"), values(g.get("token_embd.weight")));
}

#[test]
fn mixed_types_are_named_layer_by_layer() {
    let mut g = tiny("llama", Q4_0);
    g.tensor("token_embd.weight", &[VOCAB, HIDDEN], Q8_0);
    g.tensor("blk.0.ffn_down.weight", &[HIDDEN, INTERMEDIATE], F16);
    g.tensor("blk.1.attn_q.weight", &[HEADS * HEAD_DIM, HIDDEN], Q4_1);
    let imported = import(&g).unwrap();
    assert_eq!(
        imported.config["quantization"],
        json!({
            "group_size": 32, "bits": 4, "mode": "affine",
            "model.embed_tokens": {"group_size": 32, "bits": 8, "mode": "affine"},
            "model.layers.0.mlp.down_proj": false,
        })
    );
    assert_eq!(imported.config["quantization_config"], imported.config["quantization"]);
    assert_eq!(imported.values("model.embed_tokens"), values(g.get("token_embd.weight")));
    assert_eq!(imported.values("model.layers.0.mlp.down_proj"), values(g.get("blk.0.ffn_down.weight")));
    let mut types = imported.report.types.clone();
    types.sort();
    assert_eq!(
        types,
        [
            ("F16".to_owned(), 1),
            ("F32".to_owned(), 5),
            ("Q4_0".to_owned(), 12),
            ("Q4_1".to_owned(), 1),
            ("Q8_0".to_owned(), 1)
        ]
    );
}

#[test]
fn the_safetensors_file_is_well_formed_and_says_mlx() {
    let g = tiny("llama", Q4_1);
    let imported = import(&g).unwrap();
    let (size, meta) = SafeTensors::read_metadata(&imported.weights).unwrap();
    assert_eq!(meta.metadata().as_ref().unwrap()["format"], "mlx");
    assert!((size + 8).is_multiple_of(8), "the data has to start aligned");
    let st = SafeTensors::deserialize(&imported.weights).unwrap();
    let down = st.tensor("model.layers.0.mlp.down_proj.weight").unwrap();
    assert_eq!((down.dtype(), down.shape()), (Dtype::U32, &[64, 12][..]));
    let scales = st.tensor("model.layers.0.mlp.down_proj.scales").unwrap();
    assert_eq!((scales.dtype(), scales.shape()), (Dtype::F32, &[64, 3][..]));
    assert_eq!(imported.report.tensors, st.len());
    assert_eq!(imported.report.bytes, imported.weights.len() as u64);
    let parameters: u64 = g.tensors.iter().map(|t| t.shape.iter().product::<u64>()).sum();
    assert_eq!(imported.report.parameters, parameters);
}

#[test]
fn the_configuration_is_the_models() {
    let imported = import(&tiny("llama", F16)).unwrap();
    let expected = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
        "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": 262,
        "max_position_embeddings": 2048, "rope_theta": 500000.0, "rope_scaling": null, "rope_traditional": false,
        "attention_bias": false, "mlp_bias": false, "hidden_act": "silu", "tie_word_embeddings": true,
        "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": null, "torch_dtype": "float16",
    });
    assert_eq!(imported.config, expected);
    assert_eq!(
        imported.file("generation_config.json"),
        json!({"_from_model_config": true, "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": null})
    );
}

#[test]
fn architectures_differ_where_they_have_to() {
    let qwen2 = import(&tiny("qwen2", F32)).unwrap();
    assert_eq!(qwen2.config["model_type"], "qwen2");
    assert_eq!(
        qwen2.values("model.layers.1.self_attn.q_proj.bias"),
        values(tiny("qwen2", F32).get("blk.1.attn_q.bias"))
    );

    let mut g = tiny("qwen3", F32);
    g.set("qwen3.attention.key_length", V::U32(16)).set("qwen3.attention.value_length", V::U32(16));
    let qwen3 = import(&g).unwrap();
    assert_eq!((&qwen3.config["model_type"], &qwen3.config["head_dim"]), (&json!("qwen3"), &json!(16)));
    assert_eq!(qwen3.values("model.layers.0.self_attn.k_norm"), values(g.get("blk.0.attn_k_norm.weight")));

    let smollm3 = import(&tiny("smollm3", F32)).unwrap();
    assert_eq!(smollm3.config["no_rope_layers"], json!([1, 1]));
    assert_eq!(smollm3.config["no_rope_layer_interval"], 4);

    let mut g = tiny("llama", F32);
    g.set("llama.attention.sliding_window", V::U32(512));
    let mistral = import(&g).unwrap();
    assert_eq!((&mistral.config["model_type"], &mistral.config["sliding_window"]), (&json!("mistral"), &json!(512)));
    g.set("llama.attention.sliding_window_pattern", V::Bools(vec![true, false]));
    let mixed = import(&g).unwrap();
    assert_eq!(mixed.config["model_type"], "llama");
    assert_eq!(mixed.config["layer_types"], json!(["sliding_attention", "full_attention"]));
}

#[test]
fn biases_of_llama_are_found_and_uninterleaved() {
    let mut g = tiny("llama", Q8_0);
    for n in 0..LAYERS {
        for (name, rows) in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("attn_output", 64)] {
            g.tensor(&format!("blk.{n}.{name}.bias"), &[rows], F32);
        }
        for (name, rows) in [("ffn_gate", 96), ("ffn_up", 96), ("ffn_down", 64)] {
            g.tensor(&format!("blk.{n}.{name}.bias"), &[rows], F32);
        }
    }
    let imported = import(&g).unwrap();
    assert_eq!(imported.config["attention_bias"], true);
    assert_eq!(imported.config["mlp_bias"], true);
    let q = uninterleave(&values(g.get("blk.1.attn_q.bias")), HEAD_DIM as usize, 1);
    assert_eq!(imported.values("model.layers.1.self_attn.q_proj.bias"), q);
    assert_eq!(imported.values("model.layers.1.mlp.down_proj.bias"), values(g.get("blk.1.ffn_down.bias")));
}

#[test]
fn an_output_matrix_of_its_own_is_kept() {
    let mut g = tiny("llama", Q4_0);
    g.tensor("output.weight", &[VOCAB, HIDDEN], Q8_0);
    let imported = import(&g).unwrap();
    assert_eq!(imported.config["tie_word_embeddings"], false);
    assert_eq!(imported.values("lm_head"), values(g.get("output.weight")));
}

#[test]
fn rope_scaling_is_carried_over() {
    let mut g = tiny("llama", F32);
    g.set("llama.rope.scaling.type", s("linear")).set("llama.rope.scaling.factor", V::F32(4.0));
    assert_eq!(
        import(&g).unwrap().config["rope_scaling"],
        json!({"type": "linear", "rope_type": "linear", "factor": 4.0})
    );
    g.set("llama.rope.scaling.type", s("yarn"))
        .set("llama.rope.scaling.original_context_length", V::U32(512))
        .set("llama.rope.scaling.yarn_beta_fast", V::F32(32.0));
    assert_eq!(
        import(&g).unwrap().config["rope_scaling"],
        json!({"type": "yarn", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 32.0})
    );
    g.set("llama.rope.scaling.type", s("longrope"));
    refused(&g, &["rope scaling type", "longrope", "yarn"]);

    // Factors of llama 3.1 for a head dimension of 16: base 500000, factor 8, original 8192.
    let mut g = tiny("llama", F32);
    g.tensor("rope_freqs.weight", &[8], F32);
    let wavelen = |i: i32| std::f64::consts::TAU * 500_000f64.powf(f64::from(i) / 8.0);
    let stretch = |w: f64| match w {
        w if w < 2048.0 => 1.0,
        w if w > 8192.0 => 8.0,
        w => {
            let smooth = (8192.0 / w - 1.0) / 3.0;
            1.0 / ((1.0 - smooth) / 8.0 + smooth)
        }
    };
    let data: Vec<u8> = (0..8).flat_map(|i| (stretch(wavelen(i)) as f32).to_le_bytes()).collect();
    g.tensors.iter_mut().find(|t| t.name == "rope_freqs.weight").unwrap().data = data;
    assert_eq!(
        import(&g).unwrap().config["rope_scaling"],
        json!({"type": "llama3", "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192})
    );
    g.tensor("rope_freqs.weight", &[8], F32);
    refused(&g, &["rope_freqs.weight", "llama3"]);
}

fn refused(g: &Gguf, words: &[&str]) {
    let message = import(g).err().expect("has to be refused").to_string();
    for word in words.iter().chain(&["model.gguf"]) {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn what_cannot_be_imported_is_refused_by_name() {
    let mut g = tiny("llama", F32);
    g.tensor("blk.1.ffn_up.weight", &[INTERMEDIATE, HIDDEN], Q6_K);
    refused(&g, &["blk.1.ffn_up.weight", "Q6_K", "F32, F16, BF16, Q8_0, Q4_0, Q4_1"]);

    let mut g = tiny("llama", F32);
    g.set("general.architecture", s("mamba"));
    refused(&g, &["architecture", "mamba", "qwen3"]);

    let mut g = tiny("llama", F32);
    g.set("llama.expert_count", V::U32(8));
    refused(&g, &["experts", "8"]);

    let mut g = tiny("llama", F32);
    g.set("tokenizer.ggml.pre", s("made-up"));
    refused(&g, &["tokenizer.ggml.pre", "made-up", "smollm", "qwen2"]);

    let mut g = tiny("llama", F32);
    g.set("tokenizer.ggml.model", s("rwkv"));
    refused(&g, &["tokenizer model", "rwkv", "gpt2"]);

    let mut g = tiny("llama", F32);
    g.tensor("blk.0.attn_norm.weight", &[HIDDEN], Q8_0);
    refused(&g, &["blk.0.attn_norm.weight", "Q8_0"]);

    let mut g = tiny("llama", F32);
    g.tensor("blk.0.attn_sinks.weight", &[HEADS], F32);
    refused(&g, &["blk.0.attn_sinks.weight"]);
}

#[test]
fn contradictions_are_named_with_expected_and_found() {
    let mut g = tiny("llama", F32);
    g.tensors.retain(|t| t.name != "blk.1.attn_v.weight");
    refused(&g, &["blk.1.attn_v.weight", "missing"]);

    let mut g = tiny("llama", F32);
    g.tensor("blk.1.attn_v.weight", &[KV_HEADS * HEAD_DIM, 32], F32);
    refused(&g, &["blk.1.attn_v.weight", "[32, 64]", "[32, 32]"]);

    let mut g = tiny("llama", F32);
    g.unset("llama.block_count");
    refused(&g, &["llama.block_count", "missing"]);

    let mut g = tiny("llama", F32);
    g.set("llama.block_count", s("two"));
    refused(&g, &["llama.block_count", "integer", "a string"]);

    let mut g = tiny("llama", F32);
    g.set("llama.attention.head_count_kv", V::U32(3));
    refused(&g, &["4 and 3"]);

    let mut g = tiny("llama", F32);
    g.set("llama.rope.dimension_count", V::U32(8));
    refused(&g, &["rope dimension count", "8", "16"]);

    let mut g = tiny("llama", F32);
    g.set("tokenizer.ggml.eos_token_id", V::U32(9999));
    refused(&g, &["eos_token_id", "262", "9999"]);

    let mut g = tiny("llama", F32);
    g.set("tokenizer.ggml.merges", V::Strs(vec!["h z".to_owned()]));
    refused(&g, &["tokenizer.ggml.merges", "h z"]);

    let mut g = tiny("llama", F32);
    g.set("tokenizer.ggml.tokens", V::Strs(vec!["a".to_owned(), "a".to_owned()]));
    refused(&g, &["tokenizer.ggml.tokens", "once"]);

    let mut g = tiny("llama", F32);
    g.set("general.alignment", V::U32(24));
    refused(&g, &["general.alignment", "power of two"]);

    let mut g = tiny("llama", Q8_0);
    g.tensors.iter_mut().find(|t| t.name == "blk.0.ffn_up.weight").unwrap().data[34..36]
        .copy_from_slice(&f16::INFINITY.to_le_bytes());
    refused(&g, &["blk.0.ffn_up.weight", "block 1", "finite"]);
}

#[test]
fn a_file_cut_short_is_named_as_such() {
    let home = tempfile::tempdir().unwrap();
    let (bytes, _) = tiny("llama", Q4_0).bytes();
    let file = home.path().join("cut.gguf");
    std::fs::write(&file, &bytes[..bytes.len() - 1000]).unwrap();
    let message = import_gguf(&file, &home.path().join("out"), &mut |_, _| {}).unwrap_err().to_string();
    assert!(message.contains("cut.gguf") && message.contains("cut short"), "{message}");
    assert!(message.contains(&(bytes.len() - 1000).to_string()), "{message}");
}

#[test]
fn big_endian_and_foreign_files_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let cases: [(&[u8], &str); 4] = [
        (b"GGUF\x00\x00\x00\x03\x00\x00", "big-endian"),
        (b"GGUF\x01\x00\x00\x00", "2 or 3"),
        (b"PK\x03\x04 a zip file", "GGUF"),
        (b"GG", "4 more bytes"),
    ];
    for (bytes, word) in cases {
        let file = home.path().join("other.gguf");
        std::fs::write(&file, bytes).unwrap();
        let message = import_gguf(&file, &home.path().join("out"), &mut |_, _| {}).unwrap_err().to_string();
        assert!(message.contains("other.gguf") && message.contains(word), "{message}");
    }
}

#[test]
fn an_output_folder_with_content_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let file = tiny("llama", F32).write(home.path(), "m.gguf");
    let out = home.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("mine.txt"), "keep").unwrap();
    let e = import_gguf(&file, &out, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, LibraryError::OutputExists { .. }), "{e}");
    assert_eq!(std::fs::read_to_string(out.join("mine.txt")).unwrap(), "keep");

    std::fs::remove_file(out.join("mine.txt")).unwrap();
    import_gguf(&file, &out, &mut |_, _| {}).expect("an empty folder is fine");

    let e = import_gguf(&file, &home.path().join("no/such/parent"), &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, LibraryError::Io { .. }), "{e}");
}

#[test]
fn percent_signs_and_spaces_in_paths_are_ordinary() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("100%s of %n models");
    std::fs::create_dir(&folder).unwrap();
    let file = tiny("llama", Q4_0).write(&folder, "a %s.gguf");
    let report = import_gguf(&file, &folder.join("out %d"), &mut |_, _| {}).unwrap();
    assert!(report.folder.join("model.safetensors").is_file());
}

#[test]
fn progress_runs_from_nothing_to_everything() {
    let home = tempfile::tempdir().unwrap();
    let g = tiny("llama", Q4_0);
    let file = g.write(home.path(), "m.gguf");
    let mut seen = Vec::new();
    import_gguf(&file, &home.path().join("out"), &mut |done, total| seen.push((done, total))).unwrap();
    let total: u64 = g.tensors.iter().map(|t| t.data.len() as u64).sum();
    assert_eq!(seen.first(), Some(&(0, total)));
    assert_eq!(seen.last(), Some(&(total, total)));
    assert!(seen.is_sorted());
}
