//! What the guard leads to: the allocator trimmed, entries of the prompt cache demoted, admission stopped. It looks
//! at the ledger, at what the process really holds, and at what the system says.

use super::Worker;
use super::memory::readable;
use crate::ledger::share;
use crate::row::Row;
use hearth_core::stats::{GuardLevel, PressureLevel};
use std::time::{Duration, Instant};

/// How often to look.
const OFTEN: Duration = Duration::from_millis(100);
/// How often the allocator is trimmed, and memory given back for the system's sake.
const SELDOM: Duration = Duration::from_secs(1);
/// The allocator's cache is not worth trimming below this.
const LITTLE: u64 = 1 << 20;

/// When the guard did something last.
#[derive(Debug, Default)]
pub(super) struct Watch {
    looked: Option<Instant>,
    acted: Option<Instant>,
    /// Bytes that the process holds and the ledger does not know of, beyond the reserve.
    pub excess: u64,
    /// What the system can still give.
    pub available: Option<u64>,
}

fn due(since: Option<Instant>, time: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= time)
}

impl Worker<'_> {
    /// Looks how memory stands and does what has to be done. Does nothing if it looked a moment ago, but with `now`.
    pub(super) fn watch(&mut self, now: bool) {
        if !now && !due(self.watch.looked, OFTEN) {
            return;
        }
        self.watch.looked = Some(Instant::now());
        self.watch.available = self.options.memory.pressure.0.available();
        let ledger = self.ledger(self.slot.rooms.least_chunk());
        let known = self.baseline.saturating_add(self.allocated()).saturating_add(ledger.reserve);
        self.watch.excess = self.options.memory.pressure.0.own().map_or(0, |own| own.saturating_sub(known));
        let used = ledger.total().saturating_add(self.watch.excess);
        let level = self.guard.see(used, ledger.budget);
        let pressure = self.guard.pressure();
        let why = match pressure {
            PressureLevel::Warning => "the system warns of memory pressure".to_owned(),
            PressureLevel::Critical => "the system's memory pressure is critical".to_owned(),
            PressureLevel::Normal | PressureLevel::Unknown => {
                format!("{} of the budget of {} are in use", readable(used), readable(ledger.budget))
            }
        };
        let stops = level == GuardLevel::Hard && !(self.is_alone() && pressure != PressureLevel::Critical);
        self.guard.set_admitting(!stops, || why.clone());
        if level == GuardLevel::Normal {
            return;
        }
        let seldom = due(self.watch.acted, SELDOM);
        if seldom {
            self.watch.acted = Some(Instant::now());
            self.trim(&why);
        }
        let over = used.saturating_sub(ledger.soft().saturating_sub(share(ledger.budget, 2)));
        let for_system = match pressure {
            PressureLevel::Critical if seldom => self.cache.evictable(),
            PressureLevel::Warning if seldom => self.cache.evictable() / 4 + 1,
            _ => 0,
        };
        let own = if used >= ledger.soft() { over } else { 0 };
        let freed = match own.max(for_system) {
            0 => 0,
            bytes => self.give_way(bytes, None),
        };
        if freed > 0 {
            self.guard.did("demote", why, freed);
        }
    }

    /// Gives the allocator's freed buffers back.
    fn trim(&mut self, why: &str) {
        let kept = hearth_mlx::cache_memory().unwrap_or(0) as u64;
        if kept < LITTLE {
            return;
        }
        let _ = hearth_mlx::clear_cache();
        hearth_machine::release_freed();
        let left = hearth_mlx::cache_memory().unwrap_or(0) as u64;
        self.guard.did("trim_allocator", why.to_owned(), kept.saturating_sub(left));
    }

    /// Bytes of the ledger that are allocated now, between two rounds, without the reserve.
    pub(super) fn allocated(&mut self) -> u64 {
        let rows: u64 = self.slots().flat_map(|slot| slot.rows.values()).map(Row::cache_bytes).sum();
        let on_its_way = self.spilling_bytes() + self.disk.map_or(0, |disk| disk.backlog());
        let kept = hearth_mlx::cache_memory().unwrap_or(0) as u64;
        self.fixed.weights + rows + self.cache.bytes() + on_its_way + kept
    }
}
