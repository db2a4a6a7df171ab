//! Caches as bytes and back: what the disk keeps of each kind. State with a token axis goes in strips, from any token
//! to any other; the rest goes whole.

use super::{LayerCache, PlainCache, QuantizedCache, RecurrentCache, RotatingCache};
use crate::disk::{Strip, Whole};
use crate::error::{Error, Result};
use hearth_core::layout::LayerLayout;
use hearth_mlx::{Dtype, Tensor};
use std::ops::Range;

/// What the stored bytes of a layer are.
#[derive(Debug, Clone, Copy)]
pub struct Kind<'a> {
    /// What the layer keeps.
    pub layout: &'a LayerLayout,
    /// Bits of its keys and values, where they are quantized.
    pub bits: Option<u8>,
    /// Tokens after which keys and values were converted, at most.
    pub converted_at: usize,
}

impl LayerCache {
    /// Whether all arrays are computed, so that reading their bytes waits for nothing.
    ///
    /// # Errors
    /// MLX's.
    pub fn is_ready(&self) -> Result<bool> {
        for tensor in self.tensors() {
            if !tensor.is_available()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The part of the state that belongs to these tokens; nothing where there is no token axis.
    ///
    /// # Errors
    /// If the arrays are not computed.
    pub fn strips(&self, tokens: Range<usize>) -> Result<Vec<Strip>> {
        match self {
            LayerCache::Plain(c) => c.arrays().map(|t| strip(t, &tokens)).collect(),
            LayerCache::Quantized(c) => c.arrays().map(|t| strip(t, &tokens)).collect(),
            LayerCache::Rotating(_) | LayerCache::Recurrent(_) => Ok(Vec::new()),
        }
    }

    /// State without a token axis, whole.
    ///
    /// # Errors
    /// If the arrays are not computed.
    pub fn wholes(&self) -> Result<Vec<Whole>> {
        match self {
            LayerCache::Plain(_) | LayerCache::Quantized(_) => Ok(Vec::new()),
            LayerCache::Rotating(c) => c
                .arrays()
                .map(|t| {
                    let held = c.held();
                    let shape = vec![1, t.dim(1) as u32, held as u32, t.dim(3) as u32];
                    Ok(Whole { shape, dtype: code(t.dtype()?), bytes: t.token_bytes(0, held)? })
                })
                .collect(),
            // Where a state is missing, an empty array stands in its place.
            LayerCache::Recurrent(c) => [c.conv(), c.state()]
                .into_iter()
                .map(|t| match t {
                    None => Ok(Whole { shape: vec![0], dtype: code(Dtype::F32), bytes: Vec::new() }),
                    Some(t) => Ok(Whole {
                        shape: t.shape().iter().map(|&d| d as u32).collect(),
                        dtype: code(t.dtype()?),
                        bytes: t.to_bytes()?,
                    }),
                })
                .collect(),
        }
    }

    /// The cache of `tokens` tokens that these bytes describe.
    ///
    /// # Errors
    /// [`Error::Stored`] if they are not those of a layer of this kind.
    pub fn restored(kind: Kind<'_>, strips: Vec<Strip>, wholes: Vec<Whole>, tokens: usize) -> Result<LayerCache> {
        let wrong =
            || Error::Stored { found: format!("{} strips, {} wholes for {kind:?}", strips.len(), wholes.len()) };
        match (*kind.layout, kind.bits, strips.len(), wholes.len()) {
            (LayerLayout::Full { .. }, None, 2, 0) => {
                let [keys, values] = buffers(strips, tokens)?;
                Ok(LayerCache::Plain(PlainCache::of(keys, values, tokens)))
            }
            (LayerLayout::Full { .. }, Some(bits), 6, 0) => {
                let arrays: [Tensor; 6] = buffers(strips, tokens)?;
                let dtype = arrays[1].dtype()?;
                let converted_at = kind.converted_at.min(tokens);
                Ok(LayerCache::Quantized(QuantizedCache::of(arrays, bits, dtype, tokens, converted_at)))
            }
            (LayerLayout::Sliding { window, .. }, _, 0, 2) => {
                let [keys, values] = two(wholes)?;
                let (Some(keys), Some(values)) = (keys, values) else {
                    return Err(Error::Stored { found: "an empty window".into() });
                };
                Ok(LayerCache::Rotating(RotatingCache::of(keys, values, window, tokens)))
            }
            (LayerLayout::Recurrent { .. }, _, 0, 2) => {
                let [conv, state] = two(wholes)?;
                Ok(LayerCache::Recurrent(RecurrentCache::of(conv, state, tokens)))
            }
            _ => Err(wrong()),
        }
    }
}

fn strip(t: &Tensor, tokens: &Range<usize>) -> Result<Strip> {
    let dtype = t.dtype()?;
    let bytes = t.token_bytes(tokens.start, tokens.end)?;
    Ok(Strip { heads: t.dim(1) as u32, width: t.dim(3) as u32 * dtype.size() as u32, dtype: code(dtype), bytes })
}

fn buffers<const N: usize>(strips: Vec<Strip>, tokens: usize) -> Result<[Tensor; N]> {
    let buffer = |strip: Strip| {
        let dtype = dtype_of(strip.dtype)?;
        let (heads, width) = (strip.heads as usize, strip.width as usize);
        let room = strip.bytes.len() / (heads * width).max(1);
        if room < tokens || width % dtype.size() != 0 {
            return Err(Error::Stored { found: format!("room for {room} of {tokens} tokens") });
        }
        let shape = [1, heads as i32, room as i32, (width / dtype.size()) as i32];
        Ok(Tensor::from_vec_bytes(strip.bytes, &shape, dtype)?)
    };
    let all: Vec<Tensor> = strips.into_iter().map(buffer).collect::<Result<_>>()?;
    all.try_into().map_err(|all: Vec<Tensor>| Error::Stored { found: format!("{} arrays", all.len()) })
}

fn two(wholes: Vec<Whole>) -> Result<[Option<Tensor>; 2]> {
    let array = |whole: Whole| -> Result<Option<Tensor>> {
        if whole.bytes.is_empty() {
            return Ok(None);
        }
        let shape: Vec<i32> = whole.shape.iter().map(|&d| d as i32).collect();
        Ok(Some(Tensor::from_vec_bytes(whole.bytes, &shape, dtype_of(whole.dtype)?)?))
    };
    let all: Vec<Option<Tensor>> = wholes.into_iter().map(array).collect::<Result<_>>()?;
    all.try_into().map_err(|all: Vec<Option<Tensor>>| Error::Stored { found: format!("{} arrays", all.len()) })
}

/// The types that caches are made of, by their number in files.
const DTYPES: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::U32];

fn code(dtype: Dtype) -> u8 {
    DTYPES.iter().position(|&d| d == dtype).map_or(u8::MAX, |n| n as u8)
}

fn dtype_of(code: u8) -> Result<Dtype> {
    let found = || Error::Stored { found: format!("type number {code}") };
    DTYPES.get(usize::from(code)).copied().ok_or_else(found)
}
