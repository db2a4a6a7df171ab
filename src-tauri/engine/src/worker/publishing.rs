//! The figures that others see: rows, memory, caches.

use super::{PUBLISH_EVERY, Worker};
use crate::disk::Disk;
use crate::row::Row;
use hearth_core::stats::{CacheStats, LedgerStats, RowStats};
use std::time::Instant;

impl Worker<'_> {
    /// Tells the world how it stands.
    pub(super) fn publish(&mut self, now: bool) {
        if !now && self.published.elapsed() < PUBLISH_EVERY {
            return;
        }
        self.published = Instant::now();
        let all = self.slots().flat_map(|slot| slot.rows.iter().map(move |(id, row)| (slot, *id, row)));
        let rows = all.map(|(slot, id, row)| RowStats {
            id,
            phase: match (row.next.is_some(), row.is_paused()) {
                (_, true) => "paused",
                (true, _) if slot.tight.cramped.contains(&id) => "waiting",
                (true, _) => "decode",
                (false, _) => "prefill",
            }
            .to_owned(),
            prompt_tokens: row.request.prompt.len(),
            prefilled: row.prefilled.min(row.request.prompt.len()),
            generated: row.ids.len(),
            tokens_per_s: row.tokens_per_s(),
            model: slot.id().unwrap_or_default().to_owned(),
        });
        let mut rows: Vec<RowStats> = rows.collect();
        rows.sort_by_key(|row| row.id);
        let kv: u64 = self.slots().flat_map(|slot| slot.rows.values()).map(Row::cache_bytes).sum();
        let waiting = self.slots().map(|slot| slot.scheduler.waiting()).sum::<usize>() + self.wanted();
        let mut cache = CacheStats { ram: self.cache.stats(), ssd: self.disk.map(Disk::stats).unwrap_or_default() };
        cache.ram.waiting = self.spilling_bytes();
        let mut ledger = self.ledger(self.guard.chunk() as u64);
        if ledger.short(0) > 0 {
            // Rows came or went: the next round has the chunks that there is room for.
            ledger = self.ledger(self.slot.rooms.least_chunk());
        }
        // A row's first tokens are kept as computed before they are quantized.
        ledger.kv = ledger.kv.max(kv);
        let (allocated, guard, entries) = (self.allocated(), self.guard.stats(), self.cache.sizes());
        let last = self.slots().filter(|slot| slot.model.is_some()).max_by_key(|slot| slot.used);
        let sizes = last.and_then(|slot| slot.sizes.as_ref());
        let largest = sizes.and_then(|sizes| sizes.largest_context(ledger.budget)).unwrap_or(0);
        let requests: Vec<(String, usize)> =
            self.slots().filter_map(|slot| Some((slot.id()?.to_owned(), slot.requests()))).collect();
        self.shared.update(|state| {
            state.stats.cache = cache;
            for model in &mut state.stats.models {
                model.requests = requests.iter().find(|(id, _)| *id == model.id).map_or(0, |(_, n)| *n);
            }
            state.stats.rows = rows;
            state.stats.waiting = waiting;
            state.allocated = allocated;
            state.entries = entries;
            let memory = &mut state.stats.memory;
            memory.kv = kv;
            memory.guard = guard;
            memory.ledger = LedgerStats {
                budget_from: std::mem::take(&mut memory.ledger.budget_from),
                baseline: memory.ledger.baseline,
                largest_context: largest,
                ..ledger.stats()
            };
        });
    }
}
