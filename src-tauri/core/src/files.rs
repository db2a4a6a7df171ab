//! Reading small files that a person or another program made: ordinary ones only. A pipe of such a name would be waited
//! for, for ever.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// What is there, or what a link leads to, if it is an ordinary file or nothing at all.
///
/// # Errors
/// A folder, a pipe, a socket or a device.
pub fn ordinary(path: &Path) -> Result<()> {
    // Asked before it is opened: that is where a pipe waits for somebody who writes.
    if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(Error::new(ErrorKind::InvalidInput, "it must be a file; it is something else"));
    }
    Ok(())
}

/// As [`std::fs::read_to_string`], of ordinary files.
///
/// # Errors
/// As there, and what [`ordinary`] says.
pub fn read_text(path: &Path) -> Result<String> {
    ordinary(path)?;
    std::fs::read_to_string(path)
}
