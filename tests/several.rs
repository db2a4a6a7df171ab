//! Several models in one server, through the real binary: which one a request means, who leaves memory for whom, and what
//! is kept of all that over a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use reqwest::Method;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use support::{Place, Server, copy_model, edit_json, eventually, golden, ran, starter};

/// A place with three tiny models: two in Hearth's folder, one in the Hugging Face cache, without `refs/main`.
fn three() -> Place {
    let place = Place::with_model("llama-q4", "Tiny-Llama");
    place.put("qwen3-q4", "Tiny-Qwen");
    copy_model(&golden("llama_swa-q4"), &place.path("hub/models--org--Tiny-Swa/snapshots/0123"));
    place
}

/// `hearth serve` without a model, in this place; what it logs goes to `log`.
fn serve(place: Place, args: &[&str]) -> Server {
    let mut cmd = place.hearth(&["serve", "--port", "0"]);
    let log = fs::OpenOptions::new().create(true).append(true).open(place.path("log")).unwrap();
    cmd.args(args).stderr(log);
    Server::spawn(place, cmd)
}

/// Ends the server, and gives its place for the next one.
fn stopped(mut server: Server) -> Place {
    server.place.run(&["stop"]).exits(0);
    assert_eq!(server.wait().code(), Some(0));
    std::mem::replace(&mut server.place, Place::new())
}

fn question(model: &str, tokens: u32) -> Value {
    json!({"model": model, "prompt": "Hello", "max_tokens": tokens, "temperature": 0, "ignore_eos": true})
}

/// The id of the model that answers.
#[track_caller]
fn ask(server: &Server, model: &str) -> String {
    let reply = server.ask("/v1/completions", &question(model, 4));
    assert_eq!(reply["usage"]["completion_tokens"], 4, "{reply}");
    reply["model"].as_str().unwrap().to_owned()
}

/// The ids of the models in memory, sorted.
fn loaded(server: &Server) -> Vec<String> {
    let (_, stats) = server.get("/stats");
    let ids = stats["models"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned());
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids
}

/// One model as `/v1/models` has it.
fn card(server: &Server, id: &str) -> Value {
    let (_, list) = server.get("/v1/models");
    list["data"].as_array().unwrap().iter().find(|m| m["id"] == id).unwrap_or_else(|| panic!("{id}: {list}")).clone()
}

/// A long answer that has begun to stream.
fn begin(server: &Server, model: &str, tokens: u32) -> TcpStream {
    let mut body = question(model, tokens);
    body["stream"] = json!(true);
    let mut socket = server.raw_post("/v1/completions", body.to_string().as_bytes());
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("data: ") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    socket
}

/// The rest of a stream; the connection is closed with it.
fn rest(mut socket: TcpStream) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&text).contains("[DONE]") {
        let n = socket.read(&mut piece).unwrap();
        assert!(n > 0, "cut short: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&piece[..n]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_request_chooses_its_model() {
    let place = three();
    fs::write(place.home().join("models.toml"), "[aliases]\n\"gpt-4o\" = \"Tiny-Qwen\"\n").unwrap();
    let server = serve(place, &[]);
    let line = server.line();
    assert!(line.starts_with("no model is loaded: ") && line.contains("hearth ls"), "{line}");
    assert_eq!(card(&server, "org/Tiny-Swa")["state"], "on_disk");
    let (status, none) = server.post("/v1/completions", &json!({"prompt": "Hello"}));
    assert_eq!((status, &none["error"]["code"]), (404, &json!("model_not_found")), "nobody said which: {none}");

    for (name, id) in
        [("Tiny-Llama", "Tiny-Llama"), ("swa", "org/Tiny-Swa"), ("gpt-4o", "Tiny-Qwen"), ("TINY-LLAMA", "Tiny-Llama")]
    {
        assert_eq!(ask(&server, name), id, "{name}");
    }
    assert_eq!(ask(&server, ""), "Tiny-Llama", "the one that was used last");
    let body =
        json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": true});
    let chunks = server.stream("/v1/chat/completions", &body);
    assert!(chunks.iter().all(|chunk| chunk["model"] == "Tiny-Qwen"), "{chunks:?}");

    let all = ["Tiny-Llama", "Tiny-Qwen", "org/Tiny-Swa"];
    assert_eq!(loaded(&server), all);
    for id in all {
        let card = card(&server, id);
        assert_eq!((&card["state"], &card["loaded"], &card["pinned"]), (&json!("loaded"), &json!(true), &json!(false)));
    }
    let (status, known) = server.get("/v1/models/gpt-4o");
    assert_eq!((status, &known["id"]), (200, &json!("Tiny-Qwen")), "{known}");
    for pinned in [true, false] {
        let body = json!({"model": "gpt-4o", "pinned": pinned});
        let (status, done) = server.place.admin(Method::POST, "/api/hearth/models/pin", Some(body));
        assert_eq!((status, &done["model"], &done["pinned"]), (200, &json!("Tiny-Qwen"), &json!(pinned)), "{done}");
    }
    let ps = server.place.run(&["ps"]).exits(0).out;
    assert!(all.iter().all(|id| ps.contains(&format!("{id} ("))), "{ps}");
    assert_eq!(server.get("/health").0, 200);

    for (name, word) in [("mistral-large", "mistral-large"), ("tiny", "tiny")] {
        let (status, refusal) = server.post("/v1/completions", &question(name, 4));
        let message = refusal["error"]["message"].as_str().unwrap();
        assert_eq!((status, &refusal["error"]["code"]), (404, &json!("model_not_found")), "{refusal}");
        assert!(message.contains(word) && all.iter().all(|id| message.contains(id)), "{message}");
    }
    assert_eq!(loaded(&server), all);
}

#[test]
fn who_is_not_used_leaves_after_its_time() {
    let server = serve(three(), &["--model-ttl", "100ms"]);
    let pin = |pinned: bool| {
        let body = json!({"model": "Tiny-Llama", "pinned": pinned});
        assert_eq!(server.place.admin(Method::POST, "/api/hearth/models/pin", Some(body)).0, 200);
    };
    pin(true);
    for name in ["Tiny-Llama", "Tiny-Qwen", "swa"] {
        ask(&server, name);
    }
    eventually("only the pinned one is left", || loaded(&server) == ["Tiny-Llama"]);
    assert_eq!(card(&server, "Tiny-Llama")["pinned"], true);
    // What a request says of its model goes before the flag: for ever, and not a moment.
    for (name, stay) in [("Tiny-Qwen", json!(-1)), ("swa", json!(0))] {
        let mut body = question(name, 4);
        body["keep_alive"] = stay;
        server.ask("/v1/completions", &body);
    }
    eventually("one has left", || loaded(&server) == ["Tiny-Llama", "Tiny-Qwen"]);
    pin(false);
    eventually("the other one has left", || loaded(&server) == ["Tiny-Qwen"]);
    assert_eq!(ask(&server, "Tiny-Llama"), "Tiny-Llama", "it comes back when it is asked for");
}

/// Two real models, of which the memory budget has room for one.
#[test]
fn one_leaves_for_the_other_and_nobody_is_turned_away() {
    let place = Place::new();
    place.put("llama-q4", "Small");
    for name in ["One", "Two", "Wrong"] {
        let folder = place.home().join("models").join(name);
        fs::create_dir_all(&folder).unwrap();
        for file in fs::read_dir(starter()).unwrap().map(|entry| entry.unwrap().path().canonicalize().unwrap()) {
            let name = file.file_name().unwrap().to_owned();
            std::os::unix::fs::symlink(&file, folder.join(name)).unwrap();
        }
    }
    let tokenizer = place.home().join("models/Wrong/tokenizer.json");
    fs::remove_file(&tokenizer).unwrap();
    fs::copy(golden("llama-q4").join("tokenizer.json"), &tokenizer).unwrap();
    let args =
        ["--reserve", "64MB", "--cache-ram", "0", "--cache-ssd", "0", "--context", "512", "--prefill-chunk", "128"];
    let server = serve(place, &args);
    assert_eq!(ask(&server, "One"), "One");
    let weights = server.idle()["models"][0]["weights"].as_u64().unwrap();
    let limits = json!({"budget": weights * 8 / 5});
    let (status, set) = server.place.admin(Method::PUT, "/api/hearth/limits", Some(limits));
    assert_eq!(status, 200, "{set}");

    // While Two waits for One to end, a small one whose room would be of no use goes on.
    ask(&server, "Small");
    let long = begin(&server, "One", 250);
    std::thread::scope(|scope| {
        let two = scope.spawn(|| ask(&server, "Two"));
        for _ in 0..10 {
            assert_eq!(ask(&server, "Small"), "Small");
        }
        let (_, stats) = server.get("/stats");
        assert!(stats["rows"].to_string().contains("\"One\"") && !two.is_finished(), "{stats}");
        rest(long);
        assert_eq!(two.join().unwrap(), "Two");
    });

    // One answers at length; others ask for Two, and for One once more, while it does.
    let long = begin(&server, "One", 60);
    let answers: Vec<String> = std::thread::scope(|scope| {
        let names = ["Two", "One", "Two", "Two", "One"];
        let asking: Vec<_> =
            names.iter().map(|name| scope.spawn(|| (ask(&server, name) == **name).to_string())).collect();
        let text = rest(long);
        assert_eq!(text.matches("\"text\":").count().min(50), 50, "it was not cut short: {text}");
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(answers, ["true"; 5], "each by the model that was asked for");
    ask(&server, "One");
    ask(&server, "Two");
    let stats = server.idle();
    assert_eq!(
        (loaded(&server), &stats["totals"]["failed"]),
        (vec!["Small".into(), "Two".into()], &json!(0)),
        "{stats}"
    );

    // What left was free before the other one was read: there never were two.
    let memory = &stats["memory"];
    let figure = |name: &str| memory[name].as_u64().unwrap();
    assert!(memory["ledger"]["weights"].as_u64().unwrap() < weights * 5 / 4, "{memory}");
    assert!(memory["ledger"]["total"].as_u64() <= memory["ledger"]["budget"].as_u64(), "{memory}");
    assert!(figure("mlx_active") < weights * 5 / 4 && figure("mlx_peak") < weights * 17 / 10, "{weights}: {memory}");
    let gone = memory["guard"]["actions"].as_array().unwrap().iter().filter(|action| action["what"] == "unload");
    let gone: Vec<&str> = gone.map(|action| action["why"].as_str().unwrap()).collect();
    assert!(gone.iter().any(|why| why.starts_with("One: Two takes its place")), "{gone:?}");

    // Nobody leaves for one that has another model's tokenizer.
    let (status, refusal) = server.post("/v1/completions", &question("Wrong", 4));
    assert!(status == 500 && refusal.to_string().contains("Wrong/tokenizer.json"), "{status} {refusal}");
    assert_eq!(loaded(&server), ["Small", "Two"]);

    // A pinned one does not leave, and the refusal's numbers say so.
    let body = json!({"model": "Two", "pinned": true});
    assert_eq!(server.place.admin(Method::POST, "/api/hearth/models/pin", Some(body)).0, 200);
    let (status, refusal) = server.post("/v1/completions", &question("One", 4));
    assert_eq!((status, &refusal["error"]["code"]), (503, &json!("insufficient_memory")), "{refusal}");
    assert_eq!(ask(&server, "Two"), "Two");
}

#[test]
fn the_last_model_that_does_not_fit_any_more_does_not_keep_the_others_away() {
    let server = serve(three(), &["Tiny-Qwen"]);
    assert!(server.line().starts_with("ready: Tiny-Qwen"));
    let server = serve(stopped(server), &["--memory-budget", "1MB"]);
    let line = server.line();
    assert!(line.starts_with("no model is loaded: a request loads the one that it names"), "{line}");
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    assert!(log.contains("Tiny-Qwen needs ") && log.contains("the memory budget is 1.0 MB"), "{log}");
    assert_eq!(card(&server, "Tiny-Llama")["state"], "on_disk");
    // Who names one that does not fit is told so, and the server ends with the reason.
    let place = stopped(server);
    let named = place.run(&["serve", "Tiny-Qwen", "--port", "0", "--memory-budget", "1MB"]);
    assert_eq!(named.code, 3, "{named:?}");
}

#[test]
fn what_is_wrong_in_models_toml_is_named_and_the_rest_works() {
    let place = three();
    let file = place.home().join("models.toml");
    let aliases = "[aliases]\ngpt = 4\nbest = \"Tiny-Qwen\"\none = \"other\"\nother = \"one\"\n";
    fs::write(&file, format!("{aliases}\n[Tiny-Qwen]\ncontext = \"much\"\ntop_k = 3\n")).unwrap();
    let server = serve(place, &[]);
    assert_eq!(ask(&server, "best"), "Tiny-Qwen");
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    assert!(log.contains("the alias \"one\" leads to no model"), "{log}");
    for (line, key) in [(2, "`gpt`"), (8, "`context`")] {
        let place = format!("{}:{line}: {key}", file.display());
        assert!(log.lines().any(|line| line.contains(&place)), "{place} is missing in {log}");
    }
    let (_, logs) = server.place.admin(Method::GET, "/api/hearth/logs", None);
    assert!(logs.to_string().contains("models.toml:8"), "the dashboard's log: {logs}");

    let place = stopped(server);
    fs::write(&file, "[aliases]\nbest = = \"Tiny-Qwen\"\n").unwrap();
    let server = serve(place, &[]);
    assert!(server.line().starts_with("ready: Tiny-Qwen"), "the last used one");
    assert_eq!(ask(&server, "Tiny-Llama"), "Tiny-Llama");
    assert_eq!(server.post("/v1/completions", &question("best", 4)).0, 404);
    let log = fs::read_to_string(server.place.path("log")).unwrap();
    assert!(log.contains("models.toml:2: ") && log.contains("nothing in it is used"), "{log}");
    // And nothing is written over what could not be read.
    let body = json!({"model": "Tiny-Llama", "pinned": true});
    let (status, refusal) = server.place.admin(Method::POST, "/api/hearth/models/pin", Some(body));
    assert!(status == 400 && refusal.to_string().contains("models.toml"), "{status} {refusal}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "[aliases]\nbest = = \"Tiny-Qwen\"\n");
    assert_eq!(card(&server, "Tiny-Llama")["pinned"], false);
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_the_others_alone() {
    let place = three();
    let broken = place.put("llama-q4", "Broken");
    edit_json(&broken.join("config.json"), |config| config["intermediate_size"] = json!(96));
    let half = place.put("llama-q4", "Half");
    fs::remove_file(half.join("model.safetensors")).unwrap();
    let server = serve(place, &[]);
    let before = server.ask("/v1/completions", &question("Tiny-Llama", 20));
    let long = begin(&server, "Tiny-Llama", 300);
    for (name, word) in [("Broken", "mlp"), ("Half", "weights")] {
        let (status, refusal) = server.post("/v1/completions", &question(name, 4));
        let message = refusal["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 500 && message.contains(word) && message.contains(name), "{status} {refusal}");
        let body = Some(json!({"model": name}));
        let (status, refusal) = server.place.admin(Method::POST, "/api/hearth/models/load", body);
        assert!(status == 500 && refusal.to_string().contains(word), "{status} {refusal}");
    }
    assert!(rest(long).contains("\"finish_reason\":\"length\""));
    assert_eq!(loaded(&server), ["Tiny-Llama"]);
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["model"]), (200, &json!("Tiny-Llama")), "{health}");
    let after = server.ask("/v1/completions", &question("Tiny-Llama", 20));
    assert_eq!(after["choices"], before["choices"]);
    assert_eq!(ask(&server, "Tiny-Qwen"), "Tiny-Qwen");
}

#[test]
fn stop_with_a_model_unloads_that_one() {
    let none = Place::new().run(&["stop", "Tiny-Llama"]).exits(4);
    assert!(none.err.contains("no server is running"), "{none:?}");
    let server = serve(three(), &[]);
    let stop = |args: &[&str]| server.place.run(&[&["stop"], args].concat());
    assert!(stop(&["Tiny-Llama"]).exits(1).err.contains("Tiny-Llama is not in memory; no model is"));
    for name in ["Tiny-Llama", "Tiny-Qwen", "swa"] {
        ask(&server, name);
    }
    let first = stop(&["Tiny-Llama"]).exits(0);
    assert!(first.out.starts_with("unloaded Tiny-Llama, which frees ") && first.out.ends_with("kB\n"), "{first:?}");
    assert_eq!(card(&server, "Tiny-Llama")["state"], "on_disk");
    let again = stop(&["Tiny-Llama"]).exits(1);
    assert!(again.err.contains("there are: ") && again.err.contains("org/Tiny-Swa"), "{again:?}");
    let unclear = stop(&["tiny"]).exits(1);
    assert!(unclear.err.contains("\"tiny\" fits 2 models: ") && unclear.err.contains("org/Tiny-Swa"), "{unclear:?}");
    // Removing what is loaded says how to unload it.
    let refused = server.place.run(&["rm", "Tiny-Qwen", "--yes", "--foreign"]).exits(1);
    assert!(refused.err.contains("`hearth stop Tiny-Qwen`"), "{refused:?}");

    let long = begin(&server, "Tiny-Qwen", 3000);
    let busy = stop(&["Tiny-Qwen"]).exits(1);
    assert!(busy.err.contains("Tiny-Qwen has a request to answer"), "{busy:?}");
    drop(long);
    server.idle();
    // A part that fits only one of those in memory.
    let parted = stop(&["qwen", "--json"]).exits(0).json();
    assert!(parted["unloaded"] == "Tiny-Qwen" && parted["freed"].as_u64() > Some(10_000), "{parted}");
    assert_eq!(loaded(&server), ["org/Tiny-Swa"]);
    assert_eq!(ask(&server, "Tiny-Qwen"), "Tiny-Qwen", "it comes back when it is asked for");
}

#[test]
fn a_chat_is_with_one_model_whoever_else_asks() {
    let server = serve(three(), &[]);
    ask(&server, "Tiny-Llama");
    let chat = |args: &[&str], model: &str| {
        let mut cmd = server.place.hearth(&[&["run", "--max-tokens", "2"], args].concat());
        let script = server.place.path("script");
        fs::write(&script, "Hello\n").unwrap();
        cmd.stdin(fs::File::open(script).unwrap());
        let chat = ran(cmd).exits(0);
        assert!(chat.err.starts_with(&format!("Chatting with {model} at {}", server.url)), "{chat:?}");
        let (_, stats) = server.get("/stats");
        assert_eq!(stats["model"]["id"], model, "it was the last to answer");
    };
    chat(&["qwen"], "Tiny-Qwen");
    chat(&["Tiny-Swa", "--url", &server.url], "org/Tiny-Swa");
    chat(&[], "org/Tiny-Swa");
    let unknown = server.place.run(&["run", "mistral"]).exits(3);
    assert!(unknown.err.contains("mistral") && unknown.err.contains("Tiny-Qwen"), "{unknown:?}");
}

#[test]
fn after_an_unclean_end_a_request_loads_nothing_until_somebody_did() {
    let mut server = serve(three(), &[]);
    ask(&server, "Tiny-Llama");
    let record = server.place.home().join("running.json");
    eventually("it is on record", || record.exists());
    server.child.kill().unwrap();
    server.wait();
    let server = serve(std::mem::replace(&mut server.place, Place::new()), &[]);
    assert!(server.line().contains("was killed or crashed"));
    assert_eq!(card(&server, "Tiny-Qwen")["state"], "on_disk");
    for name in ["Tiny-Llama", "qwen"] {
        let (status, refusal) = server.post("/v1/completions", &question(name, 4));
        let message = refusal["error"]["message"].as_str().unwrap();
        assert_eq!((status, &refusal["error"]["code"]), (404, &json!("model_not_found")), "{refusal}");
        assert!(
            message.contains("is on this computer, and not loaded") && message.contains("hearth serve Tiny-"),
            "{message}"
        );
    }
    assert_eq!(loaded(&server), [""; 0]);
    // The user is asked, and says so.
    let body = json!({"model": "Tiny-Qwen"});
    assert!(server.place.admin(Method::POST, "/api/hearth/models/load", Some(body)).0 < 300);
    eventually("it is there", || loaded(&server) == ["Tiny-Qwen"]);
    assert_eq!(ask(&server, "Tiny-Llama"), "Tiny-Llama");
}

#[test]
fn the_only_one_that_is_served_stays_on_the_list() {
    let server = Server::start(&golden("llama-q4"), &[]);
    server.place.run(&["stop", "llama-q4"]).exits(0);
    assert_eq!(card(&server, "llama-q4")["state"], "on_disk");
    assert_eq!(ask(&server, "anything"), "llama-q4");
}

#[test]
fn a_model_that_was_removed_is_no_obstacle() {
    let place = Place::with_model("llama-q4", "One");
    place.put("qwen3-q4", "Two");
    let server = serve(place, &["--model-ttl", "-1"]);
    ask(&server, "One");
    for args in [&["stop", "One"][..], &["rm", "One", "--yes"]] {
        server.place.run(args).exits(0);
    }
    assert_eq!(ask(&server, "gpt-4"), "Two", "with one model every name means it");
    server.place.run(&["stop", "Two"]).exits(0);
    // One that a request cannot have says nothing of the others.
    let broken = server.place.put("llama-q4", "Broken");
    edit_json(&broken.join("config.json"), |config| config["intermediate_size"] = json!(96));
    assert_eq!(server.post("/v1/completions", &question("Broken", 4)).0, 500);
    assert_eq!(server.get("/health").1["status"], "empty");
    assert_eq!(ask(&server, "Two"), "Two");
}

#[test]
fn a_part_of_a_name_means_the_same_whatever_is_in_memory() {
    let server = serve(three(), &[]);
    for name in ["Tiny-Llama", "Tiny-Qwen"] {
        ask(&server, name);
        let (status, refusal) = server.post("/v1/completions", &question("tiny", 4));
        let message = refusal["error"]["message"].as_str().unwrap_or_default();
        assert_eq!((status, &refusal["error"]["code"]), (404, &json!("model_not_found")), "after {name}: {refusal}");
        assert!(message.starts_with("\"tiny\" fits 3 models: "), "{message}");
    }
}

#[test]
fn what_a_link_leads_to_is_not_removed() {
    let place = Place::new();
    let theirs = copy_model(&golden("llama-q4"), &place.path("theirs/deep"));
    let models = place.home().join("models");
    fs::create_dir_all(&models).unwrap();
    std::os::unix::fs::symlink(&theirs, models.join("linked")).unwrap();
    std::os::unix::fs::symlink(place.path("theirs"), models.join("org")).unwrap();
    for name in ["linked", "org/deep"] {
        let refused = place.run(&["rm", name, "--yes"]).exits(1);
        assert!(refused.err.contains("was not made by Hearth"), "{refused:?}");
    }
    let removed = place.run(&["rm", "linked", "--yes", "--foreign"]).exits(0);
    assert!(removed.err.contains("is a link; "), "{removed:?}");
    assert!(!models.join("linked").exists() && theirs.join("model.safetensors").is_file());
    assert_eq!(place.run(&["ls", "--json"]).exits(0).json()["models"][0]["id"], "org/deep");
}

#[test]
fn a_pin_holds_after_a_restart() {
    let place = three();
    let file = place.home().join("models.toml");
    fs::write(&file, "# mine\n[Tiny-Qwen]\ntop_k = 3 # few\n").unwrap();
    let server = serve(place, &[]);
    for (id, status) in [("Tiny-Qwen", 200), ("org/Tiny-Swa", 200), ("nobody", 404)] {
        let body = json!({"model": id, "pinned": true});
        assert_eq!(server.place.admin(Method::POST, "/api/hearth/models/pin", Some(body)).0, status, "{id}");
    }
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text, "# mine\n[Tiny-Qwen]\ntop_k = 3 # few\npin = true\n\n[\"org/Tiny-Swa\"]\npin = true\n");
    let server = serve(stopped(server), &[]);
    let pinned = |id: &str| card(&server, id)["pinned"] == true;
    assert_eq!([pinned("Tiny-Qwen"), pinned("org/Tiny-Swa"), pinned("Tiny-Llama")], [true, true, false]);
    let body = json!({"model": "Tiny-Qwen", "pinned": false});
    assert_eq!(server.place.admin(Method::POST, "/api/hearth/models/pin", Some(body)).0, 200);
    assert!(!pinned("Tiny-Qwen"));
    let server = serve(stopped(server), &[]);
    assert_eq!(card(&server, "Tiny-Qwen")["pinned"], false);
    assert_eq!(card(&server, "org/Tiny-Swa")["pinned"], true);
}

#[test]
fn every_command_looks_into_the_added_folders() {
    let place = Place::new();
    let drive = place.path("drive");
    let model = copy_model(&golden("llama-q4"), &drive.join("org/Mine"));
    let settings = place.home().join("settings.toml");
    fs::write(&settings, format!("model_folders = [{:?}, \"/away/from/here\"]\n", drive.display().to_string()))
        .unwrap();
    let listed = place.run(&["ls", "--json"]).exits(0).json();
    let mine = &listed["models"][0];
    assert_eq!((&mine["id"], &mine["path"]), (&json!("org/Mine"), &json!(model)), "{listed}");
    assert_eq!(listed["away"], json!(["/away/from/here"]));
    // Everything that is known of a model.
    assert_eq!(
        (&mine["family"], &mine["model_type"], &mine["quantization"]),
        (&json!("Llama"), &json!("llama"), &json!("4-bit"))
    );
    assert_eq!((&mine["context"], &mine["complete"], &mine["problem"]), (&json!(4096), &json!(true), &Value::Null));
    assert_eq!((&mine["capabilities"], &mine["fit"]["fits"]), (&json!(["chat"]), &json!(true)), "{mine}");
    assert!(mine["parameters"].as_u64() > Some(10_000) && mine["bytes"].as_u64() > Some(10_000), "{mine}");
    let shown = place.run(&["ls"]).exits(0);
    assert!(shown.err.contains("/away/from/here cannot be read now"), "{shown:?}");
    let line: Vec<&str> = shown.out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!([line[0], line[1], line[2]], ["org/Mine", "Llama", "4-bit"]);
    assert_eq!(line[line.len() - 3..], ["4096", "yes", "chat"], "{line:?}");

    assert_eq!(place.run(&["fit", "mine", "--json"]).exits(0).json()["model"], "org/Mine");
    let mut generate = place.hearth(&["generate", "mine", "--prompt", "Hello", "--max-tokens", "2"]);
    generate.stderr(std::process::Stdio::null());
    ran(generate).exits(0);
    let refused = place.run(&["rm", "mine", "--yes"]).exits(1);
    assert!(refused.err.contains("was not made by Hearth"), "{refused:?}");
    let server = serve(place, &["mine"]);
    assert!(server.line().starts_with("ready: org/Mine"));
    let place = stopped(server);

    // Settings that cannot be read cost their folders, and nothing else.
    place.put("llama-q4", "Own");
    fs::write(&settings, "model_folders = 1\n").unwrap();
    let listed = place.run(&["ls"]).exits(0);
    assert!(listed.out.contains("Own") && !listed.out.contains("Mine"), "{listed:?}");
    assert!(listed.err.starts_with("note: ") && listed.err.contains("model_folders"), "{listed:?}");
    fs::write(&settings, format!("model_folders = [{:?}]\n", drive.display().to_string())).unwrap();
    place.run(&["rm", "mine", "--yes", "--foreign"]).exits(0);
    assert!(!model.exists() && Path::new(&drive).exists());
}
