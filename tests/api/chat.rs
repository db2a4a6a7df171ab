//! Chat completions: what reaches the engine, and what comes back.

use crate::http::{envelope, post, stream};
use crate::support::start;
use hearth_core::backend::ServedModel;
use hearth_core::error::{CoreError, EngineError};
use hearth_server::testing::{BOS, CHATML, EOS, ScriptedBackend, Step, model, tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;

const PATH: &str = "/v1/chat/completions";

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn saying(model: ServedModel) -> ScriptedBackend {
    ScriptedBackend::with_model(model, |_| vec![Step::Text("ok".into())])
}

#[tokio::test]
async fn a_whole_answer() {
    let s = start(ScriptedBackend::new(|_| vec![Step::Admit(5), Step::Text("Dobrý den, světe!".into())])).await;
    let (status, body) = post(&s.url, PATH, &json!({"model": "any", "messages": user("Hi")})).await;
    assert_eq!(status, 200);
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "test-org/test-model", "the real id, whatever was asked for");
    let choice = json!({"index": 0, "finish_reason": "stop", "logprobs": null,
        "message": {"role": "assistant", "content": "Dobrý den, světe!", "refusal": null}});
    assert_eq!(body["choices"], json!([choice]));
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(s.backend.last_prompt(), prompt);
    let prompt_tokens = s.backend.last_request().unwrap().prompt.len();
    let completion_tokens = "Dobrý den, světe!".len() + 1;
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
               "total_tokens": prompt_tokens + completion_tokens, "prompt_tokens_details": {"cached_tokens": 5}})
    );
    assert!((body["timings"]["ttft_ms"].as_f64().unwrap() - 11.0).abs() < 1e-6);
}

#[tokio::test]
async fn case_1_null_content_and_tool_turns_reach_the_template() {
    let source = "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}]{% endfor %}{% if tools %}{{ tools | length }}{% endif %}";
    let s = start(saying(ServedModel { chat_template: Some(source.into()), ..model() })).await;
    let messages = json!([
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"b\": 2, \"a\": 2}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "user", "content": "thanks"}]);
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]);
    let (status, body) = post(&s.url, PATH, &json!({"messages": messages, "tools": tools})).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(s.backend.last_prompt(), "[user|2+2?|][assistant||add({\"b\": 2, \"a\": 2})][tool|4|][user|thanks|]1");
}

#[tokio::test]
async fn case_3_broken_arguments_in_the_history_name_their_message() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]);
    let (status, body) = post(&s.url, PATH, &json!({"messages": messages})).await;
    assert_eq!(status, 400);
    assert!(envelope(&body).starts_with("`messages[1].tool_calls[0].function.arguments` must be JSON"), "{body}");
    assert!(s.backend.requests().is_empty());
}

#[tokio::test]
async fn case_4_text_parts_for_templates_of_either_kind() {
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]);
    let s = start(ScriptedBackend::saying("ok")).await;
    assert_eq!(post(&s.url, PATH, &json!({"messages": parts})).await.0, 200);
    assert_eq!(s.backend.last_prompt(), "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    let source = "{% for m in messages %}{% for c in m.content %}{% if c.type == 'text' %}({{ c.text }}){% endif %}{% endfor %}{% endfor %}";
    let s = start(saying(ServedModel { chat_template: Some(source.into()), ..model() })).await;
    for messages in [parts, user("Hello")] {
        assert_eq!(post(&s.url, PATH, &json!({"messages": messages})).await.0, 200);
        assert_eq!(s.backend.last_prompt(), "(Hello)");
    }
}

#[tokio::test]
async fn a_role_that_the_template_refuses_is_a_400_naming_the_message() {
    let source = "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('Only users, please') }}{% endif %}{{ m.content }}{% endfor %}";
    let s = start(saying(ServedModel { chat_template: Some(source.into()), ..model() })).await;
    let messages = json!([{"role": "user", "content": "x"}, {"role": "wizard", "content": "y"}]);
    let (status, body) = post(&s.url, PATH, &json!({"messages": messages})).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("messages[1]")));
    assert_eq!(envelope(&body), "the model's chat template refuses `messages[1]`: Only users, please");
    assert_eq!(post(&s.url, PATH, &json!({"messages": user("x")})).await.0, 200);
}

#[tokio::test]
async fn the_beginning_of_text_is_there_once() {
    for (source, prompt) in [(CHATML, "<s><|im_start|>user\nx"), ("{{ bos_token }}{{ messages[0].content }}", "<s>x")] {
        let m = ServedModel { tokenizer: Arc::new(tokenizer(true)), chat_template: Some(source.into()), ..model() };
        let s = start(saying(m)).await;
        assert_eq!(post(&s.url, PATH, &json!({"messages": user("x")})).await.0, 200);
        assert!(s.backend.last_prompt().starts_with(prompt));
        assert_eq!(s.backend.last_request().unwrap().prompt.iter().filter(|&&id| id == BOS).count(), 1);
    }
}

#[tokio::test]
async fn templates_from_the_tokenizer_config() {
    let named = json!([{"name": "default", "template": "default"}, {"name": "tool_use", "template": "with tools"}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for (config, tools, prompt) in
        [(json!("plain"), Value::Null, "plain"), (named.clone(), Value::Null, "default"), (named, tools, "with tools")]
    {
        let tokenizer_config = Arc::new(json!({"chat_template": config}));
        let s = start(saying(ServedModel { chat_template: None, tokenizer_config, ..model() })).await;
        assert_eq!(post(&s.url, PATH, &json!({"messages": user("x"), "tools": tools})).await.0, 200);
        assert_eq!(s.backend.last_prompt(), prompt);
    }
    let s = start(saying(ServedModel { chat_template: None, ..model() })).await;
    let (status, body) = post(&s.url, PATH, &json!({"messages": user("x")})).await;
    assert_eq!(status, 400);
    assert!(envelope(&body).contains("no chat template; use /v1/completions"), "{body}");
    assert_eq!(post(&s.url, "/v1/completions", &json!({"prompt": "x"})).await.0, 200);
    let s = start(saying(ServedModel { chat_template: Some("{% for %}".into()), ..model() })).await;
    let (status, body) = post(&s.url, PATH, &json!({"messages": user("x")})).await;
    assert_eq!(status, 400, "{body}");
    assert!(envelope(&body).contains("chat template cannot be used"), "{body}");
}

#[tokio::test]
async fn template_variables() {
    let source = "{{ enable_thinking }} {{ reasoning_effort }} {{ extra }} {{ add_generation_prompt }}";
    let s = start(saying(ServedModel { chat_template: Some(source.into()), ..model() })).await;
    for (fields, prompt) in [
        (json!({}), "   True"),
        (
            json!({"enable_thinking": false, "reasoning_effort": "low", "add_generation_prompt": false}),
            "False low  False",
        ),
        (json!({"chat_template_kwargs": {"enable_thinking": true, "extra": [1, "a"]}}), "True  [1, 'a'] True"),
        (json!({"reasoning_effort": "none"}), "False none  True"),
    ] {
        let mut body = fields;
        body["messages"] = user("x");
        let (status, answer) = post(&s.url, PATH, &body).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(s.backend.last_prompt(), prompt);
    }
}

#[tokio::test]
async fn the_last_message_can_be_continued() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let messages = json!([{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two, "}]);
    let body = json!({"messages": messages, "continue_final_message": true});
    assert_eq!(post(&s.url, PATH, &body).await.0, 200);
    assert_eq!(s.backend.last_prompt(), "<|im_start|>user\nCount<|im_end|>\n<|im_start|>assistant\nOne, two, ");
    let mut both = body.clone();
    both["add_generation_prompt"] = true.into();
    assert_eq!(post(&s.url, PATH, &both).await.0, 400);
}

#[tokio::test]
async fn developers_are_systems_where_the_template_knows_none_and_billing_headers_go() {
    let s = start(ScriptedBackend::saying("ok")).await;
    for nonce in ["a1", "b2"] {
        let system = format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce};\nBe brief.");
        let messages = json!([{"role": "developer", "content": system}, {"role": "user", "content": "x"}]);
        assert_eq!(post(&s.url, PATH, &json!({"messages": messages})).await.0, 200);
        assert!(s.backend.last_prompt().starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nx"));
    }
}

#[tokio::test]
async fn parameters_reach_the_engine_over_the_models_defaults_over_ours() {
    let config = json!({"temperature": 0.6, "top_p": 0.95, "top_k": 20});
    let s = start(saying(ServedModel { generation_config: Arc::new(config), ..model() })).await;
    assert_eq!(post(&s.url, PATH, &json!({"messages": user("x")})).await.0, 200);
    let r = s.backend.last_request().unwrap();
    assert_eq!((r.sampling.temperature, r.sampling.top_p, r.sampling.top_k), (0.6, 0.95, 20));
    assert_eq!((r.max_tokens, r.logprobs, r.stop.len(), r.sampling.seed), (None, None, 0, None));
    let body = json!({"messages": user("x"), "temperature": 0, "top_p": 0.5, "top_k": 300, "min_p": 0.1, "seed": -1,
        "stop": "END", "max_tokens": 9, "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 2,
        "logit_bias": {"5": -100}, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
        "repetition_context_size": 30, "xtc_probability": 0.5, "xtc_threshold": 0.2, "ignore_eos": true, "hlg": {"toe": 3}});
    assert_eq!(post(&s.url, PATH, &body).await.0, 200);
    let r = s.backend.last_request().unwrap();
    let p = &r.sampling;
    assert_eq!((p.temperature, p.top_p, p.top_k, p.min_p, p.seed), (0.0, 0.5, 0, 0.1, Some(u64::MAX)));
    assert_eq!((r.max_tokens, r.logprobs, r.stop.clone(), r.ignore_eos), (Some(7), Some(2), vec!["END".into()], true));
    assert_eq!((p.logit_bias.get(&5), p.presence_penalty, p.frequency_penalty), (Some(&-100.0), 1.0, -1.0));
    assert_eq!((p.repetition_penalty, p.repetition_context_size, p.xtc_probability), (1.5, 30, 0.5));
    assert_eq!((p.xtc_threshold, p.hlg.map(|h| (h.width, h.toe))), (0.2, Some((4.0, 3.0))));
}

#[tokio::test]
async fn case_26_max_tokens_null_and_logprobs_in_both_forms() {
    let s = start(ScriptedBackend::saying("é!")).await;
    let mut body = json!({"messages": user("x"), "max_tokens": null, "logprobs": true, "top_logprobs": 2});
    let (status, whole) = post(&s.url, PATH, &body).await;
    assert_eq!(status, 200, "{whole}");
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(content.len(), 3, "the end-of-sequence token is no part of the text: {content:?}");
    assert_eq!(content[0]["bytes"], json!([0xc3]));
    assert_eq!(content[2]["token"], "!");
    assert_eq!(content[2]["logprob"], -0.5);
    let alternatives =
        json!([{"token": "!", "logprob": -0.5, "bytes": [33]}, {"token": "\"", "logprob": -1.5, "bytes": [34]}]);
    assert_eq!(content[2]["top_logprobs"], alternatives);
    body["stream"] = true.into();
    let mut streamed = Vec::new();
    for event in stream(&s.url, PATH, &body).await {
        streamed.extend(event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(streamed, content);
}

#[tokio::test]
async fn token_ids_on_request() {
    let s = start(ScriptedBackend::saying("Hé")).await;
    let mut body = json!({"messages": user("x"), "return_token_ids": true});
    let (_, whole) = post(&s.url, PATH, &body).await;
    let ids = json!([b'H', 0xc3, 0xa9, EOS]);
    assert_eq!(whole["prompt_token_ids"], json!(s.backend.last_request().unwrap().prompt));
    assert_eq!(whole["choices"][0]["token_ids"], ids);
    body["stream"] = true.into();
    let all = stream(&s.url, PATH, &body).await;
    assert_eq!(all[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert!(all[1..].iter().all(|e| e.get("prompt_token_ids").is_none()));
    let streamed: Vec<Value> =
        all.iter().flat_map(|e| e["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default()).collect();
    assert_eq!(json!(streamed), ids);
    body["return_token_ids"] = false.into();
    assert!(stream(&s.url, PATH, &body).await.iter().all(|e| e["choices"][0].get("token_ids").is_none()));
}

#[tokio::test]
async fn case_10_a_stop_string_across_tokens_never_shows() {
    let s = start(ScriptedBackend::saying("alpha beta gamma delta")).await;
    let mut body = json!({"messages": user("x"), "stop": ["beta gamma"], "stream": true});
    let all = stream(&s.url, PATH, &body).await;
    let text: String = all.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "alpha ");
    assert_eq!(all.last().unwrap()["choices"][0]["finish_reason"], "stop");
    body["stream"] = false.into();
    assert_eq!(post(&s.url, PATH, &body).await.1["choices"][0]["message"]["content"], "alpha ");
}

#[tokio::test]
async fn case_11_every_end_of_sequence_id_stops() {
    for eos in [EOS, 106] {
        let m = ServedModel { eos: vec![EOS, 106], ..model() };
        let s = start(ScriptedBackend::with_model(m, move |_| {
            vec![Step::Text("Hi".into()), Step::Token(eos), Step::Text("more".into())]
        }))
        .await;
        let (_, body) = post(&s.url, PATH, &json!({"messages": user("x"), "logprobs": true})).await;
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
        assert_eq!(body["usage"]["completion_tokens"], 3);
        assert_eq!(body["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn length_is_said() {
    let s = start(ScriptedBackend::saying("a long answer")).await;
    let (_, body) = post(&s.url, PATH, &json!({"messages": user("x"), "max_tokens": 6})).await;
    assert_eq!(body["choices"][0]["message"]["content"], "a long");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["usage"]["completion_tokens"], 6);
}

#[tokio::test]
async fn a_prompt_that_is_far_too_long_is_refused_by_its_bytes() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let text = "x".repeat(1 << 20);
    for (path, body) in [
        (PATH, json!({"messages": user(&text)})),
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/completions", json!({"prompt": text, "suffix": "b"})),
        ("/v1/completions", json!({"prompt": "a", "suffix": text})),
    ] {
        let (status, answer) = post(&s.url, path, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        let message = envelope(&answer);
        assert!(message.contains("bytes, which are") && message.contains("4096"), "{message}");
    }
}

#[tokio::test]
async fn case_24_a_prompt_beyond_the_context_names_both_numbers() {
    let s = start(ScriptedBackend::saying("ok")).await;
    for stream in [false, true] {
        let body = json!({"messages": user(&"x".repeat(5000)), "stream": stream});
        let (status, answer) = post(&s.url, PATH, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")));
        let message = envelope(&answer);
        assert!(message.contains("50") && message.contains("4096"), "{message}");
    }
}

#[tokio::test]
async fn engine_errors_have_their_status() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let missing = CoreError::Missing { file: "m/config.json".into(), expected: "a config".into() };
    let overloaded = EngineError::Overloaded { waiting: 64, limit: 64, retry_after_s: 7 };
    let late = EngineError::WaitedTooLong { waited_s: 600, retry_after_s: 30 };
    for (error, status, code, retry) in [
        (overloaded, 429, "overloaded", Some("7")),
        (late, 503, "waited_too_long", Some("30")),
        (EngineError::Loading { percent: 40 }, 503, "model_loading", Some("2")),
        (EngineError::EngineLost, 503, "engine_lost", Some("2")),
        (EngineError::ShuttingDown, 503, "shutting_down", Some("10")),
        (EngineError::Compute { message: "nan".into() }, 500, "compute_error", None),
        (EngineError::ModelUnusable(missing), 500, "model_unusable", None),
    ] {
        s.backend.refuse(Some(error.clone()));
        for stream in [false, true] {
            let request = crate::http::client().post(format!("{}{PATH}", s.url));
            let response = request.json(&json!({"messages": user("x"), "stream": stream})).send().await.unwrap();
            let given = response.headers().get("retry-after").map(|v| v.to_str().unwrap().to_owned());
            assert_eq!((response.status().as_u16(), given.as_deref()), (status, retry), "{error}");
            let body: Value = response.json().await.unwrap();
            assert_eq!((envelope(&body), &body["error"]["code"]), (error.to_string().as_str(), &json!(code)));
        }
    }
    s.backend.refuse(Some(EngineError::param("top_k", "small", 5)));
    let (status, body) = post(&s.url, PATH, &json!({"messages": user("x")})).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("top_k")));
    s.backend.refuse(None);
    let (status, body) = post(&s.url, PATH, &json!({"messages": user("x"), "model": "no-such-model"})).await;
    assert_eq!(
        (status, &body["error"]["code"], &body["error"]["param"]),
        (404, &json!("model_not_found"), &json!("model"))
    );
    assert_eq!(post(&s.url, PATH, &json!({"messages": user("x")})).await.0, 200);
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_next_request_works() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let (status, body) = post(&s.url, PATH, &json!({"messages": user("x"), "model": "panic!"})).await;
    assert_eq!((status, &body["error"]["code"]), (500, &json!("internal_error")));
    assert_eq!(post(&s.url, PATH, &json!({"messages": user("x")})).await.0, 200);
}

#[tokio::test]
async fn case_25_a_replay_of_prompt_and_answer() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let (_, first) = post(&s.url, PATH, &json!({"messages": user("x")})).await;
    let answer = first["choices"][0]["message"].clone();
    let messages = json!([{"role": "user", "content": "x"}, answer]);
    for body in [json!({"messages": messages}), json!({"messages": messages, "continue_final_message": true})] {
        assert_eq!(post(&s.url, PATH, &body).await.0, 200);
    }
}
