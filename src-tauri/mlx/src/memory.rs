//! MLX's allocator: figures and limits, in bytes.

use crate::call::{Result, check, prepare};

macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident = $call:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        /// MLX's.
        pub fn $name() -> Result<usize> {
            prepare();
            let mut bytes = 0;
            // SAFETY: the result is a plain number.
            check(stringify!($name), unsafe { mlx_sys::$call(&mut bytes) })?;
            Ok(bytes)
        }
    )* };
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $call:ident;)*) => { $(
        $(#[$doc])*
        /// Returns the limit before.
        ///
        /// # Errors
        /// MLX's.
        pub fn $name(limit: usize) -> Result<usize> {
            prepare();
            let mut before = 0;
            // SAFETY: the result is a plain number.
            check(stringify!($name), unsafe { mlx_sys::$call(&mut before, limit) })?;
            Ok(before)
        }
    )* };
}

figures! {
    /// Live buffers.
    active_memory = mlx_get_active_memory;
    /// Freed buffers kept for reuse.
    cache_memory = mlx_get_cache_memory;
    /// The most that was ever active, since the start or the last reset.
    peak_memory = mlx_get_peak_memory;
}

limits! {
    /// The most that freed buffers may take.
    set_cache_limit = mlx_set_cache_limit;
    /// Where allocation starts to wait for running work (a CPU device does not enforce it).
    set_memory_limit = mlx_set_memory_limit;
    /// How much may be wired for the GPU (no effect without one).
    set_wired_limit = mlx_set_wired_limit;
}

/// Gives the freed buffers back to the system.
///
/// # Errors
/// MLX's.
pub fn clear_cache() -> Result<()> {
    prepare();
    // SAFETY: no arguments.
    check("clear_cache", unsafe { mlx_sys::mlx_clear_cache() })
}

/// Starts a new peak measurement.
///
/// # Errors
/// MLX's.
pub fn reset_peak_memory() -> Result<()> {
    prepare();
    // SAFETY: no arguments.
    check("reset_peak_memory", unsafe { mlx_sys::mlx_reset_peak_memory() })
}
