//! The reference implementation: a Python environment in the cache, with the versions of `parity/requirements.txt`.

use crate::setup::OPENBLAS;
use crate::sh;
use crate::wheel::{hex, python};
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::process::Command;

const REQUIREMENTS: &str = include_str!("../parity/requirements.txt");

/// A Python with mlx-lm.
pub struct Venv {
    dir: PathBuf,
}

impl Venv {
    /// The environment; made when it is not there (about 200 MB).
    ///
    /// # Errors
    /// When Python, its venv module or pip fails.
    pub fn ensure(ws: &Workspace) -> Result<Self> {
        let key = hex(&Sha256::digest(REQUIREMENTS)[..5]);
        let dir = ws.cached(&format!("mlx-lm-{key}"), |part| {
            let list = part.join("requirements.txt");
            std::fs::write(&list, REQUIREMENTS)?;
            let made = sh::run_quiet(Command::new(python()?).args(["-m", "venv"]).arg(part));
            made.context("no Python environment could be made; on Debian: apt-get install python3-venv")?;
            let mut pip = Command::new(part.join("bin/python"));
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&list);
            sh::step("Installing mlx-lm", || sh::run_quiet(&mut pip)).map(|_| ())
        })?;
        Ok(Self { dir })
    }

    /// A `python` of this environment that computes with the same BLAS as Hearth, and never asks a model hub.
    pub fn python(&self) -> Command {
        let mut cmd = Command::new(self.dir.join("bin/python"));
        cmd.env("HF_HUB_OFFLINE", "1").env("TOKENIZERS_PARALLELISM", "false").env("PYTHONUNBUFFERED", "1");
        if cfg!(target_os = "linux") {
            cmd.env("LD_PRELOAD", OPENBLAS);
        }
        cmd
    }
}
