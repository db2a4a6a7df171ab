//! The memory budget through the real binary: what is refused before it is loaded, what a long answer costs, figures that
//! add up under load, limits that change, and requests that are ended.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::{Value, json};
use std::path::Path;
use support::{Place, Server, eventually, golden, starter};

const CHAT: &str = "/v1/chat/completions";

/// What `hearth fit` says of a model at a context.
fn fit(model: &Path, context: u64) -> Value {
    let context = context.to_string();
    Place::new().run(&["fit", model.to_str().unwrap(), "--context", &context, "--json"]).exits(0).json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Checks that the categories sum to the total, within the budget; returns the ledger.
fn ledger(stats: &Value) -> Value {
    let ledger = &stats["memory"]["ledger"];
    let parts = ["weights", "kv", "prompt_cache", "prefill_transient", "allocator_cache", "reserve"];
    let sum: u64 = parts.iter().map(|name| number(&ledger[*name])).sum();
    assert_eq!(sum, number(&ledger["total"]), "{ledger}");
    assert!(sum <= number(&ledger["budget"]), "{ledger}");
    assert_eq!(number(&ledger["free"]), number(&ledger["budget"]) - sum);
    ledger.clone()
}

/// A server of the starter with room for about so many tokens of context.
fn tight(context: u64, args: &[&str]) -> Server {
    let fit = fit(&starter(), context);
    let (budget, reserve) = (format!("{}B", fit["total"]), format!("{}B", fit["terms"]["reserve"]));
    let all = [&["--memory-budget", &budget, "--reserve", &reserve, "--cache-ssd", "0"], args].concat();
    Server::start(&starter(), &all)
}

fn chat(words: usize, tokens: u64) -> Value {
    let content = "All work and no play. ".repeat(words / 5 + 1);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "temperature": 0})
}

#[test]
fn a_model_without_room_is_refused_with_3_and_the_numbers() {
    let place = Place::new();
    let model = golden("llama-f32");
    let ran =
        place.run(&["serve", "--port", "0", model.to_str().unwrap(), "--memory-budget", "300MB", "--reserve", "300MB"]);
    let ran = ran.exits(3);
    assert!(ran.err.contains("300.") && ran.err.contains("--memory-budget") && ran.err.contains("needs"), "{ran:?}");
    let ran = place.run(&["serve", model.to_str().unwrap(), "--memory-budget", "0"]).exits(2);
    assert!(ran.err.contains("--memory-budget"), "{ran:?}");
}

#[test]
fn case_31_a_short_prompt_is_not_refused_for_a_large_max_tokens() {
    let server = tight(1500, &["--max-rows", "2"]);
    let stats = server.get("/stats").1;
    let ledger = ledger(&stats);
    let context = number(&stats["model"]["context"]);
    assert_eq!(number(&ledger["largest_context"]), context);
    assert!((800..2200).contains(&context), "the budget is what fit says that 1500 tokens take: {stats}");
    assert_eq!(ledger["budget_from"], "flag");
    let models = server.get("/v1/models").1;
    assert!(models.to_string().contains(&context.to_string()), "{models}");
    let (status, answer) = server.post(CHAT, &chat(10, 1_000_000));
    assert_eq!(status, 200, "{answer}");
    assert!(number(&answer["usage"]["total_tokens"]) <= context, "{answer}");
    // One that never fits: both numbers, and what to do.
    let (status, refusal) = server.post(CHAT, &chat(4000, 1));
    assert_eq!((status, &refusal["error"]["code"]), (400, &json!("context_length_exceeded")), "{refusal}");
    let said = refusal["error"]["message"].as_str().unwrap();
    assert!(said.contains(&context.to_string()) && said.contains("shorten"), "{said}");
    let shown = server.place.run(&["ps"]).exits(0).out;
    assert!(shown.contains("of the budget of") && shown.contains("(flag)"), "{shown}");
}

#[test]
fn figures_add_up_under_load_and_everybody_is_answered() {
    let server = tight(2000, &["--cache-ram", "64MB"]);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|n| {
                let server = &server;
                scope.spawn(move || server.post(CHAT, &chat(60 + 30 * n, 16)))
            })
            .collect();
        while !clients.iter().all(|client| client.is_finished()) {
            ledger(&server.get("/stats").1);
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        for client in clients {
            let (status, answer) = client.join().unwrap();
            assert_eq!(status, 200, "{answer}");
        }
    });
    eventually("nothing held for rows", || {
        let ledger = ledger(&server.get("/stats").1);
        ledger["kv"] == 0 && ledger["prefill_transient"] == 0
    });
}

#[test]
fn limits_and_requests_over_http() {
    let server = Server::start(&golden("llama-f32"), &["--cache-ssd", "0"]);
    let record: Value =
        serde_json::from_slice(&std::fs::read(server.place.home().join("server.json")).unwrap()).unwrap();
    let key = record["token"].as_str().unwrap();
    let admin = |method: reqwest::Method, path: &str, body: Value| {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let request = client.request(method, format!("{}/api/hearth/{path}", server.url)).bearer_auth(key);
        let response = request.json(&body).send().unwrap();
        (response.status().as_u16(), response.json::<Value>().unwrap())
    };
    let (status, before) = admin(reqwest::Method::GET, "limits", json!({}));
    assert_eq!((status, &before["max_rows"]), (200, &json!(8)));
    let budget = number(&before["budget"]);
    let (status, preview) = admin(reqwest::Method::POST, "limits/preview", json!({"budget": 1000}));
    assert_eq!((status, &preview["fits"]), (200, &json!(false)));
    let (status, refusal) = admin(reqwest::Method::PUT, "limits", json!({"budget": 1000}));
    assert_eq!((status, &refusal["error"]["param"]), (400, &json!("budget")));
    let said = refusal["error"]["message"].as_str().unwrap();
    assert!(said.contains(&format!("{} bytes short", preview["short_by"])), "{said}");
    let (status, after) = admin(reqwest::Method::PUT, "limits", json!({"budget": budget - 5, "context": 64}));
    assert_eq!((status, &after["budget"], &after["context"]), (200, &json!(budget - 5), &json!(64)));
    let stats = server.get("/stats").1;
    assert_eq!((&stats["memory"]["ledger"]["budget"], &stats["model"]["context"]), (&json!(budget - 5), &json!(64)));
    assert_eq!(stats["memory"]["ledger"]["budget_from"], "api");
    assert_eq!(admin(reqwest::Method::PUT, "limits", json!({"context": 0})).0, 200);
    std::thread::scope(|scope| {
        let server = &server;
        let runs = scope.spawn(move || {
            let body = json!({"prompt": [1, 2, 3], "max_tokens": 100_000, "ignore_eos": true});
            server.post("/v1/completions", &body)
        });
        let mut id = 0;
        eventually("its row", || {
            let stats = server.get("/stats").1;
            id = stats["rows"][0]["id"].as_u64().unwrap_or(0);
            id > 0 || runs.is_finished()
        });
        let (status, _) = admin(reqwest::Method::POST, &format!("requests/{id}/cancel"), json!({}));
        let (ended, answer) = runs.join().unwrap();
        // A tiny model may have come to the end of its context before.
        assert!(status == 200 && ended == 499 || ended == 200, "{status} {ended} {answer}");
    });
    server.idle();
}
