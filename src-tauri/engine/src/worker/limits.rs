//! Limits that change while the engine runs, and what MLX is told of them.

use super::Worker;
use crate::ledger::{allocator_limit, wired_limit};
use crate::limits;
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
            self.scheduler.set_max_rows(rows);
        }
        if let Some(context) = asked.context {
            self.context = Some(context).filter(|&n| n > 0);
        }
        let (context, budget) = (self.context, self.fixed.budget);
        let shown = self.shared.update(|state| {
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
            if let (Some(served), Some(sizes)) = (&state.served, &state.sizes) {
                let context = limits::context(sizes, context, budget);
                state.served = Some(Arc::new(ServedModel { context, ..(**served).clone() }));
                if let Some(model) = &mut state.stats.model {
                    model.context = context;
                }
            }
            limits::shown(state)
        });
        if let (Some(model), Some(served)) = (&mut self.model, self.shared.update(|state| state.served.clone())) {
            model.served = served;
        }
        self.refuse_impossible();
        self.watch(true);
        self.publish(true);
        Ok(shown)
    }

    /// Refuses requests that waited and can never fit into the budget as it is now. A row that was parked goes on as
    /// far as it gets.
    fn refuse_impossible(&mut self) {
        let (Some(sizes), Some(model)) = (self.sizes.clone(), &self.model) else { return };
        let (context, budget) = (model.served.context, self.fixed.budget);
        let never = self.waiting.iter().filter_map(|(id, waiting)| {
            let error = limits::check_prompt(waiting.request.prompt.len(), context, &sizes, budget).err()?;
            Some((*id, error))
        });
        for (id, error) in never.collect::<Vec<_>>() {
            let Some(waiting) = self.waiting.remove(&id) else { continue };
            match self.parked.remove(&id) {
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
        let on_gpu = self.machine.device == hearth_core::fit::Device::Gpu;
        let (budget, weights) = (self.fixed.budget, self.fixed.weights);
        let cache = allocator_limit(budget, on_gpu);
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
        if let Some(sizes) = self.sizes.take() {
            let sizes = Arc::new((*sizes).clone().with_limits(self.fixed.reserve, cache));
            self.shared.update(|state| state.sizes = Some(sizes.clone()));
            self.sizes = Some(sizes);
        }
    }

    /// Ends a request by its number, wherever it is.
    pub(super) fn cancel(&mut self, id: u64) {
        let error = EngineError::Cancelled;
        if let Some(mut row) = self.rows.remove(&id) {
            row.fail(error);
            self.keep(&mut row);
            self.retire(row);
        } else if let Some(waiting) = self.waiting.remove(&id) {
            self.tell(waiting, error);
        } else if let Some(restoring) = self.restoring.remove(&id) {
            self.tell(restoring.into_request(), error);
        } else if let Some(place) = self.following.iter().position(|following| following.id() == id) {
            let following = self.following.remove(place);
            self.tell(following.into_request(), error);
        } else {
            return;
        }
        self.left(id, |totals| totals.cancelled += 1);
    }
}
