//! Caches as values: one per row and layer, with the questions that the engine asks of every kind. Every question is
//! a `match` over all kinds, so that a new one that forgets an answer does not compile.

mod buffers;
mod kv;
mod quantized;
mod recurrent;
mod stored;

pub use kv::{PlainCache, RotatingCache};
pub use quantized::QuantizedCache;
pub use recurrent::RecurrentCache;
pub use stored::Kind;

use crate::error::{Error, Result};
use hearth_core::layout::{CacheLayout, LayerLayout};
use hearth_mlx::{QuantizedWeight, Tensor, eval};
use std::rc::Rc;

/// Counts the views that were lent of somebody's arrays: each holds a copy until its first write.
#[derive(Debug, Clone, Default)]
pub struct Lease(Rc<()>);

impl Lease {
    /// Views that still read the lender's arrays.
    pub fn lent(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }
}

/// What the new tokens of one row may look at, in one layer.
#[derive(Debug)]
pub struct Seen {
    /// `[1, kv_heads, keys, head_dim]`, the new ones last.
    pub keys: Tensor,
    /// Shaped like the keys.
    pub values: Tensor,
    /// The same keys and values quantized, where the cache keeps them so; `keys` and `values` are then lazy.
    pub packed: Option<(QuantizedWeight, QuantizedWeight)>,
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
    /// Keys and values of every token, in 4 or 8 bits.
    Quantized(QuantizedCache),
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
            LayerCache::Quantized(c) => c.offset(),
            LayerCache::Recurrent(c) => c.offset(),
        }
    }

    /// Bytes held, spare room included; what is lent counts where it was lent.
    pub fn bytes(&self) -> usize {
        if self.is_lent() { 0 } else { self.tensors().map(Tensor::nbytes).sum() }
    }

    /// Whether the arrays are another's until the first write.
    pub fn is_lent(&self) -> bool {
        match self {
            LayerCache::Plain(c) => c.is_lent(),
            LayerCache::Rotating(c) => c.is_lent(),
            LayerCache::Quantized(c) => c.is_lent(),
            LayerCache::Recurrent(c) => c.is_lent(),
        }
    }

    /// Whether every earlier state can be had from this one, but for [`LayerCache::min_reusable`].
    pub fn can_trim(&self) -> bool {
        match self {
            LayerCache::Plain(_) | LayerCache::Quantized(_) => true,
            LayerCache::Rotating(c) => c.can_trim(),
            LayerCache::Recurrent(_) => false,
        }
    }

    /// The shortest prefix that is what a fresh prefill would have made, in tokens.
    pub fn min_reusable(&self) -> usize {
        match self {
            LayerCache::Plain(_) | LayerCache::Rotating(_) | LayerCache::Recurrent(_) => 0,
            LayerCache::Quantized(c) => c.converted_at(),
        }
    }

    /// A view of the state after `tokens` tokens: all of them where [`LayerCache::can_trim`] says no. Its first write
    /// copies what it needs, once.
    pub fn lend(&self, tokens: usize, lease: &Lease) -> LayerCache {
        match self {
            LayerCache::Plain(c) => LayerCache::Plain(c.lend(tokens, lease)),
            LayerCache::Rotating(c) => LayerCache::Rotating(c.lend(tokens, lease)),
            LayerCache::Quantized(c) => LayerCache::Quantized(c.lend(tokens, lease)),
            LayerCache::Recurrent(c) => LayerCache::Recurrent(c.lend(lease)),
        }
    }

    /// The same state for somebody else to keep: where a token axis is written in place, a copy of what is held; of what is
    /// replaced with every chunk, another handle.
    ///
    /// # Errors
    /// MLX's.
    pub fn copied(&self) -> Result<LayerCache> {
        Ok(match self {
            LayerCache::Plain(c) => LayerCache::Plain(c.copied()?),
            LayerCache::Rotating(c) => LayerCache::Rotating(c.shared()),
            LayerCache::Quantized(c) => LayerCache::Quantized(c.copied()?),
            LayerCache::Recurrent(c) => LayerCache::Recurrent(c.shared()),
        })
    }

    /// So many tokens will go in: buffers with a token axis of that length make room for all of them at once.
    pub fn expect(&mut self, tokens: usize) {
        match self {
            LayerCache::Plain(c) => c.expect(tokens),
            LayerCache::Quantized(c) => c.expect(tokens),
            LayerCache::Rotating(_) | LayerCache::Recurrent(_) => {}
        }
    }

    /// Forgets what follows the first `tokens` tokens; nothing where [`LayerCache::can_trim`] says no.
    pub fn trim(&mut self, tokens: usize) {
        match self {
            LayerCache::Plain(c) => c.trim(tokens),
            LayerCache::Rotating(c) if c.can_trim() => c.trim(tokens),
            LayerCache::Quantized(c) => c.trim(tokens),
            LayerCache::Rotating(_) | LayerCache::Recurrent(_) => {}
        }
    }

    /// Adds keys and values `[1, kv_heads, n, head_dim]` of `n` new tokens and returns what those may look at.
    ///
    /// # Errors
    /// [`Error::WrongCache`] for a recurrent layer's; MLX's.
    pub fn update(&mut self, keys: Tensor, values: Tensor) -> Result<Seen> {
        match self {
            LayerCache::Plain(c) => c.update(keys, values),
            LayerCache::Rotating(c) => c.update(keys, values),
            LayerCache::Quantized(c) => c.update(&keys, &values),
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

    /// Keeps keys and values in this many bits from here on, where that is possible and not so already. Computed at
    /// once, so that a whole model is never held twice.
    ///
    /// # Errors
    /// MLX's.
    pub fn quantize(&mut self, bits: u8) -> Result<()> {
        if let LayerCache::Plain(plain) = self
            && plain.offset() > 0
        {
            let quantized = LayerCache::Quantized(QuantizedCache::convert(plain, bits)?);
            eval(quantized.tensors())?;
            *self = quantized;
        }
        Ok(())
    }

    /// The arrays behind the cache, to be evaluated after a prefill chunk.
    pub fn tensors(&self) -> Box<dyn Iterator<Item = &Tensor> + '_> {
        match self {
            LayerCache::Plain(c) => Box::new(c.arrays()),
            LayerCache::Rotating(c) => Box::new(c.arrays()),
            LayerCache::Quantized(c) => Box::new(c.arrays()),
            LayerCache::Recurrent(c) => Box::new(c.arrays()),
        }
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
