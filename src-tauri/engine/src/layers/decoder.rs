//! The pre-norm decoder that most families share: embedding, blocks of attention and MLP with residuals, final
//! norm, LM head. A family's file says how its blocks are made.

use crate::error::Result;
use crate::layers::attention::Attention;
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::mlp::Mlp;
use crate::layers::norm::RmsNorm;
use crate::layers::rotary::Rotary;
use crate::models::Model;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{LayerConfig, ModelConfig};
use hearth_mlx::Tensor;

/// One block: x + attention(norm(x)), then x + mlp(norm(x)).
#[derive(Debug)]
pub struct Block {
    /// Norm before attention.
    pub input_norm: RmsNorm,
    /// Attention.
    pub attention: Attention,
    /// Norm before the MLP.
    pub mlp_norm: RmsNorm,
    /// MLP.
    pub mlp: Mlp,
}

impl Block {
    /// Reads a block under the names that Llama gave them, below `path` (`model.layers.3`).
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, config: &ModelConfig, layer: &LayerConfig) -> Result<Self> {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        Ok(Block {
            input_norm: RmsNorm::load(weights, &format!("{path}.input_layernorm"), hidden, eps)?,
            attention: Attention::load(weights, &format!("{path}.self_attn"), config, layer)?,
            mlp_norm: RmsNorm::load(weights, &format!("{path}.post_attention_layernorm"), hidden, eps)?,
            mlp: Mlp::load(weights, &format!("{path}.mlp"), config)?,
        })
    }

    fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.input_norm.forward(x)?, rotary, step, layer)?)?;
        Ok(x.add(&self.mlp.forward(&self.mlp_norm.forward(&x)?)?)?)
    }
}

/// A whole model of such blocks.
#[derive(Debug)]
pub struct Decoder {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    rotary: Rotary,
}

impl Decoder {
    /// Reads embedding, final norm and head under Llama's names, and the blocks by `block`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(
        weights: &mut Weights<'_>,
        config: &ModelConfig,
        block: impl Fn(&mut Weights<'_>, &str, &ModelConfig, &LayerConfig) -> Result<Block>,
    ) -> Result<Self> {
        // A config that does not say is tied where the files hold no head.
        let tied = config.tie_word_embeddings.unwrap_or_else(|| !weights.has("lm_head.weight"));
        let embedding = weights.embedding("model.embed_tokens", config.vocab_size, config.hidden_size, tied)?;
        let mut blocks = Vec::with_capacity(config.layers.len());
        for (i, layer) in config.layers.iter().enumerate() {
            blocks.push(block(weights, &format!("model.layers.{i}"), config, layer)?);
        }
        let head = if tied {
            embedding.tied_head()?
        } else {
            weights.linear(&[("lm_head", config.vocab_size)], config.hidden_size, false)?
        };
        Ok(Decoder {
            embedding,
            blocks,
            norm: RmsNorm::load(weights, "model.norm", config.hidden_size, config.rms_norm_eps)?,
            head,
            rotary: Rotary::new(&config.rope, weights.device())?,
        })
    }
}

impl Model for Decoder {
    fn forward(&self, ids: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let mut x = self.embedding.forward(ids)?;
        for (i, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &self.rotary, step, i)?;
        }
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head.forward(hidden)
    }
}
