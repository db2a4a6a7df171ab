//! Limits over HTTP, the end of single requests, and how refusals for want of memory look.

use crate::http::{answer, client, get, post, stream_text};
use crate::support::{Server, eventually, start, start_with};
use hearth_core::EngineError;
use hearth_core::stats::{CacheFlush, CacheStats, RamCacheStats};
use hearth_server::ServerConfig;
use hearth_server::testing::{PER_TOKEN, ScriptedBackend, Step, TAKEN};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

async fn with_admin(backend: ScriptedBackend) -> Server {
    start_with(backend, ServerConfig { admin_token: Some("admin".into()), ..ServerConfig::default() }).await
}

async fn send(s: &Server, method: reqwest::Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut request = client().request(method, format!("{}/api/hearth/{path}", s.url)).bearer_auth("admin");
    if let Some(body) = body {
        request = request.json(&body);
    }
    answer(request).await
}

#[tokio::test]
async fn limits_are_shown_tried_and_changed() {
    let s = with_admin(ScriptedBackend::saying("ok")).await;
    let ram = RamCacheStats { bytes: 5000, entries: 1, ..RamCacheStats::default() };
    s.backend.set_cache(CacheStats { ram, ..CacheStats::default() }, CacheFlush::default());
    let before = json!({"budget": 1_000_000_000, "cache_ram": 1 << 20, "cache_ssd": 0, "context": 4096, "max_rows": 8});
    let get = || send(&s, reqwest::Method::GET, "limits", None);
    assert_eq!(get().await, (200, before.clone()));
    let less = json!({"budget": TAKEN + 100 * PER_TOKEN, "cache_ram": 1000});
    let (status, preview) = send(&s, reqwest::Method::POST, "limits/preview", Some(less.clone())).await;
    let expected =
        json!({"fits": true, "short_by": 0, "largest_context": 100, "demoted_entries": 1, "demoted_bytes": 4000});
    assert_eq!((status, preview), (200, expected));
    assert_eq!(get().await.1, before, "a preview changes nothing");
    let (status, all) = send(&s, reqwest::Method::PUT, "limits", Some(less)).await;
    assert_eq!((status, &all["budget"], &all["cache_ram"]), (200, &json!(TAKEN + 100 * PER_TOKEN), &json!(1000)));
    assert_eq!(get().await.1, all);
    // The loaded model would not fit: by how much is said, and nothing is changed.
    let little = json!({"budget": TAKEN - 7, "max_rows": 1});
    let (status, preview) = send(&s, reqwest::Method::POST, "limits/preview", Some(little.clone())).await;
    assert_eq!((status, &preview["fits"], &preview["short_by"]), (200, &json!(false), &json!(7)));
    let (status, refusal) = send(&s, reqwest::Method::PUT, "limits", Some(little)).await;
    assert_eq!((status, &refusal["error"]["param"]), (400, &json!("budget")));
    assert_eq!(get().await.1, all);
    for wrong in [json!({"budget": "1GB"}), json!({"size": 5}), json!({"context": -1}), json!({"max_rows": 0})] {
        for (method, path) in [(reqwest::Method::PUT, "limits"), (reqwest::Method::POST, "limits/preview")] {
            let (status, refusal) = send(&s, method, path, Some(wrong.clone())).await;
            let name = wrong.as_object().unwrap().keys().next().unwrap();
            assert_eq!((status, &refusal["error"]["param"]), (400, &json!(name)), "{wrong}");
        }
    }
}

#[tokio::test]
async fn limits_are_the_admins() {
    let s = with_admin(ScriptedBackend::saying("ok")).await;
    for path in ["limits", "limits/preview", "requests/1/cancel"] {
        let (status, _) = post(&s.url, &format!("/api/hearth/{path}"), &json!({})).await;
        assert_eq!(status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_request_is_ended_by_its_number() {
    let s = with_admin(ScriptedBackend::new(|_| vec![Step::Text("Hel".into()), Step::Hang])).await;
    let body = json!({"messages": [message("user", "x")]});
    let waits = tokio::spawn({
        let (url, body) = (s.url.clone(), body.clone());
        async move { post(&url, CHAT, &body).await }
    });
    eventually("the row", || s.backend.active() == 1).await;
    for id in ["99", "x", "-1"] {
        let (status, refusal) = send(&s, reqwest::Method::POST, &format!("requests/{id}/cancel"), None).await;
        assert_eq!((status, &refusal["error"]["code"]), (404, &json!("not_running")), "{id}");
    }
    let first = s.backend.first_id();
    let (status, done) = send(&s, reqwest::Method::POST, &format!("requests/{first}/cancel"), None).await;
    assert_eq!((status, done), (200, json!({"id": first, "cancelled": true})));
    let (status, refusal) = waits.await.unwrap();
    assert_eq!((status, &refusal["error"]["code"]), (499, &json!("cancelled")));
    eventually("its end", || s.backend.active() == 0).await;
    let (status, _) = send(&s, reqwest::Method::POST, &format!("requests/{first}/cancel"), None).await;
    assert_eq!(status, 404, "it is gone");
}

#[tokio::test]
async fn no_memory_now_is_not_a_long_prompt() {
    let now =
        EngineError::InsufficientMemory { needed: 2_000_000, free: 1_999_999, budget: 5_000_000, retry_after_s: 7 };
    let never = EngineError::PromptBeyondMemory { prompt: 900, limit: 512, needed: 6_000_000, budget: 5_000_000 };
    let s = start(ScriptedBackend::saying("ok")).await;
    let body = json!({"messages": [message("user", "x")]});
    s.backend.refuse(Some(now.clone()));
    let response = client().post(format!("{}{CHAT}", s.url)).json(&body).send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &"7".parse::<reqwest::header::HeaderValue>().unwrap())
    );
    let refusal: Value = response.json().await.unwrap();
    assert_eq!(refusal["error"]["code"], "insufficient_memory");
    let said = refusal["error"]["message"].as_str().unwrap();
    assert!(!said.contains("context") && said.contains("2000.000") && said.contains("1999.999"), "{said}");
    s.backend.refuse(Some(never));
    let (status, refusal) = post(&s.url, CHAT, &body).await;
    assert_eq!((status, &refusal["error"]["code"]), (400, &json!("context_length_exceeded")));
    let said = refusal["error"]["message"].as_str().unwrap();
    assert!(said.contains("900 tokens") && said.contains("512") && said.contains("--memory-budget"), "{said}");
    // One that had waited: in a stream it is an event.
    s.backend.refuse(None);
    let late = start(ScriptedBackend::new(move |_| vec![Step::Fail(now.clone())])).await;
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let text = stream_text(&late.url, CHAT, &streamed).await;
    let last = text.trim_end().rsplit("\n\n").next().and_then(|event| event.strip_prefix("data: ")).unwrap();
    let error: Value = serde_json::from_str(last).unwrap();
    assert_eq!(error["error"]["code"], "insufficient_memory", "{text}");
    assert_eq!(get(&s.url, "/health").await.0, 200);
}
