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
        (json!({"hidden_act": "gelu"}), "hidden_act `gelu` is not supported"),
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
