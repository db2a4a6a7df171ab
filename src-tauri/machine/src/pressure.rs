//! Memory pressure as events: what the operating system says, and how much is left of what it allows this process.
//!
//! macOS tells by a dispatch source, and its level can be read at any time. Linux says how long programs wait for
//! memory (PSI); a memory cgroup, version 1 or 2, adds a limit of its own. The engine asks through [`Source`], so that
//! tests can press.

use hearth_core::stats::PressureLevel;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

#[cfg(target_os = "linux")]
pub(crate) mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
pub use linux::Linux as System;
#[cfg(target_os = "macos")]
pub use macos::Mac as System;

/// Where memory pressure is read.
pub trait Source: Send + Sync {
    /// The level now.
    fn level(&self) -> PressureLevel;

    /// Bytes that this process can still take before the system ends a program for it; `None` where a level is all
    /// that there is.
    fn available(&self) -> Option<u64>;

    /// Bytes that this process holds now; `None` where that is not to count.
    fn own(&self) -> Option<u64>;

    /// Waits until the level may be another one, for at most this long; the level then.
    fn wait(&self, patience: Duration) -> PressureLevel;
}

/// A source that can be handed around and printed.
#[derive(Clone)]
pub struct Shared(pub Arc<dyn Source>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.level())
    }
}

impl Default for Shared {
    fn default() -> Self {
        Shared(Arc::new(System::here()))
    }
}

/// A source that says what it was told: for tests of those who listen.
#[derive(Debug, Default)]
pub struct Told {
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, Default)]
struct Now {
    level: PressureLevel,
    available: Option<u64>,
    own: Option<u64>,
}

impl Told {
    /// From now on this is the level, and so much is available.
    pub fn tell(&self, level: PressureLevel, available: Option<u64>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        (now.level, now.available) = (level, available);
        self.changed.notify_all();
    }

    /// From now on the process holds so many bytes.
    pub fn tell_own(&self, bytes: Option<u64>) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).own = bytes;
    }

    fn now(&self) -> Now {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Told {
    fn level(&self) -> PressureLevel {
        self.now().level
    }

    fn available(&self) -> Option<u64> {
        self.now().available
    }

    fn own(&self) -> Option<u64> {
        self.now().own
    }

    fn wait(&self, patience: Duration) -> PressureLevel {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, _) = self.changed.wait_timeout(now, patience).unwrap_or_else(PoisonError::into_inner);
        now.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_something_that_makes_sense() {
        let here = System::here();
        let _ = here.level();
        assert!(here.available().is_none_or(|bytes| bytes > 0), "{:?}", here.available());
        let _ = here.wait(Duration::from_millis(1));
    }

    #[test]
    fn what_was_told_is_said() {
        let told = Arc::new(Told::default());
        assert_eq!((told.level(), told.available()), (PressureLevel::Unknown, None));
        let waits = std::thread::spawn({
            let told = told.clone();
            move || while told.wait(Duration::from_millis(20)) != PressureLevel::Critical {}
        });
        told.tell(PressureLevel::Critical, Some(5));
        waits.join().unwrap();
        assert_eq!((told.level(), told.available()), (PressureLevel::Critical, Some(5)));
    }
}
