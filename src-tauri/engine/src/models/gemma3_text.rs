//! Gemma 3, text only: most layers see a window and turn by a base of their own; every norm's weight is stored
//! minus one; the outputs of attention and MLP are normalized too, before they are added. Reference: mlx-lm's
//! gemma3_text.

use crate::error::Result;
use crate::layers::attention::{self, Attention};
use crate::layers::decoder::{Block, Decoder, LLAMA};
use crate::layers::mlp::{self, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rotary::Rotary;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{LayerConfig, ModelConfig};
use hearth_mlx::{Dtype, Tensor};

/// The largest f16.
const F16_MAX: f32 = 65_504.0;

/// x + norm(attention(norm(x))), then x + norm(mlp(norm(x))).
#[derive(Debug)]
pub struct SandwichNorm {
    input_norm: RmsNorm,
    attention: Attention,
    attention_norm: RmsNorm,
    mlp_input_norm: RmsNorm,
    mlp: Mlp,
    mlp_norm: RmsNorm,
}

/// Reads the model; windows, rotations and scales come with the config.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<SandwichNorm>> {
    Decoder::load(weights, config, LLAMA, block)
}

fn block(weights: &mut Weights<'_>, path: &str, config: &ModelConfig, layer: &LayerConfig) -> Result<SandwichNorm> {
    let norm = |weights: &mut Weights<'_>, name: &str| {
        RmsNorm::load(weights, &format!("{path}.{name}"), config.hidden_size, config)
    };
    Ok(SandwichNorm {
        input_norm: norm(weights, "input_layernorm")?,
        attention: Attention::load(weights, &format!("{path}.self_attn"), attention::LLAMA, config, layer)?,
        attention_norm: norm(weights, "post_attention_layernorm")?,
        mlp_input_norm: norm(weights, "pre_feedforward_layernorm")?,
        mlp: Mlp::load(weights, &format!("{path}.mlp"), mlp::LLAMA, config)?,
        mlp_norm: norm(weights, "post_feedforward_layernorm")?,
    })
}

impl Block for SandwichNorm {
    fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let attended = self.attention.forward(&self.input_norm.forward(x)?, rotary, step, layer)?;
        let x = add(x, &self.attention_norm.forward(&attended)?)?;
        let widened = self.mlp.forward(&self.mlp_input_norm.forward(&x)?)?;
        add(&x, &self.mlp_norm.forward(&widened)?)
    }
}

/// A sum that stays finite in f16, which this family's residual stream outgrows.
fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    if x.dtype()? != Dtype::F16 {
        return Ok(x.add(y)?);
    }
    let sum = x.astype(Dtype::F32)?.add(&y.astype(Dtype::F32)?)?;
    let bounded = sum.minimum(&Tensor::scalar(F16_MAX))?.maximum(&Tensor::scalar(-F16_MAX))?;
    Ok(bounded.astype(Dtype::F16)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_in_f16_stop_at_its_largest_value() {
        let x = Tensor::from_f32(&[60_000.0, -60_000.0, 1.0], &[3]).unwrap();
        let half = x.astype(Dtype::F16).unwrap();
        assert_eq!(add(&half, &half).unwrap().to_vec_f32().unwrap(), [F16_MAX, -F16_MAX, 2.0]);
        assert_eq!(add(&x, &x).unwrap().to_vec_f32().unwrap(), [120_000.0, -120_000.0, 2.0]);
    }
}
