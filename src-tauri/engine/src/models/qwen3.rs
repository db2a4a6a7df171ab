//! Qwen3 (dense): Llama's layers with an RMS norm on each head's queries and keys before rotation.
//! Reference: mlx-lm's qwen3.

use crate::error::Result;
use crate::layers::decoder::{Decoder, LLAMA, PreNorm};
use crate::weights::Weights;
use hearth_core::config::ModelConfig;

/// Llama's blocks; `qk_norm` is always on.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<PreNorm>> {
    Decoder::load(weights, config, LLAMA, PreNorm::load)
}
