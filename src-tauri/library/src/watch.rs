//! Keeps a list of models current: says when something changed in the places where models are, and when a place comes or goes, such as an
//! external drive.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::LibraryError;
use crate::scan::Places;

/// Changes come in bursts: this long without one ends a burst.
const QUIET: Duration = Duration::from_millis(400);
/// A burst that does not end is told of all the same.
const LONGEST: Duration = Duration::from_secs(3);
/// How often places are looked at that were not there.
const LOOK: Duration = Duration::from_secs(3);

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watcher(Sender<Word>);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.send(Word::End);
    }
}

#[derive(Debug)]
enum Word {
    Changed,
    End,
}

/// Calls `changed` after each burst of changes in `places`, from a thread of its own.
///
/// # Errors
/// When the system has no way to watch folders, or no thread to spare.
pub fn watch(places: &Places, changed: impl Fn() + Send + 'static) -> Result<Watcher, LibraryError> {
    let paths: Vec<PathBuf> = places.iter().map(|p| p.path().to_path_buf()).collect();
    let (send, words) = mpsc::channel();
    let events = send.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // An error may be a lost event: better once too often.
        if event.as_ref().map_or(true, matters) {
            let _ = events.send(Word::Changed);
        }
    });
    let mut watcher = watcher.map_err(|e| LibraryError::Watch { why: e.to_string() })?;
    // Before it returns: what changes from then on is told of.
    let watched: Vec<bool> = paths.iter().map(|p| begin(&mut watcher, p)).collect();
    let run = move || run(watcher, (&paths, watched), &words, &changed);
    let spawned = std::thread::Builder::new().name("hearth-watch".into()).spawn(run);
    spawned.map_err(|e| LibraryError::Watch { why: e.to_string() })?;
    Ok(Watcher(send))
}

fn run(
    mut watcher: RecommendedWatcher,
    (paths, mut watched): (&[PathBuf], Vec<bool>),
    words: &Receiver<Word>,
    changed: &dyn Fn(),
) {
    loop {
        match words.recv_timeout(LOOK) {
            Ok(Word::Changed) => {
                let began = Instant::now();
                while began.elapsed() < LONGEST {
                    match words.recv_timeout(QUIET) {
                        Ok(Word::Changed) => {}
                        Ok(Word::End) => return,
                        Err(_) => break,
                    }
                }
                changed();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Word::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        let mut moved = false;
        for (path, watched) in paths.iter().zip(&mut watched) {
            let there = path.is_dir();
            if there != *watched {
                // A folder that was removed and made again is another one to the system.
                let _ = watcher.unwatch(path);
                *watched = there && begin(&mut watcher, path);
                moved = true;
            }
        }
        if moved {
            changed();
        }
    }
}

fn begin(watcher: &mut RecommendedWatcher, path: &Path) -> bool {
    path.is_dir() && watcher.watch(path, RecursiveMode::Recursive).is_ok()
}

/// Whether a list of models can be another one after it. A download writes all the time.
fn matters(event: &Event) -> bool {
    let writing = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        [".hearth-part", ".hearth-journal", ".incomplete", ".lock"].iter().any(|end| name.ends_with(end))
    };
    let reading = matches!(event.kind, EventKind::Access(_));
    // An event without a path may be any.
    let all_writing = !event.paths.is_empty() && event.paths.iter().all(writing);
    !reading && !all_writing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Place;

    #[test]
    fn changes_and_places_that_come_are_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let (here, later) = (dir.path().join("here"), dir.path().join("later"));
        std::fs::create_dir(&here).unwrap();
        let (send, told) = mpsc::channel();
        let places = Places::of(vec![Place::Hearth(here.clone()), Place::Folder(later.clone())]);
        let watcher = watch(&places, move || send.send(()).unwrap_or(())).unwrap();
        let patience = Duration::from_secs(60);
        std::fs::write(here.join("config.json"), "{}").unwrap();
        told.recv_timeout(patience).unwrap();
        std::fs::create_dir(&later).unwrap();
        told.recv_timeout(patience).unwrap();
        std::fs::write(later.join("config.json"), "{}").unwrap();
        told.recv_timeout(patience).unwrap();
        drop(watcher);
        // The thread ends, and with it the sender.
        while told.recv_timeout(patience).is_ok() {}
        assert_eq!(told.recv_timeout(patience), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn what_a_download_writes_is_no_change() {
        let event = |name: &str| Event::new(EventKind::Any).add_path(PathBuf::from(name));
        assert!(matters(&event("/x/config.json")));
        assert!(!matters(&event("/x/blobs/abc.hearth-part")) && !matters(&event("/x/blobs/abc.hearth-journal")));
    }
}
