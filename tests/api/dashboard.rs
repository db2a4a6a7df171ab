//! What drives the dashboard: the one-time link, the event stream, settings, the inspector, the connect tests.

use crate::support::{Server, start_with};
use futures::StreamExt;
use hearth_server::settings::Settings;
use hearth_server::testing::{ScriptedBackend, Step};
use hearth_server::{CommandStatus, Desktop, DesktopStatus, ServerConfig};
use reqwest::{Client, Response, StatusCode, redirect};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const TOKEN: &str = "the-admin-token";

async fn start(backend: ScriptedBackend) -> Server {
    start_with(backend, ServerConfig { admin_token: Some(TOKEN.into()), ..ServerConfig::default() }).await
}

fn client() -> Client {
    Client::builder().no_proxy().redirect(redirect::Policy::none()).build().unwrap()
}

async fn get(server: &Server, path: &str) -> (StatusCode, Value) {
    let reply = client().get(format!("{}{path}", server.url)).bearer_auth(TOKEN).send().await.unwrap();
    (reply.status(), reply.json().await.unwrap_or_default())
}

async fn send(server: &Server, method: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let method = method.parse().unwrap();
    let request = client().request(method, format!("{}{path}", server.url)).bearer_auth(TOKEN).json(&body);
    let reply = request.send().await.unwrap();
    (reply.status(), reply.json().await.unwrap_or_default())
}

async fn chat(server: &Server, text: &str) -> Value {
    let body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 5});
    let reply = client().post(format!("{}/v1/chat/completions", server.url)).json(&body).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    reply.json().await.unwrap()
}

/// One event of the stream.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    id: u64,
    name: String,
    data: Value,
}

/// Reads an event stream.
struct Listener {
    body: std::pin::Pin<Box<dyn futures::Stream<Item = Vec<u8>> + Send>>,
    text: String,
}

impl Listener {
    async fn open(server: &Server, after: Option<u64>) -> Self {
        let mut request = client().get(format!("{}/api/hearth/events", server.url)).bearer_auth(TOKEN);
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()["content-type"], "text/event-stream");
        let body = reply.bytes_stream().map(|piece| piece.unwrap().to_vec());
        Listener { body: Box::pin(body), text: String::new() }
    }

    /// The next event; comments are skipped.
    async fn next(&mut self) -> Event {
        loop {
            if let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let Some(id) = field("id: ") else { continue };
                let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
                return Event { id: id.parse().unwrap(), name: field("event: ").unwrap(), data };
            }
            let piece = tokio::time::timeout(Duration::from_secs(20), self.body.next()).await;
            let piece = piece.expect("the stream is silent").expect("the stream has ended");
            self.text.push_str(&String::from_utf8(piece).unwrap());
        }
    }

    /// The next event of this name.
    async fn wait_for(&mut self, name: &str) -> Event {
        for _ in 0..2000 {
            let event = self.next().await;
            if event.name == name {
                return event;
            }
        }
        panic!("no event {name}");
    }
}

#[tokio::test]
async fn a_link_lets_one_browser_in_once() {
    let server = start(ScriptedBackend::saying("hi")).await;
    let (status, ticket) = send(&server, "POST", "/api/hearth/session/ticket", json!({})).await;
    assert_eq!(status, 200);
    let link = format!("{}{}", server.url, ticket["path"].as_str().unwrap());
    let enter = |link: String| async move { client().get(link).send().await.unwrap() };
    let reply = enter(link.clone()).await;
    assert_eq!((reply.status(), reply.headers()["location"].to_str().unwrap()), (StatusCode::SEE_OTHER, "/"));
    let cookie = reply.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!enter(link).await.headers().contains_key("set-cookie"), "a second use");

    let cookie = cookie.split(';').next().unwrap().to_owned();
    let settings = format!("{}/api/hearth/settings", server.url);
    let with = |site: Option<&'static str>| {
        let mut request = client().get(&settings).header("cookie", &cookie);
        if let Some(site) = site {
            request = request.header("sec-fetch-site", site);
        }
        async { request.send().await.unwrap().status() }
    };
    assert_eq!(with(None).await, 200);
    assert_eq!(with(Some("same-origin")).await, 200);
    assert_eq!(with(Some("same-site")).await, 401, "a page of another port");
    assert_eq!(with(Some("cross-site")).await, 401);
    assert_eq!(client().get(&settings).send().await.unwrap().status(), 401, "without a cookie");

    // A form on a foreign page sends its origin.
    let forged = client().put(&settings).header("cookie", &cookie).header("origin", "http://127.0.0.1:1");
    assert_eq!(forged.json(&json!({"max_rows": 1})).send().await.unwrap().status(), 403);
    let own = client().put(&settings).header("cookie", &cookie).header("origin", &server.url);
    assert_eq!(own.json(&json!({"max_rows": 2})).send().await.unwrap().status(), 200);
    let out = client().delete(format!("{}/api/hearth/session", server.url)).header("cookie", &cookie).send().await;
    assert_eq!(out.unwrap().status(), 204);
    assert_eq!(with(None).await, 401);
}

#[tokio::test]
async fn the_page_is_there_and_framed_by_nobody() {
    let config = ServerConfig { api_keys: vec!["sk-one".into()], ..ServerConfig::default() };
    let server = start_with(ScriptedBackend::saying("hi"), config).await;
    for path in ["/", "/popover"] {
        let reply: Response = client().get(format!("{}{path}", server.url)).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        let policy = reply.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(reply.text().await.unwrap().contains("<title>Hearth</title>"));
    }
    for path in ["/assets/none.js", "/assets/..%2f..%2fCargo.toml", "/index.html"] {
        let status = client().get(format!("{}{path}", server.url)).send().await.unwrap().status();
        assert!(status == 404 || status == 401, "{path}: {status}");
    }
}

#[tokio::test]
async fn events_begin_with_everything_and_miss_nothing() {
    let server = start(ScriptedBackend::saying("hello")).await;
    let mut first = Listener::open(&server, None).await;
    let snapshot = first.next().await;
    assert_eq!(snapshot.name, "snapshot");
    for part in ["stats", "health", "downloads", "settings", "requests", "machine", "history", "desktop"] {
        assert!(snapshot.data.get(part).is_some(), "{part} is missing");
    }
    assert_eq!(snapshot.data["health"]["status"], "ready");
    chat(&server, "one").await;
    let queued = first.wait_for("request").await;
    assert_eq!(queued.data["state"], "queued");
    let mut done = first.wait_for("request").await;
    while done.data["state"] != "stop" && done.data["state"] != "length" {
        assert!(done.id > queued.id);
        done = first.wait_for("request").await;
    }
    drop(first);
    chat(&server, "two").await;
    // Another connection continues where the first one was.
    let mut second = Listener::open(&server, Some(queued.id)).await;
    let next = second.next().await;
    assert!(next.id > queued.id && next.name != "snapshot", "{next:?}");
    let mut ends = 0;
    while ends < 2 {
        let event = second.wait_for("request").await;
        ends += usize::from(event.data["state"] == "length" || event.data["state"] == "stop");
    }
    // Of another run: everything anew.
    let mut stranger = Listener::open(&server, Some(7)).await;
    assert_eq!(stranger.next().await.name, "snapshot");
}

#[tokio::test]
async fn changed_figures_and_health_are_events_and_silence_stays_silent() {
    let server = start(ScriptedBackend::saying("hello")).await;
    let mut listener = Listener::open(&server, None).await;
    assert_eq!(listener.next().await.name, "snapshot");
    listener.wait_for("stats").await;
    // Nothing happens: nothing is told but pings and what the machine does.
    let quiet = tokio::time::timeout(Duration::from_millis(1200), listener.wait_for("stats")).await;
    assert!(quiet.is_err(), "{quiet:?}");
    server.backend.set_health(hearth_core::stats::Health::Loading { model: "m".into(), percent: 40 });
    let health = listener.wait_for("health").await;
    assert_eq!(health.data, json!({"status": "loading", "model": "m", "percent": 40}));
}

#[tokio::test]
async fn settings_are_checked_kept_and_applied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.toml");
    let settings = Settings::open(&path).unwrap();
    let config = ServerConfig { admin_token: Some(TOKEN.into()), settings, ..ServerConfig::default() };
    let server = start_with(ScriptedBackend::saying("hi"), config).await;
    let (status, reply) = get(&server, "/api/hearth/settings").await;
    assert_eq!(
        (status, &reply["settings"]["inspector"]),
        (StatusCode::OK, &json!({"value": true, "from": "default", "at_next_start": false, "pending": false}))
    );
    let mut listener = Listener::open(&server, None).await;
    let (status, reply) =
        send(&server, "PUT", "/api/hearth/settings", json!({"memory_budget": 2_000_000_000u64, "max_rows": 3})).await;
    assert_eq!((status, &reply["settings"]["memory_budget"]["value"]), (StatusCode::OK, &json!(2_000_000_000u64)));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "max_rows = 3\nmemory_budget = \"2GB\"\n");
    use hearth_core::Backend;
    let limits = server.backend.limits();
    assert_eq!((limits.budget, limits.max_rows), (Some(2_000_000_000), Some(3)));
    assert_eq!(listener.wait_for("settings").await.data, reply);

    // What the engine refuses is not kept.
    let (status, refusal) = send(&server, "PUT", "/api/hearth/settings", json!({"memory_budget": 1000})).await;
    assert_eq!(status, 400, "{refusal}");
    assert!(std::fs::read_to_string(&path).unwrap().contains("2GB"));
    for (body, words) in [
        (json!({"colour": 1}), "there is no setting `colour`"),
        (json!({"max_rows": "many"}), "a whole number from 1 to 256"),
    ] {
        let (status, refusal) = send(&server, "PUT", "/api/hearth/settings", body).await;
        let message = refusal["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(words), "{status} {refusal}");
    }
    // Opening the server to others makes a key.
    let (_, reply) = send(&server, "PUT", "/api/hearth/settings", json!({"lan": true})).await;
    // What runs goes by the old value until a start, and nothing once it is taken back.
    assert_eq!(
        (&reply["settings"]["lan"]["pending"], &reply["settings"]["max_rows"]["pending"]),
        (&json!(true), &json!(false))
    );
    assert!(reply["settings"]["api_key"]["value"].as_str().unwrap().starts_with("sk-hearth-"), "{reply}");
    let again: BTreeMap<_, _> = Settings::open(&path).unwrap().all();
    assert_eq!((&again["lan"].value, &again["max_rows"].value), (&json!(true), &json!(3)));
}

#[tokio::test]
async fn the_inspector_shows_the_prompt_as_the_model_sees_it() {
    let server = start(ScriptedBackend::new(|_| vec![Step::Admit(7), Step::Text("hello".into())])).await;
    chat(&server, "What is this?").await;
    let (_, list) = get(&server, "/api/hearth/requests").await;
    let summary = &list["requests"][0];
    assert_eq!((&summary["cached_tokens"], &summary["state"]), (&json!(7), &json!("length")));
    let (status, one) = get(&server, &format!("/api/hearth/requests/{}", summary["id"])).await;
    assert_eq!(status, 200);
    let prompt = one["rendered_prompt"].as_str().unwrap();
    assert_eq!(prompt, server.backend.last_prompt());
    assert!(prompt.contains("<|im_start|>user\nWhat is this?<|im_end|>"), "{prompt}");
    assert_eq!(one["prompt_tokens"], server.backend.last_request().unwrap().prompt.len());
    assert_eq!((&one["parameters"]["max_tokens"], &one["parameters"]["temperature"]), (&json!(5), &json!(1.0)));
    assert_eq!(get(&server, "/api/hearth/requests/99").await.0, 404);
    // Off: it forgets, and notes nothing.
    send(&server, "PUT", "/api/hearth/settings", json!({"inspector": false})).await;
    chat(&server, "And this?").await;
    assert_eq!(get(&server, "/api/hearth/requests").await.1, json!({"on": false, "requests": []}));
}

#[tokio::test]
async fn a_client_that_goes_away_is_seen() {
    let server = start(ScriptedBackend::new(|_| vec![Step::Text("a".into()), Step::Hang])).await;
    let mut listener = Listener::open(&server, None).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    let reply = client().post(format!("{}/v1/chat/completions", server.url)).json(&body).send().await.unwrap();
    drop(reply);
    let mut last = listener.wait_for("request").await;
    while last.data["state"] != "cancelled" {
        last = listener.wait_for("request").await;
    }
}

#[tokio::test]
async fn the_connect_page_knows_what_is_served_and_tests_it() {
    let server = start(ScriptedBackend::saying("hello there")).await;
    let (_, connect) = get(&server, "/api/hearth/connect").await;
    assert_eq!((&connect["address"], &connect["lan"]), (&json!(server.url), &json!(false)));
    let clients = connect["clients"].as_array().unwrap();
    let served = |id: &str| clients.iter().find(|c| c["id"] == id).unwrap()["served"] == true;
    assert!(served("curl") && served("continue") && served("open-webui"));
    let (status, result) = send(&server, "POST", "/api/hearth/connect/test", json!({"client": "continue"})).await;
    assert_eq!((status, &result["ok"], &result["status"]), (StatusCode::OK, &json!(true), &json!(200)), "{result}");
    server.backend.refuse(Some(hearth_core::EngineError::Overloaded { waiting: 64, limit: 64, retry_after_s: 3 }));
    let (_, result) = send(&server, "POST", "/api/hearth/connect/test", json!({"client": "curl"})).await;
    assert_eq!((&result["ok"], &result["status"]), (&json!(false), &json!(429)), "{result}");
    for client in clients.iter().filter(|c| c["served"] == false) {
        let (_, result) = send(&server, "POST", "/api/hearth/connect/test", json!({"client": client["id"]})).await;
        let message = result["message"].as_str().unwrap();
        assert!(result["ok"] == false && message.contains("is not served yet"), "{client} {result}");
    }
    assert_eq!(send(&server, "POST", "/api/hearth/connect/test", json!({"client": "cursor"})).await.0, 400);
}

/// An app that can do half of what it is asked.
#[derive(Default)]
struct Around {
    login: AtomicBool,
    restarts: AtomicUsize,
}

impl Desktop for Around {
    fn status(&self) -> DesktopStatus {
        let command = CommandStatus { installed: false, link: "/usr/local/bin/hearth".into() };
        DesktopStatus { login_item: true, command: Some(command) }
    }

    fn set_launch_at_login(&self, on: bool) -> Result<(), String> {
        self.login.store(on, Ordering::Relaxed);
        Ok(())
    }

    fn install_command(&self) -> Result<(), String> {
        Err("/usr/local/bin cannot be written".into())
    }

    fn restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn the_app_around_the_server_does_what_the_dashboard_asks() {
    let app = Arc::new(Around::default());
    let config =
        ServerConfig { admin_token: Some(TOKEN.into()), desktop: Some(app.clone()), ..ServerConfig::default() };
    let server = start_with(ScriptedBackend::saying("hi"), config).await;
    let snapshot = Listener::open(&server, None).await.next().await;
    assert_eq!(
        snapshot.data["desktop"],
        json!({"login_item": true, "command": {"installed": false, "link": "/usr/local/bin/hearth"}})
    );
    let (status, reply) = send(&server, "PUT", "/api/hearth/settings", json!({"launch_at_login": true})).await;
    assert_eq!((status, &reply["settings"]["launch_at_login"]["value"]), (StatusCode::OK, &json!(true)));
    assert!(app.login.load(Ordering::Relaxed));
    let (status, refusal) = send(&server, "POST", "/api/hearth/desktop/command", json!({})).await;
    assert_eq!(
        (status, &refusal["error"]["message"]),
        (StatusCode::CONFLICT, &json!("/usr/local/bin cannot be written"))
    );
    let (status, _) = send(&server, "POST", "/api/hearth/desktop/restart", json!({})).await;
    assert_eq!((status, app.restarts.load(Ordering::Relaxed)), (StatusCode::ACCEPTED, 1));

    // Without it, nothing is pretended.
    let plain = start(ScriptedBackend::saying("hi")).await;
    assert_eq!(Listener::open(&plain, None).await.next().await.data["desktop"], json!(null));
    for (method, path, body) in [
        ("POST", "/api/hearth/desktop/command", json!({})),
        ("POST", "/api/hearth/desktop/restart", json!({})),
        ("PUT", "/api/hearth/settings", json!({"launch_at_login": true})),
    ] {
        let (status, refusal) = send(&plain, method, path, body).await;
        assert_eq!((status, &refusal["error"]["code"]), (StatusCode::CONFLICT, &json!("no_app")), "{path}");
    }
    let (_, reply) = get(&plain, "/api/hearth/settings").await;
    assert_eq!(reply["settings"]["launch_at_login"]["value"], json!(false));
}

#[tokio::test]
async fn what_an_unclean_end_left_is_told_until_a_model_is_there() {
    let config = ServerConfig {
        admin_token: Some(TOKEN.into()),
        notice: Some("the last server was killed with org/m".into()),
        last_model: Some("org/m".into()),
        ..ServerConfig::default()
    };
    let server = start_with(ScriptedBackend::saying("hi"), config).await;
    server.backend.set_health(hearth_core::stats::Health::Empty);
    let mut listener = Listener::open(&server, None).await;
    assert_eq!(
        listener.next().await.data["health"],
        json!({"status": "empty", "message": "the last server was killed with org/m", "last_model": "org/m"})
    );
    server.backend.set_health(hearth_core::stats::Health::Ready { model: "org/m".into() });
    while listener.wait_for("health").await.data != json!({"status": "ready", "model": "org/m"}) {}
}
