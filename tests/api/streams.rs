//! Streams over time: pings, when headers go out, errors before and after. In process, on a paused clock.

use crate::http::{envelope, events};
use axum::body::{Body, Bytes};
use axum::http::Request;
use futures::StreamExt;
use hearth_core::EngineError;
use hearth_server::testing::{ScriptedBackend, Step};
use hearth_server::{AppState, ServerConfig, router};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tower::ServiceExt;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Posts a streamed chat in process.
async fn chat(backend: ScriptedBackend) -> axum::response::Response {
    let service = router(AppState::new(ServerConfig::default(), Arc::new(backend)));
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true}).to_string();
    let request = Request::post("/v1/chat/completions").header("host", "127.0.0.1").body(Body::from(body)).unwrap();
    service.oneshot(request).await.unwrap()
}

/// The body's pieces with the time of each since the start.
async fn pieces(response: axum::response::Response, start: Instant) -> Vec<(u64, Bytes)> {
    let mut body = response.into_body().into_data_stream();
    let mut all = Vec::new();
    while let Some(piece) = body.next().await {
        all.push((start.elapsed().as_secs(), piece.unwrap()));
    }
    all
}

fn text(pieces: &[(u64, Bytes)]) -> String {
    pieces.iter().map(|(_, p)| std::str::from_utf8(p).unwrap()).collect()
}

fn pings(pieces: &[(u64, Bytes)]) -> Vec<u64> {
    pieces.iter().filter(|(_, p)| p.as_ref() == b": ping\n\n").map(|(at, _)| *at).collect()
}

#[tokio::test(start_paused = true)]
async fn case_23_a_long_prefill_gets_pings_by_the_clock() {
    let start = Instant::now();
    // Progress is not output: the pings come all the same.
    let mut script = vec![Step::Wait(secs(3)), Step::Admit(0)];
    script.extend((1..=7).flat_map(|i| [Step::Wait(secs(5)), Step::Prefill(i)]));
    script.push(Step::Text("Hello".into()));
    script.extend([Step::Wait(secs(12)), Step::Text(" again".into())]);
    let response = chat(ScriptedBackend::new(move |_| script.clone())).await;
    assert_eq!((response.status().as_u16(), start.elapsed().as_secs()), (200, 3), "headers at admission");
    let all = pieces(response, start).await;
    assert_eq!(pings(&all), [13, 23, 33, 48]);
    let content: String =
        events(&text(&all)).iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, "Hello again");
}

#[tokio::test(start_paused = true)]
async fn headers_do_not_wait_for_admission_for_ever() {
    let start = Instant::now();
    let script = vec![Step::Wait(secs(25)), Step::Admit(0), Step::Text("Hello".into())];
    let response = chat(ScriptedBackend::new(move |_| script.clone())).await;
    assert_eq!((response.status().as_u16(), start.elapsed().as_secs()), (200, 10));
    let all = pieces(response, start).await;
    assert_eq!(pings(&all), [10, 20]);
    let all = events(&text(&all));
    assert_eq!(all[0]["choices"][0]["delta"]["role"], "assistant");
}

#[tokio::test(start_paused = true)]
async fn an_error_before_the_headers_is_a_status() {
    for (wait, steps) in [(0, vec![]), (9, vec![Step::Wait(secs(9))])] {
        let start = Instant::now();
        let fail = EngineError::WaitedTooLong { waited_s: 600, retry_after_s: 9 };
        // Scripts without an admission get one put first, so the wait goes before a real one.
        let mut script = steps.clone();
        script.extend([Step::Fail(fail), Step::Admit(0)]);
        let response = chat(ScriptedBackend::new(move |_| script.clone())).await;
        assert_eq!((response.status().as_u16(), start.elapsed().as_secs()), (503, wait));
        assert_eq!(response.headers()["retry-after"], "9");
        let body: Value = serde_json::from_str(&text(&pieces(response, start).await)).unwrap();
        assert_eq!(body["error"]["code"], "waited_too_long");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_headers_is_an_event_and_the_end() {
    let compute = EngineError::Compute { message: "not a number".into() };
    let late = vec![Step::Wait(secs(15)), Step::Fail(compute.clone()), Step::Admit(0)];
    let midway = vec![Step::Text("Hel".into()), Step::Fail(compute)];
    let lost = vec![Step::Text("Hel".into()), Step::Vanish];
    let given_up = vec![Step::Text("Hel".into()), Step::Cancel];
    for (script, code) in
        [(late, "compute_error"), (midway, "compute_error"), (lost, "engine_lost"), (given_up, "shutting_down")]
    {
        let start = Instant::now();
        let response = chat(ScriptedBackend::new(move |_| script.clone())).await;
        assert_eq!(response.status().as_u16(), 200);
        let text = text(&pieces(response, start).await);
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
        envelope(&error);
        assert_eq!(error["error"]["code"], code);
        assert!(!text.contains("[DONE]") && !text.contains("cancel"), "{text}");
        assert_eq!(text.matches("\"finish_reason\":\"").count(), 0, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn fast_rows_are_sent_in_few_pieces_and_slow_ones_at_once() {
    let start = Instant::now();
    let words = ["one ", "two ", "three"].map(|w| [Step::Text(w.into()), Step::Wait(secs(1))]);
    let script: Vec<Step> = words.into_iter().flatten().collect();
    let all = pieces(chat(ScriptedBackend::new(move |_| script.clone())).await, start).await;
    let at = |second: u64| {
        all.iter().filter(|(t, _)| *t == second).map(|(_, p)| std::str::from_utf8(p).unwrap()).collect::<String>()
    };
    assert_eq!(at(0).matches("\"content\":").count(), 1 + 4, "the role and four letters");
    assert_eq!(at(1).matches("\"content\":").count(), 4);
    assert_eq!(at(2).matches("\"content\":").count(), 5);
    assert!(at(3).ends_with("data: [DONE]\n\n"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_arriving_is_a_408_and_a_missing_host_a_400() {
    let backend = Arc::new(ScriptedBackend::saying("ok"));
    let service = router(AppState::new(ServerConfig::default(), backend));
    let stalled = futures::stream::once(async { Ok::<_, std::io::Error>(Bytes::from("{\"prompt\": ")) });
    let body = Body::from_stream(stalled.chain(futures::stream::pending()));
    let request = Request::post("/v1/completions").header("host", "127.0.0.1").body(body).unwrap();
    let hostless = Request::get("/v1/models").body(Body::empty()).unwrap();
    let start = Instant::now();
    for (request, status, after) in [(request, 408, 60), (hostless, 400, 60)] {
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!((response.status().as_u16(), start.elapsed().as_secs()), (status, after));
        let body: Value = serde_json::from_str(&text(&pieces(response, start).await)).unwrap();
        envelope(&body);
    }
}
