//! Counter-based random numbers: a key in, numbers out, no hidden state (Salmon et al. 2011, threefry).

use crate::call::{Result, array, check, prepare, stream};
use crate::tensor::{Dtype, Tensor};

/// The key of a seed.
///
/// # Errors
/// MLX's.
pub fn key(seed: u64) -> Result<Tensor> {
    // SAFETY: plain value.
    array("random_key", |res, _| unsafe { mlx_sys::mlx_random_key(res, seed) })
}

/// Two keys from one: the stream goes on with the first, the second is used up.
///
/// # Errors
/// MLX's.
pub fn split(key: &Tensor) -> Result<(Tensor, Tensor)> {
    prepare();
    // SAFETY: two fresh handles, owned by tensors; the key lives across the call.
    let (mut a, mut b) =
        unsafe { (Tensor::from_raw(mlx_sys::mlx_array_new()), Tensor::from_raw(mlx_sys::mlx_array_new())) };
    // SAFETY: as above.
    check("random_split", unsafe { mlx_sys::mlx_random_split(a.raw_mut(), b.raw_mut(), key.raw(), stream()) })?;
    Ok((a, b))
}

impl Tensor {
    /// An index drawn from the unnormalized log-probabilities along the last axis, which goes.
    ///
    /// # Errors
    /// MLX's.
    pub fn categorical(&self, key: &Tensor) -> Result<Tensor> {
        // SAFETY: both handles live across the call.
        array("categorical", |res, s| unsafe { mlx_sys::mlx_random_categorical(res, self.raw(), -1, key.raw(), s) })
    }

    /// One number in [0, 1), shape `[]`.
    ///
    /// # Errors
    /// MLX's.
    pub fn uniform(key: &Tensor) -> Result<Tensor> {
        let (low, high) = (Tensor::scalar(0.0), Tensor::scalar(1.0));
        // SAFETY: all handles live across the call; an empty shape.
        array("uniform", |res, s| unsafe {
            mlx_sys::mlx_random_uniform(res, low.raw(), high.raw(), std::ptr::null(), 0, Dtype::F32.raw(), key.raw(), s)
        })
    }
}
