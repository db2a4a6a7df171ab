//! `cargo xtask bundle`: the app as people install it. On a Mac an .app and a .dmg, signed and notarized where the
//! environment says by whom; on Linux a .deb.

mod deb;
mod macos;

use crate::workspace::{Profile, Workspace};
use crate::{desktop, setup, sh, ui};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The two programs in every bundle.
const APP: &str = "hearth-desktop";
const COMMAND: &str = "hearth";

/// Builds the programs and packs them; prints where the result is.
///
/// # Errors
/// When a step fails.
pub fn run(ws: &Workspace, profile: Profile) -> Result<()> {
    setup::run(ws)?;
    desktop::ready_to_build()?;
    ui::build(ws)?;
    build(ws, profile)?;
    let out = ws.root.join("target/bundle");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let made = if cfg!(target_os = "macos") {
        macos::run(ws, profile, &out, &macos::Signing::from_environment())?
    } else {
        deb::run(ws, profile, &out)?
    };
    for path in made {
        println!("{}", path.display());
    }
    Ok(())
}

/// One after the other, as they are built elsewhere too: together they would have other features, and be built anew.
fn build(ws: &Workspace, profile: Profile) -> Result<()> {
    ws.build_hearth(profile)?;
    let mut cargo = ws.cargo();
    cargo.args(["build", "--locked", "-p", "hearth-desktop"]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    sh::run(&mut cargo)
}

/// The version of all crates.
fn version(ws: &Workspace) -> Result<String> {
    let manifest = fs::read_to_string(ws.root.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let part = manifest.split("[workspace.package]").nth(1).unwrap_or_default();
    let line = part.lines().find_map(|line| line.strip_prefix("version = ")).context("Cargo.toml has no version")?;
    Ok(line.trim().trim_matches('"').to_owned())
}

/// A built program.
fn program(ws: &Workspace, profile: Profile, name: &str) -> PathBuf {
    ws.hearth(profile).with_file_name(name)
}

/// Copies a file into a tree, with its folders and its mode.
fn place(from: &Path, to: &Path, mode: u32) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Writes a text into a tree.
fn write(to: &Path, text: &str) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}
