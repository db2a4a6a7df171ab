//! Writes the Rust declarations of mlx-c's C API, for platforms where mlx-sys's own build script does not run.
//!
//! Usage: `mlx-bindgen <mlx-c folder> <shim header> <output file>`.

use std::error::Error;
use std::path::{Path, PathBuf};

/// What mlx-rs expects of the half types: it reads `.0` of a `float16_t`, and takes `bfloat16_t` as a plain `u16`.
const HALF: &str = "#[derive(Debug, Default, Clone, Copy)] #[repr(transparent)] pub struct float16_t(pub u16);";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [mlx_c, shim, out] = args.as_slice() else {
        return Err("usage: mlx-bindgen <mlx-c folder> <shim header> <output file>".into());
    };
    let mut builder = bindgen::Builder::default()
        .rust_target(bindgen::RustTarget::stable(73, 0).map_err(|e| e.to_string())?)
        .clang_arg(format!("-I{}", mlx_c.display()))
        .clang_args(["-include".to_owned(), shim.display().to_string()])
        // Rust has its own, with other integer types.
        .blocklist_function("malloc")
        .blocklist_function("realloc")
        .blocklist_type("float16_t")
        .raw_line(HALF);
    for header in headers(&mlx_c.join("mlx/c"))? {
        builder = builder.header(header.display().to_string());
    }
    builder.generate()?.write_to_file(out)?;
    Ok(())
}

/// The C headers of `dir` in a stable order.
fn headers(dir: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "h") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
