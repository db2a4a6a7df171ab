//! A plain HTTP client for the API: posts, gets, streams, and checks of their form.

use serde_json::Value;
use std::time::Duration;

/// A client that goes straight to the server.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().unwrap()
}

/// Posts JSON and reads JSON.
pub async fn post(base: &str, path: &str, body: &Value) -> (u16, Value) {
    post_raw(base, path, body.to_string().into_bytes(), Some("application/json")).await
}

/// Posts bytes and reads JSON.
pub async fn post_raw(base: &str, path: &str, body: Vec<u8>, content_type: Option<&str>) -> (u16, Value) {
    let mut request = client().post(format!("{base}{path}")).body(body);
    if let Some(content_type) = content_type {
        request = request.header("content-type", content_type);
    }
    answer(request).await
}

/// Gets JSON.
pub async fn get(base: &str, path: &str) -> (u16, Value) {
    answer(client().get(format!("{base}{path}"))).await
}

/// Sends a request; an answer that is not JSON fails the test with its text.
pub async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{status}: {e}: {text:?}"));
    (status, value)
}

/// Posts a request for a stream and returns its text, whole.
pub async fn stream_text(base: &str, path: &str, body: &Value) -> String {
    let response = client().post(format!("{base}{path}")).json(body).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-cache");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    response.text().await.unwrap()
}

/// The JSON events of a stream that ends with `[DONE]`; every line's form is checked.
pub fn events(text: &str) -> Vec<Value> {
    let mut lines: Vec<&str> = Vec::new();
    for block in text.split_terminator("\n\n") {
        assert!(!block.contains('\n') && !block.contains('\r'), "one line an event: {block:?}");
        match block.strip_prefix("data: ") {
            Some(data) => lines.push(data),
            None => assert_eq!(block, ": ping", "neither data nor a ping"),
        }
    }
    assert_eq!(lines.pop(), Some("[DONE]"), "{text}");
    lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Posts a request for a stream and returns its events.
pub async fn stream(base: &str, path: &str, body: &Value) -> Vec<Value> {
    events(&stream_text(base, path, body).await)
}

/// Checks the error envelope and returns its message.
pub fn envelope(value: &Value) -> &str {
    let error = value["error"].as_object().unwrap_or_else(|| panic!("no error envelope: {value}"));
    for key in ["message", "type", "param", "code"] {
        assert!(error.contains_key(key), "no {key}: {value}");
    }
    assert!(error["type"].is_string() && (error["param"].is_null() || error["param"].is_string()), "{value}");
    error["message"].as_str().filter(|m| !m.is_empty()).unwrap_or_else(|| panic!("no message: {value}"))
}
