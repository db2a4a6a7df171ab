//! The prompt cache's look-up alone, for `cargo xtask bench cache`: how long it takes must not depend on how many
//! entries there are.

use crate::cache::{LayerCache, PlainCache};
use crate::disk::Namespace;
use crate::error::{Error, Result};
use crate::prompt_cache::{Entry, PromptCache, Put};
use hearth_mlx::{Dtype, Tensor};

/// A prompt cache in memory whose entries all begin with one system prompt.
pub struct Lookups {
    cache: PromptCache,
    namespace: Namespace,
    entries: usize,
    shared: usize,
    own: usize,
}

impl Lookups {
    /// One of so many entries, each of `shared` tokens that all have and `own` of its own.
    ///
    /// # Errors
    /// MLX's; [`Error::Stored`] if an entry is not taken.
    pub fn new(entries: usize, shared: usize, own: usize) -> Result<Self> {
        let state = Tensor::zeros(&[1, 1, (shared + own) as i32, 1], Dtype::F32)?;
        let namespace = Namespace([0; 32]);
        let mut lookups = Lookups { cache: PromptCache::new(u64::MAX), namespace, entries, shared, own };
        for number in 0..entries {
            let tokens = lookups.tokens(number);
            // All look at the same zeros: only the tokens matter here.
            let cache = LayerCache::Plain(PlainCache::of(state.share(), state.share(), tokens.len()));
            let entry = Entry { namespace, tokens, caches: vec![cache], attachments: Vec::new() };
            if !matches!(lookups.cache.put(entry), Put::Kept(_)) {
                return Err(Error::Stored { found: format!("entry {number}, which the prompt cache does not take") });
            }
        }
        Ok(lookups)
    }

    fn tokens(&self, number: usize) -> Vec<u32> {
        // The first own token is the same for some, so that they part at different places.
        let own = (0..self.own).map(|i| (if i == 0 { number % 10 } else { number * 7919 + i } % 50_000) as u32);
        (0..self.shared as u32).chain(own).collect()
    }

    /// A prompt that goes on after entry `number`.
    pub fn prompt(&self, number: usize) -> Vec<u32> {
        let mut tokens = self.tokens(number % self.entries.max(1));
        tokens.extend([1, 2, 3]);
        tokens
    }

    /// How many tokens of this prompt an entry can give.
    pub fn find(&self, prompt: &[u32]) -> usize {
        self.cache.longest(&self.namespace, prompt).map_or(0, |hit| hit.tokens)
    }
}
