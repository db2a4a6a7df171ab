//! Opening the files of models: ordinary ones only.

use crate::LibraryError;
use hearth_core::files::ordinary;
use std::fs::File;
use std::path::Path;

/// Opens an ordinary file, or what a link leads to, for reading.
pub(crate) fn open(path: &Path) -> Result<File, LibraryError> {
    if ordinary(path).is_err() {
        return Err(LibraryError::mismatch(path, "what is there", "a file", "something else"));
    }
    File::open(path).map_err(LibraryError::io("open", path))
}
