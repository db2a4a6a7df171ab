//! Checks that need only a base URL and a loaded model with a chat template: the same for the scripted backend
//! and for a real one.

use super::http::{envelope, events, get, post, post_raw, stream_text};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat_body(field: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4});
    body[field] = value;
    body
}

fn completion_body(field: &str, value: Value) -> Value {
    let mut body = json!({"prompt": "Hi", "max_tokens": 4});
    body[field] = value;
    body
}

/// The server still gives a right answer.
pub async fn still_answers(base: &str) {
    let (status, body) = post(base, CHAT, &chat_body("temperature", json!(0))).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["choices"][0]["message"]["role"], "assistant");
    assert!(body["usage"]["completion_tokens"].as_u64().is_some_and(|n| n > 0), "{body}");
}

/// Cases 21 and 25: each of these is a 400 that names the field, and the next request works.
pub async fn bad_fields_are_named(base: &str) {
    let long: Vec<String> = (0..17).map(|i| i.to_string()).collect();
    let both = [
        ("n", json!(2)),
        ("n", json!("one")),
        ("model", json!(5)),
        ("stream", json!("yes")),
        ("stream", json!(1)),
        ("stream_options", json!(true)),
        ("stop", json!(5)),
        ("stop", json!([1])),
        ("stop", json!(long)),
        ("stop", json!({"a": 1})),
        ("temperature", json!("hot")),
        ("temperature", json!(-0.1)),
        ("temperature", json!(2.1)),
        ("temperature", json!(1e300)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(-1)),
        ("min_p", json!(2)),
        ("xtc_probability", json!(1.5)),
        ("xtc_threshold", json!(0.9)),
        ("repetition_penalty", json!(0)),
        ("repetition_context_size", json!(-1)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("logit_bias", json!([1, 2])),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"4000000000": 1})),
        ("logit_bias", json!({"99999999999999": 1})),
        ("logit_bias", json!({"1": "x"})),
        ("logit_bias", json!({"1": 101})),
        ("seed", json!("x")),
        ("seed", json!(1.5)),
        ("seed", json!(1e30)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("max_tokens", json!("4")),
        ("max_tokens", json!([])),
        ("hlg", json!(true)),
        ("hlg", json!({"width": 0})),
        ("hlg", json!({"unknown": 1})),
        ("ignore_eos", json!("no")),
        ("return_token_ids", json!(1)),
    ];
    let chat = [
        ("messages", json!([])),
        ("messages", json!(null)),
        ("messages", json!("Hi")),
        ("messages", json!([5])),
        ("messages", json!([{"role": "user"}])),
        ("messages", json!([{"role": 1, "content": "x"}])),
        ("messages", json!([{"role": "user", "content": 1}])),
        ("messages", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])),
        ("messages", json!([{"role": "assistant", "tool_calls": {}}])),
        ("max_tokens", json!(0)),
        ("max_completion_tokens", json!(0)),
        ("max_completion_tokens", json!("x")),
        ("logprobs", json!(3)),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(3)),
        ("response_format", json!("json")),
        ("response_format", json!({"type": "yaml"})),
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {}})),
        ("tools", json!({})),
        ("tools", json!([1])),
        ("tool_choice", json!("any")),
        ("chat_template_kwargs", json!([])),
        ("enable_thinking", json!("no")),
        ("reasoning_effort", json!(3)),
        ("add_generation_prompt", json!("no")),
        ("continue_final_message", json!(true)),
    ];
    let completions = [
        ("prompt", json!(null)),
        ("prompt", json!(5)),
        ("prompt", json!({})),
        ("prompt", json!([])),
        ("prompt", json!([[]])),
        ("prompt", json!(["a", 5])),
        ("prompt", json!([1, "a"])),
        ("prompt", json!([[1], "a"])),
        ("prompt", json!([-1])),
        ("prompt", json!([1.5])),
        ("prompt", json!([4000000000u32])),
        ("prompt", json!([9999999999u64])),
        ("prompt", json!(vec!["a"; 65])),
        ("logprobs", json!(21)),
        ("logprobs", json!(-1)),
        ("logprobs", json!(true)),
        ("best_of", json!(2)),
        ("echo", json!("x")),
        ("suffix", json!(5)),
    ];
    let mut cases: Vec<(&str, &str, Value)> = Vec::new();
    for (field, value) in both {
        cases.push((CHAT, field, chat_body(field, value.clone())));
        cases.push((COMPLETIONS, field, completion_body(field, value)));
    }
    cases.extend(chat.into_iter().map(|(field, value)| (CHAT, field, chat_body(field, value))));
    cases.extend(completions.into_iter().map(|(field, value)| (COMPLETIONS, field, completion_body(field, value))));
    let usage = json!({"include_usage": "yes"});
    cases.push((CHAT, "stream_options.include_usage", chat_body("stream_options", usage)));
    for (route, field, mut body) in cases {
        for streamed in [false, true] {
            if field != "stream" {
                body["stream"] = streamed.into();
            }
            let (status, answer) = post(base, route, &body).await;
            assert_eq!(status, 400, "{route} {body}: {answer}");
            let message = envelope(&answer);
            let param = answer["error"]["param"].as_str().unwrap_or_default();
            assert!(param.starts_with(field) && message.contains(field), "{field}: {answer}");
            assert_eq!(answer["error"]["type"], "invalid_request_error");
        }
    }
    still_answers(base).await;
}

/// Fields that other servers choke on, and fields nobody knows: accepted.
pub async fn good_fields_are_accepted(base: &str) {
    let both = [
        ("model", json!(null)),
        ("stop", json!(null)),
        ("stop", json!([])),
        ("stop", json!("")),
        ("stop", json!(["\n\n", "END"])),
        ("seed", json!(null)),
        ("seed", json!(-1)),
        ("seed", json!(i64::MAX)),
        ("seed", json!(i64::MIN)),
        ("max_tokens", json!(null)),
        ("top_k", json!(-1)),
        ("top_k", json!(10_000_000_000u64)),
        ("temperature", json!(0)),
        ("temperature", json!(2)),
        ("logit_bias", json!({})),
        ("logit_bias", json!({"1": -100, "2": 5.5})),
        ("n", json!(1)),
        ("n", json!(null)),
        ("stream_options", json!(null)),
        ("stream_options", json!({"include_usage": true})),
        ("user", json!("me")),
        ("metadata", json!({"a": "b"})),
        ("store", json!(false)),
        ("text", json!({})),
        ("prompt_cache_key", json!("x")),
        ("repetition_penalty", json!(1.1)),
        ("hlg", json!({})),
        ("hlg", json!({"width": 3, "shoulder": 5})),
    ];
    let chat = [
        ("tools", json!([])),
        ("tools", json!(null)),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("response_format", json!({"type": "text"})),
        ("logprobs", json!(false)),
        ("top_logprobs", json!(0)),
        ("max_completion_tokens", json!(3)),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("enable_thinking", json!(true)),
        ("reasoning_effort", json!("low")),
    ];
    for (field, value) in both.iter().chain(&chat) {
        let (status, answer) = post(base, CHAT, &chat_body(field, value.clone())).await;
        // A template may say no to a kind of message, the server may not.
        assert_eq!(status, 200, "{field}: {value}: {answer}");
    }
    for (field, value) in both.iter().chain(&[("suffix", json!(null)), ("suffix", json!("")), ("best_of", json!(1))]) {
        let (status, answer) = post(base, COMPLETIONS, &completion_body(field, value.clone())).await;
        assert_eq!(status, 200, "{field}: {value}: {answer}");
    }
}

/// Case 21: broken bodies on every route.
pub async fn broken_bodies(base: &str) {
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(3000), "]".repeat(3000));
    let bodies: Vec<&[u8]> = vec![
        b"",
        b"   ",
        b"{",
        b"}",
        b"null",
        b"[]",
        b"\"text\"",
        b"5",
        b"{\"messages\": [}",
        b"{\"temperature\": NaN}",
        b"{\"temperature\": Infinity}",
        b"{\"temperature\": 1e999}",
        b"{\"temperature\": 1, \"temperature\": 1}",
        b"{\"prompt\": \"a\"} trailing",
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{'prompt': 'a'}",
        b"\x00\x01\x02",
        deep.as_bytes(),
    ];
    for route in [CHAT, COMPLETIONS] {
        for body in &bodies {
            let (status, answer) = post_raw(base, route, body.to_vec(), Some("application/json")).await;
            assert_eq!(status, 400, "{:?}: {answer}", String::from_utf8_lossy(body));
            envelope(&answer);
        }
    }
    still_answers(base).await;
}

/// Content types: JSON's several names and none at all are fine, others are a 400.
pub async fn content_types(base: &str) {
    let body = chat_body("temperature", json!(0)).to_string().into_bytes();
    for good in [None, Some("application/json"), Some("application/json; charset=UTF-8"), Some("application/x+json")] {
        let (status, answer) = post_raw(base, CHAT, body.clone(), good).await;
        assert_eq!(status, 200, "{good:?}: {answer}");
    }
    for bad in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin1",
        "nonsense",
    ] {
        let (status, answer) = post_raw(base, CHAT, body.clone(), Some(bad)).await;
        assert_eq!(status, 400, "{bad}: {answer}");
        assert!(envelope(&answer).contains("application/json"));
    }
}

/// Unknown routes and wrong methods have the envelope too.
pub async fn routes_and_methods(base: &str) {
    for path in ["/index", "/v1", "/v1/chat", "/v1/chat/completions/x", "/nowhere", "/v1/%ff"] {
        let (status, answer) = get(base, path).await;
        assert_eq!(status, 404, "{path}");
        envelope(&answer);
        assert_eq!(post(base, path, &json!({"a": 1})).await.0, 404);
    }
    for path in [CHAT, COMPLETIONS] {
        let (status, answer) = get(base, path).await;
        assert_eq!(status, 405, "{path}");
        envelope(&answer);
    }
    for path in ["/v1/models", "/health", "/stats"] {
        let (status, answer) = post(base, path, &json!({})).await;
        assert_eq!(status, 405, "{path}");
        envelope(&answer);
    }
}

/// The models routes; ids may hold slashes, encoded or not.
pub async fn models(base: &str) {
    let (status, list) = get(base, "/v1/models").await;
    assert_eq!((status, &list["object"]), (200, &json!("list")));
    let model = &list["data"][0];
    let id = model["id"].as_str().unwrap();
    assert_eq!(model["object"], "model");
    assert!(model["created"].is_u64() && model["owned_by"].is_string(), "{model}");
    for name in [id.to_owned(), id.replace('/', "%2F"), id.replace('-', "%2d")] {
        let (status, one) = get(base, &format!("/v1/models/{name}")).await;
        assert_eq!((status, &one), (200, model), "{name}");
    }
    for name in ["nobody", "nobody/nothing", "%ff%fe", "a%2Fb"] {
        let (status, answer) = get(base, &format!("/v1/models/{name}")).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")), "{name}");
        assert!(envelope(&answer).contains(id), "{answer}");
    }
}

/// Cases 19 and 20: the shape of a stream, with and without usage.
pub async fn stream_shape(base: &str) {
    for (route, body) in
        [(CHAT, chat_body("stream", json!(true))), (COMPLETIONS, completion_body("stream", json!(true)))]
    {
        for usage in [None, Some(false), Some(true)] {
            let mut body = body.clone();
            if let Some(usage) = usage {
                body["stream_options"] = json!({"include_usage": usage});
            }
            let all = events(&stream_text(base, route, &body).await);
            for key in ["id", "object", "created", "model"] {
                assert!(all.iter().all(|e| e[key] == all[0][key] && !e[key].is_null()), "{key} changes");
            }
            let (counts, chunks): (Vec<_>, Vec<_>) = all.iter().partition(|e| e["choices"] == json!([]));
            assert_eq!(counts.len(), usize::from(usage == Some(true)), "usage only when asked");
            if let Some(last) = counts.first() {
                assert_eq!(*last, all.last().unwrap());
                let u = &last["usage"];
                let sum = u["prompt_tokens"].as_u64().unwrap() + u["completion_tokens"].as_u64().unwrap();
                assert_eq!(u["total_tokens"], sum);
                assert!(u["prompt_tokens_details"]["cached_tokens"].is_u64(), "{u}");
            }
            let asked = usage == Some(true);
            assert!(chunks.iter().all(|e| e["usage"].is_null() && e.get("usage").is_some() == asked), "null or absent");
            let ends: Vec<_> = chunks.iter().filter(|e| !e["choices"][0]["finish_reason"].is_null()).collect();
            assert_eq!(ends.len(), 1, "one finish chunk");
            assert_eq!(ends[0], chunks.last().unwrap(), "at the end");
            if route == CHAT {
                assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
                assert!(chunks[1..].iter().all(|e| e["choices"][0]["delta"].get("role").is_none()), "one role chunk");
                assert_eq!(ends[0]["choices"][0]["delta"], json!({}));
            }
        }
    }
}

/// The text of a stream is the text of the whole, with the same seed and usage.
pub async fn streamed_equals_whole(base: &str) {
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "temperature": 0});
    let (status, whole) = post(base, CHAT, &body).await;
    assert_eq!(status, 200);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    let all = events(&stream_text(base, CHAT, &streamed).await);
    let text: String = all.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], text);
    let usage = &all.last().unwrap()["usage"];
    assert_eq!(whole["usage"]["completion_tokens"], usage["completion_tokens"]);
    assert_eq!(whole["usage"]["prompt_tokens"], usage["prompt_tokens"]);
}
