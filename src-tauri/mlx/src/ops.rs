//! Element-wise, shape, reduction, sorting and indexing operations, each a line over the C API.
//! Errors are MLX's own: shapes or dtypes that do not fit.

#![allow(missing_docs)] // the names are MLX's and numpy's; what is special is said where it is

use crate::call::{Result, array};
use crate::tensor::{Dtype, Handles, Tensor};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $call:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                // SAFETY: the handle lives across the call.
                array(stringify!($name), |res, s| unsafe { mlx_sys::$call(res, self.raw(), s) })
            }
        )* }
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $call:ident;)*) => {
        impl Tensor { $(
            $(#[$doc])*
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                // SAFETY: both handles live across the call.
                array(stringify!($name), |res, s| unsafe { mlx_sys::$call(res, self.raw(), other.raw(), s) })
            }
        )* }
    };
}

/// Reductions along one axis; the axis stays with size 1.
macro_rules! reduce {
    ($($name:ident = $call:ident;)*) => {
        impl Tensor { $(
            pub fn $name(&self, axis: i32) -> Result<Tensor> {
                // SAFETY: the handle lives across the call.
                array(stringify!($name), |res, s| unsafe { mlx_sys::$call(res, self.raw(), axis, true, s) })
            }
        )* }
    };
}

unary! {
    exp = mlx_exp;
    log = mlx_log;
    log1p = mlx_log1p;
    cos = mlx_cos;
    sin = mlx_sin;
    negative = mlx_negative;
    reciprocal = mlx_reciprocal;
    sigmoid = mlx_sigmoid;
}

binary! {
    /// Broadcasts like all of its kind.
    add = mlx_add;
    subtract = mlx_subtract;
    multiply = mlx_multiply;
    divide = mlx_divide;
    /// `self` to the power of `other`.
    power = mlx_power;
    maximum = mlx_maximum;
    minimum = mlx_minimum;
    /// Matrix product over the last two axes, broadcast over the others.
    matmul = mlx_matmul;
    less = mlx_less;
    greater = mlx_greater;
    greater_equal = mlx_greater_equal;
    logical_and = mlx_logical_and;
    /// log(exp(a) + exp(b)), without overflow.
    logaddexp = mlx_logaddexp;
}

reduce! {
    max_axis = mlx_max_axis;
    min_axis = mlx_min_axis;
    sum_axis = mlx_sum_axis;
    logsumexp_axis = mlx_logsumexp_axis;
}

impl Tensor {
    /// The same bytes read as another dtype; the last dimension grows or shrinks with the size of an element.
    pub fn view(&self, dtype: Dtype) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("view", |res, s| unsafe { mlx_sys::mlx_view(res, self.raw(), dtype.raw(), s) })
    }

    pub fn astype(&self, dtype: Dtype) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("astype", |res, s| unsafe { mlx_sys::mlx_astype(res, self.raw(), dtype.raw(), s) })
    }

    /// Row-major in memory; a view is copied, anything else is returned as it is.
    pub fn contiguous(&self) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("contiguous", |res, s| unsafe { mlx_sys::mlx_contiguous(res, self.raw(), false, s) })
    }

    /// One size may be −1: whatever is left.
    pub fn reshape(&self, shape: &[i32]) -> Result<Tensor> {
        // SAFETY: pointer and length belong together.
        array("reshape", |res, s| unsafe { mlx_sys::mlx_reshape(res, self.raw(), shape.as_ptr(), shape.len(), s) })
    }

    pub fn transpose(&self, axes: &[i32]) -> Result<Tensor> {
        // SAFETY: pointer and length belong together.
        array("transpose", |res, s| unsafe {
            mlx_sys::mlx_transpose_axes(res, self.raw(), axes.as_ptr(), axes.len(), s)
        })
    }

    /// The last two axes exchanged (a view).
    pub fn swap_last(&self) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("swapaxes", |res, s| unsafe { mlx_sys::mlx_swapaxes(res, self.raw(), -1, -2, s) })
    }

    pub fn expand_dims(&self, axis: i32) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("expand_dims", |res, s| unsafe { mlx_sys::mlx_expand_dims(res, self.raw(), axis, s) })
    }

    pub fn broadcast_to(&self, shape: &[i32]) -> Result<Tensor> {
        // SAFETY: pointer and length belong together.
        array("broadcast_to", |res, s| unsafe {
            mlx_sys::mlx_broadcast_to(res, self.raw(), shape.as_ptr(), shape.len(), s)
        })
    }

    /// `start..stop` along one axis (a view).
    pub fn slice(&self, axis: usize, start: i32, stop: i32) -> Result<Tensor> {
        let shape = self.shape();
        let (mut from, mut to) = (vec![0; shape.len()], shape.to_vec());
        if let (Some(f), Some(t)) = (from.get_mut(axis), to.get_mut(axis)) {
            (*f, *t) = (start, stop);
        }
        self.slice_strided(&from, &to, &vec![1; shape.len()])
    }

    /// The general slice (a view): start, stop and stride of every axis; strides may be negative.
    pub fn slice_strided(&self, start: &[i32], stop: &[i32], strides: &[i32]) -> Result<Tensor> {
        // SAFETY: pointers and lengths belong together.
        array("slice", |res, s| unsafe {
            mlx_sys::mlx_slice(
                res,
                self.raw(),
                start.as_ptr(),
                start.len(),
                stop.as_ptr(),
                stop.len(),
                strides.as_ptr(),
                strides.len(),
                s,
            )
        })
    }

    /// `self` with `start..start + update.dim(axis)` along `axis` replaced. In place where `self` is consumed,
    /// evaluated and nobody else holds it.
    pub fn with_slice(self, update: &Tensor, axis: usize, start: i32) -> Result<Tensor> {
        let shape = self.shape();
        let (mut from, mut to, strides) = (vec![0; shape.len()], shape.to_vec(), vec![1; shape.len()]);
        if let (Some(f), Some(t)) = (from.get_mut(axis), to.get_mut(axis)) {
            (*f, *t) = (start, start + update.dim(axis));
        }
        // SAFETY: pointers and lengths belong together.
        array("slice_update", |res, s| unsafe {
            mlx_sys::mlx_slice_update(
                res,
                self.raw(),
                update.raw(),
                from.as_ptr(),
                from.len(),
                to.as_ptr(),
                to.len(),
                strides.as_ptr(),
                strides.len(),
                s,
            )
        })
    }

    /// Rows (or other slices along `axis`) at these indices.
    pub fn take(&self, indices: &Tensor, axis: i32) -> Result<Tensor> {
        // SAFETY: both handles live across the call.
        array("take", |res, s| unsafe { mlx_sys::mlx_take_axis(res, self.raw(), indices.raw(), axis, s) })
    }

    pub fn take_along_axis(&self, indices: &Tensor, axis: i32) -> Result<Tensor> {
        // SAFETY: both handles live across the call.
        array("take_along_axis", |res, s| unsafe {
            mlx_sys::mlx_take_along_axis(res, self.raw(), indices.raw(), axis, s)
        })
    }

    pub fn put_along_axis(&self, indices: &Tensor, values: &Tensor, axis: i32) -> Result<Tensor> {
        // SAFETY: all handles live across the call.
        array("put_along_axis", |res, s| unsafe {
            mlx_sys::mlx_put_along_axis(res, self.raw(), indices.raw(), values.raw(), axis, s)
        })
    }

    /// `values` added at `indices` along `axis`; an index that occurs twice is added to twice.
    pub fn scatter_add_axis(&self, indices: &Tensor, values: &Tensor, axis: i32) -> Result<Tensor> {
        // SAFETY: all handles live across the call.
        array("scatter_add_axis", |res, s| unsafe {
            mlx_sys::mlx_scatter_add_axis(res, self.raw(), indices.raw(), values.raw(), axis, s)
        })
    }

    /// `self` where the condition holds, else `other`.
    pub fn select(&self, condition: &Tensor, other: &Tensor) -> Result<Tensor> {
        // SAFETY: all handles live across the call.
        array("where", |res, s| unsafe { mlx_sys::mlx_where(res, condition.raw(), self.raw(), other.raw(), s) })
    }

    /// Index of the largest value along the axis, which goes.
    pub fn argmax(&self, axis: i32) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("argmax", |res, s| unsafe { mlx_sys::mlx_argmax_axis(res, self.raw(), axis, false, s) })
    }

    pub fn sort(&self, axis: i32) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("sort", |res, s| unsafe { mlx_sys::mlx_sort_axis(res, self.raw(), axis, s) })
    }

    /// Indices such that position `kth` is sorted and everything before it is not larger.
    pub fn argpartition(&self, kth: i32, axis: i32) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("argpartition", |res, s| unsafe { mlx_sys::mlx_argpartition_axis(res, self.raw(), kth, axis, s) })
    }

    /// Running sum along the axis, from the end with `reverse`, the own element included or not.
    pub fn cumsum(&self, axis: i32, reverse: bool, inclusive: bool) -> Result<Tensor> {
        let same = mlx_sys::mlx_optional_dtype { value: mlx_sys::mlx_dtype__MLX_FLOAT32, has_value: false };
        // SAFETY: the handle lives across the call.
        array("cumsum", |res, s| unsafe {
            mlx_sys::mlx_cumsum_axis(res, self.raw(), axis, reverse, inclusive, same, s)
        })
    }

    /// Softmax along the axis, accumulated in f32.
    pub fn softmax(&self, axis: i32) -> Result<Tensor> {
        // SAFETY: the handle lives across the call.
        array("softmax", |res, s| unsafe { mlx_sys::mlx_softmax_axis(res, self.raw(), axis, true, s) })
    }

    /// Convolves each channel of `[batch, length, channels]` with its own taps `[channels, taps, 1]`: no padding, so
    /// that `taps − 1` positions fewer come out.
    pub fn conv1d_depthwise(&self, taps: &Tensor) -> Result<Tensor> {
        let channels = self.dim(2);
        // SAFETY: both handles live across the call.
        array("conv1d", |res, s| unsafe { mlx_sys::mlx_conv1d(res, self.raw(), taps.raw(), 1, 0, 1, channels, s) })
    }

    /// `self · b + c` in one call.
    pub fn matmul_add(&self, b: &Tensor, c: &Tensor) -> Result<Tensor> {
        // SAFETY: all handles live across the call.
        array("addmm", |res, s| unsafe { mlx_sys::mlx_addmm(res, c.raw(), self.raw(), b.raw(), 1.0, 1.0, s) })
    }
}

/// Tensors one after the other along an axis that they have.
///
/// # Errors
/// MLX's, where other axes differ.
pub fn concatenate<'a>(tensors: impl IntoIterator<Item = &'a Tensor>, axis: i32) -> Result<Tensor> {
    let handles = Handles::new(tensors);
    // SAFETY: the handles live across the call.
    array("concatenate", |res, s| unsafe { mlx_sys::mlx_concatenate_axis(res, handles.0, axis, s) })
}
