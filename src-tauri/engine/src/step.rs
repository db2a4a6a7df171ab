//! One forward pass as the layers see it: which rows take part with how many tokens, and what all layers share
//! (rotation angles, window masks), computed once.

use crate::cache::LayerCache;
use crate::error::Result;
use crate::layers::rotary::{Angles, Rotary};
use hearth_mlx::{Dtype, Tensor};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// One row's part in a step.
#[derive(Debug)]
pub struct Segment<'a> {
    /// How many new tokens it has (at least 1).
    pub tokens: usize,
    /// Its caches, one per layer.
    pub caches: &'a mut [LayerCache],
}

/// One forward pass over the tokens of several rows.
#[derive(Debug)]
pub struct Step<'a> {
    segments: Vec<Segment<'a>>,
    /// Position of every token.
    positions: Vec<i32>,
    /// By rotation: a model may have several.
    angles: HashMap<usize, Angles>,
    masks: HashMap<(usize, usize), Tensor>,
    /// Position of each row's first new token.
    starts: Vec<usize>,
}

impl<'a> Step<'a> {
    /// A step over these rows, in this order.
    pub fn new(segments: Vec<Segment<'a>>) -> Self {
        let starts: Vec<usize> = segments.iter().map(|s| s.caches.first().map_or(0, LayerCache::offset)).collect();
        let of_row =
            |(s, &start): (&Segment<'_>, &usize)| (start..start + s.tokens).map(|p| p as i32).collect::<Vec<_>>();
        let positions = segments.iter().zip(&starts).flat_map(of_row).collect();
        Step { segments, positions, angles: HashMap::new(), masks: HashMap::new(), starts }
    }

    /// Rows in the step.
    pub fn rows(&self) -> usize {
        self.segments.len()
    }

    /// New tokens of a row.
    pub fn tokens(&self, row: usize) -> i32 {
        self.segments.get(row).map_or(0, |s| s.tokens as i32)
    }

    /// A row's cache for a layer. Both numbers come from the model's own loops.
    pub fn cache(&mut self, row: usize, layer: usize) -> &mut LayerCache {
        &mut self.segments[row].caches[layer]
    }

    /// The angles of this rotation for all tokens, computed where they are first asked for.
    ///
    /// # Errors
    /// MLX's.
    pub fn angles(&mut self, rotary: &Rotary) -> Result<&Angles> {
        // A model's rotations stay where they are while a step runs, so an address tells them apart.
        match self.angles.entry(std::ptr::from_ref(rotary).addr()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(rotary.angles(&self.positions)?)),
        }
    }

    /// Where a row's new tokens may look among `keys` keys that end with themselves: bool `[tokens, keys]`.
    ///
    /// # Errors
    /// MLX's.
    pub fn window_mask(&mut self, row: usize, window: usize, keys: i32) -> Result<&Tensor> {
        let n = self.tokens(row);
        let end = self.starts.get(row).map_or(0, |s| *s as i32) + n;
        let mask = match self.masks.remove(&(row, window)) {
            Some(mask) => mask,
            None => {
                let queries = Tensor::arange(end - n, n, Dtype::I32)?.reshape(&[n, 1])?;
                let keys = Tensor::arange(end - keys, keys, Dtype::I32)?;
                let window = Tensor::from_i32(&[window as i32])?;
                let past = queries.greater_equal(&keys)?;
                past.logical_and(&queries.subtract(&keys)?.less(&window)?)?
            }
        };
        Ok(self.masks.entry((row, window)).or_insert(mask))
    }
}
