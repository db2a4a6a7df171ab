//! The fit of a model over HTTP: whose it is, what it is of, and its parameters.

use crate::http::{answer, client, envelope};
use crate::support::{Server, start, start_with};
use hearth_core::backend::ServedModel;
use hearth_library::scan::{Place, Places};
use hearth_server::ServerConfig;
use hearth_server::testing::{ScriptedBackend, model};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const PATH: &str = "/api/hearth/fit";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name).canonicalize().unwrap()
}

async fn ask(server: &Server, query: &str, key: Option<&str>) -> (u16, Value) {
    let request = client().get(format!("{}{PATH}{query}", server.url));
    answer(match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    })
    .await
}

/// A server whose loaded model is a tiny one, and which finds all the others by name.
async fn server() -> Server {
    let config = ServerConfig {
        api_keys: vec!["key".into()],
        admin_token: Some("admin".into()),
        places: Places::of(vec![Place::Folder(golden("."))]),
        ..ServerConfig::default()
    };
    let loaded = ServedModel { id: "loaded".into(), path: golden("qwen3-q4"), ..model() };
    start_with(ScriptedBackend::with_model(loaded, |_| Vec::new()), config).await
}

#[tokio::test]
async fn the_loaded_model_and_others_by_name() {
    let s = server().await;
    let (status, loaded) = ask(&s, "", Some("admin")).await;
    assert_eq!((status, &loaded["model"], &loaded["model_type"]), (200, &json!("loaded"), &json!("qwen3")), "{loaded}");
    let (status, named) =
        ask(&s, "?model=llama-bf16&context=100&memory_budget=1000000000&kv_bits=8", Some("admin")).await;
    assert_eq!(
        (status, &named["model"], &named["model_type"]),
        (200, &json!("llama-bf16"), &json!("llama")),
        "{named}"
    );
    assert_eq!(
        (&named["context"], &named["budget"], &named["fits"]),
        (&json!(100), &json!(1_000_000_000), &json!(true))
    );
    let sum: u64 = named["terms"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(named["total"], sum);
    assert!(named.get("skus").is_none());
    let (_, all) = ask(&s, "?skus=true", Some("admin")).await;
    assert!(all["skus"].as_array().unwrap().len() > 40);
    let (status, short) = ask(&s, "?memory_budget=1", Some("admin")).await;
    assert_eq!((status, &short["fits"], &short["largest_context"]), (200, &json!(false), &Value::Null));
}

#[tokio::test]
async fn nobody_else_gets_it() {
    let s = server().await;
    for wrong in [None, Some("key")] {
        let (status, body) = ask(&s, "", wrong).await;
        assert_eq!((status, &body["error"]["code"]), (401, &json!("invalid_api_key")));
    }
    let (status, body) = answer(client().post(format!("{}{PATH}", s.url)).bearer_auth("admin")).await;
    assert_eq!((status, &body["error"]["code"]), (405, &json!("method_not_allowed")));
    let open = start(ScriptedBackend::saying("ok")).await;
    assert_eq!(ask(&open, "", None).await.0, 403, "without an admin token there is no admin");
}

#[tokio::test]
async fn parameters_are_checked_and_a_path_is_no_name() {
    let s = server().await;
    for (query, param, word) in [
        ("?context=0", "context", "from 1 to 1073741824"),
        ("?context=8k", "context", "\"8k\""),
        ("?context=-1", "context", "\"-1\""),
        ("?memory_budget=18GB", "memory_budget", "whole number of bytes"),
        ("?kv_bits=5", "kv_bits", "4 or 8"),
        ("?skus=maybe", "skus", "true or false"),
        ("?model=", "model", "an id"),
        ("?modle=x", "modle", "model, context"),
        ("?model=llama-q", "model", "llama-q4"),
    ] {
        let (status, body) = ask(&s, query, Some("admin")).await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!(param)), "{query}: {body}");
        assert!(envelope(&body).contains(word), "{query}: {body}");
    }
    let outside = golden("llama-q4");
    for name in ["no-such-model", outside.to_str().unwrap(), "..%2Fgoldens%2Fllama-q4", "~%2F"] {
        let (status, body) = ask(&s, &format!("?model={name}"), Some("admin")).await;
        assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")), "{name}: {body}");
    }
    let (status, _) = ask(&s, "?model=%ff", Some("admin")).await;
    assert_eq!(status, 400);
}
