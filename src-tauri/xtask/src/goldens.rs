//! `cargo xtask goldens`: regenerates the reference outputs that the parity tests compare with.

use crate::venv::Venv;
use crate::workspace::{Workspace, remove_dir};
use crate::{setup, sh, starter};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// What all goldens together may take in the repository.
const LIMIT: u64 = 15_000_000;

/// Writes `tests/goldens` anew: all of it, or only the goldens of `names`.
///
/// # Errors
/// When the environment cannot be made, a script fails, or the result is too large for the repository.
pub fn run(ws: &Workspace, names: &[String]) -> Result<()> {
    setup::run(ws)?;
    let venv = Venv::ensure(ws)?;
    let scripts = ws.root.join("src-tauri/xtask/parity");
    let goldens = ws.root.join("tests/goldens");
    let part = ws.cache.join("goldens.part");
    let _lock = ws.lock("goldens")?;
    remove_dir(&part)?;
    fs::create_dir_all(&part)?;
    let smollm2 = names.iter().any(|name| name == "smollm2");
    let tiny: Vec<&String> = names.iter().filter(|name| *name != "smollm2").collect();
    if names.is_empty() || !tiny.is_empty() {
        sh::run(venv.python().arg(scripts.join("tiny.py")).arg(&part).args(tiny))?;
    }
    if names.is_empty() || smollm2 {
        let folder = ws.cache.join("smollm2-reference");
        eprintln!("SmolLM2 (about 3 minutes)");
        let mut python = venv.python();
        python
            .arg(scripts.join("smollm2.py"))
            .arg(starter::gguf(ws)?)
            .arg(&folder)
            .arg(part.join("smollm2.safetensors"));
        sh::run(&mut python)?;
    }
    let made: Vec<_> = fs::read_dir(&part)?.collect::<Result<_, _>>()?;
    if made.is_empty() {
        bail!("no golden is called {}", names.join(" or "));
    }
    if names.is_empty() {
        remove_dir(&goldens)?;
    }
    fs::create_dir_all(&goldens)?;
    for entry in made {
        let to = goldens.join(entry.file_name());
        if entry.path().is_dir() {
            remove_dir(&to)?;
        }
        copy(&entry.path(), &to)?;
    }
    remove_dir(&part)?;
    let size = size(&goldens)?;
    if size > LIMIT {
        bail!("the goldens take {size} bytes, more than the {LIMIT} that the repository has for them");
    }
    eprintln!("tests/goldens: {:.1} MB", size as f64 / 1e6);
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::copy(from, to).with_context(|| format!("cannot write {}", to.display()))?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    if path.is_file() {
        return Ok(path.metadata()?.len());
    }
    let mut total = 0;
    for entry in fs::read_dir(path)? {
        total += size(&entry?.path())?;
    }
    Ok(total)
}
