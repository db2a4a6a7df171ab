//! The engine thread: it alone loads, evaluates, clears and drops arrays.
//!
//! One round: take commands → drop cancelled rows → admit → plan → one prefill chunk → dispatch one decode step → read
//! the step before it → a little of the prompt cache's own work → publish. A step's tokens are read only after the next step was dispatched, so that the
//! device never waits for the host.

mod admission;
mod keeping;
mod spilling;

use crate::cache::LayerCache;
use crate::disk::Disk;
use crate::error::Result;
use crate::handle::{EngineOptions, Shared};
use crate::loader::{LoadOptions, Loaded, Loader};
use crate::prompt_cache::PromptCache;
use crate::row::{Outcome, Pending, Row, Submitted};
use crate::sampler::Sampled;
use crate::scheduler::{Limits, Round, Scheduler};
use crate::step::{Segment, Step};
use admission::{Following, Restoring};
use hearth_core::event::TokenInfo;
use hearth_core::stats::{CacheClear, CacheFlush, CacheStats, Health, ModelStats, RowStats};
use hearth_core::{EngineError, ServedModel};
use hearth_mlx::{Device, Dtype, Tensor, async_eval, concatenate, eval};
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
    /// End the thread.
    Shutdown,
}

/// A request waits at most this long for a row.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
/// How often to look whether a client reads again when nothing else is to do.
const PAUSE: Duration = Duration::from_millis(10);
/// Memory that is kept for reuse goes back to the system after this long without work.
const SETTLE: Duration = Duration::from_secs(1);
/// The allocator's cache is given back after this many steps.
const CLEAR_EVERY: u64 = 256;
/// Chunks of fewer tokens do not count as a measurement of prefill speed.
const LEAST_MEASURED: usize = 64;
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

/// What a row is told whose logits are no numbers.
const NOT_A_NUMBER: &str = "the model computed values that are not numbers; its weights or its config are damaged";

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
        let limits = Limits {
            max_rows: options.max_rows.max(1),
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
            draining: Vec::new(),
            loads: VecDeque::new(),
            scheduler: Scheduler::new(limits),
            in_flight: VecDeque::new(),
            cache: PromptCache::new(options.cache.ram),
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
            self.admit();
            self.take_restored();
            let rows = &self.rows;
            let round = self.scheduler.plan(self.prefill_rate, |id| rows.get(&id).is_some_and(Row::wants_token));
            let nothing = round == Round::default() && self.in_flight.is_empty() && self.restoring.is_empty();
            self.run_round(round);
            self.stalled = !self.spill_some() && nothing;
            self.publish(false);
        }
        for (_, mut row) in std::mem::take(&mut self.rows) {
            row.fail(EngineError::ShuttingDown);
        }
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            let _ = waiting.events.try_send(hearth_core::Event::Failed(EngineError::ShuttingDown));
        }
        for restoring in std::mem::take(&mut self.restoring).into_values() {
            restoring.fail(EngineError::ShuttingDown);
        }
        for following in std::mem::take(&mut self.following) {
            following.fail(EngineError::ShuttingDown);
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
            let _ = waiting.events.try_send(hearth_core::Event::Failed(EngineError::EngineLost));
            self.left(id, |totals| totals.failed += 1);
        }
        for (id, restoring) in std::mem::take(&mut self.restoring) {
            restoring.fail(EngineError::EngineLost);
            self.left(id, |totals| totals.failed += 1);
        }
        for following in std::mem::take(&mut self.following) {
            following.fail(EngineError::EngineLost);
            self.left(following.id(), |totals| totals.failed += 1);
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
    }

    fn load(&mut self, dir: &std::path::Path, id: &str) -> LoadResult {
        // What another model computed is of no use to this one, and its memory is needed now.
        self.save(LONGEST_SAVE);
        self.cache.clear();
        self.model = None;
        self.padding = None;
        let _ = hearth_mlx::clear_cache();
        let started = Instant::now();
        self.shared.set_loading(id, 0);
        let mut progress = |share: f64| self.shared.set_loading(id, (share * 100.0) as u8);
        let asked = LoadOptions { context: self.options.context, kv_bits: self.options.cache.kv_bits };
        let loaded = (self.loader)(dir, id, asked, &mut progress)
            .and_then(|loaded| Ok((padding(&loaded.served)?, loaded)))
            .map_err(EngineError::from);
        match loaded {
            Ok((padding, loaded)) => {
                let served = loaded.served.clone();
                self.shared.update(|state| {
                    state.served = Some(served.clone());
                    state.health = Health::Ready { model: served.id.clone() };
                    state.stats.memory.weights = loaded.weight_bytes;
                    state.stats.model = Some(ModelStats {
                        id: served.id.clone(),
                        model_type: served.model_type.clone(),
                        context: served.context,
                        load_s: started.elapsed().as_secs_f64(),
                    });
                });
                tracing::info!(model = id, seconds = started.elapsed().as_secs_f64(), "loaded");
                self.padding = padding;
                self.model = Some(loaded);
                Ok(served)
            }
            Err(e) => {
                let _ = hearth_mlx::clear_cache();
                self.shared.update(|state| {
                    state.served = None;
                    state.stats.model = None;
                    state.stats.memory.weights = 0;
                    state.health = Health::Failed { message: e.to_string() };
                });
                Err(e)
            }
        }
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
        let over = |w: &Submitted| w.events.is_closed() || w.at.elapsed() > LONGEST_WAIT;
        let gone: Vec<u64> = self.waiting.iter().filter(|(_, w)| over(w)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(waiting) = self.waiting.remove(&id) {
                let waited_s = waiting.at.elapsed().as_secs();
                let error = EngineError::WaitedTooLong { waited_s, retry_after_s: 30 };
                let _ = waiting.events.try_send(hearth_core::Event::Failed(error));
            }
            self.left(id, |totals| totals.cancelled += 1);
        }
    }

    /// A row or a waiting request is gone.
    fn left(&mut self, id: u64, count: impl FnOnce(&mut hearth_core::stats::Totals)) {
        self.scheduler.remove(id);
        self.shared.left(count);
        self.publish(true);
    }

    fn run_round(&mut self, round: Round) {
        if !round.prefill.is_empty() {
            // A chunk can take seconds: let it be seen what is computed.
            self.publish(true);
            let ids: Vec<u64> = round.prefill.iter().map(|p| p.0).collect();
            if let Err(e) = self.prefill(round.prefill) {
                self.fail(&ids, &e.into());
            }
        }
        let dispatched = !round.decode.is_empty();
        if dispatched && let Err(e) = self.decode(&round.decode) {
            self.fail(&round.decode, &e.into());
        }
        // With a step dispatched its tokens stay unread until the next one is on its way.
        let keep = usize::from(dispatched);
        while self.in_flight.len() > keep {
            let Some(step) = self.in_flight.pop_front() else { break };
            if let Err(e) = self.read(&step) {
                self.fail(&step.rows, &e.into());
            }
        }
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

    /// Computes these prompt tokens; rows whose prompt is complete draw their first token.
    fn prefill(&mut self, parts: Vec<(u64, usize)>) -> Result<()> {
        let Some(loaded) = &self.model else { return Ok(()) };
        let started = Instant::now();
        let (mut ids, mut segments_of) = (Vec::new(), Vec::new());
        for (id, n) in &parts {
            if let Some(row) = self.rows.get_mut(id) {
                ids.extend_from_slice(&row.request.prompt[row.prefilled..row.prefilled + n]);
                segments_of.push((*id, *n, std::mem::take(&mut row.caches)));
            }
        }
        let total = ids.len();
        let segments = segments_of.iter_mut().map(|(_, n, caches)| Segment { tokens: *n, caches }).collect();
        let hidden = loaded.model.forward(&Tensor::from_u32(&ids)?, &mut Step::new(segments))?;
        let (mut complete, mut last) = (Vec::new(), Vec::new());
        let mut at = 0u32;
        for (id, n, caches) in segments_of {
            at += n as u32;
            if let Some(row) = self.rows.get_mut(&id) {
                row.caches = caches;
                row.prefilled += n;
                if self.scheduler.prefilled(id, n) {
                    complete.push(id);
                    last.push(at - 1);
                }
            }
        }
        if !complete.is_empty() {
            let hidden = match last[..] {
                [one] => hidden.slice(0, one as i32, one as i32 + 1)?,
                _ => hidden.take(&Tensor::from_u32(&last)?, 0)?,
            };
            let logits = loaded.model.logits(&hidden)?;
            self.draw(&complete, &logits)?;
        }
        let rows = parts.iter().filter_map(|(id, _)| self.rows.get(id));
        let tensors = rows.flat_map(|row| row.caches.iter().flat_map(LayerCache::tensors));
        eval(tensors.chain(self.in_flight.back().map(|step| &*step.tokens)))?;
        for (id, _) in &parts {
            self.after_chunk(*id)?;
        }
        hearth_mlx::clear_cache()?;
        // A few tokens cost as much as many: they say nothing about the speed of a chunk.
        if total >= LEAST_MEASURED {
            let rate = total as f64 / started.elapsed().as_secs_f64().max(1e-6);
            self.prefill_rate = Some(self.prefill_rate.map_or(rate, |old| 0.7 * old + 0.3 * rate));
        }
        for (id, _) in &parts {
            if let Some(row) = self.rows.get_mut(id) {
                row.report_prefill();
            }
        }
        self.shared.count(|totals| totals.prompt_tokens += total as u64);
        Ok(())
    }

    /// Dispatches one step of these rows.
    fn decode(&mut self, ids: &[u64]) -> Result<()> {
        let Some(loaded) = &self.model else { return Ok(()) };
        let input = self.inputs(ids)?;
        let mut caches = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(row) = self.rows.get_mut(id) {
                caches.push(std::mem::take(&mut row.caches));
            }
        }
        let segments = caches.iter_mut().map(|caches| Segment { tokens: 1, caches }).collect();
        let hidden = loaded.model.forward(&input, &mut Step::new(segments))?;
        let logits = loaded.model.logits(&hidden)?;
        for (id, caches) in ids.iter().zip(caches) {
            if let Some(row) = self.rows.get_mut(id) {
                row.caches = caches;
            }
        }
        self.draw(ids, &logits)?;
        self.steps += 1;
        if self.steps.is_multiple_of(CLEAR_EVERY) {
            hearth_mlx::clear_cache()?;
        }
        self.shared.count(|totals| totals.steps += 1);
        Ok(())
    }

    /// The tokens that these rows' next step starts from, `[rows]`: usually the last step's, as they are.
    fn inputs(&self, ids: &[u64]) -> Result<Tensor> {
        let pending: Vec<&Pending> =
            ids.iter().filter_map(|id| self.rows.get(id)).filter_map(|row| row.next.as_ref()).collect();
        if let Some(first) = pending.first() {
            let whole = first.tokens.dim(0) as usize == pending.len();
            let same = |(i, p): (usize, &&Pending)| p.index == i && Rc::ptr_eq(&p.tokens, &first.tokens);
            if whole && pending.iter().enumerate().all(same) {
                return Ok(first.tokens.share());
            }
        }
        let one = |p: &&Pending| p.tokens.slice(0, p.index as i32, p.index as i32 + 1);
        let tokens = pending.iter().map(one).collect::<hearth_mlx::Result<Vec<_>>>()?;
        Ok(concatenate(&tokens, 0)?)
    }

    /// Draws a token for each of these rows from the logits `[rows, vocab]`, and dispatches.
    fn draw(&mut self, ids: &[u64], logits: &Tensor) -> Result<()> {
        let logits = logits.astype(Dtype::F32)?;
        let logits = match &self.padding {
            Some(padding) => logits.add(padding)?,
            None => logits,
        };
        let plain = ids.iter().filter_map(|id| self.rows.get(id)).all(|row| row.sampler.is_plain());
        let normalizer = logits.logsumexp_axis(-1)?;
        let (tokens, sampled) = if plain {
            let logprobs = logits.subtract(&normalizer)?;
            (logprobs.argmax(-1)?, ids.iter().map(|_| None).collect())
        } else {
            let mut drawn = Vec::with_capacity(ids.len());
            for (i, id) in ids.iter().enumerate() {
                if let Some(row) = self.rows.get_mut(id) {
                    drawn.push(row.sampler.sample(&logits.slice(0, i as i32, i as i32 + 1)?)?);
                }
            }
            let tokens = concatenate(drawn.iter().map(|d| &d.token), 0)?;
            (tokens, drawn.into_iter().map(|Sampled { logprobs, .. }| logprobs).collect::<Vec<_>>())
        };
        let reports = sampled.iter().flatten().flat_map(|(chosen, best)| {
            let best = best.iter().flat_map(|(ids, values)| [ids, values]);
            std::iter::once(chosen).chain(best)
        });
        async_eval([&tokens, &normalizer].into_iter().chain(reports))?;
        let tokens = Rc::new(tokens);
        for (index, id) in ids.iter().enumerate() {
            if let Some(row) = self.rows.get_mut(id) {
                row.next = Some(Pending { tokens: tokens.clone(), index });
                row.sampled += 1;
            }
        }
        self.in_flight.push_back(InFlight { rows: ids.to_vec(), tokens, sampled, normalizer });
        Ok(())
    }

    /// Waits for a step's tokens and gives them to their rows, as far as those are still there.
    fn read(&mut self, step: &InFlight) -> Result<()> {
        let tokens = step.tokens.to_vec_u32()?;
        let Some(served) = self.model.as_ref().map(|m| m.served.clone()) else { return Ok(()) };
        let normalizer = step.normalizer.to_vec_f32()?;
        let mut read = 0;
        for (((id, token), report), normalizer) in step.rows.iter().zip(tokens).zip(&step.sampled).zip(normalizer) {
            if !normalizer.is_finite() {
                self.fail(&[*id], &EngineError::Compute { message: NOT_A_NUMBER.into() });
                continue;
            }
            let Some(row) = self.rows.get_mut(id) else { continue };
            read += 1;
            let first = row.ids.is_empty();
            if row.take(token_info(token, report, row.request.logprobs)?, &served) == Outcome::Finished {
                if let Some(mut row) = self.rows.remove(id) {
                    self.keep(&mut row);
                    self.retire(row);
                }
                self.left(*id, |totals| totals.finished += 1);
            } else if first {
                hearth_mlx::clear_cache()?;
            }
        }
        self.shared.count(|totals| totals.generated_tokens += read);
        Ok(())
    }

    /// Tells the world how it stands.
    fn publish(&mut self, now: bool) {
        if !now && self.published.elapsed() < PUBLISH_EVERY {
            return;
        }
        self.published = Instant::now();
        let rows = self.rows.iter().map(|(&id, row)| RowStats {
            id,
            phase: match (row.next.is_some(), row.is_paused()) {
                (_, true) => "paused",
                (true, _) => "decode",
                (false, _) => "prefill",
            }
            .to_owned(),
            prompt_tokens: row.request.prompt.len(),
            prefilled: row.prefilled,
            generated: row.ids.len(),
            tokens_per_s: row.tokens_per_s(),
        });
        let (rows, kv): (Vec<_>, u64) = (rows.collect(), self.rows.values().map(Row::cache_bytes).sum());
        let waiting = self.scheduler.waiting();
        let mut cache = CacheStats { ram: self.cache.stats(), ssd: self.disk.map(Disk::stats).unwrap_or_default() };
        cache.ram.waiting = self.spilling_bytes();
        self.shared.update(|state| {
            state.stats.cache = cache;
            state.stats.rows = rows;
            state.stats.waiting = waiting;
            state.stats.memory.kv = kv;
        });
    }
}

/// A token with what was asked to be known of it: alternatives best first, the lower id first among equals.
fn token_info(id: u32, report: &Report, asked: Option<u8>) -> Result<TokenInfo> {
    let Some((chosen, best)) = report else { return Ok(TokenInfo { id, logprob: None, top: Vec::new() }) };
    let mut top: Vec<(u32, f32)> = match best {
        Some((ids, values)) => ids.to_vec_u32()?.into_iter().zip(values.to_vec_f32()?).collect(),
        None => Vec::new(),
    };
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    top.truncate(usize::from(asked.unwrap_or(0)));
    Ok(TokenInfo { id, logprob: chosen.to_vec_f32()?.first().copied(), top })
}

/// −∞ at the ids that the LM head has and the tokenizer does not.
fn padding(model: &ServedModel) -> Result<Option<Tensor>> {
    let (known, all) = (model.tokenizer.vocab_size(), model.vocab_size);
    if known >= all {
        return Ok(None);
    }
    let values: Vec<f32> = (0..all).map(|id| if id < known { 0.0 } else { f32::NEG_INFINITY }).collect();
    Ok(Some(Tensor::from_f32(&values, &[1, all as i32])?))
}

/// What the device wants set before the first model.
pub fn prepare_device() -> Result<()> {
    if hearth_mlx::device()? == Device::Cpu {
        // A CPU's allocator gains little from a cache, and freed buffers would count against the user's memory.
        hearth_mlx::set_cache_limit(32 << 20)?;
    }
    Ok(())
}
