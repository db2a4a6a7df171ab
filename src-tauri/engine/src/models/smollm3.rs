//! SmolLM3: Llama's layers, every n-th of them without rotary embedding (NoPE). Reference: mlx-lm's smollm3.

use crate::error::Result;
use crate::layers::decoder::{Decoder, LLAMA, PreNorm};
use crate::weights::Weights;
use hearth_core::config::ModelConfig;

/// Llama's blocks; each layer's `rope` says whether it rotates.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<PreNorm>> {
    Decoder::load(weights, config, LLAMA, PreNorm::load)
}
