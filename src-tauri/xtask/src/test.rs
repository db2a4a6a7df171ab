//! `cargo xtask test`: every check, in the order of how soon it says no. CI runs exactly this.

use crate::workspace::{Profile, Workspace};
use crate::{desktop, macos, setup, sh, starter, ui};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Pinned: a newer one may judge differently.
const CARGO_DENY: &str = "0.20.2";

/// The crates that are built apart from the workspace.
const APART: &[&str] = &["src-tauri/xtask/bindgen/Cargo.toml"];

type Check = fn(&Workspace) -> Result<()>;

/// Runs the set-up and then every check (or only those whose title holds `only`); stops at the first that fails.
///
/// # Errors
/// When a check fails: names it.
pub fn run(ws: &Workspace, only: Option<&str>) -> Result<()> {
    let started = Instant::now();
    let mut checks: Vec<(&str, Check)> = vec![
        ("set-up", setup::run),
        ("formatting", format),
        ("clippy", clippy),
        ("licences, bans and sources of dependencies", deny),
        ("dashboard: types, lint, build", ui::check),
        ("build", build),
        ("starter model", |ws| starter::ensure(ws, Profile::Test).map(|_| ())),
        ("tests", tests),
        ("dashboard: browser", ui::browser),
        ("macOS type-check", |ws| macos::run(ws, &[])),
    ];
    checks.retain(|(title, _)| *title == "set-up" || only.is_none_or(|only| title.contains(only)));
    if checks.len() == 1 {
        bail!("no check's title holds {:?}", only.unwrap_or_default());
    }
    let mut summary = String::new();
    for (number, (title, check)) in checks.iter().enumerate() {
        eprintln!("\n== {}/{} {title}", number + 1, checks.len());
        let began = Instant::now();
        check(ws).with_context(|| format!("`{title}` failed after {}", sh::duration(began.elapsed())))?;
        let line = format!("{:>12}  {title}", sh::duration(began.elapsed()));
        eprintln!("== ok {line}");
        summary.push_str(&line);
        summary.push('\n');
    }
    eprintln!("\n{summary}{:>12}  in all: every one of these checks passed", sh::duration(started.elapsed()));
    Ok(())
}

fn format(ws: &Workspace) -> Result<()> {
    sh::run(ws.cargo().args(["fmt", "--all", "--check"]))?;
    for manifest in APART {
        sh::run(ws.cargo().args(["fmt", "--check", "--manifest-path", manifest]))?;
    }
    Ok(())
}

fn clippy(ws: &Workspace) -> Result<()> {
    desktop::ready_to_build()?;
    sh::run(ws.cargo().args(["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

/// Everything that the checks after this one run, once.
fn build(ws: &Workspace) -> Result<()> {
    desktop::ready_to_build()?;
    ws.build_hearth(Profile::Test).map(|_| ())
}

/// Its advisory database is not asked: the check must work without reaching more than the crates registry.
fn deny(ws: &Workspace) -> Result<()> {
    let deny = cargo_deny(ws)?;
    for manifest in ["Cargo.toml"].iter().chain(APART) {
        let mut cmd = Command::new(&deny);
        ws.clean(&mut cmd);
        cmd.args(["--locked", "--manifest-path", manifest, "--log-level", "error", "--config"]);
        cmd.arg(ws.root.join("deny.toml")).args(["check", "--hide-inclusion-graph"]);
        // A licence that is allowed and not used is no news here.
        cmd.args(["--allow", "license-not-encountered", "licenses", "bans", "sources"]);
        sh::run(&mut cmd)?;
    }
    Ok(())
}

/// The pinned cargo-deny, built into the cache when it is not there.
fn cargo_deny(ws: &Workspace) -> Result<PathBuf> {
    let dir = ws.cached(&format!("cargo-deny-{CARGO_DENY}"), |part| {
        let mut cargo = ws.cargo();
        // From the cache folder: the flags that link MLX are not for this. Unoptimized: it runs for a second.
        cargo.current_dir(part).args(["install", "--quiet", "--locked", "--debug", "--version", CARGO_DENY]);
        cargo.arg("--root").arg(part).arg("--target-dir").arg(part.join("build")).arg("cargo-deny");
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        sh::step("Building cargo-deny (about 2 minutes, once)", || sh::run_quiet(&mut cargo))?;
        crate::workspace::remove_dir(&part.join("build"))
    })?;
    Ok(dir.join("bin/cargo-deny"))
}

/// Unit, parity and end-to-end tests. Those of the real binary find it and the starter model by these variables.
fn tests(ws: &Workspace) -> Result<()> {
    desktop::ready_to_test()?;
    build(ws)?;
    let starter = starter::ensure(ws, Profile::Test)?;
    let mut cargo = ws.cargo();
    // One that fails does not hide what the others have to say: a run in CI costs an hour.
    cargo.args(["test", "--locked", "--workspace", "--no-fail-fast"]);
    // Several models compute at once: with threads of its own each BLAS mostly waits for the others' (a quarter less CPU).
    cargo.env("OPENBLAS_NUM_THREADS", "1");
    cargo.env("HEARTH_STARTER", &starter.folder).env("HEARTH_STARTER_GGUF", &starter.gguf);
    cargo.env("HEARTH_GOLDENS", ws.root.join("tests/goldens"));
    sh::run(&mut cargo)
}
