//! The two float KV caches: one that grows, one that turns.

use super::{Reach, Seen};
use crate::error::Result;
use hearth_mlx::{Tensor, concatenate};

/// Tokens by which a buffer grows at least.
const STEP: i32 = 64;

/// A pair of buffers `[1, kv_heads, room, head_dim]` filled from the front.
#[derive(Debug, Default)]
struct Buffers {
    pair: Option<(Tensor, Tensor)>,
}

impl Buffers {
    /// Writes `n` tokens at `at`, growing to at most `limit` tokens.
    fn write(&mut self, keys: &Tensor, values: &Tensor, at: i32, limit: i32) -> Result<()> {
        let end = at + keys.dim(2);
        let (k, v) = match self.pair.take() {
            Some((k, v)) if k.dim(2) >= end => (k, v),
            other => {
                // An eighth more at least, so that a long row does not copy itself again and again.
                let room = (end + (end / 8).max(STEP) - 1) / STEP * STEP;
                let room = room.min(limit.max(end));
                (
                    grow(other.as_ref().map(|p| &p.0), keys, at, room)?,
                    grow(other.as_ref().map(|p| &p.1), values, at, room)?,
                )
            }
        };
        self.pair = Some((k.with_slice(keys, 2, at)?, v.with_slice(values, 2, at)?));
        Ok(())
    }

    /// Views of the first `n` tokens.
    fn front(&self, n: i32) -> Result<Option<(Tensor, Tensor)>> {
        match &self.pair {
            Some((k, v)) => Ok(Some((k.slice(2, 0, n)?, v.slice(2, 0, n)?))),
            None => Ok(None),
        }
    }
}

/// `room` tokens of space whose first `used` are those of `old`.
fn grow(old: Option<&Tensor>, like: &Tensor, used: i32, room: i32) -> Result<Tensor> {
    let shape = |tokens| [1, like.dim(1), tokens, like.dim(3)];
    let dtype = like.dtype()?;
    Ok(match old {
        Some(old) if used > 0 => {
            concatenate([&old.slice(2, 0, used)?, &Tensor::zeros(&shape(room - used), dtype)?], 2)?
        }
        _ => Tensor::zeros(&shape(room), dtype)?,
    })
}

/// Keys and values of every token, in a buffer that grows in steps.
#[derive(Debug, Default)]
pub struct PlainCache {
    buffers: Buffers,
    offset: usize,
}

impl PlainCache {
    /// Tokens held.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Keys and values with their spare room.
    pub fn buffers(&self) -> Option<(&Tensor, &Tensor)> {
        self.buffers.pair.as_ref().map(|(k, v)| (k, v))
    }

    /// See [`super::LayerCache::update`].
    ///
    /// # Errors
    /// MLX's.
    pub fn update(&mut self, keys: Tensor, values: Tensor) -> Result<Seen> {
        let n = keys.dim(2);
        self.buffers.write(&keys, &values, self.offset as i32, i32::MAX)?;
        self.offset += n as usize;
        let (keys, values) = self.buffers.front(self.offset as i32)?.unwrap_or((keys, values));
        Ok(Seen { keys, values, reach: Reach::All })
    }
}

/// Keys and values of the last `window` tokens. The token at position p lives in slot p mod window; order does
/// not matter to attention, because positions are in the keys already.
#[derive(Debug)]
pub struct RotatingCache {
    buffers: Buffers,
    window: usize,
    offset: usize,
}

impl RotatingCache {
    /// An empty cache of this window (at least 1).
    pub fn new(window: usize) -> Self {
        RotatingCache { buffers: Buffers::default(), window: window.max(1), offset: 0 }
    }

    /// Tokens that went in, those that fell out included.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Keys and values in slot order.
    pub fn buffers(&self) -> Option<(&Tensor, &Tensor)> {
        self.buffers.pair.as_ref().map(|(k, v)| (k, v))
    }

    /// See [`super::LayerCache::update`]. One token sees just what is returned; several see a window each.
    ///
    /// # Errors
    /// MLX's.
    pub fn update(&mut self, keys: Tensor, values: Tensor) -> Result<Seen> {
        let (n, window) = (keys.dim(2), self.window as i32);
        if n == 1 {
            let slot = (self.offset % self.window) as i32;
            self.buffers.write(&keys, &values, slot, window)?;
            self.offset += 1;
            let held = self.offset.min(self.window) as i32;
            let (keys, values) = self.buffers.front(held)?.unwrap_or((keys, values));
            return Ok(Seen { keys, values, reach: Reach::All });
        }
        // Several tokens: the window − 1 before them in order, then themselves, each seeing its own window.
        let (old_keys, old_values) = self.in_order()?;
        let joined = |old: Option<Tensor>, new: Tensor| match old {
            Some(old) => concatenate([&old, &new], 2),
            None => Ok(new),
        };
        let (keys, values) = (joined(old_keys, keys)?, joined(old_values, values)?);
        self.offset += n as usize;
        self.buffers.pair = Some((self.slotted(&keys)?, self.slotted(&values)?));
        Ok(Seen { keys, values, reach: Reach::Window(self.window) })
    }

    /// The last window − 1 tokens, oldest first.
    fn in_order(&self) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let keep = self.offset.min(self.window - 1) as i32;
        let Some((k, v)) = self.buffers().filter(|_| keep > 0) else { return Ok((None, None)) };
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
    use super::*;
    use hearth_mlx::Dtype;
    use proptest::prelude::*;

    /// Token p has key p (and value −p), one head, one dimension.
    fn tokens(from: usize, n: usize) -> (Tensor, Tensor) {
        let k = Tensor::arange(from as i32, n as i32, Dtype::F32).unwrap().reshape(&[1, 1, n as i32, 1]).unwrap();
        let v = k.negative().unwrap();
        (k, v)
    }

    fn feed(cache: &mut super::super::LayerCache, n: usize) -> (Vec<f32>, Reach) {
        let (k, v) = tokens(cache.offset(), n);
        let seen = cache.update(k, v).unwrap();
        let keys = seen.keys.to_vec_f32().unwrap();
        let values = seen.values.to_vec_f32().unwrap();
        assert!(keys.iter().zip(&values).all(|(k, v)| *k == -*v));
        (keys, seen.reach)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_plain_cache_holds_everything_in_order(chunks in proptest::collection::vec(1usize..300, 1..6)) {
            let mut cache = super::super::LayerCache::Plain(PlainCache::default());
            let mut total = 0;
            for n in chunks {
                let (keys, reach) = feed(&mut cache, n);
                total += n;
                prop_assert_eq!(reach, Reach::All);
                prop_assert_eq!(keys, (0..total).map(|p| p as f32).collect::<Vec<_>>());
                prop_assert_eq!(cache.offset(), total);
            }
        }

        #[test]
        fn a_rotating_cache_holds_the_window(window in 1usize..20, chunks in proptest::collection::vec(1usize..30, 1..12)) {
            let mut cache = super::super::LayerCache::Rotating(RotatingCache::new(window));
            let mut total = 0usize;
            for n in chunks {
                let (mut keys, reach) = feed(&mut cache, n);
                let before = total;
                total += n;
                if n == 1 {
                    keys.sort_by(f32::total_cmp);
                    let from = total.saturating_sub(window);
                    prop_assert_eq!(keys, (from..total).map(|p| p as f32).collect::<Vec<_>>());
                } else {
                    prop_assert_eq!(reach, Reach::Window(window));
                    let from = before.saturating_sub(window - 1);
                    prop_assert_eq!(keys, (from..total).map(|p| p as f32).collect::<Vec<_>>());
                }
                let held = cache.tensors().next().unwrap();
                prop_assert!(held.dim(2) as usize <= window.max(total.min(window)));
            }
        }
    }
}
