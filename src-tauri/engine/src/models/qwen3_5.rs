//! Qwen3.5 (dense, text): a gated delta net in most layers, attention with a gate on its outputs and a partial
//! rotation in every n-th. Reference: mlx-lm's qwen3_5.

use crate::error::Result;
use crate::layers::attention::{self, Attention};
use crate::layers::decoder::{Block, Decoder, Names};
use crate::layers::gated_delta::{GatedDelta, Rule};
use crate::layers::mlp::{self, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rotary::Rotary;
use crate::layers::short_conv::is_pytorchs;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{LayerConfig, Mixer, ModelConfig};
use hearth_mlx::Tensor;

/// Where the decoder is: as converted models have it, as the original files have it, and by itself.
const BODIES: [&str; 3] = ["language_model.model", "model.language_model", "model"];

/// x + mixer(norm(x)), then x + mlp(norm(x)).
#[derive(Debug)]
pub struct Layer {
    mixer_norm: RmsNorm,
    mixer: LayerMixer,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

/// What a layer looks at other tokens with.
#[derive(Debug)]
enum LayerMixer {
    Attention(Attention),
    Delta(GatedDelta),
}

/// Reads the text model, whatever else the files hold (a vision tower, a draft head).
///
/// # Errors
/// Missing weights, or weights of another shape.
pub fn load(config: &ModelConfig, weights: &mut Weights<'_>) -> Result<Decoder<Layer>> {
    let body = BODIES.into_iter().find(|body| weights.has(&format!("{body}.embed_tokens.weight"))).unwrap_or("model");
    let head = if weights.has("language_model.lm_head.weight") { "language_model.lm_head" } else { "lm_head" };
    // The original files hold the norms' weights minus one, converted ones do not; the convolution tells them apart.
    let original =
        (0..config.layers.len()).any(|i| is_pytorchs(weights, &format!("{body}.layers.{i}.linear_attn.conv1d.weight")));
    let config = ModelConfig { norm_offset: if original { 1.0 } else { 0.0 }, ..config.clone() };
    let key_dims = config.layers.iter().filter_map(|layer| match layer.mixer {
        Mixer::GatedDelta(delta) => Some(delta.key_dim),
        _ => None,
    });
    let rule = match key_dims.max() {
        Some(key_dim) => Rule::new(weights.device(), key_dim)?,
        None => Rule::default(),
    };
    let names = Names { body, norm: "norm", head };
    Decoder::load(weights, &config, names, |weights, path, config, layer| block(weights, path, config, layer, &rule))
}

fn block(
    weights: &mut Weights<'_>,
    path: &str,
    config: &ModelConfig,
    layer: &LayerConfig,
    rule: &Rule,
) -> Result<Layer> {
    let mixer = match layer.mixer {
        Mixer::GatedDelta(delta) => {
            LayerMixer::Delta(GatedDelta::load(weights, &format!("{path}.linear_attn"), config, delta, rule)?)
        }
        _ => {
            let path = format!("{path}.self_attn");
            LayerMixer::Attention(Attention::load(weights, &path, attention::LLAMA, config, layer)?)
        }
    };
    let hidden = config.hidden_size;
    Ok(Layer {
        mixer_norm: RmsNorm::load(weights, &format!("{path}.input_layernorm"), hidden, config)?,
        mixer,
        mlp_norm: RmsNorm::load(weights, &format!("{path}.post_attention_layernorm"), hidden, config)?,
        mlp: Mlp::load(weights, &format!("{path}.mlp"), mlp::LLAMA, config)?,
    })
}

impl Block for Layer {
    fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let normed = self.mixer_norm.forward(x)?;
        let mixed = match &self.mixer {
            LayerMixer::Attention(attention) => attention.forward(&normed, rotary, step, layer)?,
            LayerMixer::Delta(delta) => delta.forward(&normed, step, layer)?,
        };
        let x = x.add(&mixed)?;
        Ok(x.add(&self.mlp.forward(&self.mlp_norm.forward(&x)?)?)?)
    }
}
