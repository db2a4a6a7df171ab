//! A file that is being fetched: its bytes under a name of Hearth's own beside the blobs, and a journal of the chunks that are
//! complete. Both are written before anybody relies on them, so that a kill costs a chunk for each connection and no more.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::LibraryError;

/// Ends of the names of part files and journals. Other clients use names of their own and skip these.
pub(super) const PART: &str = ".hearth-part";
pub(super) const JOURNAL: &str = ".hearth-journal";

/// A part file and its journal, both open.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    journal_path: PathBuf,
    file: File,
    journal: Mutex<File>,
    size: u64,
    chunk: u64,
}

/// How many chunks of `chunk` bytes a file has.
pub(super) fn chunks(size: u64, chunk: u64) -> usize {
    size.div_ceil(chunk.max(1)) as usize
}

/// Bytes of the complete chunks in the journal of `blob`, where a part file of this size is beside it; changes nothing.
pub(super) fn bytes_there(blob: &Path, size: u64) -> u64 {
    let Some((chunk, done)) = read_journal(blob, size) else { return 0 };
    let length = |i: usize| chunk.min(size - (i as u64 * chunk).min(size));
    done.iter().enumerate().filter(|(_, done)| **done).map(|(i, _)| length(i)).sum()
}

/// Removes what a download of `blob` has left beside it; the bytes that this freed.
pub(super) fn discard(blob: &Path) -> Result<(), LibraryError> {
    for path in [beside(blob, PART), beside(blob, JOURNAL)] {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(LibraryError::io("remove", &path)(e)),
            _ => {}
        }
    }
    Ok(())
}

fn beside(blob: &Path, end: &str) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// The first line says what it is a journal of.
fn head(size: u64, chunk: u64) -> String {
    format!("hearth 1 {size} {chunk}\n")
}

/// The chunk size and which chunks are complete; `None` without a journal and part file that belong to a file of this size.
fn read_journal(blob: &Path, size: u64) -> Option<(u64, Vec<bool>)> {
    let text = fs::read_to_string(beside(blob, JOURNAL)).ok()?;
    if fs::metadata(beside(blob, PART)).ok()?.len() != size {
        return None;
    }
    let (first, rest) = text.split_once('\n')?;
    let chunk: u64 = first.rsplit(' ').next()?.parse().ok().filter(|c| *c > 0)?;
    if format!("{first}\n") != head(size, chunk) {
        return None;
    }
    let mut done = vec![false; chunks(size, chunk)];
    // What follows the last line's end was being written when the process ended.
    let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
    for line in whole.lines() {
        if let Some(slot) = line.parse::<usize>().ok().and_then(|i| done.get_mut(i)) {
            *slot = true;
        }
    }
    Some((chunk, done))
}

impl Part {
    /// Opens what is there for `blob`, or begins anew; also which chunks are complete. An older journal keeps its own chunk size.
    pub fn open(blob: &Path, size: u64, chunk: u64) -> Result<(Self, Vec<bool>), LibraryError> {
        let (path, journal_path) = (beside(blob, PART), beside(blob, JOURNAL));
        let known = read_journal(blob, size);
        let fresh = known.is_none();
        let (chunk, done) = known.unwrap_or_else(|| (chunk, vec![false; chunks(size, chunk)]));
        let folder = blob.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder).map_err(LibraryError::io("create", folder))?;
        let open = |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(fresh).open(path);
        let file = open(&path).map_err(LibraryError::io("create", &path))?;
        let journal = OpenOptions::new().append(true).create(true).open(&journal_path);
        let mut journal = journal.map_err(LibraryError::io("create", &journal_path))?;
        if fresh {
            file.set_len(size).map_err(LibraryError::io("make room for", &path))?;
            let begun = journal.set_len(0).and_then(|()| journal.write_all(head(size, chunk).as_bytes()));
            begun.map_err(LibraryError::io("write", &journal_path))?;
        } else {
            // A line that was cut short goes: its beginning may read as another number.
            let text = fs::read(&journal_path).map_err(LibraryError::io("read", &journal_path))?;
            let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
            journal.set_len(whole as u64).map_err(LibraryError::io("write", &journal_path))?;
        }
        Ok((Self { path, journal_path, file, journal: Mutex::new(journal), size, chunk }, done))
    }

    /// Bytes of one chunk; the last one may have fewer.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Writes bytes at their place.
    pub fn write(&self, bytes: &[u8], at: u64) -> Result<(), LibraryError> {
        self.file.write_all_at(bytes, at).map_err(LibraryError::io("write", &self.path))
    }

    /// Reads bytes from their place.
    pub fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), LibraryError> {
        self.file.read_exact_at(bytes, at).map_err(LibraryError::io("read", &self.path))
    }

    /// Has the disk begin with the bytes `from..to`, so that making the file durable at its end has little to wait for. A
    /// system that knows no such call does it all at the end.
    pub fn begin_writing(&self, from: u64, to: u64) {
        #[cfg(target_os = "linux")]
        if let Some(length) = std::num::NonZeroU64::new(to.saturating_sub(from)) {
            // Linux starts to write what is dirty, and keeps it in memory until it is written.
            let _ = rustix::fs::fadvise(&self.file, from, Some(length), rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (&self.file, from, to);
    }

    /// Notes that a chunk is complete.
    pub fn complete(&self, chunk: usize) -> Result<(), LibraryError> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        // One write: a line is there as a whole or, if the process ends in it, not counted.
        journal.write_all(format!("{chunk}\n").as_bytes()).map_err(LibraryError::io("write", &self.journal_path))
    }

    /// Forgets all chunks.
    pub fn reset(&self) -> Result<(), LibraryError> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = journal.set_len(0).and_then(|()| journal.write_all(head(self.size, self.chunk).as_bytes()));
        begun.map_err(LibraryError::io("write", &self.journal_path))
    }

    /// Makes the verified file the blob, durably.
    pub fn finish(&self, blob: &Path) -> Result<(), LibraryError> {
        self.file.sync_data().map_err(LibraryError::io("write", &self.path))?;
        fs::rename(&self.path, blob).map_err(LibraryError::io("move into place", blob))?;
        fs::remove_file(&self.journal_path).map_err(LibraryError::io("remove", &self.journal_path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_says_what_is_there_and_survives_being_cut() {
        let dir = tempfile::tempdir().unwrap();
        let blob = dir.path().join("blobs/abc");
        let (part, done) = Part::open(&blob, 25, 10).unwrap();
        assert_eq!((done, bytes_there(&blob, 25)), (vec![false; 3], 0));
        part.write(b"0123456789", 10).unwrap();
        part.complete(1).unwrap();
        part.write(b"01234", 20).unwrap();
        part.complete(2).unwrap();
        part.begin_writing(10, 25);
        let mut back = [0; 15];
        part.read(&mut back, 10).unwrap();
        assert_eq!(&back, b"012345678901234");
        drop(part);
        assert_eq!(bytes_there(&blob, 25), 15);
        assert_eq!(bytes_there(&blob, 26), 0, "another file");
        let journal = dir.path().join("blobs/abc.hearth-journal");
        let mut text = fs::read_to_string(&journal).unwrap();
        // Killed while it wrote a line.
        text.push('0');
        fs::write(&journal, &text).unwrap();
        assert_eq!(bytes_there(&blob, 25), 15);
        let (part, done) = Part::open(&blob, 25, 7).unwrap();
        assert_eq!((done, part.chunk()), (vec![false, true, true], 10));
        part.reset().unwrap();
        assert_eq!(bytes_there(&blob, 25), 0);
        for chunk in 0..3 {
            part.complete(chunk).unwrap();
        }
        part.finish(&blob).unwrap();
        assert_eq!(fs::metadata(&blob).unwrap().len(), 25);
        assert_eq!(fs::read_dir(dir.path().join("blobs")).unwrap().count(), 1);
    }

    #[test]
    fn damaged_journals_count_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let blob = dir.path().join("abc");
        for text in ["", "hearth 1 25 0\n1\n", "hearth 9 25 10\n1\n", "junk", "hearth 1 25 10"] {
            fs::write(dir.path().join("abc.hearth-journal"), text).unwrap();
            fs::write(dir.path().join("abc.hearth-part"), [7; 25]).unwrap();
            assert_eq!(bytes_there(&blob, 25), 0, "{text:?}");
            let (_, done) = Part::open(&blob, 25, 10).unwrap();
            assert_eq!(done, [false; 3], "{text:?}");
        }
        fs::write(dir.path().join("abc.hearth-journal"), "hearth 1 25 10\n1\n99\nx\n-1\n").unwrap();
        assert_eq!(bytes_there(&blob, 25), 10);
        discard(&blob).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
