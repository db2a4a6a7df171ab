//! `cargo xtask ui` and the checks of the dashboard: npm's packages, the build, types, lint, unit tests, and the browser
//! tests on a real and on a scripted server.

use crate::starter;
use crate::workspace::{Profile, Workspace};
use crate::{setup, sh};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest Node that Vite runs on.
const NODE: (u32, u32) = (20, 19);

/// Most bytes of the built dashboard, compressed as a server on a network would send it.
const MOST: usize = 150_000;

fn folder(ws: &Workspace) -> PathBuf {
    ws.root.join("ui")
}

fn npm(ws: &Workspace, args: &[&str]) -> Command {
    let mut cmd = Command::new("npm");
    ws.clean(&mut cmd);
    cmd.current_dir(folder(ws)).args(args);
    // A password for the registry has no place in what a failure prints.
    cmd.env("npm_config_loglevel", "error").env("npm_config_fund", "false").env("npm_config_audit", "false");
    cmd
}

/// Installs what the dashboard is built with, where that has changed since the last time.
///
/// # Errors
/// When Node is missing or too old, or npm fails.
pub fn install(ws: &Workspace) -> Result<()> {
    let version = sh::read(Command::new("node").arg("--version"))
        .context("Node is needed to build the dashboard; install Node 20.19 or newer")?;
    if !new_enough(&version) {
        bail!("the dashboard is built with Node {}.{} or newer; this is {version}", NODE.0, NODE.1);
    }
    let lock = std::fs::read(folder(ws).join("package-lock.json")).context("cannot read ui/package-lock.json")?;
    let stamp = folder(ws).join("node_modules/.hearth-lock");
    if std::fs::read(&stamp).is_ok_and(|old| old == lock) {
        return Ok(());
    }
    sh::step("Installing what the dashboard is built with", || sh::run_quiet(&mut npm(ws, &["ci"])))?;
    std::fs::write(&stamp, lock).with_context(|| format!("cannot write {}", stamp.display()))
}

/// `cargo xtask ui`: builds the dashboard into `ui/dist`, from where the server takes it.
///
/// # Errors
/// When a step fails.
pub fn build(ws: &Workspace) -> Result<()> {
    install(ws)?;
    sh::step("Building the dashboard", || sh::run_quiet(&mut npm(ws, &["run", "build"])))?;
    let dist = folder(ws).join("dist");
    let size = compressed(&dist)?;
    if size > MOST {
        bail!("the dashboard has {size} bytes compressed; the limit is {MOST}");
    }
    eprintln!("  {}: {size} bytes compressed", dist.display());
    Ok(())
}

/// `cargo xtask types`: writes the TypeScript types of what the server sends.
///
/// # Errors
/// When the test that writes them cannot be built.
pub fn types(ws: &Workspace) -> Result<()> {
    let mut cargo = ws.cargo();
    cargo.args(["test", "--quiet", "-p", "hearth-server", "--test", "api", "types::"]).env("HEARTH_WRITE_TYPES", "1");
    sh::run(&mut cargo)
}

/// Types, lint, unit tests and the build.
///
/// # Errors
/// When one of them fails.
pub fn check(ws: &Workspace) -> Result<()> {
    install(ws)?;
    for script in ["check", "lint", "test"] {
        sh::step(&format!("ui: {script}"), || sh::run_quiet(&mut npm(ws, &["run", script])))?;
    }
    build(ws)
}

/// The browser tests.
///
/// # Errors
/// When one fails, or there is no Chromium.
pub fn browser(ws: &Workspace) -> Result<()> {
    build(ws)?;
    setup::browser()?;
    let starter = starter::ensure(ws, Profile::Test)?;
    // With it come the scripted server and the hub, which has a test of its own program.
    let hearth = ws.build_hearth(Profile::Test)?;
    let scripted = hearth.with_file_name("examples").join("scripted");
    let mut node = Command::new("node");
    ws.clean(&mut node);
    node.args(["--test", "--test-concurrency=1", "tests/ui/scripted.test.mjs", "tests/ui/real.test.mjs"]);
    node.env("HEARTH_BIN", &hearth).env("HEARTH_SCRIPTED", scripted).env("HEARTH_STARTER", &starter.folder);
    node.env("HEARTH_HUB", hearth.with_file_name("hearth-test-hub"));
    sh::run(&mut node)
}

/// Whether a version such as `v20.19.0` will do.
fn new_enough(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= NODE
}

/// Bytes of all scripts, styles and pages of a folder, each compressed by itself.
fn compressed(dist: &Path) -> Result<usize> {
    let mut files = vec![dist.join("index.html")];
    for entry in std::fs::read_dir(dist.join("assets")).context("the dashboard was not built")? {
        files.push(entry?.path());
    }
    let mut sum = 0;
    for file in files {
        let out = sh::run_quiet(Command::new("gzip").args(["-9", "-c"]).arg(&file))?;
        sum += out.stdout.len();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_node() {
        for good in ["v20.19.0", "v20.20.2", "v22.1.0", "v100.0.0"] {
            assert!(new_enough(good), "{good}");
        }
        for bad in ["v20.18.9", "v18.99.0", "", "node"] {
            assert!(!new_enough(bad), "{bad}");
        }
    }
}
