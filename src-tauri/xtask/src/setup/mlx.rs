//! MLX and mlx-c on Linux: a prepared folder in the cache, and the Cargo settings that link it.
//!
//! MLX comes as the library inside its Python wheel. mlx-c is built from the source inside the mlx-sys crate, against
//! that library. The Rust crates stay as published: Cargo's `links` override replaces only mlx-sys's build script.

use crate::sh;
use crate::wheel::{Wheel, hex, unpack};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of MLX; the one that mlx-sys's mlx-c is written for.
pub const VERSION: &str = "0.32.2";

/// The BLAS library that takes the place of the slow reference one in the wheel.
pub const OPENBLAS: &str = "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0";

const WHEEL: Wheel = Wheel {
    name: "mlx-cpu",
    version: VERSION,
    sha256: "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
};

const SHIM: &str = include_str!("shim.h");
const CLOCK: &str = include_str!("clock.c");
const BINDGEN: &str = include_str!("../../bindgen/src/main.rs");

/// The folder that holds MLX, mlx-c and the bindings.
pub struct Prefix {
    /// The folder; it exists only when it is complete.
    pub dir: PathBuf,
}

impl Prefix {
    /// True when everything in it has been made.
    pub fn is_complete(&self) -> bool {
        self.dir.is_dir()
    }

    /// True when the system's OpenBLAS is installed.
    pub fn openblas_is_there(&self) -> bool {
        Path::new(OPENBLAS).exists()
    }

    /// The folder with `bindings.rs`.
    pub fn bindings(&self) -> PathBuf {
        self.dir.join("bindings")
    }

    /// The folder with `libmlx.so`.
    pub fn mlx_lib(&self) -> PathBuf {
        self.dir.join("wheel/mlx/lib")
    }

    /// The text of `.cargo/generated.toml`, as far as it is about MLX.
    pub fn cargo_config(&self) -> String {
        let mlx = self.mlx_lib().display().to_string();
        let lib = self.dir.join("lib").display().to_string();
        let bindings = self.bindings().display().to_string();
        let blas = Path::new(OPENBLAS).parent().unwrap_or(Path::new("/")).display().to_string();
        // Doctests are linked too, and take their flags from a list of their own.
        let flags = [
            format!("link-arg=-Wl,-rpath,{mlx}"),
            format!("link-arg=-L{blas}"),
            "link-arg=-Wl,--no-as-needed".into(),
            "link-arg=-l:libopenblas.so.0".into(),
            "link-arg=-Wl,--as-needed".into(),
        ];
        let flags: Vec<String> = flags.iter().map(|flag| format!("    \"-C\", {},\n", quoted(flag))).collect();
        let flags = flags.concat();
        format!(
            r#"
[target.x86_64-unknown-linux-gnu.mlx]
rustc-link-search = [{}, {}]
rustc-link-lib = ["static=mlxc", "dylib=mlx", "dylib=stdc++"]
rustc-env = {{ OUT_DIR = {} }}

[target.x86_64-unknown-linux-gnu]
rustflags = [
{flags}]
rustdocflags = [
{flags}]
"#,
            quoted(&format!("native={lib}")),
            quoted(&format!("native={mlx}")),
            quoted(&bindings),
        )
    }
}

/// A TOML basic string.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Where the prepared MLX is, or will be. Its name holds the version and a hash of all that goes into it.
///
/// # Errors
/// When Cargo.lock cannot be read or has no mlx-sys.
pub fn prefix(ws: &Workspace) -> Result<Prefix> {
    let lock = ws.root.join("Cargo.lock");
    let text = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let mlx_sys = locked_version(&text, "mlx-sys").unwrap_or("0.7.0");
    let mut hash = Sha256::new();
    for part in [WHEEL.sha256, mlx_sys, SHIM, CLOCK, BINDGEN, "build 1"] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let key = hex(&hash.finalize()[..5]);
    Ok(Prefix { dir: ws.cache.join(format!("mlx-{VERSION}-{key}")) })
}

/// The version of `name` in a Cargo.lock.
fn locked_version<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let at = lock.find(&format!("name = \"{name}\"\nversion = \""))?;
    lock[at..].split('"').nth(3)
}

/// Makes the folder of `prefix`, unless it is complete.
///
/// # Errors
/// When a download, compiler or tool fails; nothing half-made stays under the final name.
pub fn build(ws: &Workspace, prefix: &Prefix) -> Result<()> {
    let name = prefix.dir.file_name().context("the cache folder has no name")?.to_string_lossy().into_owned();
    ws.cached(&name, |dir| {
        let mlx_c = mlx_c_source(ws)?;
        unpack(&WHEEL.download(dir)?, &dir.join("wheel"))?;
        fs::write(dir.join("shim.h"), SHIM)?;
        fs::write(dir.join("clock.c"), CLOCK)?;
        build_mlx_c(&mlx_c, dir)?;
        bindings(ws, &mlx_c, dir)?;
        clear(dir)
    })?;
    Ok(())
}

/// The mlx-c source inside the mlx-sys crate, checked to be written for this MLX.
fn mlx_c_source(ws: &Workspace) -> Result<PathBuf> {
    let mut metadata = ws.cargo();
    metadata.args(["metadata", "--format-version", "1", "--quiet"]);
    let text = sh::step("Fetching the crates", || sh::read(&mut metadata))?;
    let json: serde_json::Value = serde_json::from_str(&text).context("cargo metadata printed no JSON")?;
    let manifest = json["packages"]
        .as_array()
        .and_then(|all| all.iter().find(|p| p["name"] == "mlx-sys"))
        .and_then(|p| p["manifest_path"].as_str())
        .context("no crate of the workspace uses mlx-sys")?;
    let dir = Path::new(manifest).with_file_name("src/mlx-c");
    let lists = dir.join("CMakeLists.txt");
    let text = fs::read_to_string(&lists).with_context(|| format!("cannot read {}", lists.display()))?;
    let wanted = text.split("GIT_TAG v").nth(1).and_then(|rest| rest.split([')', '\n', ' ']).next());
    if wanted != Some(VERSION) {
        bail!("mlx-sys is written for MLX {}, and this set-up prepares {VERSION}", wanted.unwrap_or("(unknown)"));
    }
    Ok(dir)
}

/// Builds `lib/libmlxc.a`, with the one clock function of macOS that mlx-rs calls.
fn build_mlx_c(mlx_c: &Path, dir: &Path) -> Result<()> {
    let build = dir.join("build");
    let wheel = dir.join("wheel/mlx");
    let flags = format!("-include {} -I{}", dir.join("shim.h").display(), wheel.join("include").display());
    let mut configure = Command::new("cmake");
    configure.args(["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DMLX_C_USE_SYSTEM_MLX=ON"]);
    configure.args(["-DMLX_C_BUILD_EXAMPLES=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"]);
    configure.arg(format!("-DMLX_DIR={}", wheel.join("share/cmake/MLX").display()));
    configure.arg(format!("-DCMAKE_CXX_FLAGS={flags}")).arg("-S").arg(mlx_c).arg("-B").arg(&build);
    sh::run_quiet(&mut configure)?;
    sh::step("Building mlx-c (about 75 s)", || sh::run_quiet(Command::new("ninja").arg("-C").arg(&build).arg("mlxc")))?;
    let lib = dir.join("lib");
    fs::create_dir_all(&lib)?;
    let archive = lib.join("libmlxc.a");
    fs::copy(build.join("libmlxc.a"), &archive).context("the build of mlx-c left no libmlxc.a")?;
    let object = build.join("clock.o");
    sh::run_quiet(Command::new("cc").args(["-O2", "-fPIC", "-c", "-o"]).arg(&object).arg(dir.join("clock.c")))?;
    sh::run_quiet(Command::new("ar").arg("rs").arg(&archive).arg(&object))?;
    Ok(())
}

/// Builds the bindings generator (a small program apart from the workspace) and runs it once.
fn bindings(ws: &Workspace, mlx_c: &Path, dir: &Path) -> Result<()> {
    let target = dir.join("build/bindgen");
    let mut cargo = ws.cargo();
    // From here, not from the checkout: its config file is about to be written and must not matter.
    cargo.current_dir(dir).args(["build", "--quiet", "--locked", "--manifest-path"]);
    cargo.arg(ws.root.join("src-tauri/xtask/bindgen/Cargo.toml")).arg("--target-dir").arg(&target);
    sh::step("Building the bindings generator", || sh::run_quiet(&mut cargo))?;
    let out = dir.join("bindings");
    fs::create_dir_all(&out)?;
    let mut bindgen = Command::new(target.join("debug/mlx-bindgen"));
    bindgen.arg(mlx_c).arg(dir.join("shim.h")).arg(out.join("bindings.rs"));
    sh::run_quiet(&mut bindgen)?;
    Ok(())
}

/// Removes what only the build needed.
fn clear(dir: &Path) -> Result<()> {
    crate::workspace::remove_dir(&dir.join("build"))?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "whl") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_locked_version() {
        let lock = "[[package]]\nname = \"mlx-rs\"\nversion = \"0.33.0\"\n\n[[package]]\nname = \"mlx-sys\"\nversion = \"0.7.1\"\n";
        assert_eq!(locked_version(lock, "mlx-sys"), Some("0.7.1"));
        assert_eq!(locked_version(lock, "mlx"), None);
    }

    #[test]
    fn the_cargo_config_is_quoted() {
        let text = Prefix { dir: PathBuf::from("/a \"b\"/c") }.cargo_config();
        assert!(text.contains(r#""native=/a \"b\"/c/lib""#), "{text}");
        assert!(text.contains("[target.x86_64-unknown-linux-gnu.mlx]"));
    }
}
