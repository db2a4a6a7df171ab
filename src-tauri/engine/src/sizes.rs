//! What things cost with one model on this device: `fit`'s arithmetic, with the weights as they really are, raised where more
//! was measured than predicted.

use crate::rooms::Costs;
use hearth_core::EngineError;
use hearth_core::fit::memory::{Sizing, Terms};
use hearth_core::fit::{Device as FitDevice, Machine};
use hearth_core::kv_policy::{Asked, KvPolicy};
use hearth_library::headers;
use hearth_library::learned::{Log, key_of};
use hearth_machine::chips;
use hearth_mlx::Device;
use std::path::Path;

/// Tokens of a context below which a model is of no use.
pub const SMALLEST: u64 = 256;

/// A model's sizes in bytes.
#[derive(Debug, Clone)]
pub struct Sizes {
    sizing: Sizing,
    weights: u64,
    reserve: u64,
    /// Rows of the LM head.
    vocab: u64,
    /// The longest context that the model was made for.
    context: u64,
    /// The most that the allocator keeps.
    allocator: u64,
    /// Prompt tokens of a chunk when nothing is in its way.
    chunk: u64,
}

/// This machine, with the device that computes here.
pub fn machine(device: Device) -> Machine {
    let device = if device == Device::Gpu { FitDevice::Gpu } else { FitDevice::Cpu };
    Machine { device, ..chips::here() }
}

impl Sizes {
    /// Of the model in this folder, from its headers, and from what was learned of the model of this id. `None` where the
    /// headers say too little: loading it will say what is wrong.
    pub fn of_folder(
        id: &str,
        dir: &Path,
        machine: &Machine,
        kv: &Asked,
        chunk: usize,
        log: Option<&Log>,
    ) -> Option<Self> {
        let (model, _) = headers::model(dir).ok()?;
        let kv = KvPolicy::for_model(dir, model.shape.layers, kv).ok()?;
        let sizing = Sizing::new(&model, machine, &kv);
        let key = || key_of(id, dir, machine.device, &kv, &hearth_mlx::version()).ok();
        let learned = log.and_then(|log| Some(log.of_key(&key()?, sizing.weights())));
        let sizing = sizing.learning(learned.unwrap_or_default());
        let weights = sizing.weights();
        let (vocab, context, chunk) = (model.shape.vocab, model.shape.context, (chunk as u64).max(1));
        Some(Sizes { sizing, weights, reserve: 0, vocab, context, allocator: 0, chunk })
    }

    /// The same with the weights as they were counted when they were loaded.
    pub fn with_weights(self, weights: u64) -> Self {
        Sizes { weights, ..self }
    }

    /// The same with another reserve and another limit of the allocator.
    pub fn with_limits(self, reserve: u64, allocator: u64) -> Self {
        Sizes { reserve, allocator, ..self }
    }

    /// Bytes of the weights.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// The longest context that the model was made for, in tokens.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The terms for one row of `context` tokens that is alone.
    pub fn terms(&self, context: u64) -> Terms {
        let prefill_transient = self.chunk(self.chunk.min(context), context);
        Terms {
            weights: self.weights,
            kv: self.sizing.row_bytes(context),
            prefill_transient,
            allocator_cache: self.allocator(prefill_transient),
            reserve: self.reserve,
        }
    }

    /// The shortest context that makes sense.
    pub fn smallest(&self) -> u64 {
        SMALLEST.min(self.context).max(1)
    }

    /// The largest context of one row within the budget; `None` where not even one token fits. Every term grows with
    /// the context or stays.
    pub fn largest_context(&self, budget: u64) -> Option<u64> {
        let fits = |context| self.terms(context).total() <= budget;
        if !fits(1) {
            return None;
        }
        let (mut fit, mut too_many) = (1, self.context.max(1) + 1);
        while fit + 1 < too_many {
            let middle = fit + (too_many - fit) / 2;
            if fits(middle) { fit = middle } else { too_many = middle }
        }
        Some(fit)
    }

    /// Refuses a budget in which the model has no room, with the numbers that say so.
    ///
    /// # Errors
    /// [`EngineError::ModelTooLarge`].
    pub fn check(&self, id: &str, budget: u64) -> Result<(), EngineError> {
        let context = self.smallest();
        let terms = self.terms(context);
        if terms.total() <= budget {
            return Ok(());
        }
        Err(EngineError::ModelTooLarge {
            model: id.to_owned(),
            needed: terms.total(),
            weights: terms.weights,
            reserve: terms.reserve,
            context: context as usize,
            budget,
        })
    }
}

impl Costs for Sizes {
    fn row(&self, tokens: u64) -> u64 {
        self.sizing.kv_bytes(tokens)
    }

    fn settled(&self, tokens: u64) -> u64 {
        self.sizing.settled_bytes(tokens)
    }

    fn chunk(&self, chunk: u64, context: u64) -> u64 {
        self.sizing.raised(chunk, context)
    }

    fn step(&self, rows: u64, context: u64) -> u64 {
        // The arithmetic has the logits of one row, as they are and as they are worked on.
        self.sizing.raised(rows, context) + (rows - 1) * 16 * self.vocab
    }

    fn allocator(&self, transient: u64) -> u64 {
        transient.min(self.allocator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::fit::memory::allocator_limit;

    /// `fit` and a server say the same of every budget, whatever its share for the allocator is.
    #[test]
    fn fit_and_the_engine_find_the_same_largest_context() {
        let here = chips::here();
        for (name, bits) in
            [("gemma3_text-f32", None), ("gemma3_text-q4", Some(4)), ("llama_swa-f32", None), ("qwen3_5-f32", Some(8))]
        {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
            let asked = Asked::bits(bits);
            let (model, _) = headers::model(&dir).unwrap();
            let policy = KvPolicy::for_model(&dir, model.shape.layers, &asked).unwrap();
            let chunk = hearth_core::fit::CHUNK as usize;
            let sizes = Sizes::of_folder(name, &dir, &here, &asked, chunk, None).unwrap();
            let fit = Sizing::new(&model, &here, &policy);
            let terms = fit.terms(256);
            for more in [0u64, 1_000_000, 10_000_000, 30_000_000, 60_000_000, 100_000_000] {
                let budget = terms.total() + more;
                let fit = fit.clone().within(budget);
                let sizes = sizes.clone().with_limits(terms.reserve, allocator_limit(budget, here.device));
                let (ours, theirs) = (sizes.largest_context(budget), fit.largest_context(budget, model.shape.context));
                assert_eq!(ours, theirs, "{name}: {budget}");
            }
        }
    }
}
