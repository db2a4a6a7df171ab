//! Published configs, cut down to the fields that sizes depend on, against bytes of keys and values worked out by hand.
//! Sources: each model's `config.json` on the Hugging Face hub, as it is known from there and from the model cards and
//! ports of it; read November 2026.

use super::memory::Sizing;
use super::weights::{Head, Stored};
use super::{Allowance, Ask, Device, Machine, Model, fit};
use crate::kv_policy::KvPolicy;
use serde_json::{Value, json};
use std::path::Path;

/// A Mac with 64 GiB.
fn mac() -> Machine {
    Machine {
        chip: None,
        device: Device::Gpu,
        ram: 64 << 30,
        available: None,
        working_set: None,
        bandwidth: Some(400e9),
        efficiency: 0.5,
        allowance: Allowance::default(),
    }
}

fn model(config: &Value) -> Model {
    Model::from_config(config, Path::new("config.json")).unwrap()
}

/// Checks bytes per token of a long row, and what a row of 100 000 tokens keeps beside them (windows, states).
#[track_caller]
fn check(config: Value, per_token: u64, constant: u64) -> Model {
    let model = model(&config);
    let kv = KvPolicy::default();
    let sizing = Sizing::new(&model, &mac(), &kv);
    assert_eq!(sizing.kv_bytes_per_token(), per_token, "bytes per token of {}", model.shape.model_type);
    assert_eq!(sizing.kv_bytes(100_000), 100_000 * per_token + constant, "the rest of {}", model.shape.model_type);
    model
}

#[test]
fn llama_3_1_8b() {
    // 32 layers · 2 · 8 heads · 128 · 2 bytes = 131 072.
    let m = check(
        json!({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": false,
            "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}),
        131_072,
        0,
    );
    assert!(m.shape.supported);
    assert_eq!((m.shape.context, m.shape.layers), (131_072, 32));
}

#[test]
fn llama_3_2_1b() {
    // 16 layers · 2 · 8 heads · 64 · 2 bytes = 32 768.
    check(
        json!({"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
            "max_position_embeddings": 131072, "tie_word_embeddings": true}),
        32_768,
        0,
    );
}

#[test]
fn llama_3_3_70b() {
    // 80 layers · 2 · 8 heads · 128 · 2 bytes = 327 680.
    check(
        json!({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 131072}),
        327_680,
        0,
    );
}

#[test]
fn qwen3_8b() {
    // 36 layers · 2 · 8 heads · 128 · 2 bytes = 147 456.
    check(
        json!({"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
            "max_position_embeddings": 40960, "tie_word_embeddings": false, "sliding_window": null}),
        147_456,
        0,
    );
}

#[test]
fn qwen3_30b_a3b() {
    // 48 layers · 2 · 4 heads · 128 · 2 bytes = 98 304.
    let m = check(
        json!({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
            "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8,
            "moe_intermediate_size": 768, "tie_word_embeddings": false}),
        98_304,
        0,
    );
    let experts = m.shape.experts.unwrap();
    assert_eq!((experts.count, experts.per_token, experts.width, experts.shared_width), (128, 8, 768, 0));
    assert!(!m.shape.supported && m.shape.notes[0].contains("qwen3_moe"), "{:?}", m.shape.notes);
}

#[test]
fn qwen3_5_27b() {
    // Every 4th of 64 layers attends: 16 · 2 · 4 heads · 256 · 2 bytes = 65 536 a token. The 48 others keep
    // 3 inputs of 2 · 16 · 128 + 48 · 128 = 10 240 channels · 2 bytes, and 48 · 128 · 128 f32: 48 · (61 440 + 3 145 728).
    let m = check(
        json!({"model_type": "qwen3_5", "tie_word_embeddings": false, "text_config": {"model_type": "qwen3_5_text",
            "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
            "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144,
            "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}}),
        65_536,
        48 * (61_440 + 3_145_728),
    );
    assert!(m.shape.supported, "{:?}", m.shape.notes);
}

#[test]
fn qwen3_5_35b_a3b() {
    // 10 of 40 layers attend: 10 · 2 · 2 heads · 256 · 2 bytes = 20 480. The 30 others keep 3 inputs of
    // 2 · 16 · 128 + 32 · 128 = 8192 channels · 2 bytes, and 32 · 128 · 128 f32: 30 · (49 152 + 2 097 152).
    let m = check(
        json!({"model_type": "qwen3_5_moe", "text_config": {"model_type": "qwen3_5_moe_text", "hidden_size": 2048,
            "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "vocab_size": 248320, "max_position_embeddings": 262144, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4}}),
        20_480,
        30 * (49_152 + 2_097_152),
    );
    assert_eq!(m.shape.experts.unwrap().shared_width, 512);
}

#[test]
fn gemma_3_4b() {
    // Every 6th of 34 layers sees everything: 5 · 2 · 4 heads · 256 · 2 bytes = 20 480 a token. The 29 others keep
    // 1024 tokens: 29 · 4096 · 1024.
    check(
        json!({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
            "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "sliding_window": 1024, "vocab_size": 262208, "max_position_embeddings": 131072}}),
        20_480,
        29 * 4096 * 1024,
    );
}

#[test]
fn gemma_3_1b() {
    // Every 6th of 26 layers: 4 · 2 · 1 head · 256 · 2 bytes = 4096 a token; 22 others keep 512: 22 · 1024 · 512.
    let m = check(
        json!({"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
            "sliding_window_pattern": 6, "vocab_size": 262144, "max_position_embeddings": 32768}),
        4096,
        22 * 1024 * 512,
    );
    assert!(m.shape.supported);
}

#[test]
fn gemma_4_26b_a4b() {
    // 5 of 30 layers see everything, with 2 heads of 512: 5 · 2 · 2 · 512 · 2 bytes = 20 480 a token. The 25 others
    // keep 1024 tokens of 8 heads of 256: 25 · 8192 · 1024.
    let kinds: Vec<&str> = (1..=30).map(|n| if n % 6 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let m = check(
        json!({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "hidden_size": 2816,
            "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": true,
            "num_kv_shared_layers": 0, "sliding_window": 1024, "vocab_size": 262144,
            "max_position_embeddings": 262144, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "layer_types": kinds}}),
        20_480,
        25 * 8192 * 1024,
    );
    assert_eq!(m.shape.experts.unwrap().per_token, 8);
}

#[test]
fn gemma_4_e2b() {
    // Of 35 layers the last 20 read the caches of earlier ones. Of the first 15 every 5th sees everything, with one
    // head of 512: 3 · 2 · 512 · 2 bytes = 6144 a token; the 12 others keep 512 tokens of one head of 256.
    check(
        json!({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "hidden_size": 1536,
            "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1,
            "head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 20, "sliding_window": 512,
            "vocab_size": 262144, "max_position_embeddings": 131072}}),
        6144,
        12 * 1024 * 512,
    );
}

#[test]
fn mistral_small_24b() {
    // 40 layers · 2 · 8 heads · 128 · 2 bytes = 163 840; 32 · 128 is not the hidden size.
    check(
        json!({"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072,
            "max_position_embeddings": 32768, "sliding_window": null, "tie_word_embeddings": false}),
        163_840,
        0,
    );
}

#[test]
fn gpt_oss_20b() {
    // Every other of 24 layers sees everything: 12 · 2 · 8 heads · 64 · 2 bytes = 24 576 a token; the others keep 128:
    // 12 · 2048 · 128.
    let kinds: Vec<&str> = (0..24).map(|n| if n % 2 == 1 { "full_attention" } else { "sliding_attention" }).collect();
    let m = check(
        json!({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
            "vocab_size": 201088, "max_position_embeddings": 131072, "num_local_experts": 32,
            "num_experts_per_tok": 4, "experts_per_token": 4, "layer_types": kinds,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}),
        24_576,
        12 * 2048 * 128,
    );
    let experts = m.shape.experts.unwrap();
    assert_eq!((experts.count, experts.per_token, experts.width), (32, 4, 2880));
}

#[test]
fn glm_4_5_air() {
    // 46 layers · 2 · 8 heads · 128 · 2 bytes = 188 416.
    let m = check(
        json!({"model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151552,
            "max_position_embeddings": 131072, "n_routed_experts": 128, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "first_k_dense_replace": 1}),
        188_416,
        0,
    );
    assert_eq!(m.shape.experts.unwrap().shared_width, 1408);
}

#[test]
fn glm_4_9b() {
    // 40 layers · 2 · 2 heads · 128 · 2 bytes = 40 960.
    check(
        json!({"model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552,
            "max_position_embeddings": 32768}),
        40_960,
        0,
    );
}

fn deepseek_v3() -> Value {
    json!({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
        "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3})
}

#[test]
fn deepseek_v3_and_its_sparse_successor() {
    // 61 layers · (512 + 64) · 2 bytes = 70 272: the latent and the rotated part, once for all 128 heads.
    check(deepseek_v3(), 70_272, 0);
    // V3.2 keeps an index key of 128 as well: 61 · 704 · 2 = 85 888.
    let mut v32 = deepseek_v3();
    v32["model_type"] = "deepseek_v32".into();
    v32["index_head_dim"] = 128.into();
    check(v32, 85_888, 0);
}

#[test]
fn phi_4_and_phi_3_5_mini() {
    // 40 layers · 2 · 10 heads · 128 · 2 bytes = 204 800.
    check(
        json!({"model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
            "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352,
            "max_position_embeddings": 16384, "sliding_window": null}),
        204_800,
        0,
    );
    // 32 layers · 2 · 32 heads · 96 · 2 bytes = 393 216.
    check(
        json!({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064,
            "max_position_embeddings": 131072, "sliding_window": 262144}),
        393_216,
        0,
    );
}

#[test]
fn mamba_and_attention_side_by_side() {
    // NVIDIA Nemotron-H 8B: 4 of 52 layers attend: 4 · 2 · 8 heads · 128 · 2 bytes = 16 384 a token. 24 layers of Mamba 2
    // keep 3 inputs of 128 · 64 + 2 · 8 · 128 = 10 240 channels · 2 bytes, and 128 · 64 · 128 f32; the rest keeps nothing.
    let pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
    check(
        json!({"model_type": "nemotron_h", "hidden_size": 4096, "intermediate_size": 21504, "num_hidden_layers": 52,
            "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128, "vocab_size": 131072,
            "max_position_embeddings": 8192, "hybrid_override_pattern": pattern, "mamba_num_heads": 128,
            "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}),
        16_384,
        24 * (3 * 10_240 * 2 + 128 * 64 * 128 * 4),
    );
    // Kimi Linear 48B: every 4th of 27 layers has a latent: 6 … 7 · 576 · 2; the others keep 3 inputs of 3 · 32 · 128
    // channels · 2 bytes, and 32 · 128 · 128 f32.
    check(
        json!({"model_type": "kimi_linear", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 27,
            "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72, "vocab_size": 163840,
            "model_max_length": 1048576, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "num_experts": 256, "num_experts_per_token": 8, "moe_intermediate_size": 1024,
            "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128,
                "short_conv_kernel_size": 4}}),
        7 * 576 * 2,
        20 * (3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4),
    );
}

#[test]
fn quantized_keys_and_values_pay_for_their_scales() {
    let llama = model(&json!({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}));
    let per_token = |bits, machine: &Machine| {
        let kv = KvPolicy { bits, ..KvPolicy::default() };
        Sizing::new(&llama, machine, &kv).kv_bytes_per_token()
    };
    let cpu = Machine { device: Device::Cpu, ..mac() };
    // A head of 128: 128 bytes in 8 bits and 2 groups · 2 · 2 bytes; 32 layers · 2 · 8 heads · 136.
    assert_eq!(per_token(Some(8), &mac()), 32 * 2 * 8 * 136);
    // 64 bytes in 4 bits and the same groups.
    assert_eq!(per_token(Some(4), &mac()), 32 * 2 * 8 * 72);
    // On a CPU scales and biases are f32, and so is everything that is not quantized.
    assert_eq!(per_token(Some(8), &cpu), 32 * 2 * 8 * (128 + 16));
    assert_eq!(per_token(None, &cpu), 2 * per_token(None, &mac()));
}

#[test]
fn heads_of_no_whole_groups_and_windows_stay_as_they_are() {
    let phi = model(&json!({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064}));
    let (plain, eight) = (KvPolicy::default(), KvPolicy { bits: Some(8), ..KvPolicy::default() });
    let of = |kv: &KvPolicy| Sizing::new(&phi, &mac(), kv).kv_bytes(1000);
    assert_eq!(of(&eight), of(&plain), "heads of 96 are one group and a half");
}

#[test]
fn only_the_active_experts_are_read() {
    let mut deepseek = model(&deepseek_v3());
    let mut add = |name: &str, bytes| deepseek.add(Head { name, stored: Stored::Half, elements: bytes / 2, bytes });
    add("model.embed_tokens.weight", 1000);
    add("lm_head.weight", 1000);
    add("model.layers.3.self_attn.o_proj.weight", 400);
    add("model.layers.3.mlp.shared_experts.up_proj.weight", 600);
    for expert in 0..256 {
        add(&format!("model.layers.3.mlp.experts.{expert}.up_proj.weight"), 64);
    }
    add("model.layers.61.mlp.experts.0.up_proj.weight", 1_000_000);
    let report = fit(&deepseek, &mac(), &Ask { context: Some(10), ..Ask::default() });
    assert_eq!(report.terms.weights, 1000 + 1000 + 400 + 600 + 256 * 64, "the layer past the last is not loaded");
    assert_eq!(report.bytes_per_token, 1000 + 400 + 600 + 8 * 64 + 10 * 70_272);
}
