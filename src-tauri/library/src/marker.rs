//! What is on record of a model while a server has it in memory: `running.json` in the home, written before the load begins
//! and removed at an end in order. Whoever finds it with nobody serving knows that the last server was killed, crashed,
//! or went down with the computer, and what it was doing.

use std::fs;
use std::io::ErrorKind;

use serde::{Deserialize, Serialize};

use crate::home::{Home, Ownership, now};
use crate::{LibraryError, json};

/// What a server does, by its own last word.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Running {
    /// Its process id; 0 where the record cannot be read.
    pub pid: u32,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// Which start of the computer it was, as the system names it.
    pub boot: Option<String>,
    /// Hearth's version.
    pub version: String,
    /// The model, as `hearth serve` takes it; empty where the record cannot be read.
    pub model: String,
    /// Whether it was still being loaded.
    pub loading: bool,
    /// The context limit in tokens, once it is known.
    pub context: Option<u64>,
    /// Bytes that it might use, where there is a budget.
    pub budget: Option<u64>,
    /// Bytes that it had by its own ledger, where there is one.
    pub used: Option<u64>,
    /// Bytes of the process.
    pub process: u64,
    /// Requests being computed.
    pub rows: usize,
    /// When all this was said, in seconds since 1970.
    pub at: u64,
}

/// How a server ended that did not end in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It was killed, or it crashed.
    Killed,
    /// The computer was started anew since.
    Reboot,
}

/// An end that was none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclean {
    /// What was running.
    pub last: Running,
    /// What became of it.
    pub cause: Cause,
}

/// The record of this process. Dropping it leaves the file: only [`Marker::clear`] says that the end is in order.
#[derive(Debug, Clone)]
pub struct Marker {
    home: Home,
}

impl Marker {
    /// A record in this home, which this process owns. Nothing is written yet.
    pub fn new(home: &Home) -> Self {
        Marker { home: home.clone() }
    }

    /// Writes what is running, at once or not at all. `at` is filled in.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the home cannot be written.
    pub fn write(&self, running: &Running) -> Result<(), LibraryError> {
        json::write_atomically(&self.home.running_json(), &Running { at: now(), ..running.clone() })
    }

    /// Nothing is running any more, and nothing went wrong.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the file cannot be removed.
    pub fn clear(&self) -> Result<(), LibraryError> {
        let path = self.home.running_json();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(LibraryError::io("remove", &path)(e)),
            _ => Ok(()),
        }
    }
}

/// The unclean end that is on record in a home, if there is one. `boot` names this start of the computer. A record that
/// belongs to a process which serves now is none.
///
/// # Errors
/// [`LibraryError::Io`] if the home's lock cannot be looked at.
pub fn unclean(home: &Home, boot: Option<&str>) -> Result<Option<Unclean>, LibraryError> {
    let holder = home.inspect()?;
    Ok(read(home, boot).filter(|found| holder.is_none_or(|holder| holder.pid != Some(found.last.pid))))
}

/// As [`unclean`], for the process that owns the home and has written nothing yet: whatever is there is another's.
pub fn left_behind(home: &Home, owner: &Ownership, boot: Option<&str>) -> Option<Unclean> {
    matches!(owner, Ownership::Owned(_)).then(|| read(home, boot)).flatten()
}

/// A file that cannot be read says as much as one that can, only less of it: power failures leave such.
fn read(home: &Home, boot: Option<&str>) -> Option<Unclean> {
    let path = home.running_json();
    if !path.exists() {
        return None;
    }
    let last: Running = json::read(&path, "what was running").unwrap_or_default();
    let cause = match (&last.boot, boot) {
        (Some(then), Some(now)) if then != now => Cause::Reboot,
        _ => Cause::Killed,
    };
    Some(Unclean { last, cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path().join("home"));
        home.prepare().unwrap();
        (dir, home)
    }

    fn running(pid: u32) -> Running {
        Running { pid, model: "org/m".into(), boot: Some("b1".into()), used: Some(7), ..Running::default() }
    }

    #[test]
    fn an_end_in_order_leaves_nothing_and_any_other_all_of_it() {
        let (_dir, home) = home();
        let marker = Marker::new(&home);
        assert_eq!(unclean(&home, Some("b1")).unwrap(), None);
        marker.write(&running(4)).unwrap();
        let found = unclean(&home, Some("b1")).unwrap().unwrap();
        assert_eq!((found.cause, found.last.model.as_str(), found.last.used), (Cause::Killed, "org/m", Some(7)));
        assert!(found.last.at > 0);
        assert_eq!(unclean(&home, Some("b2")).unwrap().unwrap().cause, Cause::Reboot);
        assert_eq!(unclean(&home, None).unwrap().unwrap().cause, Cause::Killed, "nobody knows better");
        marker.clear().unwrap();
        marker.clear().unwrap();
        assert_eq!(unclean(&home, Some("b1")).unwrap(), None);
    }

    #[test]
    fn what_a_living_server_wrote_is_no_unclean_end_and_what_it_found_is() {
        let (_dir, home) = home();
        let owner = home.acquire().unwrap();
        assert_eq!(left_behind(&home, &owner, None), None);
        Marker::new(&home).write(&running(std::process::id())).unwrap();
        assert_eq!(unclean(&home, None).unwrap(), None);
        Marker::new(&home).write(&running(u32::MAX)).unwrap();
        assert_eq!(unclean(&home, None).unwrap().unwrap().last.pid, u32::MAX);
        assert!(left_behind(&home, &owner, None).is_some());
    }

    #[test]
    fn half_a_record_is_one_too() {
        let (_dir, home) = home();
        for text in ["", "{\"pid\": 3, \"mod", "[]"] {
            fs::write(home.running_json(), text).unwrap();
            let found = unclean(&home, Some("b1")).unwrap().unwrap();
            assert_eq!((found.cause, found.last), (Cause::Killed, Running::default()), "{text}");
        }
        fs::write(home.running_json(), r#"{"pid": 3, "model": "m", "new": 1}"#).unwrap();
        assert_eq!(unclean(&home, None).unwrap().unwrap().last.model, "m");
    }
}
