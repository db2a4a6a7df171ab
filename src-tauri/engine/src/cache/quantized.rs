//! A KV cache in 4 or 8 bits: affine groups of 64 along the head dimension, as in mlx-lm's quantized cache.
//!
//! A row's first tokens are kept in full precision and converted together, like mlx-lm's `quantized_kv_start`; what
//! follows is converted as it comes. What was computed before the conversion saw other values than what is kept, so a
//! prefix shorter than that boundary cannot be reused.

use super::buffers::Buffers;
use super::{Lease, PlainCache, Reach, Seen};
use crate::error::{Error, Result};
use hearth_core::kv_policy::GROUP;
use hearth_mlx::{Dtype, QuantizedWeight, Tensor};

/// Keys and values of every token, quantized.
#[derive(Debug)]
pub struct QuantizedCache {
    /// Packed, scales and biases of the keys, then of the values.
    buffers: Buffers<6>,
    bits: i32,
    dtype: Dtype,
    offset: usize,
    converted_at: usize,
}

impl QuantizedCache {
    /// Converts what a float cache holds.
    ///
    /// # Errors
    /// MLX's, where the head dimension is no multiple of the group.
    pub fn convert(plain: &PlainCache, bits: u8) -> Result<Self> {
        let offset = plain.offset();
        let Some([keys, values]) = plain.held()? else {
            return Err(Error::WrongCache { layer: "quantized attention" });
        };
        let (dtype, bits) = (keys.dtype()?, i32::from(bits));
        let parts = parts(&keys, &values, bits)?;
        Ok(QuantizedCache { buffers: Buffers::of(parts), bits, dtype, offset, converted_at: offset })
    }

    /// A cache of these six arrays, of which the first `offset` tokens count.
    pub fn of(arrays: [Tensor; 6], bits: u8, dtype: Dtype, offset: usize, converted_at: usize) -> Self {
        QuantizedCache { buffers: Buffers::of(arrays), bits: i32::from(bits), dtype, offset, converted_at }
    }

    /// Tokens held.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The shortest prefix that can be reused.
    pub fn converted_at(&self) -> usize {
        self.converted_at
    }

    /// The six arrays with their spare room.
    pub fn arrays(&self) -> impl Iterator<Item = &Tensor> {
        self.buffers.arrays()
    }

    /// Whether the arrays are somebody else's until the first write.
    pub fn is_lent(&self) -> bool {
        self.buffers.is_lent()
    }

    /// A view of the first `tokens` tokens.
    pub fn lend(&self, tokens: usize, lease: &Lease) -> Self {
        QuantizedCache { buffers: self.buffers.lend(lease), offset: tokens.min(self.offset), ..*self }
    }

    /// A copy of its own.
    ///
    /// # Errors
    /// MLX's.
    pub fn copied(&self) -> Result<Self> {
        Ok(QuantizedCache { buffers: self.buffers.copied(self.offset)?, ..*self })
    }

    /// See [`super::LayerCache::expect`].
    pub fn expect(&mut self, tokens: usize) {
        self.buffers.expect(tokens);
    }

    /// Forgets what follows the first `tokens` tokens.
    pub fn trim(&mut self, tokens: usize) {
        self.offset = tokens.min(self.offset);
    }

    /// See [`super::LayerCache::update`].
    ///
    /// # Errors
    /// MLX's.
    pub fn update(&mut self, keys: &Tensor, values: &Tensor) -> Result<Seen> {
        let (n, at) = (keys.dim(2), self.offset as i32);
        let new = parts(keys, values, self.bits)?;
        self.buffers.write(&new, at, at, i32::MAX)?;
        self.offset += n as usize;
        let [kp, ks, kb, vp, vs, vb] = self.buffers.front(self.offset as i32)?.unwrap_or(new);
        let (keys, values) = (self.matrix(kp, ks, kb), self.matrix(vp, vs, vb));
        // Lazy: whoever attends over the packed form never pays for these.
        let floats = (keys.dequantize(self.dtype)?, values.dequantize(self.dtype)?);
        Ok(Seen { keys: floats.0, values: floats.1, packed: Some((keys, values)), reach: Reach::All })
    }

    fn matrix(&self, packed: Tensor, scales: Tensor, biases: Tensor) -> QuantizedWeight {
        let (group_size, bits) = (GROUP as i32, self.bits);
        QuantizedWeight { packed, scales, biases: Some(biases), group_size, bits, mode: c"affine" }
    }
}

fn parts(keys: &Tensor, values: &Tensor, bits: i32) -> Result<[Tensor; 6]> {
    let of = |t: &Tensor| -> Result<[Tensor; 3]> {
        let q = t.contiguous()?.quantize(GROUP as i32, bits)?;
        let biases = q.biases.ok_or(Error::WrongCache { layer: "quantized attention" })?;
        Ok([q.packed, q.scales, biases])
    };
    let ([kp, ks, kb], [vp, vs, vb]) = (of(keys)?, of(values)?);
    Ok([kp, ks, kb, vp, vs, vb])
}
