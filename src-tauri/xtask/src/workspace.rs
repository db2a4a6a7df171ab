//! Where things are: the checkout, and the cache folder outside it.

use crate::sh;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// How `hearth` is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// For trials.
    Dev,
    /// For tests: built with all of them, for which cargo chooses other features of the libraries than for `hearth` alone.
    Test,
    /// For use and for measuring.
    Release,
}

/// The checkout and the cache that belongs to it.
pub struct Workspace {
    /// The checkout's top folder.
    pub root: PathBuf,
    /// Where slow-to-make things are kept; shared by all checkouts of one user.
    pub cache: PathBuf,
}

impl Workspace {
    /// Finds the checkout this program was built from, and the user's cache folder.
    ///
    /// # Errors
    /// When neither `XDG_CACHE_HOME` nor `HOME` is set, or the cache folder cannot be made.
    pub fn find() -> Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).ancestors().nth(2).context("the xtask crate is not inside a checkout")?;
        let root = root.canonicalize().with_context(|| format!("the checkout {} is gone", root.display()))?;
        let cache = user_cache()?.join("hearth");
        fs::create_dir_all(&cache).with_context(|| format!("cannot make the cache folder {}", cache.display()))?;
        if cache.to_string_lossy().contains('%') {
            bail!(
                "the cache folder {} has a % in its path, which MLX cannot take; set XDG_CACHE_HOME",
                cache.display()
            );
        }
        Ok(Self { root, cache })
    }

    /// A `cargo` command in the checkout, free of the variables that the outer `cargo run` set for this program.
    pub fn cargo(&self) -> Command {
        let mut cmd = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        self.clean(&mut cmd);
        cmd
    }

    /// Sets the working folder and removes what the outer `cargo run` put in the environment.
    pub fn clean(&self, cmd: &mut Command) {
        cmd.current_dir(&self.root);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "CARGO_BIN_NAME" {
                cmd.env_remove(&name);
            }
        }
    }

    /// The built `hearth` of `profile`.
    pub fn hearth(&self, profile: Profile) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), PathBuf::from);
        let folder = match profile {
            Profile::Dev | Profile::Test => "debug",
            Profile::Release => "release",
        };
        self.root.join(target).join(folder).join("hearth")
    }

    /// Builds `hearth` and returns where it is. Cargo shows its own progress.
    ///
    /// # Errors
    /// When the build fails.
    pub fn build_hearth(&self, profile: Profile) -> Result<PathBuf> {
        let mut cargo = self.cargo();
        match profile {
            Profile::Dev => cargo.args(["build", "-p", "hearth-cli", "--bin", "hearth"]),
            Profile::Test => cargo.args(["test", "--locked", "--workspace", "--no-run", "--quiet"]),
            Profile::Release => cargo.args(["build", "-p", "hearth-cli", "--bin", "hearth", "--release"]),
        };
        sh::run(&mut cargo)?;
        Ok(self.hearth(profile))
    }

    /// Waits for the lock `name` of the cache, so that two runs do not make the same thing at once.
    /// It is held until the returned file is dropped.
    ///
    /// # Errors
    /// When the lock file cannot be made.
    pub fn lock(&self, name: &str) -> Result<File> {
        let path = self.cache.join(format!("{name}.lock"));
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        if file.try_lock().is_err() {
            eprintln!("  waiting for another run that holds {} …", path.display());
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(file)
    }

    /// Returns the cache folder `name`, made by `make` in a temporary folder and renamed only when complete.
    /// Does nothing when it is there already.
    ///
    /// # Errors
    /// Those of `make`, and of the file system. A half-made folder is removed at the next try.
    pub fn cached(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let done = self.cache.join(name);
        if done.is_dir() {
            return Ok(done);
        }
        let _lock = self.lock(name)?;
        if done.is_dir() {
            return Ok(done);
        }
        let part = self.cache.join(format!("{name}.part"));
        remove_dir(&part)?;
        fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
        make(&part)?;
        fs::rename(&part, &done).with_context(|| format!("cannot move {} into place", part.display()))?;
        Ok(done)
    }
}

/// The per-user cache folder: `XDG_CACHE_HOME`, else the platform's usual place.
fn user_cache() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from)
        && dir.is_absolute()
    {
        return Ok(dir);
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set, so there is no cache folder")?;
    Ok(if cfg!(target_os = "macos") { home.join("Library/Caches") } else { home.join(".cache") })
}

/// Removes a folder and what is in it; no folder is fine.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Writes `text` to `path` through a temporary file beside it; returns false when it already said exactly that.
///
/// # Errors
/// When the file cannot be written.
pub fn write_if_changed(path: &Path, text: &str) -> Result<bool> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(false);
    }
    let part = path.with_extension("part");
    fs::write(&part, text).with_context(|| format!("cannot write {}", part.display()))?;
    fs::rename(&part, path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(true)
}

/// The first of `names` that runs with `--version`.
pub fn first_program<'a>(names: &[&'a str]) -> Option<&'a str> {
    names.iter().copied().find(|name| sh::succeeds(Command::new(OsStr::new(name)).arg("--version")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Workspace {
        let cache = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        remove_dir(&cache).unwrap();
        fs::create_dir_all(&cache).unwrap();
        Workspace { root: cache.clone(), cache }
    }

    #[test]
    fn a_cached_folder_appears_only_when_complete() {
        let ws = scratch("cached");
        let failed = ws.cached("thing", |dir| {
            fs::write(dir.join("half"), "x")?;
            bail!("broken off")
        });
        assert!(failed.is_err() && !ws.cache.join("thing").exists());
        let dir = ws.cached("thing", |dir| Ok(fs::write(dir.join("whole"), "x")?)).unwrap();
        assert!(dir.join("whole").exists() && !dir.join("half").exists());
        ws.cached("thing", |_| bail!("made twice")).unwrap();
        remove_dir(&ws.cache).unwrap();
    }

    #[test]
    fn unchanged_files_are_left_alone() {
        let ws = scratch("write");
        let path = ws.cache.join("a.toml");
        assert!(write_if_changed(&path, "one").unwrap());
        assert!(!write_if_changed(&path, "one").unwrap());
        assert!(write_if_changed(&path, "two").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        remove_dir(&ws.cache).unwrap();
    }
}
