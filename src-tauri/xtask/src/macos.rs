//! `cargo xtask macos-check`: type-checks and lints the macOS build on Linux.
//!
//! Debian carries a rustc newer than the one in its release, with the matching source of the standard library. Both are
//! unpacked into the cache (nothing is installed), the standard library is type-checked for the Apple target, and the
//! result is linked into rustup as the toolchain `macos-check`. Nothing is ever linked into a program.

use crate::workspace::Workspace;
use crate::{setup, sh};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-apple-darwin";
const TOOLCHAIN: &str = "macos-check";

/// A compiler that makes empty files: build scripts that compile C only need them to exist, as nothing is linked.
const FAKE_CC: &str = r#"#!/bin/bash
out=
while (($#)); do
  case $1 in
    -o) out=${2-}; shift ;;
    -o*) out=${1#-o} ;;
  esac
  shift
done
if [[ -n $out ]]; then : > "$out"; fi
"#;

/// Lints `packages`, or the whole workspace, for macOS; warnings are errors.
///
/// # Errors
/// When the tools cannot be set up, or the code does not pass.
pub fn run(ws: &Workspace, packages: &[String]) -> Result<()> {
    if cfg!(target_os = "macos") {
        eprintln!("This is a Mac: `cargo clippy` checks the macOS build already.");
        return Ok(());
    }
    let prefix = setup::linux(ws)?;
    let tools = ws.cached("macos-check-1", |dir| make(ws, dir))?;
    sh::run_quiet(Command::new("rustup").args(["toolchain", "link", TOOLCHAIN]).arg(tools.join("root/usr")))?;
    let fake_cc = tools.join("fakecc");
    let mut cargo = Command::new("rustup");
    ws.clean(&mut cargo);
    cargo.args(["run", TOOLCHAIN, "cargo", "clippy", "--locked", "--all-targets", "--target", TARGET]);
    if packages.is_empty() {
        cargo.arg("--workspace");
    }
    for package in packages {
        cargo.args(["-p", package]);
    }
    cargo.arg("--target-dir").arg(ws.cache.join("macos-check-target"));
    // In place of mlx-sys's build script, and only here: a committed override would break builds on real Macs.
    let bindings = prefix.bindings();
    cargo.arg("--config").arg(format!("target.{TARGET}.mlx.rustc-env.OUT_DIR={:?}", bindings.display().to_string()));
    cargo.args(["--", "-D", "warnings"]);
    cargo.env("CC_aarch64_apple_darwin", &fake_cc).env("CXX_aarch64_apple_darwin", &fake_cc);
    cargo.env("AR_aarch64_apple_darwin", "/bin/true").env_remove("LD_LIBRARY_PATH").env_remove("CARGO");
    sh::run(&mut cargo)
}

/// Fills `dir` with the toolchain.
fn make(ws: &Workspace, dir: &Path) -> Result<()> {
    let debs = dir.join("debs");
    let root = dir.join("root");
    fs::create_dir_all(&debs)?;
    sh::step("Downloading rustc with its library source (about 150 MB)", || download(&debs))?;
    sh::step("Unpacking", || {
        for deb in fs::read_dir(&debs)? {
            sh::run_quiet(Command::new("dpkg").arg("-x").arg(deb?.path()).arg(&root))?;
        }
        crate::workspace::remove_dir(&debs)
    })?;
    let usr = root.join("usr");
    // rustup looks for libraries in <toolchain>/lib, Debian keeps them one folder deeper.
    for entry in fs::read_dir(usr.join("lib/x86_64-linux-gnu"))? {
        let name = entry?.file_name();
        let link = usr.join("lib").join(&name);
        if name.to_string_lossy().contains(".so") && !link.exists() {
            symlink(Path::new("x86_64-linux-gnu").join(&name), link)?;
        }
    }
    // rustup's own cargo drives this rustc as well.
    let mut which = Command::new("rustup");
    ws.clean(&mut which);
    let cargo = sh::read(which.args(["which", "cargo"]))?;
    let link = usr.join("bin/cargo");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    symlink(cargo, link)?;
    sh::step("Type-checking the standard library for macOS", || standard_library(dir, &usr))?;
    let fake_cc = dir.join("fakecc");
    fs::write(&fake_cc, FAKE_CC)?;
    fs::set_permissions(&fake_cc, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Fetches Debian's `rustc-web` and what belongs to exactly that version.
fn download(debs: &Path) -> Result<()> {
    let version = match candidate()? {
        Some(version) => version,
        None => {
            sh::run_quiet(Command::new("apt-get").args(["update", "-qq"]))
                .context("the list of Debian packages is missing; run `sudo apt-get update`")?;
            candidate()?.context("this Debian has no package rustc-web, which the macOS check needs")?
        }
    };
    match fetch(debs, &version) {
        Ok(()) => Ok(()),
        // The package list may name a version that has been replaced since.
        Err(error) => {
            sh::run_quiet(Command::new("apt-get").args(["update", "-qq"])).map_err(|_| error)?;
            fetch(debs, &candidate()?.context("this Debian has no package rustc-web, which the macOS check needs")?)
        }
    }
}

/// The version of `rustc-web` that apt would take.
fn candidate() -> Result<Option<String>> {
    let policy = sh::read(Command::new("apt-cache").args(["policy", "rustc-web"]))?;
    let version = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    Ok(version.filter(|v| *v != "(none)").map(str::to_owned))
}

fn fetch(debs: &Path, version: &str) -> Result<()> {
    let series = version.split('.').take(2).collect::<Vec<_>>().join(".");
    let std_package = format!("libstd-rust-web-{series}={version}");
    let shown = sh::read(Command::new("apt-cache").arg("show").arg(&std_package))?;
    let llvm = libllvm(&shown).context("Debian's rustc-web names no libllvm")?;
    let mut apt = Command::new("apt-get");
    apt.current_dir(debs).args(["download", "-qq"]).arg(std_package).arg(llvm);
    for package in ["rustc-web", "libstd-rust-web-dev", "rust-web-src", "rust-web-clippy"] {
        apt.arg(format!("{package}={version}"));
    }
    sh::run_quiet(&mut apt)?;
    Ok(())
}

/// `libllvm22` in a package's description.
fn libllvm(text: &str) -> Option<String> {
    let at = text.find("libllvm")?;
    let digits: String = text[at + "libllvm".len()..].chars().take_while(char::is_ascii_digit).collect();
    (!digits.is_empty()).then(|| format!("libllvm{digits}"))
}

/// Leaves the metadata of the standard library where rustc looks for it.
fn standard_library(dir: &Path, usr: &Path) -> Result<()> {
    let build = dir.join("std");
    let mut cargo = Command::new(usr.join("bin/cargo"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_") && name != "CARGO_HOME" {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(usr.join("lib/rustlib/src/rust/library"));
    cargo.env("LD_LIBRARY_PATH", usr.join("lib")).env("RUSTC", usr.join("bin/rustc")).env("RUSTC_BOOTSTRAP", "1");
    cargo.env("RUSTFLAGS", "-Zforce-unstable-if-unmarked").env("__CARGO_DEFAULT_LIB_METADATA", "stablestd");
    cargo.args(["check", "--quiet", "--locked", "-p", "sysroot", "--target", TARGET, "--target-dir"]).arg(&build);
    sh::run_quiet(&mut cargo)?;
    let lib = usr.join("lib/rustlib").join(TARGET).join("lib");
    fs::create_dir_all(&lib)?;
    let mut found = 0;
    for entry in fs::read_dir(build.join(TARGET).join("debug/deps"))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        let text = name.to_string_lossy();
        if text.ends_with(".rmeta") && !text.starts_with("libsysroot-") {
            fs::copy(&path, lib.join(name))?;
            found += 1;
        }
    }
    if found == 0 {
        bail!("the check of the standard library left no metadata");
    }
    crate::workspace::remove_dir(&build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_llvm_that_belongs_to_rustc() {
        assert_eq!(libllvm("Depends: libc6, libllvm22 (>= 1:22)").as_deref(), Some("libllvm22"));
        assert_eq!(libllvm("Depends: libc6"), None);
    }
}
