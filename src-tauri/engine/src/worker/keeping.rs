//! What the prompt cache keeps in memory: the state of rows that end, and of long prompts at their boundaries.

use super::Worker;
use crate::error::Result;
use crate::prompt_cache::{Entry, Hit, Put};
use crate::row::Row;
use hearth_mlx::async_eval;

impl Worker<'_> {
    /// Keeps the state of a row that ends: its prompt as far as it was computed, and its answer as ids.
    pub(super) fn keep(&mut self, row: &mut Row) {
        let Some(namespace) = self.slot.model.as_ref().map(|m| m.namespace).filter(|_| self.keeps()) else { return };
        let Some(tokens) = row.cached_sequence() else { return };
        let caches = std::mem::take(&mut row.caches);
        // All of it was dispatched with the row's last step; an entry never holds a graph that was not.
        if let Err(error) = async_eval(caches.iter().flat_map(|c| c.tensors())) {
            tracing::warn!(%error, "a finished row is not kept");
            return;
        }
        let attachments = std::mem::take(&mut row.attachments);
        match self.cache.put(Entry { namespace, tokens, caches, attachments }) {
            Put::Kept { evicted, .. } => {
                evicted.into_iter().for_each(|(id, entry)| self.spill_evicted(Some(id), entry))
            }
            Put::TooLarge(entry) => self.spill_evicted(None, entry),
            // A row that was cancelled before it computed anything of its own.
            Put::Invalid(_) => {}
        }
    }

    /// After a chunk of a row's prompt was computed: quantizes its keys and values, where that is asked for, and keeps
    /// its state at a boundary.
    pub(super) fn after_chunk(&mut self, id: u64) -> Result<()> {
        let Some(model) = &self.slot.model else { return Ok(()) };
        let Some(row) = self.slot.rows.get_mut(&id) else { return Ok(()) };
        for (cache, bits) in row.caches.iter_mut().zip(&model.kv_bits) {
            if let Some(bits) = bits {
                cache.quantize(*bits)?;
            }
        }
        if row.keep_at.contains(&row.prefilled) {
            self.snapshot(id);
        }
        Ok(())
    }

    /// Keeps a running row's state as an entry, of which the row goes on with a view. What is attached belongs to the
    /// whole prompt, so that a row with attachments has no boundaries.
    fn snapshot(&mut self, id: u64) {
        let Some(row) = self.slot.rows.get(&id) else { return };
        let copy = row.cache_bytes();
        if !row.attachments.is_empty() || !self.has_spare_room(copy) {
            return;
        }
        let Some(namespace) = self.slot.model.as_ref().map(|m| m.namespace) else { return };
        let Some(row) = self.slot.rows.get_mut(&id) else { return };
        let Some(tokens) = row.cached_sequence() else { return };
        let length = tokens.len();
        let caches = std::mem::take(&mut row.caches);
        let caches = match self.cache.put(Entry { namespace, tokens, caches, attachments: Vec::new() }) {
            Put::Kept { id, evicted } => {
                evicted.into_iter().for_each(|(id, entry)| self.spill_evicted(Some(id), entry));
                self.cache.views(Hit { id, tokens: length }).map(|lent| lent.caches).unwrap_or_default()
            }
            Put::TooLarge(entry) | Put::Invalid(entry) => entry.caches,
        };
        if let Some(row) = self.slot.rows.get_mut(&id) {
            row.caches = caches;
        }
    }
}
