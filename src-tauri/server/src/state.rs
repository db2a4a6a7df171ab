//! What all handlers share: the backend, the settings, compiled templates, and the signal to stop.

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::events::Hub;
use crate::inspector::Inspector;
use crate::session::Sessions;
use crate::specials::Specials;
use crate::template::ChatTemplate;
use crate::transcripts::Transcripts;
use hearth_core::Backend;
use hearth_core::backend::ServedModel;
use hearth_core::fit::{Allowance, Machine};
use hearth_core::tokenizer::Tokenizer;
use hearth_machine::chips;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, watch};

/// Most templates kept compiled: a handful of models, each with a plain and a tool template.
const TEMPLATES_KEPT: usize = 16;

/// What all handlers share; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

struct Shared {
    backend: Arc<dyn Backend>,
    config: ServerConfig,
    /// Compiled templates with their sources, the latest last.
    templates: Mutex<Vec<(String, Arc<ChatTemplate>)>>,
    /// The special tokens of the tokenizers in use.
    specials: Mutex<Vec<(Weak<Tokenizer>, Arc<Specials>)>>,
    transcripts: Arc<Transcripts>,
    events: Hub,
    inspector: Inspector,
    /// Where the server listens, once it does.
    address: OnceLock<SocketAddr>,
    /// Rendering and tokenizing take a whole core each: no more of them at once than there are cores.
    preparing: Arc<Semaphore>,
    stop: watch::Sender<bool>,
    hasher: RandomState,
    ids: AtomicU64,
}

impl AppState {
    /// The state of a server with this backend.
    pub fn new(config: ServerConfig, backend: Arc<dyn Backend>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        config.settings.take_effect();
        let inspector = Inspector::default();
        inspector.switch(config.settings.switch("inspector", true));
        AppState(Arc::new(Shared {
            backend,
            config,
            templates: Mutex::new(Vec::new()),
            specials: Mutex::default(),
            transcripts: Arc::default(),
            events: Hub::default(),
            inspector,
            address: OnceLock::new(),
            preparing: Arc::new(Semaphore::new(cores)),
            stop: watch::Sender::new(false),
            hasher: RandomState::new(),
            ids: AtomicU64::new(0),
        }))
    }

    /// This machine, with the memory that this server may use now. Asks the system: not for threads that serve.
    pub(crate) fn machine(&self) -> Machine {
        let ledger = self.backend().stats().memory.ledger;
        // Without an engine there is no budget yet.
        let (budget, reserve) = Some((ledger.budget, ledger.reserve)).filter(|(budget, _)| *budget > 0).unzip();
        Machine { allowance: Allowance { budget, reserve }, ..chips::here() }
    }

    /// The engine.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    /// The settings.
    pub fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// Asks the server to stop; [`AppState::stopped`] resolves.
    pub fn stop(&self) {
        self.0.stop.send_replace(true);
    }

    /// Resolves once [`AppState::stop`] was called.
    pub async fn stopped(&self) {
        // The sender lives as long as `self`, so this only ends by the value.
        let _ = self.0.stop.subscribe().wait_for(|stop| *stop).await;
    }

    /// The events that the dashboard hears.
    pub fn events(&self) -> &Hub {
        &self.0.events
    }

    /// Where the server listens, once it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address.get().copied()
    }

    /// The server listens here.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        // A second call would be a second server on one state, which nobody makes.
        let _ = self.0.address.set(address);
    }

    /// The last requests.
    pub(crate) fn inspector(&self) -> &Inspector {
        &self.0.inspector
    }

    /// Browsers that were let in.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.0.config.sessions
    }

    /// What was generated lately.
    pub(crate) fn transcripts(&self) -> &Arc<Transcripts> {
        &self.0.transcripts
    }

    /// The special tokens of a tokenizer.
    pub(crate) fn specials(&self, tokenizer: &Arc<Tokenizer>) -> Arc<Specials> {
        let mut known = self.0.specials.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, specials)) = known.iter().find(|(t, _)| std::ptr::eq(t.as_ptr(), Arc::as_ptr(tokenizer))) {
            return specials.clone();
        }
        known.retain(|(t, _)| t.strong_count() > 0);
        let specials = Arc::new(Specials::new(tokenizer));
        known.push((Arc::downgrade(tokenizer), specials.clone()));
        specials
    }

    /// A new response id, `prefix-` and 24 hex digits that do not repeat.
    pub(crate) fn response_id(&self, prefix: &str) -> String {
        let n = self.0.ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:016x}{:08x}", self.0.hasher.hash_one((n, now())), n as u32)
    }

    /// Runs work that fills a core away from the threads that serve sockets.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
    ) -> Result<T, ServerError> {
        // The permit goes with the work, which goes on when the client (and this future) is gone.
        let permit = self.0.preparing.clone().acquire_owned().await;
        let work = move || {
            let result = work();
            drop(permit);
            result
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(e) => Err(ServerError::Internal(e.to_string())),
        }
    }

    /// The compiled template of a model: its own file, or the one that its tokenizer config holds.
    ///
    /// # Errors
    /// 400 when there is none or it does not parse.
    pub(crate) fn template(&self, model: &ServedModel, with_tools: bool) -> Result<Arc<ChatTemplate>, ServerError> {
        let source = crate::template::source(model, with_tools)?;
        let lock = || self.0.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, template)) = lock().iter().find(|(known, _)| *known == source) {
            return Ok(template.clone());
        }
        let template = Arc::new(ChatTemplate::new(&source, &model.tokenizer_config)?);
        let mut kept = lock();
        if kept.len() == TEMPLATES_KEPT {
            kept.remove(0);
        }
        kept.push((source, template.clone()));
        Ok(template)
    }
}

/// Seconds since the epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
