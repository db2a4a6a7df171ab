//! What is kept of a job in the state folder, one JSON file each, so that another process can go on with it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::part::bytes_there;
use super::{Download, DownloadFile, DownloadState, FileState};
use crate::hf_cache::RepoFolder;
use crate::hub::{Checksum, Repo, Revision};
use crate::{LibraryError, json};

/// A job on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Of this form.
    pub version: u32,
    /// The job's name.
    pub id: String,
    /// The repository, under the name that was asked for.
    pub asked: String,
    /// The repository, under the name that the hub calls it by.
    pub repo: String,
    /// The revision that was asked for.
    pub revision: String,
    /// What it stood for when the hub was asked.
    pub commit: Option<String>,
    /// The cache that it is downloaded into.
    pub hub: PathBuf,
    /// Where it was.
    pub state: DownloadState,
    /// What there is to say.
    pub message: Option<String>,
    /// When it was asked for, in seconds since 1970.
    pub created: u64,
    /// Its files, once the hub has said them.
    #[serde(default)]
    pub files: Vec<FileRecord>,
}

/// One file of a job on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileRecord {
    /// Its path in the repository.
    pub path: String,
    /// Its length.
    pub size: u64,
    /// How it is checked.
    pub checksum: Checksum,
    /// Its checksum was right.
    #[serde(default)]
    pub verified: bool,
    /// This job has made it: no snapshot had it before.
    #[serde(default)]
    pub made: bool,
}

/// The name of the job for a revision of a repository; also its file's name, so that two cannot be there.
pub(super) fn id(repo: &Repo, revision: &Revision) -> String {
    let flat = |text: &str| text.replace('/', "--");
    format!("{}@{}", flat(repo.as_str()), flat(revision.as_str()))
}

fn file(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}

impl Record {
    /// A new job.
    pub fn new(repo: &Repo, revision: &Revision, hub: &Path) -> Self {
        Self {
            version: 1,
            id: id(repo, revision),
            asked: repo.to_string(),
            repo: repo.to_string(),
            revision: revision.to_string(),
            commit: None,
            hub: hub.to_path_buf(),
            state: DownloadState::Queued,
            message: None,
            created: crate::home::now(),
            files: Vec::new(),
        }
    }

    /// All jobs in a state folder. What cannot be read is left where it is, and not a job.
    pub fn load_all(folder: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let paths = entries.flatten().map(|e| e.path());
        let json = paths.filter(|p| p.extension().is_some_and(|e| e == "json"));
        let mut all: Vec<Self> = json.filter_map(|p| Self::load(&p)).collect();
        all.sort_by(|a, b| a.created.cmp(&b.created).then_with(|| a.id.cmp(&b.id)));
        all
    }

    /// The job in a file, if it is a whole one under its own name.
    fn load(path: &Path) -> Option<Self> {
        let record: Self =
            json::read(path, "a download").map_err(|e| tracing::warn!("{e}; this download is not shown")).ok()?;
        let (asked, revision) = (Repo::parse(&record.asked).ok()?, Revision::parse(&record.revision).ok()?);
        Repo::parse(&record.repo).ok()?;
        let own = path.file_stem().and_then(|s| s.to_str()) == Some(&record.id);
        (own && record.version == 1 && id(&asked, &revision) == record.id).then_some(record)
    }

    /// Writes it into a state folder.
    pub fn save(&self, folder: &Path) -> Result<(), LibraryError> {
        fs::create_dir_all(folder).map_err(LibraryError::io("create", folder))?;
        // Not synced: what a power cut takes of it, the journals beside the blobs still know.
        let path = file(folder, &self.id);
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        let write = || -> std::io::Result<()> {
            let mut part = tempfile::Builder::new().prefix(".writing-").tempfile_in(folder)?;
            part.write_all(&text)?;
            part.persist(&path).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(LibraryError::io("write", &path))
    }

    /// Removes it from a state folder.
    pub fn forget(&self, folder: &Path) -> Result<(), LibraryError> {
        let path = file(folder, &self.id);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LibraryError::io("remove", &path)(e)),
            _ => Ok(()),
        }
    }

    /// The repository's folder in its cache.
    pub fn folder(&self) -> Option<RepoFolder> {
        Some(RepoFolder::new(&self.hub, &Repo::parse(&self.repo).ok()?))
    }

    /// The model's folder, if it is there.
    pub fn snapshot(&self) -> Option<PathBuf> {
        let path = self.folder()?.snapshot(self.commit.as_deref()?);
        path.is_dir().then_some(path)
    }

    /// As shown while nothing runs: what is really on disk.
    pub fn view(&self) -> Download {
        let folder = self.folder();
        let files: Vec<DownloadFile> = self
            .files
            .iter()
            .map(|f| {
                let blob = folder.as_ref().map(|folder| folder.blob(f.checksum.hex()));
                let there = |b: &PathBuf| fs::metadata(b).is_ok_and(|m| m.len() == f.size);
                // A file that came last before a kill is there, and not noted as verified: it is read once more.
                let whole = blob.as_ref().is_some_and(there) || (f.verified && self.state == DownloadState::Done);
                let bytes = match (whole, &blob) {
                    (true, _) => f.size,
                    (false, Some(blob)) => bytes_there(blob, f.size),
                    (false, None) => 0,
                };
                let state = if whole && f.verified { FileState::Done } else { FileState::Waiting };
                DownloadFile { name: f.path.clone(), bytes, total: f.size, state }
            })
            .collect();
        Download {
            id: self.id.clone(),
            repo: self.repo.clone(),
            revision: self.revision.clone(),
            state: self.state,
            bytes: files.iter().map(|f| f.bytes).sum(),
            total: files.iter().map(|f| f.total).sum(),
            speed: 0,
            remaining_s: None,
            files,
            message: self.message.clone(),
            path: self.snapshot().filter(|_| self.state == DownloadState::Done).map(|p| p.display().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_strangers_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (repo, revision) = (Repo::parse("org/name").unwrap(), Revision::parse("refs/pr/1").unwrap());
        let mut record = Record::new(&repo, &revision, dir.path());
        assert_eq!(record.id, "org--name@refs--pr--1");
        record.commit = Some("c".repeat(40));
        record.files.push(FileRecord {
            path: "config.json".into(),
            size: 7,
            checksum: Checksum::Git("a".repeat(40)),
            verified: false,
            made: false,
        });
        record.save(dir.path()).unwrap();
        fs::write(dir.path().join("other.json"), "{}").unwrap();
        fs::copy(file(dir.path(), &record.id), dir.path().join("copy.json")).unwrap();
        fs::write(dir.path().join("note.txt"), "x").unwrap();
        assert_eq!(Record::load_all(dir.path()), [record.clone()]);
        let view = record.view();
        assert_eq!((view.bytes, view.total, view.percent(), view.path), (0, 7, 0, None));
        record.forget(dir.path()).unwrap();
        record.forget(dir.path()).unwrap();
        assert_eq!(Record::load_all(dir.path()), []);
    }
}
