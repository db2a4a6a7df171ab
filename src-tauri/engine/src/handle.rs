//! The engine as the rest of Hearth sees it: a handle that is Send and Clone, and the `Backend` of the server.

use crate::disk::{Disk, DiskOptions};
use crate::limits;
use crate::loader::{self, Loader};
use crate::row::Submitted;
use crate::sizes::Sizes;
use crate::worker::{Command, Wanted, Worker, prepare_device};
use hearth_core::backend::{BoxFuture, ModelCard, Unloaded};
use hearth_core::fit::memory::{default_budget, within};
use hearth_core::kv_policy::Asked;
use hearth_core::model_settings::ModelSettings;
use hearth_core::stats::{CacheClear, CacheFlush, Health, STATS_VERSION, Stats, Totals};
use hearth_core::stats::{ModelStats, PressureLevel};
use hearth_core::{Backend, EngineError, GenerateRequest, Generation, Limits, LimitsPreview, ServedModel};
use hearth_library::learned::Log;
use hearth_library::scan::Places;
use hearth_machine::{chips, pressure};
use hearth_mlx::Device;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

mod finding;

/// Events that a client may be behind before its row pauses.
const EVENT_ROOM: usize = 256;
/// Bytes per second that go to disk while the CPU itself decodes. Hashing, copying and the file system take about three
/// milliseconds of a step's time per megabyte there (554 MB beside a row on two cores), so that this costs a twentieth.
const RATE_BESIDE_A_CPU: u64 = 16_000_000;

/// The engine's settings.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Rows computed at once.
    pub max_rows: usize,
    /// Requests that may wait for a row.
    pub max_waiting: usize,
    /// Prompt tokens computed in one go.
    pub prefill_chunk: usize,
    /// Context limit in tokens; `None` is the model's own, as far as the memory budget has room for it.
    pub context: Option<usize>,
    /// A client that reads nothing for this long loses its row: it holds a place that others wait for.
    pub longest_pause: Duration,
    /// A request that gets no row for this long is refused.
    pub longest_wait: Duration,
    /// The prompt cache.
    pub cache: CacheOptions,
    /// Memory.
    pub memory: MemoryOptions,
    /// Which models are served.
    pub serving: Serving,
}

impl EngineOptions {
    /// How a model keeps its keys and values: as is asked for all models, else as is set for it.
    pub(crate) fn kv_of(&self, id: &str) -> Asked {
        self.cache.kv.or_bits(self.serving.of(id).kv_bits)
    }
}

/// Which models are served, and how long they stay.
#[derive(Debug, Clone, Default)]
pub struct Serving {
    /// Where a request's model is looked for. `None`: the loaded one answers to any name.
    pub places: Option<Places>,
    /// Other names of models.
    pub aliases: BTreeMap<String, String>,
    /// Settings of single models, by id.
    pub models: BTreeMap<String, ModelSettings>,
    /// A model without work leaves memory after this long; `None`: when another one needs its room.
    pub ttl: Option<Duration>,
    /// No request loads a model until somebody has loaded one: the last server did not end in order.
    pub held: bool,
}

/// What may be used of the memory.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// Bytes that model, rows, prompt cache and reserve may take together; `None` is three quarters of the memory, and
    /// no more than the GPU may hold.
    pub budget: Option<u64>,
    /// Where the budget comes from: `flag`, `environment`, `settings`; `default` where there is none.
    pub budget_from: String,
    /// Bytes of the budget that stay free; `None` is a thirty-second of the memory, from 256 MiB to 2 GiB.
    pub reserve: Option<u64>,
    /// Where the system's memory pressure is read.
    pub pressure: pressure::Shared,
    /// A request that is alone and has no room all the same is refused after this long: what it waits for is not
    /// Hearth's to give.
    pub longest_stall: Duration,
    /// Where measured peaks are kept. A model that took more than was computed for it is charged for that from its next
    /// load on.
    pub learned: Option<Log>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            budget: None,
            budget_from: "default".to_owned(),
            reserve: None,
            pressure: pressure::Shared::default(),
            longest_stall: Duration::from_secs(30),
            learned: None,
        }
    }
}

impl Serving {
    fn pins(&self) -> BTreeSet<String> {
        self.models.iter().filter(|(_, settings)| settings.pin).map(|(id, _)| id.clone()).collect()
    }

    /// What is set for a model.
    pub(crate) fn of(&self, id: &str) -> ModelSettings {
        self.models.get(id).cloned().unwrap_or_default()
    }
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
    /// How keys and values are kept: of all models that are served.
    pub kv: Asked,
    /// An entry that nobody used for this long moves to disk.
    pub idle: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        let idle = Duration::from_secs(300);
        CacheOptions { ram: 8 << 30, ssd: 0, dir: None, kv: Asked::default(), idle }
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
            longest_wait: Duration::from_secs(600),
            cache: CacheOptions::default(),
            memory: MemoryOptions::default(),
            serving: Serving::default(),
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

/// A model in memory, as the handles see it.
pub struct Resident {
    /// What a request needs of it.
    pub served: Arc<ServedModel>,
    /// What things cost with it.
    pub sizes: Arc<Sizes>,
    /// Its figures.
    pub stats: ModelStats,
}

/// The figures behind the lock.
pub struct State {
    /// Whether a model is ready.
    pub health: Health,
    /// The model that was used last.
    pub served: Option<Arc<ServedModel>>,
    /// All models in memory, the one that was used last first.
    pub models: Vec<Resident>,
    /// The model that a request without a name means: id and folder. It may have left memory.
    pub wanted: Option<(String, PathBuf)>,
    /// Ids of models that stay in memory.
    pub pins: BTreeSet<String>,
    /// No request loads a model until somebody has loaded one.
    pub held: bool,
    /// What `/stats` shows.
    pub stats: Stats,
    /// What things cost with it.
    pub sizes: Option<Arc<Sizes>>,
    /// The limits that hold.
    pub limits: Limits,
    /// Bytes of the ledger that are allocated by now, without the reserve.
    pub allocated: u64,
    /// Bytes of the prompt cache's entries in memory, least recently used first.
    pub entries: Vec<u64>,
    /// Requests that wait or run.
    pub live: BTreeSet<u64>,
}

impl Shared {
    fn new(options: &EngineOptions) -> Self {
        let mut stats = Stats { version: STATS_VERSION, max_rows: options.max_rows, ..Stats::default() };
        stats.memory.ledger.budget_from = options.memory.budget_from.clone();
        stats.memory.ledger.baseline = hearth_machine::memory().process;
        let limits = Limits {
            budget: Some(budget(options.memory.budget)),
            cache_ram: Some(options.cache.ram),
            cache_ssd: Some(if options.cache.dir.is_some() { options.cache.ssd } else { 0 }),
            context: options.context,
            max_rows: Some(options.max_rows.max(1)),
        };
        let state = State {
            health: Health::Empty,
            served: None,
            models: Vec::new(),
            wanted: None,
            pins: options.serving.pins(),
            held: options.serving.held,
            stats,
            sizes: None,
            limits,
            allocated: 0,
            entries: Vec::new(),
            live: BTreeSet::new(),
        };
        Shared {
            state: Mutex::new(state),
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
    pub fn left(&self, id: u64, count_it: impl FnOnce(&mut Totals)) {
        self.update(|state| state.live.remove(&id));
        let _ = self.in_system.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(n.saturating_sub(1)));
        self.count(count_it);
    }
}

/// The budget: as asked for, but never more than the machine has, else the default. Settings that came from a larger
/// machine do not keep the engine from starting.
fn budget(asked: Option<u64>) -> u64 {
    let here = chips::here();
    let Some(asked) = asked else { return default_budget(&here) };
    let budget = within(&here, asked);
    if budget < asked {
        tracing::warn!("the memory budget is {budget} bytes, all of this machine's memory: {asked} were asked for");
    }
    budget
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
        // For whoever has not done it before its first thread.
        hearth_machine::prepare_allocator();
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
        watch(options.memory.pressure.clone(), commands.clone(), Arc::downgrade(&shared));
        Ok(EngineHandle { commands, shared, options, thread: Arc::new(Mutex::new(Some(thread))) })
    }
}

/// Tells the engine what the system says of its memory, on a thread of its own: when that changes, and once a second
/// while it is tight. It ends with the engine.
fn watch(source: pressure::Shared, commands: Sender<Command>, engine: Weak<Shared>) {
    const OFTEN: Duration = Duration::from_secs(1);
    let listen = move || {
        let mut told = PressureLevel::Unknown;
        loop {
            let level = source.0.wait(OFTEN);
            let tight = matches!(level, PressureLevel::Warning | PressureLevel::Critical);
            if engine.upgrade().is_none() {
                return;
            }
            if (level != told || tight) && commands.send(Command::Pressure(level)).is_err() {
                return;
            }
            told = level;
        }
    };
    if let Err(error) = std::thread::Builder::new().name("hearth-pressure".into()).spawn(listen) {
        tracing::warn!(%error, "the system's memory pressure is not watched");
    }
}

/// Runs workers until one ends in order. One that panics loses its rows, which are told so; its memory is released
/// and its model loaded again.
fn supervise(options: &EngineOptions, loader: &Loader, shared: &Shared, commands: &Receiver<Command>) {
    let mut reload: Vec<(PathBuf, String)> = Vec::new();
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
        for (dir, id) in std::mem::take(&mut reload) {
            worker.load_now(&dir, &id);
        }
        if catch_unwind(AssertUnwindSafe(|| worker.run())).is_ok() {
            return;
        }
        tracing::error!("the engine panicked and is started again");
        worker.abandon();
        // The one that was used last comes last: it counts as the current one again.
        let models = shared.update(|state| {
            state.served = None;
            std::mem::take(&mut state.models)
        });
        reload = models.into_iter().rev().map(|m| (m.served.path.clone(), m.served.id.clone())).collect();
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
    /// How a model of this id keeps its keys and values, as far as that was asked for.
    pub fn kv_of(&self, id: &str) -> Asked {
        self.options.kv_of(id)
    }

    /// Asks for a model; returns at once. Others that nobody uses leave memory where it needs their room. Progress is in
    /// [`Backend::health`].
    pub fn load(&self, dir: PathBuf, id: String) -> oneshot::Receiver<Result<Arc<ServedModel>, EngineError>> {
        let (reply, answer) = oneshot::channel();
        self.shared.update(|state| {
            state.held = false;
            state.wanted = Some((id.clone(), dir.clone()));
            if state.models.is_empty() {
                state.health = Health::Loading { model: id.clone(), percent: 0 };
            }
        });
        if let Err(lost) = self.commands.send(Command::Load(Wanted { id, dir, for_request: false }, reply))
            && let Command::Load(_, reply) = lost.0
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
    fn models(&self) -> BoxFuture<'_, Vec<ModelCard>> {
        Box::pin(self.cards())
    }

    fn resolve<'a>(&'a self, name: Option<&'a str>) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        Box::pin(self.find(name.filter(|name| !name.is_empty())))
    }

    fn load_model<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Arc<ServedModel>, EngineError>> {
        Box::pin(self.load_by_name(name))
    }

    fn unload_model<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Unloaded, EngineError>> {
        let id = match self.resident_named(name) {
            Ok(id) => id,
            Err(ambiguous) => return Box::pin(std::future::ready(Err(ambiguous))),
        };
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Unload(id.clone(), reply));
        Box::pin(async { Ok(Unloaded { id, freed: answer.await.map_err(|_| EngineError::EngineLost)?? }) })
    }

    fn stands_for(&self, name: &str) -> String {
        self.options.serving.meant(name).to_owned()
    }

    fn pin_model(&self, id: &str, pinned: bool) {
        self.shared.update(|state| if pinned { state.pins.insert(id.to_owned()) } else { state.pins.remove(id) });
        let _ = self.commands.send(Command::Pin(id.to_owned(), pinned));
    }

    fn keep_alive(&self, model: &ServedModel, stay: Option<Duration>) {
        let _ = self.commands.send(Command::Stay(model.id.clone(), stay));
    }

    fn submit(&self, model: &ServedModel, request: GenerateRequest) -> Result<Generation, EngineError> {
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(EngineError::param("prompt", "at least one token", "empty"));
        }
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= model.vocab_size) {
            return Err(EngineError::param("prompt", &format!("token ids below {}", model.vocab_size), id));
        }
        let (now, limits) = self.shared.update(|state| {
            let now = state.models.iter().find(|now| now.served.id == model.id);
            (now.map(|now| (now.served.context, now.sizes.clone())), state.limits)
        });
        let context = now.as_ref().map_or(model.context, |(context, _)| *context);
        if let Some((_, sizes)) = now {
            limits::check_prompt(prompt, context, &sizes, limits.budget.unwrap_or(u64::MAX))?;
        }
        if prompt >= context {
            return Err(EngineError::ContextLengthExceeded { prompt, limit: context });
        }
        if request.max_tokens == Some(0) {
            return Err(EngineError::param("max_tokens", "at least 1", 0));
        }
        if let Some(k) = request.logprobs.filter(|&k| k > 20) {
            return Err(EngineError::param("top_logprobs", "between 0 and 20", k));
        }
        request.sampling.validate(model.vocab_size)?;
        let limit = self.options.max_waiting;
        let all = limit + limits.max_rows.unwrap_or(1);
        let room = |n: usize| (n < all).then_some(n + 1);
        if self.shared.in_system.fetch_update(Ordering::SeqCst, Ordering::SeqCst, room).is_err() {
            return Err(EngineError::Overloaded { waiting: limit, limit, retry_after_s: 5 });
        }
        let id = self.shared.next_id.fetch_add(1, Ordering::SeqCst);
        let (events, receiver) = mpsc::channel(EVENT_ROOM);
        self.shared.update(|state| {
            state.live.insert(id);
            state.stats.totals.requests += 1;
        });
        let submitted = Submitted { id, request, events, at: Instant::now() };
        let wanted = Wanted { id: model.id.clone(), dir: model.path.clone(), for_request: true };
        if self.commands.send(Command::Submit(Box::new(submitted), wanted)).is_err() {
            self.shared.left(id, |totals| totals.failed += 1);
            return Err(EngineError::EngineLost);
        }
        Ok(Generation { id, events: receiver })
    }

    fn health(&self) -> Health {
        self.shared.update(|state| state.health.clone())
    }

    fn stats(&self) -> Stats {
        let (mut stats, allocated) = self.shared.update(|state| (state.stats.clone(), state.allocated));
        stats.uptime_s = self.shared.started.elapsed().as_secs_f64();
        let figure = |f: fn() -> hearth_mlx::Result<usize>| f().map_or(0, |n| n as u64);
        stats.memory.mlx_active = figure(hearth_mlx::active_memory);
        stats.memory.mlx_cache = figure(hearth_mlx::cache_memory);
        stats.memory.mlx_peak = figure(hearth_mlx::peak_memory);
        stats.memory.process = hearth_machine::memory().process;
        let ledger = &mut stats.memory.ledger;
        let known = ledger.baseline.saturating_add(allocated);
        ledger.unaccounted = stats.memory.process as i64 - known as i64;
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

    fn set_limits(&self, limits: Limits) -> BoxFuture<'_, Result<Limits, EngineError>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::SetLimits(limits, reply));
        Box::pin(async { answer.await.map_err(|_| EngineError::EngineLost)? })
    }

    fn limits(&self) -> Limits {
        self.shared.update(|state| limits::shown(state))
    }

    fn preview_limits(&self, asked: Limits) -> Result<LimitsPreview, EngineError> {
        self.shared.update(|state| limits::preview(state, asked))
    }

    fn cancel(&self, id: u64) -> bool {
        let there = self.shared.update(|state| state.live.contains(&id));
        there && self.commands.send(Command::Cancel(id)).is_ok()
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
