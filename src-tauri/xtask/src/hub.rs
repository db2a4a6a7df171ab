//! `cargo xtask hub`: the model hub of the tests, for trials by hand; and one that ends with its value, for measuring.

use crate::sh;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Builds the hub and runs it until it is ended.
///
/// # Errors
/// When it cannot be built or started.
pub fn run(ws: &Workspace, args: &[String]) -> Result<()> {
    let mut cargo = ws.cargo();
    cargo.args(["run", "--quiet", "--release", "-p", "hearth-test-hub", "--"]).args(args);
    let status = cargo.status().context("cargo could not be started")?;
    anyhow::ensure!(status.success(), "the hub ended ({status})");
    Ok(())
}

/// Asks the hub about every model of the built-in catalogue, and writes its file anew.
///
/// # Errors
/// When the hub cannot be reached, or the file not be written.
pub fn refresh_catalogue(ws: &Workspace) -> Result<()> {
    let date = sh::read(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let mut cargo = ws.cargo();
    cargo.args(["run", "--quiet", "-p", "hearth-library", "--example", "refresh_catalogue", "--", &date]);
    let out = cargo.stderr(Stdio::inherit()).output().context("cargo could not be started")?;
    anyhow::ensure!(out.status.success(), "the catalogue is left as it is");
    let path = ws.root.join("src-tauri/library/data/catalogue.json");
    std::fs::write(&path, out.stdout).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// A running hub.
pub struct TestHub {
    child: Child,
    /// Its address, for `HF_ENDPOINT`.
    pub url: String,
}

impl TestHub {
    /// Starts one with these options.
    ///
    /// # Errors
    /// When it cannot be built or started.
    pub fn start(ws: &Workspace, args: &[String]) -> Result<Self> {
        sh::run(ws.cargo().args(["build", "--quiet", "--release", "-p", "hearth-test-hub"]))?;
        let hearth = ws.hearth(crate::workspace::Profile::Release);
        let mut cmd = Command::new(hearth.with_file_name("hearth-test-hub"));
        let mut child = cmd.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("no test hub")?;
        let stdout = child.stdout.take().context("the hub has no output")?;
        let mut url = String::new();
        BufReader::new(stdout).read_line(&mut url)?;
        Ok(Self { child, url: url.trim().to_owned() })
    }

    /// Lets a program see this hub and none of the user's settings for one.
    pub fn only(&self, cmd: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_lowercase();
            if text.starts_with("hf_") || text.starts_with("hearth_") || text.ends_with("_proxy") {
                cmd.env_remove(&name);
            }
        }
        cmd.env("HF_ENDPOINT", &self.url);
    }
}

impl Drop for TestHub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
