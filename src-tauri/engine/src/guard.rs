//! The guard: which mark is passed, how far chunks shrink, and a record of what was done and why. Decisions over
//! integers; what they lead to is the worker's.

use crate::ledger::{Ledger, share};
use hearth_core::stats::{GuardAction, GuardLevel, GuardStats, PressureLevel};
use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

/// Actions that are remembered.
const REMEMBERED: usize = 32;
/// A mark is left again this much of the budget below it, in percent, so that it is not passed to and fro.
const SLACK: u64 = 2;

/// The state.
#[derive(Debug)]
pub struct Guard {
    level: GuardLevel,
    pressure: PressureLevel,
    admitting: bool,
    chunk: usize,
    actions: VecDeque<GuardAction>,
    next: u64,
}

impl Guard {
    /// Nothing is tight yet; chunks of so many tokens.
    pub fn new(chunk: usize) -> Self {
        Guard {
            level: GuardLevel::Normal,
            pressure: PressureLevel::Unknown,
            admitting: true,
            chunk,
            actions: VecDeque::new(),
            next: 1,
        }
    }

    /// What the system says.
    pub fn pressure(&self) -> PressureLevel {
        self.pressure
    }

    /// Takes the system's word.
    pub fn set_pressure(&mut self, pressure: PressureLevel) {
        self.pressure = pressure;
    }

    /// Takes what is used, by the ledger or as measured, whichever is more, and returns the level.
    pub fn see(&mut self, used: u64, budget: u64) -> GuardLevel {
        let marks = Ledger { budget, ..Ledger::default() };
        let slack = |level| if self.level >= level { share(budget, SLACK) } else { 0 };
        let passed = |mark: u64, level| used >= mark.saturating_sub(slack(level)) && budget > 0;
        let own = if passed(marks.hard(), GuardLevel::Hard) {
            GuardLevel::Hard
        } else if passed(marks.soft(), GuardLevel::Soft) {
            GuardLevel::Soft
        } else {
            GuardLevel::Normal
        };
        self.level = own.max(match self.pressure {
            PressureLevel::Critical => GuardLevel::Hard,
            PressureLevel::Warning => GuardLevel::Soft,
            PressureLevel::Normal | PressureLevel::Unknown => GuardLevel::Normal,
        });
        self.level
    }

    /// The most tokens of a chunk at this level, where `most` is what was set and `least` what is left in any case.
    pub fn most_chunk(&self, most: usize, least: usize) -> usize {
        let share = match self.level {
            GuardLevel::Normal => 1,
            GuardLevel::Soft => 4,
            GuardLevel::Hard => 16,
        };
        (most / share).max(least)
    }

    /// Chunks have this many tokens from now on; says so where that is another number.
    pub fn set_chunk(&mut self, chunk: usize, why: impl FnOnce() -> String) {
        let before = std::mem::replace(&mut self.chunk, chunk);
        if chunk < before {
            self.did("shrink_chunk", format!("chunks of {chunk} tokens instead of {before}: {}", why()), 0);
        } else if chunk > before {
            self.did("restore_chunk", format!("chunks of {chunk} tokens instead of {before}: {}", why()), 0);
        }
    }

    /// Another model has its turn, whose chunks have this many tokens. Returns those of the one before it.
    pub fn swap_chunk(&mut self, chunk: usize) -> usize {
        std::mem::replace(&mut self.chunk, chunk)
    }

    /// Tokens of a chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Whether requests get rows from now on; says so where that changes.
    pub fn set_admitting(&mut self, admitting: bool, why: impl FnOnce() -> String) {
        if std::mem::replace(&mut self.admitting, admitting) != admitting {
            self.did(if admitting { "resume" } else { "stop_admission" }, why(), 0);
        }
    }

    /// Whether a request gets a row as far as the guard goes; one that is `alone` only has to do with the system.
    pub fn admits(&self, alone: bool) -> bool {
        self.admitting || alone && self.pressure != PressureLevel::Critical
    }

    /// Records something that was done.
    pub fn did(&mut self, what: &str, why: String, freed: u64) {
        tracing::info!(what, freed, "memory guard: {why}");
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        self.actions.push_back(GuardAction { id: self.next, at, what: what.to_owned(), why, freed });
        self.next += 1;
        if self.actions.len() > REMEMBERED {
            self.actions.pop_front();
        }
    }

    /// As `/stats` shows it.
    pub fn stats(&self) -> GuardStats {
        GuardStats {
            level: self.level,
            pressure: self.pressure,
            admitting: self.admitting,
            chunk: self.chunk,
            actions: self.actions.iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_passed_and_left_with_some_slack() {
        let mut guard = Guard::new(2048);
        for (used, level) in [
            (849, GuardLevel::Normal),
            (850, GuardLevel::Soft),
            (949, GuardLevel::Soft),
            (950, GuardLevel::Hard),
            (931, GuardLevel::Hard),
            (929, GuardLevel::Soft),
            (831, GuardLevel::Soft),
            (829, GuardLevel::Normal),
            (849, GuardLevel::Normal),
        ] {
            assert_eq!(guard.see(used, 1000), level, "{used}");
        }
    }

    #[test]
    fn the_systems_word_counts_as_a_mark() {
        let mut guard = Guard::new(2048);
        guard.set_pressure(PressureLevel::Warning);
        assert_eq!((guard.see(0, 1000), guard.most_chunk(2048, 64)), (GuardLevel::Soft, 512));
        guard.set_pressure(PressureLevel::Critical);
        assert_eq!((guard.see(0, 1000), guard.most_chunk(2048, 64)), (GuardLevel::Hard, 128));
        guard.set_pressure(PressureLevel::Normal);
        assert_eq!((guard.see(0, 1000), guard.most_chunk(3, 3)), (GuardLevel::Normal, 3));
        guard.set_pressure(PressureLevel::Critical);
        guard.see(0, 1000);
        assert_eq!(guard.most_chunk(100, 64), 64);
    }

    #[test]
    fn what_is_done_is_remembered_once_and_not_for_ever() {
        let mut guard = Guard::new(100);
        guard.set_chunk(100, || unreachable!());
        guard.set_admitting(true, || unreachable!());
        guard.set_chunk(50, || "a".into());
        guard.set_admitting(false, || "b".into());
        let stats = guard.stats();
        assert_eq!(
            stats.actions.iter().map(|a| (a.id, &*a.what)).collect::<Vec<_>>(),
            [(1, "shrink_chunk"), (2, "stop_admission")]
        );
        assert!(!stats.admitting && stats.chunk == 50 && stats.actions[0].at > 1_700_000_000_000);
        for _ in 0..100 {
            guard.did("demote", String::new(), 1);
        }
        let ids: Vec<u64> = guard.stats().actions.iter().map(|a| a.id).collect();
        assert_eq!(ids, (71..=102).collect::<Vec<_>>());
    }
}
