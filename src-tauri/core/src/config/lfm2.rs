//! LFM2: short gated convolutions, and attention in some layers.

use super::fields::Fields;
use super::{LayerConfig, Mixer, ModelConfig, ShortConv};
use crate::error::CoreError;
use serde_json::Value;

/// What LFM2 has beyond the common fields.
pub(super) fn refine(f: &Fields<'_>, config: &mut ModelConfig) -> Result<(), CoreError> {
    // Always the embedding, whatever the config says.
    config.tie_word_embeddings = Some(true);
    let width = f.count("block_dim", Some(config.hidden_size), 1 << 20)?;
    if width != config.hidden_size {
        let expected = format!("hidden_size ({})", config.hidden_size);
        return Err(f.invalid("block_dim", &expected, f.value("block_dim")));
    }
    Ok(())
}

/// The MLP's width: as written, or two thirds of it, scaled and rounded up to a multiple.
pub(super) fn intermediate_size(f: &Fields<'_>) -> Result<usize, CoreError> {
    let name = if f.value("block_ff_dim").is_null() { "intermediate_size" } else { "block_ff_dim" };
    let width = f.count(name, None, 1 << 20)?;
    if !f.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(width);
    }
    let factor = f.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    if !(1e-3..1e3).contains(&factor) {
        return Err(f.invalid("block_ffn_dim_multiplier", "a number from 1e-3 to 1e3", &factor.into()));
    }
    let multiple = f.count("block_multiple_of", Some(256), 1 << 20)?;
    Ok((((2 * width / 3) as f64 * factor) as usize).max(1).next_multiple_of(multiple))
}

/// By `full_attn_idxs`, or else by `layer_types`.
pub(super) fn layers(f: &Fields<'_>, count: usize) -> Result<Vec<LayerConfig>, CoreError> {
    let conv = ShortConv { taps: f.taps("conv_L_cache", 3)?, bias: f.flag("conv_bias")?.unwrap_or(false) };
    let mut attends = vec![false; count];
    match (f.value("full_attn_idxs"), f.per_layer("layer_types", count)?) {
        (Value::Null, Some(types)) => {
            for (layer, kind) in attends.iter_mut().zip(types) {
                *layer = match kind.as_str() {
                    Some("full_attention") => true,
                    Some("conv") => false,
                    _ => return Err(f.invalid("layer_types", "full_attention or conv", kind)),
                };
            }
        }
        (Value::Null, None) => {
            let expected = format!("a list of {count}, one for each layer");
            return Err(f.invalid("layer_types", &expected, &Value::Null));
        }
        (Value::Array(indices), _) => {
            for index in indices {
                let layer = index.as_u64().and_then(|i| attends.get_mut(i as usize));
                let expected = || format!("layers from 0 to {}", count - 1);
                *layer.ok_or_else(|| f.invalid("full_attn_idxs", &expected(), index))? = true;
            }
        }
        (other, _) => return Err(f.invalid("full_attn_idxs", "a list of layers", other)),
    }
    let layer = |attends: bool| {
        let mixer = if attends { Mixer::Attention } else { Mixer::ShortConv(conv) };
        LayerConfig { mixer, window: None, rope: true }
    };
    Ok(attends.into_iter().map(layer).collect())
}
