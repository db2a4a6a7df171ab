//! The engine thread: it alone loads, evaluates, clears and drops arrays.
//!
//! One round: take commands → drop cancelled rows → admit → plan → one prefill chunk → dispatch one decode step → read
//! the step before it → a little of the prompt cache's own work → publish. A step's tokens are read only after the next step was dispatched, so that the
//! device never waits for the host.

mod admission;
mod computing;
mod guard;
mod keeping;
mod limits;
mod loading;
mod memory;
mod publishing;
mod spilling;

use crate::disk::Disk;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::{EngineOptions, Shared};
use crate::ledger::Ledger;
use crate::loader::{Loaded, Loader};
use crate::prompt_cache::PromptCache;
use crate::rooms::{Asked, Rooms};
use crate::row::{Row, Submitted};
use crate::scheduler::{Limits, Round, Scheduler};
use crate::sizes::{self, Sizes};
use admission::{Following, Restoring};
use guard::Watch;
use hearth_core::fit::{Machine, memory as fit_memory};
use hearth_core::stats::{CacheClear, CacheFlush, PressureLevel};
use hearth_core::{EngineError, ServedModel};
use hearth_mlx::{Device, Tensor};
use memory::Tight;
use spilling::Spilling;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// What the handle asks of the thread.
pub enum Command {
    /// Load a model in place of the current one, once no row needs that.
    Load(PathBuf, String, oneshot::Sender<LoadResult>),
    /// Queue a generation.
    Submit(Box<Submitted>),
    /// Write the prompt cache to disk.
    FlushCache(oneshot::Sender<CacheFlush>),
    /// Empty the prompt cache.
    ClearCache(oneshot::Sender<CacheClear>),
    /// Change limits.
    SetLimits(hearth_core::Limits, oneshot::Sender<std::result::Result<hearth_core::Limits, EngineError>>),
    /// End a generation.
    Cancel(u64),
    /// The system's memory pressure is another one, or still there.
    Pressure(PressureLevel),
    /// End the thread.
    Shutdown,
}

/// How often to look whether a client reads again when nothing else is to do.
const PAUSE: Duration = Duration::from_millis(10);
/// Memory that is kept for reuse goes back to the system after this long without work.
const SETTLE: Duration = Duration::from_secs(1);
/// Figures are published this often while rows run.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);

/// Saving the prompt cache at the end takes at most this long.
const LONGEST_SAVE: Duration = Duration::from_secs(45);

/// What a load answers.
pub type LoadResult = std::result::Result<Arc<ServedModel>, EngineError>;
/// A load that waits for the running rows: folder, id, and who asked.
type PendingLoad = (PathBuf, String, oneshot::Sender<LoadResult>);
/// One row's log-probabilities, when asked for: see [`Sampled::logprobs`].
type Report = Option<(Tensor, Option<(Tensor, Tensor)>)>;

/// A dispatched step whose tokens were not read yet.
struct InFlight {
    rows: Vec<u64>,
    tokens: Rc<Tensor>,
    sampled: Vec<Report>,
    /// log Σ exp of each row's logits, `[rows, 1]`: not a number where the model's arithmetic failed.
    normalizer: Tensor,
}

/// The thread's state.
pub struct Worker<'a> {
    options: &'a EngineOptions,
    loader: &'a Loader,
    shared: &'a Shared,
    commands: &'a Receiver<Command>,
    model: Option<Loaded>,
    /// −∞ for the ids of the LM head that the tokenizer does not have, `[1, vocab]`.
    padding: Option<Tensor>,
    rows: BTreeMap<u64, Row>,
    waiting: BTreeMap<u64, Submitted>,
    /// Rows that wait to be computed again, by their requests' numbers: what they held others needed.
    parked: BTreeMap<u64, Row>,
    /// The ledger's part that does not move with the rows: budget, reserve, weights.
    fixed: Ledger,
    /// The process before any model was loaded, in bytes.
    baseline: u64,
    machine: Machine,
    /// What things cost with the loaded model.
    sizes: Option<Arc<Sizes>>,
    rooms: Rooms,
    guard: Guard,
    watch: Watch,
    tight: Tight,
    /// What those who wait lacked when they were looked at last.
    refused: BTreeMap<u64, Asked>,
    max_rows: usize,
    /// What the allocator may keep in this budget, and beside what is held now.
    allocator_limit: u64,
    allocator_now: u64,
    /// The context limit that was set by hand.
    context: Option<usize>,
    /// Complete rows whose client has not read everything yet.
    draining: Vec<Row>,
    loads: VecDeque<PendingLoad>,
    scheduler: Scheduler,
    in_flight: VecDeque<InFlight>,
    cache: PromptCache,
    disk: Option<&'a Disk>,
    restoring: BTreeMap<u64, Restoring>,
    following: Vec<Following>,
    spilling: Spilling,
    /// Measured prefill speed in tokens per second.
    prefill_rate: Option<f64>,
    steps: u64,
    /// The last round had nothing to do: every row waits for its client.
    stalled: bool,
    published: Instant,
}

impl<'a> Worker<'a> {
    /// A worker without a model.
    pub fn new(
        options: &'a EngineOptions,
        loader: &'a Loader,
        shared: &'a Shared,
        commands: &'a Receiver<Command>,
        disk: Option<&'a Disk>,
    ) -> Self {
        let device = hearth_mlx::device().unwrap_or(Device::Cpu);
        let machine = sizes::machine(device);
        let (told, baseline) = shared.update(|state| (state.limits, state.stats.memory.ledger.baseline));
        let max_rows = told.max_rows.unwrap_or(options.max_rows).max(1);
        let budget = told.budget.unwrap_or_else(|| fit_memory::default_budget(&machine));
        let reserve = options.memory.reserve.unwrap_or_else(|| fit_memory::reserve(machine.ram));
        let limits = Limits {
            max_rows,
            chunk: options.prefill_chunk.max(1),
            least_chunk: 16,
            chunk_ms: 300,
            lone_chunk_ms: 2000,
        };
        Worker {
            options,
            loader,
            shared,
            commands,
            model: None,
            padding: None,
            rows: BTreeMap::new(),
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            draining: Vec::new(),
            loads: VecDeque::new(),
            scheduler: Scheduler::new(limits),
            in_flight: VecDeque::new(),
            fixed: Ledger { budget, reserve, ..Ledger::default() },
            baseline,
            machine,
            sizes: None,
            rooms: Rooms::new(options.prefill_chunk as u64),
            guard: Guard::new(options.prefill_chunk.max(1)),
            watch: Watch::default(),
            tight: Tight::default(),
            refused: BTreeMap::new(),
            max_rows,
            allocator_limit: u64::MAX,
            allocator_now: u64::MAX,
            context: told.context,
            cache: PromptCache::new(told.cache_ram.unwrap_or(options.cache.ram)),
            disk,
            restoring: BTreeMap::new(),
            following: Vec::new(),
            spilling: Spilling::default(),
            prefill_rate: None,
            steps: 0,
            stalled: false,
            published: Instant::now(),
        }
    }

    /// Runs until it is told to end.
    pub fn run(&mut self) {
        while self.take_commands() {
            self.drop_abandoned();
            self.follow();
            self.watch(false);
            self.grow_rows();
            self.admit();
            self.refuse_stalled();
            self.take_restored();
            self.choose_chunk();
            let (rows, cramped) = (&self.rows, &self.tight.cramped);
            let goes_on = |id| rows.get(&id).is_some_and(Row::wants_token) && !cramped.contains(&id);
            let round = self.scheduler.plan(self.prefill_rate, goes_on);
            let nothing = round == Round::default() && self.in_flight.is_empty() && self.restoring.is_empty();
            self.run_round(round);
            if nothing {
                self.unstick();
            }
            self.settle_allocator();
            self.stalled = !self.spill_some() && nothing;
            self.publish(false);
        }
        for (_, mut row) in std::mem::take(&mut self.rows) {
            row.fail(EngineError::ShuttingDown);
        }
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.tell(waiting, EngineError::ShuttingDown);
        }
        for restoring in std::mem::take(&mut self.restoring).into_values() {
            self.tell(restoring.into_request(), EngineError::ShuttingDown);
        }
        for following in std::mem::take(&mut self.following) {
            self.tell(following.into_request(), EngineError::ShuttingDown);
        }
        let _ = hearth_mlx::synchronize();
        self.save(LONGEST_SAVE);
    }

    /// Loads a model before the first round.
    pub fn load_now(&mut self, dir: &std::path::Path, id: &str) {
        if let Err(error) = self.load(dir, id) {
            tracing::error!(%error, "the model could not be loaded again");
        }
    }

    /// After a panic: tells every row and forgets it.
    pub fn abandon(&mut self) {
        let _ = hearth_mlx::synchronize();
        for (id, mut row) in std::mem::take(&mut self.rows) {
            row.fail(EngineError::EngineLost);
            self.left(id, |totals| totals.failed += 1);
        }
        for (id, waiting) in std::mem::take(&mut self.waiting) {
            self.tell(waiting, EngineError::EngineLost);
            self.left(id, |totals| totals.failed += 1);
        }
        for (id, restoring) in std::mem::take(&mut self.restoring) {
            self.tell(restoring.into_request(), EngineError::EngineLost);
            self.left(id, |totals| totals.failed += 1);
        }
        for following in std::mem::take(&mut self.following) {
            let id = following.id();
            self.tell(following.into_request(), EngineError::EngineLost);
            self.left(id, |totals| totals.failed += 1);
        }
    }

    fn is_idle(&self) -> bool {
        let rows = self.rows.is_empty() && self.waiting.is_empty() && self.draining.is_empty();
        rows && self.restoring.is_empty()
            && self.following.is_empty()
            && self.in_flight.is_empty()
            && self.spilling.is_idle()
    }

    /// Takes what was asked since the last round; waits where there is nothing else to do. False at the end.
    fn take_commands(&mut self) -> bool {
        loop {
            if self.rows.is_empty() && self.in_flight.is_empty() {
                while let Some((dir, id, reply)) = self.loads.pop_front() {
                    let _ = reply.send(self.load(&dir, &id));
                }
            }
            let command = if self.is_idle() {
                self.publish(true);
                match self.wait() {
                    Some(command) => command,
                    // An entry is due to move to disk.
                    None => return true,
                }
            } else if std::mem::take(&mut self.stalled) {
                self.commands.recv_timeout(PAUSE).map_err(|e| match e {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(Command::Load(dir, id, reply)) => self.loads.push_back((dir, id, reply)),
                Ok(Command::Submit(submitted)) => {
                    self.scheduler.add(submitted.id, submitted.request.prompt.len());
                    self.waiting.insert(submitted.id, *submitted);
                }
                Ok(Command::SetLimits(limits, reply)) => {
                    let _ = reply.send(self.set_limits(limits));
                }
                Ok(Command::Cancel(id)) => self.cancel(id),
                Ok(Command::Pressure(level)) => {
                    self.guard.set_pressure(level);
                    self.watch(true);
                    // What is to leave memory has to be brought to disk.
                    return true;
                }
                Ok(Command::FlushCache(reply)) => self.flush_prompt_cache(reply),
                Ok(Command::ClearCache(reply)) => drop(reply.send(self.clear_prompt_cache())),
                Err(TryRecvError::Empty) => return true,
                Ok(Command::Shutdown) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Waits for a command while nothing else is to do; `None` when the prompt cache has something to do.
    fn wait(&mut self) -> Option<std::result::Result<Command, TryRecvError>> {
        let settled = match self.commands.recv_timeout(SETTLE) {
            Err(RecvTimeoutError::Timeout) => {
                self.rest();
                match self.next_demotion() {
                    Some(due) => self.commands.recv_timeout(due),
                    None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                }
            }
            other => other,
        };
        match settled {
            Ok(command) => Some(Ok(command)),
            Err(RecvTimeoutError::Disconnected) => Some(Err(TryRecvError::Disconnected)),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }

    /// Nothing has run for a while: give back what the allocators keep.
    fn rest(&mut self) {
        let _ = hearth_mlx::clear_cache();
        hearth_machine::release_freed();
        self.watch(true);
        self.choose_chunk();
        self.publish(true);
    }

    /// Forgets rows whose client went away, and requests that waited too long.
    fn drop_abandoned(&mut self) {
        let longest = self.options.longest_pause;
        for row in self.rows.values_mut() {
            row.flush();
        }
        let over = |row: &Row| row.is_abandoned() || row.paused_for() > longest;
        let gone: Vec<u64> = self.rows.iter().filter(|(_, row)| over(row)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(mut row) = self.rows.remove(&id) {
                self.keep(&mut row);
            }
            self.left(id, |totals| totals.cancelled += 1);
        }
        self.draining.retain_mut(|row| !row.flush() && !over(row));
        let gone: Vec<u64> = self.restoring.iter().filter(|(_, r)| r.is_abandoned()).map(|(id, _)| *id).collect();
        for id in gone {
            self.restoring.remove(&id);
            self.left(id, |totals| totals.cancelled += 1);
        }
        let (gone, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.following).into_iter().partition(Following::is_abandoned);
        self.following = stay;
        for following in gone {
            self.left(following.id(), |totals| totals.cancelled += 1);
        }
        for row in self.parked.values_mut() {
            row.flush();
        }
        // One that was parked is the first to go on: it does not wait for nothing.
        let longest = self.options.longest_wait;
        let over =
            |id: &u64, w: &Submitted| w.is_abandoned() || w.at.elapsed() > longest && !self.parked.contains_key(id);
        let gone: Vec<u64> = self.waiting.iter().filter(|(id, w)| over(id, w)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(waiting) = self.waiting.remove(&id) {
                let waited_s = waiting.at.elapsed().as_secs();
                let too_long = EngineError::WaitedTooLong { waited_s, retry_after_s: 30 };
                let error = self.no_memory(id).unwrap_or(too_long);
                self.tell(waiting, error);
            }
            self.left(id, |totals| totals.cancelled += 1);
        }
    }

    /// A row or a waiting request is gone.
    fn left(&mut self, id: u64, count: impl FnOnce(&mut hearth_core::stats::Totals)) {
        self.scheduler.remove(id);
        self.rooms.release(id);
        self.tight.cramped.remove(&id);
        self.refused.remove(&id);
        self.parked.remove(&id);
        self.shared.left(id, count);
        self.publish(true);
    }

    /// Ends these rows with an error; the others go on.
    fn fail(&mut self, ids: &[u64], error: &EngineError) {
        tracing::error!(rows = ids.len(), %error, "a step failed");
        for &id in ids {
            if let Some(mut row) = self.rows.remove(&id) {
                row.fail(error.clone());
                self.retire(row);
                self.left(id, |totals| totals.failed += 1);
            }
        }
    }

    /// Keeps what a complete row's client has not read; its caches go now.
    fn retire(&mut self, mut row: Row) {
        row.caches.clear();
        if !row.flush() {
            self.draining.push(row);
        }
    }
}

/// What the device wants set before the first model.
pub fn prepare_device() -> Result<()> {
    if hearth_mlx::device()? == Device::Cpu {
        // A CPU's allocator gains little from a cache, and freed buffers would count against the user's memory.
        hearth_mlx::set_cache_limit(32 << 20)?;
    }
    Ok(())
}
