//! Server, engine and the home's records in one process, from the first lock to an end in order. The command line and the
//! app both start Hearth here, so that whoever looks from outside sees one and the same server.
//!
//! [`listen`] binds and says so in `server.json`; [`Listening::start`] adds the engine and keeps on record what it has in memory;
//! [`Host::serve`] answers; [`Host::save`] brings the prompt cache to disk, and [`Host::close`] ends the engine and gives
//! the home back.

pub mod common;
pub mod ending;
mod last_used;
pub mod learning;
mod leaving;
mod saving;
pub mod unclean;
pub mod words;

pub use leaving::leave_at_once;
pub use saving::{Saved, has_to_be_saved};

use ending::Ending;
use hearth_core::{Backend, EngineError, ServedModel};
use hearth_engine::{Engine, EngineHandle, EngineOptions};
use hearth_library::LibraryError;
use hearth_library::home::{Home, HomeLock, ServerRecord, now};
use hearth_library::scan::{ModelEntry, Source};
use hearth_server::settings::SettingsError;
use hearth_server::{Bound, ServerConfig, StartError, bind, serve};
use last_used::LastUsed;
use learning::Learner;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use unclean::{Recorder, Watch};

/// Why Hearth could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The server cannot be bound.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The settings ask for what cannot be.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The home cannot be written.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The engine cannot be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The system refused something else.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// 128 random bits for the admin routes, new with every start.
///
/// # Errors
/// When the system has no random bytes.
pub fn new_token() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// What finds this model again. A folder outside the usual places is found only by its path.
pub fn name_of(entry: &ModelEntry) -> String {
    match entry.source {
        Source::Folder => entry.path.display().to_string(),
        _ => entry.id.clone(),
    }
}

/// Memory for the prompt cache when nobody says how much: 8 GiB, or a quarter of what there is.
pub fn default_cache_ram() -> u64 {
    const MOST: u64 = 8 << 30;
    // A size that people can read when it is printed back.
    const STEP: u64 = 128 << 20;
    match hearth_machine::memory().total {
        0 => MOST / 8, // unknown
        total => MOST.min((total / 4 / STEP).max(1) * STEP),
    }
}

/// The prompt cache on disk when nobody says how much.
pub const DEFAULT_CACHE_SSD: u64 = 32 << 30;

/// A bound server without an engine. Connections wait.
pub struct Listening {
    home: Home,
    lock: HomeLock,
    bound: Bound,
    record: ServerRecord,
    ending: Ending,
}

/// Binds the server and says in the home where it is. Where the port is taken, the `further` ones after it are tried.
///
/// # Errors
/// [`HostError::Start`] when no port can be had, [`HostError::Library`] and [`HostError::Io`] when the home cannot be
/// written.
pub async fn listen(home: &Home, lock: HomeLock, config: ServerConfig, further: u16) -> Result<Listening, HostError> {
    let token = config.admin_token.clone();
    let bound = bind_near(config, further).await?;
    let record = ServerRecord {
        pid: std::process::id(),
        host: bound.local_addr().ip().to_string(),
        port: bound.local_addr().port(),
        model: None,
        started: now(),
        token,
    };
    lock.publish(&record)?;
    let ending = Ending::begin(home)?;
    Ok(Listening { home: home.clone(), lock, bound, record, ending })
}

async fn bind_near(config: ServerConfig, further: u16) -> Result<Bound, StartError> {
    let last = config.port.saturating_add(further);
    let mut port = config.port;
    loop {
        match bind(ServerConfig { port, ..config.clone() }).await {
            Err(StartError::InUse { .. }) if port < last => port += 1,
            other => return other,
        }
    }
}

impl Listening {
    /// The base URL for clients on this machine.
    pub fn url(&self) -> String {
        self.bound.url()
    }

    /// The port in use.
    pub fn port(&self) -> u16 {
        self.record.port
    }

    /// Starts the engine, and a thread that keeps on record what it has in memory and what it teaches about memory. Takes a
    /// moment; not to be called on a thread that serves.
    ///
    /// # Errors
    /// [`HostError::Engine`], and [`HostError::Io`] when no thread can be made.
    pub fn start(self, options: EngineOptions) -> Result<Host, HostError> {
        let prefill_chunk = options.prefill_chunk;
        let engine = Engine::start(options)?;
        let Listening { home, lock, bound, record, ending } = self;
        let recorder = Recorder::new(&home);
        let mut learner = Learner::new(&home, prefill_chunk as u64);
        let last_used = Arc::new(LastUsed::new(&home));
        let look = {
            let (engine, last_used) = (engine.clone(), last_used.clone());
            move |health: &_, stats: &_| {
                last_used.look(health, stats);
                learner.look(&engine, health, stats)
            }
        };
        let watch = Watch::start(recorder.clone(), engine.clone(), look)?;
        let (ending, watch, bound) = (Some(ending), Some(watch), Some(bound));
        Ok(Host { home, lock, record, ending, engine, recorder, last_used, watch, bound })
    }
}

/// A server with its engine.
pub struct Host {
    home: Home,
    lock: HomeLock,
    record: ServerRecord,
    ending: Option<Ending>,
    engine: EngineHandle,
    recorder: Recorder,
    last_used: Arc<LastUsed>,
    watch: Option<Watch>,
    bound: Option<Bound>,
}

impl Host {
    /// The engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// The record of what is running.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The port in use.
    pub fn port(&self) -> u16 {
        self.record.port
    }

    /// The key of the admin routes.
    pub fn token(&self) -> Option<&str> {
        self.record.token.as_deref()
    }

    /// What found the model that was served last, the last time.
    pub fn last_model(&self) -> Option<String> {
        self.home.last_model().map(|last| last.model)
    }

    /// Answers until `shutdown` resolves or an admin asks for it, as a task of its own. Only the first call does anything.
    pub fn serve(&mut self, shutdown: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let backend = Arc::new(self.engine.clone());
        let bound = self.bound.take();
        tokio::spawn(async move {
            if let Some(bound) = bound {
                serve(bound, backend, shutdown).await;
            }
        })
    }

    /// This model is about to be loaded: from now on an end that is none in order is known by it.
    pub fn loading(&self, entry: &ModelEntry, context: Option<u64>) {
        let budget = Some(self.engine.stats().memory.ledger.budget).filter(|&bytes| bytes > 0);
        self.recorder.loading(&name_of(entry), context, budget);
    }

    /// Notes in the home which model is served.
    ///
    /// # Errors
    /// [`LibraryError::Io`] when the home cannot be written.
    pub fn loaded(&mut self, entry: &ModelEntry, model: &ServedModel) -> Result<(), LibraryError> {
        // At once: a server that is killed right after it said `ready` was not loading any more.
        self.recorder.update(&self.engine.health(), &self.engine.stats());
        self.last_used.note(&model.id, &name_of(entry))?;
        self.record.model = Some(model.id.clone());
        self.lock.publish(&self.record)
    }

    /// Once nothing is served any more: the end is in order from here on, and the prompt cache gets this long to reach the
    /// disk. The home belongs to this process until [`Host::close`].
    pub async fn save(&mut self, time: Duration) -> Saved {
        drop(self.watch.take());
        self.recorder.end();
        self.last_used.end(&self.engine.stats());
        // Nobody is told any more of a server that does not answer.
        let _ = std::fs::remove_file(self.home.server_json());
        let saved = saving::save(&self.engine, time).await;
        match (self.ending.take(), saved.lost()) {
            (Some(ending), Some(why)) => ending.lost(&why),
            (ending, _) => drop(ending),
        }
        saved
    }

    /// Ends the engine and gives the home back. False: after `patience` the engine was still in a long computation, and the
    /// process should [`leave_at_once`].
    pub async fn close(self, patience: Duration) -> bool {
        let Host { lock, engine, .. } = self;
        let ended = tokio::task::spawn_blocking(move || engine.shutdown());
        let ended = tokio::time::timeout(patience, ended).await.is_ok();
        drop(lock);
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_library::home::Ownership;

    fn owned(home: &Home) -> HomeLock {
        match home.acquire().unwrap() {
            Ownership::Owned(lock) => lock,
            Ownership::Held(holder) => panic!("{holder}"),
        }
    }

    #[tokio::test]
    async fn a_taken_port_leads_to_the_next_free_one() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let config = ServerConfig { port, admin_token: Some(new_token().unwrap()), ..ServerConfig::default() };
        let listening = listen(&home, owned(&home), config.clone(), 20).await.unwrap();
        assert!((port + 1..=port + 20).contains(&listening.port()), "{} after {port}", listening.port());
        assert_eq!(listening.url(), format!("http://127.0.0.1:{}", listening.port()));
        let record = std::fs::read_to_string(home.server_json()).unwrap();
        assert!(
            record.contains(&format!("\"port\":{}", listening.port()))
                || record.contains(&listening.port().to_string())
        );
        drop(listening);
        let refused = listen(&home, owned(&home), config, 0).await.err().unwrap();
        assert!(matches!(refused, HostError::Start(StartError::InUse { .. })), "{refused}");
    }
}
