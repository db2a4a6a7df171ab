//! Completions: prompts in all their forms, several at once, echo, suffix, the older logprobs.

use crate::http::{envelope, post, stream};
use crate::support::start;
use hearth_core::backend::ServedModel;
use hearth_server::testing::{BOS, EOS, ScriptedBackend, Step, model, tokenizer};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Barrier;

const PATH: &str = "/v1/completions";

fn without_fim() -> ServedModel {
    let vocab: serde_json::Map<String, Value> =
        ('a'..='z').zip(0u32..).map(|(c, i)| (c.to_string(), i.into())).collect();
    let json = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    let plain = hearth_core::tokenizer::Tokenizer::from_json(json.to_string().as_bytes(), "t.json".as_ref()).unwrap();
    ServedModel { tokenizer: Arc::new(plain), ..model() }
}

#[tokio::test]
async fn a_prompt_in_all_its_forms() {
    let s = start(ScriptedBackend::saying(" there")).await;
    for (prompt, ids) in [
        (json!("Hi"), vec![vec![72, 105]]),
        (json!(["Hi"]), vec![vec![72, 105]]),
        (json!(["Hi", "Ho"]), vec![vec![72, 105], vec![72, 111]]),
        (json!([72, 105]), vec![vec![72, 105]]),
        (json!([[72], [105, 299]]), vec![vec![72], vec![105, 299]]),
    ] {
        let before = s.backend.requests().len();
        let (status, body) = post(&s.url, PATH, &json!({"prompt": prompt, "return_token_ids": true})).await;
        assert_eq!(status, 200, "{body}");
        let sent: Vec<Vec<u32>> = s.backend.requests()[before..].iter().map(|r| r.prompt.clone()).collect();
        assert_eq!(sent, ids);
        let choices = body["choices"].as_array().unwrap();
        assert_eq!(choices.len(), ids.len());
        for (i, choice) in choices.iter().enumerate() {
            assert_eq!((&choice["index"], &choice["text"]), (&json!(i), &json!(" there")), "case 26: the space stays");
            assert_eq!((&choice["finish_reason"], &choice["prompt_token_ids"]), (&json!("stop"), &json!(ids[i])));
            assert_eq!(choice["token_ids"], json!([32, 116, 104, 101, 114, 101, EOS]));
        }
        assert_eq!(body["usage"]["prompt_tokens"], ids.iter().map(Vec::len).sum::<usize>());
        assert_eq!(body["usage"]["completion_tokens"], 7 * ids.len());
    }
    assert_eq!(s.backend.last_request().unwrap().max_tokens, Some(512), "the default");
}

#[tokio::test]
async fn case_25_an_empty_prompt_and_ids_beyond_the_vocabulary() {
    let s = start(ScriptedBackend::saying("ok")).await;
    for (prompt, part) in [
        (json!(""), "`prompt` is empty"),
        (json!(["a", ""]), "`prompt` is empty"),
        (json!([300]), "made of token ids below 300; it is 300"),
        (json!([[1], [4000000000u32]]), "made of token ids below 300; it is 4000000000"),
    ] {
        let (status, body) = post(&s.url, PATH, &json!({"prompt": prompt})).await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!("prompt")));
        assert!(envelope(&body).contains(part), "{body}");
    }
    assert_eq!(post(&s.url, PATH, &json!({"prompt": "a"})).await.0, 200);
    assert_eq!(s.backend.requests().len(), 1, "a batch with one bad prompt runs none of it");
}

#[tokio::test]
async fn the_beginning_of_text_is_there_once() {
    let m = ServedModel { tokenizer: Arc::new(tokenizer(true)), ..model() };
    let s = start(ScriptedBackend::with_model(m, |_| vec![Step::Text("ok".into())])).await;
    for (prompt, ids) in [("", vec![BOS]), ("a", vec![BOS, 97]), ("<s>a", vec![BOS, 97])] {
        assert_eq!(post(&s.url, PATH, &json!({"prompt": prompt})).await.0, 200);
        assert_eq!(s.backend.last_request().unwrap().prompt, ids);
    }
}

#[tokio::test]
async fn several_prompts_run_together_and_stream_together() {
    // No row goes on before all of them run: one after the other they would never end.
    let all_three = Arc::new(Barrier::new(3));
    let s = start(ScriptedBackend::new(move |r| {
        vec![Step::Meet(all_three.clone()), Step::Text(format!("{}!", r.prompt[0]))]
    }))
    .await;
    let body = json!({"prompt": ["a", "b", "c"], "stream": true, "stream_options": {"include_usage": true}});
    let all = stream(&s.url, PATH, &body).await;
    for (i, text) in ["97!", "98!", "99!"].into_iter().enumerate() {
        let own: Vec<&Value> = all.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == i).collect();
        assert_eq!(own.iter().filter_map(|c| c["text"].as_str()).collect::<String>(), text);
        assert_eq!(own.iter().filter(|c| !c["finish_reason"].is_null()).count(), 1);
        assert_eq!(own.last().unwrap()["finish_reason"], "stop");
    }
    assert_eq!(all.last().unwrap()["usage"]["completion_tokens"], 4 + 4 + 4);
    assert_eq!(all.iter().filter(|e| e["choices"] == json!([])).count(), 1);
}

#[tokio::test]
async fn echo_comes_first() {
    let s = start(ScriptedBackend::saying(" there")).await;
    for prompt in [json!("Hé"), json!([72, 0xc3, 0xa9, EOS])] {
        let mut body = json!({"prompt": prompt, "echo": true});
        assert_eq!(post(&s.url, PATH, &body).await.1["choices"][0]["text"], "Hé there");
        body["stream"] = true.into();
        let all = stream(&s.url, PATH, &body).await;
        assert_eq!(all[0]["choices"][0]["text"], "Hé");
        let text: String = all.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, "Hé there");
    }
    let (status, body) = post(&s.url, PATH, &json!({"prompt": "a", "echo": true, "logprobs": 1})).await;
    assert_eq!((status, &body["error"]["code"]), (400, &json!("unsupported")));
}

#[tokio::test]
async fn nothing_to_generate() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let mut body = json!({"prompt": ["ab", "c"], "max_tokens": 0, "echo": true});
    let (status, whole) = post(&s.url, PATH, &body).await;
    assert_eq!(status, 200);
    assert_eq!(whole["choices"][1]["text"], "c");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!((&whole["usage"]["prompt_tokens"], &whole["usage"]["completion_tokens"]), (&json!(3), &json!(0)));
    body["stream"] = true.into();
    let all = stream(&s.url, PATH, &body).await;
    assert_eq!(all.iter().filter(|e| e["choices"][0]["finish_reason"] == "length").count(), 2);
    assert!(s.backend.requests().is_empty());
    let (status, long) = post(&s.url, PATH, &json!({"prompt": "x".repeat(4096), "max_tokens": 0})).await;
    assert_eq!((status, &long["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[tokio::test]
async fn a_suffix_needs_fill_in_the_middle() {
    let s = start(ScriptedBackend::saying("ok")).await;
    assert_eq!(post(&s.url, PATH, &json!({"prompt": "a", "suffix": "b"})).await.0, 200);
    assert_eq!(s.backend.last_prompt(), "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>");
    let s = start(ScriptedBackend::with_model(without_fim(), |_| vec![Step::Token(1)])).await;
    let (status, body) = post(&s.url, PATH, &json!({"prompt": "a", "suffix": "b"})).await;
    assert_eq!(
        (status, &body["error"]["param"], &body["error"]["code"]),
        (400, &json!("suffix"), &json!("unsupported"))
    );
    assert!(envelope(&body).contains("no fill-in-the-middle"), "{body}");
    assert_eq!(post(&s.url, PATH, &json!({"prompt": "a", "suffix": ""})).await.0, 200);
}

#[tokio::test]
async fn case_26_the_older_logprobs_whole_and_streamed() {
    let s = start(ScriptedBackend::saying("aé!")).await;
    let mut body = json!({"prompt": "x", "logprobs": 2});
    let (_, whole) = post(&s.url, PATH, &body).await;
    let l = &whole["choices"][0]["logprobs"];
    assert_eq!(l["tokens"], json!(["a", "\u{fffd}", "\u{fffd}", "!"]));
    assert_eq!(l["token_logprobs"], json!([-0.5, -0.5, -0.5, -0.5]));
    assert_eq!(l["text_offset"], json!([0, 1, 2, 2]), "in characters; a character counts where it begins");
    assert_eq!(l["top_logprobs"][0], json!({"a": -0.5, "b": -1.5}));
    body["stream"] = true.into();
    let mut joined: serde_json::Map<String, Value> = serde_json::Map::new();
    for event in stream(&s.url, PATH, &body).await {
        for (key, list) in event["choices"][0]["logprobs"].as_object().into_iter().flatten() {
            let all = joined.entry(key.clone()).or_insert_with(|| json!([])).as_array_mut().unwrap();
            all.extend(list.as_array().unwrap().iter().cloned());
        }
    }
    assert_eq!(&json!(joined), l);
    let (_, zero) = post(&s.url, PATH, &json!({"prompt": "x", "logprobs": 0})).await;
    assert_eq!(zero["choices"][0]["logprobs"]["top_logprobs"][0], json!({"a": -0.5}));
}
