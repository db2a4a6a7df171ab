//! A new model folder is written under a temporary name beside its final place, and renamed when everything is on disk, so
//! that a folder with that name is always complete. What is not finished removes itself; what a killed process left, the next
//! one removes: a folder that is being written is locked.

use crate::LibraryError;
use serde_json::Value as Json;
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Free space that is left to the system on top of what is written.
const SPARE: u64 = 64 << 20;

/// A folder that is being written.
#[derive(Debug)]
pub struct Staging {
    folder: TempDir,
    /// Ends with the process, however that ends.
    _lock: File,
    parent: PathBuf,
    out: PathBuf,
}

impl Staging {
    /// Makes the temporary folder for `out` (its parent has to exist; it may exist only as an empty folder), where there is
    /// room for `bytes`. `doing` is part of its name.
    ///
    /// # Errors
    /// `out` exists with content, its parent is no folder, or the space is too small.
    pub fn begin(out: &Path, doing: &str, bytes: u64) -> Result<Self, LibraryError> {
        let (parent, name) = target(out)?;
        for left in unfinished(&parent, doing) {
            let theirs =
                left.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!(".{name}.{doing}-")));
            match File::open(&left).map(|folder| folder.try_lock()) {
                Ok(Ok(())) => drop(fs::remove_dir_all(&left)),
                Ok(Err(TryLockError::WouldBlock)) if theirs => {
                    let found = format!("one that another process writes now ({})", left.display());
                    return Err(LibraryError::mismatch(out, "the output folder", "a name that is free", found));
                }
                _ => {}
            }
        }
        check_space(&parent, out, bytes)?;
        let folder = tempfile::Builder::new()
            .prefix(&format!(".{name}.{doing}-"))
            .tempdir_in(&parent)
            .map_err(LibraryError::io("create a folder in", &parent))?;
        let lock = File::open(folder.path()).map_err(LibraryError::io("open", folder.path()))?;
        // A file system without locks has no second process that could know.
        let _ = lock.try_lock();
        Ok(Staging { folder, _lock: lock, parent, out: out.to_path_buf() })
    }

    /// The temporary folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives the folder its name.
    ///
    /// # Errors
    /// When it cannot be renamed; then nothing is left.
    pub fn finish(self) -> Result<(), LibraryError> {
        // The temporary folder is private to its owner; a model folder is an ordinary one.
        open_up(self.path())?;
        sync_folder(self.path())?;
        let staged = self.folder.keep();
        if let Err(e) = fs::rename(&staged, &self.out) {
            let _ = fs::remove_dir_all(&staged);
            return Err(LibraryError::io("rename the new folder to", &self.out)(e));
        }
        sync_folder(&self.parent)
    }
}

/// The folders in `parent` that somebody is or was writing.
fn unfinished(parent: &Path, doing: &str) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let random = name.rsplit_once('-').is_some_and(|(start, random)| {
            start.ends_with(&format!(".{doing}"))
                && random.len() == 6
                && random.chars().all(|c| c.is_ascii_alphanumeric())
        });
        name.starts_with('.') && random && fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
    };
    fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path()).filter(is_one).collect()
}

/// The parent folder and the name of `out`, which must not exist with content.
fn target(out: &Path) -> Result<(PathBuf, String), LibraryError> {
    let exists = || LibraryError::OutputExists { path: out.to_path_buf() };
    match fs::symlink_metadata(out) {
        Ok(m) if m.is_dir() => {
            let mut entries = fs::read_dir(out).map_err(LibraryError::io("list", out))?;
            if entries.next().is_some() {
                return Err(exists());
            }
        }
        Ok(_) => return Err(exists()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(LibraryError::io("read", out)(e)),
    }
    let name = out
        .file_name()
        .ok_or_else(|| LibraryError::mismatch(out, "the output folder", "a path that ends in a name", "none"))?;
    let parent = match out.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let meta = fs::metadata(&parent).map_err(LibraryError::io("open the folder", &parent))?;
    if !meta.is_dir() {
        return Err(LibraryError::mismatch(&parent, "the output folder's parent", "a folder", "a file"));
    }
    Ok((parent, name.to_string_lossy().into_owned()))
}

fn check_space(parent: &Path, out: &Path, bytes: u64) -> Result<(), LibraryError> {
    let stat = rustix::fs::statvfs(parent).map_err(|e| LibraryError::io("read the free space of", parent)(e.into()))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = bytes.saturating_add(SPARE);
    if free < needed {
        return Err(LibraryError::NoSpace { path: out.to_path_buf(), needed, free });
    }
    Ok(())
}

/// Writes a new JSON file, durably.
///
/// # Errors
/// The system's.
pub fn write_json(path: &Path, value: &Json) -> Result<(), LibraryError> {
    write(path, format!("{value:#}\n").as_bytes())
}

/// Writes a new file, durably.
///
/// # Errors
/// The system's; the file must not exist.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), LibraryError> {
    let mut f = File::create_new(path).map_err(LibraryError::io("create", path))?;
    f.write_all(bytes).map_err(LibraryError::io("write", path))?;
    f.sync_all().map_err(LibraryError::io("write", path))
}

fn open_up(folder: &Path) -> Result<(), LibraryError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .map_err(LibraryError::io("set the permissions of", folder))
}

fn sync_folder(folder: &Path) -> Result<(), LibraryError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(LibraryError::io("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_goes_and_what_runs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("new-model");
        let running = Staging::begin(&out, "importing", 1).unwrap();
        let refused = Staging::begin(&out, "importing", 1).unwrap_err().to_string();
        assert!(refused.contains("another process writes now"), "{refused}");
        // Another name, or another kind of work, is nobody else's.
        drop(Staging::begin(&dir.path().join("other"), "importing", 1).unwrap());
        assert!(running.path().is_dir());
        // As a kill leaves it: the folder is there, and the lock is gone.
        let Staging { folder, _lock, .. } = running;
        let left = folder.keep();
        fs::write(left.join("config.json"), "{}").unwrap();
        fs::create_dir(dir.path().join(".mine.importing-notes")).unwrap();
        drop(_lock);
        Staging::begin(&out, "importing", 1).unwrap().finish().unwrap();
        assert!(!left.exists() && out.is_dir() && dir.path().join(".mine.importing-notes").is_dir());
    }
}
