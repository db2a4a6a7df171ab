//! Python packages as plain archives: fetched by pip, checked by hash, unpacked without installing.

use crate::sh;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One wheel of one version.
pub struct Wheel {
    /// The package's name on PyPI.
    pub name: &'static str,
    /// Its exact version.
    pub version: &'static str,
    /// The SHA-256 of the wheel file, in hex.
    pub sha256: &'static str,
}

impl Wheel {
    /// Downloads the wheel into `dir` and checks its hash; returns the file.
    ///
    /// # Errors
    /// When pip is missing or fails, or the file is not the expected one.
    pub fn download(&self, dir: &Path) -> Result<PathBuf> {
        let spec = format!("{}=={}", self.name, self.version);
        let python = python()?;
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary"]);
        pip.args([":all:", "--dest"]).arg(dir).arg(&spec);
        sh::step(&format!("Downloading {spec}"), || sh::run_quiet(&mut pip))?;
        let file = fs::read_dir(dir)?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .find(|path| path.extension().is_some_and(|e| e == "whl"))
            .with_context(|| format!("pip left no wheel of {spec} in {}", dir.display()))?;
        let found = sha256(&file)?;
        if found != self.sha256 {
            bail!("{} has SHA-256 {found}, expected {}; remove it and try again", file.display(), self.sha256);
        }
        Ok(file)
    }
}

/// Unpacks a wheel (a zip file) into `dir`.
///
/// # Errors
/// When the archive is damaged or cannot be written.
pub fn unpack(wheel: &Path, dir: &Path) -> Result<()> {
    sh::run_quiet(Command::new(python()?).args(["-m", "zipfile", "-e"]).arg(wheel).arg(dir))?;
    Ok(())
}

/// A Python 3 that has pip.
///
/// # Errors
/// When there is none: says what to install.
pub fn python() -> Result<&'static str> {
    for name in ["python3", "python"] {
        if sh::succeeds(Command::new(name).args(["-c", "import sys, pip; assert sys.version_info >= (3, 9)"])) {
            return Ok(name);
        }
    }
    let how = if cfg!(target_os = "macos") { "xcode-select --install" } else { "apt-get install python3 python3-pip" };
    bail!("Python 3.9 or newer with pip is needed and was not found; install it: {how}")
}

/// The SHA-256 of a file, in hex.
///
/// # Errors
/// When the file cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if n == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..n]);
    }
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_a_file() {
        let path = std::env::temp_dir().join(format!("xtask-sha-{}", std::process::id()));
        fs::write(&path, "abc").unwrap();
        assert_eq!(sha256(&path).unwrap(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        fs::remove_file(&path).unwrap();
    }
}
