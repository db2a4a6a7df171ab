//! Linear layers in the layout that the device computes fastest.
//!
//! On a GPU: as the files have them, quantized or not. On a CPU: dense f32, because MLX's quantized CPU kernels are an
//! order of magnitude slower than f32 products, in the files' order, which the products of a few rows read once from
//! end to end.

use crate::error::Result;
use hearth_mlx::{Dtype, QuantizedWeight, Tensor};

/// Rows from which unpacking a quantized matrix and multiplying by BLAS beats MLX's quantized CPU kernel.
const UNPACK_FROM_ROWS: i32 = 8;

/// `y = x · Wᵀ + b`, possibly several layers fused along their outputs.
#[derive(Debug)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

/// A weight matrix in one of its layouts.
#[derive(Debug)]
pub enum Weight {
    /// `[in, out]`, a view of the rows as stored.
    Stored(Tensor),
    /// Packed rows, as MLX's quantized kernels take them.
    Quantized {
        /// The matrix.
        matrix: QuantizedWeight,
        /// Whether many rows are multiplied by unpacking first (CPU).
        unpack_for_many: bool,
    },
    /// Layers that could not be fused (different schemes), one after the other.
    Parts(Vec<Weight>),
}

impl Weight {
    /// Bytes of its values.
    pub fn bytes(&self) -> u64 {
        match self {
            Weight::Stored(values) => values.nbytes() as u64,
            Weight::Quantized { matrix, .. } => matrix.nbytes() as u64,
            Weight::Parts(parts) => parts.iter().map(Weight::bytes).sum(),
        }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Weight::Stored(w) => x.matmul(w)?,
            Weight::Quantized { matrix, unpack_for_many: true } if x.dim(0) >= UNPACK_FROM_ROWS => {
                x.matmul(&matrix.dequantize(Dtype::F32)?.swap_last()?)?
            }
            Weight::Quantized { matrix, .. } => matrix.matmul(x)?,
            Weight::Parts(parts) => {
                let outputs = parts.iter().map(|p| p.forward(x)).collect::<Result<Vec<_>>>()?;
                hearth_mlx::concatenate(&outputs, -1)?
            }
        })
    }
}

impl Linear {
    /// A layer of this weight and bias `[out]`.
    pub fn new(weight: Weight, bias: Option<Tensor>) -> Self {
        Linear { weight, bias }
    }

    /// `[tokens, in]` → `[tokens, out]`.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match (&self.weight, &self.bias) {
            (Weight::Stored(w), Some(b)) => Ok(x.matmul_add(w, b)?),
            (w, Some(b)) => Ok(w.forward(x)?.add(b)?),
            (w, None) => w.forward(x),
        }
    }
}
