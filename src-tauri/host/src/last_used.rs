//! Which model was used last, as the home remembers it for the next start: noted when models come and go, and at the end.

use hearth_core::stats::{Health, Stats};
use hearth_library::LibraryError;
use hearth_library::home::Home;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the home knows of it.
pub(crate) struct LastUsed {
    home: Home,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// Id of the model that the home remembers.
    last: Option<String>,
    /// What was in memory then. Two models that are used in turn are no reason to write all the time.
    in_memory: Vec<String>,
}

impl LastUsed {
    /// Nothing noted yet.
    pub fn new(home: &Home) -> Self {
        LastUsed { home: home.clone(), noted: Mutex::default() }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of this id is the one; `name` is what finds it again.
    ///
    /// # Errors
    /// [`LibraryError::Io`] when the home cannot be written.
    pub fn note(&self, id: &str, name: &str) -> Result<(), LibraryError> {
        self.noted().last = Some(id.to_owned());
        self.home.set_last_model(name)
    }

    /// Looks whether models came or went.
    pub fn look(&self, health: &Health, stats: &Stats) {
        let Health::Ready { model } = health else { return };
        let mut here: Vec<String> = stats.models.iter().map(|model| model.id.clone()).collect();
        here.sort();
        let before = std::mem::replace(&mut self.noted().in_memory, here.clone());
        if before != here {
            self.used(model);
        }
    }

    /// Nothing is served any more.
    pub fn end(&self, stats: &Stats) {
        if let Some(model) = &stats.model {
            self.used(&model.id);
        }
    }

    fn used(&self, id: &str) {
        let known = self.noted().last.as_deref() == Some(id);
        if known {
            return;
        }
        if let Err(error) = self.note(id, id) {
            tracing::warn!(%error, "which model was used last cannot be noted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::ModelStats;

    #[test]
    fn what_came_last_is_noted_and_turns_are_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        let last = LastUsed::new(&home);
        let known = || home.last_model().map(|last| last.model);
        // The first of these is the one that was used last.
        let stats = |ids: &[&str]| {
            let models: Vec<_> =
                ids.iter().map(|id| ModelStats { id: (*id).into(), ..ModelStats::default() }).collect();
            Stats { model: models.first().cloned(), models, ..Stats::default() }
        };
        let look = |ids: &[&str]| last.look(&Health::Ready { model: ids[0].into() }, &stats(ids));
        last.note("a", "/folder/a").unwrap();
        look(&["a"]);
        assert_eq!(known().as_deref(), Some("/folder/a"), "it is found by its path only");
        look(&["b", "a"]);
        assert_eq!(known().as_deref(), Some("b"));
        look(&["a", "b"]);
        assert_eq!(known().as_deref(), Some("b"), "they take turns");
        last.end(&stats(&["a", "b"]));
        assert_eq!(known().as_deref(), Some("a"));
        last.end(&stats(&[]));
        assert_eq!(known().as_deref(), Some("a"));
    }
}
