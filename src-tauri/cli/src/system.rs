//! What the commands ask of the system: free disk space, and the libraries in this process.

use std::path::Path;

/// Bytes that this user may still write on the disk that holds `path` (or will, once it is made).
pub fn disk_free(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|p| p.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The shared libraries in this process whose file name contains `part`. Linux only; empty elsewhere.
pub fn loaded_libraries(part: &str) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<String> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]))
        .filter(|file| file.rsplit('/').next().is_some_and(|name| name.contains(part)))
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_made_yet_has_a_disk() {
        assert!(disk_free(Path::new("/tmp/not/made/yet")).is_some_and(|bytes| bytes > 0));
    }
}
