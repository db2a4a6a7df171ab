//! Which device MLX computes on.

use crate::call::{Result, check, prepare};

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
