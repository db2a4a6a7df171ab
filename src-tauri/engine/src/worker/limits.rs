//! Limits that change while the engine runs, and what MLX is told of them.

use super::Worker;
use crate::ledger::wired_limit;
use crate::limits;
use hearth_core::fit::memory::allocator_limit;
use hearth_core::{EngineError, Limits, ServedModel};
use hearth_mlx::Device;
use std::sync::Arc;

impl Worker<'_> {
    /// Changes limits, or says why not.
    ///
    /// # Errors
    /// As [`limits::check`].
    pub(super) fn set_limits(&mut self, asked: Limits) -> Result<Limits, EngineError> {
        self.publish(true);
        self.shared.update(|state| limits::check(state, asked))?;
        if let Some(budget) = asked.budget {
            self.fixed.budget = budget;
            self.set_allocator_limits();
        }
        if let Some(cap) = asked.cache_ram {
            for (id, entry) in self.cache.set_cap(cap) {
                self.spill_evicted(Some(id), entry);
            }
        }
        if let (Some(cap), Some(disk)) = (asked.cache_ssd, self.disk) {
            disk.set_cap(cap);
        }
        if let Some(rows) = asked.max_rows {
            self.max_rows = rows;
            for slot in std::iter::once(&mut self.slot).chain(&mut self.others) {
                slot.scheduler.set_max_rows(rows);
            }
        }
        if let Some(context) = asked.context {
            self.context = Some(context).filter(|&n| n > 0);
        }
        let (context, budget) = (self.context, self.fixed.budget);
        self.shared.update(|state| {
            state.limits = Limits {
                budget: Some(budget),
                cache_ram: asked.cache_ram.or(state.limits.cache_ram),
                cache_ssd: asked.cache_ssd.or(state.limits.cache_ssd),
                context,
                max_rows: asked.max_rows.or(state.limits.max_rows),
            };
            state.stats.max_rows = state.limits.max_rows.unwrap_or(state.stats.max_rows);
            if asked.budget.is_some() {
                state.stats.memory.ledger.budget_from = "api".to_owned();
            }
        });
        for slot in std::iter::once(&mut self.slot).chain(&mut self.others) {
            if let (Some(model), Some(sizes)) = (&mut slot.model, &slot.sizes) {
                let own = self.options.serving.of(&model.served.id).context;
                let context = limits::context(sizes, context.or(own), budget);
                model.served = Arc::new(ServedModel { context, ..(*model.served).clone() });
            }
        }
        self.show_models();
        let shown = self.shared.update(|state| limits::shown(state));
        for key in self.slots().map(|slot| slot.key).collect::<Vec<_>>() {
            self.turn_to(key);
            self.refuse_impossible();
        }
        self.watch(true);
        self.publish(true);
        Ok(shown)
    }

    /// Refuses requests that waited and can never fit into the budget as it is now. A row that was parked goes on as
    /// far as it gets.
    fn refuse_impossible(&mut self) {
        let (Some(sizes), Some(model)) = (self.slot.sizes.clone(), &self.slot.model) else { return };
        let (context, budget) = (model.served.context, self.fixed.budget);
        let never = self.slot.waiting.iter().filter_map(|(id, waiting)| {
            let error = limits::check_prompt(waiting.request.prompt.len(), context, &sizes, budget).err()?;
            Some((*id, error))
        });
        for (id, error) in never.collect::<Vec<_>>() {
            let Some(waiting) = self.slot.waiting.remove(&id) else { continue };
            match self.slot.parked.remove(&id) {
                Some(mut row) => {
                    row.end_here();
                    self.retire(row);
                    self.left(id, |totals| totals.finished += 1);
                }
                None => {
                    self.tell(waiting, error);
                    self.left(id, |totals| totals.failed += 1);
                }
            }
        }
    }

    /// Tells MLX what it may use. Its own limits are a second line: the ledger holds by itself.
    pub(super) fn set_allocator_limits(&mut self) {
        let (budget, weights) = (self.fixed.budget, self.fixed.weights);
        let cache = allocator_limit(budget, self.machine.device);
        (self.allocator_limit, self.allocator_now) = (cache, cache);
        let as_size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut set = vec![
            ("memory", hearth_mlx::set_memory_limit(as_size(budget))),
            ("cache", hearth_mlx::set_cache_limit(as_size(cache))),
        ];
        if hearth_mlx::device().is_ok_and(|device| device == Device::Gpu) {
            let ram = self.machine.ram;
            let most = self.machine.working_set.unwrap_or_else(|| hearth_core::fit::memory::working_set(ram));
            let wired = if weights > 0 { wired_limit(weights, budget, most, ram) } else { 0 };
            set.push(("wired", hearth_mlx::set_wired_limit(as_size(wired))));
        }
        for (name, result) in set {
            if let Err(error) = result {
                tracing::warn!(%error, "MLX's {name} limit is not set");
            }
        }
        let reserve = self.fixed.reserve;
        for slot in std::iter::once(&mut self.slot).chain(&mut self.others) {
            slot.sizes = slot.sizes.take().map(|sizes| Arc::new((*sizes).clone().with_limits(reserve, cache)));
        }
    }

    /// Ends a request by its number, wherever it is.
    pub(super) fn cancel(&mut self, id: u64) {
        let error = EngineError::Cancelled;
        if let Some(key) = self.slot_with(id) {
            self.turn_to(key);
        }
        if let Some(mut row) = self.slot.rows.remove(&id) {
            row.fail(error);
            self.keep(&mut row);
            self.retire(row);
        } else if let Some(waiting) = self.slot.waiting.remove(&id) {
            self.tell(waiting, error);
        } else if let Some(restoring) = self.slot.restoring.remove(&id) {
            self.tell(restoring.into_request(), error);
        } else if let Some(place) = self.slot.following.iter().position(|following| following.id() == id) {
            let following = self.slot.following.remove(place);
            self.tell(following.into_request(), error);
        } else {
            self.cancel_wanted(id);
            return;
        }
        self.left(id, |totals| totals.cancelled += 1);
    }
}
