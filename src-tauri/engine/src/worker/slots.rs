//! Several models on one engine thread: what belongs to one of them, whose turn it is, and which of them leaves memory.
//!
//! The worker computes for one slot at a time; the others wait beside it. What they hold counts in the ledger of whoever
//! has its turn. A model with work, one that is pinned and one that has only just been loaded for somebody stay; of the
//! others the one goes first that nobody has used for longest.

use super::admission::{Following, Restoring, parts};
use super::memory::Tight;
use super::{InFlight, LONGEST_SAVE, Worker};
use crate::disk::{Namespace, Parts};
use crate::handle::Resident;
use crate::loader::Loaded;
use crate::rooms::{Asked, Rooms};
use crate::row::{Row, Submitted};
use crate::scheduler::{Limits, Scheduler};
use crate::sizes::Sizes;
use hearth_core::EngineError;
use hearth_core::stats::{Health, ModelStats};
use hearth_mlx::Tensor;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model that was loaded for somebody stays this long for their first request.
const GRACE: Duration = Duration::from_secs(2);

/// One model with its rows, or the place for one.
pub(super) struct Slot {
    /// Its number; later ones are larger.
    pub key: u64,
    pub model: Option<Loaded>,
    /// −∞ for the ids of the LM head that the tokenizer does not have, `[1, vocab]`.
    pub padding: Option<Tensor>,
    pub rows: BTreeMap<u64, Row>,
    pub waiting: BTreeMap<u64, Submitted>,
    /// Rows that wait to be computed again, by their requests' numbers: what they held others needed.
    pub parked: BTreeMap<u64, Row>,
    /// What things cost with this model.
    pub sizes: Option<Arc<Sizes>>,
    pub rooms: Rooms,
    pub tight: Tight,
    /// What those who wait lacked when they were looked at last.
    pub refused: BTreeMap<u64, Asked>,
    pub scheduler: Scheduler,
    pub in_flight: VecDeque<InFlight>,
    pub restoring: BTreeMap<u64, Restoring>,
    pub following: Vec<Following>,
    /// Measured prefill speed in tokens per second.
    pub prefill_rate: Option<f64>,
    /// Tokens of a chunk while another slot has its turn.
    chunk: usize,
    /// When a request came last.
    pub used: Instant,
    /// Until when it waits for the request that it was loaded for.
    fresh: Option<Instant>,
    /// How long it stays without work, where that was asked for; `Some(None)`: for ever.
    pub stay: Option<Option<Duration>>,
    pub load_s: f64,
}

impl Slot {
    /// A place without a model.
    pub(super) fn new(key: u64, chunk: usize, max_rows: usize) -> Self {
        let limits = Limits { max_rows, chunk, least_chunk: 16, chunk_ms: 300, lone_chunk_ms: 2000 };
        Slot {
            key,
            model: None,
            padding: None,
            rows: BTreeMap::new(),
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            sizes: None,
            rooms: Rooms::new(chunk as u64),
            tight: Tight::default(),
            refused: BTreeMap::new(),
            scheduler: Scheduler::new(limits),
            in_flight: VecDeque::new(),
            restoring: BTreeMap::new(),
            following: Vec::new(),
            prefill_rate: None,
            chunk,
            used: Instant::now(),
            fresh: None,
            stay: None,
            load_s: 0.0,
        }
    }

    /// Whether it has something to do.
    pub(super) fn is_busy(&self) -> bool {
        let idle = self.rows.is_empty() && self.waiting.is_empty() && self.in_flight.is_empty();
        !(idle && self.restoring.is_empty() && self.following.is_empty())
    }

    /// Requests that wait or run here.
    pub(super) fn requests(&self) -> usize {
        self.rows.len() + self.waiting.len() + self.restoring.len() + self.following.len()
    }

    /// The id of its model.
    pub(super) fn id(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.served.id.as_str())
    }

    /// Whether a request of this number is here.
    pub(super) fn has(&self, id: u64) -> bool {
        self.rows.contains_key(&id)
            || self.waiting.contains_key(&id)
            || self.restoring.contains_key(&id)
            || self.following.iter().any(|following| following.id() == id)
    }

    fn weights(&self) -> u64 {
        self.model.as_ref().map_or(0, |model| model.weight_bytes)
    }

    /// Whether it was loaded for a request that has not come yet.
    pub(super) fn is_expecting(&self) -> bool {
        self.fresh.is_some_and(|until| Instant::now() < until)
    }

    /// It was loaded for somebody whose request is still on its way.
    pub(super) fn expects(&mut self) {
        self.fresh = Some(Instant::now() + GRACE);
    }
}

impl Worker<'_> {
    /// All slots, the current one first.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        std::iter::once(&self.slot).chain(&self.others)
    }

    /// The slots with work, the one after the current one first; the current one where none has any.
    pub(super) fn turns(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.slots().filter(|slot| slot.is_busy()).map(|slot| slot.key).collect();
        if keys.is_empty() {
            return vec![self.slot.key];
        }
        keys.sort_unstable();
        let after = keys.iter().position(|key| *key > self.slot.key).unwrap_or(0);
        keys.rotate_left(after);
        keys
    }

    /// Makes this slot the current one.
    pub(super) fn turn_to(&mut self, key: u64) {
        let Some(other) = self.others.iter_mut().find(|slot| slot.key == key) else { return };
        std::mem::swap(&mut self.slot, other);
        other.chunk = self.guard.swap_chunk(self.slot.chunk);
        self.count_others();
    }

    /// The slot with this model.
    pub(super) fn slot_of(&self, id: &str) -> Option<u64> {
        self.slots().find(|slot| slot.id() == Some(id)).map(|slot| slot.key)
    }

    /// The slot where this request is.
    pub(super) fn slot_with(&self, request: u64) -> Option<u64> {
        self.slots().find(|slot| slot.has(request)).map(|slot| slot.key)
    }

    /// Whether nobody holds anything for a request, of this model or another.
    pub(super) fn is_alone(&self) -> bool {
        self.slot.rooms.is_empty() && self.fixed.kv == 0
    }

    /// What the other slots hold counts with what the current one does.
    pub(super) fn count_others(&mut self) {
        let (mut kv, mut transient) = (0u64, 0u64);
        for other in &self.others {
            if let Some(sizes) = other.sizes.as_ref().filter(|_| !other.rooms.is_empty()) {
                let held = other.rooms.held(other.rooms.least_chunk(), &crate::ledger::Ledger::default(), &**sizes);
                kv = kv.saturating_add(held.kv);
                transient = transient.saturating_add(held.transient);
            }
        }
        (self.fixed.kv, self.fixed.transient) = (kv, transient);
        self.fixed.weights = self.slots().map(Slot::weights).sum();
    }

    /// Which kinds of state the model of this namespace keeps, if it is in memory.
    pub(super) fn parts_of(&self, namespace: &Namespace) -> Option<Parts> {
        self.slots().filter_map(|slot| slot.model.as_ref()).find(|model| model.namespace == *namespace).map(parts)
    }

    /// A new, empty current slot; the one before it stays beside it if it has a model.
    pub(super) fn open_slot(&mut self) {
        self.next_slot += 1;
        let new = Slot::new(self.next_slot, self.options.prefill_chunk.max(1), self.max_rows);
        let old = std::mem::replace(&mut self.slot, new);
        if old.model.is_some() {
            self.others.push(old);
            if let Some(old) = self.others.last_mut() {
                old.chunk = self.guard.swap_chunk(self.slot.chunk);
            }
        }
        self.count_others();
    }

    pub(super) fn is_pinned(&self, slot: &Slot) -> bool {
        slot.id().is_some_and(|id| self.pins.contains(id))
    }

    /// Whether this slot's model may leave memory.
    fn may_leave(&self, slot: &Slot) -> bool {
        slot.model.is_some() && !slot.is_busy() && !self.is_pinned(slot)
    }

    /// Models that may leave memory, least recently used first: key and bytes of weights. One that expects a request may
    /// do so when that has not come.
    pub(super) fn leavers(&self, but: Option<u64>) -> Vec<(u64, u64)> {
        self.by_use(|slot| Some(slot.key) != but && self.may_leave(slot))
    }

    /// All models that are not pinned, with work or not, least recently used first: key and bytes of weights.
    pub(super) fn unpinned(&self) -> Vec<(u64, u64)> {
        self.by_use(|slot| slot.model.is_some() && !self.is_pinned(slot))
    }

    fn by_use(&self, which: impl Fn(&Slot) -> bool) -> Vec<(u64, u64)> {
        let mut all: Vec<&Slot> = self.slots().filter(|slot| which(slot)).collect();
        all.sort_by_key(|slot| slot.used);
        all.into_iter().map(|slot| (slot.key, slot.weights())).collect()
    }

    /// Bytes of the weights of the pinned models.
    pub(super) fn pinned_weights(&self) -> u64 {
        self.slots().filter(|slot| self.is_pinned(slot)).map(Slot::weights).sum()
    }

    /// Models that nobody uses leave until these bytes are free; none does where that is not enough. True if they are.
    pub(super) fn evict_idle(&mut self, bytes: u64, why: &str) -> bool {
        let leavers = self.leavers(Some(self.slot.key));
        if bytes == 0 || leavers.iter().map(|(_, weights)| weights).sum::<u64>() < bytes {
            return false;
        }
        let mut freed = 0;
        for (key, weights) in leavers {
            if freed >= bytes {
                break;
            }
            if self.others.iter().any(|slot| slot.key == key && slot.is_expecting()) {
                break;
            }
            self.evict(key, why);
            freed += weights;
        }
        freed >= bytes
    }

    /// Takes a model without work out of memory. Its part of the prompt cache goes to disk first. Returns its bytes.
    pub(super) fn evict(&mut self, key: u64, why: &str) -> u64 {
        let Some(model) = self.slots().find(|slot| slot.key == key).and_then(|slot| slot.model.as_ref()) else {
            return 0;
        };
        let (id, weights, namespace) = (model.served.id.clone(), model.weight_bytes, model.namespace);
        if self.slots().any(|slot| slot.key != key && slot.model.as_ref().is_some_and(|m| m.namespace == namespace)) {
            // The same model under another name goes on with its entries.
        } else {
            self.save(LONGEST_SAVE);
            for entry in self.cache.ids() {
                if self.cache.entry(entry).is_some_and(|entry| entry.namespace == namespace) {
                    self.cache.remove(entry);
                }
            }
        }
        match self.others.iter().position(|slot| slot.key == key) {
            Some(place) => drop(self.others.remove(place)),
            None => {
                // The one that was used last is the next to be asked for.
                let next = self.others.iter().max_by_key(|slot| slot.used).map(|slot| slot.key);
                match next {
                    Some(next) => {
                        self.turn_to(next);
                        self.others.retain(|slot| slot.key != key);
                    }
                    None => {
                        self.next_slot += 1;
                        self.slot = Slot::new(self.next_slot, self.options.prefill_chunk.max(1), self.max_rows);
                    }
                }
            }
        }
        let _ = hearth_mlx::clear_cache();
        hearth_machine::release_freed();
        self.watch.available = self.options.memory.pressure.0.available();
        self.count_others();
        self.set_allocator_limits();
        tracing::info!(model = id, freed = weights, "unloaded: {why}");
        self.guard.did("unload", format!("{id}: {why}"), weights);
        self.show_models();
        self.publish(true);
        weights
    }

    /// Unloads a model for somebody who asked.
    ///
    /// # Errors
    /// `ModelBusy` and `ModelNotFound`.
    pub(super) fn unload(&mut self, id: &str) -> Result<u64, EngineError> {
        let busy = |requests: usize| EngineError::ModelBusy { model: id.to_owned(), requests: requests.max(1) };
        if let Some(waiting) = self.waiting_for(id) {
            return Err(busy(waiting));
        }
        let Some(slot) = self.slots().find(|slot| slot.id() == Some(id)) else {
            let available = self.slots().filter_map(|slot| slot.id().map(str::to_owned)).collect();
            return Err(EngineError::ModelNotFound { name: id.to_owned(), available });
        };
        // A request that it was loaded for is on its way.
        if slot.is_busy() || slot.is_expecting() {
            return Err(busy(slot.requests()));
        }
        Ok(self.evict(slot.key, "it was asked for"))
    }

    /// How long a slot stays without work; `None`: as long as there is room.
    fn stays(&self, slot: &Slot) -> Option<Duration> {
        slot.stay.unwrap_or(self.options.serving.ttl)
    }

    /// Models that nobody used for as long as they may stay leave memory.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        let over = |slot: &&Slot| {
            self.stays(slot).and_then(|stay| slot.used.checked_add(stay)).is_some_and(|until| now >= until)
                && self.may_leave(slot)
                && !slot.is_expecting()
        };
        let keys: Vec<u64> = self.slots().filter(over).map(|slot| slot.key).collect();
        for key in keys {
            self.evict(key, "nobody used it for as long as it was to stay");
        }
    }

    /// When the next model without work has stayed for long enough.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let due = |slot: &Slot| {
            let until = slot.used.checked_add(self.stays(slot)?)?;
            let until = slot.fresh.map_or(until, |fresh| until.max(fresh));
            (slot.model.is_some() && !self.is_pinned(slot)).then_some(until)
        };
        let next = self.slots().filter_map(due).min()?;
        Some(next.saturating_duration_since(Instant::now()).max(Duration::from_millis(20)))
    }

    /// A request for the current slot's model.
    pub(super) fn queue(&mut self, submitted: Submitted) {
        self.slot.used = Instant::now();
        self.slot.fresh = None;
        self.slot.scheduler.add(submitted.id, submitted.request.prompt.len());
        self.slot.waiting.insert(submitted.id, submitted);
    }

    /// Tells the world which models are in memory; the one that was used last counts as the current one.
    pub(super) fn show_models(&mut self) {
        let mut slots: Vec<&Slot> = self.slots().filter(|slot| slot.model.is_some()).collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.used));
        let residents: Vec<Resident> = slots
            .iter()
            .filter_map(|slot| {
                let (model, sizes) = (slot.model.as_ref()?, slot.sizes.as_ref()?);
                let stats = ModelStats {
                    id: model.served.id.clone(),
                    model_type: model.served.model_type.clone(),
                    context: model.served.context,
                    load_s: slot.load_s,
                    weights: model.weight_bytes,
                    pinned: self.is_pinned(slot),
                    requests: slot.requests(),
                };
                Some(Resident { served: model.served.clone(), sizes: sizes.clone(), stats })
            })
            .collect();
        let weights = self.fixed.weights;
        self.shared.update(|state| {
            let first = residents.first();
            state.served = first.map(|r| r.served.clone());
            state.sizes = first.map(|r| r.sizes.clone());
            state.stats.model = first.map(|r| r.stats.clone());
            state.stats.models = residents.iter().map(|r| r.stats.clone()).collect();
            state.stats.memory.weights = weights;
            match (&state.health, first) {
                (Health::Loading { .. }, _) => {}
                (_, Some(first)) => state.health = Health::Ready { model: first.served.id.clone() },
                (Health::Ready { .. }, None) => state.health = Health::Empty,
                (_, None) => {}
            }
            if let Some(first) = first {
                state.wanted = Some((first.served.id.clone(), first.served.path.clone()));
            }
            state.models = residents;
        });
    }
}
