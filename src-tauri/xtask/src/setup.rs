//! `cargo xtask setup`: makes a machine able to build Hearth.
//!
//! On a Mac that is Xcode's tools and cmake; mlx-sys builds MLX itself. On Linux mlx-sys's build script cannot run, so
//! its place is taken by a prepared MLX in the cache and a Cargo config file that points at it.

mod debian;
mod mlx;

use crate::workspace::{Workspace, write_if_changed};
use crate::{sh, starter, workspace};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

pub use mlx::{OPENBLAS, Prefix};

/// Does all of the set-up that is missing; well under a second when nothing is.
///
/// # Errors
/// When something needed is missing and cannot be installed: the message says what to do.
pub fn run(ws: &Workspace) -> Result<()> {
    if cfg!(target_os = "macos") { macos(ws) } else { linux(ws).map(|_| ()) }
}

/// The prepared MLX on Linux; sets it up if it is not there.
///
/// # Errors
/// As [`run`].
pub fn linux(ws: &Workspace) -> Result<Prefix> {
    refuse_rustflags()?;
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "this set-up knows macOS on Apple Silicon and Linux on x86_64, not {} on {}",
            std::env::consts::OS,
            std::env::consts::ARCH
        );
    }
    let prefix = mlx::prefix(ws)?;
    if !prefix.is_complete() || !prefix.openblas_is_there() {
        eprintln!("Setting up (once; about 3 minutes)");
        debian::install()?;
        mlx::build(ws, &prefix)?;
    }
    if write_if_changed(&generated(ws), &(test_config(ws) + &prefix.cargo_config()))? {
        // The new flags apply to this program too: build it now rather than at the next start.
        sh::step("Building with the new settings", || sh::run(ws.cargo().args(["build", "--quiet", "-p", "xtask"])))?;
        eprintln!("Set up: MLX {} in {}", mlx::VERSION, prefix.dir.display());
    }
    Ok(prefix)
}

/// A Chromium for the browser tests: `HEARTH_CHROMIUM`, or Debian's package, which is installed where it is missing.
///
/// # Errors
/// When there is none and it cannot be installed.
pub fn browser() -> Result<()> {
    if std::env::var_os("HEARTH_CHROMIUM").is_some() || Path::new("/usr/bin/chromium").exists() {
        return Ok(());
    }
    if cfg!(target_os = "macos") {
        bail!(
            "the browser tests need Chromium: set HEARTH_CHROMIUM, for instance to \
             \"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome\""
        );
    }
    debian::install_missing(&["chromium"])
}

/// Installs those of these Debian packages that are missing.
///
/// # Errors
/// As [`run`].
pub fn install(packages: &[&'static str]) -> Result<()> {
    debian::install_missing(packages)
}

/// The Cargo config file of this checkout that git ignores and `.cargo/config.toml` includes.
fn generated(ws: &Workspace) -> PathBuf {
    ws.root.join(".cargo/generated.toml")
}

/// The settings that let a plain `cargo test` find the starter model.
fn test_config(ws: &Workspace) -> String {
    let path = |path: PathBuf| mlx::quoted(&path.display().to_string());
    format!(
        "# Written by `cargo xtask setup`.\n[env]\nHEARTH_STARTER = {}\nHEARTH_STARTER_GGUF = {}\n",
        path(starter::link(ws)),
        path(starter::gguf_path(ws))
    )
}

/// Flags from the environment replace those of the config file, and without them the program does not link.
fn refuse_rustflags() -> Result<()> {
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        if std::env::var_os(name).is_some_and(|v| !v.is_empty()) {
            bail!(
                "{name} is set, and Cargo would use it instead of the flags that link MLX; unset it, or put your flags \
                 under [build] in a Cargo config file of your own"
            );
        }
    }
    Ok(())
}

fn macos(ws: &Workspace) -> Result<()> {
    if !sh::succeeds(Command::new("xcrun").args(["--find", "clang"])) {
        bail!("Xcode's command line tools are needed: xcode-select --install");
    }
    if !sh::succeeds(Command::new("xcrun").args(["--find", "metal"])) {
        bail!(
            "the Metal compiler is needed to build MLX: install Xcode, then run \
             `xcodebuild -downloadComponent MetalToolchain`"
        );
    }
    if workspace::first_program(&["cmake"]).is_none() {
        bail!("cmake is needed to build MLX: brew install cmake");
    }
    write_if_changed(&generated(ws), &test_config(ws)).map(|_| ())
}
