//! KV caches as values: one per row and layer, with the questions that the engine asks of every kind.

mod kv;
mod recurrent;

pub use kv::{PlainCache, RotatingCache};
pub use recurrent::RecurrentCache;

use crate::error::{Error, Result};
use hearth_core::layout::{CacheLayout, LayerLayout};
use hearth_mlx::Tensor;

/// What the new tokens of one row may look at, in one layer.
#[derive(Debug)]
pub struct Seen {
    /// `[1, kv_heads, keys, head_dim]`, the new ones last.
    pub keys: Tensor,
    /// Shaped like the keys.
    pub values: Tensor,
    /// Which of them each new token may see.
    pub reach: Reach,
}

/// How far attention reaches back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Every key up to the token itself.
    All,
    /// The token itself and the `window − 1` before it.
    Window(usize),
}

/// One layer's cache of one row.
#[derive(Debug)]
pub enum LayerCache {
    /// Keys and values of every token.
    Plain(PlainCache),
    /// Keys and values of the last `window` tokens.
    Rotating(RotatingCache),
    /// A state of constant size.
    Recurrent(RecurrentCache),
}

impl LayerCache {
    /// Empty caches for a model of this layout, one per layer.
    pub fn for_layout(layout: &CacheLayout) -> Vec<LayerCache> {
        let make = |layer: &LayerLayout| match *layer {
            LayerLayout::Full { .. } => LayerCache::Plain(PlainCache::default()),
            LayerLayout::Sliding { window, .. } => LayerCache::Rotating(RotatingCache::new(window)),
            LayerLayout::Recurrent { .. } => LayerCache::Recurrent(RecurrentCache::default()),
        };
        layout.layers.iter().map(make).collect()
    }

    /// Tokens that went in.
    pub fn offset(&self) -> usize {
        match self {
            LayerCache::Plain(c) => c.offset(),
            LayerCache::Rotating(c) => c.offset(),
            LayerCache::Recurrent(c) => c.offset(),
        }
    }

    /// Bytes held, spare room included.
    pub fn bytes(&self) -> usize {
        self.tensors().map(Tensor::nbytes).sum()
    }

    /// Adds keys and values `[1, kv_heads, n, head_dim]` of `n` new tokens and returns what those may look at.
    ///
    /// # Errors
    /// [`Error::WrongCache`] for a recurrent layer's; MLX's.
    pub fn update(&mut self, keys: Tensor, values: Tensor) -> Result<Seen> {
        match self {
            LayerCache::Plain(c) => c.update(keys, values),
            LayerCache::Rotating(c) => c.update(keys, values),
            LayerCache::Recurrent(_) => Err(Error::WrongCache { layer: "attention" }),
        }
    }

    /// The state of a recurrent layer.
    ///
    /// # Errors
    /// [`Error::WrongCache`] for an attention layer's.
    pub fn recurrent(&mut self) -> Result<&mut RecurrentCache> {
        match self {
            LayerCache::Recurrent(c) => Ok(c),
            _ => Err(Error::WrongCache { layer: "recurrent" }),
        }
    }

    /// The arrays behind the cache, to be evaluated after a prefill chunk.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let (pair, states) = match self {
            LayerCache::Plain(c) => (c.buffers(), None),
            LayerCache::Rotating(c) => (c.buffers(), None),
            LayerCache::Recurrent(c) => (None, Some(c.tensors())),
        };
        pair.into_iter().flat_map(|(k, v)| [k, v]).chain(states.into_iter().flatten())
    }
}
