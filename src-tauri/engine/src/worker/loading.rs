//! A model in place of another: refused before anything of it is allocated where it has no room, and counted when it is
//! there.

use super::{LONGEST_SAVE, LoadResult, Worker};
use crate::error::Result;
use crate::handle::State;
use crate::ledger::allocator_limit;
use crate::limits;
use crate::loader::{LoadOptions, Loaded};
use crate::sizes::Sizes;
use hearth_core::stats::{Health, ModelStats};
use hearth_core::{CoreError, EngineError, ServedModel};
use hearth_mlx::Tensor;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

impl Worker<'_> {
    /// Loads a model in place of the current one, which goes first; where the new one has no room, it stays.
    pub(super) fn load(&mut self, dir: &Path, id: &str) -> LoadResult {
        let allocator = allocator_limit(self.fixed.budget, self.machine.device == hearth_core::fit::Device::Gpu);
        let kv_bits = self.options.cache.kv_bits;
        // What the current model holds will be free by then; what is free now decides how weights are laid out.
        self.machine.available = Some(hearth_machine::memory().available.saturating_add(self.fixed.weights));
        let sizes = Sizes::of_folder(dir, &self.machine, kv_bits, self.options.prefill_chunk)
            .map(|sizes| sizes.with_limits(self.fixed.reserve, allocator));
        if let Some(sizes) = &sizes
            && let Err(refusal) = sizes.check(id, self.fixed.budget)
        {
            let message = refusal.to_string();
            self.shared.update(|state| {
                state.health = match &state.served {
                    Some(served) => Health::Ready { model: served.id.clone() },
                    None => Health::Failed { message },
                };
            });
            return Err(refusal);
        }
        // What another model computed is of no use to this one, and its memory is needed now.
        self.save(LONGEST_SAVE);
        self.cache.clear();
        self.model = None;
        self.padding = None;
        self.sizes = None;
        let _ = hearth_mlx::clear_cache();
        self.fixed.weights = sizes.as_ref().map_or(0, Sizes::weights);
        self.set_allocator_limits();
        self.publish(true);
        let started = Instant::now();
        self.shared.set_loading(id, 0);
        let mut progress = |share: f64| self.shared.set_loading(id, (share * 100.0) as u8);
        let asked = LoadOptions { context: self.context, kv_bits };
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
                self.fixed.weights = 0;
                self.set_allocator_limits();
                self.shared.update(|state: &mut State| {
                    (state.served, state.sizes) = (None, None);
                    state.stats.model = None;
                    state.stats.memory.weights = 0;
                    state.health = Health::Failed { message: e.to_string() };
                });
                self.publish(true);
                Err(e)
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
        let context = limits::context(&sizes, self.context, self.fixed.budget);
        let served = Arc::new(ServedModel { context, ..(*loaded.served).clone() });
        loaded.served = served.clone();
        self.fixed.weights = loaded.weight_bytes;
        self.sizes = Some(Arc::new(sizes));
        self.set_allocator_limits();
        let seconds = started.elapsed().as_secs_f64();
        self.shared.update(|state| {
            state.served = Some(served.clone());
            state.health = Health::Ready { model: served.id.clone() };
            state.stats.memory.weights = loaded.weight_bytes;
            state.stats.model = Some(ModelStats {
                id: served.id.clone(),
                model_type: served.model_type.clone(),
                context,
                load_s: seconds,
            });
        });
        tracing::info!(model = served.id, seconds, "loaded");
        self.padding = padding;
        self.model = Some(loaded);
        self.publish(true);
        served
    }
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
