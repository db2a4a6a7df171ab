//! The app under test: the real binary with a state folder of its own.

use crate::desk::{Desk, Ended, eventually};
use crate::http::{Answer, Http};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hearth-desktop");

/// The app and its place.
pub struct App<'a> {
    desk: &'a Desk,
    place: TempDir,
    child: Option<Ended>,
    /// Its process id, where another program started it.
    adopted: Option<u32>,
    /// The port that it is to have; of its own, so that tests do not meet.
    port: u16,
    client: Http,
}

impl<'a> App<'a> {
    /// An app that was never started, without models.
    pub fn new(desk: &'a Desk) -> Self {
        let place = tempfile::Builder::new().prefix("hearth-app-").tempdir().unwrap();
        for name in ["home/models", "user", "config", "hub"] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        let client = Http::new();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        App { desk, place, child: None, adopted: None, port, client }
    }

    /// Asks for this port instead.
    pub fn use_port(&mut self, port: u16) {
        self.port = port;
    }

    /// HEARTH_HOME.
    pub fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    /// XDG_CONFIG_HOME.
    pub fn config(&self) -> PathBuf {
        self.place.path().join("config")
    }

    /// The program's file.
    pub fn program(&self) -> &'static Path {
        Path::new(PROGRAM)
    }

    /// Puts one of the repository's tiny models on disk.
    pub fn add_model(&self, golden: &str, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(golden);
        let to = self.home().join("models").join(name);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let file = entry.unwrap().path();
            let name = file.file_name().unwrap();
            if name != "ref.safetensors" {
                fs::copy(&file, to.join(name)).unwrap();
            }
        }
    }

    /// Gives a program this app's desk and place, and nothing of the user's.
    pub fn surround(&self, cmd: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if ["HEARTH_", "HF_", "XDG_"].iter().any(|begin| text.starts_with(begin)) {
                cmd.env_remove(&name);
            }
        }
        self.desk.seat(cmd);
        cmd.env("HEARTH_PORT", self.port.to_string());
        cmd.env("HEARTH_HOME", self.home()).env("HOME", self.place.path().join("user"));
        cmd.env("XDG_CONFIG_HOME", self.config()).env("HF_HUB_CACHE", self.place.path().join("hub"));
        cmd.current_dir(self.place.path()).stdin(Stdio::null());
    }

    fn command(&self) -> Command {
        let mut cmd = Command::new(PROGRAM);
        self.surround(&mut cmd);
        cmd
    }

    /// Starts it.
    pub fn start(&mut self) {
        self.child = Some(Ended(self.command().spawn().unwrap()));
    }

    /// Starts it a second time, and waits for that to end.
    pub fn start_again(&self) -> ExitStatus {
        let mut second = Ended(self.command().spawn().unwrap());
        wait(&mut second.0)
    }

    /// Takes over the one that a WebDriver started.
    pub fn adopt(&mut self) {
        eventually("the app that the driver starts", || self.record().is_some());
        self.adopted = self.record().and_then(|record| record["pid"].as_u64()).and_then(|pid| u32::try_from(pid).ok());
    }

    fn record(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.home().join("server.json")).ok()?).ok()
    }

    /// Where it serves, once it does.
    #[track_caller]
    pub fn address(&self) -> String {
        let mut address = None;
        eventually("the server", || {
            address = self.record().map(|record| format!("http://127.0.0.1:{}", record["port"]));
            address.as_ref().is_some_and(|a| self.client.answers(&format!("{a}/health")))
        });
        address.unwrap()
    }

    /// The answer to a GET.
    pub fn get(&self, path: &str) -> Value {
        self.client.get(&format!("{}{path}", self.address()))
    }

    /// Begins an answer that nobody reads: with all its log-probabilities it is more than the connection holds, so that it
    /// runs until somebody ends it.
    pub fn unread_answer(&self) -> Answer {
        let bias = self.never_ends();
        let body = json!({"prompt": "Once", "max_tokens": 4000, "stream": true, "logprobs": 20, "logit_bias": bias});
        self.client.begin(&format!("{}/v1/completions", self.address()), &body)
    }

    /// The end-of-sequence ids of all models, forbidden.
    fn never_ends(&self) -> Value {
        let mut bias = serde_json::Map::new();
        for model in fs::read_dir(self.home().join("models")).unwrap() {
            let config: Value =
                serde_json::from_slice(&fs::read(model.unwrap().path().join("config.json")).unwrap()).unwrap();
            let ids = match &config["eos_token_id"] {
                Value::Array(ids) => ids.clone(),
                Value::Null => Vec::new(),
                one => vec![one.clone()],
            };
            bias.extend(ids.iter().map(|id| (id.to_string(), json!(-100))));
        }
        Value::Object(bias)
    }

    fn pid(&self) -> u32 {
        self.adopted.or_else(|| self.child.as_ref().map(|child| child.0.id())).expect("a started app")
    }

    /// It and all processes that it started, and theirs.
    pub fn family(&self) -> Vec<u32> {
        let mut family = vec![self.pid()];
        let mut next = 0;
        while next < family.len() {
            let parent = family[next];
            family.extend(processes().into_iter().filter(|(_, p)| *p == parent).map(|(pid, _)| pid));
            next += 1;
        }
        family
    }

    /// Waits for its end, which took so long.
    #[track_caller]
    pub fn wait(&mut self) -> (ExitStatus, Duration) {
        let began = Instant::now();
        let mut child = self.child.take().expect("a started app");
        (wait(&mut child.0), began.elapsed())
    }

    /// Waits for the end of an adopted one.
    #[track_caller]
    pub fn wait_adopted(&self) {
        let pid = self.pid();
        eventually("the end of the app", || !is_there(pid));
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let family = self.family();
        drop(self.child.take());
        gone(&family);
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let status = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

#[track_caller]
fn wait(child: &mut Child) -> ExitStatus {
    let mut status = None;
    eventually("the end of the app", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Processes and their parents.
fn processes() -> Vec<(u32, u32)> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_string_lossy().parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// The parent of a process that runs.
fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything.
    let mut rest = text.rsplit(')').next()?.split_whitespace();
    let state = rest.next()?;
    let parent = rest.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}

fn is_there(pid: u32) -> bool {
    parent(pid).is_some()
}

/// Waits until none of these processes is left.
#[track_caller]
pub fn gone(family: &[u32]) {
    eventually("the end of every process of the app", || !family.iter().any(|pid| is_there(*pid)));
}
