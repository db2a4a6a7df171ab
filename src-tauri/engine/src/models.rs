//! Model families: one file each, over shared layers. [`Model`] is all that the engine sees of them.

mod llama;
mod mistral;
mod qwen2;
mod qwen3;
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
    Ok(Box::new(match config.family {
        Family::Llama => llama::load(config, weights)?,
        Family::Mistral => mistral::load(config, weights)?,
        Family::Qwen2 => qwen2::load(config, weights)?,
        Family::Qwen3 => qwen3::load(config, weights)?,
        Family::SmolLm3 => smollm3::load(config, weights)?,
    }))
}
