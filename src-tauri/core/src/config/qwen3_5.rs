//! Qwen3.5 (dense, text): a gated delta net in most layers, gated attention in every n-th.

use super::fields::Fields;
use super::{GatedDelta, LayerConfig, Mixer, ModelConfig};
use crate::error::CoreError;
use serde_json::Value;

/// Bound of each factor in the size of the linear attention.
const MOST: usize = 1 << 12;

/// What Qwen3.5 has beyond the common fields.
pub(super) fn refine(f: &Fields<'_>, config: &mut ModelConfig) -> Result<(), CoreError> {
    match f.value("num_experts") {
        Value::Null => {}
        v if v.as_u64() == Some(0) => {}
        v => return Err(f.unsupported("num_experts", v, "0 (dense models)")),
    }
    if f.flag("attn_output_gate")? == Some(false) {
        return Err(f.unsupported("attn_output_gate", &false.into(), "true"));
    }
    config.attention_gate = true;
    Ok(())
}

/// How many dimensions of each head turn.
pub(super) fn rotated(f: &Fields<'_>, rope_block: &Value, head_dim: usize) -> Result<usize, CoreError> {
    let name = "partial_rotary_factor";
    let value = [&rope_block[name], f.value(name)].into_iter().find(|v| !v.is_null());
    let factor = match value {
        None => 0.25,
        Some(v) => v
            .as_f64()
            .filter(|&x| x > 0.0 && x <= 1.0)
            .ok_or_else(|| f.invalid(name, "a number above 0 and at most 1", v))?,
    };
    let dims = (head_dim as f64 * factor) as usize;
    if dims == 0 || !dims.is_multiple_of(2) {
        let expected = format!("a share of head_dim ({head_dim}) that is an even number of dimensions");
        return Err(f.invalid(name, &expected, &factor.into()));
    }
    Ok(dims)
}

/// By `layer_types` where it is there, else every `full_attention_interval`-th layer attends.
pub(super) fn layers(f: &Fields<'_>, count: usize) -> Result<Vec<LayerConfig>, CoreError> {
    let delta = GatedDelta {
        key_heads: f.count("linear_num_key_heads", None, MOST)?,
        value_heads: f.count("linear_num_value_heads", None, MOST)?,
        key_dim: f.count("linear_key_head_dim", None, MOST)?,
        value_dim: f.count("linear_value_head_dim", None, MOST)?,
        taps: f.taps("linear_conv_kernel_dim", 4)?,
    };
    if !delta.value_heads.is_multiple_of(delta.key_heads) {
        let expected = format!("a multiple of linear_num_key_heads ({})", delta.key_heads);
        return Err(f.invalid("linear_num_value_heads", &expected, &delta.value_heads.into()));
    }
    let interval = f.count("full_attention_interval", Some(4), 1 << 10)?;
    let listed = f.per_layer("layer_types", count)?;
    let layer = |i: usize| {
        let attends = match listed.map(|all| &all[i]) {
            None => (i + 1).is_multiple_of(interval),
            Some(kind) => match kind.as_str() {
                Some("full_attention") => true,
                Some("linear_attention") => false,
                _ => return Err(f.invalid("layer_types", "full_attention or linear_attention", kind)),
            },
        };
        let mixer = if attends { Mixer::Attention } else { Mixer::GatedDelta(delta) };
        Ok(LayerConfig { mixer, window: None, rope: true })
    };
    (0..count).map(layer).collect()
}
