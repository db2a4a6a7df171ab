//! The memory ledger: what everything is for, against one budget, in integers. No MLX and no clocks.
//!
//! MLX's own limit does not hold on a CPU, and on Metal running into it ends the process. So nothing is allocated that
//! the ledger has no room for, and what is measured is compared with it afterwards.

use hearth_core::stats::LedgerStats;

/// Shares of the budget, in percent, at which the guard acts and at which it admits nothing new.
const SOFT: u64 = 85;
const HARD: u64 = 95;

/// The categories, and the budget that they are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ledger {
    /// Bytes that may be used.
    pub budget: u64,
    /// For what arithmetic does not see.
    pub reserve: u64,
    /// Model weights.
    pub weights: u64,
    /// What rows hold, with the room that is reserved for them.
    pub kv: u64,
    /// The prompt cache in memory, with what is on its way to disk.
    pub prompt_cache: u64,
    /// What the next chunk and step hold for a moment.
    pub transient: u64,
    /// What the allocator keeps, or may keep while rows run.
    pub allocator: u64,
}

impl Ledger {
    /// The sum of all categories.
    pub fn total(&self) -> u64 {
        let parts = [self.weights, self.kv, self.prompt_cache, self.transient, self.allocator];
        parts.into_iter().fold(self.reserve, u64::saturating_add)
    }

    /// What is left of the budget.
    pub fn free(&self) -> u64 {
        self.budget.saturating_sub(self.total())
    }

    /// What `bytes` more would lack.
    pub fn short(&self, bytes: u64) -> u64 {
        self.total().saturating_add(bytes).saturating_sub(self.budget)
    }

    /// Where the guard begins to act.
    pub fn soft(&self) -> u64 {
        share(self.budget, SOFT)
    }

    /// Where nothing new is admitted while anything runs.
    pub fn hard(&self) -> u64 {
        share(self.budget, HARD)
    }

    /// As `/stats` shows it.
    pub fn stats(&self) -> LedgerStats {
        LedgerStats {
            budget: self.budget,
            weights: self.weights,
            kv: self.kv,
            prompt_cache: self.prompt_cache,
            prefill_transient: self.transient,
            allocator_cache: self.allocator,
            reserve: self.reserve,
            total: self.total(),
            free: self.free(),
            soft: self.soft(),
            hard: self.hard(),
            ..LedgerStats::default()
        }
    }
}

/// A share in percent, for any number.
pub fn share(bytes: u64, percent: u64) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100) as u64
}

/// How much to keep wired for the GPU: the weights and some room, and no more than the GPU may hold; nothing where
/// neither 35 % of the memory nor 8 GB would stay for everything else, as wiring too much freezes small machines.
pub fn wired_limit(weights: u64, budget: u64, working_set: u64, ram: u64) -> u64 {
    let wired = weights.saturating_add(weights / 8).saturating_add(256 << 20).min(budget).min(working_set);
    let left = ram.saturating_sub(wired);
    if left >= share(ram, 35) || left >= 8_000_000_000 { wired } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    proptest! {
        #[test]
        fn the_categories_sum_to_the_total(
            parts in proptest::array::uniform6(0u64..1 << 40), budget in 0u64..1 << 42, more in 0u64..1 << 40,
        ) {
            let [reserve, weights, kv, prompt_cache, transient, allocator] = parts;
            let ledger = Ledger { budget, reserve, weights, kv, prompt_cache, transient, allocator };
            let stats = ledger.stats();
            let sum = stats.weights + stats.kv + stats.prompt_cache + stats.prefill_transient + stats.allocator_cache
                + stats.reserve;
            prop_assert_eq!(sum, stats.total);
            prop_assert_eq!(stats.free, budget.saturating_sub(sum));
            prop_assert!(stats.soft <= stats.hard && stats.hard <= budget);
            prop_assert_eq!(ledger.short(more) == 0, sum + more <= budget);
            prop_assert_eq!(ledger.short(more), (sum + more).saturating_sub(budget));
        }
    }

    #[test]
    fn wiring_leaves_the_machine_enough() {
        // 16 GiB: 35 % are 5.6 GiB.
        assert_eq!(wired_limit(8 * GIB, 11 * GIB, 11 * GIB, 16 * GIB), 9 * GIB + (256 << 20));
        assert_eq!(wired_limit(10 * GIB, 13 * GIB, 13 * GIB, 16 * GIB), 0);
        // 64 GiB: 8 GB are enough.
        assert_eq!(wired_limit(44 * GIB, 48 * GIB, 48 * GIB, 64 * GIB), 48 * GIB);
        assert_eq!(wired_limit(u64::MAX, u64::MAX, u64::MAX, 64 * GIB), 0);
    }
}
