//! Checksums: of a file while it comes, reading behind the transfer what is on disk, and of one that is there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::files::FileJob;
use super::part::Part;
use crate::LibraryError;
use crate::hub::Checksum;

/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Bytes that are hashed before the disk is told to begin with them.
const BEHIND: u64 = 8 << 20;

/// A checksum being computed.
struct Sum(Context);

impl Sum {
    /// Of the kind that `wanted` is, for a file of `size` bytes.
    fn like(wanted: &Checksum, size: u64) -> Self {
        match wanted {
            Checksum::Sha256(_) => Self(Context::new(&SHA256)),
            Checksum::Git(_) => {
                // Git hashes its own header first. What is found by it comes over TLS and is small: SHA-1 finds damage here,
                // not attackers.
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Self(context)
            }
        }
    }

    fn hex(self) -> String {
        self.0.finish().as_ref().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// The checksum of a file that is coming, computed from disk behind the transfer; what is there from an earlier process is read too.
/// `None` when the file is given up. Blocks: not for threads that serve sockets.
///
/// # Errors
/// When the part file cannot be read.
pub(super) fn follow(file: &FileJob, part: &Part) -> Result<Option<(u32, String)>, LibraryError> {
    let size = file.record.size;
    let mut piece = vec![0; PIECE.min(size as usize)];
    'anew: loop {
        let generation = file.generation();
        let mut sum = Sum::like(&file.record.checksum, size);
        let (mut at, mut begun) = (0, 0);
        while at < size {
            match file.wait_beyond(at, generation) {
                Some(reach) => {
                    while at < reach {
                        let bytes = &mut piece[..(reach - at).min(PIECE as u64) as usize];
                        part.read(bytes, at)?;
                        sum.0.update(bytes);
                        at += bytes.len() as u64;
                        if at - begun >= BEHIND {
                            part.begin_writing(begun, at);
                            begun = at;
                        }
                    }
                }
                None if file.is_given_up() => return Ok(None),
                None => continue 'anew,
            }
        }
        return Ok(Some((generation, sum.hex())));
    }
}

/// Whether the file in `path` has this size and checksum. Blocks.
///
/// # Errors
/// When it cannot be read.
pub(super) fn is_right(path: &Path, size: u64, wanted: &Checksum) -> Result<bool, LibraryError> {
    let mut file = File::open(path).map_err(LibraryError::io("open", path))?;
    if file.metadata().map_err(LibraryError::io("read", path))?.len() != size {
        return Ok(false);
    }
    let mut sum = Sum::like(wanted, size);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece).map_err(LibraryError::io("read", path))? {
            0 => return Ok(sum.hex() == wanted.hex()),
            n => sum.0.update(&piece[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_agree_with_known_values() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "hello\n").unwrap();
        // `git hash-object` and `sha256sum` of "hello\n".
        let git = Checksum::Git("ce013625030ba8dba906f756967f9e9ca394464a".into());
        let sha = Checksum::Sha256("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".into());
        for sum in [&git, &sha] {
            assert!(is_right(&path, 6, sum).unwrap());
            assert!(!is_right(&path, 7, sum).unwrap());
        }
        std::fs::write(&path, "jello\n").unwrap();
        assert!(!is_right(&path, 6, &git).unwrap() && !is_right(&path, 6, &sha).unwrap());
    }
}
