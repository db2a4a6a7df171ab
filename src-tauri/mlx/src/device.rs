//! Which device MLX computes on.

use crate::call::{Result, check, prepare};
#[cfg(target_os = "macos")]
use std::os::unix::ffi::OsStrExt;

/// The kind of the default device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Vector units; everything in f32.
    Cpu,
    /// Metal on a Mac, CUDA elsewhere.
    Gpu,
}

/// The default device of this process.
///
/// # Errors
/// MLX's.
pub fn device() -> Result<Device> {
    prepare();
    let mut kind = mlx_sys::mlx_device_type__MLX_CPU;
    // SAFETY: the device handle is made and freed here.
    let status = unsafe {
        let mut device = mlx_sys::mlx_device_new();
        let status = mlx_sys::mlx_get_default_device(&mut device) | mlx_sys::mlx_device_get_type(&mut kind, device);
        mlx_sys::mlx_device_free(device);
        status
    };
    check("device", status)?;
    Ok(if kind == mlx_sys::mlx_device_type__MLX_GPU { Device::Gpu } else { Device::Cpu })
}

/// Says where the compiled Metal kernels are (`mlx.metallib`). Only before the first operation has it any effect; without it
/// MLX looks where it was built.
///
/// # Errors
/// When the path has a NUL byte, or MLX's.
#[cfg(target_os = "macos")]
pub fn set_metallib(path: &std::path::Path) -> Result<()> {
    prepare();
    let Ok(text) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return Err(crate::MlxError { operation: "metallib", message: format!("{} is no path", path.display()) });
    };
    // SAFETY: the string lives through the call, which copies it.
    check("metallib", unsafe { mlx_sys::mlx_metal_set_metallib_path(text.as_ptr()) })
}
