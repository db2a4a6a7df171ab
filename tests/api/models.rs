//! Models over HTTP: loading, unloading and pinning by the admin, and how long a request lets its model stay.

use crate::http::{answer, client, get, post};
use crate::support::{Server, eventually, start, start_with};
use hearth_library::scan::{Place, Places};
use hearth_server::ServerConfig;
use hearth_server::testing::{ScriptedBackend, Step, TAKEN};
use serde_json::{Value, json};
use std::time::Duration;

async fn with_admin(backend: ScriptedBackend) -> Server {
    start_with(backend, ServerConfig { admin_token: Some("admin".into()), ..ServerConfig::default() }).await
}

async fn tell(s: &Server, verb: &str, body: Value) -> (u16, Value) {
    answer(client().post(format!("{}/api/hearth/models/{verb}", s.url)).bearer_auth("admin").json(&body)).await
}

async fn card(s: &Server) -> Value {
    get(&s.url, "/v1/models").await.1["data"][0].clone()
}

#[tokio::test]
async fn a_model_is_unloaded_loaded_and_pinned() {
    let s = with_admin(ScriptedBackend::saying("ok")).await;
    let id = card(&s).await["id"].as_str().unwrap().to_owned();
    let of = |id: &str| json!({"model": id});
    assert_eq!(tell(&s, "unload", of(&id)).await, (200, json!({"model": id, "freed": TAKEN})));
    let there = card(&s).await;
    assert_eq!((&there["state"], &there["loaded"]), (&json!("on_disk"), &json!(false)));
    let (_, stats) = get(&s.url, "/stats").await;
    assert_eq!((&stats["models"], &stats["model"]), (&json!([]), &Value::Null));
    assert_eq!(tell(&s, "load", of(&id)).await, (200, of(&id)));
    assert_eq!(card(&s).await["state"], "loaded");
    let (status, refusal) = tell(&s, "load", of("no-such-model")).await;
    assert_eq!((status, &refusal["error"]["code"]), (404, &json!("model_not_found")));
    for pinned in [true, false] {
        let body = json!({"model": id, "pinned": pinned});
        assert_eq!(tell(&s, "pin", body.clone()).await, (200, body));
        assert_eq!(card(&s).await["pinned"], pinned);
    }
    for (verb, body, param) in [
        ("load", json!({}), "model"),
        ("load", json!({"model": 5}), "model"),
        ("unload", json!({"model": id, "force": true}), "force"),
        ("pin", json!({"model": id}), "pinned"),
        ("pin", json!({"model": id, "pinned": "yes"}), "pinned"),
    ] {
        let (status, refusal) = tell(&s, verb, body.clone()).await;
        assert_eq!((status, &refusal["error"]["param"]), (400, &json!(param)), "{verb} {body}");
    }
    for verb in ["load", "unload", "pin"] {
        let (status, _) = post(&s.url, &format!("/api/hearth/models/{verb}"), &of(&id)).await;
        assert_eq!(status, 401, "{verb} is the admin's");
    }
}

#[tokio::test]
async fn a_model_with_work_is_not_unloaded() {
    let s = with_admin(ScriptedBackend::new(|_| vec![Step::Text("Hel".into()), Step::Hang])).await;
    let id = card(&s).await["id"].clone();
    let (url, body) = (s.url.clone(), json!({"messages": [{"role": "user", "content": "x"}]}));
    let hangs = tokio::spawn(async move { post(&url, "/v1/chat/completions", &body).await });
    eventually("the row", || s.backend.active() == 1).await;
    let (status, refusal) = tell(&s, "unload", json!({"model": id})).await;
    assert_eq!((status, &refusal["error"]["code"]), (409, &json!("model_in_use")));
    hangs.abort();
    eventually("no row", || s.backend.active() == 0).await;
    assert_eq!(tell(&s, "unload", json!({"model": id})).await.0, 200);
}

#[tokio::test]
async fn a_request_says_how_long_its_model_stays() {
    let s = start(ScriptedBackend::saying("ok")).await;
    let ask = async |keep: Value| {
        let body = json!({"messages": [{"role": "user", "content": "x"}], "keep_alive": keep});
        post(&s.url, "/v1/chat/completions", &body).await
    };
    for keep in [json!(0), json!("5m"), json!(-1), Value::Null] {
        assert_eq!(ask(keep.clone()).await.0, 200, "{keep}");
    }
    assert_eq!(s.backend.stays(), [Some(Duration::ZERO), Some(Duration::from_secs(300)), None]);
    for wrong in [json!("soon"), json!([]), json!(true)] {
        let (status, refusal) = ask(wrong.clone()).await;
        assert_eq!((status, &refusal["error"]["param"]), (400, &json!("keep_alive")), "{wrong}");
    }
}

#[tokio::test]
async fn a_model_that_comes_or_goes_on_disk_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let (models, drive) = (dir.path().join("models"), dir.path().join("drive"));
    std::fs::create_dir(&models).unwrap();
    let places = Places::of(vec![Place::Hearth(models.clone()), Place::Folder(drive.clone())]);
    let config = ServerConfig { admin_token: Some("admin".into()), places, ..ServerConfig::default() };
    let s = start_with(ScriptedBackend::saying("ok"), config).await;
    let ids = async || {
        let (_, list) = answer(client().get(format!("{}/api/hearth/models", s.url)).bearer_auth("admin")).await;
        list["models"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut events = client().get(format!("{}/api/hearth/events", s.url)).bearer_auth("admin").send().await.unwrap();
    let mut text = String::new();
    // One that listens hears of it; the list is the new one then.
    for (step, expected) in [(0, vec!["One"]), (1, vec!["One", "Two"]), (2, vec!["Two"])] {
        match step {
            0 => std::fs::create_dir(models.join("One"))
                .and_then(|()| std::fs::write(models.join("One/config.json"), "{}")),
            1 => std::fs::create_dir_all(drive.join("Two"))
                .and_then(|()| std::fs::write(drive.join("Two/config.json"), "{}")),
            _ => std::fs::remove_dir_all(models.join("One")),
        }
        .unwrap();
        for _ in 0..1000 {
            if ids().await == expected && text.contains("event: models\n") {
                break;
            }
            let piece = tokio::time::timeout(Duration::from_secs(60), events.chunk()).await;
            let piece = piece.expect("nothing is told").unwrap().expect("the stream has ended");
            text.push_str(&String::from_utf8_lossy(&piece));
        }
        assert!(ids().await == expected && text.contains("event: models\n"), "{expected:?} after {text}");
        text.clear();
    }
}
