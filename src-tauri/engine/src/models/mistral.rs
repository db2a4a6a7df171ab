//! Mistral: Llama's layers under its own name. As in the reference (mlx-lm's llama), a window applies only where
//! `layer_types` says so.

use crate::error::Result;
use crate::layers::decoder::{Decoder, LLAMA, PreNorm};
use crate::weights::Weights;
use hearth_core::config::ModelConfig;

/// Exactly Llama's blocks.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<PreNorm>> {
    Decoder::load(weights, config, LLAMA, PreNorm::load)
}
