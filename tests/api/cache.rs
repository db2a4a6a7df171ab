//! What the prompt cache needs of the server: stable ids, stable beginnings, figures, and the admin's routes.

use crate::http::{answer, client, envelope, get, post, stream};
use crate::support::{Server, start, start_with};
use hearth_core::backend::ServedModel;
use hearth_core::error::EngineError;
use hearth_core::stats::{CacheFlush, CacheStats, RamCacheStats, SsdCacheStats, SsdState};
use hearth_server::ServerConfig;
use hearth_server::testing::{EOS, MERGED, ScriptedBackend, Step, merging_tokenizer, model};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
/// "ab" as two tokens: the tokenizer makes [`MERGED`] of it.
const AB: [u32; 2] = [97, 98];
const IM_END: u32 = 259;

/// A model whose tokenizer has one token for "ab".
fn merging() -> ServedModel {
    let tokenizer = Arc::new(merging_tokenizer(false, &[("a", "b")]));
    ServedModel { tokenizer, eos: vec![EOS, IM_END], ..model() }
}

/// A server that answers "ab " in three tokens, and then ends; the first time it does what `then` says before.
async fn saying_ab(then: Option<Step>) -> Server {
    let then = Mutex::new(then);
    let answer = move || {
        let then = then.lock().unwrap().take();
        AB.into_iter().chain([32]).map(Step::Token).chain(then).collect()
    };
    start(ScriptedBackend::with_model(merging(), move |_| answer())).await
}

fn prompts(server: &Server) -> Vec<Vec<u32>> {
    server.backend.requests().into_iter().map(|r| r.prompt).collect()
}

/// The answer's text and the prompt's ids that the response shows.
async fn ask(server: &Server, path: &str, body: &Value, streamed: bool) -> (String, Vec<u32>) {
    let mut body = body.clone();
    body["return_token_ids"] = true.into();
    body["stream"] = streamed.into();
    let events = match streamed {
        true => stream(&server.url, path, &body).await,
        false => {
            let (status, whole) = post(&server.url, path, &body).await;
            assert_eq!(status, 200, "{whole}");
            vec![whole]
        }
    };
    let ids = serde_json::from_value(events[0]["prompt_token_ids"].clone()).unwrap();
    let text = events.iter().filter_map(|e| {
        let choice = &e["choices"][0];
        [&choice["text"], &choice["delta"]["content"], &choice["message"]["content"]]
            .into_iter()
            .find_map(Value::as_str)
    });
    (text.collect(), ids)
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

#[tokio::test]
async fn generated_ids_stay_what_they_are_in_the_next_turns() {
    for (streamed, end) in [(false, None), (true, None), (false, Some(Step::Token(IM_END)))] {
        let s = saying_ab(end).await;
        let mut messages = vec![message("user", "ab")];
        let mut before: Vec<u32> = Vec::new();
        for _ in 0..4 {
            let (text, shown) = ask(&s, CHAT, &json!({"messages": messages}), streamed).await;
            assert_eq!((text.as_str(), Some(&shown)), ("ab ", prompts(&s).last()));
            assert!(shown.starts_with(&before), "{before:?} {shown:?}");
            before = [&shown[..], &AB, &[32]].concat();
            messages.extend([message("assistant", &text), message("user", "ab")]);
        }
        assert_eq!(before.iter().filter(|&&id| id == MERGED).count(), 4, "the questions, as the tokenizer has them");
        assert_eq!(before.windows(3).filter(|w| w == &[97, 98, 32]).count(), 4, "the answers, as they were generated");
        assert!(!before.contains(&EOS) && before.iter().filter(|&&id| id == IM_END).count() == 7, "{before:?}");
    }
}

#[tokio::test]
async fn completions_are_continued_with_their_own_ids() {
    for streamed in [false, true] {
        let s = saying_ab(None).await;
        let (text, first) = ask(&s, TEXT, &json!({"prompt": "xab"}), streamed).await;
        assert_eq!(first, [120, MERGED]);
        let (_, replay) = ask(&s, TEXT, &json!({"prompt": format!("xab{text}")}), streamed).await;
        assert_eq!(replay, [120, MERGED, 97, 98, 32], "prompt and answer, and nothing between them and the next");
        let (_, third) = ask(&s, TEXT, &json!({"prompt": format!("xab{text}{text}")}), streamed).await;
        assert_eq!(third, [120, MERGED, 97, 98, 32, 97, 98, 32]);
        let (_, edited) = ask(&s, TEXT, &json!({"prompt": "xabab"}), streamed).await;
        assert_eq!(edited, [120, MERGED, MERGED]);
    }
    // Several prompts at once: each has its own.
    let s = saying_ab(None).await;
    for _ in 0..2 {
        assert_eq!(post(&s.url, TEXT, &json!({"prompt": ["x", "y"]})).await.0, 200);
    }
    assert_eq!(post(&s.url, TEXT, &json!({"prompt": ["yab ", "xab ", "zab "]})).await.0, 200);
    assert_eq!(prompts(&s)[4..], [vec![121, 97, 98, 32], vec![120, 97, 98, 32], vec![122, MERGED, 32]]);
}

#[tokio::test]
async fn answers_that_are_not_their_ids_text_are_tokenized_anew() {
    let turn =
        |answer: &str| json!({"messages": [message("user", "x"), message("assistant", answer), message("user", "y")]});
    for (then, fields, answer) in [
        (Some(Step::Token(99)), json!({"stop": "c"}), "ab "),
        (Some(Step::Token(EOS)), json!({"ignore_eos": true, "max_tokens": 4}), "ab "),
        (Some(Step::Token(0xc3)), json!({"max_tokens": 4}), "ab \u{fffd}"),
        (Some(Step::Fail(EngineError::Compute { message: "nan".into() })), json!({}), "ab "),
        (Some(Step::Cancel), json!({}), "ab "),
    ] {
        let s = saying_ab(then).await;
        let mut body = fields;
        body["messages"] = json!([message("user", "x")]);
        post(&s.url, CHAT, &body).await;
        let ids = ask(&s, CHAT, &turn(answer), false).await.1;
        // Ending with an end is no oddity.
        let kept = body["ignore_eos"] == true;
        assert_eq!(ids.contains(&MERGED), !kept, "{body}");
    }
}

#[tokio::test]
async fn stable_beginnings_reach_the_engine() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let system = "You are brief. ".repeat(20);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let chat = |user: &str| json!({"messages": [message("system", &system), message("user", user)], "tools": tools});
    assert_eq!(post(&s.url, CHAT, &chat("What?")).await.0, 200);
    let first = s.backend.last_request().unwrap();
    let end = format!("<|im_start|>system\n{system}<|im_end|>\n");
    let of = |text: &str| model().tokenizer.encode(text, false).unwrap().len();
    assert_eq!(first.boundaries, [of(&end), of(&format!("{end}<|im_start|>user\nWhat?<|im_end|>\n"))]);
    assert_eq!(post(&s.url, CHAT, &chat("Another question?")).await.0, 200);
    let other = s.backend.last_request().unwrap();
    assert_eq!(other.boundaries[0], first.boundaries[0]);
    assert_eq!(other.prompt[..other.boundaries[0]], first.prompt[..first.boundaries[0]]);
    // What is short is computed anew, and a completion has no turns.
    assert_eq!(post(&s.url, CHAT, &json!({"messages": [message("user", "x")]})).await.0, 200);
    assert!(s.backend.last_request().unwrap().boundaries.is_empty());
    assert_eq!(post(&s.url, TEXT, &json!({"prompt": end})).await.0, 200);
    assert!(s.backend.last_request().unwrap().boundaries.is_empty());
}

#[tokio::test]
async fn case_27_a_clients_nonce_does_not_change_the_prompt() {
    let header =
        |nonce: &str| format!("x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch={nonce};");
    let text = |text: &str| json!({"type": "text", "text": text});
    let forms: [fn(String) -> Value; 2] = [
        |header| json!(format!("{header}\nBe brief.\n  And kind.")),
        |header| json!([{"type": "text", "text": header}, {"type": "text", "text": "Be brief.\n  And kind."}]),
    ];
    for keep_client_headers in [false, true] {
        let config = ServerConfig { keep_client_headers, ..ServerConfig::default() };
        for form in forms {
            let s = start_with(ScriptedBackend::saying("ok"), config.clone()).await;
            for nonce in ["a1b2c", "99999"] {
                let messages = json!([{"role": "system", "content": form(header(nonce))}, message("user", "x")]);
                assert_eq!(post(&s.url, CHAT, &json!({"messages": messages})).await.0, 200);
            }
            let sent = prompts(&s);
            assert_eq!(sent[0] == sent[1], !keep_client_headers);
            let expected = match keep_client_headers {
                false => "<|im_start|>system\nBe brief.\n  And kind.<|im_end|>\n<|im_start|>user\nx<|im_end|>\n",
                true => {
                    "<|im_start|>system\nx-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=99999;"
                }
            };
            assert!(s.backend.last_prompt().starts_with(expected), "{}", s.backend.last_prompt());
        }
    }
    // Anywhere else, and by any other name, it is a text like others.
    let s = start(ScriptedBackend::saying("ok")).await;
    let line = format!("{}\nx", header("a1"));
    for messages in [
        json!([message("user", &line)]),
        json!([message("system", &format!(" {line}"))]),
        json!([{"role": "system", "content": [text("Be brief. "), text(&line)]}]),
        json!([message("system", "Be brief."), message("system", &line)]),
        json!([message("system", &line.replace("anthropic", "other"))]),
    ] {
        assert_eq!(post(&s.url, CHAT, &json!({"messages": messages})).await.0, 200);
        assert!(s.backend.last_prompt().contains("-billing-header: cc_version=2.1.37"), "{messages}");
    }
}

#[tokio::test]
async fn cached_tokens_are_in_every_response() {
    let s = start(ScriptedBackend::new(|r| vec![Step::Admit(r.prompt.len() / 2), Step::Text("ok".into())])).await;
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].clone();
    for (path, body, expected) in [
        (
            CHAT,
            json!({"messages": [message("user", "x")]}),
            model().tokenizer.encode("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", false).unwrap().len()
                / 2,
        ),
        (TEXT, json!({"prompt": "abcdef"}), 3),
        (TEXT, json!({"prompt": ["abcd", "abcdef", "ab"]}), 6),
        (TEXT, json!({"prompt": "abcdef", "max_tokens": 0}), 0),
    ] {
        let (status, whole) = post(&s.url, path, &body).await;
        assert_eq!((status, cached(&whole["usage"])), (200, json!(expected)), "{body}");
        let mut body = body;
        body["stream"] = true.into();
        assert!(stream(&s.url, path, &body).await.iter().all(|e| e.get("usage").is_none()));
        body["stream_options"] = json!({"include_usage": true});
        let events = stream(&s.url, path, &body).await;
        let last = events.last().unwrap();
        assert_eq!((&last["choices"], cached(&last["usage"])), (&json!([]), json!(expected)), "{body}");
        assert_eq!(last["usage"], whole["usage"]);
    }
}

#[tokio::test]
async fn figures_of_both_tiers() {
    let config = ServerConfig { admin_token: Some("admin".into()), ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    let ram =
        RamCacheStats { cap: 1000, bytes: 600, entries: 2, hits: 5, reused_tokens: 700, ..RamCacheStats::default() };
    let dir = Some("/cache".into());
    let ssd = SsdCacheStats { state: SsdState::Ready, dir, files: 3, written: 42, ..SsdCacheStats::default() };
    s.backend.set_cache(CacheStats { ram, ssd }, CacheFlush::default());
    let (_, stats) = get(&s.url, "/stats").await;
    let (status, cache) = answer(client().get(format!("{}/api/hearth/cache", s.url)).bearer_auth("admin")).await;
    assert_eq!((status, &cache), (200, &stats["cache"]));
    assert_eq!((&cache["ram"]["hits"], &cache["ram"]["reused_tokens"]), (&json!(5), &json!(700)));
    assert_eq!((&cache["ssd"]["state"], &cache["ssd"]["dir"]), (&json!("ready"), &json!("/cache")));
    assert_eq!((&cache["ssd"]["files"], &cache["ssd"]["written"]), (&json!(3), &json!(42)));
}

#[tokio::test]
async fn flush_and_clear_are_the_admins() {
    let key =
        ServerConfig { api_keys: vec!["key".into()], admin_token: Some("admin".into()), ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), key).await;
    let failed = vec!["1 entry of 12 MB: the disk is full".to_owned()];
    s.backend.set_cache(CacheStats::default(), CacheFlush { entries: 2, bytes: 10, failed });
    let flushed = json!({"entries": 2, "bytes": 10, "failed": ["1 entry of 12 MB: the disk is full"]});
    let cleared = json!({"entries": 3, "bytes": 4096, "files": 2, "file_bytes": 2048});
    for (path, expected) in [("flush", flushed), ("clear", cleared)] {
        let url = format!("{}/api/hearth/cache/{path}", s.url);
        assert_eq!(answer(client().post(&url).bearer_auth("admin")).await, (200, expected));
        for wrong in [client().post(&url), client().post(&url).bearer_auth("key")] {
            let (status, body) = answer(wrong).await;
            assert_eq!((status, &body["error"]["code"]), (401, &json!("invalid_api_key")));
        }
        let (status, body) = answer(client().get(&url).bearer_auth("admin")).await;
        assert_eq!((status, &body["error"]["code"]), (405, &json!("method_not_allowed")));
    }
    let (status, body) = answer(client().get(format!("{}/api/hearth/cache", s.url)).bearer_auth("key")).await;
    assert_eq!((status, envelope(&body).is_empty()), (401, false));
    let open = start(ScriptedBackend::saying("ok")).await;
    for path in ["flush", "clear"] {
        let (status, _) = post(&open.url, &format!("/api/hearth/cache/{path}"), &json!({})).await;
        assert_eq!(status, 403, "without an admin token there is no admin");
    }
}
