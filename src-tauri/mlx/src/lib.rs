//! A [`Tensor`] over MLX: every operation returns a `Result`, nothing panics, nothing crosses threads.
//!
//! The only crate that imports the bindings (`mlx-sys`, the C API that mlx-rs is built on) and nearly the only
//! one with `unsafe`. It sits on the C API itself: several operations that Hearth needs are not in mlx-rs's safe
//! layer (quantization modes, strided slices as views, streams), and some of that layer's conveniences panic,
//! deep-copy or end the process.
//!
//! MLX's arrays are lazy, and its streams belong to threads: a tensor must be made, evaluated and dropped on one
//! thread. `Tensor` is therefore `!Send`, and all operations run on that thread's default stream.
//!
//! ```
//! use hearth_mlx::{Tensor, eval};
//! # fn main() -> hearth_mlx::Result<()> {
//! let a = Tensor::from_f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?;
//! let b = a.matmul(&a)?;
//! eval([&b])?;
//! assert_eq!(b.to_vec_f32()?, [7.0, 10.0, 15.0, 22.0]);
//! # Ok(())
//! # }
//! ```

mod arena;
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod blas;
mod call;
mod device;
mod fast;
mod host;
mod kernel;
mod memory;
mod ops;
mod quant;
mod random;
mod softmax;
mod tensor;

pub use arena::{Arena, Block};
pub use call::{MlxError, Result};
#[cfg(target_os = "macos")]
pub use device::set_metallib;
pub use device::{Device, device};
pub use fast::Mask;
pub use host::version;
pub use kernel::{Launch, MetalKernel, metal_available};
pub use memory::{
    active_memory, cache_memory, clear_cache, peak_memory, reset_peak_memory, set_cache_limit, set_memory_limit,
    set_wired_limit,
};
pub use ops::concatenate;
pub use quant::QuantizedWeight;
pub use random::{key, split};
pub use softmax::causal_probabilities;
pub use tensor::{Dtype, Tensor, async_eval, eval, synchronize};
