//! Hosts, origins, CORS, keys, body limits, health.

use crate::http::{answer, client, envelope, get, post, post_raw};
use crate::support::{start, start_with};
use hearth_core::stats::Health;
use hearth_server::testing::ScriptedBackend;
use hearth_server::{ServerConfig, StartError, bind};
use reqwest::Method;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

fn chat() -> serde_json::Value {
    json!({"messages": [{"role": "user", "content": "Hi"}]})
}

#[tokio::test]
async fn case_22_foreign_hosts_are_refused() {
    let config = ServerConfig { allowed_hosts: vec!["host.docker.internal".into()], ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    for (host, status) in [
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:1234", 200),
        ("[::1]:1234", 200),
        ("127.0.0.1", 200),
        ("host.docker.internal:8080", 200),
    ] {
        for path in ["/v1/models", "/health", "/stats"] {
            let (got, body) = answer(client().get(format!("{}{path}", s.url)).header("host", host)).await;
            assert_eq!(got, status, "{host}: {body}");
            if status == 403 {
                assert!(envelope(&body).contains(host), "{body}");
            }
        }
        let (got, _) = answer(client().post(format!("{}{CHAT}", s.url)).header("host", host).json(&chat())).await;
        assert_eq!(got, status, "{host}");
    }
    assert_eq!(s.backend.requests().len(), 4);
}

#[tokio::test]
async fn foreign_pages_cannot_post() {
    let config = ServerConfig { allowed_origins: vec!["https://app.example".into()], ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    let own = s.url.clone();
    for (origin, status) in [
        ("null", 403),
        ("https://evil.example", 403),
        ("http://127.0.0.1:1", 403),
        ("https://app.example", 200),
        (own.as_str(), 200),
    ] {
        let post = client().post(format!("{}{CHAT}", s.url)).header("origin", origin).json(&chat());
        let (got, body) = answer(post).await;
        assert_eq!(got, status, "{origin}: {body}");
        let read = client().get(format!("{}/v1/models", s.url)).header("origin", origin).send().await.unwrap();
        assert_eq!(read.status().as_u16(), 200);
        let shown = read.headers().get("access-control-allow-origin").map(|v| v.to_str().unwrap());
        assert_eq!(shown, (status == 200).then_some(origin), "a foreign page may not read it");
    }
}

#[tokio::test]
async fn case_22_a_preflight_with_sdk_headers_passes_and_the_stream_carries_cors() {
    let config = ServerConfig {
        allowed_origins: vec!["https://app.example".into()],
        api_keys: vec!["sk-1".into()],
        ..ServerConfig::default()
    };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    let headers = "authorization,content-type,x-stainless-os,x-stainless-retry-count,openai-organization,x-api-key,anthropic-version";
    let preflight = |origin: &'static str| {
        client()
            .request(Method::OPTIONS, format!("{}{CHAT}", s.url))
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", headers)
            .send()
    };
    let response = preflight("https://app.example").await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(response.headers()["access-control-allow-origin"], "https://app.example");
    assert_eq!(response.headers()["access-control-allow-headers"], headers);
    assert!(response.headers()["access-control-allow-methods"].to_str().unwrap().contains("POST"));
    assert_eq!(preflight("https://evil.example").await.unwrap().status().as_u16(), 403);
    let mut body = chat();
    body["stream"] = true.into();
    let request = client().post(format!("{}{CHAT}", s.url)).header("origin", "https://app.example").json(&body);
    let response = request.bearer_auth("sk-1").send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(response.headers()["access-control-allow-origin"], "https://app.example");
    let request = client().post(format!("{}{CHAT}", s.url)).header("origin", "https://app.example").json(&body);
    let refused = request.send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 401);
    assert_eq!(refused.headers()["access-control-allow-origin"], "https://app.example", "a page can read why");
}

#[tokio::test]
async fn keys_are_required_where_they_are_on() {
    let config = ServerConfig { api_keys: vec!["sk-1".into(), "sk-2".into()], ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    let with =
        |name: &'static str, value: &'static str| client().get(format!("{}/v1/models", s.url)).header(name, value);
    assert_eq!(answer(with("authorization", "Bearer sk-2")).await.0, 200);
    assert_eq!(answer(with("x-api-key", "sk-1")).await.0, 200);
    for request in [with("authorization", "Bearer sk-3"), with("authorization", "Basic sk-1"), with("x-api-key", "")] {
        let (status, body) = answer(request).await;
        assert_eq!((status, &body["error"]["code"]), (401, &json!("invalid_api_key")));
        envelope(&body);
    }
    assert_eq!(post(&s.url, CHAT, &chat()).await.0, 401);
    assert_eq!(get(&s.url, "/nowhere").await.0, 401, "nothing shows what is here");
    assert_eq!(get(&s.url, "/health").await.0, 200);
    assert!(s.backend.requests().is_empty());
    let off = start(ScriptedBackend::saying("ok")).await;
    let request = client().post(format!("{}{CHAT}", off.url)).bearer_auth("whatever").json(&chat());
    assert_eq!(answer(request).await.0, 200, "any key will do when keys are off");
}

#[tokio::test]
async fn the_admin_route_takes_only_its_own_token() {
    let config =
        ServerConfig { api_keys: vec!["sk-1".into()], admin_token: Some("adm".into()), ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    let path = format!("{}/api/hearth/shutdown", s.url);
    assert_eq!(answer(client().post(&path)).await.0, 401);
    assert_eq!(answer(client().post(&path).bearer_auth("sk-1")).await.0, 401);
    let off = start(ScriptedBackend::saying("ok")).await;
    let (status, body) = answer(client().post(format!("{}/api/hearth/shutdown", off.url)).bearer_auth("")).await;
    assert_eq!(status, 403, "{body}");
    assert_eq!(get(&off.url, "/health").await.0, 200);
    assert_eq!(answer(client().post(&path).bearer_auth("adm")).await.0, 200);
}

#[tokio::test]
async fn beyond_loopback_a_key_is_required() {
    let open =
        |keys: Vec<String>| ServerConfig { host: "0.0.0.0".into(), port: 0, api_keys: keys, ..ServerConfig::default() };
    assert!(matches!(bind(open(vec![])).await, Err(StartError::KeyRequired { .. })));
    assert!(matches!(bind(open(vec![" ".into()])).await, Err(StartError::EmptyKey)));
    let bound = bind(ServerConfig { port: 0, ..ServerConfig::default() }).await.unwrap();
    let port = bound.local_addr().port();
    let taken = bind(ServerConfig { port, ..ServerConfig::default() }).await.unwrap_err();
    assert!(matches!(taken, StartError::InUse { .. }), "{taken}");
    assert!(taken.to_string().starts_with(&format!("port {port} on 127.0.0.1 is in use")), "{taken}");
    let nowhere = ServerConfig { host: "no such host".into(), ..ServerConfig::default() };
    assert!(matches!(bind(nowhere).await, Err(StartError::Host { .. })));
}

#[tokio::test]
async fn case_21_an_oversize_body_is_a_413() {
    let config = ServerConfig { body_limit: 100_000, ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    for route in [CHAT, "/v1/completions"] {
        for size in [100_001, 399_000] {
            let (status, body) = post_raw(&s.url, route, vec![b' '; size], Some("application/json")).await;
            assert_eq!((status, &body["error"]["code"]), (413, &json!("body_too_large")));
            assert!(envelope(&body).contains("100000"), "{body}");
        }
    }
    let mut body = chat();
    body["user"] = "x".repeat(90_000).into();
    assert_eq!(post(&s.url, CHAT, &body).await.0, 200);
}

#[tokio::test]
async fn case_26_health_is_503_until_the_model_is_ready() {
    let s = start(ScriptedBackend::saying("ok")).await;
    s.backend.set_health(Health::Loading { model: "m".into(), percent: 40 });
    let (status, body) = get(&s.url, "/health").await;
    assert_eq!((status, body), (503, json!({"status": "loading", "model": "m", "percent": 40})));
    s.backend.set_health(Health::Empty);
    assert_eq!(get(&s.url, "/health").await, (503, json!({"status": "empty"})));
    s.backend.set_health(Health::Failed { message: "why".into() });
    assert_eq!(get(&s.url, "/health").await, (503, json!({"status": "failed", "message": "why"})));
    s.backend.set_health(Health::Ready { model: "m".into() });
    assert_eq!(get(&s.url, "/health").await, (200, json!({"status": "ready", "model": "m"})));
    let head = client().head(format!("{}/health", s.url)).send().await.unwrap();
    assert_eq!(head.status().as_u16(), 200);
    let (status, stats) = get(&s.url, "/stats").await;
    assert_eq!((status, &stats["version"], &stats["max_rows"]), (200, &json!(1), &json!(8)));
}
