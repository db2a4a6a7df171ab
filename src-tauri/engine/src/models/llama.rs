//! Llama and everything shaped like it: grouped-query attention with rotary embedding (plain, linear, llama3, yarn),
//! optional biases, optional sliding-window layers, SwiGLU MLP. Reference: mlx-lm's llama.

use crate::error::Result;
use crate::layers::decoder::{Decoder, LLAMA, PreNorm};
use crate::weights::Weights;
use hearth_core::config::ModelConfig;

/// Pre-norm blocks under Llama's own names; what the config switches on (biases, windows) the layers read from it.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<PreNorm>> {
    Decoder::load(weights, config, LLAMA, PreNorm::load)
}
