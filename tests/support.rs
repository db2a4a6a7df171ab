//! What the end-to-end tests share: models, the real binary with a state folder of its own, a server that dies with
//! its test, small HTTP calls, and the official SDKs in the cache folder.
#![allow(dead_code, reason = "every test target uses a part of it")]

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test gives up. Far more than it takes: this only ends what hangs.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The folder of the starter model, a real one.
pub fn starter() -> PathBuf {
    match std::env::var_os("HEARTH_STARTER").map(PathBuf::from) {
        Some(folder) if folder.join("config.json").is_file() => folder,
        Some(folder) => panic!("HEARTH_STARTER is {}, which is no model folder", folder.display()),
        None => panic!(
            "this test needs the starter model: `cargo xtask test` gives it, or set HEARTH_STARTER to the folder that \
             `cargo xtask starter` prints"
        ),
    }
}

/// A tiny random model of the repository.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name).canonicalize().unwrap()
}

/// A copy of a tiny model, to be damaged.
pub fn copy_model(from: &Path, to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let file = entry.unwrap().path();
        if file.file_name().unwrap() != "ref.safetensors" {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    to.to_owned()
}

/// Changes one field of a JSON file.
pub fn edit_json(file: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    edit(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// An empty place for one test: Hearth's state, and nothing of the user's.
pub struct Place {
    /// The folder; `home` in it is HEARTH_HOME.
    pub dir: TempDir,
}

impl Place {
    /// A new one.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("hearth-test-").tempdir().unwrap();
        for name in ["home", "user", "hub"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Place { dir }
    }

    /// A new one with a copy of this tiny model in Hearth's own models folder.
    pub fn with_model(tiny: &str, name: &str) -> Self {
        let place = Place::new();
        place.put(tiny, name);
        place
    }

    /// Puts a copy of a tiny model into Hearth's own models folder.
    pub fn put(&self, tiny: &str, name: &str) -> PathBuf {
        copy_model(&golden(tiny), &self.home().join("models").join(name))
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// HEARTH_HOME.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// One admin request with the key of this home's server: status and JSON.
    pub fn admin(&self, method: reqwest::Method, path: &str, body: Option<Value>) -> (u16, Value) {
        let record: Value = serde_json::from_slice(&fs::read(self.home().join("server.json")).unwrap()).unwrap();
        let url = format!("http://127.0.0.1:{}{path}", record["port"]);
        let mut request = http().request(method, url).bearer_auth(record["token"].as_str().unwrap());
        if let Some(body) = body {
            request = request.json(&body);
        }
        let reply = request.send().unwrap();
        (reply.status().as_u16(), reply.json().unwrap_or_default())
    }

    /// `hearth` with these arguments, blind to the user's own settings and models.
    pub fn hearth<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut cmd = Command::new(env!("CARGO_BIN_EXE_hearth"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if text.starts_with("HEARTH_") || text.starts_with("HF_") || text.starts_with("XDG_") {
                cmd.env_remove(&name);
            }
        }
        cmd.args(args).env("HEARTH_HOME", self.home()).env("HOME", self.path("user"));
        cmd.env("HF_HUB_CACHE", self.path("hub")).current_dir(self.dir.path()).stdin(Stdio::null());
        cmd
    }

    /// Runs `hearth` to its end.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Ran {
        ran(self.hearth(args))
    }
}

/// What a finished `hearth` left.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e} in: {self:?}"))
    }

    /// Checks the exit code; returns itself.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }
}

/// Runs a command to its end, at most [`PATIENCE`].
#[track_caller]
pub fn ran(cmd: Command) -> Ran {
    let Output { status, stdout, stderr } = output(cmd);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
}

/// `Command::output` that kills what hangs.
#[track_caller]
fn output(mut cmd: Command) -> Output {
    let mut child = cmd.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.unwrap().read_to_end(&mut bytes).unwrap();
            bytes
        })
    };
    let stdout = read(child.stdout.take().map(|p| Box::new(p) as _));
    let stderr = read(child.stderr.take().map(|p| Box::new(p) as _));
    let status = wait(&mut child);
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Waits for a process to end; kills it when [`PATIENCE`] is over.
#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("process {} did not end and was killed", child.id());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Tries again until `done` says so.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A running `hearth serve`, killed when dropped.
pub struct Server {
    pub child: Child,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    pub place: Place,
    lines: Mutex<Receiver<String>>,
}

impl Server {
    /// Serves a model on a free port; returns when it is ready.
    #[track_caller]
    pub fn start(model: &Path, args: &[&str]) -> Self {
        let server = Self::begin(Some(model), args);
        let ready = server.line();
        assert!(ready.starts_with("ready: "), "{ready}");
        server
    }

    /// Serves on a free port; returns when it listens.
    #[track_caller]
    pub fn begin(model: Option<&Path>, args: &[&str]) -> Self {
        let place = Place::new();
        let mut cmd = place.hearth(&["serve", "--port", "0"]);
        if let Some(model) = model {
            cmd.arg(model);
        }
        cmd.args(args);
        Self::spawn(place, cmd)
    }

    /// Runs a prepared `hearth serve`; returns when it listens.
    #[track_caller]
    pub fn spawn(place: Place, mut cmd: Command) -> Self {
        let mut child = cmd.stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut server = Server { child, url: String::new(), place, lines: Mutex::new(lines) };
        let first = server.line();
        let url = first.strip_prefix("listening on ").unwrap_or_else(|| panic!("the first line is: {first}"));
        server.url = url.to_owned();
        server
    }

    /// The next line of its standard output.
    #[track_caller]
    pub fn line(&self) -> String {
        match self.lines.lock().unwrap().recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the server says nothing"),
            Err(RecvTimeoutError::Disconnected) => panic!("the server ended without another line"),
        }
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The port alone.
    pub fn port(&self) -> u16 {
        self.address().rsplit(':').next().unwrap().parse().unwrap()
    }

    /// GET a path: status and JSON.
    pub fn get(&self, path: &str) -> (u16, Value) {
        let reply = http().get(format!("{}{path}", self.url)).send().unwrap();
        (reply.status().as_u16(), reply.json().unwrap_or_default())
    }

    /// POST a JSON body: status and JSON.
    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let reply = http().post(format!("{}{path}", self.url)).json(body).send().unwrap();
        (reply.status().as_u16(), reply.json().unwrap_or_default())
    }

    /// POST a JSON body that has to be answered with 200.
    #[track_caller]
    pub fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.post(path, body);
        assert_eq!(status, 200, "{path} {body}: {reply}");
        reply
    }

    /// POST a body that has to be answered with a stream of `data: ` lines, `[DONE]` last: the values before it.
    #[track_caller]
    pub fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let reply = http().post(format!("{}{path}", self.url)).json(body).send().unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()["content-type"], "text/event-stream");
        let text = reply.text().unwrap();
        assert!(text.ends_with("\n\n"), "{text}");
        let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{text}");
        data.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Sends raw bytes on a new connection.
    pub fn raw(&self, request: &[u8]) -> TcpStream {
        let mut socket = TcpStream::connect(self.address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // The server may refuse and close while we still send.
        let _ = socket.write_all(request);
        socket
    }

    /// A POST as raw bytes.
    pub fn raw_post(&self, path: &str, body: &[u8]) -> TcpStream {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.address(),
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    /// Waits until nothing is computed and nothing waits.
    #[track_caller]
    pub fn idle(&self) -> Value {
        let mut stats = json!(null);
        eventually("rows return to 0", || {
            stats = self.get("/stats").1;
            stats["rows"] == json!([]) && stats["waiting"] == 0
        });
        stats
    }

    /// Sends a signal to the server alone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that is patient and asks no proxy.
pub fn http() -> reqwest::blocking::Client {
    reqwest::blocking::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

/// The folder for what is slow to make, the same one that `cargo xtask` uses.
fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is not set"));
    let user = match std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir,
        None if cfg!(target_os = "macos") => home().join("Library/Caches"),
        None => home().join(".cache"),
    };
    user.join("hearth")
}

/// The cache folder `NAME-HASH`, where the hash is that of `key`; made by `make` when it is not there.
fn cached(name: &str, key: &[u8], make: impl FnOnce(&Path)) -> PathBuf {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let folder = cache().join(format!("{name}-{:016x}", hasher.finish()));
    fs::create_dir_all(cache()).unwrap();
    let lock = fs::File::create(cache().join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    if !folder.is_dir() {
        let part = folder.with_extension("part");
        let _ = fs::remove_dir_all(&part);
        fs::create_dir_all(&part).unwrap();
        make(&part);
        fs::rename(&part, &folder).unwrap();
    }
    folder
}

/// Runs a set-up step; panics with its output when it fails.
#[track_caller]
fn set_up(cmd: Command, hint: &str) {
    let shown = format!("{cmd:?}");
    let done = ran(cmd);
    assert_eq!(done.code, 0, "{shown} failed; {hint}\n{}{}", done.out, done.err);
}

/// The repository's `tests` folder.
pub fn tests_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").canonicalize().unwrap()
}

/// A Python with the official `openai` package.
pub fn openai_python() -> PathBuf {
    python_with("openai-python", "python/requirements.txt")
}

/// A Python with the model hub's own client.
pub fn hub_python() -> PathBuf {
    python_with("hub-python", "python/hub-requirements.txt")
}

/// A Python with the packages of a list in the tests' folder.
fn python_with(name: &str, list: &str) -> PathBuf {
    let list = tests_dir().join(list);
    let folder = cached(name, &fs::read(&list).unwrap(), |part| {
        let hint = "Python 3.11 or newer with venv and pip is needed (Debian: apt-get install python3-venv)";
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(part);
        set_up(venv, hint);
        let mut pip = Command::new(part.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&list);
        set_up(pip, hint);
    });
    folder.join("bin/python")
}

/// A folder whose `node_modules` holds the official `openai` package.
pub fn openai_node() -> PathBuf {
    let files = ["package.json", "package-lock.json"].map(|name| tests_dir().join("node").join(name));
    let key = files.each_ref().map(|file| fs::read(file).unwrap()).concat();
    cached("openai-node", &key, |part| {
        for file in &files {
            fs::copy(file, part.join(file.file_name().unwrap())).unwrap();
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--silent"]).current_dir(part);
        set_up(npm, "Node 20.19 or newer with npm is needed");
    })
}
