//! Settings and the way into the dashboard, through the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use serde_json::{Value, json};
use std::fs;
use support::{Place, Server, golden, http};

/// The admin key of a server.
fn token(server: &Server) -> String {
    let record = fs::read(server.place.home().join("server.json")).unwrap();
    serde_json::from_slice::<Value>(&record).unwrap()["token"].as_str().unwrap().to_owned()
}

fn start(place: Place, args: &[&str]) -> Server {
    let mut cmd = place.hearth(&["serve", "--port", "0"]);
    cmd.arg(golden("llama-q4")).args(args);
    let server = Server::spawn(place, cmd);
    assert!(server.line().starts_with("ready: "));
    server
}

#[test]
fn settings_hold_where_no_flag_and_no_variable_says_otherwise() {
    let place = Place::new();
    let file = place.home().join("settings.toml");
    fs::write(&file, "# mine\nmax_rows = 3 # few\ncontext = 64\ncache_ram = \"1MB\"\nmodel_folders = []\n").unwrap();
    let server = start(place, &["--context", "32"]);
    let stats = server.get("/stats").1;
    assert_eq!((&stats["max_rows"], &stats["model"]["context"]), (&json!(3), &json!(32)));
    assert_eq!(stats["cache"]["ram"]["cap"], 1_000_000);

    let url = format!("{}/api/hearth/settings", server.url);
    let put = |body: Value| http().put(&url).bearer_auth(token(&server)).json(&body).send().unwrap();
    let all: Value = http().get(&url).bearer_auth(token(&server)).send().unwrap().json().unwrap();
    let from = |all: &Value, name: &str| all["settings"][name]["from"].as_str().unwrap().to_owned();
    assert_eq!([from(&all, "max_rows"), from(&all, "context"), from(&all, "lan")], ["settings", "flag", "default"]);
    let all: Value = put(json!({"max_rows": 2, "context": 48})).json().unwrap();
    assert_eq!([from(&all, "max_rows"), from(&all, "context")], ["settings", "api"]);
    assert_eq!(server.get("/stats").1["max_rows"], 2);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# mine\nmax_rows = 2 # few\ncontext = 48\n"), "{text}");
    let refused = put(json!({"max_rows": 0}));
    assert_eq!(refused.status(), 400);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_key_that_the_settings_ask_for_is_asked_for() {
    let place = Place::new();
    fs::write(place.home().join("settings.toml"), "api_key_required = true\napi_key = \"sk-hearth-0123456789\"\n")
        .unwrap();
    let server = start(place, &[]);
    assert_eq!(server.get("/v1/models").0, 401);
    let with = http().get(format!("{}/v1/models", server.url)).bearer_auth("sk-hearth-0123456789").send().unwrap();
    assert_eq!(with.status(), 200);
    assert_eq!(http().get(&server.url).send().unwrap().status(), 200, "the page itself says how to get in");
    // Taken away, it is another one: the switch that asks for it is still on.
    let put = http().put(format!("{}/api/hearth/settings", server.url)).bearer_auth(token(&server));
    let all: Value = put.json(&json!({"api_key": null})).send().unwrap().json().unwrap();
    let key = all["settings"]["api_key"]["value"].as_str().unwrap();
    assert!(key.starts_with("sk-hearth-") && key != "sk-hearth-0123456789", "{key}");
}

#[test]
fn a_settings_file_that_cannot_be_used_is_named() {
    let place = Place::new();
    fs::write(place.home().join("settings.toml"), "max_rows = \"many\"\n").unwrap();
    let ran = place.run(&["serve", "--port", "0"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("max_rows must be a whole number from 1 to 256"), "{ran:?}");
    let doctor = place.run(&["doctor"]).exits(1);
    assert!(doctor.out.contains("FAIL  config") && doctor.out.contains("max_rows must be"), "{doctor:?}");
}

#[test]
fn a_switch_that_asks_for_keys_lets_nobody_in_where_there_is_none() {
    for switch in ["api_key_required", "lan"] {
        let place = Place::new();
        fs::write(place.home().join("settings.toml"), format!("{switch} = true\n")).unwrap();
        for args in [&["serve", "--port", "0"][..], &["doctor"]] {
            let ran = place.run(args);
            let (code, said) = if args[0] == "serve" { (3, &ran.err) } else { (1, &ran.out) };
            assert_eq!(ran.code, code, "{ran:?}");
            assert!(said.contains(&format!("settings.toml: {switch} = true needs an api_key")), "{ran:?}");
        }
    }
}

#[test]
fn misspelt_settings_are_named_and_the_others_hold() {
    let place = Place::new();
    fs::write(place.home().join("settings.toml"), "max_rows = 2\nmax_row = 3\n\n[sub]\nx = 1\n").unwrap();
    let doctor = place.run(&["doctor"]);
    assert!(
        doctor.out.contains("warn  config") && doctor.out.contains("line 2: there is no setting `max_row`"),
        "{doctor:?}"
    );
    let server = start(place, &[]);
    assert_eq!(server.get("/stats").1["max_rows"], 2);
    let log = server.place.admin(reqwest::Method::GET, "/api/hearth/logs", None).1.to_string();
    for (line, name) in [(2, "max_row"), (4, "sub")] {
        assert!(log.contains(&format!("settings.toml, line {line}: there is no setting `{name}`")), "{log}");
    }
}

#[test]
fn a_reserve_that_leaves_no_budget_is_refused() {
    let server = start(Place::new(), &[]);
    let put = http().put(format!("{}/api/hearth/settings", server.url)).bearer_auth(token(&server));
    let reply = put.json(&json!({"reserve": 100_000_000_000_000u64})).send().unwrap();
    assert_eq!(reply.status(), 400);
    let reply: Value = reply.json().unwrap();
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("reserve must be less than the memory budget of ") && message.contains("100000.0 GB"),
        "{reply}"
    );
    assert!(!server.place.home().join("settings.toml").exists());
}

#[test]
fn the_dashboard_command_gives_a_link_that_works_once() {
    let server = start(Place::new(), &[]);
    let ran = server.place.run(&["dashboard", "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let link = serde_json::from_str::<Value>(&ran.out).unwrap()["url"].as_str().unwrap().to_owned();
    assert!(link.starts_with(&format!("{}/?ticket=", server.url)), "{link}");
    let client = reqwest::blocking::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let client = client.build().unwrap();
    let enter =
        || client.get(&link).send().unwrap().headers().get("set-cookie").map(|c| c.to_str().unwrap().to_owned());
    let cookie = enter().unwrap();
    assert_eq!(enter(), None);
    let events = client.get(format!("{}/api/hearth/requests", server.url));
    let reply = events.header("cookie", cookie.split(';').next().unwrap()).send().unwrap();
    assert_eq!(reply.status(), 200);
    // Without a server there is no dashboard.
    assert_eq!(Place::new().run(&["dashboard"]).code, 4);
}
