//! What a server leaves in its home about its end, so that `hearth stop` learns whether the prompt cache was saved.
//!
//! The note is there from the start, and is removed when nothing is lost: so it tells of a process that was killed as
//! well, and of a disk that is so full that no new file fits. The reason is written over it in place, for the same cause.

use hearth_library::home::Home;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// Room for a reason, in bytes; a longer one is not put down.
const ROOM: usize = 4096;
/// What the note says until it is written over.
const UNSAID: &str = "it ended before its prompt cache was saved";

/// The note of one process.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    pid: u32,
    not_saved: String,
}

/// The note of this process. Dropping it removes it: nothing is lost.
#[derive(Debug)]
pub struct Ending {
    path: PathBuf,
    lost: bool,
}

impl Ending {
    /// Puts the note down.
    ///
    /// # Errors
    /// When the home cannot be written.
    pub fn begin(home: &Home) -> io::Result<Self> {
        let path = path(home);
        let text = text(UNSAID).unwrap_or_default();
        File::create(&path).and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))?;
        Ok(Ending { path, lost: false })
    }

    /// The prompt cache is not all saved, and why.
    pub fn lost(mut self, why: &str) {
        self.lost = true;
        let Some(text) = text(why) else { return };
        // Where even this fails, the note says what it said before: that something is lost.
        let _ = OpenOptions::new().write(true).open(&self.path).and_then(|mut file| file.write_all(text.as_bytes()));
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.lost {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What the process with this id did not save when it ended; `None` when nothing is lost.
pub fn not_saved(home: &Home, pid: u32) -> Option<String> {
    let note: Note = serde_json::from_slice(&fs::read(path(home)).ok()?).ok()?;
    (note.pid == pid).then_some(note.not_saved)
}

fn path(home: &Home) -> PathBuf {
    home.root().join("ending.json")
}

/// A note of always the same length, so that it can be written over; `None` if there is no room for it.
fn text(why: &str) -> Option<String> {
    let note = Note { pid: std::process::id(), not_saved: why.to_owned() };
    let text = serde_json::to_string(&note).ok().filter(|text| text.len() < ROOM)?;
    Some(format!("{text:<ROOM$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_of_what_is_lost_only() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let pid = std::process::id();
        assert_eq!(not_saved(&home, pid), None);
        let ending = Ending::begin(&home).unwrap();
        assert_eq!(not_saved(&home, pid).as_deref(), Some(UNSAID), "as after a kill");
        assert_eq!(not_saved(&home, pid + 1), None, "another process's");
        drop(ending);
        assert!(!path(&home).exists());
        Ending::begin(&home).unwrap().lost("the disk is \"full\"");
        assert_eq!(not_saved(&home, pid).as_deref(), Some("the disk is \"full\""));
        Ending::begin(&home).unwrap().lost(&"x".repeat(ROOM));
        assert_eq!(not_saved(&home, pid).as_deref(), Some(UNSAID), "no room");
    }
}
