//! Hearth's own folder: where it is, what is in it, who owns it.
//!
//! One process at a time serves from a home. It holds an operating-system lock, which ends with the process however it ends, and writes
//! `server.json`, so that a second process can talk to it or say who it is.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use etcetera::BaseStrategy;
use serde::{Deserialize, Serialize};

use crate::{LibraryError, json};

/// How often [`Home::acquire`] tries again while others look at the lock.
const LOCK_TRIES: usize = 200;

/// Reads one environment variable; tests give their own.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The environment of this process.
pub fn process_env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Hearth's state folder. The value is only a path: nothing is created until [`Home::prepare`] or a writing call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

/// What `server.json` says of the process that serves from this home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Its process id.
    pub pid: u32,
    /// The address it listens on.
    pub host: String,
    /// The port it listens on.
    pub port: u16,
    /// The model it serves, if one is loaded.
    pub model: Option<String>,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// The key of its admin routes, for this user's own commands. Only this user can read the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// The model that was served last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastModel {
    /// Its id or folder, as it can be given to [`crate::scan::resolve`].
    pub model: String,
    /// When, in seconds since 1970.
    pub used: u64,
}

/// The answer to [`Home::acquire`].
#[derive(Debug)]
pub enum Ownership {
    /// This process owns the home as long as it keeps the value.
    Owned(HomeLock),
    /// Another process does.
    Held(Holder),
}

/// The process that owns a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id, as far as it could be read.
    pub pid: Option<u32>,
    /// Its record; `None` while it is still starting.
    pub record: Option<ServerRecord>,
}

/// Ownership of a home. Dropping it removes `server.json` and gives the home back.
#[derive(Debug)]
pub struct HomeLock {
    /// Holds the lock.
    _file: File,
    record: PathBuf,
}

impl Home {
    /// The home of this user: `HEARTH_HOME`, or `~/Library/Application Support/Hearth` on macOS and `$XDG_DATA_HOME/hearth`
    /// (`~/.local/share/hearth`) elsewhere.
    ///
    /// # Errors
    /// [`LibraryError::NoHome`] if neither is known.
    pub fn locate() -> Result<Self, LibraryError> {
        Self::locate_in(&process_env)
    }

    /// As [`Home::locate`], with `HEARTH_HOME` read through `env`.
    ///
    /// # Errors
    /// As [`Home::locate`].
    pub fn locate_in(env: Env<'_>) -> Result<Self, LibraryError> {
        if let Some(set) = env("HEARTH_HOME").filter(|v| !v.is_empty()) {
            let path = PathBuf::from(set);
            return Ok(Self::at(std::path::absolute(&path).map_err(LibraryError::io("find", &path))?));
        }
        let strategy = etcetera::base_strategy::choose_native_strategy().map_err(|_| LibraryError::NoHome)?;
        let name = if cfg!(target_os = "macos") { "Hearth" } else { "hearth" };
        Ok(Self::at(strategy.data_dir().join(name)))
    }

    /// The home at `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Imported models, one folder each.
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// The prompt cache's files.
    pub fn cache(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// State of downloads.
    pub fn downloads(&self) -> PathBuf {
        self.root.join("downloads")
    }

    /// Log files.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The user's settings.
    pub fn settings(&self) -> PathBuf {
        self.root.join("settings.toml")
    }

    /// Other names of models, and settings of single ones.
    pub fn models_toml(&self) -> PathBuf {
        self.root.join("models.toml")
    }

    /// The record of the serving process.
    pub fn server_json(&self) -> PathBuf {
        self.root.join("server.json")
    }

    /// What the serving process has in memory; there without one, it did not end in order. See [`crate::marker`].
    pub fn running_json(&self) -> PathBuf {
        self.root.join("running.json")
    }

    /// What was predicted and what was measured. See [`crate::learned`].
    pub fn learned(&self) -> PathBuf {
        self.root.join("learned.jsonl")
    }

    fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    fn last_model_json(&self) -> PathBuf {
        self.root.join("last-model.json")
    }

    /// Creates the home and its folders, readable by this user only where they are new.
    ///
    /// # Errors
    /// [`LibraryError::Io`] with the folder that could not be made.
    pub fn prepare(&self) -> Result<(), LibraryError> {
        for folder in [self.root.clone(), self.models(), self.cache(), self.downloads(), self.logs()] {
            create_private(&folder)?;
        }
        Ok(())
    }

    /// Tries to become the owner of this home, creating it if it is new. Never waits for another owner.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the home cannot be written. That another process owns it is no error.
    pub fn acquire(&self) -> Result<Ownership, LibraryError> {
        self.prepare()?;
        let path = self.lock_file();
        for _ in 0..LOCK_TRIES {
            let mut file = open_lock(&path, true)?;
            match try_lock(file.try_lock(), &path)? {
                true => {
                    let pid = std::process::id().to_string();
                    let write = file
                        .set_len(0)
                        .and_then(|()| file.seek(SeekFrom::Start(0)))
                        .and_then(|_| file.write_all(pid.as_bytes()));
                    write.map_err(LibraryError::io("write", &path))?;
                    // Left by a process that was killed.
                    remove(&self.server_json())?;
                    return Ok(Ownership::Owned(HomeLock { _file: file, record: self.server_json() }));
                }
                // An owner's lock is exclusive. If a shared one can be had, somebody is only looking, and gone in a moment.
                false if !try_lock(file.try_lock_shared(), &path)? => break,
                false => {
                    drop(file);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
        Ok(Ownership::Held(self.holder()))
    }

    /// Who owns this home now; `None` if nobody does, whatever an old `server.json` says. Changes nothing.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the lock cannot be looked at.
    pub fn inspect(&self) -> Result<Option<Holder>, LibraryError> {
        let path = self.lock_file();
        if !path.exists() {
            return Ok(None);
        }
        let file = open_lock(&path, false)?;
        let nobody = try_lock(file.try_lock_shared(), &path)?;
        Ok((!nobody).then(|| self.holder()))
    }

    fn holder(&self) -> Holder {
        let record: Option<ServerRecord> = json::read(&self.server_json(), "a server record").ok();
        let mut text = String::new();
        let read = File::open(self.lock_file()).and_then(|f| f.take(32).read_to_string(&mut text));
        let pid = read.ok().and_then(|_| text.trim().parse().ok());
        Holder { pid: pid.or(record.as_ref().map(|r| r.pid)), record }
    }

    /// Remembers `model` as the one served last.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the home cannot be written.
    pub fn set_last_model(&self, model: &str) -> Result<(), LibraryError> {
        create_private(&self.root)?;
        json::write_atomically(&self.last_model_json(), &LastModel { model: model.to_owned(), used: now() })
    }

    /// The model that was served last, if one was and the record can be read.
    pub fn last_model(&self) -> Option<LastModel> {
        json::read(&self.last_model_json(), "the last model").ok()
    }
}

impl HomeLock {
    /// Writes `server.json`. Call it when the server listens, and again when the model changes.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if it cannot be written.
    pub fn publish(&self, record: &ServerRecord) -> Result<(), LibraryError> {
        json::write_atomically(&self.record, record)
    }
}

impl Drop for HomeLock {
    fn drop(&mut self) {
        // Before the lock ends, so that it cannot be the next owner's. A record that stays behind is ignored anyway.
        let _ = fs::remove_file(&self.record);
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.record, self.pid) {
            (Some(r), _) => {
                write!(f, "process {} serves on http://{}:{}", r.pid, bracketed(&r.host), r.port)?;
                match &r.model {
                    Some(model) => write!(f, " with {model}"),
                    None => Ok(()),
                }
            }
            (None, Some(pid)) => {
                write!(
                    f,
                    "process {pid} is starting or stopping (or its server.json was lost: then `kill {pid}` stops it)"
                )
            }
            (None, None) => f.write_str("another process is starting or stopping"),
        }
    }
}

/// An IPv6 address as it stands in a URL.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_secs()).unwrap_or(0)
}

/// Whether the lock was had.
fn try_lock(result: Result<(), TryLockError>, path: &Path) -> Result<bool, LibraryError> {
    match result {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(LibraryError::io("lock", path)(e)),
    }
}

fn open_lock(path: &Path, create: bool) -> Result<File, LibraryError> {
    // Opened for writing even to look: not every system locks a file that is open for reading only.
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .open(path)
        .map_err(LibraryError::io("open", path))
}

fn remove(path: &Path) -> Result<(), LibraryError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LibraryError::io("remove", path)(e)),
        _ => Ok(()),
    }
}

fn create_private(folder: &Path) -> Result<(), LibraryError> {
    use std::os::unix::fs::DirBuilderExt;
    if folder.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(LibraryError::io("create", folder))
}
