//! LFM2: blocks of a short gated convolution or attention, each with an MLP behind it. Reference: mlx-lm's lfm2.

use crate::error::Result;
use crate::layers::attention::{Attention, Names as AttentionNames};
use crate::layers::decoder::{Block, Decoder, LLAMA, Names};
use crate::layers::mlp::Mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rotary::Rotary;
use crate::layers::short_conv::ShortConv;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{LayerConfig, Mixer, ModelConfig};
use hearth_mlx::Tensor;

const ATTENTION: AttentionNames = AttentionNames { out: "out_proj", q_norm: "q_layernorm", k_norm: "k_layernorm" };

/// x + mixer(norm(x)), then x + mlp(norm(x)).
#[derive(Debug)]
pub struct Layer {
    mixer_norm: RmsNorm,
    mixer: Operator,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// What a layer looks at other tokens with.
#[derive(Debug)]
enum Operator {
    Attention(Attention),
    Convolution(ShortConv),
}

/// Reads the model. The LM head is always the embedding.
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<Layer>> {
    Decoder::load(weights, config, Names { norm: "embedding_norm", ..LLAMA }, block)
}

fn block(weights: &mut Weights<'_>, path: &str, config: &ModelConfig, layer: &LayerConfig) -> Result<Layer> {
    let hidden = config.hidden_size;
    let mixer = match layer.mixer {
        Mixer::ShortConv(conv) => {
            Operator::Convolution(ShortConv::load(weights, &format!("{path}.conv"), hidden, conv)?)
        }
        _ => Operator::Attention(Attention::load(weights, &format!("{path}.self_attn"), ATTENTION, config, layer)?),
    };
    Ok(Layer {
        mixer_norm: RmsNorm::load(weights, &format!("{path}.operator_norm"), hidden, config)?,
        mixer,
        mlp_norm: RmsNorm::load(weights, &format!("{path}.ffn_norm"), hidden, config)?,
        mlp: Mlp::load(weights, &format!("{path}.feed_forward"), ["w1", "w3", "w2"], config)?,
    })
}

impl Block for Layer {
    fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let normed = self.mixer_norm.forward(x)?;
        let mixed = match &self.mixer {
            Operator::Attention(attention) => attention.forward(&normed, rotary, step, layer)?,
            Operator::Convolution(conv) => conv.forward(&normed, step, layer)?,
        };
        let x = x.add(&mixed)?;
        Ok(x.add(&self.mlp.forward(&self.mlp_norm.forward(&x)?)?)?)
    }
}
