//! From the queue to a row: what the prompt cache already has of a prompt, in memory or on disk, and where the row
//! starts.

use super::Worker;
use super::slots::Slot;
use crate::cache::{Kind, LayerCache};
use crate::disk::{Parts, RestoreEvent};
use crate::error::Result;
use crate::loader::Loaded;
use crate::prompt_cache::{Hit, Lent};
use crate::row::{Row, Submitted};
use crate::sampler::RowSampler;
use hearth_core::kv_policy::FROM;
use hearth_core::layout::{LayerLayout, room_for};
use hearth_core::{EngineError, Event};
use std::hash::{BuildHasher, Hasher};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Prompt tokens that have to be computed for a boundary to be worth a copy of the state.
const COLD: usize = 256;
/// How long to wait for the disk in one go when nothing else is to do.
const DISK_PAUSE: Duration = Duration::from_millis(10);

/// A request whose state is being read from disk.
pub(super) struct Restoring {
    submitted: Submitted,
    events: Receiver<RestoreEvent>,
    /// The layers that came already.
    caches: Vec<LayerCache>,
    /// Prompt tokens that are read.
    tokens: usize,
}

impl Restoring {
    /// Whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.submitted.is_abandoned()
    }

    /// The request.
    pub(super) fn into_request(self) -> Submitted {
        self.submitted
    }
}

/// A request whose prompt begins as that of a row which is being prefilled: it waits for that row's state.
pub(super) struct Following {
    submitted: Submitted,
    /// The row.
    leader: u64,
    /// How many tokens they share.
    shared: usize,
}

impl Following {
    /// The request's number.
    pub(super) fn id(&self) -> u64 {
        self.submitted.id
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.submitted.is_abandoned()
    }

    /// The request.
    pub(super) fn into_request(self) -> Submitted {
        self.submitted
    }
}

/// Which kinds of state a model's layers keep.
pub(super) fn parts(model: &Loaded) -> Parts {
    let strips = |layer: &LayerLayout| matches!(layer, LayerLayout::Full { .. });
    Parts { strips: model.layout.layers.iter().any(strips), snapshot: !model.layout.layers.iter().all(strips) }
}

impl Worker<'_> {
    /// Starts a row from the best that the prompt cache has; the disk only where it has more than memory.
    pub(super) fn begin(&mut self, submitted: Submitted) {
        let Some(model) = &self.slot.model else { return self.refuse(submitted, EngineError::EngineLost) };
        let prompt = &submitted.request.prompt;
        let held = self.cache.longest(&model.namespace, prompt).map_or(0, |hit| hit.tokens);
        let in_memory = self.spilling.longest(&model.namespace, prompt).max(held);
        if let Some((leader, shared)) = self.leader(prompt, in_memory) {
            // What both begin with is computed once: the leader leaves its state there.
            self.slot.scheduler.stop_at(leader, shared);
            if let Some(row) = self.slot.rows.get_mut(&leader) {
                row.keep_at.push(shared);
            }
            self.slot.following.push(Following { submitted, leader, shared });
            return;
        }
        let found =
            self.disk.and_then(|disk| Some((disk, disk.find(&model.namespace, prompt, parts(model), in_memory)?)));
        match found {
            Some((disk, found)) => {
                let tokens = found.tokens();
                // What memory has of it is not needed where it has no room beside what comes from disk.
                let over = self.ledger(self.slot.rooms.least_chunk()).short(0);
                self.give_way(over, None);
                let events = disk.restore(found, room_for(prompt.len() as u64 + 1) as usize);
                let restoring = Restoring { submitted, events, caches: Vec::new(), tokens };
                self.slot.restoring.insert(restoring.submitted.id, restoring);
            }
            None => self.begin_from_memory(submitted),
        }
    }

    /// The row whose prefill is worth waiting for, as it will soon have more of this prompt than the cache has.
    fn leader(&self, prompt: &[u32], cached: usize) -> Option<(u64, usize)> {
        if self.cache.cap() == 0 {
            return None;
        }
        let shared = |row: &Row| {
            let shared = row.request.prompt.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            // Both have at least their last token to compute.
            shared.min(prompt.len() - 1).min(row.request.prompt.len() - 1)
        };
        let ahead = self.slot.rows.iter().filter(|(_, row)| row.next.is_none());
        let worth = ahead.map(|(id, row)| (*id, shared(row), row.prefilled));
        let worth = worth.filter(|(_, shared, done)| *shared >= cached + COLD && shared > done);
        worth.max_by_key(|(_, shared, _)| *shared).map(|(id, shared, _)| (id, shared))
    }

    /// Starts the requests whose leader is where they part, or gone.
    pub(super) fn follow(&mut self) {
        for following in std::mem::take(&mut self.slot.following) {
            match self.slot.rows.get(&following.leader) {
                Some(row) if row.prefilled < following.shared => self.slot.following.push(following),
                _ => self.begin(following.submitted),
            }
        }
    }

    fn begin_from_memory(&mut self, submitted: Submitted) {
        let Some(model) = &self.slot.model else { return self.refuse(submitted, EngineError::EngineLost) };
        let (namespace, prompt) = (model.namespace, &submitted.request.prompt);
        let hit = self.cache.longest(&namespace, prompt);
        if let Some((state, tokens)) = self.spilling.lend(&namespace, prompt, hit.map_or(0, |hit| hit.tokens)) {
            self.cache.found_elsewhere(tokens);
            return self.start(submitted, state, tokens);
        }
        match hit.and_then(|hit| Some((self.take_hit(hit)?, hit.tokens))) {
            Some((state, tokens)) => self.start(submitted, state, tokens),
            None => {
                self.cache.missed();
                self.start(submitted, Lent::default(), 0);
            }
        }
    }

    /// The caches of a hit: views, and the entry stays; where there is no room for the copy that the row's first write
    /// makes, the entry itself, unless most of it would be lost by that: all prompts of a template begin alike.
    fn take_hit(&mut self, hit: Hit) -> Option<Lent> {
        // The row's own room, which its first write copies into, is charged already.
        if self.is_within_budget() {
            return self.cache.lend(hit);
        }
        if self.cache.is_mostly(hit) { self.cache.hand_over(hit) } else { None }
    }

    /// Takes the layers that came from disk since the last round, and starts the rows that are complete. Waits a
    /// moment where there is nothing else to do.
    pub(super) fn take_restored(&mut self) {
        let until = Instant::now() + DISK_PAUSE;
        let ids: Vec<u64> = self.slot.restoring.keys().copied().collect();
        for id in ids {
            loop {
                let alone = self.slot.rows.is_empty() && self.slot.in_flight.is_empty();
                let alone = alone && !self.others.iter().any(Slot::is_busy);
                let patience = if alone { until.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
                let Some(restoring) = self.slot.restoring.get_mut(&id) else { break };
                let event = match restoring.events.recv_timeout(patience) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => {
                        RestoreEvent::Failed { message: "the reading thread ended".into() }
                    }
                };
                let outcome = match (event, &self.slot.model) {
                    (RestoreEvent::Layer { strips, wholes }, Some(model)) => {
                        take_layer(model, restoring, strips, wholes).map(|()| false).map_err(|e| e.to_string())
                    }
                    (RestoreEvent::Done { .. }, Some(model)) if restoring.caches.len() == model.layout.layers.len() => {
                        Ok(true)
                    }
                    (RestoreEvent::Failed { message }, _) => Err(message),
                    _ => Err("the files hold another number of layers".into()),
                };
                match outcome {
                    Ok(false) => {}
                    Ok(true) => {
                        if let Some(done) = self.slot.restoring.remove(&id) {
                            let state = Lent { caches: done.caches, attachments: Vec::new() };
                            self.start(done.submitted, state, done.tokens);
                        }
                    }
                    Err(message) => {
                        tracing::warn!("a prompt is not continued from disk: {message}");
                        if let Some(failed) = self.slot.restoring.remove(&id) {
                            self.begin_from_memory(failed.submitted);
                        }
                    }
                }
            }
        }
    }

    /// Whether states are worth keeping: a tier is there for them.
    pub(super) fn keeps(&self) -> bool {
        self.cache.cap() > 0 || self.disk.is_some()
    }

    /// Starts a row whose first `cached` prompt tokens are in this state (empty, where nothing is cached).
    fn start(&mut self, submitted: Submitted, mut state: Lent, cached: usize) {
        let Some(model) = &self.slot.model else { return self.refuse(submitted, EngineError::EngineLost) };
        if cached == 0 {
            state.caches = LayerCache::for_layout(&model.layout);
        }
        let expected = submitted.request.prompt.len() + 1;
        for (cache, bits) in state.caches.iter_mut().zip(&model.kv_bits) {
            // What will be quantized has room as floats until then.
            let floats = bits.is_some() && cached < FROM;
            cache.expect(if floats { expected.min(FROM) } else { expected });
        }
        let mut stops = Vec::new();
        if cached < FROM && model.kv_bits.iter().any(Option::is_some) {
            stops.push(FROM);
        }
        let (id, request) = (submitted.id, &submitted.request);
        if cached >= FROM
            && let Some(sizes) = &self.slot.sizes
        {
            self.slot.rooms.settle(id, &**sizes);
        }
        if let Some(mut row) = self.slot.parked.remove(&id) {
            row.go_on(state, cached);
            self.slot.rows.insert(id, row);
            self.slot.scheduler.start(id, cached, stops);
            return;
        }
        let sampler = RowSampler::new(
            &request.sampling,
            request.logprobs,
            model.served.vocab_size,
            &request.prompt,
            &model.xtc_exempt,
            fresh_seed(),
        );
        let sampler = match sampler {
            Ok(sampler) => sampler,
            Err(e) => return self.refuse(submitted, e.into()),
        };
        // Without a cache in memory the disk has every prefix of a state that can be trimmed; of one that cannot, what is
        // kept at a boundary.
        let keeps = self.cache.cap() > 0 || self.disk.is_some() && parts(model).snapshot;
        let worth = |&b: &usize| keeps && b >= cached + COLD && b < request.prompt.len();
        let keep_at: Vec<usize> = request.boundaries.iter().copied().filter(worth).collect();
        stops.extend(&keep_at);
        stops.sort_unstable();
        let largest = self.slot.sizes.as_ref().and_then(|sizes| sizes.largest_context(self.fixed.budget));
        let context = largest.map_or(model.served.context, |largest| model.served.context.min(largest as usize));
        let mut row = Row::new(submitted, state, cached, sampler, context);
        row.keep_at = keep_at;
        self.slot.rows.insert(id, row);
        self.slot.scheduler.start(id, cached, stops);
    }

    /// Tells whoever waits that there will be no answer.
    pub(super) fn tell(&mut self, submitted: Submitted, error: EngineError) {
        match self.slot.parked.remove(&submitted.id) {
            Some(mut row) => {
                row.fail(error);
                self.retire(row);
            }
            None => drop(submitted.events.try_send(Event::Failed(error))),
        }
    }

    fn refuse(&mut self, submitted: Submitted, error: EngineError) {
        let id = submitted.id;
        self.tell(submitted, error);
        self.left(id, |totals| totals.failed += 1);
    }
}

/// The next layer of a restore, in place of nothing.
fn take_layer(
    model: &Loaded,
    restoring: &mut Restoring,
    strips: Vec<crate::disk::Strip>,
    wholes: Vec<crate::disk::Whole>,
) -> Result<()> {
    let layer = restoring.caches.len();
    let Some(layout) = model.layout.layers.get(layer) else {
        return Err(crate::error::Error::Stored { found: format!("a layer number {layer}") });
    };
    let kind = Kind { layout, bits: model.kv_bits.get(layer).copied().flatten(), converted_at: FROM };
    restoring.caches.push(LayerCache::restored(kind, strips, wholes, restoring.tokens)?);
    Ok(())
}

/// A seed that no other request gets: the standard library's hasher keys are random and differ each time.
fn fresh_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
