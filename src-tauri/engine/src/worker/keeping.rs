//! What the prompt cache keeps in memory: the state of rows that end, and of long prompts at their boundaries.

use super::Worker;
use crate::cache::LayerCache;
use crate::error::Result;
use crate::loader::Loaded;
use crate::prompt_cache::{Entry, Put};
use crate::rooms::Costs;
use crate::row::Row;
use hearth_core::kv_policy::FROM;
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

    /// After a chunk of a row's prompt was computed: keeps its state at a boundary.
    pub(super) fn after_chunk(&mut self, id: u64) -> Result<()> {
        self.convert(id)?;
        if self.slot.rows.get(&id).is_some_and(|row| row.keep_at.contains(&row.prefilled)) {
            self.snapshot(id)?;
        }
        Ok(())
    }

    /// Quantizes a row's keys and values, where that is asked for and the row has come to that length.
    pub(super) fn convert(&mut self, id: u64) -> Result<()> {
        let Some(model) = &self.slot.model else { return Ok(()) };
        let Some(row) = self.slot.rows.get_mut(&id) else { return Ok(()) };
        let due = |(cache, bits): (&LayerCache, &Option<u8>)| {
            bits.is_some() && matches!(cache, LayerCache::Plain(_)) && cache.offset() >= FROM
        };
        if !row.caches.iter().zip(&model.kv_bits).any(due) {
            return Ok(());
        }
        let expected = row.expected();
        for (cache, bits) in row.caches.iter_mut().zip(&model.kv_bits) {
            if let Some(bits) = bits {
                cache.quantize(*bits)?;
                cache.expect(expected);
            }
        }
        if let Some(sizes) = &self.slot.sizes {
            self.slot.rooms.settle(id, &**sizes);
        }
        Ok(())
    }

    /// Whether an entry stays in memory as long as there is room, and is not for the disk: of a model whose keys and values
    /// are quantized, and too short for that. On disk all of a sequence's blocks are of one kind, and so few tokens are
    /// computed as quickly as they are read.
    pub(super) fn is_for_memory_only(&self, entry: &Entry) -> bool {
        let of_it = |model: &&Loaded| model.namespace == entry.namespace;
        let model = self.slots().filter_map(|slot| slot.model.as_ref()).find(of_it);
        entry.tokens.len() < FROM && model.is_some_and(|model| model.kv_bits.iter().any(Option::is_some))
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
