//! The app from outside, on Linux: the real binary under a virtual screen, its icon clicked over D-Bus as a panel does it,
//! its window driven as a browser. What only a Mac has is on the checklist in CONTRIBUTING.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod app;
mod desk;
mod driver;
mod http;
mod panel;

use app::App;
use desk::Desk;
use driver::Driver;
use hearth_library::home::{Home, Ownership};
use serde_json::json;
use std::net::TcpListener;
use std::time::{SystemTime, UNIX_EPOCH};

const TINY: &str = "llama-q4";
const OTHER: &str = "qwen2-q4";

/// From the first look at the menu to the last process.
#[test]
fn a_day_with_the_icon() {
    let desk = Desk::new();
    let mut app = App::new(&desk);
    app.add_model(TINY, "Tiny-Llama");
    app.add_model(OTHER, "Tiny-Qwen");
    app.start();
    let address = app.address();

    // Two models and none used last: it is the user's choice.
    desk.panel.wait_for("No model is loaded");
    desk.panel.click(&["Start a Model", "Tiny-Llama"]);
    desk.panel.wait_for("Tiny-Llama is ready");
    let models = app.get("/v1/models");
    assert!(models["data"].as_array().unwrap().iter().any(|m| m["id"] == "Tiny-Llama"), "{models}");

    desk.panel.click(&["Copy Address"]);
    desk.clipboard_becomes(&format!("{address}/v1"));

    assert_eq!(desk.windows(), Vec::<String>::new(), "an app in the menu bar begins without a window");
    desk.panel.click(&["Open Dashboard"]);
    desk.wait_for_windows(1);
    desk.close_window();
    desk.wait_for_windows(0);
    assert_eq!(app.get("/health")["status"], "ready", "it goes on without a window");

    // A second start shows the window of the first, and is over.
    assert_eq!(app.start_again().code(), Some(0));
    desk.wait_for_windows(1);
    assert_eq!(app.address(), address);

    desk.panel.click(&["Start a Model", "Tiny-Qwen"]);
    desk.panel.wait_for("Tiny-Qwen: ready");
    // Both are in memory, each with a line of its own, and one can go without the other.
    desk.panel.wait_for("Tiny-Llama: ready");
    desk.panel.wait_for("Tiny-Qwen and Tiny-Llama are ready");
    desk.panel.click(&["Tiny-Llama: ready", "Unload"]);
    desk.panel.wait_for("Tiny-Qwen is ready");
    assert_eq!(app.get("/stats")["models"].as_array().unwrap().len(), 1);

    // An answer runs when the user quits.
    let answer = app.unread_answer();
    assert_eq!(answer.status(), 200);
    desk.panel.wait_for("Tiny-Qwen: 1 answer");
    desk::eventually("the processes of the window", || app.family().len() > 1);
    let family = app.family();
    desk.panel.click(&["Quit Hearth"]);
    let (status, took) = app.wait();
    println!("quitting with an answer running took {:.2} s", took.as_secs_f64());
    assert_eq!(status.code(), Some(0));
    drop(answer);
    let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
    drop(TcpListener::bind(("127.0.0.1", port)).unwrap());
    app::gone(&family);
    assert!(!app.home().join("running.json").exists(), "the end was in order");
    assert!(!app.home().join("server.json").exists());
}

/// The window shows the dashboard of the server in its own process, let in by a link that worked once.
#[test]
fn the_window_is_the_dashboard() {
    let desk = Desk::new();
    let mut app = App::new(&desk);
    app.add_model(TINY, "Tiny-Llama");
    let driver = Driver::start(&desk, &app);
    let waiting = driver.begin();
    app.adopt();
    desk.panel.wait_for("Tiny-Llama is ready");
    let clicked = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() * 1e3;
    desk.panel.click(&["Open Dashboard"]);
    let session = waiting.join().unwrap();
    let address = app.address();
    let shown = |script: &str, what: &str| desk::eventually(what, || session.run(script).as_bool() == Some(true));
    shown("return document.readyState === 'complete' && location.protocol === 'http:'", "the dashboard");
    let url = session.url();
    assert!(url.starts_with(&format!("{address}/")) && !url.contains("ticket"), "{url}");
    // Once the page has drawn itself it carries its own name.
    shown("return document.title === 'Overview · Hearth'", "the overview");
    let paint = "const [first] = performance.getEntriesByName('first-contentful-paint'); \
                 return first ? performance.timeOrigin + first.startTime : null";
    println!("first paint {:?} ms after the click", session.run(paint).as_f64().map(|at| (at - clicked).round()));
    let (status, settings) = session.fetch("/api/hearth/settings");
    assert_eq!(status, 200, "{settings}");
    assert_eq!(
        session.run("return typeof window.__TAURI__"),
        json!("undefined"),
        "the page needs nothing of the app's"
    );
    // What only a start takes is said, and the app can begin anew: the page stays signed in and comes back by itself.
    let put = "fetch('/api/hearth/settings', { method: 'PUT', headers: { 'content-type': 'application/json' }, \
               body: JSON.stringify({ api_key_required: true, launch_at_login: true }) }); location.hash = '#/settings'; return 0";
    session.run(put);
    desk::eventually("the autostart file", || app.config().join("autostart/hearth.desktop").exists());
    let button = "[...document.querySelectorAll('button')].find((b) => b.textContent.trim() === 'Restart now')";
    shown(&format!("return {button} !== undefined"), "the way to restart");
    shown("return document.querySelector('#set-launch_at_login').checked", "the login item in the settings");
    session.run(&format!("{button}.click(); return 0"));
    shown(
        &format!("return {button} === undefined && document.querySelector('.side .dot.good') !== null"),
        "the page again",
    );
    assert_eq!(app.address(), address);
    desk.panel.wait_for("Tiny-Llama is ready");
    assert!(app.get("/v1/models")["error"]["message"].as_str().unwrap().contains("key"), "the key is asked for now");
    let (status, settings) = session.fetch("/api/hearth/settings");
    assert_eq!((status, &settings["settings"]["api_key_required"]["pending"]), (200, &json!(false)), "{settings}");
    // What leads elsewhere does not lead the window there.
    session.run("location.href = 'http://127.0.0.1:1/elsewhere'; return 0");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(session.url().starts_with(&address), "{}", session.url());
    session.screenshot(&std::env::temp_dir().join("hearth-dashboard.png"));
    desk.panel.click(&["Quit Hearth"]);
    app.wait_adopted();
}

/// Another program has the usual port.
#[test]
fn a_taken_port_is_told_and_the_address_copied() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().port();
    let desk = Desk::new();
    let mut app = App::new(&desk);
    app.use_port(taken);
    app.start();
    let address = app.address();
    assert!(!address.ends_with(&format!(":{taken}")), "{address}");
    desk.clipboard_becomes(&format!("{address}/v1"));
    let note = desk.panel.notification("Hearth serves on another port");
    assert!(note.contains(&format!("Port {taken} is taken")) && note.contains(&address), "{note}");
    desk.panel.wait_for(&format!("Serving on {address}"));
    drop(holder);
    desk.panel.click(&["Quit Hearth"]);
    assert_eq!(app.wait().0.code(), Some(0));
}

/// Settings that cannot be used: the menu says so, however early that was.
#[test]
fn a_start_that_fails_says_why_in_the_menu() {
    let desk = Desk::new();
    let mut app = App::new(&desk);
    std::fs::write(app.home().join("settings.toml"), "api_key_required = true\n").unwrap();
    app.start();
    let why = "api_key_required = true needs an api_key";
    desk.panel.wait_for(why);
    assert!(desk.panel.notification("Hearth cannot serve").contains(why));
    desk.panel.click(&["Open Dashboard"]);
    desk.wait_for_windows(1);
    desk.panel.click(&["Quit Hearth"]);
    assert_eq!(app.wait().0.code(), Some(0));
}

/// Another process serves from the same home: the app says so, and serves when that one has ended.
#[test]
fn it_takes_over_when_another_server_ends() {
    let desk = Desk::new();
    let mut app = App::new(&desk);
    app.add_model(TINY, "Tiny-Llama");
    let Ownership::Owned(other) = Home::at(app.home()).acquire().unwrap() else { panic!("nobody else is here") };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let record = json!({"pid": std::process::id(), "host": "127.0.0.1", "port": port, "model": null, "started": 1, "token": "t"});
    other.publish(&serde_json::from_value(record).unwrap()).unwrap();
    app.start();
    desk.panel.wait_for("Another Hearth serves");
    drop(other);
    desk.panel.wait_for("No model is loaded");
    let models = app.get("/v1/models");
    assert_eq!(models["data"][0]["id"], "Tiny-Llama", "{models}");
    assert!(app.address().ends_with(&format!(":{port}")), "on the address that the other one had: {}", app.address());
    desk.panel.click(&["Quit Hearth"]);
    assert_eq!(app.wait().0.code(), Some(0));
}

/// After a crash nothing is loaded by itself, and the user hears why.
#[test]
fn after_a_crash_nothing_is_loaded_until_it_is_asked_for() {
    let desk = Desk::new();
    let mut app = App::new(&desk);
    app.add_model(TINY, "Tiny-Llama");
    app.start();
    desk.panel.wait_for("Tiny-Llama is ready");
    app.kill();
    assert!(app.home().join("running.json").exists());
    app.start();
    let why = desk.panel.notification("Nothing is loaded");
    assert!(why.contains("Tiny-Llama"), "{why}");
    desk.panel.wait_for("No model is loaded");
    desk.panel.click(&["Start a Model", "Tiny-Llama"]);
    desk.panel.wait_for("Tiny-Llama is ready");
    app.terminate();
    assert_eq!(app.wait().0.code(), Some(0), "a signal ends it as the menu does");
    assert!(!app.home().join("running.json").exists());
}

/// The login item, as a desktop on Linux has it.
#[test]
fn starting_at_login_is_a_file_that_comes_and_goes() {
    let desk = Desk::new();
    let mut app = App::new(&desk);
    app.start();
    let file = app.config().join("autostart/hearth.desktop");
    assert!(!file.exists());
    desk.panel.click(&["Launch at Login"]);
    desk::eventually("the autostart file", || file.exists());
    desk::eventually("the check mark", || desk.panel.is_checked("Launch at Login"));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("hearth-desktop"), "{text}");
    desk.panel.click(&["Launch at Login"]);
    desk::eventually("no autostart file", || !file.exists());
    desk.panel.click(&["Quit Hearth"]);
    assert_eq!(app.wait().0.code(), Some(0));
}
