//! Quantized weights in every mode of MLX: packed words, scales and, for affine, biases.

use crate::call::{self, Result, array, check, prepare};
use crate::tensor::{Dtype, Tensor};
use mlx_sys::{mlx_array, mlx_optional_dtype, mlx_optional_int};
use std::ffi::CStr;

/// A quantized matrix `[rows, cols]`, or a batch of them with more axes before.
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
    /// Bytes of its values, scales and biases.
    pub fn nbytes(&self) -> usize {
        [&self.packed, &self.scales].into_iter().chain(&self.biases).map(Tensor::nbytes).sum()
    }

    fn biases(&self) -> mlx_array {
        self.biases.as_ref().map_or(mlx_array { ctx: std::ptr::null_mut() }, Tensor::raw)
    }

    /// `x · Wᵀ` for x `[…, cols]`, without unpacking the whole matrix.
    ///
    /// # Errors
    /// MLX's, where shapes or dtypes do not fit.
    pub fn matmul(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, true)
    }

    /// `x · W` for x `[…, rows]`, without unpacking the whole matrix.
    ///
    /// # Errors
    /// MLX's, where shapes or dtypes do not fit.
    pub fn matmul_untransposed(&self, x: &Tensor) -> Result<Tensor> {
        self.product(x, false)
    }

    fn product(&self, x: &Tensor, transposed: bool) -> Result<Tensor> {
        // SAFETY: all handles live across the call.
        array("quantized_matmul", |res, s| unsafe {
            mlx_sys::mlx_quantized_matmul(
                res,
                x.raw(),
                self.packed.raw(),
                self.scales.raw(),
                self.biases(),
                transposed,
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

impl Tensor {
    /// Affine quantization along the last axis, in groups. Axes before it stay: keys `[1, heads, tokens, width]`
    /// become a batch of matrices `[tokens, width]`.
    ///
    /// # Errors
    /// MLX's, where the width is no multiple of the group.
    pub fn quantize(&self, group_size: i32, bits: i32) -> Result<QuantizedWeight> {
        self.quantize_as(c"affine", group_size, bits)
    }

    /// As [`Tensor::quantize`], in any of MLX's modes; all but `affine` have no biases.
    ///
    /// # Errors
    /// MLX's, where width, group and bits do not fit the mode.
    pub fn quantize_as(&self, mode: &'static CStr, group_size: i32, bits: i32) -> Result<QuantizedWeight> {
        prepare();
        // SAFETY: the vector is made, read and freed here; every handle taken from it is owned by a tensor.
        unsafe {
            let mut parts = mlx_sys::mlx_vector_array_new();
            let status = mlx_sys::mlx_quantize(
                &mut parts,
                self.raw(),
                some(group_size),
                some(bits),
                mode.as_ptr(),
                mlx_array { ctx: std::ptr::null_mut() },
                call::stream(),
            );
            let get = |index: usize| {
                let mut part = mlx_sys::mlx_array_new();
                let status = mlx_sys::mlx_vector_array_get(&mut part, parts, index);
                let part = Tensor::from_raw(part);
                check("quantize", status).map(|()| part)
            };
            let result = check("quantize", status).and_then(|()| {
                let biases = if mlx_sys::mlx_vector_array_size(parts) > 2 { Some(get(2)?) } else { None };
                Ok(QuantizedWeight { packed: get(0)?, scales: get(1)?, biases, group_size, bits, mode })
            });
            mlx_sys::mlx_vector_array_free(parts);
            result
        }
    }
}

fn some(value: i32) -> mlx_optional_int {
    mlx_optional_int { value, has_value: true }
}
