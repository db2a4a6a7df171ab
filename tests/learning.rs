//! What `hearth bench` and a server measure, and what `hearth fit` makes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use support::{Place, Server, eventually, golden};

const TINY: &str = "llama-q4";

fn lines(place: &Place) -> Vec<Value> {
    let text = fs::read_to_string(place.home().join("learned.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sum(fit: &Value) -> u64 {
    fit["terms"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum()
}

#[test]
fn bench_measures_and_fit_predicts_with_it() {
    let place = Place::new();
    let model = golden(TINY);
    let model = model.to_str().unwrap();
    let before = place.run(&["fit", model, "--json", "--context", "700"]).exits(0).json();
    assert_eq!(before["learned"], Value::Null);
    let ran = place.run(&["bench", model, "--prompt", "600", "--decode", "8", "--json"]).exits(0);
    assert!(ran.err.contains("a prompt of 600 tokens"), "progress: {}", ran.err);
    let bench = ran.json();
    let prefill: Vec<&Value> = bench["prefill"].as_array().unwrap().iter().map(|run| &run["tokens"]).collect();
    assert_eq!(prefill, [&json!(150), &json!(600)], "{bench}");
    let decode: Vec<&Value> = bench["decode"].as_array().unwrap().iter().map(|run| &run["rows"]).collect();
    assert_eq!(decode, [&json!(1), &json!(4)]);
    for run in bench["prefill"].as_array().unwrap().iter().chain(bench["decode"].as_array().unwrap()) {
        assert!(run["tokens_per_s"].as_f64().unwrap() > 0.0, "{run}");
    }
    assert!(bench["load_s"].as_f64().unwrap() > 0.0 && bench["quantization"] == "4-bit");
    let peak = &bench["memory"][1];
    assert_eq!((&peak["tokens"], &peak["rows"]), (&json!(608), &json!(1)));
    let measured = peak["measured"].as_u64().unwrap();

    // 700 tokens are in the bucket of 608; the prediction is never below what was measured.
    let after = place.run(&["fit", model, "--json", "--context", "700"]).exits(0).json();
    assert_eq!((&after["learned"]["runs"], &after["learned"]["bucket"]), (&json!(1), &json!(1024)), "{after}");
    assert_eq!(after["learned"]["largest"]["measured"], json!(measured));
    assert!(after["decode_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(sum(&after), after["total"].as_u64().unwrap());
    let terms = &after["terms"];
    let active = ["weights", "kv", "prefill_transient"].map(|name| terms[name].as_u64().unwrap()).iter().sum::<u64>();
    assert!(active >= measured, "{active} {measured}");
    let computed = after["learned"]["computed_transient"].as_u64().unwrap();
    assert_eq!(computed, before["terms"]["prefill_transient"].as_u64().unwrap());
    let text = place.run(&["fit", model, "--context", "700"]).exits(0).out;
    assert!(text.contains("by what `hearth bench` measured") && text.contains("measured: "), "{text}");

    // Other settings are another matter, and what cannot be read is no obstacle.
    let other = place.run(&["fit", model, "--json", "--kv-bits", "8"]).exits(0).json();
    assert_eq!(other["learned"], Value::Null);
    let mut log = fs::OpenOptions::new().append(true).open(place.home().join("learned.jsonl")).unwrap();
    log.write_all(b"{\"at\": 1, \"fro").unwrap();
    let warned = place.run(&["fit", model, "--json", "--context", "700"]).exits(0);
    assert!(warned.err.contains("learned.jsonl: 1 line that cannot be read"), "{warned:?}");
    assert_eq!(warned.json()["learned"]["runs"], 1);
    place.run(&["bench", model, "--prompt", "600", "--decode", "8"]).exits(0);
    let warned = place.run(&["fit", model, "--json", "--context", "700"]).exits(0);
    assert_eq!(warned.json()["learned"]["runs"], 2, "what came after it is read");
}

#[test]
fn bench_does_not_run_beside_a_server_with_a_model_nor_past_the_context() {
    let mut server = Server::start(&golden(TINY), &[]);
    let model = golden(TINY);
    let model = model.to_str().unwrap();
    let refused = server.place.run(&["bench", model]).exits(1);
    assert!(
        refused.err.contains("`hearth stop`") && refused.err.contains(&server.child.id().to_string()),
        "{refused:?}"
    );
    server.place.run(&["stop"]).exits(0);
    server.wait();
    let long = server.place.run(&["bench", model, "--prompt", "1000000"]).exits(2);
    assert!(long.err.contains("1000000 tokens") && long.err.contains("--prompt"), "{long:?}");
    server.place.run(&["bench", "nobody/has-this"]).exits(3);
    assert!(lines(&server.place).is_empty());
}

#[test]
fn a_server_learns_from_a_request_that_runs_alone() {
    let server = Server::start(&golden(TINY), &["--cache-ram", "0", "--cache-ssd", "0"]);
    // It looks four times a second, and has to see the server idle, the request, and the server idle again.
    let mut tries = 0;
    eventually("a request is learned from", || {
        tries += 1;
        let prompt: Vec<u64> = (0..600 + 8 * tries).map(|n| n % 100).collect();
        server.ask("/v1/completions", &json!({"prompt": prompt, "max_tokens": 400, "ignore_eos": true}));
        server.idle();
        std::thread::sleep(std::time::Duration::from_millis(600));
        !lines(&server.place).is_empty()
    });
    let record = &lines(&server.place)[0];
    assert_eq!((&record["from"], &record["kv"], &record["device"]), (&json!("serve"), &json!("float"), &json!("cpu")));
    let stats = server.get("/stats").1;
    let memory = &record["memory"];
    assert!(memory["measured"].as_u64().unwrap() <= stats["memory"]["mlx_peak"].as_u64().unwrap());
    assert!(memory["predicted"].as_u64().unwrap() > memory["predicted_transient"].as_u64().unwrap());
    let token = fs::read_to_string(server.place.home().join("server.json")).unwrap();
    let token: Value = serde_json::from_str(&token).unwrap();
    let fit = support::http()
        .get(format!("{}/api/hearth/fit?context=1000", server.url))
        .bearer_auth(token["token"].as_str().unwrap())
        .send()
        .unwrap();
    let fit: Value = fit.json().unwrap();
    assert_eq!(fit["learned"]["runs"].as_u64().unwrap(), lines(&server.place).len() as u64, "{fit}");
}
