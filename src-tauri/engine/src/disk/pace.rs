//! How fast the writer may go while rows are being decoded.

use std::time::{Duration, Instant};

/// Bytes handled in one go, hashing included: about half a millisecond of work.
pub const PIECE: usize = 512 << 10;

/// Spreads work over time at a rate.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second.
    rate: u64,
    /// When the work done so far would be over at that rate.
    due: Option<Instant>,
}

impl Pace {
    /// At most `rate` bytes per second.
    pub fn new(rate: u64) -> Self {
        Pace { rate: rate.max(1), due: None }
    }

    /// How long to rest at `now`, after `bytes` more were handled. Without `busy` there is no rest, and time that
    /// was not used is not saved up.
    pub fn rest(&mut self, bytes: usize, busy: bool, now: Instant) -> Duration {
        if !busy {
            self.due = None;
            return Duration::ZERO;
        }
        let work = Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / self.rate);
        let due = self.due.map_or(now, |due| due.max(now)) + work;
        self.due = Some(due);
        due - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_spread_while_busy_and_free_when_not() {
        let mut pace = Pace::new(1000);
        let start = Instant::now();
        let ms = Duration::from_millis;
        assert_eq!(pace.rest(100, true, start), ms(100));
        assert_eq!(pace.rest(100, true, start), ms(200), "two pieces at once rest for both");
        assert_eq!(pace.rest(100, true, start + ms(250)), ms(100), "a late piece does not rest longer");
        assert_eq!(pace.rest(100, true, start + ms(10_000)), ms(100), "idle time is not saved up");
        assert_eq!(pace.rest(1 << 30, false, start + ms(10_001)), Duration::ZERO);
        assert_eq!(pace.rest(100, true, start + ms(10_002)), ms(100));
    }
}
