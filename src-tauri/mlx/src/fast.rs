//! The fused operations: RMS norm, rotary embedding, attention. Kernels on a GPU, compositions on a CPU.

use crate::call::{Result, array};
use crate::tensor::Tensor;
use mlx_sys::mlx_array;
use std::ffi::CStr;

/// What attention may see.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a> {
    /// Everything.
    None,
    /// Each query the keys up to its own position, aligned at the end.
    Causal,
    /// Where the array is true (or what it adds).
    Array(&'a Tensor),
}

fn null() -> mlx_array {
    mlx_array { ctx: std::ptr::null_mut() }
}

impl Tensor {
    /// RMS norm over the last axis (Zhang and Sennrich 2019), times `weight`.
    ///
    /// # Errors
    /// MLX's, where the weight does not fit.
    pub fn rms_norm(&self, weight: &Tensor, eps: f32) -> Result<Tensor> {
        // SAFETY: both handles live across the call.
        array("rms_norm", |res, s| unsafe { mlx_sys::mlx_fast_rms_norm(res, self.raw(), weight.raw(), eps, s) })
    }

    /// Rotary embedding of `[…, tokens, head_dim]` at positions `offset[b] + i`, with periods `freqs` `[dims/2]`.
    ///
    /// # Errors
    /// MLX's, where shapes do not fit.
    pub fn rope(&self, dims: i32, traditional: bool, scale: f32, offset: &Tensor, freqs: &Tensor) -> Result<Tensor> {
        let no_base = mlx_sys::mlx_optional_float { value: 0.0, has_value: false };
        // SAFETY: all handles live across the call.
        array("rope", |res, s| unsafe {
            mlx_sys::mlx_fast_rope_dynamic(
                res,
                self.raw(),
                dims,
                traditional,
                no_base,
                scale,
                offset.raw(),
                freqs.raw(),
                s,
            )
        })
    }

    /// Scaled dot-product attention of queries `[1, heads, queries, head_dim]` over `keys` and `values`
    /// `[1, kv_heads, keys, head_dim]` (grouped-query where kv_heads < heads).
    ///
    /// # Errors
    /// MLX's, where shapes do not fit.
    pub fn attention(&self, keys: &Tensor, values: &Tensor, scale: f32, mask: Mask<'_>) -> Result<Tensor> {
        let (mode, mask): (&CStr, mlx_array) = match mask {
            Mask::None => (c"", null()),
            Mask::Causal => (c"causal", null()),
            Mask::Array(m) => (c"array", m.raw()),
        };
        // SAFETY: all handles live across the call; the mode is a static string.
        array("attention", |res, s| unsafe {
            mlx_sys::mlx_fast_scaled_dot_product_attention(
                res,
                self.raw(),
                keys.raw(),
                values.raw(),
                scale,
                mode.as_ptr(),
                mask,
                null(),
                false,
                s,
            )
        })
    }
}
