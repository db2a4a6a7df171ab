//! Arrays as bytes on the host, without an operation of MLX: what is computed is read where it lies, so that
//! nothing queues behind the step that is running.

use crate::call::{self, MlxError, Result, check, prepare};
use crate::tensor::{Dtype, Tensor};
use std::ffi::{CStr, c_void};

impl Tensor {
    /// Whether the values are there, so that reading them waits for nothing.
    ///
    /// # Errors
    /// MLX's.
    pub fn is_available(&self) -> Result<bool> {
        let mut available = false;
        // SAFETY: the handle lives across the call.
        check("is_available", unsafe { mlx_sys::_mlx_array_is_available(&mut available, self.raw()) })?;
        Ok(available)
    }

    /// The bytes of tokens `from..to` of a buffer `[1, heads, room, width]`, as `[heads, to − from, width]`.
    ///
    /// # Errors
    /// If the array is not computed, not row-major, or has not that many tokens.
    pub fn token_bytes(&self, from: usize, to: usize) -> Result<Vec<u8>> {
        let fail = |message: String| MlxError { operation: "token_bytes", message };
        let shape: Vec<usize> = self.shape().iter().map(|&d| d as usize).collect();
        let &[1, heads, room, width] = &shape[..] else {
            return Err(fail(format!("{shape:?} is not [1, heads, tokens, width]")));
        };
        if from > to || to > room {
            return Err(fail(format!("tokens {from}..{to} of {room}")));
        }
        let all = self.row_major_bytes()?;
        let per_token = width * self.dtype()?.size();
        let mut bytes = Vec::with_capacity(heads * (to - from) * per_token);
        for head in 0..heads {
            let at = head * room * per_token;
            bytes.extend_from_slice(&all[at + from * per_token..at + to * per_token]);
        }
        Ok(bytes)
    }

    /// All bytes, row-major.
    ///
    /// # Errors
    /// If the array is not computed or not row-major.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.row_major_bytes()?.to_vec())
    }

    /// The bytes where MLX keeps them.
    fn row_major_bytes(&self) -> Result<&[u8]> {
        let mut row_major = false;
        if !self.is_available()? {
            return Err(MlxError { operation: "bytes", message: "the array is not computed yet".into() });
        }
        // SAFETY: the array is evaluated.
        check("is_row_contiguous", unsafe { mlx_sys::_mlx_array_is_row_contiguous(&mut row_major, self.raw()) })?;
        if !row_major {
            return Err(MlxError { operation: "bytes", message: "the array is a view, not row-major".into() });
        }
        if self.nbytes() == 0 {
            return Ok(&[]);
        }
        // SAFETY: evaluated and row-major, so `nbytes` bytes begin at its data (the typed accessor only casts), and
        // nothing writes to them while `self` is borrowed: MLX writes in place only where it owns the last handle.
        unsafe { Ok(std::slice::from_raw_parts(mlx_sys::mlx_array_data_uint8(self.raw()), self.nbytes())) }
    }

    /// The values where MLX keeps them, to be changed.
    ///
    /// # Errors
    /// If the array is not computed, not row-major or not f32.
    pub(crate) fn values_mut(&mut self) -> Result<&mut [f32]> {
        let len = self.row_major_bytes()?.len();
        let fail = |message: &str| Err(MlxError { operation: "values_mut", message: message.into() });
        if self.dtype()? != Dtype::F32 {
            return fail("the array is not f32");
        }
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: evaluated and row-major, so that `len` bytes begin at its data, aligned as MLX allocates. The crate's
        // callers have just computed the array and hold its only handle.
        unsafe {
            let data = mlx_sys::mlx_array_data_float32(self.raw());
            Ok(std::slice::from_raw_parts_mut(data.cast_mut(), len / 4))
        }
    }

    /// A tensor that takes these bytes over, row-major, without copying them where MLX can use them in place.
    ///
    /// # Errors
    /// If there are more or fewer bytes than `shape` and `dtype` say.
    pub fn from_vec_bytes(bytes: Vec<u8>, shape: &[i32], dtype: Dtype) -> Result<Self> {
        let wanted = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(usize::try_from(d).ok()?));
        if wanted != Some(bytes.len()) {
            let message = format!("{shape:?} of {dtype:?} does not take {} bytes", bytes.len());
            return Err(MlxError { operation: "from_vec_bytes", message });
        }
        // Kernels read whole elements: a buffer that is not aligned for them is copied.
        if bytes.is_empty() || bytes.as_ptr().align_offset(16) != 0 {
            return Self::from_bytes(&bytes, shape, dtype);
        }
        prepare();
        let bytes = Box::into_raw(Box::new(bytes));
        // SAFETY: the vector has the length checked above and lives, unmoved, until MLX calls `drop_bytes` on it, once.
        unsafe {
            let data = (*bytes).as_mut_ptr().cast();
            Ok(Self::from_raw(mlx_sys::mlx_array_new_data_managed_payload(
                data,
                shape.as_ptr(),
                shape.len() as i32,
                dtype.raw(),
                bytes.cast(),
                Some(drop_bytes),
            )))
        }
    }
}

/// # Safety
/// `payload` must be a leaked `Box<Vec<u8>>`.
unsafe extern "C" fn drop_bytes(payload: *mut c_void) {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(payload.cast::<Vec<u8>>()) });
}

/// MLX's version, as it says it itself.
pub fn version() -> String {
    prepare();
    // SAFETY: the string is made, read and freed here.
    unsafe {
        let mut string = mlx_sys::mlx_string_new();
        let status = mlx_sys::mlx_version(&mut string);
        let data = mlx_sys::mlx_string_data(string);
        let text = match call::check("version", status) {
            Ok(()) if !data.is_null() => CStr::from_ptr(data).to_string_lossy().into_owned(),
            _ => String::new(),
        };
        mlx_sys::mlx_string_free(string);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::eval;

    #[test]
    fn tokens_come_out_head_by_head_and_go_back_in() {
        let values: Vec<f32> = (0..2 * 5 * 3).map(|n| n as f32).collect();
        let t = Tensor::from_f32(&values, &[1, 2, 5, 3]).unwrap();
        let bytes = t.token_bytes(1, 3).unwrap();
        let back = Tensor::from_vec_bytes(bytes, &[1, 2, 2, 3], Dtype::F32).unwrap();
        let want: Vec<f32> = [3..9, 18..24].into_iter().flatten().map(|n| n as f32).collect();
        assert_eq!(back.to_vec_f32().unwrap(), want);
        assert_eq!(t.to_bytes().unwrap().len(), 120);
        assert!(t.token_bytes(2, 6).is_err() && t.token_bytes(3, 2).is_err());
        assert!(Tensor::from_vec_bytes(vec![0; 7], &[2], Dtype::F32).is_err());
    }

    #[test]
    fn what_is_lazy_or_a_view_is_refused_and_not_computed() {
        let t = Tensor::arange(0, 6, Dtype::F32).unwrap().reshape(&[1, 1, 2, 3]).unwrap();
        let lazy = t.exp().unwrap();
        assert!(!lazy.is_available().unwrap() && lazy.to_bytes().is_err());
        let view = t.swap_last().unwrap();
        eval([&view]).unwrap();
        assert!(view.to_bytes().unwrap_err().message.contains("view"));
        assert!(version().starts_with("0."), "{}", version());
    }
}
