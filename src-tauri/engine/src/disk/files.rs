//! The border to the file system: what the tier asks of it, as a trait, so that tests can let it fail anywhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

/// One regular file of a folder.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// When it was last used: the modification time.
    pub modified: SystemTime,
}

/// A new file that is being written.
pub trait Output {
    /// Appends.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Writes over the beginning.
    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once the contents would survive a loss of power.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file system.
pub trait Files: Send + Sync {
    /// Makes a folder and those above it, for this user only; one that is there already is fine.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;
    /// The regular files of a folder. Links, folders and names that are not text are left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>>;
    /// The length of a regular file.
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Fills `buffer` from `offset` on; `UnexpectedEof` if the file is shorter.
    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
    /// Makes a new file, for this user only; one that is there already is an error.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;
    /// Renames, over what is there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Returns once the folder's names would survive a loss of power.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Sets the modification time.
    fn touch(&self, path: &Path, time: SystemTime) -> io::Result<()>;
}

/// The real one.
#[derive(Debug)]
pub struct System;

impl Output for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.seek(SeekFrom::Start(0))?;
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Files for System {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        // What a prompt said can be read out of its state: nobody else's business.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>> {
        let mut files = Vec::new();
        for item in fs::read_dir(dir)? {
            let item = item?;
            // One that is gone by now is not there.
            let (Ok(meta), Ok(name)) = (item.metadata(), item.file_name().into_string()) else { continue };
            if meta.is_file() {
                let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push(Listed { name, bytes: meta.len(), modified });
            }
        }
        Ok(files)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        let meta = fs::symlink_metadata(path)?;
        if meta.is_file() { Ok(meta.len()) } else { Err(io::Error::other("not a regular file")) }
    }

    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        File::open(path)?.read_exact_at(buffer, offset)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn touch(&self, path: &Path, time: SystemTime) -> io::Result<()> {
        OpenOptions::new().append(true).open(path)?.set_modified(time)
    }
}
