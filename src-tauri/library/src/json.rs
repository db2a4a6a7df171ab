//! Reading and writing the small JSON files of models and of Hearth itself.

use std::io::{Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{LibraryError, opening};

/// Largest JSON file read here. Indexes of the largest models are a few megabytes.
const MAX_JSON: u64 = 64 << 20;

/// Reads `path` as JSON of the form `T`; `expected` says in words what it should hold.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, expected: &str) -> Result<T, LibraryError> {
    let file = opening::open(path)?;
    let mut bytes = Vec::new();
    file.take(MAX_JSON + 1).read_to_end(&mut bytes).map_err(LibraryError::io("read", path))?;
    if bytes.len() as u64 > MAX_JSON {
        return Err(LibraryError::mismatch(path, "the size", format!("at most {MAX_JSON} bytes"), "more"));
    }
    parse(path, &bytes, expected)
}

/// Parses `bytes`, the content of `path`, as JSON of the form `T`.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8], expected: &str) -> Result<T, LibraryError> {
    serde_json::from_slice(bytes).map_err(|e| error(path, bytes, expected, &e))
}

fn error(path: &Path, bytes: &[u8], expected: &str, e: &serde_json::Error) -> LibraryError {
    let mut found = e.to_string();
    // serde_json's position is the character at which it gave up; the text there says more than its own words do.
    if e.is_syntax()
        && let Some(line) = bytes.split(|b| *b == b'\n').nth(e.line().saturating_sub(1))
    {
        let from = e.column().saturating_sub(8).min(line.len());
        let to = (e.column() + 16).min(line.len());
        let text = String::from_utf8_lossy(line.get(from..to).unwrap_or_default());
        found = format!("{:?} ({})", text.trim(), e.to_string().split(" at line").next().unwrap_or_default());
    }
    LibraryError::Json {
        path: path.to_path_buf(),
        line: e.line(),
        column: e.column(),
        expected: expected.to_owned(),
        found,
    }
}

/// Writes `value` to `path` so that readers see the old content or the new, never a part.
pub(crate) fn write_atomically(path: &Path, value: &impl Serialize) -> Result<(), LibraryError> {
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|e| LibraryError::mismatch(path, "the content", "something that can be written as JSON", e))?;
    bytes.push(b'\n');
    let mut file = tempfile::Builder::new()
        .prefix(".writing-")
        .tempfile_in(folder)
        .map_err(LibraryError::io("create a file in", folder))?;
    file.write_all(&bytes).map_err(LibraryError::io("write", path))?;
    file.as_file().sync_all().map_err(LibraryError::io("write", path))?;
    file.persist(path).map_err(|e| LibraryError::io("replace", path)(e.error))?;
    Ok(())
}
