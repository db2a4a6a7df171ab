//! The app's window as a browser: WebKit's own WebDriver starts the app and drives the page in its window.

use crate::app::App;
use crate::desk::{Desk, Ended, eventually};
use crate::http::Http;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

/// A driver without a session.
pub struct Driver {
    base: String,
    program: String,
    _driver: Ended,
}

/// A page under control.
pub struct Session {
    url: String,
    client: Http,
}

impl Driver {
    /// Starts the driver for this app.
    pub fn start(desk: &Desk, app: &App<'_>) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut cmd = Command::new("WebKitWebDriver");
        app.surround(&mut cmd);
        desk.seat(&mut cmd);
        // The app's window lets itself be driven only when asked to.
        cmd.env("TAURI_WEBVIEW_AUTOMATION", "true").arg(format!("--port={port}")).stdout(Stdio::null());
        let driver = Ended(cmd.spawn().expect("WebKitWebDriver; `cargo xtask setup` installs it"));
        eventually("the driver", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let program = app.program().display().to_string();
        Driver { base: format!("http://127.0.0.1:{port}"), program, _driver: driver }
    }

    /// Starts the app. The session begins when it opens its first window.
    pub fn begin(&self) -> JoinHandle<Session> {
        let options = json!({"binary": self.program, "args": []});
        let body = json!({"capabilities": {"alwaysMatch": {"webkitgtk:browserOptions": options}}});
        let base = self.base.clone();
        std::thread::spawn(move || {
            let client = Http::new();
            let answer = client.post(&format!("{base}/session"), &body);
            let id = answer["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}"));
            Session { url: format!("{base}/session/{id}"), client }
        })
    }
}

impl Session {
    fn post(&self, path: &str, body: &Value) -> Value {
        self.client.post(&format!("{}{path}", self.url), body)["value"].clone()
    }

    fn get(&self, path: &str) -> Value {
        self.client.get(&format!("{}{path}", self.url))["value"].clone()
    }

    /// The page's address.
    pub fn url(&self) -> String {
        self.get("/url").as_str().unwrap_or_default().to_owned()
    }

    /// Runs a script in the page and gives what it returns.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Lets the page ask its server for something: the status, and the JSON.
    pub fn fetch(&self, path: &str) -> (u64, Value) {
        let script = "const done = arguments[arguments.length - 1]; \
                      fetch(arguments[0]).then(async r => done([r.status, await r.json()]), e => done([0, String(e)]))";
        let answer = self.post("/execute/async", &json!({"script": script, "args": [path]}));
        (answer[0].as_u64().unwrap_or_default(), answer[1].clone())
    }

    /// Keeps a picture of the page.
    pub fn screenshot(&self, file: &Path) {
        let picture = self.get("/screenshot");
        let text = picture.as_str().unwrap_or_default();
        assert!(text.len() > 1000, "the page has no picture");
        let decoded = Command::new("base64")
            .args(["-d"])
            .stdin(Stdio::piped())
            .stdout(std::fs::File::create(file).unwrap())
            .spawn();
        let mut decoder = decoded.unwrap();
        decoder.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(decoder.wait().unwrap().success());
    }
}
