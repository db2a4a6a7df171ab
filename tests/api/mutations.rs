//! Thousands of mutated requests: never a server error, always the envelope, and a right answer afterwards.

use crate::checks::still_answers;
use crate::http::{client, envelope};
use crate::support::start;
use hearth_server::testing::{ScriptedBackend, Step};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

const MUTATIONS: usize = 2400;

fn valid() -> Vec<(&'static str, Value)> {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
    vec![
        (
            "/v1/chat/completions",
            json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be brief"}]},
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "1"}],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto",
                "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["a", "b"], "logprobs": true,
                "top_logprobs": 2, "logit_bias": {"5": 1}, "stream": true, "stream_options": {"include_usage": true},
                "hlg": {"width": 4}, "chat_template_kwargs": {"enable_thinking": false}, "max_completion_tokens": 4}),
        ),
        ("/v1/completions", json!({"prompt": ["Hi", "Ho"], "max_tokens": 3, "logprobs": 2, "stream": true})),
        ("/v1/completions", json!({"prompt": [[1, 2], [3]], "echo": true, "stop": "x", "suffix": null, "n": 1})),
    ]
}

/// Values that break things.
fn odd() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-40i64..400).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3.0..3.0f64).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![Just(""), Just("\u{0}"), Just("{"), Just("<|end|>"), Just("user"), Just("ďábel 🦀")]
            .prop_map(Value::from),
        Just(json!("x".repeat(3000))),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((".{0,6}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Replaces, removes or wraps the value at a place counted through the tree.
fn mutate(value: &mut Value, place: &mut usize, new: &Value, how: u8) -> bool {
    if *place == 0 {
        *value = match how {
            0 => new.clone(),
            1 => json!([value.take()]),
            2 => json!({"x": value.take()}),
            _ => Value::String(value.to_string()),
        };
        return true;
    }
    *place -= 1;
    match value {
        Value::Array(list) => list.iter_mut().any(|v| mutate(v, place, new, how)),
        Value::Object(map) => map.values_mut().any(|v| mutate(v, place, new, how)),
        _ => false,
    }
}

/// The body's bytes, cut, doubled or changed somewhere.
fn damage(mut bytes: Vec<u8>, at: usize, byte: u8, how: u8) -> Vec<u8> {
    let at = at % bytes.len().max(1);
    match how {
        0 => bytes.truncate(at),
        1 => bytes[at] = byte,
        2 => bytes.insert(at, byte),
        _ => bytes.extend_from_within(at..),
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_mutations_and_then_a_right_answer() {
    let server = start(ScriptedBackend::new(|_| vec![Step::Text("Hello".into())])).await;
    let http = client();
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let choice = (0usize..4, 0usize..60, odd(), 0u8..4, any::<u8>(), any::<bool>());
    let mut statuses = std::collections::BTreeMap::new();
    for n in 0..MUTATIONS {
        let (which, place, new, how, byte, bytes) = choice.new_tree(&mut runner).unwrap().current();
        let (path, mut body) = valid().swap_remove(which);
        let sent = if bytes {
            damage(body.to_string().into_bytes(), place * 7 + n, byte, how)
        } else {
            let mut place = place;
            mutate(&mut body, &mut place, &new, how);
            body.to_string().into_bytes()
        };
        let shown = String::from_utf8_lossy(&sent).into_owned();
        let request = http.post(format!("{}{path}", server.url)).header("content-type", "application/json").body(sent);
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        *statuses.entry(status).or_insert(0) += 1;
        let text = response.text().await.unwrap();
        match status {
            200 => assert!(!text.contains("\"error\""), "{shown}: {text}"),
            400 | 404 | 413 => {
                let answer: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{shown}: {e}: {text}"));
                envelope(&answer);
            }
            other => panic!("{other} for {shown}: {text}"),
        }
        if n % 400 == 0 {
            still_answers(&server.url).await;
        }
    }
    assert!(statuses[&200] > 200 && statuses[&400] > 500, "mutations of both kinds: {statuses:?}");
    assert_eq!(server.backend.active(), 0);
    still_answers(&server.url).await;
}
