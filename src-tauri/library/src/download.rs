//! Downloads from the hub into the Hugging Face cache: one job per model and revision, whoever asks, which can be paused, goes on where
//! it was after any end of the process, and leaves nothing unverified.
//!
//! [`DownloadManager`] is the whole interface. Jobs run on threads of its own, so that it works the same in a command, in the server
//! and in the app; what they do is broadcast as [`Download`] values.

mod files;
mod job;
mod lock;
mod manager;
mod part;
mod plan;
mod state;
mod transfer;
mod verify;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use manager::elsewhere;
pub use manager::{DownloadManager, ELSEWHERE};
pub(crate) use plan::needed;

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DownloadState {
    /// It waits for another one to end.
    Queued,
    /// The hub is asked what there is.
    Checking,
    /// Files are coming.
    Downloading,
    /// Everything is here, and the last checksums are computed.
    Verifying,
    /// Stopped by the user, or by the end of the process; it goes on when asked to.
    Paused,
    /// Complete and verified.
    Done,
    /// Stopped by a fault, which `message` says; what is there stays, and it can be resumed.
    Failed,
    /// Stopped by the user, and what it had fetched is removed.
    Cancelled,
}

impl DownloadState {
    /// Whether something happens without anybody asking for it.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Queued | Self::Checking | Self::Downloading | Self::Verifying)
    }
}

/// Where one file of a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Not begun.
    Waiting,
    /// Coming.
    Downloading,
    /// Here, and its checksum is computed.
    Verifying,
    /// Here and verified.
    Done,
}

/// One file of a job, as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadFile {
    /// Its path in the repository.
    pub name: String,
    /// Bytes that are here.
    pub bytes: u64,
    /// Bytes it has.
    pub total: u64,
    /// Where it is.
    pub state: FileState,
}

/// A job, as shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Download {
    /// What it is called in the API: `org--name@revision`.
    pub id: String,
    /// The repository.
    pub repo: String,
    /// The revision that was asked for.
    pub revision: String,
    /// Where it is.
    pub state: DownloadState,
    /// Bytes that are here.
    pub bytes: u64,
    /// Bytes of all its files; 0 until the hub has said it.
    pub total: u64,
    /// Bytes per second lately.
    pub speed: u64,
    /// Seconds until it is done at this speed.
    pub remaining_s: Option<u64>,
    /// Its files.
    pub files: Vec<DownloadFile>,
    /// What there is to say: why it failed, what was unusual.
    pub message: Option<String>,
    /// The model's folder, once it is complete.
    pub path: Option<String>,
}

impl Download {
    /// How much of it is here, in whole percent; never 100 before it is done.
    pub fn percent(&self) -> u8 {
        match (self.state, self.total) {
            (DownloadState::Done, _) => 100,
            (_, 0) => 0,
            (_, total) => (u128::from(self.bytes) * 100 / u128::from(total)).min(99) as u8,
        }
    }
}

/// How downloads are done.
#[derive(Debug, Clone)]
pub struct DownloadOptions {
    /// Connections of one job; up to twice as many where there are more files than connections.
    pub connections: usize,
    /// Jobs at once; further ones wait.
    pub jobs: usize,
    /// Bytes after which progress is noted on disk: what a kill costs for each connection at most.
    pub chunk: u64,
    /// How often in a row a transfer may fail without a byte of progress.
    pub tries: u32,
    /// The wait after the first failure; doubled for each further one.
    pub backoff: Duration,
    /// The longest wait that a hub may ask for before the job fails instead.
    pub patience: Duration,
    /// Disk space that has to stay free.
    pub spare: u64,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            connections: 8,
            jobs: 2,
            chunk: 1 << 20,
            tries: 6,
            backoff: Duration::from_millis(500),
            patience: Duration::from_secs(300),
            spare: 250_000_000,
        }
    }
}

/// A size for people: `98.4 MB`.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
