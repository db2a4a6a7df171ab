//! A model hub for tests: real HTTP on 127.0.0.1 with the routes of a hub, a second host for large files, tokens, gated and renamed
//! repositories, and faults on demand. It counts what it sent, and notices a token that reaches the wrong host.
//!
//! ```no_run
//! let hub = hearth_test_hub::Hub::start()?;
//! hub.add("org/tiny", &[("config.json", b"{}"), ("model.safetensors", &[0; 4096])]);
//! println!("HF_ENDPOINT={}", hub.url());
//! # anyhow::Ok(())
//! ```

mod answers;
mod bodies;
mod content;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use content::Repo;
pub use content::{Blob, git_sum, sha256_sum, sharded_model, tiny_model};

/// A token that the hub knows.
pub const TOKEN: &str = "hf_good";

/// What goes wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// This status, without an explanation.
    Status(u16),
    /// 429 with `Retry-After` of so many seconds.
    Busy(u64),
    /// The connection ends after so many bytes of the body.
    Drop(usize),
    /// Nothing comes after so many bytes of the body.
    Stall(usize),
    /// The byte at this place of the file is wrong, where it is sent.
    Corrupt(u64),
    /// The whole file, whatever range was asked for.
    NoRange,
    /// A new ETag from now on.
    NewTag,
    /// Everything is sent after so many milliseconds.
    Late(u64),
}

/// A fault, for requests whose path holds a text, so many times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Part of the path.
    pub path: String,
    /// What goes wrong.
    pub fault: Fault,
    /// How often.
    pub times: u32,
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its method.
    pub method: String,
    /// Its path with its query.
    pub path: String,
    /// The bytes that it asked for: first, and the one after the last.
    pub range: Option<(u64, u64)>,
    /// Whether it carried a token.
    pub token: bool,
    /// Whether it came to the second host.
    pub storage: bool,
}

/// A running hub; it ends with the value.
pub struct Hub {
    state: Arc<State>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

pub(crate) struct State {
    pub hub: SocketAddr,
    pub storage: SocketAddr,
    inner: Mutex<Inner>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub repos: BTreeMap<String, Repo>,
    pub renamed: BTreeMap<String, String>,
    pub faults: Vec<Plan>,
    pub seen: Vec<Seen>,
    pub served: BTreeMap<String, u64>,
    pub leaks: u32,
    pub latency: Duration,
    pub rate: Option<u64>,
    pub tags: u32,
    pub bare: bool,
}

impl State {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    /// Starts on free ports, in a thread of its own.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start() -> Result<Self> {
        Self::start_on(0)
    }

    /// Starts on this port (0 is a free one).
    ///
    /// # Errors
    /// When a port cannot be had.
    pub fn start_on(port: u16) -> Result<Self> {
        let listen = |port: u16| -> Result<std::net::TcpListener> {
            let listener = std::net::TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port}"))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let (hub, storage) = (listen(port)?, listen(0)?);
        let state = Arc::new(State { hub: hub.local_addr()?, storage: storage.local_addr()?, inner: Mutex::default() });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let served = state.clone();
        std::thread::Builder::new().name("test-hub".into()).spawn(move || {
            runtime.block_on(async move {
                let both = async {
                    tokio::join!(
                        answers::serve(hub, served.clone(), false),
                        answers::serve(storage, served.clone(), true)
                    )
                };
                tokio::select! {
                    _ = stopped => {}
                    _ = both => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { state, _stop: stop })
    }

    /// `http://127.0.0.1:PORT`, for `HF_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.state.hub)
    }

    /// Adds a repository, or a new commit to it; the commit. Files of 1 MB and more, and all safetensors, are in large-file storage.
    pub fn add(&self, repo: &str, files: &[(&str, &[u8])]) -> String {
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), Blob::new(path, bytes.to_vec()))).collect();
        self.add_blobs(repo, files)
    }

    /// As [`Hub::add`], with the files of a folder, of which links are followed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn add_folder(&self, repo: &str, folder: &Path) -> Result<String> {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let path = entry?.path();
            if path.is_file() {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let blob = Blob::new(&name, std::fs::read(&path)?);
                files.insert(name, blob);
            }
        }
        Ok(self.add_blobs(repo, files))
    }

    fn add_blobs(&self, repo: &str, files: BTreeMap<String, Blob>) -> String {
        let mut inner = self.state.lock();
        inner.repos.entry(repo.to_owned()).or_default().commit(files)
    }

    /// From now on `old` is called `new`.
    pub fn rename(&self, old: &str, new: &str) {
        let mut inner = self.state.lock();
        if let Some(repo) = inner.repos.remove(old) {
            inner.repos.insert(new.to_owned(), repo);
        }
        inner.renamed.insert(old.to_owned(), new.to_owned());
    }

    /// The repository's files need accepted terms; those of [`TOKEN`] are accepted or not.
    pub fn gate(&self, repo: &str, accepted: bool) {
        if let Some(repo) = self.state.lock().repos.get_mut(repo) {
            repo.gated = Some(accepted);
        }
    }

    /// Only [`TOKEN`] sees the repository.
    pub fn hide(&self, repo: &str) {
        if let Some(repo) = self.state.lock().repos.get_mut(repo) {
            repo.private = true;
        }
    }

    /// The listing leaves out lengths and checksums, as mirrors do.
    pub fn bare(&self) {
        self.state.lock().bare = true;
    }

    /// Plans a fault.
    pub fn fault(&self, path: &str, fault: Fault, times: u32) {
        self.state.lock().faults.push(Plan { path: path.to_owned(), fault, times });
    }

    /// Forgets all planned faults.
    pub fn calm(&self) {
        self.state.lock().faults.clear();
    }

    /// Adds this time to each answer.
    pub fn latency(&self, time: Duration) {
        self.state.lock().latency = time;
    }

    /// Bytes per second of each connection.
    pub fn rate(&self, bytes: Option<u64>) {
        self.state.lock().rate = bytes;
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().seen.clone()
    }

    /// Bytes sent of all files so far.
    pub fn served(&self) -> u64 {
        self.state.lock().served.values().sum()
    }

    /// Forgets what came and was sent.
    pub fn forget(&self) {
        let mut inner = self.state.lock();
        inner.seen.clear();
        inner.served.clear();
    }

    /// How often a token came to the host that must not have it.
    pub fn leaks(&self) -> u32 {
        self.state.lock().leaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(url: &str, range: Option<&str>) -> reqwest::blocking::Response {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let request = client.get(url);
        range.map_or_else(|| client.get(url), |r| request.header("range", r)).send().unwrap()
    }

    #[test]
    fn files_come_whole_and_in_ranges_and_large_ones_from_the_other_host() {
        let hub = Hub::start().unwrap();
        let body: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let commit = hub.add("org/tiny", &[("config.json", b"{}"), ("model.safetensors", &body)]);
        let info: serde_json::Value =
            get(&format!("{}/api/models/org/tiny/revision/main", hub.url()), None).json().unwrap();
        assert_eq!((info["sha"].as_str(), info["siblings"].as_array().unwrap().len()), (Some(commit.as_str()), 2));
        let file = format!("{}/org/tiny/resolve/{commit}/model.safetensors", hub.url());
        assert_eq!(get(&file, None).bytes().unwrap(), body);
        let part = get(&file, Some("bytes=100-199"));
        assert_eq!(
            (part.status().as_u16(), part.headers()["content-range"].to_str().unwrap()),
            (206, "bytes 100-199/10000")
        );
        assert_eq!(part.bytes().unwrap(), &body[100..200]);
        assert_eq!(hub.served(), 10_100);
        assert!(hub.seen().iter().any(|s| s.storage && s.range == Some((100, 200))));
        hub.fault("model.safetensors", Fault::Status(503), 1);
        assert_eq!(get(&file, None).status(), 503);
        assert_eq!(get(&file, None).status(), 200);
        hub.fault("/lfs/", Fault::Drop(50), 1);
        assert!(get(&file, None).bytes().is_err());
    }
}
