//! The arithmetic as properties, and what each device keeps.

use super::memory::{Sizing, default_budget, reserve, working_set};
use super::weights::{Head, Stored};
use super::{Allowance, Ask, Device, LimitedBy, Machine, Model, fit, report};
use crate::kv_policy::KvPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

const GIB: u64 = 1 << 30;

fn machine(device: Device, ram: u64) -> Machine {
    Machine {
        chip: None,
        device,
        ram,
        available: None,
        working_set: None,
        bandwidth: Some(1e11),
        efficiency: 0.5,
        allowance: Allowance::default(),
    }
}

fn tiny(more: &Value) -> Value {
    let mut config = json!({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 65536});
    for (name, value) in more.as_object().into_iter().flatten() {
        config[name] = value.clone();
    }
    config
}

fn model(config: &Value) -> Model {
    let mut model = Model::from_config(config, Path::new("config.json")).unwrap();
    let (name, elements) = ("model.embed_tokens.weight", 256_000);
    model.add(Head { name, stored: Stored::Half, elements, bytes: elements * 2 });
    model
}

/// One config of every kind of layer.
fn kinds() -> Vec<Value> {
    let sliding = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"];
    vec![
        tiny(&json!({})),
        tiny(&json!({"layer_types": sliding, "sliding_window": 500})),
        tiny(&json!({"model_type": "deepseek_v3", "kv_lora_rank": 64, "qk_rope_head_dim": 16})),
        tiny(&json!({"model_type": "qwen3_next", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 32, "linear_value_head_dim": 32, "head_dim": 256})),
        tiny(&json!({"model_type": "falcon_h1", "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16})),
        tiny(&json!({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})),
    ]
}

proptest! {
    #[test]
    fn terms_sum_exactly_and_grow_and_the_largest_context_is_the_largest(
        kind in 0usize..6, cpu in proptest::bool::ANY, bits in proptest::option::of(proptest::sample::select(vec![4u8, 8])),
        budget in 0u64..(3 * GIB), context in 1u64..70_000, step in 1u64..5000,
    ) {
        let model = model(&kinds()[kind]);
        let machine = machine(if cpu { Device::Cpu } else { Device::Gpu }, 8 * GIB);
        let kv = KvPolicy { bits, ..KvPolicy::default() };
        let sizing = Sizing::new(&model, &machine, &kv).within(budget);
        let (terms, more) = (sizing.terms(context), sizing.terms(context + step));
        prop_assert!(terms.total() <= more.total() && terms.kv <= more.kv, "monotone");
        prop_assert!(terms.kv >= sizing.kv_bytes(context));
        let ask = Ask { context: Some(context), budget: Some(budget), kv: kv.clone(), ..Ask::default() };
        let fit = fit(&model, &machine, &ask);
        let t = fit.terms;
        prop_assert_eq!(fit.total, t.weights + t.kv + t.prefill_transient + t.allocator_cache + t.reserve);
        prop_assert_eq!(fit.fits, fit.total <= budget);
        prop_assert_eq!(fit.fits, fit.largest_context.is_some_and(|most| most >= context) || (context > 65_536 && fit.fits));
        match fit.largest_context {
            None => prop_assert!(sizing.terms(1).total() > budget),
            Some(most) => {
                prop_assert!(sizing.terms(most).total() <= budget, "fits at it");
                match fit.limited_by {
                    LimitedBy::Model => prop_assert_eq!(most, 65_536),
                    LimitedBy::Memory => prop_assert!(sizing.terms(most + 1).total() > budget, "not at one more"),
                }
            }
        }
    }

    /// Whatever numbers a config holds: an answer or an error that names a field, never an overflow.
    #[test]
    fn no_number_breaks_the_arithmetic(
        kind in 0usize..6, field in 0usize..40,
        value in prop_oneof![Just(json!(0)), Just(json!(-1)), Just(json!(1u64 << 12)), Just(json!(1u64 << 20)), Just(json!(1u64 << 30)),
            Just(json!(u64::MAX)), Just(json!(1.5)), Just(json!("x")), Just(json!([])), Just(json!([1u64 << 40])), Just(json!({})),
            Just(Value::Null)],
    ) {
        let mut config = kinds()[kind].clone();
        let names: Vec<String> = config.as_object().unwrap().keys().cloned().collect();
        config[&names[field % names.len()]] = value;
        if let Ok(model) = Model::from_config(&config, Path::new("config.json")) {
            for device in [Device::Cpu, Device::Gpu] {
                let ask = Ask { context: Some(1 << 30), ..Ask::default() };
                let fit = fit(&model, &machine(device, 8 * GIB), &ask);
                prop_assert!(fit.total >= fit.terms.weights);
            }
        }
    }
}

#[test]
fn a_gpu_keeps_weights_as_stored_and_a_cpu_as_f32() {
    let config = tiny(&json!({"quantization": {"bits": 4, "group_size": 64}, "tie_word_embeddings": false}));
    let mut model = Model::from_config(&config, Path::new("config.json")).unwrap();
    let mut add = |name: &str, stored, elements: u64, size: u64| {
        model.add(Head { name, stored, elements, bytes: elements * size });
    };
    for path in ["model.embed_tokens", "lm_head", "model.layers.0.mlp.up_proj"] {
        // 512 × 256 in 4 bits: 32 words a row, and 4 groups.
        add(&format!("{path}.weight"), Stored::U32, 512 * 32, 4);
        add(&format!("{path}.scales"), Stored::Half, 512 * 4, 2);
        add(&format!("{path}.biases"), Stored::Half, 512 * 4, 2);
    }
    add("model.norm.weight", Stored::Half, 256, 2);
    add("vision_tower.layers.0.weight", Stored::Half, 1_000_000, 2);
    let weights = |machine: &Machine| Sizing::new(&model, machine, &KvPolicy::default()).terms(1).weights;
    let (packed, scales) = (512 * 128, 512 * 4 * 2);
    assert_eq!(weights(&machine(Device::Gpu, GIB)), 3 * (packed + 2 * scales) + 512);
    // The embedding is only looked up, and stays packed with its scales in f32.
    let embedding = packed + 2 * 2 * scales;
    assert_eq!(weights(&machine(Device::Cpu, GIB)), 2 * 512 * 256 * 4 + embedding + 1024);
    let full = Machine { available: Some(1000), ..machine(Device::Cpu, GIB) };
    assert_eq!(weights(&full), 3 * embedding + 1024, "no room to unpack");
    let transient = |machine: &Machine| Sizing::new(&model, machine, &KvPolicy::default()).terms(1).prefill_transient;
    let unpacked = 512 * 256 * 4;
    assert_eq!(transient(&full), transient(&machine(Device::Cpu, GIB)) + unpacked, "one matrix at a time is unpacked");
}

#[test]
fn a_tied_head_counts_once_and_is_read_by_every_token() {
    let model = model(&tiny(&json!({"tie_word_embeddings": true})));
    let sizing =
        Sizing::new(&model, &machine(Device::Gpu, GIB), &KvPolicy { ..KvPolicy::default() }.clone()).terms(1).weights;
    assert_eq!(sizing, 512_000);
    let fit = fit(&model, &machine(Device::Gpu, GIB), &Ask { context: Some(1), ..Ask::default() });
    // 4 layers · 2 · 2 heads · 64 · 2 bytes.
    assert_eq!(fit.bytes_per_token, 512_000 + 2048);
    assert_eq!(fit.decode_tokens_per_s, Some(1e11 * 0.5 / 514_048.0));
}

#[test]
fn a_model_in_f32_keeps_f32_on_a_gpu_too() {
    let mut model = Model::from_config(&tiny(&json!({})), Path::new("config.json")).unwrap();
    model.add(Head { name: "model.embed_tokens.weight", stored: Stored::F32, elements: 10, bytes: 40 });
    assert_eq!(Sizing::new(&model, &machine(Device::Gpu, GIB), &KvPolicy::default()).kv_bytes_per_token(), 4096);
    // The allocator's share is that of the engine: of the budget, within bounds.
    let limits = [(64 * GIB, Device::Gpu), (64 * GIB, Device::Cpu), (8 * GIB, Device::Gpu), (0, Device::Gpu)];
    let limits = limits.map(|(budget, device)| super::memory::allocator_limit(budget, device) >> 20);
    assert_eq!(limits, [512, 32, 256, 1]);
}

#[test]
fn budgets_leave_the_system_its_share() {
    for (ram, gpu) in [(16, 16.0 * 2.0 / 3.0), (36, 24.0), (48, 36.0), (128, 96.0)] {
        let mac = machine(Device::Gpu, ram * GIB);
        assert!((default_budget(&mac) as f64 / GIB as f64 - gpu).abs() < 0.001, "{ram}");
        assert_eq!(working_set(ram * GIB), default_budget(&mac));
    }
    assert_eq!(default_budget(&machine(Device::Cpu, 16 * GIB)), 12 * GIB);
    let told = Machine { working_set: Some(GIB), ..machine(Device::Gpu, 16 * GIB) };
    assert_eq!(default_budget(&told), GIB);
    assert_eq!([0, 16 * GIB, 512 * GIB].map(reserve), [256 << 20, 512 << 20, 2 * GIB]);
}

#[test]
fn fused_attention_needs_no_scores_and_the_rest_is_charged_for_them() {
    let transient = |head_dim: u64, device| {
        let model = model(&tiny(&json!({"head_dim": head_dim})));
        Sizing::new(&model, &machine(device, GIB), &KvPolicy::default()).terms(32_768).prefill_transient
    };
    // Before and after the softmax: 4 heads · 2048 queries · 32 768 keys · 2 bytes.
    let scores = 2 * 4 * 2048 * 32_768 * 2;
    assert!(transient(96, Device::Gpu) > scores && transient(128, Device::Gpu) < scores / 4);
    // In blocks of 128 queries, in f32, in place.
    assert!(transient(96, Device::Cpu) > scores / 16 && transient(96, Device::Cpu) < scores / 4);
}

#[test]
fn the_report_says_what_it_is_about() {
    let here = machine(Device::Cpu, GIB);
    let ask = Ask { context: Some(70_000), budget: Some(1 << 40), ..Ask::default() };
    let others = [machine(Device::Gpu, 16 * GIB), machine(Device::Gpu, 64 * GIB)];
    let model = model(&kinds()[5]);
    let all = report("org/m", Path::new("/m"), &model, &here, &ask, Some(&others));
    let json = serde_json::to_value(&all).unwrap();
    assert_eq!((&json["model"], &json["device"], &json["supported"]), (&json!("org/m"), &json!("cpu"), &json!(false)));
    assert_eq!((&json["budget"], &json["fits"]), (&json!(GIB), &json!(true)), "no more than there is");
    assert!(all.notes.iter().any(|n| n.contains("1073741824 bytes count")), "{:?}", all.notes);
    let allowance = Allowance { budget: Some(GIB / 2), reserve: Some(1000) };
    let set = report("m", Path::new("/m"), &model, &Machine { allowance, ..here.clone() }, &Ask::default(), None).here;
    assert_eq!((set.budget, set.terms.reserve), (GIB / 2, 1000));
    assert_eq!(json["skus"].as_array().unwrap().len(), 2);
    assert_eq!(
        json["skus"][0]["budget"],
        json!(working_set(16 * GIB)),
        "a budget that was asked for is this machine's"
    );
    assert!(all.notes[0].contains("mixtral") && all.notes.iter().any(|n| n.contains("65536")), "{:?}", all.notes);
    let default = report("m", Path::new("/m"), &model, &here, &Ask::default(), None);
    assert_eq!((default.context, default.skus), (8192, None));
}

#[test]
fn a_layer_that_nobody_knows_is_an_error_and_so_is_a_missing_size() {
    for (more, says) in [
        (json!({"model_type": "new", "layer_types": ["full_attention", "telepathy"]}), "telepathy"),
        (json!({"model_type": "new", "hidden_size": null}), "hidden_size: expected a whole number from 1 to"),
        (json!({"model_type": "new", "layer_types": ["sliding_attention"]}), "sliding_window"),
        (json!({"model_type": "new", "vocab_size": -3}), "found -3"),
        (json!({"model_type": "rwkv7"}), "rwkv7"),
        (json!({"model_type": "new", "layer_types": []}), "from 1 to 1024"),
    ] {
        let e = Model::from_config(&tiny(&more), Path::new("m/config.json")).unwrap_err().to_string();
        assert!(e.contains(says) && e.contains("config.json"), "{e}");
    }
}

#[test]
fn parts_of_the_files_count_like_the_whole() {
    let whole = model(&kinds()[5]);
    let names = [
        "model.embed_tokens.weight",
        "model.layers.1.block_sparse_moe.experts.3.w1.weight",
        "model.layers.1.mlp.switch_mlp.up_proj.weight",
        "language_model.model.layers.3.experts.switch_glu.up_proj.weight",
        "model.language_model.layers.3.self_attn.o_proj.weight",
        "model.layers.4.eh_proj.weight",
        "model.layers.2.self_attn.rotary_emb.inv_freq",
        "vision_tower.encoder.layers.0.fc1.weight",
        "language_model.lm_head.weight",
        "mtp.layers.0.fc.weight",
        "transformer.h.0.attn.weight",
    ];
    let head = |n: usize| {
        let bytes = 2 << n;
        Head { name: names[n], stored: Stored::Half, elements: bytes / 2, bytes }
    };
    let mut all = whole.part();
    (0..names.len()).for_each(|n| all.add(head(n)));
    let (mut odd, mut even) = (whole.part(), whole.part());
    (0..names.len()).for_each(|n| if n % 2 == 1 { odd.add(head(n)) } else { even.add(head(n)) });
    odd.merge(&even);
    assert_eq!(odd.weights, all.weights);
    let fit = fit(&all, &machine(Device::Gpu, GIB), &Ask { context: Some(1), ..Ask::default() });
    let bytes = |of: &[usize]| of.iter().map(|n| 2u64 << n).sum::<u64>();
    assert_eq!(fit.terms.weights, bytes(&[0, 1, 2, 3, 4, 8, 10]));
    // 2 of 8 experts.
    assert_eq!(fit.bytes_per_token, bytes(&[4, 8, 10]) + bytes(&[1, 2, 3]) / 4 + 2048);
}
