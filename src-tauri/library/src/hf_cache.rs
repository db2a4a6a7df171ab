//! The layout of the Hugging Face cache, as its Python clients read and write it: contents once each in `blobs`, named by their hash;
//! a folder of links for each commit in `snapshots`; what a branch stood for in `refs`.

use hearth_core::files::read_text;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};

use crate::LibraryError;
use crate::hub::Repo;

/// One repository's folder in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepoFolder {
    hub: PathBuf,
    name: String,
}

impl RepoFolder {
    /// The folder of `repo` in the cache `hub`; nothing is made.
    pub fn new(hub: &Path, repo: &Repo) -> Self {
        Self { hub: hub.to_path_buf(), name: repo.folder() }
    }

    /// The folder that a snapshot's path is below, if it is one in a cache.
    pub fn of_snapshot(snapshot: &Path) -> Option<Self> {
        let snapshots = snapshot.parent().filter(|p| p.file_name().is_some_and(|n| n == "snapshots"))?;
        let repo = snapshots.parent()?;
        let name = repo.file_name()?.to_str().filter(|n| n.starts_with("models--"))?;
        Some(Self { hub: repo.parent()?.to_path_buf(), name: name.to_owned() })
    }

    /// The folder itself.
    pub fn path(&self) -> PathBuf {
        self.hub.join(&self.name)
    }

    /// Where contents are.
    pub fn blobs(&self) -> PathBuf {
        self.path().join("blobs")
    }

    /// The content with this hash.
    pub fn blob(&self, hex: &str) -> PathBuf {
        self.blobs().join(hex)
    }

    /// The folder of one commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.path().join("snapshots").join(commit)
    }

    /// The lock of whoever downloads into this folder with Hearth; beside the locks of the Python clients.
    pub fn lock_file(&self) -> PathBuf {
        self.hub.join(".locks").join(&self.name).join("hearth.lock")
    }

    /// Makes `path` of the commit a link to the blob `hex`. What is there and holds the same stays.
    pub fn link(&self, commit: &str, path: &str, hex: &str) -> Result<(), LibraryError> {
        let place = self.snapshot(commit).join(path);
        let blob = self.blob(hex);
        let folder = place.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder).map_err(LibraryError::io("create", folder))?;
        // `../../blobs/HEX` from the snapshot, and one step more for each folder in the path.
        let depth = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_))).count() + 1;
        let target: PathBuf = (0..depth).map(|_| "..").collect::<PathBuf>().join("blobs").join(hex);
        match fs::read_link(&place) {
            Ok(there) if there == target => return Ok(()),
            Ok(_) => fs::remove_file(&place).map_err(LibraryError::io("replace", &place))?,
            // A disk without links holds the contents in the snapshot itself.
            Err(_) if place.is_file() && !blob.exists() => return Ok(()),
            Err(_) if place.exists() => fs::remove_file(&place).map_err(LibraryError::io("replace", &place))?,
            Err(_) => {}
        }
        match std::os::unix::fs::symlink(&target, &place) {
            Ok(()) => Ok(()),
            Err(e) if no_links(&e) => fs::rename(&blob, &place).map_err(LibraryError::io("move into place", &place)),
            Err(e) => Err(LibraryError::io("link", &place)(e)),
        }
    }

    /// Notes that `revision` stands for `commit`.
    pub fn set_ref(&self, revision: &str, commit: &str) -> Result<(), LibraryError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.path().join("refs").join(revision);
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder).map_err(LibraryError::io("create", folder))?;
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".writing-").tempfile_in(folder)?;
            file.write_all(commit.as_bytes())?;
            file.persist(&path).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(LibraryError::io("write", &path))
    }

    /// Names of the blobs that snapshots other than `except` refer to.
    pub fn referred(&self, except: Option<&str>) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for commit in children(&self.path().join("snapshots")) {
            if except.is_some() && commit.file_name().and_then(|n| n.to_str()) == except {
                continue;
            }
            for file in files_below(&commit) {
                if let Ok(target) = fs::read_link(&file)
                    && let Some(name) = target.file_name().and_then(|n| n.to_str())
                {
                    names.insert(name.to_owned());
                }
            }
        }
        names
    }

    /// The branches and tags that stand for `commit`, as paths of their files.
    pub fn refs_to(&self, commit: &str) -> Vec<PathBuf> {
        let to = |path: &PathBuf| read_text(path).is_ok_and(|text| text.trim() == commit);
        files_below(&self.path().join("refs")).into_iter().filter(to).collect()
    }

    /// Removes the folders of this repository that are empty.
    pub fn remove_empty(&self) {
        for name in ["blobs", "snapshots", "refs"] {
            // Fails where something is in it, which is what is wanted.
            let _ = fs::remove_dir(self.path().join(name));
        }
        let _ = fs::remove_dir(self.path());
    }
}

/// Whether the file system has no symbolic links.
fn no_links(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied)
        || e.raw_os_error() == Some(rustix::io::Errno::NOTSUP.raw_os_error())
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    all.sort();
    all
}

/// Files and links below a folder; links are not followed.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = children(folder);
    while let Some(path) = open.pop() {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => open.extend(children(&path)),
            Ok(_) => files.push(path),
            Err(_) => {}
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_made_of_relative_links() {
        let hub = tempfile::tempdir().unwrap();
        let folder = RepoFolder::new(hub.path(), &Repo::parse("org/name").unwrap());
        fs::create_dir_all(folder.blobs()).unwrap();
        fs::write(folder.blob("aa"), "one").unwrap();
        fs::write(folder.blob("bb"), "two").unwrap();
        folder.link("c1", "config.json", "aa").unwrap();
        folder.link("c1", "sub/deep/x.json", "bb").unwrap();
        folder.link("c1", "config.json", "aa").unwrap();
        let snapshot = folder.snapshot("c1");
        assert_eq!(fs::read_link(snapshot.join("config.json")).unwrap(), Path::new("../../blobs/aa"));
        assert_eq!(fs::read_to_string(snapshot.join("sub/deep/x.json")).unwrap(), "two");
        // A moved cache still works.
        folder.link("c2", "config.json", "aa").unwrap();
        assert_eq!(folder.referred(Some("c1")), BTreeSet::from(["aa".to_owned()]));
        assert_eq!(folder.referred(None).len(), 2);
        folder.set_ref("main", "c1").unwrap();
        folder.set_ref("refs/pr/1", "c1").unwrap();
        folder.set_ref("c1", "c1").unwrap();
        assert_eq!(folder.refs_to("c1").len(), 2);
        assert_eq!(RepoFolder::of_snapshot(&snapshot), Some(folder));
        assert_eq!(RepoFolder::of_snapshot(hub.path()), None);
    }
}
