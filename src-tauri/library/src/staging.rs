//! A new model folder is written under a temporary name beside its final place, and renamed when everything is on disk, so
//! that a folder with that name is always complete. What is not finished removes itself.

use crate::LibraryError;
use serde_json::Value as Json;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Free space that is left to the system on top of what is written.
const SPARE: u64 = 64 << 20;

/// A folder that is being written.
#[derive(Debug)]
pub struct Staging {
    folder: TempDir,
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
        check_space(&parent, out, bytes)?;
        let folder = tempfile::Builder::new()
            .prefix(&format!(".{name}.{doing}-"))
            .tempdir_in(&parent)
            .map_err(LibraryError::io("create a folder in", &parent))?;
        Ok(Staging { folder, parent, out: out.to_path_buf() })
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
