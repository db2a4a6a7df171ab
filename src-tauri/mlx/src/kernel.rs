//! Kernels of Hearth's own in Metal's shading language, compiled by MLX where they are first used.

use crate::call::{self, MlxError, Result, check, prepare};
use crate::tensor::{Dtype, Handles, Tensor};
use mlx_sys::{mlx_fast_metal_kernel, mlx_fast_metal_kernel_config, mlx_vector_array, mlx_vector_string};
use std::ffi::{CStr, c_char};

/// Whether this MLX computes with Metal.
pub fn metal_available() -> bool {
    prepare();
    let mut available = false;
    // SAFETY: the result lives across the call; on a failure it keeps its value.
    let status = unsafe { mlx_sys::mlx_metal_is_available(&mut available) };
    status == 0 && available
}

/// A kernel: the body of a function that MLX wraps in its signature and specializes for the template arguments.
///
/// The body sees every input and output under its name as a pointer to its elements (a scalar input as a value).
/// Inputs are always row-major: MLX copies views first.
pub struct MetalKernel {
    raw: mlx_fast_metal_kernel,
    name: &'static CStr,
}

/// One launch of a [`MetalKernel`].
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Threads along x, y and z in all.
    pub grid: [i32; 3],
    /// Threads of one group.
    pub group: [i32; 3],
    /// Types that the body names.
    pub types: &'a [(&'static CStr, Dtype)],
    /// Constants that the body names.
    pub constants: &'a [(&'static CStr, i32)],
    /// Shape and dtype of every output.
    pub outputs: &'a [(&'a [i32], Dtype)],
}

impl std::fmt::Debug for MetalKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MetalKernel({:?})", self.name)
    }
}

impl Drop for MetalKernel {
    fn drop(&mut self) {
        // SAFETY: owned here, freed once.
        unsafe { mlx_sys::mlx_fast_metal_kernel_free(self.raw) };
    }
}

impl MetalKernel {
    /// A kernel of this body. Nothing is compiled yet: a mistake in the body is an error of the first evaluation.
    ///
    /// # Errors
    /// Where MLX computes without Metal.
    pub fn new(name: &'static CStr, inputs: &[&CStr], outputs: &[&CStr], body: &CStr) -> Result<Self> {
        if !metal_available() {
            return Err(MlxError { operation: "metal_kernel", message: "this MLX computes without Metal".into() });
        }
        let (inputs, outputs) = (Names::new(inputs), Names::new(outputs));
        // SAFETY: all strings and vectors live across the call, which copies them.
        let raw = unsafe {
            mlx_sys::mlx_fast_metal_kernel_new(
                name.as_ptr(),
                inputs.0,
                outputs.0,
                body.as_ptr(),
                c"".as_ptr(),
                true,
                false,
            )
        };
        // Without a handle there is nothing to free; the handler has kept the reason.
        check("metal_kernel", i32::from(raw.ctx.is_null()))?;
        Ok(MetalKernel { raw, name })
    }

    /// Runs the kernel over these inputs, in the order of their names, and gives its outputs in theirs.
    ///
    /// # Errors
    /// MLX's, where the inputs are not as many as the names.
    pub fn apply<'a>(&self, inputs: impl IntoIterator<Item = &'a Tensor>, launch: &Launch<'_>) -> Result<Vec<Tensor>> {
        let inputs = Handles::new(inputs);
        let config = Config::new(launch)?;
        let mut outputs = Outputs::new();
        // SAFETY: all handles live across the call; the outputs' vector is owned here.
        let status = unsafe {
            mlx_sys::mlx_fast_metal_kernel_apply(&mut outputs.0, self.raw, inputs.0, config.0, call::stream())
        };
        check("metal_kernel_apply", status)?;
        (0..launch.outputs.len()).map(|i| outputs.get(i)).collect()
    }
}

/// A vector of strings.
struct Names(mlx_vector_string);

impl Names {
    fn new(names: &[&CStr]) -> Self {
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: pointer and length belong together; MLX copies the strings before it returns.
        Names(unsafe { mlx_sys::mlx_vector_string_new_data(pointers.as_mut_ptr(), pointers.len()) })
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // SAFETY: owned here, freed once.
        unsafe { mlx_sys::mlx_vector_string_free(self.0) };
    }
}

/// A launch as the C API takes it.
struct Config(mlx_fast_metal_kernel_config);

impl Config {
    fn new(launch: &Launch<'_>) -> Result<Self> {
        // SAFETY: a fresh handle; every pointer lives across its call and belongs to its length.
        unsafe {
            let config = Config(mlx_sys::mlx_fast_metal_kernel_config_new());
            let ([x, y, z], [i, j, k]) = (launch.grid, launch.group);
            check("metal_kernel grid", mlx_sys::mlx_fast_metal_kernel_config_set_grid(config.0, x, y, z))?;
            check("metal_kernel group", mlx_sys::mlx_fast_metal_kernel_config_set_thread_group(config.0, i, j, k))?;
            for (name, dtype) in launch.types {
                let (name, dtype) = (name.as_ptr(), dtype.raw());
                let status = mlx_sys::mlx_fast_metal_kernel_config_add_template_arg_dtype(config.0, name, dtype);
                check("metal_kernel type", status)?;
            }
            for (name, value) in launch.constants {
                let status =
                    mlx_sys::mlx_fast_metal_kernel_config_add_template_arg_int(config.0, name.as_ptr(), *value);
                check("metal_kernel constant", status)?;
            }
            for (shape, dtype) in launch.outputs {
                let (dims, count) = (shape.as_ptr(), shape.len());
                let status = mlx_sys::mlx_fast_metal_kernel_config_add_output_arg(config.0, dims, count, dtype.raw());
                check("metal_kernel output", status)?;
            }
            Ok(config)
        }
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: owned here, freed once.
        unsafe { mlx_sys::mlx_fast_metal_kernel_config_free(self.0) };
    }
}

/// The arrays that a kernel wrote.
struct Outputs(mlx_vector_array);

impl Outputs {
    fn new() -> Self {
        // SAFETY: a fresh handle.
        Outputs(unsafe { mlx_sys::mlx_vector_array_new() })
    }

    fn get(&self, index: usize) -> Result<Tensor> {
        // SAFETY: reads of a vector that is owned here; the index is checked first.
        unsafe {
            let count = mlx_sys::mlx_vector_array_size(self.0);
            if index >= count {
                let message = format!("output {index} was asked for and there are {count}");
                return Err(MlxError { operation: "metal_kernel_apply", message });
            }
            let mut tensor = Tensor::from_raw(mlx_sys::mlx_array_new());
            check("vector_array_get", mlx_sys::mlx_vector_array_get(tensor.raw_mut(), self.0, index))?;
            Ok(tensor)
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        // SAFETY: owned here, freed once.
        unsafe { mlx_sys::mlx_vector_array_free(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_computes_where_there_is_metal_and_is_an_error_where_there_is_none() {
        let body = c"uint i = thread_position_in_grid.x; y[i] = T(SCALE) * x[i];";
        let kernel = MetalKernel::new(c"hearth_test_scale", &[c"x"], &[c"y"], body);
        if !metal_available() {
            let e = kernel.unwrap_err();
            assert!(e.message.contains("without Metal"), "{e}");
            return;
        }
        let x = Tensor::arange(0, 4, Dtype::F32).unwrap().reshape(&[2, 2]).unwrap().swap_last().unwrap();
        let launch = Launch {
            grid: [4, 1, 1],
            group: [4, 1, 1],
            types: &[(c"T", Dtype::F32)],
            constants: &[(c"SCALE", 3)],
            outputs: &[(&[2, 2], Dtype::F32)],
        };
        let y = kernel.unwrap().apply([&x], &launch).unwrap();
        assert_eq!(y[0].to_vec_f32().unwrap(), [0.0, 6.0, 3.0, 9.0], "views are made row-major first");
    }
}
