//! One process at a time downloads into a repository's folder. The lock ends with its process, however that ends; the file says whose
//! it is.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use crate::LibraryError;

/// How often the lock is tried for again while others may be looking at it.
const LOOKS: usize = 10;

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct RepoLock {
    _file: File,
}

/// What trying for it gave.
pub(super) enum Locked {
    /// It is ours.
    Ours(RepoLock),
    /// Another process has it; its id, if it could be read.
    Theirs(Option<u32>),
}

/// Tries to have the lock in `path`; never waits.
pub(super) fn acquire(path: &Path) -> Result<Locked, LibraryError> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder).map_err(LibraryError::io("create", folder))?;
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = opened.map_err(LibraryError::io("open", path))?;
    let mut tried = file.try_lock();
    for _ in 0..LOOKS {
        if !matches!(tried, Err(TryLockError::WouldBlock)) {
            break;
        }
        // Somebody may only be looking, and is gone in a moment.
        std::thread::sleep(Duration::from_millis(2));
        tried = file.try_lock();
    }
    match tried {
        Ok(()) => {
            let pid = std::process::id().to_string();
            let noted = file
                .set_len(0)
                .and_then(|()| file.seek(SeekFrom::Start(0)))
                .and_then(|_| file.write_all(pid.as_bytes()));
            noted.map_err(LibraryError::io("write", path))?;
            Ok(Locked::Ours(RepoLock { _file: file }))
        }
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = file.take(32).read_to_string(&mut text);
            Ok(Locked::Theirs(read.ok().and_then(|_| text.trim().parse().ok())))
        }
        Err(TryLockError::Error(e)) => Err(LibraryError::io("lock", path)(e)),
    }
}

/// Whose the lock in `path` is now; `None` when it is nobody's. Takes nothing.
pub(super) fn holder(path: &Path) -> Option<Option<u32>> {
    // Opened for writing even to look: not every system locks a file that is open for reading only.
    let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = file.take(32).read_to_string(&mut text);
            Some(read.ok().and_then(|_| text.trim().parse().ok()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_names_its_process_and_a_dropped_one_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("models--a--b/hearth.lock");
        let Locked::Ours(first) = acquire(&path).unwrap() else { panic!("nobody had it") };
        let Locked::Theirs(pid) = acquire(&path).unwrap() else { panic!("it is held") };
        assert_eq!(pid, Some(std::process::id()));
        assert_eq!(holder(&path), Some(Some(std::process::id())));
        drop(first);
        assert_eq!(holder(&path), None);
        assert!(matches!(acquire(&path).unwrap(), Locked::Ours(_)));
    }
}
