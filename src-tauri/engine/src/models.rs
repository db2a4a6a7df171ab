//! Model families: one file each, over shared layers. [`Model`] is all that the engine sees of them.

mod gemma3_text;
mod lfm2;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod smollm3;

use crate::error::Result;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{Family, ModelConfig};
use hearth_mlx::Tensor;

/// A decoder-only language model.
pub trait Model {
    /// Ids u32 `[tokens]` of all rows of the step, in its order → hidden states `[tokens, hidden]` after the final
    /// norm. Every row's caches grow by its tokens.
    ///
    /// # Errors
    /// MLX's.
    fn forward(&self, ids: &Tensor, step: &mut Step<'_>) -> Result<Tensor>;

    /// Hidden states `[n, hidden]` → logits `[n, vocab]`.
    ///
    /// # Errors
    /// MLX's.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor>;
}

/// Builds the model that the config describes.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Box<dyn Model>> {
    Ok(match config.family {
        Family::Llama => Box::new(llama::load(config, weights)?),
        Family::Mistral => Box::new(mistral::load(config, weights)?),
        Family::Qwen2 => Box::new(qwen2::load(config, weights)?),
        Family::Qwen3 => Box::new(qwen3::load(config, weights)?),
        Family::SmolLm3 => Box::new(smollm3::load(config, weights)?),
        Family::Gemma3 => Box::new(gemma3_text::load(config, weights)?),
        Family::Lfm2 => Box::new(lfm2::load(config, weights)?),
        Family::Qwen35 => Box::new(qwen3_5::load(config, weights)?),
    })
}
