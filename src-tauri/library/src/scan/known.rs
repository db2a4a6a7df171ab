//! What was read of a folder is kept as long as its files are the same, so that a list of a thousand models costs their headers once.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Folders remembered; far more than anybody has.
const MOST: usize = 10_000;

/// Values by folder, each with what its files looked like.
#[derive(Debug)]
pub(crate) struct Known<T>(OnceLock<Mutex<HashMap<PathBuf, (u64, T)>>>);

impl<T: Clone> Known<T> {
    /// Nothing known.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, (u64, T)>> {
        self.0.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of `folder` as it is now, or what `read` says.
    pub fn get(&self, folder: &Path, read: impl FnOnce() -> T) -> T {
        let now = looks(folder);
        if let Some((then, value)) = self.lock().get(folder)
            && *then == now
        {
            return value.clone();
        }
        let value = read();
        let mut all = self.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(folder.to_path_buf(), (now, value.clone()));
        value
    }
}

/// Names, lengths and times of the files in a folder, links followed, as one number.
fn looks(folder: &Path) -> u64 {
    let mut files: Vec<_> = match fs::read_dir(folder) {
        Ok(entries) => entries
            .flatten()
            .map(|e| {
                let meta = fs::metadata(e.path()).ok();
                (e.file_name(), meta.as_ref().map(|m| m.len()), meta.and_then(|m| m.modified().ok()))
            })
            .collect(),
        Err(_) => Vec::new(),
    };
    files.sort();
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_read_again_when_a_file_changes() {
        static KNOWN: Known<u32> = Known::new();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "1").unwrap();
        assert_eq!(KNOWN.get(dir.path(), || 1), 1);
        assert_eq!(KNOWN.get(dir.path(), || 2), 1);
        fs::write(dir.path().join("a"), "12").unwrap();
        assert_eq!(KNOWN.get(dir.path(), || 3), 3);
        fs::write(dir.path().join("b"), "").unwrap();
        assert_eq!(KNOWN.get(dir.path(), || 4), 4);
    }
}
