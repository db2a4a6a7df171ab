//! Server, engine and the home's records in one process, from the first lock to an end in order. The command line and the
//! app both start Hearth here, so that whoever looks from outside sees one and the same server.
//!
//! [`listen`] binds and says so in `server.json`; [`Listening::start`] adds the engine; [`Host::serve`] answers;
//! [`Host::finish`] brings the prompt cache to disk and gives the home back.

mod saving;

pub use saving::{Saved, has_to_be_saved};

use hearth_core::{EngineError, ServedModel};
use hearth_engine::{Engine, EngineHandle, EngineOptions};
use hearth_library::LibraryError;
use hearth_library::home::{Home, HomeLock, ServerRecord, now};
use hearth_server::{Bound, ServerConfig, StartError, bind, serve};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Why Hearth could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The server cannot be bound.
    #[error(transparent)]
    Start(#[from] StartError),
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

/// A bound server without an engine. Connections wait.
pub struct Listening {
    home: Home,
    lock: HomeLock,
    bound: Bound,
    record: ServerRecord,
}

/// Binds the server and says in the home where it is. Where the port is taken, the `further` ones after it are tried.
///
/// # Errors
/// [`HostError::Start`] when no port can be had, [`HostError::Library`] when the home cannot be written.
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
    Ok(Listening { home: home.clone(), lock, bound, record })
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

    /// Starts the engine. Takes a moment; not to be called on a thread that serves.
    ///
    /// # Errors
    /// [`HostError::Engine`].
    pub fn start(self, options: EngineOptions) -> Result<Host, HostError> {
        let engine = Engine::start(options)?;
        let Listening { home, lock, bound, record } = self;
        Ok(Host { home, lock, record, engine, bound: Some(bound) })
    }
}

/// A server with its engine.
pub struct Host {
    home: Home,
    lock: HomeLock,
    record: ServerRecord,
    engine: EngineHandle,
    bound: Option<Bound>,
}

impl Host {
    /// The engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// The key of the admin routes.
    pub fn token(&self) -> Option<&str> {
        self.record.token.as_deref()
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

    /// Notes in the home which model is served. `name` is what finds it again.
    ///
    /// # Errors
    /// [`LibraryError::Io`] when the home cannot be written.
    pub fn loaded(&mut self, name: &str, model: &ServedModel) -> Result<(), LibraryError> {
        self.home.set_last_model(name)?;
        self.record.model = Some(model.id.clone());
        self.lock.publish(&self.record)
    }

    /// Brings the prompt cache to disk, as far as `saving` allows, and ends the engine, which gets `ending` for it. The
    /// home belongs to this process until then. The last value says whether the engine ended: one that is in the
    /// middle of a long computation does not, and then the process must end without running exit handlers.
    pub async fn finish(self, saving: Duration, ending: Duration) -> (Saved, bool) {
        // Nobody is told any more of a server that does not answer.
        let _ = std::fs::remove_file(self.home.server_json());
        let Host { lock, engine, .. } = self;
        let saved = saving::save(&engine, saving).await;
        let ended = tokio::task::spawn_blocking(move || engine.shutdown());
        let ended = tokio::time::timeout(ending, ended).await.is_ok();
        drop(lock);
        (saved, ended)
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
