//! The machine's preflight over HTTP: whose it is, its form, and its one parameter.

use crate::http::{answer, client, envelope};
use crate::support::{Server, start, start_with};
use hearth_server::ServerConfig;
use hearth_server::testing::ScriptedBackend;
use serde_json::{Value, json};

const PATH: &str = "/api/hearth/preflight";

async fn ask(server: &Server, query: &str, key: Option<&str>) -> (u16, Value) {
    let request = client().get(format!("{}{PATH}{query}", server.url));
    answer(match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    })
    .await
}

async fn server() -> Server {
    let config =
        ServerConfig { api_keys: vec!["key".into()], admin_token: Some("admin".into()), ..ServerConfig::default() };
    start_with(ScriptedBackend::saying("ok"), config).await
}

#[tokio::test]
async fn a_report_for_the_admin() {
    let s = server().await;
    let (status, report) = ask(&s, "", Some("admin")).await;
    assert_eq!(status, 200, "also where there are problems: {report}");
    let problems = report["problems"].as_array().unwrap();
    assert_eq!(report["ok"], problems.is_empty(), "{report}");
    assert!(problems.iter().all(|p| p.as_str().unwrap().contains("; Hearth wants ")), "{report}");
    for name in ["allowed_cpu_processes", "background_cpu_processes", "big_processes"] {
        let list = report[name].as_array().unwrap();
        assert!(list.iter().all(|p| p["pid"] != std::process::id()), "the server judges itself: {report}");
    }
    for name in ["host", "chip", "time"] {
        assert!(report[name].as_str().is_some_and(|text| !text.is_empty()), "{name}: {report}");
    }
    assert!(report["ram"].as_u64().unwrap() > 1 << 28);
    assert_eq!(report["limits"]["swap_used"], 512_000_000);
    assert!(report["readings"]["memory_free_percent"].as_f64().is_some_and(|free| free > 0.0), "{report}");
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
async fn parameters_are_checked() {
    let s = server().await;
    let (status, report) = ask(&s, "?allow_cpu_process=make+-j2&allow_cpu_process=b%26c", Some("admin")).await;
    assert_eq!((status, report["problems"].is_array()), (200, true));
    for (query, word) in [
        ("?verbose=1", "verbose"),
        ("?allow_cpu_process=", "empty"),
        ("?allow_cpu_process=a&x", "\"x\""),
        ("?allow_cpu_process=%ff", "UTF-8"),
    ] {
        let (status, body) = ask(&s, query, Some("admin")).await;
        assert!(status == 400 && envelope(&body).contains(word), "{query}: {body}");
    }
}
