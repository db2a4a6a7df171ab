//! The decoder that families share: embedding, blocks with residuals, final norm, LM head; and the pre-norm block
//! of attention and MLP that most of them are made of. A family's file says what its blocks are.

use crate::error::Result;
use crate::layers::attention::{self, Attention};
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::mlp::{self, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rotary::Rotary;
use crate::models::Model;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{LayerConfig, ModelConfig};
use hearth_mlx::Tensor;

/// One layer of a decoder, residuals included.
pub trait Block {
    /// `[tokens, hidden]` → the same; `rotary` is this layer's rotation, `layer` says which cache of each row is its.
    ///
    /// # Errors
    /// MLX's.
    fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor>;
}

/// x + attention(norm(x)), then x + mlp(norm(x)).
#[derive(Debug)]
pub struct PreNorm {
    input_norm: RmsNorm,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl PreNorm {
    /// Reads a block under the names that Llama gave them, below `path` (`model.layers.3`).
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, config: &ModelConfig, layer: &LayerConfig) -> Result<Self> {
        let hidden = config.hidden_size;
        Ok(PreNorm {
            input_norm: RmsNorm::load(weights, &format!("{path}.input_layernorm"), hidden, config)?,
            attention: Attention::load(weights, &format!("{path}.self_attn"), attention::LLAMA, config, layer)?,
            mlp_norm: RmsNorm::load(weights, &format!("{path}.post_attention_layernorm"), hidden, config)?,
            mlp: Mlp::load(weights, &format!("{path}.mlp"), mlp::LLAMA, config)?,
        })
    }
}

impl Block for PreNorm {
    fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.input_norm.forward(x)?, rotary, step, layer)?)?;
        Ok(x.add(&self.mlp.forward(&self.mlp_norm.forward(&x)?)?)?)
    }
}

/// Where a decoder's weights are.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// Above the embedding, the layers and the final norm.
    pub body: &'a str,
    /// The final norm, below the body.
    pub norm: &'a str,
    /// The LM head.
    pub head: &'a str,
}

/// Llama's names, which most families took over.
pub const LLAMA: Names<'static> = Names { body: "model", norm: "norm", head: "lm_head" };

/// A whole model of blocks of one kind.
#[derive(Debug)]
pub struct Decoder<B> {
    embedding: Embedding,
    embedding_scale: Option<f32>,
    /// The layers, each with the index of its rotation.
    blocks: Vec<(B, usize)>,
    rotaries: Vec<Rotary>,
    norm: RmsNorm,
    head: Linear,
}

impl<B: Block> Decoder<B> {
    /// Reads embedding, final norm and head under these names, and the blocks by `block`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(
        weights: &mut Weights<'_>,
        config: &ModelConfig,
        names: Names<'_>,
        block: impl Fn(&mut Weights<'_>, &str, &ModelConfig, &LayerConfig) -> Result<B>,
    ) -> Result<Self> {
        let Names { body, norm, head } = names;
        // A config that does not say is tied where the files hold no head.
        let tied = config.tie_word_embeddings.unwrap_or_else(|| !weights.has(&format!("{head}.weight")));
        let embedding =
            weights.embedding(&format!("{body}.embed_tokens"), config.vocab_size, config.hidden_size, tied)?;
        let mut rotaries = vec![Rotary::new(&config.rope, weights.device())?];
        if let Some(local) = &config.local_rope {
            rotaries.push(Rotary::new(local, weights.device())?);
        }
        let mut blocks = Vec::with_capacity(config.layers.len());
        for (i, layer) in config.layers.iter().enumerate() {
            let rotary = if layer.window.is_some() { rotaries.len() - 1 } else { 0 };
            blocks.push((block(weights, &format!("{body}.layers.{i}"), config, layer)?, rotary));
        }
        let head = if tied {
            embedding.tied_head()?
        } else {
            weights.linear(&[(head, config.vocab_size)], config.hidden_size, false)?
        };
        Ok(Decoder {
            embedding,
            embedding_scale: config.embedding_scale,
            blocks,
            rotaries,
            norm: RmsNorm::load(weights, &format!("{body}.{norm}"), config.hidden_size, config)?,
            head,
        })
    }
}

impl<B: Block> Model for Decoder<B> {
    fn forward(&self, ids: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let mut x = self.embedding.forward(ids)?;
        if let Some(scale) = self.embedding_scale {
            x = x.multiply(&Tensor::scalar(scale).astype(x.dtype()?)?)?;
        }
        for (i, (block, rotary)) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &self.rotaries[*rotary], step, i)?;
        }
        self.norm.forward(&x)
    }

    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head.forward(hidden)
    }
}
