//! Quantized weights in every mode of MLX: packed words, scales and, for affine, biases.

use crate::call::{Result, array};
use crate::tensor::{Dtype, Tensor};
use mlx_sys::{mlx_array, mlx_optional_dtype, mlx_optional_int};
use std::ffi::CStr;

/// A quantized matrix `[rows, cols]`.
#[derive(Debug)]
pub struct QuantizedWeight {
    /// Packed values, u32 `[rows, cols · bits / 32]`.
    pub packed: Tensor,
    /// One scale per group, `[rows, cols / group_size]`.
    pub scales: Tensor,
    /// One bias per group (affine only), shaped as the scales.
    pub biases: Option<Tensor>,
    /// Weights per scale.
    pub group_size: i32,
    /// Bits per weight.
    pub bits: i32,
    /// MLX's name of the mode.
    pub mode: &'static CStr,
}

impl QuantizedWeight {
    fn biases(&self) -> mlx_array {
        self.biases.as_ref().map_or(mlx_array { ctx: std::ptr::null_mut() }, Tensor::raw)
    }

    /// `x · Wᵀ` for x `[…, cols]`, without unpacking the whole matrix.
    ///
    /// # Errors
    /// MLX's, where shapes or dtypes do not fit.
    pub fn matmul(&self, x: &Tensor) -> Result<Tensor> {
        // SAFETY: all handles live across the call.
        array("quantized_matmul", |res, s| unsafe {
            mlx_sys::mlx_quantized_matmul(
                res,
                x.raw(),
                self.packed.raw(),
                self.scales.raw(),
                self.biases(),
                true,
                some(self.group_size),
                some(self.bits),
                self.mode.as_ptr(),
                s,
            )
        })
    }

    /// The matrix itself, in this dtype.
    ///
    /// # Errors
    /// MLX's, where shapes or dtypes do not fit.
    pub fn dequantize(&self, dtype: Dtype) -> Result<Tensor> {
        let dtype = mlx_optional_dtype { value: dtype.raw(), has_value: true };
        // SAFETY: all handles live across the call.
        array("dequantize", |res, s| unsafe {
            mlx_sys::mlx_dequantize(
                res,
                self.packed.raw(),
                self.scales.raw(),
                self.biases(),
                some(self.group_size),
                some(self.bits),
                self.mode.as_ptr(),
                mlx_array { ctx: std::ptr::null_mut() },
                dtype,
                s,
            )
        })
    }

    /// The rows at these indices, still quantized.
    ///
    /// # Errors
    /// MLX's.
    pub fn take_rows(&self, indices: &Tensor) -> Result<QuantizedWeight> {
        Ok(QuantizedWeight {
            packed: self.packed.take(indices, 0)?,
            scales: self.scales.take(indices, 0)?,
            biases: self.biases.as_ref().map(|b| b.take(indices, 0)).transpose()?,
            ..*self
        })
    }
}

fn some(value: i32) -> mlx_optional_int {
    mlx_optional_int { value, has_value: true }
}
