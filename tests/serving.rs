//! The HTTP API of the real binary with real models: right answers, wrong requests, and clients that hang up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::Duration;
use support::{Server, golden, starter};

/// A repeatable stream of numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.roll(all.len())]
    }
}

fn sea() -> Value {
    json!({"messages": [{"role": "user", "content": "Write one short sentence about the sea."}],
           "temperature": 0, "max_tokens": 16})
}

fn with(mut base: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

/// Every error has OpenAI's envelope.
#[track_caller]
fn envelope(reply: &Value) -> &Value {
    let error = &reply["error"];
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{reply}");
    assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some(), "{reply}");
    error
}

#[test]
fn a_real_model_answers() {
    let server = Server::start(&starter(), &[]);
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["status"]), (200, &json!("ready")));
    let models = server.get("/v1/models").1;
    let id = models["data"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("/v1/models/{id}")).1["id"], json!(id));

    // Streamed or not, and whatever the model is called, the answer is the same.
    let whole = server.ask("/v1/chat/completions", &sea());
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.to_lowercase().contains("sea"), "a 135M model can do this much: {text}");
    assert_eq!(whole["model"], json!(id));
    let named = server.ask("/v1/chat/completions", &with(sea(), json!({"model": "gpt-4o", "max_tokens": 4})));
    assert_eq!(named["model"], json!(id), "one model answers to any name, and says its own");
    let chunks = server.stream("/v1/chat/completions", &with(sea(), json!({"stream": true})));
    let joined: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(joined, text);
    assert!(chunks.iter().all(|c| c["id"] == chunks[0]["id"] && c.get("usage").is_none_or(Value::is_null)));
    let finished = chunks.iter().filter(|c| !c["choices"][0]["finish_reason"].is_null()).count();
    assert_eq!(finished, 1);

    // What `return_token_ids` says is what was computed.
    let ask =
        json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4, "return_token_ids": true});
    let done = server.ask("/v1/completions", &ask);
    let choice = &done["choices"][0];
    assert_eq!(choice["text"].as_str().unwrap().chars().next(), Some(' '), "the leading space is kept");
    assert!(choice["text"].as_str().unwrap().contains("Paris"), "{done}");
    let prompt = choice["prompt_token_ids"].as_array().unwrap();
    assert_eq!(done["usage"]["prompt_tokens"], prompt.len());
    assert_eq!(done["usage"]["completion_tokens"], choice["token_ids"].as_array().unwrap().len());
    let again = server.ask("/v1/completions", &with(ask, json!({"prompt": prompt})));
    assert_eq!(again["choices"][0]["text"], choice["text"]);

    let stats = server.idle();
    assert_eq!(stats["model"]["id"], json!(id));
    let totals = &stats["totals"];
    assert_eq!((&totals["requests"], &totals["finished"], &totals["failed"]), (&json!(5), &json!(5), &json!(0)));
    for number in ["weights", "mlx_active", "mlx_peak", "process"] {
        assert!(stats["memory"][number].as_u64().unwrap() > 50 << 20, "{number}: {stats}");
    }
    assert_eq!(stats["memory"]["kv"], 0, "no row, no cache: {stats}");
}

#[test]
fn rows_share_the_engine_and_keep_their_own_text() {
    let server = Server::start(&starter(), &["--max-rows", "3"]);
    let ask = |n: usize| {
        json!({"prompt": format!("Count upwards from {n}: {n}, {}, {},", n + 1, n + 2), "temperature": 0,
               "max_tokens": 4 + n % 5})
    };
    let text = |reply: Value| reply["choices"][0]["text"].as_str().unwrap().to_owned();
    let numbers = [1, 12, 23, 34, 45];
    let alone: Vec<String> = numbers.iter().map(|&n| text(server.ask("/v1/completions", &ask(n)))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let asking: Vec<_> = numbers
            .iter()
            .map(|&n| {
                scope.spawn({
                    let server = &server;
                    move || text(server.ask("/v1/completions", &ask(n)))
                })
            })
            .collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
    server.idle();
}

#[test]
fn every_malformed_body_is_a_4xx_and_the_next_request_works() {
    let server = Server::start(&golden("llama-q4"), &["--context", "200"]);
    let good = json!({"prompt": "Hello", "max_tokens": 4, "temperature": 0});
    let expected = server.ask("/v1/completions", &good)["choices"].clone();
    let chat = |more: Value| with(json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}), more);
    let plain = |more: Value| with(good.clone(), more);
    let cases: Vec<(&str, Value, &str)> = vec![
        ("/v1/chat/completions", json!([]), ""),
        ("/v1/chat/completions", json!({}), "messages"),
        ("/v1/chat/completions", chat(json!({"messages": []})), "messages"),
        ("/v1/chat/completions", chat(json!({"messages": "Hi"})), "messages"),
        ("/v1/chat/completions", chat(json!({"messages": [{"role": "user", "content": 5}]})), "messages"),
        ("/v1/chat/completions", chat(json!({"messages": [{"content": "Hi"}]})), "messages"),
        ("/v1/chat/completions", chat(json!({"n": 2})), "n"),
        ("/v1/chat/completions", chat(json!({"temperature": 9})), "temperature"),
        ("/v1/chat/completions", chat(json!({"temperature": "hot"})), "temperature"),
        ("/v1/chat/completions", chat(json!({"top_p": 0})), "top_p"),
        ("/v1/chat/completions", chat(json!({"min_p": 2})), "min_p"),
        ("/v1/chat/completions", chat(json!({"xtc_threshold": 0.9})), "xtc_threshold"),
        ("/v1/chat/completions", chat(json!({"max_tokens": -1})), "max_tokens"),
        ("/v1/chat/completions", chat(json!({"max_tokens": 1.5})), "max_tokens"),
        ("/v1/chat/completions", chat(json!({"stop": 5})), "stop"),
        ("/v1/chat/completions", chat(json!({"stop": [5]})), "stop"),
        ("/v1/chat/completions", chat(json!({"seed": "x"})), "seed"),
        ("/v1/chat/completions", chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"9999": 1}})), "logit_bias"),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"1": 101}})), "logit_bias"),
        ("/v1/chat/completions", chat(json!({"presence_penalty": 3})), "presence_penalty"),
        ("/v1/chat/completions", chat(json!({"stream": "yes"})), "stream"),
        (
            "/v1/chat/completions",
            chat(json!({"stream": true, "stream_options": {"include_usage": "yes"}})),
            "stream_options",
        ),
        ("/v1/chat/completions", chat(json!({"hlg": {"toe": 0}})), "hlg"),
        ("/v1/completions", json!({}), "prompt"),
        ("/v1/completions", plain(json!({"prompt": ""})), "prompt"),
        ("/v1/completions", plain(json!({"prompt": []})), "prompt"),
        ("/v1/completions", plain(json!({"prompt": [[]]})), "prompt"),
        ("/v1/completions", plain(json!({"prompt": [99999]})), "prompt"),
        ("/v1/completions", plain(json!({"prompt": [-1]})), "prompt"),
        ("/v1/completions", plain(json!({"prompt": [1, "a"]})), "prompt"),
        ("/v1/completions", plain(json!({"prompt": {"a": 1}})), "prompt"),
        ("/v1/completions", plain(json!({"logprobs": 21})), "logprobs"),
        ("/v1/completions", plain(json!({"n": 3})), "n"),
    ];
    for (path, body, param) in &cases {
        let (status, reply) = server.post(path, body);
        assert_eq!(status, 400, "{path} {body}: {reply}");
        let error = envelope(&reply);
        let named = error["param"].as_str().unwrap_or("");
        assert!(named.starts_with(param) && error["message"].as_str().unwrap().contains(param), "{body}: {reply}");
    }
    let (status, full) = server.post("/v1/completions", &plain(json!({"prompt": "word ".repeat(60)})));
    assert_eq!((status, &envelope(&full)["code"]), (400, &json!("context_length_exceeded")));
    let message = full["error"]["message"].as_str().unwrap();
    assert!(message.contains("300") && message.contains("200"), "both numbers: {message}");

    // Odd, and right all the same: one more token than there are, and a prompt as long as the context allows.
    let wide = server.ask("/v1/completions", &plain(json!({"top_k": 5000, "temperature": 1})));
    assert!(wide["usage"]["completion_tokens"].as_u64().unwrap() >= 1);
    let brim = server.ask("/v1/completions", &plain(json!({"prompt": "x".repeat(199), "ignore_eos": true})));
    assert_eq!(
        (&brim["usage"]["completion_tokens"], &brim["choices"][0]["finish_reason"]),
        (&json!(1), &json!("length"))
    );

    for path in ["/v1/chat/completions", "/v1/completions"] {
        for body in [&b""[..], b"{", b"null", b"5", b"\"\\ud800\"", b"{\"prompt\": \"\xff\"}", b"{\"a\":NaN}"] {
            let mut reply = String::new();
            let mut socket = server.raw_post(path, body);
            let mut buffer = [0; 4096];
            while !reply.contains("\"error\"") {
                let n = socket.read(&mut buffer).unwrap();
                assert!(n > 0, "{path} {body:?}: {reply}");
                reply.push_str(&String::from_utf8_lossy(&buffer[..n]));
            }
            assert!(reply.starts_with("HTTP/1.1 400 "), "{path} {body:?}: {reply}");
        }
    }
    for (method, path, status) in [
        ("GET", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/nope", 404),
        ("GET", "/v1/models/x", 404),
    ] {
        let request = support::http().request(method.parse().unwrap(), format!("{}{path}", server.url));
        let reply = request.send().unwrap();
        assert_eq!(reply.status(), status, "{method} {path}");
        envelope(&reply.json().unwrap());
    }
    let huge = vec![b' '; 33 << 20];
    let reply = support::http().post(format!("{}/v1/completions", server.url)).body(huge).send().unwrap();
    assert_eq!(reply.status(), 413);
    envelope(&reply.json().unwrap());
    assert_eq!(server.ask("/v1/completions", &good)["choices"], expected, "the next request works");
}

#[test]
fn foreign_pages_and_names_are_kept_out() {
    let server =
        Server::start(&golden("llama-q4"), &["--allow-origin", "http://app.test", "--allow-host", "mac.local"]);
    let models = format!("{}/v1/models", server.url);
    let complete = format!("{}/v1/completions", server.url);
    let body = json!({"prompt": "Hello", "max_tokens": 1});
    for (host, status) in [("evil.example", 403), ("mac.local", 200), ("localhost:1", 200)] {
        assert_eq!(support::http().get(&models).header("Host", host).send().unwrap().status(), status, "{host}");
    }
    for (origin, status) in [("http://evil.example", 403), ("http://app.test", 200), ("null", 403)] {
        let reply = support::http().post(&complete).header("Origin", origin).json(&body).send().unwrap();
        assert_eq!(reply.status(), status, "{origin}");
        let cors = reply.headers().get("access-control-allow-origin").map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(cors.as_deref(), (status == 200).then_some(origin));
    }
    let preflight = support::http().request("OPTIONS".parse().unwrap(), &complete).header("Origin", "http://app.test");
    let preflight = preflight.header("Access-Control-Request-Method", "POST");
    let reply = preflight.header("Access-Control-Request-Headers", "authorization,content-type").send().unwrap();
    assert!(reply.status().is_success());
    let allowed = reply.headers()["access-control-allow-headers"].to_str().unwrap().to_lowercase();
    assert!(allowed.contains("authorization"), "{allowed}");
    let stop = support::http().post(format!("{}/api/hearth/shutdown", server.url)).bearer_auth("guess");
    assert_eq!(stop.send().unwrap().status(), 401, "only the admin token stops a server");
    assert_eq!(server.get("/health").0, 200);
}

/// Damages a request somewhere: a byte of its text, or a value of its JSON.
fn mutate(dice: &mut Dice, request: &Value) -> Vec<u8> {
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}é🦀"),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"a": {"b": []}}),
        json!(["a", 1, null]),
    ];
    if dice.roll(2) == 0 {
        let mut changed = request.clone();
        let fields: Vec<String> = changed.as_object().unwrap().keys().cloned().collect();
        for _ in 0..=dice.roll(2) {
            let field = dice.pick(&fields).clone();
            match dice.roll(4) {
                0 => drop(changed.as_object_mut().unwrap().remove(&field)),
                _ => changed[&field] = dice.pick(&odd).clone(),
            }
        }
        return changed.to_string().into_bytes();
    }
    let mut bytes = request.to_string().into_bytes();
    for _ in 0..=dice.roll(3) {
        let at = dice.roll(bytes.len());
        match dice.roll(4) {
            0 => bytes[at] = dice.roll(256) as u8,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, *dice.pick(b"{}[]\",:0-9e.\\ntf")),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

#[test]
fn two_thousand_mutations_and_then_a_right_answer() {
    let server = Server::start(&golden("llama-q4"), &["--context", "64"]);
    let valid = [
        (
            "/v1/completions",
            json!({"model": "m", "prompt": "Hello", "max_tokens": 3, "temperature": 0.7, "seed": 5,
            "stop": ["x"], "logprobs": 2, "stream": false, "logit_bias": {"3": 1.5}, "echo": false}),
        ),
        (
            "/v1/completions",
            json!({"prompt": [72, 101], "max_tokens": 2, "top_k": 4, "min_p": 0.1, "ignore_eos": true}),
        ),
        ("/v1/completions", json!({"prompt": ["a", "b"], "max_tokens": 2, "repetition_penalty": 1.1})),
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3,
            "top_p": 0.9, "logprobs": true, "top_logprobs": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": "b"}], "max_completion_tokens": 3, "stream": true, "n": 1,
            "stream_options": {"include_usage": true}, "tools": [], "hlg": {"width": 4.0}}),
        ),
    ];
    let good = json!({"prompt": "Hello", "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let expected = server.ask("/v1/completions", &good)["choices"].clone();
    let (mut dice, client, mut counts) = (Dice(20_240_607), support::http(), [0; 2]);
    for i in 0..2000 {
        let (path, request) = dice.pick(&valid).clone();
        let body = mutate(&mut dice, &request);
        let shown = String::from_utf8_lossy(&body).into_owned();
        let reply = client.post(format!("{}{path}", server.url)).header("Content-Type", "application/json").body(body);
        let reply = reply.send().unwrap_or_else(|e| panic!("{i}: {path} {shown}: {e}"));
        let status = reply.status().as_u16();
        let text = reply.text().unwrap();
        match status {
            200 => counts[0] += 1,
            400..=499 => {
                counts[1] += 1;
                envelope(&serde_json::from_str(&text).unwrap());
            }
            _ => panic!("{i}: {path} {shown}: {status} {text}"),
        }
    }
    assert!(counts.iter().all(|&n| n > 200), "both kinds happen: {counts:?}");
    assert_eq!(server.ask("/v1/completions", &good)["choices"], expected);
    assert_eq!(server.idle()["totals"]["failed"], 0);
}

/// The process's memory once nothing runs any more and MLX holds the weights and the prompt cache alone.
fn settled(server: &Server) -> f64 {
    let mut memory = Value::Null;
    support::eventually("MLX holds no more than the weights and the prompt cache, within 2 %", || {
        let stats = server.idle();
        memory = stats["memory"].clone();
        let [weights, active, cache] =
            ["weights", "mlx_active", "mlx_cache"].map(|what| memory[what].as_f64().unwrap());
        let kept = stats["cache"]["ram"]["bytes"].as_f64().unwrap();
        memory["kv"] == 0 && active + cache <= (weights + kept) * 1.02
    });
    // The process gives its freed pages back once it has been idle for a second: look over longer than that.
    let mut last = memory["process"].as_f64().unwrap();
    support::eventually("the process's memory stands still", || {
        std::thread::sleep(std::time::Duration::from_millis(2000));
        let now = server.idle()["memory"]["process"].as_f64().unwrap();
        (std::mem::replace(&mut last, now) - now).abs() < now * 1e-3
    });
    last
}

/// A client that goes at some moment: before its request is whole, while it waits, is prefilled or decoded.
fn hang_up(server: &Server, dice: &mut Dice) {
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(20);
    let stream = dice.roll(2) == 0;
    let prompt = if dice.roll(3) == 0 { long.as_str() } else { "Once upon a time" };
    let body = json!({"prompt": prompt, "max_tokens": 200, "ignore_eos": true, "stream": stream}).to_string();
    let sent = if dice.roll(5) == 0 { dice.roll(body.len()) } else { body.len() };
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        server.address(),
        body.len()
    );
    let mut socket = server.raw(head.as_bytes());
    let _ = socket.write_all(&body.as_bytes()[..sent]);
    std::thread::sleep(Duration::from_millis(dice.roll(120) as u64));
}

fn still_knows_paris(server: &Server) {
    let answer = server
        .ask("/v1/completions", &json!({"prompt": "The capital of France is", "temperature": 0, "max_tokens": 3}));
    assert!(answer["choices"][0]["text"].as_str().unwrap().contains("Paris"), "{answer}");
}

#[test]
fn clients_that_hang_up_leave_nothing_behind() {
    // Without the prompt cache, which keeps what they computed.
    let server = Server::start(&starter(), &["--cache-ram", "0", "--cache-ssd", "0"]);
    let mut dice = Dice(34);
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(20);
    // Working memory of the BLAS and of a full batch stays with the process: fill it first.
    std::thread::scope(|scope| {
        for n in 1..=8 {
            let body = json!({"prompt": long, "max_tokens": 2 + n, "ignore_eos": true});
            let server = &server;
            scope.spawn(move || server.ask("/v1/completions", &body));
        }
    });
    for _ in 0..40 {
        hang_up(&server, &mut dice);
    }
    let before = settled(&server);
    for _ in 0..200 {
        hang_up(&server, &mut dice);
    }
    let after = settled(&server);
    assert!(after <= before * 1.02, "the process grew from {before} to {after} bytes");
    still_knows_paris(&server);
}

#[test]
fn clients_that_hang_up_leave_only_what_the_prompt_cache_counts() {
    let server = Server::start(&starter(), &["--cache-ram", "48MB", "--cache-ssd", "0"]);
    let mut dice = Dice(35);
    for _ in 0..60 {
        hang_up(&server, &mut dice);
    }
    settled(&server);
    let ram = server.idle()["cache"]["ram"].clone();
    let bytes = ram["bytes"].as_u64().unwrap();
    assert!(bytes > 0 && bytes <= 48_000_000 && ram["lent"] == 0, "{ram}");
    still_knows_paris(&server);
}

#[test]
fn more_requests_than_rows_wait_and_too_many_are_told_so() {
    let server = Server::start(&golden("llama-q4"), &["--max-rows", "1"]);
    let body = json!({"prompt": "Hello", "max_tokens": 4000, "ignore_eos": true, "stream": true}).to_string();
    let waiting: Vec<_> = (0..65).map(|_| server.raw_post("/v1/completions", body.as_bytes())).collect();
    support::eventually("all of them wait", || {
        let stats = server.get("/stats").1;
        stats["rows"].as_array().unwrap().len() as u64 + stats["waiting"].as_u64().unwrap() >= 60
    });
    let mut refused = 0;
    for _ in 0..10 {
        let request = support::http().post(format!("{}/v1/completions", server.url));
        let reply =
            request.json(&json!({"prompt": "Hello", "max_tokens": 1})).timeout(Duration::from_millis(500)).send();
        if let Ok(reply) = reply
            && reply.status() == 429
        {
            assert!(reply.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
            envelope(&reply.json().unwrap());
            refused += 1;
        }
    }
    drop(waiting);
    server.idle();
    let answer = server.ask("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 1}));
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    assert!(refused > 0, "the queue has an end");
}
