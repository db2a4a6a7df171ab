//! Configs of every family: what they say, and every way of saying it wrong.

use super::*;
use serde_json::json;

fn base() -> Value {
    json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
           "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 288, "rms_norm_eps": 1e-6})
}

fn with(changes: Value) -> Result<ModelConfig, CoreError> {
    let mut config = base();
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    ModelConfig::from_json(&config, Path::new("m/config.json"))
}

#[test]
fn families_differ_where_they_should() {
    let llama = with(json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert!(llama.qkv_bias && llama.o_bias && llama.mlp_bias && !llama.qk_norm);
    assert_eq!((llama.head_dim, llama.tie_word_embeddings), (16, None));
    let qwen2 = with(json!({"model_type": "qwen2"})).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.o_bias);
    assert_eq!(qwen2.rope.base, 1e6);
    assert!(with(json!({"model_type": "qwen3", "head_dim": 32})).unwrap().qk_norm);
    let smol = with(json!({"model_type": "smollm3", "no_rope_layer_interval": 2})).unwrap();
    assert_eq!(smol.layers.iter().map(|l| l.rope).collect::<Vec<_>>(), [true, false, true, false]);
}

#[test]
fn sliding_layers_reach_the_cache_layout() {
    let types = json!(["sliding_attention", "full_attention", "sliding_attention", "full_attention"]);
    let m = with(json!({"layer_types": types, "sliding_window": 16})).unwrap();
    assert_eq!(m.cache_layout().bytes(100, 4), 2 * 2 * 32 * 4 * (100 + 16));
}

fn gemma3(changes: Value) -> Result<ModelConfig, CoreError> {
    let mut config = json!({"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 4,
        "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 288,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 16});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    ModelConfig::from_json(&config, Path::new("m/config.json"))
}

fn lfm2(changes: Value) -> Result<ModelConfig, CoreError> {
    let mut config = json!({"model_type": "lfm2", "hidden_size": 128, "num_hidden_layers": 3, "block_ff_dim": 90,
        "block_multiple_of": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 288,
        "norm_eps": 1e-6, "layer_types": ["conv", "full_attention", "conv"]});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    ModelConfig::from_json(&config, Path::new("m/config.json"))
}

/// The text model's config with changes, by itself or inside another one.
fn qwen3_5(changes: Value, nested: bool) -> Result<ModelConfig, CoreError> {
    let mut text = json!({"model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 4,
        "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
        "vocab_size": 288, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
        "linear_value_head_dim": 16, "eos_token_id": 5});
    text.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let whole = json!({"model_type": "qwen3_5", "text_config": text, "eos_token_id": [6],
        "quantization": {"bits": 4, "group_size": 64}});
    ModelConfig::from_json(if nested { &whole } else { &text }, Path::new("m/config.json"))
}

#[test]
fn gemma3_has_two_rotations_and_its_own_scales() {
    let m =
        gemma3(json!({"sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})).unwrap();
    assert_eq!(m.layers.iter().map(|l| l.window).collect::<Vec<_>>(), [Some(16), None, Some(16), None]);
    let local = m.local_rope.unwrap();
    assert_eq!((m.rope.base, m.rope.scale, local.base, local.scale), (1e6, 0.125, 1e4, 1.0));
    assert_eq!((m.head_dim, m.num_kv_heads, m.attention_scale, m.norm_offset), (256, 1, 1.0 / 16.0, 1.0));
    assert_eq!((m.embedding_scale, m.activation), (Some(34.0), Activation::GeluTanh), "√1152 as a bf16");
    let types = json!(["full_attention", "sliding_attention", "sliding_attention", "full_attention"]);
    let rope = json!({"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}});
    let m = gemma3(json!({"layer_types": types, "rope_parameters": rope})).unwrap();
    assert_eq!(m.layers.iter().map(|l| l.window).collect::<Vec<_>>(), [None, Some(16), Some(16), None]);
    assert_eq!((m.rope.base, m.local_rope.unwrap().base), (5e5, 2e4));
}

#[test]
fn lfm2_mixes_convolutions_and_attention() {
    let m = lfm2(json!({})).unwrap();
    let conv = Mixer::ShortConv(ShortConv { taps: 3, bias: false });
    assert_eq!(m.layers.iter().map(|l| l.mixer).collect::<Vec<_>>(), [conv, Mixer::Attention, conv]);
    assert_eq!((m.intermediate_size, m.tie_word_embeddings, m.rms_norm_eps), (64, Some(true), 1e-6));
    assert_eq!(m.cache_layout().layers[0], LayerLayout::Recurrent { conv: 2 * 128, state: 0 });
    assert_eq!(m.cache_layout().layers[1], LayerLayout::Full { kv_heads: 1, head_dim: 64 });
    let m = lfm2(json!({"full_attn_idxs": [0], "block_auto_adjust_ff_dim": false, "rope_theta": 5e5,
        "rope_parameters": {"rope_theta": 2e6}}))
    .unwrap();
    assert_eq!(m.layers.iter().map(|l| l.mixer).collect::<Vec<_>>(), [Mixer::Attention, conv, conv]);
    assert_eq!((m.intermediate_size, m.rope.base), (90, 2e6));
}

#[test]
fn qwen3_5_is_read_by_itself_and_inside_another_config() {
    let changes =
        json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10]}});
    let (plain, nested) = (qwen3_5(changes.clone(), false).unwrap(), qwen3_5(changes, true).unwrap());
    let delta = GatedDelta { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 16, taps: 4 };
    for m in [&plain, &nested] {
        let mixers: Vec<_> = m.layers.iter().map(|l| l.mixer).collect();
        assert_eq!(mixers[..3], [Mixer::GatedDelta(delta); 3]);
        assert_eq!(mixers[3], Mixer::Attention);
        assert_eq!((m.rope.dims, m.rope.base, m.attention_gate), (16, 1e7, true));
        let recurrent = LayerLayout::Recurrent { conv: 3 * 192, state: 4 * 16 * 32 };
        assert_eq!(m.cache_layout().layers[0], recurrent);
    }
    assert_eq!((plain.eos, nested.eos), (vec![5], vec![6, 5]));
    assert!(plain.quantization.for_layer("x").is_none() && nested.quantization.for_layer("x").is_some());
    assert_eq!(qwen3_5(json!({"partial_rotary_factor": 1.0}), true).unwrap().rope.dims, 64);
}

#[test]
fn every_bad_field_of_the_newer_families_is_named() {
    let list = |kind: &str| json!({"layer_types": [kind, kind, kind, kind]});
    let lfm2_list = json!({"layer_types": ["x", "conv", "conv"]});
    let cases = [
        (gemma3(json!({"hidden_activation": "silu"})), "hidden_activation `silu` is not supported"),
        (gemma3(json!({"hidden_activation": 1})), "hidden_activation `1` is not supported"),
        (gemma3(json!({"use_bidirectional_attention": true})), "use_bidirectional_attention `true` is not supported"),
        (gemma3(json!({"final_logit_softcapping": 30.0})), "final_logit_softcapping `30.0` is not supported"),
        (gemma3(json!({"query_pre_attn_scalar": 0})), "query_pre_attn_scalar: expected a number from 1e-6"),
        (gemma3(json!({"query_pre_attn_scalar": "256"})), "query_pre_attn_scalar: expected a number, found"),
        (gemma3(json!({"rope_local_base_freq": 0.1})), "rope_local_base_freq: expected a number above 1"),
        (gemma3(json!({"rope_parameters": {"sliding_attention": {"rope_theta": "x"}}})), "rope_parameters.rope_theta"),
        (gemma3(json!({"sliding_window": 0})), "sliding_window: expected a whole number from 1"),
        (gemma3(json!({"sliding_window_pattern": 0})), "sliding_window_pattern: expected a whole number"),
        (gemma3(json!({"_sliding_window_pattern": 1.5})), "_sliding_window_pattern: expected a whole number"),
        (gemma3(list("conv")), "layer_types: expected full_attention or sliding_attention, found \"conv\""),
        (gemma3(json!({"layer_types": []})), "layer_types: expected a list of 4"),
        (lfm2(json!({"norm_eps": 2})), "norm_eps: expected a number above 0 and below 1"),
        (lfm2(json!({"block_dim": 64})), "block_dim: expected hidden_size (128), found 64"),
        (lfm2(json!({"block_ff_dim": null})), "intermediate_size: expected a whole number"),
        (lfm2(json!({"block_ff_dim": -1})), "block_ff_dim: expected a whole number"),
        (lfm2(json!({"block_ffn_dim_multiplier": 0})), "block_ffn_dim_multiplier: expected a number from"),
        (lfm2(json!({"block_multiple_of": 0})), "block_multiple_of: expected a whole number"),
        (lfm2(json!({"block_auto_adjust_ff_dim": 1})), "block_auto_adjust_ff_dim: expected true or false"),
        (lfm2(json!({"conv_L_cache": 1})), "conv_L_cache: expected a whole number from 2 to 64"),
        (lfm2(json!({"conv_bias": "no"})), "conv_bias: expected true or false"),
        (lfm2(json!({"layer_types": null})), "layer_types: expected a list of 3, one for each layer, found nothing"),
        (lfm2(lfm2_list), "layer_types: expected full_attention or conv, found \"x\""),
        (lfm2(json!({"full_attn_idxs": [3]})), "full_attn_idxs: expected layers from 0 to 2, found 3"),
        (lfm2(json!({"full_attn_idxs": "all"})), "full_attn_idxs: expected a list of layers"),
        (qwen3_5(json!({"hidden_size": null}), true), "text_config.hidden_size: expected a whole number"),
        (qwen3_5(json!({"num_experts": 8}), true), "text_config.num_experts `8` is not supported; supported: 0"),
        (qwen3_5(json!({"attn_output_gate": false}), false), "attn_output_gate `false` is not supported"),
        (qwen3_5(json!({"linear_num_key_heads": null}), false), "linear_num_key_heads: expected a whole number"),
        (qwen3_5(json!({"linear_num_value_heads": 3}), false), "a multiple of linear_num_key_heads (2), found 3"),
        (qwen3_5(json!({"linear_key_head_dim": 0}), false), "linear_key_head_dim: expected a whole number"),
        (qwen3_5(json!({"linear_value_head_dim": "x"}), false), "linear_value_head_dim: expected a whole number"),
        (
            qwen3_5(json!({"linear_conv_kernel_dim": 1}), false),
            "linear_conv_kernel_dim: expected a whole number from 2",
        ),
        (qwen3_5(json!({"full_attention_interval": 0}), false), "full_attention_interval: expected a whole number"),
        (qwen3_5(list("conv"), false), "layer_types: expected full_attention or linear_attention"),
        (qwen3_5(json!({"partial_rotary_factor": 1.5}), false), "partial_rotary_factor: expected a number above 0"),
        (qwen3_5(json!({"partial_rotary_factor": 0.02}), false), "partial_rotary_factor: expected a share of head_dim"),
        (qwen3_5(json!({"eos_token_id": "x"}), true), "text_config.eos_token_id: expected a token id"),
        (qwen3_5(json!({"rope_parameters": {"rope_theta": []}}), true), "text_config.rope_parameters.rope_theta"),
    ];
    for (i, (config, says)) in cases.into_iter().enumerate() {
        let e = config.expect_err(says).to_string();
        assert!(e.contains(says) && e.starts_with("m/config.json"), "{i}: {e}");
    }
    let e = ModelConfig::from_json(&json!({"model_type": "qwen3_5", "text_config": 3}), Path::new("c")).unwrap_err();
    assert!(e.to_string().contains("text_config: expected an object, found 3"), "{e}");
}

#[test]
fn rope_parameters_of_newer_configs_are_read() {
    let m = with(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).unwrap();
    assert_eq!(m.rope.base, 5e5);
}

#[test]
fn eos_may_be_one_or_many() {
    assert_eq!(with(json!({"eos_token_id": [1, 106]})).unwrap().eos, [1, 106]);
    assert_eq!(with(json!({"eos_token_id": 2})).unwrap().eos, [2]);
}

#[test]
fn every_bad_field_is_named_with_what_was_expected() {
    for (changes, says) in [
        (json!({"model_type": "mamba"}), "model_type `mamba` is not supported; supported: llama, mistral"),
        (json!({"model_type": 3}), "model_type: expected a string, found 3"),
        (json!({"hidden_size": null}), "hidden_size: expected a whole number from 1 to 1048576, found nothing"),
        (json!({"hidden_size": 0}), "found 0"),
        (json!({"vocab_size": "many"}), "vocab_size"),
        (json!({"num_key_value_heads": 3}), "a divisor of num_attention_heads (4)"),
        (json!({"head_dim": 15}), "an even number"),
        (json!({"hidden_act": "gelu"}), "hidden_act `gelu` is not supported; supported: silu"),
        (json!({"layer_types": ["full_attention"]}), "a list of 4"),
        (json!({"layer_types": ["a", "a", "a", "a"]}), "full_attention or sliding_attention"),
        (json!({"rope_theta": 0.5}), "a number above 1"),
        (json!({"rope_theta": 1e308}), "that f32 can hold"),
        (json!({"rope_scaling": "x"}), "rope_scaling: expected an object"),
        (json!({"rms_norm_eps": -1}), "above 0 and below 1"),
        (json!({"rms_norm_eps": 1e300}), "above 0 and below 1"),
        (json!({"tie_word_embeddings": "yes"}), "true or false"),
        (json!({"eos_token_id": -1}), "a token id or a list"),
        (json!({"model_type": "smollm3", "no_rope_layers": [1, 1, 2, 1]}), "a list of 0 and 1"),
    ] {
        let e = with(changes).unwrap_err().to_string();
        assert!(e.contains(says) && e.starts_with("m/config.json"), "{e}");
    }
}

#[test]
fn a_config_with_nan_is_refused_with_its_position() {
    let dir = std::env::temp_dir().join(format!("hearth-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("config.json");
    std::fs::write(&file, "{\"model_type\": \"llama\",\n \"rope_theta\": NaN}").unwrap();
    let e = ModelConfig::read(&file).unwrap_err().to_string();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(e.contains("line 2") && e.contains("expected JSON"), "{e}");
}
