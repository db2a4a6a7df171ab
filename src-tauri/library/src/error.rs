//! The one error type of this crate. Every message names the file, what was expected and what was found.

use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong with model files on disk. The text is written for the user of the app.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The operating system refused to read, write or list something.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb: "read", "create".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's own reason.
        source: io::Error,
    },
    /// The disk, or this user's share of it, is full.
    #[error("cannot {action} {}: the disk is full; make room there and try again", path.display())]
    Full {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
    },
    /// A file's bytes are not what its format prescribes.
    #[error("{} is damaged or not of its format: at byte {offset}, {what}: expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in the file, in bytes from its start.
        offset: u64,
        /// What was being read.
        what: String,
        /// What the format prescribes there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A file is well-formed, but its content cannot be right or contradicts itself.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// The tensor, key or field.
        what: String,
        /// What it would have to be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Something that the file has to contain is not there.
    #[error("{}: {what} is missing", path.display())]
    Missing {
        /// The file or folder it should be in.
        path: PathBuf,
        /// The tensor, key or file.
        what: String,
    },
    /// The file is fine, but uses something that Hearth cannot import or run.
    #[error("{}: {what} is {found}, which is not supported; supported: {supported}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The property, such as "tensor blk.0.attn_q.weight" or "the architecture".
        what: String,
        /// Its value here.
        found: String,
        /// The values that would work.
        supported: String,
    },
    /// A model's config is not what sizes can be worked out from.
    #[error(transparent)]
    Config(#[from] hearth_core::CoreError),
    /// The output folder exists and is not empty.
    #[error("{} already exists and is not empty: remove it or choose another folder", path.display())]
    OutputExists {
        /// The output folder.
        path: PathBuf,
    },
    /// A text file is not the JSON that it should be.
    #[error("{}, line {line}, column {column}: expected {expected}, found {found}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 if the place is not known.
        line: usize,
        /// Column, from 1; 0 if the place is not known.
        column: usize,
        /// What should be there.
        expected: String,
        /// The text there, or the parser's words.
        found: String,
    },
    /// A model that was asked for is on disk, but parts of it are missing or damaged.
    #[error("the model {id} is not complete: {why}")]
    Incomplete {
        /// The model's id.
        id: String,
        /// What is missing or wrong, naming the file.
        why: String,
    },
    /// No model of that name is on disk.
    #[error("no model {name:?} on this computer; {}", there_is(available))]
    NotFound {
        /// The name that was asked for.
        name: String,
        /// The ids of all models that are there.
        available: Vec<String>,
    },
    /// The name fits more than one model.
    #[error("{}", hearth_core::error::ambiguous(name, candidates))]
    Ambiguous {
        /// The name that was asked for.
        name: String,
        /// The ids that it fits.
        candidates: Vec<String>,
    },
    /// A GGUF file was named where a model folder is needed.
    #[error("{} is a GGUF file: import it first with `hearth import`, then use the folder that this makes", path.display())]
    NeedsImport {
        /// The GGUF file.
        path: PathBuf,
    },
    /// Neither `HEARTH_HOME` nor a home folder is known.
    #[error("no home folder is known: set HEARTH_HOME to a folder for Hearth's files")]
    NoHome,
    /// The disk would be full before the work is done.
    #[error("not enough disk space for {}: {needed} bytes are needed, {free} bytes are free", path.display())]
    NoSpace {
        /// The output folder.
        path: PathBuf,
        /// Bytes that would be written.
        needed: u64,
        /// Bytes available to this user on that disk.
        free: u64,
    },
    /// The hub did not give what it was asked for.
    #[error(transparent)]
    Hub(#[from] crate::hub::HubError),
    /// There is no room for a download.
    #[error("not enough disk space in {}: {needed} are needed and {spare} to spare, {free} are free; remove something, or set HF_HUB_CACHE to a larger disk", path.display())]
    DiskFull {
        /// The cache.
        path: PathBuf,
        /// What is missing of the model.
        needed: String,
        /// What has to stay free.
        spare: String,
        /// What is free.
        free: String,
    },
    /// A file is not what the hub says it is.
    #[error(
        "{file} of {repo} came damaged twice (its checksum should be {expected}, and is {found}) and is removed; try again later"
    )]
    Checksum {
        /// The file.
        file: String,
        /// Its repository.
        repo: String,
        /// The checksum that the hub gives.
        expected: String,
        /// That of what came.
        found: String,
    },
    /// A file changes while it is fetched.
    #[error("{file} of {repo} was another one {times} times while it was fetched; try again later")]
    Unstable {
        /// The file.
        file: String,
        /// Its repository.
        repo: String,
        /// How often it was begun anew.
        times: u32,
    },
    /// Another process downloads the same model.
    #[error("{}", crate::download::elsewhere(*pid))]
    Downloading {
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// Hearth has not made this model.
    #[error("{id} was not made by Hearth, and other programs may use it ({})", path.display())]
    NotOurs {
        /// The model.
        id: String,
        /// Its folder.
        path: PathBuf,
    },
    /// Folders cannot be watched.
    #[error("changes of the models' folders cannot be watched: {why}; the list is read anew when it is asked for")]
    Watch {
        /// The system's reason.
        why: String,
    },
    /// No such job.
    #[error("there is no download {id:?}")]
    NoDownload {
        /// What was asked for.
        id: String,
    },
    /// A part of Hearth failed that never should.
    #[error("a part of Hearth failed: {what}; please report it")]
    Defect {
        /// What is known of it.
        what: String,
    },
}

fn there_is(available: &[String]) -> String {
    match available {
        [] => "there are no models yet".to_owned(),
        list => format!("there are: {}", list.join(", ")),
    }
}

impl LibraryError {
    /// Wraps a system error; used as `.map_err(LibraryError::io("read", path))`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { action, path },
            _ => Self::Io { action, path, source },
        }
    }

    /// A [`LibraryError::Mismatch`].
    pub(crate) fn mismatch(
        path: &Path,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Mismatch {
            path: path.to_path_buf(),
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// A [`LibraryError::Missing`].
    pub(crate) fn missing(path: &Path, what: impl Into<String>) -> Self {
        Self::Missing { path: path.to_path_buf(), what: what.into() }
    }

    /// A [`LibraryError::Unsupported`].
    pub(crate) fn unsupported(
        path: &Path,
        what: impl Into<String>,
        found: impl ToString,
        supported: impl ToString,
    ) -> Self {
        Self::Unsupported {
            path: path.to_path_buf(),
            what: what.into(),
            found: found.to_string(),
            supported: supported.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_to_be_full() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let said = LibraryError::io("write", Path::new("/models/part"))(kind.into()).to_string();
            assert_eq!(said, "cannot write /models/part: the disk is full; make room there and try again");
        }
        let other = LibraryError::io("write", Path::new("/m"))(io::ErrorKind::PermissionDenied.into()).to_string();
        assert!(other.starts_with("cannot write /m: permission denied"), "{other}");
    }
}
