//! Opening the files of models: ordinary ones only. A pipe or a device of such a name would be waited for, for ever.

use crate::LibraryError;
use std::fs::{self, File};
use std::path::Path;

/// Opens an ordinary file, or what a link leads to, for reading.
pub(crate) fn open(path: &Path) -> Result<File, LibraryError> {
    // Before it is opened: opening a pipe waits for somebody who writes.
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(LibraryError::mismatch(path, "what is there", "a file", "something else"));
    }
    File::open(path).map_err(LibraryError::io("open", path))
}
