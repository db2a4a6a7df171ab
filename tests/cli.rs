//! The `hearth` binary from outside: flags, exit codes, files that are wrong, and what commands print without a server.
//! The models are tiny random ones, so that every case takes well under a second.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use support::{Place, Ran, Server, copy_model, edit_json, golden, ran};

const TINY: &str = "llama-q4";

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
        (&["stop", "a", "b"], "b"),
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
    let place = Place::with_model(TINY, "Tiny-Llama-4bit");
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

    fs::write(place.home().join("models.toml"), "[aliases]\ngpt = \"org/gone\"\n").unwrap();
    let report = place.run(&["doctor", "--json"]).json().to_string();
    assert!(report.contains("stands for org/gone, which is not on this computer"), "{report}");

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
