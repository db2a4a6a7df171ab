//! The two float KV caches: one that grows, one that turns.

use super::buffers::Buffers;
use super::{Lease, Reach, Seen};
use crate::error::Result;
use hearth_mlx::{Tensor, concatenate};

/// Keys and values of every token, in a buffer that grows in steps.
#[derive(Debug, Default)]
pub struct PlainCache {
    buffers: Buffers<2>,
    offset: usize,
}

impl PlainCache {
    /// A cache of these keys and values `[1, kv_heads, room, head_dim]`, of which the first `offset` tokens count.
    pub fn of(keys: Tensor, values: Tensor, offset: usize) -> Self {
        PlainCache { buffers: Buffers::of([keys, values]), offset }
    }

    /// Tokens held.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Keys and values with their spare room.
    pub fn arrays(&self) -> impl Iterator<Item = &Tensor> {
        self.buffers.arrays()
    }

    /// Keys and values of the tokens held, as views.
    ///
    /// # Errors
    /// MLX's.
    pub fn held(&self) -> Result<Option<[Tensor; 2]>> {
        self.buffers.front(self.offset as i32)
    }

    /// Whether the arrays are somebody else's until the first write.
    pub fn is_lent(&self) -> bool {
        self.buffers.is_lent()
    }

    /// A view of the first `tokens` tokens.
    pub fn lend(&self, tokens: usize, lease: &Lease) -> Self {
        PlainCache { buffers: self.buffers.lend(lease), offset: tokens.min(self.offset) }
    }

    /// A copy of its own.
    ///
    /// # Errors
    /// MLX's.
    pub fn copied(&self) -> Result<Self> {
        Ok(PlainCache { buffers: self.buffers.copied(self.offset)?, offset: self.offset })
    }

    /// See [`super::LayerCache::expect`].
    pub fn expect(&mut self, tokens: usize) {
        self.buffers.expect(tokens);
    }

    /// Forgets what follows the first `tokens` tokens.
    pub fn trim(&mut self, tokens: usize) {
        self.offset = tokens.min(self.offset);
    }

    /// See [`super::LayerCache::update`].
    ///
    /// # Errors
    /// MLX's.
    pub fn update(&mut self, keys: Tensor, values: Tensor) -> Result<Seen> {
        let (n, at) = (keys.dim(2), self.offset as i32);
        let new = [keys, values];
        self.buffers.write(&new, at, at, i32::MAX)?;
        self.offset += n as usize;
        let [keys, values] = self.buffers.front(self.offset as i32)?.unwrap_or(new);
        Ok(Seen { keys, values, packed: None, reach: Reach::All })
    }
}

/// Keys and values of the last `window` tokens. The token at position p lives in slot p mod window; order does
/// not matter to attention, because positions are in the keys already.
#[derive(Debug)]
pub struct RotatingCache {
    buffers: Buffers<2>,
    window: usize,
    offset: usize,
}

impl RotatingCache {
    /// An empty cache of this window (at least 1).
    pub fn new(window: usize) -> Self {
        RotatingCache { buffers: Buffers::default(), window: window.max(1), offset: 0 }
    }

    /// A cache of these keys and values in slot order, after `offset` tokens.
    pub fn of(keys: Tensor, values: Tensor, window: usize, offset: usize) -> Self {
        RotatingCache { buffers: Buffers::of([keys, values]), window: window.max(1), offset }
    }

    /// Tokens that went in, those that fell out included.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Tokens that are still there.
    pub fn held(&self) -> usize {
        self.offset.min(self.window)
    }

    /// Keys and values in slot order.
    pub fn arrays(&self) -> impl Iterator<Item = &Tensor> {
        self.buffers.arrays()
    }

    /// Another handle to the same window; whoever writes into it first, copies.
    pub fn shared(&self) -> Self {
        RotatingCache { buffers: self.buffers.shared(), ..*self }
    }

    /// Whether earlier states can still be had: nothing has fallen out yet.
    pub fn can_trim(&self) -> bool {
        self.offset <= self.window
    }

    /// Whether the arrays are somebody else's until the first write.
    pub fn is_lent(&self) -> bool {
        self.buffers.is_lent()
    }

    /// A view of the first `tokens` tokens; all of them where [`RotatingCache::can_trim`] says no.
    pub fn lend(&self, tokens: usize, lease: &Lease) -> Self {
        RotatingCache { buffers: self.buffers.lend(lease), window: self.window, offset: tokens.min(self.offset) }
    }

    /// Forgets what follows the first `tokens` tokens.
    pub fn trim(&mut self, tokens: usize) {
        self.offset = tokens.min(self.offset);
    }

    /// See [`super::LayerCache::update`]. One token sees just what is returned; several see a window each.
    ///
    /// # Errors
    /// MLX's.
    pub fn update(&mut self, keys: Tensor, values: Tensor) -> Result<Seen> {
        let (n, window) = (keys.dim(2), self.window as i32);
        if n == 1 {
            let slot = (self.offset % self.window) as i32;
            let new = [keys, values];
            self.buffers.write(&new, slot, self.held() as i32, window)?;
            self.offset += 1;
            let [keys, values] = self.buffers.front(self.held() as i32)?.unwrap_or(new);
            return Ok(Seen { keys, values, packed: None, reach: Reach::All });
        }
        // Several tokens: the window − 1 before them in order, then themselves, each seeing its own window.
        let (old_keys, old_values) = self.in_order()?;
        let joined = |old: Option<Tensor>, new: Tensor| match old {
            Some(old) => concatenate([&old, &new], 2),
            None => Ok(new),
        };
        let (keys, values) = (joined(old_keys, keys)?, joined(old_values, values)?);
        self.offset += n as usize;
        self.buffers.replace([self.slotted(&keys)?, self.slotted(&values)?]);
        Ok(Seen { keys, values, packed: None, reach: Reach::Window(self.window) })
    }

    /// The last window − 1 tokens, oldest first.
    fn in_order(&self) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let keep = self.offset.min(self.window - 1) as i32;
        let mut arrays = self.arrays().filter(|_| keep > 0);
        let (Some(k), Some(v)) = (arrays.next(), arrays.next()) else { return Ok((None, None)) };
        let first = ((self.offset - keep as usize) % self.window) as i32;
        let unroll = |t: &Tensor| -> Result<Tensor> {
            let until_end = (self.window as i32 - first).min(keep);
            let head = t.slice(2, first, first + until_end)?;
            if until_end == keep {
                return Ok(head);
            }
            Ok(concatenate([&head, &t.slice(2, 0, keep - until_end)?], 2)?)
        };
        Ok((Some(unroll(k)?), Some(unroll(v)?)))
    }

    /// The last `window` of these tokens (which end at `offset`), each in its slot.
    fn slotted(&self, ordered: &Tensor) -> Result<Tensor> {
        let (have, window) = (ordered.dim(2), self.window as i32);
        let keep = have.min(window).min(self.offset as i32);
        let last = ordered.slice(2, have - keep, have)?;
        let first = ((self.offset - keep as usize) % self.window) as i32;
        if first == 0 {
            return Ok(last.contiguous()?);
        }
        // first > 0 only when the buffer is full: until then tokens start at slot 0.
        let wrap = window - first;
        Ok(concatenate([&last.slice(2, wrap, keep)?, &last.slice(2, 0, wrap)?], 2)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LayerCache, Lease};
    use super::*;
    use hearth_core::layout::room_for;
    use hearth_mlx::Dtype;
    use proptest::prelude::*;

    /// Token p has key p (and value −p), one head, one dimension.
    fn tokens(from: usize, n: usize) -> (Tensor, Tensor) {
        let k = Tensor::arange(from as i32, n as i32, Dtype::F32).unwrap().reshape(&[1, 1, n as i32, 1]).unwrap();
        let v = k.negative().unwrap();
        (k, v)
    }

    fn feed(cache: &mut LayerCache, n: usize) -> (Vec<f32>, Reach) {
        let (k, v) = tokens(cache.offset(), n);
        let seen = cache.update(k, v).unwrap();
        let keys = seen.keys.to_vec_f32().unwrap();
        let values = seen.values.to_vec_f32().unwrap();
        assert!(keys.iter().zip(&values).all(|(k, v)| *k == -*v));
        (keys, seen.reach)
    }

    fn range(from: usize, to: usize) -> Vec<f32> {
        (from..to).map(|p| p as f32).collect()
    }

    /// What `n` more tokens see in a rotating cache that holds `before`, whatever happened to it.
    fn check_rotating(cache: &mut LayerCache, window: usize, n: usize) {
        let before = cache.offset();
        let (mut keys, reach) = feed(cache, n);
        if n == 1 {
            keys.sort_by(f32::total_cmp);
            assert_eq!(keys, range((before + 1).saturating_sub(window), before + 1));
        } else {
            assert_eq!(reach, Reach::Window(window));
            assert_eq!(keys, range(before.saturating_sub(window - 1), before + n));
        }
        assert!(cache.tensors().next().unwrap().dim(2) as usize <= window.max(cache.offset().min(window)) + 1);
    }

    fn rooms(cache: &LayerCache) -> Vec<i32> {
        cache.tensors().map(|t| t.dim(2)).collect()
    }

    #[test]
    fn what_is_expected_has_room_at_once_and_a_copy_has_room_for_what_is_held() {
        let mut cache = LayerCache::Plain(PlainCache::default());
        cache.expect(1000);
        for n in [1, 299, 700] {
            feed(&mut cache, n);
            assert_eq!(rooms(&cache), [room_for(1000) as i32; 2], "never grows while the prompt comes");
            let copy = cache.copied().unwrap();
            assert_eq!(rooms(&copy), [room_for(cache.offset() as u64) as i32; 2]);
            assert_eq!((copy.offset(), copy.is_lent(), cache.is_lent()), (cache.offset(), false, false));
        }
        feed(&mut cache, 200);
        assert_eq!(rooms(&cache), [room_for(1200) as i32; 2], "what was not expected has room as well");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_plain_cache_holds_everything_in_order(chunks in proptest::collection::vec(1usize..300, 1..6)) {
            let mut cache = LayerCache::Plain(PlainCache::default());
            let mut total = 0;
            for n in chunks {
                let (keys, reach) = feed(&mut cache, n);
                total += n;
                prop_assert_eq!(reach, Reach::All);
                prop_assert_eq!(keys, range(0, total));
                prop_assert_eq!(cache.offset(), total);
            }
        }

        #[test]
        fn a_rotating_cache_holds_the_window(window in 1usize..20, chunks in proptest::collection::vec(1usize..30, 1..12)) {
            let mut cache = LayerCache::Rotating(RotatingCache::new(window));
            for n in chunks {
                check_rotating(&mut cache, window, n);
            }
        }

        /// Views see what they were lent, the donor keeps what it had, whoever writes first.
        #[test]
        fn a_view_and_its_donor_go_separate_ways(
            window in proptest::option::of(1usize..20), first in 1usize..40, cut in 0usize..40,
            view_adds in 1usize..30, donor_adds in 1usize..30, donor_first in proptest::bool::ANY,
        ) {
            let mut donor = match window {
                Some(window) => LayerCache::Rotating(RotatingCache::new(window)),
                None => LayerCache::Plain(PlainCache::default()),
            };
            feed(&mut donor, first);
            let at = if donor.can_trim() { cut.min(first) } else { first };
            let lease = Lease::default();
            let mut view = donor.lend(at, &lease);
            prop_assert_eq!((view.offset(), lease.lent()), (at, 1));
            let check = |cache: &mut LayerCache, n: usize| match window {
                Some(window) => check_rotating(cache, window, n),
                None => {
                    let before = cache.offset();
                    assert_eq!(feed(cache, n).0, range(0, before + n));
                }
            };
            if donor_first {
                check(&mut donor, donor_adds);
            }
            check(&mut view, view_adds);
            prop_assert_eq!(lease.lent(), 0, "after the first write nothing is shared");
            check(&mut donor, donor_adds);
            check(&mut view, 1);
        }
    }
}
