//! Models on their way into memory: who waits for which, what leaves for it, and what counts when it is there. One that
//! has no room is refused before anything of it is allocated, and what leaves is free before it is read.

use super::{LONGEST_SAVE, LoadResult, Wanted, Worker};
use crate::error::Result;
use crate::limits;
use crate::loader::{LoadOptions, Loaded, check_texts};
use crate::row::Submitted;
use crate::sizes::Sizes;
use hearth_core::error::bytes;
use hearth_core::fit::memory::allocator_limit;
use hearth_core::model_settings::ModelSettings;
use hearth_core::stats::Health;
use hearth_core::{CoreError, EngineError, Event, ServedModel};
use hearth_mlx::Tensor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// When to try again what had no memory.
const RETRY_AFTER: u64 = 10;

/// A load that waits for longer than this holds back all models that may leave, not only those whose room it needs.
const FAIR: Duration = Duration::from_secs(60);

/// A model that somebody wants, and who.
pub(super) struct PendingLoad {
    dir: PathBuf,
    id: String,
    replies: Vec<oneshot::Sender<LoadResult>>,
    /// Requests that were sent for it when it was not in memory any more.
    requests: Vec<Submitted>,
    since: Instant,
    /// Whether a request follows on a reply.
    expects: bool,
    /// What it takes, once that was looked up; `None` within where its files do not say.
    sizes: Option<Option<Sizes>>,
}

impl PendingLoad {
    fn new(dir: PathBuf, id: String) -> Self {
        PendingLoad {
            dir,
            id,
            replies: Vec::new(),
            requests: Vec::new(),
            since: Instant::now(),
            expects: false,
            sizes: None,
        }
    }
}

/// Whether a model can come into memory.
enum Room {
    /// After these have left.
    Yes(Vec<u64>),
    /// Not before others have ended: what it needs and what there is.
    Later { needed: u64, free: u64 },
    /// Not with what is pinned.
    Pinned { needed: u64, free: u64 },
}

impl Worker<'_> {
    /// Somebody wants a model in memory.
    pub(super) fn want(
        &mut self,
        wanted: Wanted,
        reply: Option<oneshot::Sender<LoadResult>>,
        request: Option<Submitted>,
    ) {
        let Wanted { id, dir, for_request } = wanted;
        // Everybody who waits for a model waits for one load.
        if let Some(load) = self.loads.iter_mut().find(|load| load.id == id && load.dir == dir) {
            load.replies.extend(reply);
            load.requests.extend(request);
            load.expects |= for_request;
            return;
        }
        let mut load = PendingLoad::new(dir, id);
        load.replies.extend(reply);
        load.requests.extend(request);
        load.expects = for_request;
        self.loads.push_back(load);
    }

    /// A request for the model of this id.
    pub(super) fn submitted(&mut self, submitted: Submitted, wanted: Wanted) {
        let id = &wanted.id;
        let here = self.slot_of(id);
        // A model that others wait to take the place of gets no further work before them, unless it is to stay or this is
        // what it was loaded for.
        let expected = self.slots().any(|slot| slot.id() == Some(id) && slot.is_expecting());
        let free = expected || here.is_some_and(|key| !self.is_in_the_way(key));
        match here.filter(|_| free) {
            Some(key) => {
                let was_last = self.shared.update(|state| state.served.as_ref().is_some_and(|served| served.id == *id));
                self.turn_to(key);
                self.queue(submitted);
                if !was_last {
                    self.show_models();
                }
            }
            None => self.want(wanted, None, Some(submitted)),
        }
    }

    /// Loads what there is room for, in the order in which it was asked for.
    pub(super) fn take_loads(&mut self) {
        while let Some(mut load) = self.loads.pop_front() {
            match self.try_load(&mut load) {
                Some(Ok(served)) => self.answer_load(load, &served),
                Some(Err(error)) => self.refuse_load(load, &error),
                None => {
                    self.loads.push_front(load);
                    return self.drop_left();
                }
            }
        }
    }

    /// Forgets requests that wait for a load and whose client is gone.
    fn drop_left(&mut self) {
        let mut gone = Vec::new();
        for load in &mut self.loads {
            load.requests.retain(|request| {
                let left = request.is_abandoned();
                gone.extend(left.then_some(request.id));
                !left
            });
        }
        for id in gone {
            self.shared.left(id, |totals| totals.cancelled += 1);
        }
        self.loads.retain(|load| !load.replies.iter().all(oneshot::Sender::is_closed) || !load.requests.is_empty());
    }

    /// Ends a request that waits for a load. False where there is none of this number.
    pub(super) fn cancel_wanted(&mut self, id: u64) -> bool {
        for load in &mut self.loads {
            if let Some(place) = load.requests.iter().position(|request| request.id == id) {
                let request = load.requests.remove(place);
                let _ = request.events.try_send(Event::Failed(EngineError::Cancelled));
                self.shared.left(id, |totals| totals.cancelled += 1);
                return true;
            }
        }
        false
    }

    /// How many wait for this model to be loaded; `None` where nobody does.
    pub(super) fn waiting_for(&self, id: &str) -> Option<usize> {
        let load = self.loads.iter().find(|load| load.id == id)?;
        Some(load.replies.len() + load.requests.len())
    }

    /// Requests that wait for a load.
    pub(super) fn wanted(&self) -> usize {
        self.loads.iter().map(|load| load.requests.len()).sum()
    }

    fn answer_load(&mut self, load: PendingLoad, served: &Arc<ServedModel>) {
        if let Some(key) = self.slot_of(&served.id) {
            self.turn_to(key);
        }
        if load.expects && load.requests.is_empty() {
            self.slot.expects();
        }
        for reply in load.replies {
            let _ = reply.send(Ok(served.clone()));
        }
        for request in load.requests {
            self.queue(request);
        }
        self.show_models();
    }

    /// Tells everybody who waits for a model that it does not come.
    pub(super) fn refuse_load(&mut self, load: PendingLoad, error: &EngineError) {
        for reply in load.replies {
            let _ = reply.send(Err(error.clone()));
        }
        for request in load.requests {
            let _ = request.events.try_send(Event::Failed(error.clone()));
            self.shared.left(request.id, |totals| totals.failed += 1);
        }
    }

    /// Loads a model before the first round.
    pub(super) fn load_again(&mut self, dir: &Path, id: &str) -> LoadResult {
        let mut load = PendingLoad::new(dir.to_owned(), id.to_owned());
        self.try_load(&mut load).unwrap_or(Err(EngineError::EngineLost))
    }

    /// Loads a model, or says why not; `None` while it has to wait for others to end.
    fn try_load(&mut self, load: &mut PendingLoad) -> Option<LoadResult> {
        let (dir, id) = (load.dir.as_path(), load.id.as_str());
        let here = self.slots().find(|slot| slot.id() == Some(id));
        let here = here.and_then(|slot| Some((slot.key, slot.is_busy(), slot.model.as_ref()?.served.clone())));
        if let Some((key, busy, served)) = here {
            if served.path == load.dir {
                return Some(Ok(served));
            }
            // Another folder under the same name takes its place.
            if busy {
                return None;
            }
            self.evict(key, "another folder takes its name");
        }
        let allocator = allocator_limit(self.fixed.budget, self.machine.device);
        let kv = self.options.kv_of(id);
        // What is free decides how weights are laid out, and what may leave will be free by then.
        let leaving: u64 = self.leavers(None).into_iter().map(|(_, weights)| weights).sum();
        self.machine.available = Some(hearth_machine::memory().available.saturating_add(leaving));
        let (chunk, log) = (self.options.prefill_chunk, self.options.memory.learned.as_ref());
        let look = || Sizes::of_folder(id, dir, &self.machine, &kv, chunk, log);
        let sizes = load.sizes.get_or_insert_with(look).clone();
        let sizes = sizes.map(|sizes| sizes.with_limits(self.fixed.reserve, allocator));
        let expects = load.expects || !load.requests.is_empty();
        if let Some(sizes) = &sizes {
            if let Err(refusal) = sizes.check(id, self.fixed.budget) {
                return Some(Err(self.not_loaded(refusal, expects)));
            }
            match self.room_for(sizes) {
                Room::Yes(leavers) => {
                    if self.slots().any(|slot| leavers.contains(&slot.key) && slot.is_expecting()) {
                        return None;
                    }
                    // Nobody leaves for a model that cannot be used.
                    if !leavers.is_empty()
                        && let Err(unusable) = check_texts(dir)
                    {
                        return Some(Err(self.not_loaded(unusable.into(), expects)));
                    }
                    for key in leavers {
                        self.evict(key, &format!("{id} takes its place"));
                    }
                }
                Room::Later { needed, free } if load.since.elapsed() > self.options.longest_wait => {
                    return Some(Err(self.no_room(needed, free, expects)));
                }
                Room::Later { .. } => return None,
                // Nothing that ends by itself would change that.
                Room::Pinned { needed, free } => {
                    let pinned = self.slots().filter(|slot| self.is_pinned(slot));
                    let mut pinned: Vec<String> = pinned.filter_map(|slot| slot.id().map(str::to_owned)).collect();
                    pinned.sort();
                    let (model, budget) = (id.to_owned(), self.fixed.budget);
                    let refusal = EngineError::BehindPinned { model, needed, free, budget, pinned };
                    return Some(Err(self.not_loaded(refusal, expects)));
                }
            }
        }
        Some(self.load(dir, id, sizes, expects))
    }

    /// Whether the first of those who wait for a load waits for this model to leave.
    fn is_in_the_way(&self, key: u64) -> bool {
        let Some(first) = self.loads.front() else { return false };
        match &first.sizes {
            Some(Some(sizes)) if first.since.elapsed() < FAIR => {
                let needed = sizes.terms(sizes.smallest()).total();
                let free = self.fixed.budget.saturating_sub(self.fixed.weights);
                // Those with work as well: they leave when it is done.
                fewest(self.unpinned(), free, needed).is_none_or(|leave| leave.contains(&key))
            }
            // Not looked at yet, its files do not say, or what runs of the others has kept it waiting for long.
            _ => self.slots().any(|slot| slot.key == key && !self.is_pinned(slot)),
        }
    }

    fn no_room(&mut self, needed: u64, free: u64, expects: bool) -> EngineError {
        let (budget, retry_after_s) = (self.fixed.budget, RETRY_AFTER);
        self.not_loaded(EngineError::InsufficientMemory { needed, free, budget, retry_after_s }, expects)
    }

    /// What leaves so that a model of these sizes has room, its own smallest context included.
    fn room_for(&mut self, sizes: &Sizes) -> Room {
        let needed = sizes.terms(sizes.smallest()).total();
        let current = self.slot.key;
        // What rows of every model hold, wherever their turn is.
        let own = self.slot.sizes.as_ref().filter(|_| !self.slot.rooms.is_empty()).map_or(0, |own| {
            let held = self.slot.rooms.held(self.slot.rooms.least_chunk(), &crate::ledger::Ledger::default(), &**own);
            held.kv.saturating_add(held.transient)
        });
        let rows = own.saturating_add(self.fixed.kv).saturating_add(self.fixed.transient);
        let taken = rows.saturating_add(self.fixed.weights);
        let budget = self.fixed.budget;
        let leavers = self.leavers(None);
        let free = budget.saturating_sub(taken);
        if let Some(mut leave) = fewest(leavers.clone(), free, needed) {
            // The current slot last: the others do not move then.
            leave.sort_by_key(|key| *key == current);
            return Room::Yes(leave);
        }
        let free = leavers.iter().fold(free, |free, (_, weights)| free.saturating_add(*weights));
        let without = budget.saturating_sub(self.pinned_weights());
        if without < needed { Room::Pinned { needed, free: without } } else { Room::Later { needed, free } }
    }

    /// A load was refused or failed: what was there before goes on. One that a request wanted says nothing of the others
    /// that could be.
    fn not_loaded(&mut self, error: EngineError, for_request: bool) -> EngineError {
        let message = error.to_string();
        let others = for_request && self.options.serving.places.is_some();
        self.shared.update(|state| {
            state.health = match &state.served {
                Some(served) => Health::Ready { model: served.id.clone() },
                None if others => Health::Empty,
                None => Health::Failed { message },
            };
        });
        error
    }

    /// Loads a model into a slot of its own; room was made for it.
    fn load(&mut self, dir: &Path, id: &str, sizes: Option<Sizes>, for_request: bool) -> LoadResult {
        self.open_slot();
        let key = self.slot.key;
        self.fixed.weights = self.fixed.weights.saturating_add(sizes.as_ref().map_or(0, Sizes::weights));
        self.make_way();
        let _ = hearth_mlx::clear_cache();
        self.set_allocator_limits();
        self.publish(true);
        let started = Instant::now();
        self.shared.set_loading(id, 0);
        let shared = self.shared;
        let mut progress = |share: f64| shared.set_loading(id, (share * 100.0) as u8);
        let asked = LoadOptions { context: self.context_of(id), kv: self.options.kv_of(id) };
        let unsized_model =
            || CoreError::Folder(format!("{}: what it takes cannot be told from its files", dir.display()));
        let loaded = (self.loader)(dir, id, asked, &mut progress)
            .and_then(|loaded| Ok((padding(&loaded.served)?, loaded)))
            .map_err(EngineError::from)
            .and_then(|(padding, loaded)| match sizes {
                Some(sizes) => Ok((padding, sizes.with_weights(loaded.weight_bytes), loaded)),
                None => Err(EngineError::ModelUnusable(unsized_model())),
            });
        match loaded {
            Ok((padding, sizes, loaded)) => Ok(self.loaded(padding, sizes, loaded, started)),
            Err(e) => {
                let _ = hearth_mlx::clear_cache();
                if let Some(last) = self.others.iter().max_by_key(|slot| slot.used).map(|slot| slot.key) {
                    self.turn_to(last);
                    self.others.retain(|slot| slot.key != key);
                }
                self.count_others();
                self.set_allocator_limits();
                self.show_models();
                let e = self.not_loaded(e, for_request);
                self.publish(true);
                Err(e)
            }
        }
    }

    /// The context limit that was asked for: for all models by hand, or for this one.
    pub(super) fn context_of(&self, id: &str) -> Option<usize> {
        self.context.or(self.options.serving.of(id).context)
    }

    /// The prompt cache gives way to what is about to be loaded.
    fn make_way(&mut self) {
        let over = self.ledger(self.slot.rooms.least_chunk()).short(0);
        if over > 0 {
            self.give_way(over, None);
            if self.spilling_bytes() > 0 {
                self.save(LONGEST_SAVE);
            }
        }
    }

    /// Takes a model that is in memory now.
    fn loaded(
        &mut self,
        padding: Option<Tensor>,
        sizes: Sizes,
        mut loaded: Loaded,
        started: Instant,
    ) -> Arc<ServedModel> {
        let settings = self.options.serving.of(&loaded.served.id);
        let context = limits::context(&sizes, self.context_of(&loaded.served.id), self.fixed.budget);
        let largest = sizes.largest_context(self.fixed.budget).unwrap_or(0);
        if context as u64 > largest {
            let (model, budget) = (&loaded.served.id, bytes(self.fixed.budget));
            tracing::warn!(
                "the context of {model} is {context} tokens by hand; the memory budget of {budget} has room for {largest}"
            );
        }
        let served = Arc::new(with_settings(&loaded.served, context, &settings));
        loaded.served = served.clone();
        let seconds = started.elapsed().as_secs_f64();
        let slot = &mut self.slot;
        (slot.sizes, slot.load_s, slot.padding) = (Some(Arc::new(sizes)), seconds, padding);
        (slot.model, slot.used, slot.stay) = (Some(loaded), Instant::now(), settings.stay);
        self.count_others();
        self.set_allocator_limits();
        self.shared.update(|state| state.health = Health::Ready { model: served.id.clone() });
        self.show_models();
        tracing::info!(model = served.id, seconds, "loaded");
        self.publish(true);
        served
    }
}

/// Which of these models (key and bytes, the least recently used first) leave so that `needed` bytes are free: the first
/// ones, without those whose leaving changes nothing. `None` where all of them are not enough.
fn fewest(leavers: Vec<(u64, u64)>, mut free: u64, needed: u64) -> Option<Vec<u64>> {
    let mut leave = Vec::new();
    for (key, weights) in leavers {
        if free >= needed {
            break;
        }
        free = free.saturating_add(weights);
        leave.push((key, weights));
    }
    if free < needed {
        return None;
    }
    leave.retain(|(_, weights)| {
        let stays = free.saturating_sub(*weights) >= needed;
        if stays {
            free = free.saturating_sub(*weights);
        }
        !stays
    });
    Some(leave.into_iter().map(|(key, _)| key).collect())
}

/// A model with what a person set for it.
fn with_settings(model: &ServedModel, context: usize, settings: &ModelSettings) -> ServedModel {
    let mut served = ServedModel { context, ..model.clone() };
    if let Some(template) = &settings.template {
        served.chat_template = Some(template.clone());
    }
    if !settings.sampling.is_empty() {
        let mut defaults = served.generation_config.as_object().cloned().unwrap_or_default();
        // It would turn off what is set here.
        defaults.remove("do_sample");
        defaults.extend(settings.sampling.clone());
        served.generation_config = Arc::new(defaults.into());
    }
    served
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

#[cfg(test)]
mod tests {
    use super::fewest;

    #[test]
    fn only_those_leave_whose_room_is_needed() {
        let models = || vec![(1, 10), (2, 500), (3, 600)];
        assert_eq!(fewest(models(), 50, 40), Some(vec![]));
        assert_eq!(fewest(models(), 0, 10), Some(vec![1]));
        assert_eq!(fewest(models(), 0, 400), Some(vec![2]), "the small one's room is not enough, and not needed");
        assert_eq!(fewest(models(), 0, 505), Some(vec![1, 2]));
        assert_eq!(fewest(models(), 0, 1100), Some(vec![2, 3]));
        assert_eq!(fewest(models(), 0, 1111), None);
    }
}
