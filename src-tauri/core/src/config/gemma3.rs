//! Gemma 3 (text): most layers see a window and turn by a base of their own, every n-th sees everything.

use super::fields::Fields;
use super::{LayerConfig, Mixer, ModelConfig};
use crate::error::CoreError;
use crate::rope::Rope;

/// What Gemma 3 has beyond the common fields.
pub(super) fn refine(f: &Fields<'_>, config: &mut ModelConfig) -> Result<(), CoreError> {
    // The embedding models of this family attend in both directions.
    if f.flag("use_bidirectional_attention")? == Some(true) {
        return Err(f.unsupported("use_bidirectional_attention", &true.into(), "false"));
    }
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if !f.value(name).is_null() {
            return Err(f.unsupported(name, f.value(name), "null"));
        }
    }
    let scalar = f.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    if !(1e-6..1e9).contains(&scalar) {
        return Err(f.invalid("query_pre_attn_scalar", "a number from 1e-6 to 1e9", &scalar.into()));
    }
    config.attention_scale = scalar.powf(-0.5) as f32;
    // The reference holds this factor in bf16, whatever the model computes in.
    config.embedding_scale = Some(bf16((config.hidden_size as f64).sqrt() as f32));
    // The head is the embedding wherever the files hold none, whatever the config says.
    config.tie_word_embeddings = None;
    let own = &f.value("rope_parameters")["sliding_attention"];
    let base = f.rope_base("rope_local_base_freq", own, false, 10_000.0)?;
    let plain = Rope { scale: 1.0, base: base as f32, periods: None, magnitude: 1.0, ..config.rope };
    config.local_rope = Some(plain);
    Ok(())
}

/// By `layer_types` where it is there, else every `sliding_window_pattern`-th layer sees everything.
pub(super) fn layers(f: &Fields<'_>, count: usize) -> Result<Vec<LayerConfig>, CoreError> {
    let window = f.count("sliding_window", Some(512), 1 << 30)?;
    let name = ["sliding_window_pattern", "_sliding_window_pattern"].into_iter().find(|n| !f.value(n).is_null());
    let pattern = f.count(name.unwrap_or("sliding_window_pattern"), Some(6), 1 << 10)?;
    let listed = f.per_layer("layer_types", count)?;
    let layer = |i: usize| {
        let sliding = match listed.map(|all| &all[i]) {
            None => !(i + 1).is_multiple_of(pattern),
            Some(kind) => match kind.as_str() {
                Some("full_attention") => false,
                Some("sliding_attention") => true,
                _ => return Err(f.invalid("layer_types", "full_attention or sliding_attention", kind)),
            },
        };
        Ok(LayerConfig { mixer: Mixer::Attention, window: sliding.then_some(window), rope: true })
    };
    (0..count).map(layer).collect()
}

/// Rounded to the nearest bf16, ties to even; for finite values.
fn bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bf16_rounds_to_the_nearest_even() {
        assert_eq!(super::bf16(8.0), 8.0);
        assert_eq!(super::bf16(33.941_124), 34.0, "the square root of 1152");
        assert_eq!(super::bf16(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(super::bf16(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
    }
}
