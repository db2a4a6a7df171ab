//! What the prompt cache keeps in memory: the state of rows that end, and of long prompts at their boundaries.

use super::Worker;
use crate::cache::LayerCache;
use crate::error::Result;
use crate::prompt_cache::{Entry, Put};
use crate::rooms::Costs;
use crate::row::Row;
use hearth_core::layout::room_for;
use hearth_mlx::{async_eval, eval};

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
        self.put(Entry { namespace, tokens, caches, attachments });
    }

    /// Gives an entry to the cache, and to the disk what has no room there.
    fn put(&mut self, entry: Entry) {
        match self.cache.put(entry) {
            Put::Kept(evicted) => evicted.into_iter().for_each(|(id, entry)| self.spill_evicted(Some(id), entry)),
            Put::TooLarge(entry) => self.spill_evicted(None, entry),
            // A row that was cancelled before it computed anything of its own.
            Put::Invalid => {}
        }
    }

    /// After a chunk of a row's prompt was computed: quantizes its keys and values, where that is asked for, and keeps
    /// its state at a boundary.
    pub(super) fn after_chunk(&mut self, id: u64) -> Result<()> {
        let Some(model) = &self.slot.model else { return Ok(()) };
        let Some(row) = self.slot.rows.get_mut(&id) else { return Ok(()) };
        let expected = row.expected();
        for (cache, bits) in row.caches.iter_mut().zip(&model.kv_bits) {
            if let Some(bits) = bits {
                cache.quantize(*bits)?;
                cache.expect(expected);
            }
        }
        if row.keep_at.contains(&row.prefilled) {
            self.snapshot(id)?;
        }
        Ok(())
    }

    /// Keeps a copy of a running row's state as an entry. What is attached belongs to the whole prompt, so that a row with
    /// attachments has no boundaries.
    fn snapshot(&mut self, id: u64) -> Result<()> {
        let Some((row, model)) = self.slot.rows.get(&id).zip(self.slot.model.as_ref()) else { return Ok(()) };
        let Some(tokens) = row.cached_sequence().filter(|_| row.attachments.is_empty()) else { return Ok(()) };
        let namespace = model.namespace;
        let bytes =
            self.slot.sizes.as_ref().map_or(row.cache_bytes(), |sizes| sizes.row(room_for(tokens.len() as u64)));
        if bytes > self.cache.cap() && self.disk.is_none() || !self.has_spare_room(bytes) {
            return Ok(());
        }
        let Some(row) = self.slot.rows.get(&id) else { return Ok(()) };
        let caches: Vec<LayerCache> = row.caches.iter().map(LayerCache::copied).collect::<Result<_>>()?;
        eval(caches.iter().flat_map(LayerCache::tensors))?;
        self.put(Entry { namespace, tokens, caches, attachments: Vec::new() });
        Ok(())
    }
}
