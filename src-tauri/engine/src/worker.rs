//! The engine thread: it alone loads, evaluates, clears and drops arrays.
//!
//! Several models share it and take turns, each with its own rows; prompt cache, ledger and guard are everybody's. One
//! round: take commands → drop cancelled rows → admit → plan → one prefill chunk → dispatch one decode step → read
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
mod slots;
mod spilling;

use crate::disk::Disk;
use crate::error::Result;
use crate::guard::Guard;
use crate::handle::{EngineOptions, Shared};
use crate::ledger::Ledger;
use crate::loader::Loader;
use crate::prompt_cache::PromptCache;
use crate::row::{Row, Submitted};
use crate::scheduler::Round;
use crate::sizes;
use admission::{Following, Restoring};
use guard::Watch;
use hearth_core::fit::{Machine, memory as fit_memory};
use hearth_core::stats::{CacheClear, CacheFlush, PressureLevel};
use hearth_core::{EngineError, ServedModel};
use hearth_mlx::{Device, Tensor};
use loading::PendingLoad;
use slots::Slot;
use spilling::Spilling;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A model that somebody wants in memory.
pub struct Wanted {
    /// Its id.
    pub id: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Whether a request for it follows.
    pub for_request: bool,
}

/// What the handle asks of the thread.
pub enum Command {
    /// Load a model, once there is room; others that nobody uses leave for it.
    Load(Wanted, oneshot::Sender<LoadResult>),
    /// Queue a generation of a model.
    Submit(Box<Submitted>, Wanted),
    /// Take a model out of memory.
    Unload(String, oneshot::Sender<std::result::Result<u64, EngineError>>),
    /// Whether a model stays in memory whatever else is asked for.
    Pin(String, bool),
    /// How long a model stays without work; `None`: as long as there is room.
    Stay(String, Option<Duration>),
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
    /// The model that has its turn, with its rows.
    slot: Slot,
    /// The other models in memory.
    others: Vec<Slot>,
    next_slot: u64,
    /// Ids of models that stay in memory.
    pins: BTreeSet<String>,
    /// The ledger's part that does not move with the rows: budget, reserve, weights.
    fixed: Ledger,
    /// The process before any model was loaded, in bytes.
    baseline: u64,
    machine: Machine,
    guard: Guard,
    watch: Watch,
    max_rows: usize,
    /// What the allocator may keep in this budget, and beside what is held now.
    allocator_limit: u64,
    allocator_now: u64,
    /// The context limit that was set by hand.
    context: Option<usize>,
    /// Complete rows whose client has not read everything yet.
    draining: Vec<Row>,
    loads: VecDeque<PendingLoad>,
    cache: PromptCache,
    disk: Option<&'a Disk>,
    spilling: Spilling,
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
        Worker {
            options,
            loader,
            shared,
            commands,
            slot: Slot::new(0, options.prefill_chunk.max(1), max_rows),
            others: Vec::new(),
            next_slot: 0,
            pins: shared.update(|state| state.pins.clone()),
            draining: Vec::new(),
            loads: VecDeque::new(),
            fixed: Ledger { budget, reserve, ..Ledger::default() },
            baseline,
            machine,
            guard: Guard::new(options.prefill_chunk.max(1)),
            watch: Watch::default(),
            max_rows,
            allocator_limit: u64::MAX,
            allocator_now: u64::MAX,
            context: told.context,
            cache: PromptCache::new(told.cache_ram.unwrap_or(options.cache.ram)),
            disk,
            spilling: Spilling::default(),
            steps: 0,
            stalled: false,
            published: Instant::now(),
        }
    }

    /// Runs until it is told to end.
    pub fn run(&mut self) {
        while self.take_commands() {
            self.expire();
            let mut nothing = true;
            let turns = self.turns();
            for key in &turns {
                self.turn_to(*key);
                nothing &= self.round();
            }
            if nothing {
                // One who gives way is enough, whoever it is: the others go on then.
                turns.into_iter().any(|key| {
                    self.turn_to(key);
                    self.unstick()
                });
            }
            self.stalled = !self.spill_some() && nothing;
            self.publish(false);
        }
        self.end_all(&EngineError::ShuttingDown);
        let _ = hearth_mlx::synchronize();
        self.save(LONGEST_SAVE);
    }

    /// One round of the current slot. True if there was nothing to do.
    fn round(&mut self) -> bool {
        self.drop_abandoned();
        self.follow();
        self.watch(false);
        self.grow_rows();
        self.admit();
        self.refuse_stalled();
        self.take_restored();
        self.choose_chunk();
        let slot = &mut self.slot;
        let (rows, cramped) = (&slot.rows, &slot.tight.cramped);
        let goes_on = |id| rows.get(&id).is_some_and(Row::wants_token) && !cramped.contains(&id);
        let round = slot.scheduler.plan(slot.prefill_rate, goes_on);
        let nothing = round == Round::default() && slot.in_flight.is_empty() && slot.restoring.is_empty();
        self.run_round(round);
        self.settle_allocator();
        nothing
    }

    /// Tells everybody that there will be no answer.
    fn end_all(&mut self, error: &EngineError) {
        let keys: Vec<u64> = self.slots().map(|slot| slot.key).collect();
        for key in keys {
            self.turn_to(key);
            let slot = &mut self.slot;
            let mut ended: Vec<u64> = Vec::new();
            for (id, mut row) in std::mem::take(&mut slot.rows) {
                row.fail(error.clone());
                ended.push(id);
            }
            let mut requests: Vec<Submitted> = std::mem::take(&mut slot.waiting).into_values().collect();
            requests.extend(std::mem::take(&mut slot.restoring).into_values().map(Restoring::into_request));
            requests.extend(std::mem::take(&mut slot.following).into_iter().map(Following::into_request));
            ended.extend(requests.iter().map(|submitted| submitted.id));
            requests.into_iter().for_each(|submitted| self.tell(submitted, error.clone()));
            ended.into_iter().for_each(|id| self.left(id, |totals| totals.failed += 1));
        }
        for load in std::mem::take(&mut self.loads) {
            self.refuse_load(load, error);
        }
    }

    /// Loads a model before the first round.
    pub fn load_now(&mut self, dir: &std::path::Path, id: &str) {
        if let Err(error) = self.load_again(dir, id) {
            tracing::error!(%error, "the model could not be loaded again");
        }
    }

    /// After a panic: tells every row and forgets it.
    pub fn abandon(&mut self) {
        let _ = hearth_mlx::synchronize();
        self.end_all(&EngineError::EngineLost);
    }

    fn is_idle(&self) -> bool {
        let works = self.slots().any(Slot::is_busy) || !self.draining.is_empty() || !self.loads.is_empty();
        !works && self.spilling.is_idle()
    }

    /// Takes what was asked since the last round; waits where there is nothing else to do. False at the end.
    fn take_commands(&mut self) -> bool {
        loop {
            self.take_loads();
            let command = if self.is_idle() {
                self.publish(true);
                match self.wait() {
                    Some(command) => command,
                    // An entry is due to move to disk.
                    None => return true,
                }
            } else if std::mem::take(&mut self.stalled) || !self.loads.is_empty() && !self.slots().any(Slot::is_busy) {
                self.commands.recv_timeout(PAUSE).map_err(|e| match e {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(Command::Load(wanted, reply)) => self.want(wanted, Some(reply), None),
                Ok(Command::Submit(submitted, wanted)) => self.submitted(*submitted, wanted),
                Ok(Command::Unload(id, reply)) => drop(reply.send(self.unload(&id))),
                Ok(Command::Pin(id, pinned)) => {
                    if pinned {
                        self.pins.insert(id)
                    } else {
                        self.pins.remove(&id)
                    };
                    self.show_models();
                }
                Ok(Command::Stay(id, stay)) => {
                    let slot = std::iter::once(&mut self.slot).chain(&mut self.others);
                    if let Some(slot) = slot.into_iter().find(|slot| slot.id() == Some(&id)) {
                        slot.stay = Some(stay);
                    }
                    // What stays for no time leaves when it is done.
                    return true;
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
                let due = self.next_demotion().into_iter().chain(self.next_expiry()).min();
                match due {
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
        for row in self.slot.rows.values_mut() {
            row.flush();
        }
        let over = |row: &Row| row.is_abandoned() || row.paused_for() > longest;
        let gone: Vec<u64> = self.slot.rows.iter().filter(|(_, row)| over(row)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(mut row) = self.slot.rows.remove(&id) {
                self.keep(&mut row);
            }
            self.left(id, |totals| totals.cancelled += 1);
        }
        self.draining.retain_mut(|row| !row.flush() && !over(row));
        let gone: Vec<u64> = self.slot.restoring.iter().filter(|(_, r)| r.is_abandoned()).map(|(id, _)| *id).collect();
        for id in gone {
            self.slot.restoring.remove(&id);
            self.left(id, |totals| totals.cancelled += 1);
        }
        let (gone, stay): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.slot.following).into_iter().partition(Following::is_abandoned);
        self.slot.following = stay;
        for following in gone {
            self.left(following.id(), |totals| totals.cancelled += 1);
        }
        for row in self.slot.parked.values_mut() {
            row.flush();
        }
        // One that was parked is the first to go on: it does not wait for nothing.
        let longest = self.options.longest_wait;
        let over = |id: &u64, w: &Submitted| {
            w.is_abandoned() || w.at.elapsed() > longest && !self.slot.parked.contains_key(id)
        };
        let gone: Vec<u64> = self.slot.waiting.iter().filter(|(id, w)| over(id, w)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(waiting) = self.slot.waiting.remove(&id) {
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
        self.slot.scheduler.remove(id);
        self.slot.rooms.release(id);
        self.slot.tight.cramped.remove(&id);
        self.slot.refused.remove(&id);
        self.slot.parked.remove(&id);
        self.shared.left(id, count);
        self.publish(true);
    }

    /// Ends these rows with an error; the others go on.
    fn fail(&mut self, ids: &[u64], error: &EngineError) {
        tracing::error!(rows = ids.len(), %error, "a step failed");
        for &id in ids {
            if let Some(mut row) = self.slot.rows.remove(&id) {
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
