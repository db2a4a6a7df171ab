//! Token embedding, and the LM head where it is the same matrix.

use crate::error::Result;
use crate::layers::linear::{Linear, Weight};
use hearth_mlx::{Dtype, QuantizedWeight, Tensor};

/// A lookup table `[vocab, width]`.
#[derive(Debug)]
pub enum Embedding {
    /// Rows as they are.
    Rows(Tensor),
    /// Quantized rows, unpacked as they are looked up, into this dtype.
    Quantized(QuantizedWeight, Dtype),
}

impl Embedding {
    /// Bytes of its values.
    pub fn bytes(&self) -> u64 {
        match self {
            Embedding::Rows(table) => table.nbytes() as u64,
            Embedding::Quantized(table, _) => table.nbytes() as u64,
        }
    }

    /// Ids `[tokens]` → `[tokens, width]`.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Embedding::Rows(table) => table.take(ids, 0)?,
            Embedding::Quantized(table, dtype) => table.take_rows(ids)?.dequantize(*dtype)?,
        })
    }

    /// The LM head that shares this table.
    ///
    /// # Errors
    /// MLX's.
    pub fn tied_head(&self) -> Result<Linear> {
        let weight = match self {
            Embedding::Rows(table) => Weight::Stored(table.swap_last()?),
            Embedding::Quantized(q, _) => Weight::Quantized {
                matrix: QuantizedWeight {
                    packed: q.packed.share(),
                    scales: q.scales.share(),
                    biases: q.biases.as_ref().map(Tensor::share),
                    ..*q
                },
                unpack_for_many: false,
            },
        };
        Ok(Linear::new(weight, None))
    }
}
