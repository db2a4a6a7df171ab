//! The `hearth` binary from outside: flags, exit codes, files that are wrong, and how a server starts and ends.
//! The models are tiny random ones, so that every case takes well under a second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use support::{Place, Ran, Server, copy_model, edit_json, golden, ran};

const TINY: &str = "llama-q4";

/// A place with the tiny model in Hearth's own models folder.
fn with_model(name: &str) -> Place {
    let place = Place::new();
    copy_model(&golden(TINY), &place.home().join("models").join(name));
    place
}

fn generate(place: &Place, model: &Path, more: &[&str]) -> Ran {
    let mut cmd = place.hearth(&["generate"]);
    cmd.arg(model).args(["--prompt", "Hello", "--max-tokens", "4", "--temperature", "0"]).args(more);
    ran(cmd)
}

#[test]
fn help_documents_every_command_and_the_exit_codes() {
    let place = Place::new();
    let help = place.run(&["--help"]).exits(0).out;
    for command in ["serve", "run", "generate", "import", "ls", "ps", "stop", "cache", "doctor", "fit", "preflight"] {
        assert!(help.contains(&format!("  {command} ")), "{command} is missing in:\n{help}");
        let own = place.run(&[command, "--help"]).exits(0).out;
        assert!(own.contains("Exit codes:") && own.contains("4  the server cannot be reached"), "{own}");
    }
    let version = place.run(&["--version"]).exits(0).out;
    assert_eq!(version.trim(), format!("hearth {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_wrong_command_line_is_refused_with_2() {
    let place = Place::new();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["sing"], "sing"),
        (&["serve", "--nope"], "--nope"),
        (&["serve", "--por", "1"], "--por"),
        (&["serve", "--port", "65536"], "65536"),
        (&["serve", "--max-rows", "0"], "0"),
        (&["serve", "--context", "x"], "x"),
        (&["serve", "a", "b"], "b"),
        (&["serve", "--host", "0.0.0.0", "--port", "0"], "API key"),
        (&["serve", "--api-key", "", "--port", "0"], "empty"),
        (&["serve", "--log", "hearth=loud", "--port", "0"], "hearth=loud"),
        (&["serve", "--cache-ram", "2XB"], "expected a size such as 2GB"),
        (&["serve", "--cache-ssd", "lots"], "expected a size such as 2GB"),
        (&["serve", "--cache-ssd=-1"], "expected a size such as 2GB"),
        (&["serve", "--cache-ram", "99999999TB"], "16 EiB"),
        (&["serve", "--kv-bits", "5"], "5"),
        (&["serve", "--cache-idle", "0"], "0"),
        (&["cache"], "Usage"),
        (&["cache", "sweep"], "sweep"),
        (&["cache", "stats", "--port", "0"], "0"),
        (&["cache", "clear", "--all"], "--all"),
        (&["generate"], "MODEL"),
        (&["generate", "m", "--prompt", "a", "--prompt-file", "b"], "--prompt-file"),
        (&["generate", "m", "--prompt", "a", "--system", "b"], "--chat"),
        (&["generate", "m", "--temperature", "hot"], "hot"),
        (&["run", "--url", "ftp://x"], "ftp://x"),
        (&["run", "--temperature", "3"], "must be between 0 and 2; it is 3"),
        (&["import"], "FILE"),
        (&["ls", "--yaml"], "--yaml"),
        (&["ps", "--nope"], "--nope"),
        (&["stop", "now"], "now"),
        (&["doctor", "--fix"], "--fix"),
        (&["preflight", "--fix"], "--fix"),
        (&["preflight", "now"], "now"),
        (&["preflight", "--allow-cpu-process"], "--allow-cpu-process"),
        (&["preflight", "--allow-cpu-process", ""], "--allow-cpu-process"),
    ];
    for (args, word) in cases {
        let ran = place.run(args).exits(2);
        assert!(ran.out.is_empty() && ran.err.contains(word), "{args:?}: {ran:?}");
    }
}

/// Makes a damaged model folder of a copy; returns the words that the error has to hold.
type Damage = fn(&Path) -> Vec<String>;

/// Each kind of unusable model: its folder's name, how to make it.
const DAMAGED: &[(&str, Damage)] = &[
    ("truncated", |dir| {
        let file = dir.join("model.safetensors");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 1000]).unwrap();
        vec!["model.safetensors".into(), bytes.len().to_string(), (bytes.len() - 1000).to_string()]
    }),
    ("missing-shard", |dir| {
        fs::rename(dir.join("model.safetensors"), dir.join("model-00001-of-00002.safetensors")).unwrap();
        let map = json!({"model.embed_tokens.weight": "model-00001-of-00002.safetensors",
                         "model.norm.weight": "model-00002-of-00002.safetensors"});
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        vec!["model-00002-of-00002.safetensors".into(), "missing".into(), "model.safetensors.index.json".into()]
    }),
    ("no-weights", |dir| {
        fs::remove_file(dir.join("model.safetensors")).unwrap();
        vec!["no-weights".into(), "safetensors".into()]
    }),
    ("wrong-shape", |dir| {
        edit_json(&dir.join("config.json"), |config| config["intermediate_size"] = json!(96));
        vec!["model.safetensors".into(), "mlp".into(), "expected".into(), "96".into(), "128".into()]
    }),
    ("missing-tensor", |dir| {
        edit_json(&dir.join("config.json"), |config| config["num_hidden_layers"] = json!(3));
        vec!["missing-tensor".into(), "model.layers.2.".into(), "missing".into()]
    }),
    ("nan-config", |dir| {
        let file = dir.join("config.json");
        let text = fs::read_to_string(&file).unwrap().replace("10000.0", "NaN");
        assert!(text.contains("NaN"));
        fs::write(file, text).unwrap();
        vec!["config.json".into(), "expected".into(), "found".into()]
    }),
    ("huge-config", |dir| {
        edit_json(&dir.join("config.json"), |config| config["hidden_size"] = json!(u64::MAX));
        vec!["config.json".into(), "hidden_size".into(), "expected".into(), u64::MAX.to_string()]
    }),
    ("absurd-config", |dir| {
        // Within every field's range, and terabytes of weights: refused before anything is allocated.
        edit_json(&dir.join("config.json"), |config| {
            config["hidden_size"] = json!(1 << 20);
            config["intermediate_size"] = json!(1 << 20);
        });
        vec!["model.safetensors".into(), "embed_tokens".into(), "expected shape [288, ".into()]
    }),
    ("no-config", |dir| {
        fs::remove_file(dir.join("config.json")).unwrap();
        vec!["config.json".into(), "missing".into()]
    }),
    ("unknown-type", |dir| {
        edit_json(&dir.join("config.json"), |config| config["model_type"] = json!("mamba9"));
        vec!["config.json".into(), "model_type".into(), "mamba9".into(), "llama".into()]
    }),
    ("no-tokenizer", |dir| {
        fs::remove_file(dir.join("tokenizer.json")).unwrap();
        vec!["tokenizer.json".into(), "missing".into()]
    }),
    ("broken-tokenizer", |dir| {
        fs::write(dir.join("tokenizer.json"), "{\"version\": ").unwrap();
        vec!["tokenizer.json".into(), "expected".into(), "found".into()]
    }),
    ("other-tokenizer", |dir| {
        // The tokenizer of a model with more tokens than this one has rows for.
        edit_json(&dir.join("tokenizer.json"), |tokenizer| {
            let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
            for id in 300..400 {
                vocab.insert(format!("word{id}"), json!(id));
            }
        });
        vec!["tokenizer.json".into(), "288".into(), "400".into()]
    }),
    ("smaller-tokenizer", |dir| {
        edit_json(&dir.join("tokenizer.json"), |tokenizer| {
            let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
            vocab.retain(|_, id| id.as_u64().unwrap() < 100);
            tokenizer["added_tokens"] = json!([]);
        });
        vec!["tokenizer.json".into(), "about 288 ids".into(), "100 ids".into()]
    }),
    ("percent-%s-%n", |dir| {
        let file = dir.join("model.safetensors");
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        vec!["percent-%s-%n".into(), "model.safetensors".into(), bytes.len().to_string()]
    }),
];

#[test]
fn an_unusable_model_is_3_and_says_what_is_wrong() {
    let healthy = Server::start(&golden(TINY), &[]);
    let place = Place::new();
    for (name, damage) in DAMAGED {
        let dir = copy_model(&golden(TINY), &place.path(name));
        let words = damage(&dir);
        let generated = generate(&place, &dir, &[]).exits(3);
        let mut serve = place.hearth(&["serve", "--port", "0"]);
        serve.arg(&dir);
        let served = ran(serve).exits(3);
        for ran in [&generated, &served] {
            for word in &words {
                assert!(ran.err.contains(word.as_str()), "{name}: `{word}` is missing in {ran:?}");
            }
        }
        assert!(generated.out.is_empty() && !served.out.contains("ready"), "{generated:?} {served:?}");
        assert!(!place.home().join("server.json").exists(), "{name} left its record behind");
    }
    let reply = healthy.ask("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 4, "temperature": 0}));
    assert!(reply["usage"]["completion_tokens"].as_u64().unwrap() >= 1, "the running server is alive: {reply}");
}

#[test]
fn percent_signs_in_a_path_do_no_harm() {
    let place = Place::new();
    let dir = copy_model(&golden(TINY), &place.path("50%s%n done"));
    let plain = generate(&place, &golden(TINY), &[]).exits(0);
    assert_eq!(generate(&place, &dir, &[]).exits(0).out, plain.out);
}

#[test]
fn a_model_is_found_by_any_clear_name() {
    let place = with_model("Tiny-Llama-4bit");
    copy_model(&golden(TINY), &place.home().join("models/Tiny-Qwen-4bit"));
    let full = place.home().join("models/Tiny-Llama-4bit");
    let expected = generate(&place, &full, &[]).exits(0).out;
    for name in ["Tiny-Llama-4bit", "tiny-llama", "LLAMA"] {
        assert_eq!(generate(&place, Path::new(name), &[]).exits(0).out, expected, "{name}");
    }
    let unclear = generate(&place, Path::new("tiny"), &[]).exits(3);
    assert!(unclear.err.contains("Tiny-Llama-4bit") && unclear.err.contains("Tiny-Qwen-4bit"), "{unclear:?}");
    let unknown = generate(&place, Path::new("mistral"), &[]).exits(3);
    assert!(unknown.err.contains("mistral") && unknown.err.contains("Tiny-Llama-4bit"), "{unknown:?}");
}

#[test]
fn ls_lists_what_is_there() {
    let place = Place::new();
    assert_eq!(place.run(&["ls", "--json"]).exits(0).json()["models"], json!([]));
    let empty = place.run(&["ls"]).exits(0);
    assert!(empty.err.contains("hearth import") || empty.out.contains("hearth import"), "{empty:?}");
    let dir = copy_model(&golden(TINY), &place.home().join("models/Tiny-Llama-4bit"));
    let half = copy_model(&golden(TINY), &place.home().join("models/Half"));
    fs::remove_file(half.join("model.safetensors")).unwrap();
    let listed = place.run(&["ls", "--json"]).exits(0).json();
    let models = listed["models"].as_array().unwrap();
    let tiny = models.iter().find(|m| m["id"].as_str().unwrap().contains("Tiny-Llama-4bit")).unwrap();
    assert_eq!(tiny["model_type"], "llama");
    assert_eq!(tiny["path"].as_str().unwrap(), dir.canonicalize().unwrap().to_str().unwrap());
    let file = fs::metadata(dir.join("model.safetensors")).unwrap().len();
    assert!((file - 20_000..file).contains(&tiny["bytes"].as_u64().unwrap()), "the tensors without the header: {tiny}");
    assert_eq!(tiny["problem"], json!(null));
    assert!(models.iter().all(|m| !m["id"].as_str().unwrap().contains("Half") || m["problem"].is_string()), "{listed}");
    let shown = place.run(&["ls"]).exits(0).out;
    assert!(shown.starts_with("MODEL") && shown.contains("Tiny-Llama-4bit"), "{shown}");
}

#[test]
fn generate_prints_the_text_or_one_object() {
    let place = Place::new();
    let text = generate(&place, &golden(TINY), &[]).exits(0).out;
    let data = generate(&place, &golden(TINY), &["--json"]).exits(0).json();
    assert_eq!(format!("{}\n", data["text"].as_str().unwrap().trim_end_matches('\n')), text);
    assert_eq!(data["prompt_tokens"], 5, "one token a byte: {data}");
    let ids = data["token_ids"].as_array().unwrap();
    assert_eq!(data["generated_tokens"], ids.len());
    for number in ["prefill_tps", "decode_tps", "ttft_ms", "load_ms", "peak_rss_bytes"] {
        assert!(data[number].as_f64().unwrap() >= 0.0, "{number}: {data}");
    }
    assert!(data["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(["stop", "length"].contains(&data["finish_reason"].as_str().unwrap()));
    let mut cmd = place.hearth(&["generate"]);
    cmd.arg(golden(TINY)).args(["--prompt", "Hello", "--json", "--ignore-eos", "--max-tokens", "33"]);
    let long = ran(cmd).exits(0).json();
    assert_eq!((&long["generated_tokens"], &long["finish_reason"]), (&json!(33), &json!("length")));
}

#[test]
fn generate_takes_its_prompt_from_anywhere() {
    let place = Place::new();
    let model = golden(TINY);
    let by_flag = generate(&place, &model, &["--json"]).exits(0).json();
    fs::write(place.path("prompt.txt"), "Hello").unwrap();
    let args = ["--max-tokens", "4", "--temperature", "0", "--json"];
    let mut cmd = place.hearth(&["generate"]);
    cmd.arg(&model).args(["--prompt-file", "prompt.txt"]).args(args);
    assert_eq!(ran(cmd).exits(0).json()["token_ids"], by_flag["token_ids"]);
    let mut cmd = place.hearth(&["generate"]);
    cmd.arg(&model).args(args).stdin(fs::File::open(place.path("prompt.txt")).unwrap());
    assert_eq!(ran(cmd).exits(0).json()["token_ids"], by_flag["token_ids"]);
    let chat = generate(&place, &model, &["--json", "--chat", "--system", "Be brief."]).exits(0).json();
    assert!(chat["prompt_tokens"].as_u64().unwrap() > 20, "the template is applied: {chat}");
    let mut cmd = place.hearth(&["generate"]);
    cmd.arg(&model).args(["--prompt-file", "nowhere.txt"]);
    assert!(ran(cmd).exits(3).err.contains("nowhere.txt"));
    let mut cmd = place.hearth(&["generate"]);
    cmd.arg(&model).args(["--prompt", ""]);
    assert!(ran(cmd).exits(2).err.contains("empty"));
}

#[test]
fn generate_checks_and_obeys_the_sampling_flags() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let mut cmd = place.hearth(&["generate"]);
        cmd.arg(golden(TINY)).args(["--prompt", "Hello", "--max-tokens", "24", "--ignore-eos", "--json"]).args(more);
        ran(cmd)
    };
    let ids = |more: &[&str]| run(more).exits(0).json()["token_ids"].clone();
    assert_eq!(ids(&["--temperature", "1", "--seed", "7"]), ids(&["--temperature", "1", "--seed", "7"]));
    assert_ne!(ids(&["--temperature", "1", "--seed", "7"]), ids(&["--temperature", "1", "--seed", "8"]));
    assert_eq!(ids(&["--temperature", "1", "--top-k", "1"]), ids(&["--temperature", "0"]));
    for (flag, value) in [("--temperature", "9"), ("--top-p", "0"), ("--min-p", "2")] {
        let refused = run(&[flag, value]).exits(2);
        assert!(refused.err.contains(&flag[2..].replace('-', "_")) && refused.err.contains(value), "{refused:?}");
    }
    let whole = run(&["--temperature", "0"]).exits(0).json()["text"].as_str().unwrap().to_owned();
    let stop: String = whole.chars().skip(3).take(2).collect();
    let cut = run(&["--temperature", "0", "--stop", &stop]).exits(0).json();
    assert_eq!(cut["text"].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
    assert_eq!(cut["finish_reason"], "stop");
    let full = run(&["--context", "4"]).exits(1);
    assert!(full.err.contains('5') && full.err.contains('4'), "both lengths: {full:?}");
}

#[test]
fn import_refuses_what_is_no_good_gguf() {
    let place = Place::new();
    fs::write(place.path("text.gguf"), "this is no model").unwrap();
    fs::write(place.path("cut.gguf"), b"GGUF\x03\0\0\0\x10\0\0").unwrap();
    for (file, word) in [("text.gguf", "GGUF"), ("cut.gguf", "cut.gguf"), ("nowhere.gguf", "nowhere.gguf")] {
        let refused = place.run(&["import", file, "--out", "new"]).exits(3);
        assert!(refused.err.contains(file) && refused.err.contains(word), "{refused:?}");
        assert!(refused.out.is_empty() && !place.path("new").exists());
    }
}

#[test]
fn import_makes_a_folder_that_can_be_used() {
    let Some(gguf) = std::env::var_os("HEARTH_STARTER_GGUF") else {
        panic!("this test needs the starter model's GGUF file: `cargo xtask test` gives it as HEARTH_STARTER_GGUF");
    };
    let place = Place::new();
    let mut cmd = place.hearth(&["import"]);
    cmd.arg(&gguf).args(["--out", "new/model"]);
    let imported = ran(cmd).exits(0);
    let folder = place.path("new/model");
    assert_eq!(imported.out.lines().last(), folder.to_str(), "{imported:?}");
    let done = generate(&place, &folder, &["--json"]).exits(0).json();
    assert!(done["generated_tokens"].as_u64().unwrap() >= 1, "{done}");
    let mut again = place.hearth(&["import"]);
    again.arg(&gguf).args(["--out", "new/model"]);
    assert!(ran(again).exits(3).err.contains("not empty"), "nothing is overwritten");
    // Without --out it lands where `ls` finds it.
    let mut cmd = place.hearth(&["import", "--json"]);
    cmd.arg(&gguf);
    let report = ran(cmd).exits(0).json();
    assert_eq!(report["architecture"], "llama");
    assert!(
        report["parameters"].as_u64().unwrap() > 100_000_000 && report["types"]["Q4_1"].as_u64().unwrap() > 100,
        "{report}"
    );
    let listed = place.run(&["ls", "--json"]).exits(0).json();
    assert_eq!(listed["models"][0]["path"], report["folder"], "{listed}");
}

#[test]
fn ps_and_stop_without_a_server_are_4() {
    let place = Place::new();
    for command in ["ps", "stop"] {
        let ran = place.run(&[command]).exits(4);
        assert!(ran.err.contains("no server") && ran.err.contains("hearth serve"), "{ran:?}");
    }
    for command in ["stats", "flush", "clear"] {
        let ran = place.run(&["cache", command, "--json"]).exits(4);
        assert!(ran.out.is_empty() && ran.err.contains("no server") && ran.err.contains("hearth serve"), "{ran:?}");
        let ran = place.run(&["cache", command, "--port", "9"]).exits(4);
        assert!(ran.err.contains("127.0.0.1:9"), "{ran:?}");
    }
    let run = place.run(&["run", "--url", "http://127.0.0.1:9"]).exits(4);
    assert!(run.err.contains("127.0.0.1:9"), "{run:?}");
}

#[test]
fn a_server_is_shown_and_stopped() {
    let mut server = Server::start(&golden(TINY), &["--api-key", "secret"]);
    let record = server.place.home().join("server.json");
    let text = fs::read_to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["pid"], server.child.id());
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600, "it holds the admin token");
    let ps = server.place.run(&["ps", "--json"]).exits(0).json();
    assert_eq!((&ps["pid"], &ps["url"]), (&json!(server.child.id()), &json!(server.url)));
    assert_eq!(ps["stats"]["model"]["model_type"], "llama", "{ps}");
    assert!(ps.to_string().matches("secret").count() == 0 && !ps.to_string().contains("token\""), "{ps}");
    let shown = server.place.run(&["ps"]).exits(0).out;
    assert!(shown.contains(&server.url) && shown.contains("llama-q4"), "{shown}");
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!record.exists());
    server.place.run(&["stop"]).exits(4);
}

/// A chat long enough to be kept by the prompt cache.
fn long_chat() -> Value {
    let content = "All work and no play makes a long prompt. ".repeat(12);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0, "ignore_eos": true})
}

#[test]
fn the_prompt_cache_is_shown_flushed_and_cleared() {
    let args = ["--cache-ram", "64MB", "--cache-ssd", "1GiB", "--cache-dir", "kept", "--cache-idle", "100000"];
    let mut server = Server::start(&golden(TINY), &[&args[..], &["--api-key", "secret"]].concat());
    let http = support::http();
    let chat = || {
        let request = http.post(format!("{}/v1/chat/completions", server.url)).bearer_auth("secret");
        let reply = request.json(&long_chat()).send().unwrap();
        assert_eq!(reply.status(), 200);
        reply.json::<Value>().unwrap()
    };
    let first = chat();
    let again = chat();
    assert_eq!(again["choices"][0]["message"], first["choices"][0]["message"]);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let prompt = again["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1, "case 28: one is computed anew");

    let stats = || server.place.run(&["cache", "stats", "--json"]).exits(0).json();
    let figures = stats();
    assert_eq!((&figures["ram"]["cap"], &figures["ssd"]["cap"]), (&json!(64_000_000), &json!(1u64 << 30)), "{figures}");
    assert_eq!((&figures["ssd"]["state"], &figures["ram"]["hits"]), (&json!("ready"), &json!(1)), "{figures}");
    let folder = server.place.path("kept");
    assert_eq!(figures["ssd"]["dir"].as_str().map(Path::new), Some(folder.as_path()), "{figures}");
    let shown = server.place.run(&["cache", "stats"]).exits(0).out;
    assert!(
        shown.contains(" of 64.0 MB in ") && shown.contains(" of 1.1 GB in ") && shown.contains(" 1 hit, 1 miss, "),
        "{shown}"
    );
    let ps = server.place.run(&["ps"]).exits(0).out;
    assert!(ps.contains("cache   ") && ps.contains("tokens reused"), "{ps}");

    // By the recorded port and by its number; the API key is not the admin's.
    let port = server.port().to_string();
    for command in ["flush", "clear"] {
        let url = format!("{}/api/hearth/cache/{command}", server.url);
        assert_eq!(http.post(url).bearer_auth("secret").send().unwrap().status(), 401);
    }
    let flushed = server.place.run(&["cache", "flush", "--json"]).exits(0).json();
    assert_eq!(flushed["failed"], json!([]), "{flushed}");
    let figures = stats();
    assert!(flushed["entries"].as_u64().unwrap() >= 1 && figures["ssd"]["pending"] == 0, "{flushed} {figures}");
    assert!(figures["ssd"]["files"].as_u64().unwrap() >= 1, "{flushed} {figures}");
    assert!(fs::read_dir(&folder).unwrap().count() >= 1);
    let flushed = server.place.run(&["cache", "flush", "--port", &port]).exits(0).out;
    assert!(flushed.starts_with("on disk: ") && flushed.contains("0 B written"), "it is there already: {flushed}");
    let stranger = Place::new();
    let refused = stranger.run(&["cache", "clear", "--port", &port]).exits(1);
    assert!(refused.err.contains("HEARTH_HOME"), "{refused:?}");
    let cleared = server.place.run(&["cache", "clear"]).exits(0).out;
    assert!(cleared.starts_with("removed ") && !cleared.contains(" 0 files"), "{cleared}");
    let figures = stats();
    assert_eq!((&figures["ram"]["entries"], &figures["ssd"]["files"]), (&json!(0), &json!(0)), "{figures}");
    assert_eq!(chat()["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "nothing is left");
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_stopped_server_saves_its_prompt_cache() {
    let mut server = Server::start(&golden(TINY), &[]);
    let first = server.ask("/v1/chat/completions", &long_chat());
    server.idle();
    server.signal(Signal::TERM);
    let said = server.line();
    let folder = server.place.home().join("cache");
    assert!(said.contains("saved") && said.contains(folder.to_str().unwrap()), "{said}");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!server.place.home().join("server.json").exists());
    let mut again = server.place.hearth(&["serve", "--port", "0"]);
    again.arg(golden(TINY));
    let place = std::mem::replace(&mut server.place, Place::new());
    let again = Server::spawn(place, again);
    assert!(again.line().starts_with("ready: "));
    let second = again.ask("/v1/chat/completions", &long_chat());
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0, "{second}");
    assert_eq!(second["choices"][0]["message"], first["choices"][0]["message"]);
}

#[test]
fn stop_says_what_was_not_saved() {
    // A file where the cache's folder should be, and one that stays.
    let mut server = Server::start(&golden(TINY), &["--cache-dir", "home/lock/kept"]);
    server.ask("/v1/chat/completions", &long_chat());
    server.idle();
    let stopped = server.place.run(&["stop"]).exits(1);
    assert!(stopped.out.starts_with("stopped ") && stopped.err.contains("not all saved"), "{stopped:?}");
    assert!(stopped.err.contains("home/lock/kept"), "{stopped:?}");
    assert_eq!(server.wait().code(), Some(0));

    // The next one has nothing to lose, and the one after it no time to save.
    for kill in [false, true] {
        let mut cmd = server.place.hearth(&["serve", "--port", "0"]);
        cmd.arg(golden(TINY));
        let place = std::mem::replace(&mut server.place, Place::new());
        server = Server::spawn(place, cmd);
        assert!(server.line().starts_with("ready: "));
        if kill {
            // Stopped in its tracks, it cannot end before `hearth stop` waits for it.
            server.signal(Signal::STOP);
        }
        let mut stop = server.place.hearth(&["stop", "--json"]);
        let mut stop = stop.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if kill {
            let mut said = std::io::BufReader::new(stop.stderr.take().unwrap());
            let mut line = String::new();
            std::io::BufRead::read_line(&mut said, &mut line).unwrap();
            assert!(line.starts_with("waiting for process"), "{line}");
            server.child.kill().unwrap();
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
            assert!(rest.contains("before its prompt cache was saved"), "{rest}");
        }
        let code = support::wait(&mut stop).code();
        let report: Value = serde_json::from_reader(stop.stdout.take().unwrap()).unwrap();
        assert_eq!((code, report["not_saved"].is_string()), (Some(i32::from(kill)), kill), "{report}");
        server.wait();
    }
}

#[test]
fn a_tier_of_0_bytes_is_off() {
    let mut server = Server::start(&golden(TINY), &["--cache-ram", "0", "--cache-ssd", "0", "--keep-client-headers"]);
    let body = json!({"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=a1;\nBe brief."},
        {"role": "user", "content": "x"}], "max_tokens": 1});
    let kept = server.ask("/v1/chat/completions", &body)["usage"]["prompt_tokens"].clone();
    for _ in 0..2 {
        let reply = server.ask("/v1/chat/completions", &long_chat());
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    let shown = server.place.run(&["cache", "stats"]).exits(0).out;
    assert_eq!(shown, "memory  off\ndisk    off\n", "and no figures of what is off");
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
    // Without the flag the header line is no part of the prompt: one token a byte.
    let plain = Server::start(&golden(TINY), &[]);
    let gone = plain.ask("/v1/chat/completions", &body)["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(kept.as_u64().unwrap() - gone, "x-anthropic-billing-header: cch=a1;\n".len() as u64);
}

#[test]
fn the_record_of_a_killed_server_is_not_believed() {
    let mut server = Server::start(&golden(TINY), &[]);
    server.child.kill().unwrap();
    server.wait();
    assert!(server.place.home().join("server.json").exists(), "nobody could remove it");
    server.place.run(&["ps"]).exits(4);
    server.place.run(&["stop"]).exits(4);
    let mut again = server.place.hearth(&["serve", "--port", "0"]);
    again.arg(golden(TINY)).stdout(Stdio::piped());
    let place = std::mem::replace(&mut server.place, Place::new());
    let again = Server::spawn(place, again);
    assert!(again.line().starts_with("ready: "));
}

#[test]
fn one_server_for_each_home_and_each_port() {
    let server = Server::start(&golden(TINY), &[]);
    let pid = server.child.id().to_string();
    let second = server.place.run(&["serve", "--port", "0", golden(TINY).to_str().unwrap()]).exits(1);
    assert!(second.err.contains(&pid) && second.err.contains(&server.url), "{second:?}");
    let other = Place::new();
    let port = server.port().to_string();
    let taken = other.run(&["serve", "--port", &port, golden(TINY).to_str().unwrap()]).exits(1);
    assert!(taken.err.contains(&port) && taken.out.is_empty(), "{taken:?}");
    assert!(taken.err.contains("it is a Hearth that serves llama-q4"), "{taken:?}");
    assert_eq!(server.get("/health").0, 200);
}

#[test]
fn signals_end_a_busy_server_cleanly() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut server = Server::start(&golden(TINY), &[]);
        let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true});
        let mut busy = server.raw_post("/v1/completions", body.to_string().as_bytes());
        let mut first = [0; 1];
        std::io::Read::read_exact(&mut busy, &mut first).unwrap();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal:?}");
        assert!(!server.place.home().join("server.json").exists());
    }
    let mut loading = Server::begin(Some(&support::starter()), &[]);
    loading.signal(Signal::TERM);
    assert_eq!(loading.wait().code(), Some(0), "during the load");
}

#[test]
fn a_second_signal_ends_at_once_and_says_what_is_lost() {
    let place = Place::new();
    let mut cmd = place.hearth(&["serve", "--port", "0"]);
    cmd.arg(golden(TINY)).stderr(fs::File::create(place.path("log")).unwrap());
    let mut server = Server::spawn(place, cmd);
    assert!(server.line().starts_with("ready: "));
    server.ask("/v1/chat/completions", &long_chat());
    server.idle();
    // Both arrive when it goes on.
    for signal in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
        server.signal(signal);
    }
    assert_eq!(server.wait().code(), Some(130));
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    assert!(log.lines().any(|line| line.starts_with("not saved: ") && line.contains("(1 entry, ")), "{log}");
}

#[test]
fn serve_without_a_name_takes_the_obvious_model() {
    let place = with_model("Tiny-Llama-4bit");
    let cmd = place.hearth(&["serve", "--port", "0"]);
    let server = Server::spawn(place, cmd);
    let ready = server.line();
    assert!(
        ready.starts_with("ready: ") && ready.contains("Tiny-Llama-4bit") && ready.contains("4096 tokens"),
        "{ready}"
    );
    server.place.run(&["stop"]).exits(0);

    // Two models and one of them used last.
    copy_model(&golden("qwen3-q4"), &server.place.home().join("models/Another"));
    let cmd = server.place.hearth(&["serve", "--port", "0"]);
    let mut server = server;
    let place = std::mem::replace(&mut server.place, Place::new());
    let again = Server::spawn(place, cmd);
    assert!(again.line().contains("Tiny-Llama-4bit"));

    // Nothing to choose from.
    let empty = Server::begin(None, &[]);
    let hint = empty.line();
    assert!(hint.starts_with("no model is loaded: ") && hint.contains("hearth serve MODEL"), "{hint}");
    assert!(hint.contains("hearth import FILE.gguf"), "how to get one: {hint}");
    let (status, health) = empty.get("/health");
    assert_eq!((status, &health["status"]), (503, &json!("empty")));
    let (status, error) = empty.post("/v1/completions", &json!({"prompt": "Hello"}));
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")), "{error}");
}

#[test]
fn the_environment_gives_what_flags_do_not() {
    let place = Place::new();
    let mut cmd = place.hearth(&["serve", "--max-rows", "3"]);
    cmd.arg(golden(TINY)).env("HEARTH_PORT", "0").env("HEARTH_MAX_ROWS", "5").env("HEARTH_CONTEXT", "77");
    let server = Server::spawn(place, cmd);
    assert!(server.line().contains("77 tokens"));
    let (_, stats) = server.get("/stats");
    assert_eq!((&stats["max_rows"], &stats["model"]["context"]), (&json!(3), &json!(77)), "the flag wins: {stats}");
    let mut wrong = server.place.hearth(&["serve"]);
    wrong.env("HEARTH_PORT", "many");
    assert!(ran(wrong).exits(2).err.contains("many"));
}

#[test]
fn chat_in_the_terminal() {
    let server = Server::start(&golden(TINY), &[]);
    let script = "/help\n/sing\nHello\n/system Be brief.\n/clear\nHello again\n/exit\nnever read\n";
    let chat = |mut cmd: std::process::Command| {
        fs::write(server.place.path("script"), script).unwrap();
        cmd.args(["--temperature", "0", "--max-tokens", "5"]);
        ran({
            cmd.stdin(fs::File::open(server.place.path("script")).unwrap());
            cmd
        })
        .exits(0)
    };
    let recorded = chat(server.place.hearth(&["run"]));
    assert!(recorded.err.contains(&server.url) && recorded.err.contains("/sing is no command"), "{recorded:?}");
    assert!(recorded.out.lines().count() >= 2, "two answers: {recorded:?}");
    assert_eq!(server.idle()["totals"]["requests"], 2);
    let by_url = chat(server.place.hearth(&["run", "--url", &server.url]));
    assert_eq!(by_url.out, recorded.out);
    let alone = Place::new();
    let mut own = alone.hearth(&["run"]);
    own.arg(golden(TINY));
    assert_eq!(chat(own).out, recorded.out, "without a server it brings its own");
    assert_eq!(server.idle()["totals"]["requests"], 4);
}

#[test]
fn a_chat_is_with_the_model_that_was_asked_for() {
    let server = Server::start(&golden(TINY), &[]);
    copy_model(&golden("qwen3-q4"), &server.place.home().join("models/Another"));
    let path = golden(TINY);
    for same in [TINY, path.to_str().unwrap()] {
        let chat = server.place.run(&["run", same]).exits(0);
        assert!(chat.err.contains(&server.url), "{chat:?}");
    }
    for args in [&["run", "Another"][..], &["run", "Another", "--url", &server.url]] {
        let other = server.place.run(args).exits(1);
        assert!(other.err.contains("has llama-q4; stop it, or leave MODEL out"), "{other:?}");
    }
    let unknown = server.place.run(&["run", "mistral"]).exits(3);
    assert!(unknown.err.contains("mistral") && unknown.err.contains("Another"), "{unknown:?}");
    assert_eq!(server.idle()["totals"]["requests"], 0);
}

#[test]
fn a_chat_without_any_model_says_how_to_get_one() {
    let place = Place::new();
    let none = place.run(&["run"]).exits(3);
    assert!(none.err.contains("hearth import") && none.err.contains("cargo xtask starter"), "{none:?}");
    for name in ["One", "Two"] {
        copy_model(&golden(TINY), &place.home().join("models").join(name));
    }
    let unclear = place.run(&["run"]).exits(2);
    assert!(unclear.err.contains("hearth ls") && !unclear.err.contains("import"), "{unclear:?}");
}

#[test]
fn ctrl_c_ends_an_answer_and_not_the_chat() {
    let server = Server::start(&golden(TINY), &["--context", "4000"]);
    let mut cmd = server.place.hearth(&["run"]);
    let mut chat = cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = chat.stdin.take().unwrap();
    for _ in 0..2 {
        let before = server.get("/stats").1["totals"]["requests"].as_u64().unwrap();
        writeln!(stdin, "Hello").unwrap();
        support::eventually("the question arrives", || {
            server.get("/stats").1["totals"]["requests"].as_u64().unwrap() > before
        });
        rustix::process::kill_process(rustix::process::Pid::from_child(&chat), Signal::INT).unwrap();
        server.idle();
    }
    writeln!(stdin, "/exit").unwrap();
    assert_eq!(support::wait(&mut chat).code(), Some(0));
}

#[test]
fn doctor_says_what_to_do() {
    let place = Place::new();
    let ran = place.run(&["doctor", "--json"]);
    let report = ran.json();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().map(|c| c["name"].as_str().unwrap()).collect();
    for name in ["mlx", "blas", "home", "port", "models", "disk", "memory"] {
        assert!(names.contains(&name) || (name == "blas" && cfg!(target_os = "macos")), "{name}: {report}");
    }
    for check in checks {
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "warn", "fail"].contains(&status) && !check["found"].as_str().unwrap().is_empty(), "{check}");
        assert_eq!(check["remedy"].is_string(), status != "ok", "a remedy for what is not ok: {check}");
    }
    let of = |name: &str| checks.iter().find(|c| c["name"] == name).unwrap()["status"].as_str().unwrap().to_owned();
    assert_eq!((of("mlx"), of("models")), ("ok".into(), "warn".into()), "MLX runs, no model is here");
    let failed = checks.iter().any(|c| c["status"] == "fail");
    assert_eq!(ran.code, i32::from(failed), "{report}");
    let shown = place.run(&["doctor"]).out;
    assert!(names.iter().all(|name| shown.contains(name)), "{shown}");

    let mut unwritable = place.hearth(&["doctor", "--json"]);
    fs::write(place.path("file"), "").unwrap();
    unwritable.env("HEARTH_HOME", place.path("file").join("home"));
    let ran = support::ran(unwritable).exits(1);
    let report = ran.json();
    let home = report["checks"].as_array().unwrap().iter().find(|c| c["name"] == "home").unwrap();
    assert_eq!(home["status"], "fail", "{home}");
}

/// A program that computes and does nothing; it ends with the test.
struct Busy(std::process::Child);

impl Busy {
    /// Its command line is `sh -c SCRIPT`, one of its own in this test.
    fn new() -> (Self, String) {
        let script = format!("while :; do :; done # {}", std::process::id());
        let child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        (Busy(child), format!("sh -c {script}"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn preflight_says_what_is_in_the_way_and_what_to_do() {
    let place = Place::new();
    let ran = place.run(&["preflight", "--json"]);
    let report = ran.json();
    let keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "ok",
        "problems",
        "time",
        "host",
        "chip",
        "ram",
        "readings",
        "limits",
        "allowed_cpu_processes",
        "background_cpu_processes",
        "big_processes",
    ];
    assert_eq!(keys, expected);
    let problems = report["problems"].as_array().unwrap();
    assert_eq!((report["ok"] == true, ran.code), (problems.is_empty(), i32::from(!problems.is_empty())), "{report}");
    for problem in problems {
        let text = problem.as_str().unwrap();
        assert!(text.contains("; Hearth wants ") && text.contains(": ") && text.ends_with('.'), "{text}");
    }
    for reading in ["swap_used", "memory_free_percent", "load_1m", "processes_read", "processes_unreadable"] {
        assert!(report["readings"][reading].is_number(), "{reading}: {report}");
    }
    assert!(report["readings"]["iogpu_wired_limit_mb"].is_null() || cfg!(target_os = "macos"), "{report}");
    let names = ["host", "chip", "time"];
    assert!(
        names.iter().all(|name| !report[*name].as_str().unwrap().is_empty()) && report["ram"].as_u64() > Some(1 << 28)
    );
}

#[test]
fn preflight_forgives_the_cpu_use_of_exact_command_lines() {
    let place = Place::new();
    let (busy, command) = Busy::new();
    let pid = busy.0.id();
    // Other tests run beside this one: the busy program has to come to half a core in one of many tries.
    let tried = |args: &[&str], list: &str| -> Value {
        let found = (0..100).find_map(|_| {
            let ran = place.run(args);
            let report = ran.json();
            assert_eq!(ran.code, i32::from(report["ok"] == false), "{report}");
            report[list].as_array().unwrap().iter().any(|p| p["pid"] == pid).then_some(report)
        });
        found.unwrap_or_else(|| panic!("{command} never came into {list}"))
    };
    let holds = |report: &Value, list: &str| report[list].as_array().unwrap().iter().any(|p| p["pid"] == pid);
    let told = |report: &Value| {
        let sentences: Vec<&str> = report["problems"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
        sentences.iter().any(|p| p.contains(&format!("(process {pid}) uses ")) && p.contains("--allow-cpu-process"))
    };
    let near = format!("{command} ");
    let judged = tried(&["preflight", "--json", "--allow-cpu-process", &near], "background_cpu_processes");
    assert!(told(&judged) && judged["ok"] == false && !holds(&judged, "allowed_cpu_processes"), "{judged}");
    let shown = judged["background_cpu_processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid).unwrap();
    assert_eq!(shown["command"], command.as_str());
    assert!(shown["cpu_percent"].as_f64() >= Some(50.0) && shown["memory"].as_u64() > Some(0), "{shown}");
    let forgiven = tried(
        &["preflight", "--allow-cpu-process", "make", "--allow-cpu-process", &command, "--json"],
        "allowed_cpu_processes",
    );
    assert!(!told(&forgiven) && !holds(&forgiven, "background_cpu_processes"), "{forgiven}");
}

/// What a server says of itself in its home.
fn record(server: &Server) -> Value {
    serde_json::from_slice(&fs::read(server.place.home().join("server.json")).unwrap()).unwrap()
}

#[test]
fn preflight_says_the_same_over_http() {
    let server = Server::start(&golden(TINY), &[]);
    let (status, _) = server.get("/api/hearth/preflight");
    assert_eq!(status, 401);
    let url = format!("{}/api/hearth/preflight", server.url);
    let reply = support::http().get(url).bearer_auth(record(&server)["token"].as_str().unwrap()).send().unwrap();
    assert_eq!(reply.status(), 200);
    let over_http: Value = reply.json().unwrap();
    let here = server.place.run(&["preflight", "--json"]).json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&over_http), keys(&here));
    assert_eq!(keys(&over_http["readings"]), keys(&here["readings"]));
    for same in ["host", "chip", "ram", "limits"] {
        assert_eq!(over_http[same], here[same], "{same}");
    }
    let shown = server.place.run(&["preflight"]);
    assert!(shown.out.contains("\nswap ") && shown.out.contains("\nprocesses "), "{shown:?}");
    assert_eq!(shown.out.contains("\nok: "), shown.code == 0, "{shown:?}");
}

#[test]
fn preflight_leaves_the_own_server_out() {
    let server = Server::start(&golden(TINY), &[]);
    let pid = record(&server)["pid"].as_u64().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (seen, own) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let body = json!({"prompt": "Hello", "max_tokens": 100, "ignore_eos": true});
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                server.post("/v1/completions", &body);
            }
        });
        let stranger = Place::new();
        let held = |place: &Place| {
            let report = place.run(&["preflight", "--json"]).json();
            let list = report["background_cpu_processes"].as_array().unwrap();
            list.iter().any(|p| p["pid"] == pid)
        };
        // To another home it is a foreign program that computes: seen in one of many tries, whatever else runs.
        let seen = (0..100).any(|_| held(&stranger));
        let own = (0..3).any(|_| held(&server.place));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        (seen, own)
    });
    assert!(seen && !own, "seen by a stranger: {seen}, by its own home: {own}");
}
