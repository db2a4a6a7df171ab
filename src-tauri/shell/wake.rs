//! Noticing that the machine slept: the wall clock went on, the process did not.
//!
//! It needs no event of the system's: the clock that `Instant` reads stands still in sleep on macOS and on Linux.

use std::time::{Duration, Instant, SystemTime};

/// A shorter difference is a clock that was set, or a busy machine.
const SLEPT: Duration = Duration::from_secs(10);

/// Both clocks at the last look.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    wall: SystemTime,
    running: Instant,
}

impl Clocks {
    /// The clocks now.
    pub fn now() -> Self {
        Clocks { wall: SystemTime::now(), running: Instant::now() }
    }

    /// How long the machine slept since the last look, if it did.
    pub fn slept(&mut self, now: Clocks) -> Option<Duration> {
        let last = std::mem::replace(self, now);
        let wall = now.wall.duration_since(last.wall).unwrap_or_default();
        let slept = wall.saturating_sub(now.running.saturating_duration_since(last.running));
        (slept >= SLEPT).then_some(slept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_is_what_only_the_wall_clock_saw() {
        let start = Clocks::now();
        let later = |wall: u64, running: u64| Clocks {
            wall: start.wall + Duration::from_secs(wall),
            running: start.running + Duration::from_secs(running),
        };
        let mut clocks = start;
        assert_eq!(clocks.slept(later(1, 1)), None);
        assert_eq!(clocks.slept(later(3601, 2)), Some(Duration::from_secs(3599)));
        assert_eq!(clocks.slept(later(3602, 3)), None, "only once");
        assert_eq!(clocks.slept(later(3700, 100)), None, "a slow look is no sleep");
        assert_eq!(clocks.slept(later(10, 101)), None, "a clock that was set back");
    }
}
