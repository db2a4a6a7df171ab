//! Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v and none on o. Reference: mlx-lm's qwen2.

use crate::error::Result;
use crate::layers::decoder::{Decoder, LLAMA, PreNorm};
use crate::weights::Weights;
use hearth_core::config::ModelConfig;

/// Llama's blocks; `qkv_bias` is always on.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<PreNorm>> {
    Decoder::load(weights, config, LLAMA, PreNorm::load)
}
