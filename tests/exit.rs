//! What the next server does after one that did not end in order: it loads nothing by itself, and says why, what was
//! running and how to go on. The real binary, really killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "support.rs"]
mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::{Place, Server, copy_model, edit_json, eventually, golden};

const TINY: &str = "llama-q4";

/// A home with one model, which `hearth serve` alone would load.
fn home() -> Place {
    let place = Place::new();
    copy_model(&golden(TINY), &place.home().join("models/Tiny-Llama"));
    place
}

fn serve(place: Place, args: &[&str]) -> Server {
    let cmd = place.hearth(&[&["serve", "--port", "0"], args].concat());
    Server::spawn(place, cmd)
}

/// Takes the place of a server that is over.
fn place_of(server: &mut Server) -> Place {
    server.wait();
    std::mem::replace(&mut server.place, Place::new())
}

fn record(place: &Place) -> PathBuf {
    place.home().join("running.json")
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The line of a server that loaded nothing, and what its `/health` says.
#[track_caller]
fn refused(server: &Server) -> String {
    let line = server.line();
    let why = line.strip_prefix("no model is loaded: ").unwrap_or_else(|| panic!("{line}")).to_owned();
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["status"]), (503, &json!("empty")));
    // "0 s ago" may be a second by now.
    let timeless = |text: &str| {
        let (before, after) = text.split_once(" when it last said so, ").unwrap_or((text, ""));
        (before.to_owned(), after.split_once("; ").map(|(_, remedy)| remedy.to_owned()))
    };
    assert_eq!(timeless(health["message"].as_str().unwrap()), timeless(&why));
    let (status, error) = server.post("/v1/completions", &json!({"prompt": "Hello"}));
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")), "{error}");
    why
}

fn last_run(place: &Place) -> Option<String> {
    let report = place.run(&["doctor", "--json"]).json();
    let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "ending").cloned()?;
    assert_eq!(check["status"], "warn", "{check}");
    Some(format!("{} {}", check["found"].as_str().unwrap(), check["remedy"].as_str().unwrap()))
}

/// Case 35: whatever was in memory when a server was killed is not loaded again until the user names it.
#[test]
fn a_killed_servers_model_is_not_loaded_again_until_it_is_named() {
    let mut server = serve(home(), &["--context", "300"]);
    assert!(server.line().starts_with("ready: "));
    let running = read(&record(&server.place));
    assert_eq!((&running["pid"], &running["model"]), (&json!(server.child.id()), &json!("Tiny-Llama")));
    server.child.kill().unwrap();
    let place = place_of(&mut server);

    // Nobody serves: `doctor` tells, and nothing changes by asking.
    let told = last_run(&place).unwrap();
    assert!(told.contains("was killed or crashed with Tiny-Llama") && told.contains("hearth serve MODEL"), "{told}");
    let mut server = serve(place, &[]);
    let why = refused(&server);
    for part in [
        &format!("(process {}) was killed or crashed with Tiny-Llama", running["pid"])[..],
        "it had ",
        "`hearth serve Tiny-Llama`",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(last_run(&server.place).is_some(), "also while the empty one serves");

    // Not after an end in order of the empty one either, nor after its own kill.
    server.place.run(&["stop"]).exits(0);
    let mut server = serve(place_of(&mut server), &[]);
    assert_eq!(refused(&server).split(';').next(), why.split(';').next());
    server.child.kill().unwrap();
    let mut server = serve(place_of(&mut server), &[]);
    refused(&server);
    server.place.run(&["stop"]).exits(0);

    // Named, it is loaded; and with that the matter is settled.
    let mut server = serve(place_of(&mut server), &["Tiny"]);
    assert!(server.line().starts_with("ready: Tiny-Llama"));
    assert_eq!(server.get("/health").1["message"], Value::Null);
    assert_eq!(last_run(&server.place), None);
    server.place.run(&["stop"]).exits(0);
    let place = place_of(&mut server);
    assert!(!record(&place).exists());
    let server = serve(place, &[]);
    assert!(server.line().starts_with("ready: Tiny-Llama"));
}

#[test]
fn a_server_killed_while_it_loads_is_found_out_too() {
    let place = home();
    let server = serve(place, &["Tiny"]);
    let file = record(&server.place);
    eventually("the model is on record before it is in memory", || file.exists());
    let mut server = server;
    server.child.kill().unwrap();
    let server = serve(place_of(&mut server), &[]);
    assert!(refused(&server).contains("Tiny-Llama"));
}

#[test]
fn an_end_in_order_leaves_no_record() {
    // A signal, two signals, a load that fails.
    let mut server = serve(home(), &[]);
    assert!(server.line().starts_with("ready: "));
    server.signal(Signal::TERM);
    let mut place = place_of(&mut server);
    assert!(!record(&place).exists());

    let mut server = serve(place, &[]);
    assert!(server.line().starts_with("ready: "));
    // Both while it stands still, so that the second comes before the first has done anything.
    server.signal(Signal::STOP);
    server.signal(Signal::INT);
    server.signal(Signal::TERM);
    server.signal(Signal::CONT);
    place = place_of(&mut server);
    assert!(!record(&place).exists());

    let damaged = copy_model(&golden(TINY), &place.path("damaged"));
    let weights = damaged.join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    place.run(&["serve", "--port", "0", damaged.to_str().unwrap()]).exits(3);
    assert!(!record(&place).exists());
    let server = serve(place, &[]);
    assert!(server.line().starts_with("ready: "), "and the one served before is loaded as ever");
}

#[test]
fn a_restarted_computer_and_a_record_that_cannot_be_read_are_told_apart() {
    let mut server = serve(home(), &["Tiny"]);
    assert!(server.line().starts_with("ready: "));
    server.child.kill().unwrap();
    let place = place_of(&mut server);
    edit_json(&record(&place), |running| {
        running["boot"] = json!("another start");
        running["used"] = json!(3_000_000_000u64);
        running["budget"] = json!(4_000_000_000u64);
        running["rows"] = json!(2);
    });
    let mut server = serve(place, &[]);
    let why = refused(&server);
    for part in [
        "the computer went down or was started anew while a server ran with Tiny-Llama",
        "it had 3.0 GB of its budget of 4.0 GB in use and 2 requests running",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    server.child.kill().unwrap();
    let place = place_of(&mut server);
    // As a power failure leaves a file.
    fs::write(record(&place), "").unwrap();
    assert!(last_run(&place).unwrap().contains("cannot be read"));
    let server = serve(place, &[]);
    assert!(refused(&server).contains("`hearth serve MODEL`"));
}
