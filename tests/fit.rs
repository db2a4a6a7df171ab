//! `hearth fit` from outside: what it prints, exit codes, names and sizes that make no sense, and models of hundreds of
//! files, of which only headers exist here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use support::{Place, copy_model, golden};

fn terms(fit: &Value) -> u64 {
    let terms = fit["terms"].as_object().unwrap();
    let names: Vec<&str> = terms.keys().map(String::as_str).collect();
    assert_eq!(names, ["weights", "kv", "prefill_transient", "allocator_cache", "reserve"]);
    terms.values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

#[test]
fn a_model_that_fits() {
    let place = Place::new();
    copy_model(&golden("llama-q4"), &place.home().join("models").join("tiny"));
    let fit = place.run(&["fit", "tiny", "--json"]).exits(0).json();
    assert_eq!((&fit["model"], &fit["model_type"], &fit["supported"]), (&json!("tiny"), &json!("llama"), &json!(true)));
    assert_eq!((&fit["fits"], &fit["notes"]), (&json!(true), &json!([])));
    assert_eq!(terms(&fit), fit["total"].as_u64().unwrap());
    assert!(fit["total"].as_u64() <= fit["budget"].as_u64());
    assert_eq!((&fit["context"], &fit["limited_by"]), (&fit["model_context"], &json!("model")));
    assert_eq!(fit["largest_context"], fit["model_context"]);
    assert_eq!(fit["device"], if cfg!(target_os = "macos") { "gpu" } else { "cpu" });
    assert!(fit["kv_bytes_per_token"].as_u64().unwrap() > 0 && fit["bytes_per_token"].as_u64().unwrap() > 0);
    assert!(fit.get("skus").is_none(), "{fit}");
    let text = place.run(&["fit", "tiny"]).exits(0).out;
    for part in ["tiny (llama)", "keys and values ", "\ntotal ", "fits; the largest context is "] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // The same by its path, wherever that is.
    let path = place.home().join("models").join("tiny");
    assert_eq!(place.run(&["fit", path.to_str().unwrap(), "--json"]).exits(0).json()["total"], fit["total"]);
}

#[test]
fn the_largest_context_is_where_it_stops_fitting() {
    let place = Place::new();
    let model = golden("llama-q4");
    let model = model.to_str().unwrap();
    let ask = |budget: &str, context: Option<u64>| {
        let context = context.map(|n| n.to_string());
        let mut args = vec!["fit", model, "--json", "--memory-budget", budget];
        args.extend(context.iter().flat_map(|n| ["--context", n]));
        place.run(&args)
    };
    let whole = ask("64GB", None).exits(0).json();
    let total = whole["total"].as_u64().unwrap();
    let budget = format!("{}B", total - 1);
    let short = ask(&budget, None).exits(1).json();
    assert_eq!((&short["fits"], &short["budget"]), (&json!(false), &json!(total - 1)));
    assert_eq!(short["limited_by"], "memory");
    let most = short["largest_context"].as_u64().unwrap();
    assert!(most < whole["context"].as_u64().unwrap());
    assert_eq!(ask(&budget, Some(most)).exits(0).json()["fits"], true);
    assert_eq!(ask(&budget, Some(most + 1)).exits(1).json()["fits"], false);
    let said = place.run(&["fit", model, "--memory-budget", &budget]).exits(1);
    assert!(said.out.contains(&format!("use `--context {most}`")) && said.err.is_empty(), "{said:?}");
    let never = place.run(&["fit", model, "--memory-budget", "1MB"]).exits(1);
    assert!(never.out.contains("a larger --memory-budget"), "{never:?}");
}

#[test]
fn fewer_bits_take_less_and_macs_are_listed() {
    let place = Place::new();
    let model = golden("llama_wide-q4g128");
    let model = model.to_str().unwrap();
    let per_token = |more: &[&str]| {
        let args: Vec<&str> = ["fit", model, "--json"].iter().chain(more).copied().collect();
        place.run(&args).exits(0).json()["kv_bytes_per_token"].as_u64().unwrap()
    };
    let (plain, eight, four) = (per_token(&[]), per_token(&["--kv-bits", "8"]), per_token(&["--kv-bits", "4"]));
    assert!(four <= eight && eight <= plain, "{four} {eight} {plain}");
    // A list says it for each layer; without any flag it is what models.toml says.
    let list = place.path("list.json");
    let list = list.to_str().unwrap();
    let config: Value = serde_json::from_slice(&fs::read(Path::new(model).join("config.json")).unwrap()).unwrap();
    let layers = config["num_hidden_layers"].as_u64().unwrap() as usize;
    fs::write(list, json!(vec![json!({"bits": 8, "group": 64}); layers]).to_string()).unwrap();
    assert_eq!(per_token(&["--kv-config", list, "--kv-group", "64"]), eight);
    let mine = place.put("llama_wide-q4g128", "Mine");
    fs::write(place.home().join("models.toml"), "[Mine]\nkv_bits = 4\ncontext = 99\n").unwrap();
    let own = place.run(&["fit", "Mine", "--json"]).exits(0).json();
    assert_eq!((&own["kv_bytes_per_token"], &own["context"]), (&json!(four), &json!(99)), "{own}");
    fs::write(list, "[null, {\"bits\": 5}]").unwrap();
    let refusal = place.run(&["fit", mine.to_str().unwrap(), "--kv-config", list]).exits(3).err;
    assert!(refusal.contains("list.json") && refusal.contains("layer 1") && refusal.contains("found 5"), "{refusal}");
    let both = place.run(&["fit", "Mine", "--kv-config", list, "--kv-bits", "8"]).exits(2).err;
    assert!(both.contains("cannot be used with"), "{both}");
    let fit = place.run(&["fit", model, "--json", "--skus", "--memory-budget", "8GB"]).exits(0).json();
    let skus = fit["skus"].as_array().unwrap();
    assert!(skus.len() > 40);
    for sku in skus {
        assert_eq!(terms(sku), sku["total"].as_u64().unwrap());
        assert_eq!((&sku["device"], &sku["fits"]), (&json!("gpu"), &json!(true)), "{sku}");
        assert!(sku["decode_tokens_per_s"].as_f64().unwrap() > 0.0 && sku["chip"].is_string(), "{sku}");
    }
    let text = place.run(&["fit", model, "--skus"]).exits(0).out;
    assert!(text.contains("\nM4 Max (40 GPU cores)  128 GiB  yes "), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    let model = golden("llama-q4");
    let model = model.to_str().unwrap();
    for (args, word) in [
        (&["fit"][..], "<MODEL>"),
        (&["fit", model, "--memory-budget", "lots"], "expected a size such as 2GB"),
        (&["fit", model, "--memory-budget", "18XB"], "expected a size such as 2GB"),
        (&["fit", model, "--memory-budget", "0"], "expected a size above 0"),
        (&["fit", model, "--memory-budget=-1GB"], "expected a size such as 2GB"),
        (&["fit", model, "--memory-budget", "99999999TB"], "16 EiB"),
        (&["fit", model, "--context", "0"], "1..=1073741824"),
        (&["fit", model, "--context", "8k"], "8k"),
        (&["fit", model, "--context", "99999999999"], "99999999999"),
        (&["fit", model, "--kv-bits", "5"], "possible values: 4, 8"),
        (&["fit", model, "--quick"], "--quick"),
    ] {
        let ran = place.run(args).exits(2);
        assert!(ran.out.is_empty() && ran.err.contains(word), "{args:?}: {ran:?}");
    }
    for (name, word) in
        [("nobody/has-this", "nobody/has-this"), ("./nowhere", "nowhere"), ("/nowhere/at/all", "/nowhere/at/all")]
    {
        let ran = place.run(&["fit", name]).exits(3);
        assert!(ran.out.is_empty() && ran.err.contains(word), "{ran:?}");
    }
    let damaged = copy_model(Path::new(model), &place.path("damaged"));
    fs::write(damaged.join("kv_config.json"), r#"{"bits": 3}"#).unwrap();
    let ran = place.run(&["fit", damaged.to_str().unwrap()]).exits(3);
    assert!(ran.err.contains("kv_config.json") && ran.err.contains("found 3"), "{ran:?}");
    let weights = damaged.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() - 1000]).unwrap();
    let ran = place.run(&["fit", damaged.to_str().unwrap()]).exits(3);
    assert!(ran.err.contains("model.safetensors") && ran.err.contains("cut short"), "{ran:?}");
}

/// A model of so many files, whose weights are holes: they take no disk space, and could never be loaded.
fn sparse(folder: &Path, config: &Value, files: usize, tensors: &[(String, &str, Vec<u64>, u64)]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let share = tensors.len().div_ceil(files);
    let mut map = serde_json::Map::new();
    for (n, part) in tensors.chunks(share).enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", n + 1, tensors.len().div_ceil(share));
        let (mut header, mut at) = (serde_json::Map::new(), 0);
        for (tensor, dtype, shape, bytes) in part {
            let range = [at, at + bytes];
            header.insert(tensor.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": range}));
            map.insert(tensor.clone(), json!(name));
            at += bytes;
        }
        let header = Value::Object(header).to_string();
        let mut file = fs::File::create(folder.join(name)).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.set_len(8 + header.len() as u64 + at).unwrap();
    }
    fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    folder.to_owned()
}

/// DeepSeek-V3 as it would be in 4 bits in groups of 64, every expert a tensor of its own: 671 billion weights in 200
/// files that hold nothing. Its 60 layers of experts alone are more than all but the largest Macs have.
#[test]
fn a_model_of_two_hundred_files_and_671_billion_weights() {
    let place = Place::new();
    let (hidden, width, experts) = (7168u64, 2048u64, 256);
    let mut tensors: Vec<(String, &str, Vec<u64>, u64)> = Vec::new();
    let mut add = |path: String, rows: u64, cols: u64| {
        tensors.push((format!("{path}.weight"), "U32", vec![rows, cols / 8], rows * cols / 2));
        for part in ["scales", "biases"] {
            tensors.push((format!("{path}.{part}"), "BF16", vec![rows, cols / 64], rows * cols / 64 * 2));
        }
    };
    for path in ["model.embed_tokens", "lm_head"] {
        add(path.to_owned(), 129_280, hidden);
    }
    for layer in 0..61 {
        let own = format!("model.layers.{layer}");
        add(format!("{own}.self_attn.o_proj"), hidden, 16_384);
        add(format!("{own}.self_attn.q_b_proj"), 24_576, 1536);
        if layer < 3 {
            for name in ["gate_proj", "up_proj", "down_proj"] {
                add(format!("{own}.mlp.{name}"), hidden, 18_432);
            }
            continue;
        }
        for name in ["gate_proj", "up_proj", "down_proj"] {
            add(format!("{own}.mlp.shared_experts.{name}"), hidden, width);
            for expert in 0..experts {
                add(format!("{own}.mlp.experts.{expert}.{name}"), hidden, width);
            }
        }
    }
    let stored: u64 = tensors.iter().map(|t| t.3).sum();
    let config = json!({"model_type": "deepseek_v3", "hidden_size": hidden, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": width,
        "tie_word_embeddings": false, "quantization": {"bits": 4, "group_size": 64}});
    let folder = sparse(&place.path("deepseek"), &config, 200, &tensors);
    let files = fs::read_dir(&folder).unwrap().count();
    assert!(files > 195, "{files}");
    let fit = place.run(&["fit", folder.to_str().unwrap(), "--json", "--skus"]).exits(1).json();
    assert_eq!((&fit["fits"], &fit["supported"]), (&json!(false), &json!(false)), "{}", fit["notes"]);
    for sku in fit["skus"].as_array().unwrap() {
        assert_eq!(sku["terms"]["weights"], json!(stored), "as stored on a GPU");
        assert_eq!(sku["fits"], json!(sku["ram"].as_u64().unwrap() >= 512 << 30), "{sku}");
        // Of 256 experts 8 are read; 37 billion active weights are far less than 671 billion.
        assert!(sku["bytes_per_token"].as_u64().unwrap() * 12 < stored, "{sku}");
    }
}
