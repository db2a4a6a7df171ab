//! The engine as the rest of Hearth sees it: a handle that is Send and Clone, and the `Backend` of the server.

use crate::disk::{Disk, DiskOptions};
use crate::loader::{self, Loader};
use crate::row::Submitted;
use crate::worker::{Command, Worker, prepare_device};
use hearth_core::backend::{BoxFuture, ModelCard};
use hearth_core::stats::{CacheClear, CacheFlush, Health, STATS_VERSION, Stats, Totals};
use hearth_core::{Backend, EngineError, GenerateRequest, Generation, ServedModel};
use hearth_mlx::Device;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Events that a client may be behind before its row pauses.
const EVENT_ROOM: usize = 256;

/// Bytes per second that go to disk while the CPU itself decodes. Hashing, copying and the file system take about three
/// milliseconds of a step's time per megabyte there (554 MB beside a row on two cores), so that this costs a twentieth.
const RATE_BESIDE_A_CPU: u64 = 16_000_000;

/// The engine's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Rows computed at once.
    pub max_rows: usize,
    /// Requests that may wait for a row.
    pub max_waiting: usize,
    /// Prompt tokens computed in one go.
    pub prefill_chunk: usize,
    /// Context limit in tokens; `None` is the model's own.
    pub context: Option<usize>,
    /// A client that reads nothing for this long loses its row: it holds a place that others wait for.
    pub longest_pause: Duration,
    /// The prompt cache.
    pub cache: CacheOptions,
}

/// The prompt cache's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most bytes in memory; 0 turns the tier off.
    pub ram: u64,
    /// Most bytes on disk; 0 turns the tier off.
    pub ssd: u64,
    /// The folder on disk; without one the tier is off.
    pub dir: Option<PathBuf>,
    /// Keys and values in this many bits (4 or 8); `None`: as computed. A model's `kv_config.json` goes first.
    pub kv_bits: Option<u8>,
    /// Most bytes that weights, rows and entries may take together; `None`: what the machine has free.
    pub memory: Option<u64>,
    /// An entry that nobody used for this long moves to disk.
    pub idle: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        let idle = Duration::from_secs(300);
        CacheOptions { ram: 8 << 30, ssd: 0, dir: None, kv_bits: None, memory: None, idle }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            max_rows: 8,
            max_waiting: 64,
            prefill_chunk: 2048,
            context: None,
            longest_pause: Duration::from_secs(120),
            cache: CacheOptions::default(),
        }
    }
}

/// What thread and handles share.
pub struct Shared {
    state: Mutex<State>,
    /// Requests that wait or run.
    in_system: AtomicUsize,
    next_id: AtomicU64,
    started: Instant,
}

/// The figures behind the lock.
pub struct State {
    /// Whether a model is ready.
    pub health: Health,
    /// The loaded model.
    pub served: Option<Arc<ServedModel>>,
    /// What `/stats` shows.
    pub stats: Stats,
}

impl Shared {
    fn new(options: &EngineOptions) -> Self {
        let stats = Stats { version: STATS_VERSION, max_rows: options.max_rows, ..Stats::default() };
        Shared {
            state: Mutex::new(State { health: Health::Empty, served: None, stats }),
            in_system: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            started: Instant::now(),
        }
    }

    /// Changes the state; a panic elsewhere does not make it unreadable.
    pub fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A load is this far.
    pub fn set_loading(&self, id: &str, percent: u8) {
        self.update(|state| state.health = Health::Loading { model: id.to_owned(), percent });
    }

    /// Counts something.
    pub fn count(&self, count: impl FnOnce(&mut Totals)) {
        self.update(|state| count(&mut state.stats.totals));
    }

    /// A request is no longer in the system.
    pub fn left(&self, count_it: impl FnOnce(&mut Totals)) {
        let _ = self.in_system.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(n.saturating_sub(1)));
        self.count(count_it);
    }
}

/// Starts engines.
pub struct Engine;

impl Engine {
    /// Starts the engine thread, without a model.
    ///
    /// # Errors
    /// [`EngineError::Compute`] if the thread cannot be made or MLX has no device.
    pub fn start(options: EngineOptions) -> Result<EngineHandle, EngineError> {
        Self::start_with(options, Box::new(loader::load))
    }

    pub(crate) fn start_with(options: EngineOptions, loader: Loader) -> Result<EngineHandle, EngineError> {
        let shared = Arc::new(Shared::new(&options));
        let (commands, receiver) = channel();
        let (ready, prepared) = channel();
        let thread = std::thread::Builder::new()
            .name("hearth-engine".into())
            .spawn({
                let (shared, options) = (shared.clone(), options.clone());
                move || {
                    let ok = prepare_device().map_err(EngineError::from);
                    let go = ok.is_ok();
                    let _ = ready.send(ok);
                    if go {
                        supervise(&options, &loader, &shared, &receiver);
                    }
                }
            })
            .map_err(|e| EngineError::Compute { message: format!("the engine thread could not be started: {e}") })?;
        prepared.recv().unwrap_or(Err(EngineError::EngineLost))?;
        Ok(EngineHandle { commands, shared, options, thread: Arc::new(Mutex::new(Some(thread))) })
    }
}

/// Runs workers until one ends in order. One that panics loses its rows, which are told so; its memory is released
/// and its model loaded again.
fn supervise(options: &EngineOptions, loader: &Loader, shared: &Shared, commands: &Receiver<Command>) {
    let mut reload: Option<(PathBuf, String)> = None;
    let disk = match &options.cache {
        CacheOptions { dir: Some(dir), ssd, .. } if *ssd > 0 => {
            let mut options = DiskOptions::new(dir, *ssd);
            if matches!(hearth_mlx::device(), Ok(Device::Cpu)) {
                options.rate = RATE_BESIDE_A_CPU;
            }
            Some(Disk::open(options))
        }
        _ => None,
    };
    loop {
        let mut worker = Worker::new(options, loader, shared, commands, disk.as_ref());
        if let Some((dir, id)) = reload.take() {
            worker.load_now(&dir, &id);
        }
        if catch_unwind(AssertUnwindSafe(|| worker.run())).is_ok() {
            return;
        }
        tracing::error!("the engine panicked and is started again");
        worker.abandon();
        reload = shared.update(|state| state.served.take().map(|m| (m.path.clone(), m.id.clone())));
        drop(worker);
        let _ = hearth_mlx::clear_cache();
    }
}

/// The way to the engine thread.
#[derive(Clone)]
pub struct EngineHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    options: EngineOptions,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl EngineHandle {
    /// Asks for a model in place of the current one; returns at once. Progress is in [`Backend::health`].
    pub fn load(&self, dir: PathBuf, id: String) -> oneshot::Receiver<Result<Arc<ServedModel>, EngineError>> {
        let (reply, answer) = oneshot::channel();
        self.shared.set_loading(&id, 0);
        if let Err(lost) = self.commands.send(Command::Load(dir, id, reply))
            && let Command::Load(_, _, reply) = lost.0
        {
            let _ = reply.send(Err(EngineError::EngineLost));
        }
        answer
    }

    /// Ends the thread: rows are told, memory is released. Returns when it is done.
    pub fn shutdown(self) {
        let _ = self.commands.send(Command::Shutdown);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Backend for EngineHandle {
    fn models(&self) -> Vec<ModelCard> {
        let card =
            |m: &Arc<ServedModel>| ModelCard { id: m.id.clone(), created: m.created, loaded: true, context: m.context };
        self.shared.update(|state| state.served.as_ref().map(card).into_iter().collect())
    }

    fn resolve<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        // One model is served, and it answers to any name; its real id is in the response.
        let found = self.shared.update(|state| match (&state.served, &state.health) {
            (Some(model), _) => Ok(model.clone()),
            (None, Health::Loading { percent, .. }) => Err(EngineError::Loading { percent: *percent }),
            (None, Health::Failed { message }) => {
                Err(EngineError::ModelUnusable(hearth_core::CoreError::Folder(message.clone())))
            }
            (None, _) => Err(EngineError::ModelNotFound { name: name.unwrap_or("").to_owned(), available: Vec::new() }),
        });
        Box::pin(std::future::ready(found))
    }

    fn submit(&self, model: &ServedModel, request: GenerateRequest) -> Result<Generation, EngineError> {
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(EngineError::param("prompt", "at least one token", "empty"));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= model.vocab_size) {
            return Err(EngineError::param("prompt", &format!("token ids below {}", model.vocab_size), id));
        }
        if prompt >= model.context {
            return Err(EngineError::ContextLengthExceeded { prompt, limit: model.context });
        }
        if request.max_tokens == Some(0) {
            return Err(EngineError::param("max_tokens", "at least 1", 0));
        }
        if let Some(k) = request.logprobs.filter(|&k| k > 20) {
            return Err(EngineError::param("top_logprobs", "between 0 and 20", k));
        }
        request.sampling.validate(model.vocab_size)?;
        let limit = self.options.max_waiting;
        let all = limit + self.options.max_rows;
        let room = |n: usize| (n < all).then_some(n + 1);
        if self.shared.in_system.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_err() {
            return Err(EngineError::Overloaded { waiting: limit, limit, retry_after_s: 5 });
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::SeqCst);
        let (events, receiver) = mpsc::channel(EVENT_ROOM);
        self.shared.count(|totals| totals.requests += 1);
        let submitted = Submitted { id, request, events, at: Instant::now() };
        if self.commands.send(Command::Submit(Box::new(submitted))).is_err() {
            self.shared.left(|totals| totals.failed += 1);
            return Err(EngineError::EngineLost);
        }
        Ok(Generation { id, events: receiver })
    }

    fn health(&self) -> Health {
        self.shared.update(|state| state.health.clone())
    }

    fn stats(&self) -> Stats {
        let mut stats = self.shared.update(|state| state.stats.clone());
        stats.uptime_s = self.shared.started.elapsed().as_secs_f64();
        let figure = |f: fn() -> hearth_mlx::Result<usize>| f().map_or(0, |n| n as u64);
        stats.memory.mlx_active = figure(hearth_mlx::active_memory);
        stats.memory.mlx_cache = figure(hearth_mlx::cache_memory);
        stats.memory.mlx_peak = figure(hearth_mlx::peak_memory);
        stats.memory.process = hearth_machine::memory().process;
        stats
    }

    fn flush_cache(&self) -> BoxFuture<'_, Result<CacheFlush, EngineError>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::FlushCache(reply));
        Box::pin(async { answer.await.map_err(|_| EngineError::EngineLost) })
    }

    fn clear_cache(&self) -> BoxFuture<'_, Result<CacheClear, EngineError>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::ClearCache(reply));
        Box::pin(async { answer.await.map_err(|_| EngineError::EngineLost) })
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
