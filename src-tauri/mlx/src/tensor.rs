//! The tensor handle: making, reading, sharing and evaluating arrays.

use crate::call::{self, MlxError, Result, check, prepare};
use mlx_sys::mlx_array;
use std::ffi::c_void;
use std::marker::PhantomData;

/// Element types that models and caches are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Truth values, one byte each.
    Bool,
    /// Unsigned 8 bits.
    U8,
    /// Unsigned 16 bits.
    U16,
    /// Unsigned 32 bits (token ids, packed weights).
    U32,
    /// Signed 32 bits.
    I32,
    /// Signed 64 bits.
    I64,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl Dtype {
    pub(crate) fn raw(self) -> mlx_sys::mlx_dtype {
        match self {
            Dtype::Bool => mlx_sys::mlx_dtype__MLX_BOOL,
            Dtype::U8 => mlx_sys::mlx_dtype__MLX_UINT8,
            Dtype::U16 => mlx_sys::mlx_dtype__MLX_UINT16,
            Dtype::U32 => mlx_sys::mlx_dtype__MLX_UINT32,
            Dtype::I32 => mlx_sys::mlx_dtype__MLX_INT32,
            Dtype::I64 => mlx_sys::mlx_dtype__MLX_INT64,
            Dtype::F16 => mlx_sys::mlx_dtype__MLX_FLOAT16,
            Dtype::Bf16 => mlx_sys::mlx_dtype__MLX_BFLOAT16,
            Dtype::F32 => mlx_sys::mlx_dtype__MLX_FLOAT32,
        }
    }

    fn from_raw(raw: mlx_sys::mlx_dtype) -> Option<Self> {
        [Dtype::Bool, Dtype::U8, Dtype::U16, Dtype::U32, Dtype::I32, Dtype::I64, Dtype::F16, Dtype::Bf16, Dtype::F32]
            .into_iter()
            .find(|d| d.raw() == raw)
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 => 1,
            Dtype::U16 | Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::I64 => 8,
        }
    }

    /// Whether the type is a floating-point one.
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::Bf16 | Dtype::F32)
    }
}

/// A handle to an n-dimensional MLX array. Lazy until evaluated; bound to the thread that made it.
///
/// Handles are counted. MLX writes in place only where a buffer has one owner, so a second handle
/// ([`Tensor::share`]) that is alive during a write costs a copy of the whole buffer.
pub struct Tensor {
    raw: mlx_array,
    not_send: PhantomData<*mut ()>,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the handle is owned by this tensor and freed once.
        unsafe { mlx_sys::mlx_array_free(self.raw) };
    }
}

impl std::fmt::Debug for Tensor {
    /// Shape and dtype only: printing values would evaluate them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?}, {:?})", self.shape(), self.dtype().ok())
    }
}

impl Tensor {
    /// # Safety
    /// `raw` must be a handle that nobody else frees.
    pub(crate) unsafe fn from_raw(raw: mlx_array) -> Self {
        Tensor { raw, not_send: PhantomData }
    }

    pub(crate) fn raw(&self) -> mlx_array {
        self.raw
    }

    pub(crate) fn raw_mut(&mut self) -> &mut mlx_array {
        &mut self.raw
    }

    /// A tensor of these bytes (copied), row-major.
    ///
    /// # Errors
    /// If `bytes` is not exactly as long as `shape` and `dtype` say.
    pub fn from_bytes(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Result<Self> {
        let elements: Option<usize> = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
        let wanted = elements.and_then(|n| n.checked_mul(dtype.size()));
        if wanted != Some(bytes.len()) {
            return Err(MlxError {
                operation: "from_bytes",
                message: format!("{shape:?} of {dtype:?} does not take {} bytes", bytes.len()),
            });
        }
        // SAFETY: the length was checked above; MLX copies the data before it returns.
        Ok(unsafe { Self::copy_of(bytes.as_ptr().cast(), shape, dtype) })
    }

    /// # Safety
    /// `data` must hold as many elements of `dtype` as `shape` says.
    unsafe fn copy_of(data: *const c_void, shape: &[i32], dtype: Dtype) -> Self {
        prepare();
        // SAFETY: the caller vouches for the length.
        unsafe { Self::from_raw(mlx_sys::mlx_array_new_data(data, shape.as_ptr(), shape.len() as i32, dtype.raw())) }
    }

    /// A tensor of these values, row-major.
    ///
    /// # Errors
    /// If there are more or fewer values than `shape` says.
    pub fn from_f32(values: &[f32], shape: &[i32]) -> Result<Self> {
        // SAFETY: any f32 can be read as four bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Self::from_bytes(bytes, shape, Dtype::F32)
    }

    /// A vector of token ids (or other counts).
    ///
    /// # Errors
    /// None in practice; the signature is that of its siblings.
    pub fn from_u32(values: &[u32]) -> Result<Self> {
        // SAFETY: any u32 can be read as four bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Self::from_bytes(bytes, &[values.len() as i32], Dtype::U32)
    }

    /// A vector of signed integers.
    ///
    /// # Errors
    /// None in practice; the signature is that of its siblings.
    pub fn from_i32(values: &[i32]) -> Result<Self> {
        // SAFETY: any i32 can be read as four bytes.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Self::from_bytes(bytes, &[values.len() as i32], Dtype::I32)
    }

    /// A scalar.
    pub fn scalar(value: f32) -> Self {
        prepare();
        // SAFETY: a fresh handle.
        unsafe { Self::from_raw(mlx_sys::mlx_array_new_float32(value)) }
    }

    /// Zeros.
    ///
    /// # Errors
    /// MLX's, for an impossible shape.
    pub fn zeros(shape: &[i32], dtype: Dtype) -> Result<Self> {
        // SAFETY: pointer and length belong together.
        call::array("zeros", |res, s| unsafe { mlx_sys::mlx_zeros(res, shape.as_ptr(), shape.len(), dtype.raw(), s) })
    }

    /// `start, start + 1, …`, `count` values of this dtype.
    ///
    /// # Errors
    /// MLX's.
    pub fn arange(start: i32, count: i32, dtype: Dtype) -> Result<Self> {
        let (from, to) = (f64::from(start), f64::from(start) + f64::from(count));
        // SAFETY: plain values.
        call::array("arange", |res, s| unsafe { mlx_sys::mlx_arange(res, from, to, 1.0, dtype.raw(), s) })
    }

    /// Another handle to the same array. See the type's note on what it costs.
    pub fn share(&self) -> Self {
        // SAFETY: `mlx_array_set` makes the new handle refer to the same array; it only fails on a null source.
        unsafe {
            let mut raw = mlx_sys::mlx_array_new();
            mlx_sys::mlx_array_set(&mut raw, self.raw);
            Self::from_raw(raw)
        }
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &[i32] {
        // SAFETY: MLX keeps the shape as long as the array lives, and `self` keeps the array alive.
        unsafe {
            let n = mlx_sys::mlx_array_ndim(self.raw);
            let shape = mlx_sys::mlx_array_shape(self.raw);
            if n == 0 || shape.is_null() { &[] } else { std::slice::from_raw_parts(shape, n) }
        }
    }

    /// Size of one axis; 1 for an axis that is not there.
    pub fn dim(&self, axis: usize) -> i32 {
        self.shape().get(axis).copied().unwrap_or(1)
    }

    /// The element type.
    ///
    /// # Errors
    /// For the types that Hearth does not use (f64, complex, …).
    pub fn dtype(&self) -> Result<Dtype> {
        // SAFETY: a read of the handle.
        let raw = unsafe { mlx_sys::mlx_array_dtype(self.raw) };
        Dtype::from_raw(raw)
            .ok_or_else(|| MlxError { operation: "dtype", message: format!("MLX dtype number {raw} is not used here") })
    }

    /// Bytes of the whole array.
    pub fn nbytes(&self) -> usize {
        // SAFETY: a read of the handle.
        unsafe { mlx_sys::mlx_array_nbytes(self.raw) }
    }

    /// The values, row-major, evaluated and converted to f32 where they are of another type.
    ///
    /// # Errors
    /// MLX's, from the evaluation.
    pub fn to_vec_f32(&self) -> Result<Vec<f32>> {
        let ready = self.readable(Dtype::F32)?;
        // SAFETY: evaluated, row-major, f32.
        unsafe { Ok(copy_out(mlx_sys::mlx_array_data_float32(ready.raw), ready.nbytes() / 4)) }
    }

    /// The values, row-major, evaluated and converted to u32 where they are of another type.
    ///
    /// # Errors
    /// MLX's, from the evaluation.
    pub fn to_vec_u32(&self) -> Result<Vec<u32>> {
        let ready = self.readable(Dtype::U32)?;
        // SAFETY: evaluated, row-major, u32.
        unsafe { Ok(copy_out(mlx_sys::mlx_array_data_uint32(ready.raw), ready.nbytes() / 4)) }
    }

    /// This tensor evaluated, of this type and row-major. Where it is so already no operation is added: one more
    /// would queue behind everything dispatched since, and reading a token would wait for the next step.
    fn readable(&self, dtype: Dtype) -> Result<Tensor> {
        let ready = if self.dtype()? == dtype { self.share() } else { self.astype(dtype)? };
        eval([&ready])?;
        let mut row_major = false;
        // SAFETY: the array is evaluated.
        check("is_row_contiguous", unsafe { mlx_sys::_mlx_array_is_row_contiguous(&mut row_major, ready.raw) })?;
        if row_major {
            return Ok(ready);
        }
        let ready = ready.contiguous()?;
        eval([&ready])?;
        Ok(ready)
    }
}

/// # Safety
/// `data` must be valid for `count` elements, or `count` zero.
unsafe fn copy_out<T: Copy>(data: *const T, count: usize) -> Vec<T> {
    if count == 0 || data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { std::slice::from_raw_parts(data, count) }.to_vec()
}

/// A vector of handles for calls that take many.
pub(crate) struct Handles(pub(crate) mlx_sys::mlx_vector_array);

impl Handles {
    pub(crate) fn new<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        let raw: Vec<mlx_array> = tensors.into_iter().map(Tensor::raw).collect();
        prepare();
        // SAFETY: MLX copies the handles (counting them) before it returns.
        Handles(unsafe { mlx_sys::mlx_vector_array_new_data(raw.as_ptr(), raw.len()) })
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: owned here, freed once.
        unsafe { mlx_sys::mlx_vector_array_free(self.0) };
    }
}

/// Waits until everything that this thread dispatched is computed. A thread must not end, nor the process, before
/// that: MLX's workers would go on with buffers and streams that are gone.
///
/// # Errors
/// MLX's.
pub fn synchronize() -> Result<()> {
    prepare();
    // SAFETY: the thread's own stream.
    check("synchronize", unsafe { mlx_sys::mlx_synchronize(call::stream()) })
}

/// Computes these tensors and waits for them.
///
/// # Errors
/// MLX's, for whatever failed in the graph.
pub fn eval<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    let handles = Handles::new(tensors);
    // SAFETY: the handles live across the call.
    check("eval", unsafe { mlx_sys::mlx_eval(handles.0) })
}

/// Starts computing these tensors and returns; reading one waits for it.
///
/// # Errors
/// MLX's, for whatever could not be dispatched.
pub fn async_eval<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
    let handles = Handles::new(tensors);
    // SAFETY: the handles live across the call.
    check("async_eval", unsafe { mlx_sys::mlx_async_eval(handles.0) })
}
