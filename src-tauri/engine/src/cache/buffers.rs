//! Buffers with a token axis that grow in steps, written in place, and lent without a copy.

use super::Lease;
use crate::error::{Error, Result};
use hearth_core::layout::room_for;
use hearth_mlx::{Tensor, concatenate};

/// `N` buffers `[1, heads, room, width]`, each with its own width, filled from the front alike.
#[derive(Debug)]
pub struct Buffers<const N: usize> {
    arrays: Option<[Tensor; N]>,
    /// Tokens that will come in any case.
    expected: i32,
    /// Set while the arrays are somebody else's too: then the first write makes a copy.
    lease: Option<Lease>,
}

impl<const N: usize> Default for Buffers<N> {
    fn default() -> Self {
        Buffers { arrays: None, expected: 0, lease: None }
    }
}

/// Makes `N` tensors.
fn each<const N: usize>(make: impl FnMut(usize) -> Result<Tensor>) -> Result<[Tensor; N]> {
    let all: Vec<Tensor> = (0..N).map(make).collect::<Result<_>>()?;
    all.try_into().map_err(|_| Error::WrongCache { layer: "attention" })
}

impl<const N: usize> Buffers<N> {
    /// Buffers that hold these arrays.
    pub fn of(arrays: [Tensor; N]) -> Self {
        Buffers { arrays: Some(arrays), ..Buffers::default() }
    }

    /// The arrays with their spare room.
    pub fn arrays(&self) -> impl Iterator<Item = &Tensor> {
        self.arrays.iter().flatten()
    }

    /// Whether the arrays are somebody else's.
    pub fn is_lent(&self) -> bool {
        self.lease.is_some()
    }

    /// Puts these arrays in place of what was there.
    pub fn replace(&mut self, arrays: [Tensor; N]) {
        *self = Buffers::of(arrays);
    }

    /// Another handle to the same arrays. Whoever writes first, copies.
    pub fn shared(&self) -> Self {
        let arrays = self.arrays.as_ref().map(|all| all.each_ref().map(Tensor::share));
        Buffers { arrays, ..Buffers::default() }
    }

    /// The same, counted by the owner.
    pub fn lend(&self, lease: &Lease) -> Self {
        Buffers { lease: Some(lease.clone()), ..self.shared() }
    }

    /// So many tokens will be held in any case: the next time that the buffers grow, they have room for them. Growing chunk
    /// by chunk copies all there is each time, and leaves holes between other buffers.
    pub fn expect(&mut self, tokens: usize) {
        self.expected = i32::try_from(tokens).unwrap_or(i32::MAX);
    }

    /// A copy of the first `held` tokens, with the room that so many get.
    ///
    /// # Errors
    /// MLX's.
    pub fn copied(&self, held: usize) -> Result<Self> {
        let room = room_for(held as u64) as i32;
        let copy = |all: &[Tensor; N]| each(|i| grown(Some(&all[i]), &all[i], held as i32, room));
        Ok(Buffers { arrays: self.arrays.as_ref().map(copy).transpose()?, ..Buffers::default() })
    }

    /// Writes new tokens `[1, heads, n, width]` at `at` into buffers of which `held` tokens count, growing to at most
    /// `limit` tokens.
    ///
    /// # Errors
    /// MLX's.
    pub fn write(&mut self, new: &[Tensor; N], at: i32, held: i32, limit: i32) -> Result<()> {
        let end = (at + new[0].dim(2)).max(held);
        let lent = self.lease.take().is_some();
        let base = match self.arrays.take() {
            Some(own) if !lent && own[0].dim(2) >= end => own,
            other => {
                let room = (room_for(end.max(self.expected) as u64) as i32).min(limit.max(end));
                each(|i| grown(other.as_ref().map(|all| &all[i]), &new[i], held, room))?
            }
        };
        let mut base = base.into_iter();
        self.arrays = Some(each(|i| match base.next() {
            // MLX takes an update of the whole for the result itself: a view that would keep the projections of all tokens
            // in memory for as long as the cache lives.
            Some(buffer) if buffer.dim(2) == new[i].dim(2) => Ok(new[i].contiguous()?),
            Some(buffer) => Ok(buffer.with_slice(&new[i], 2, at)?),
            None => Err(Error::WrongCache { layer: "attention" }),
        })?);
        Ok(())
    }

    /// Views of the first `n` tokens.
    ///
    /// # Errors
    /// MLX's.
    pub fn front(&self, n: i32) -> Result<Option<[Tensor; N]>> {
        self.arrays.as_ref().map(|all| each(|i| Ok(all[i].slice(2, 0, n)?))).transpose()
    }
}

/// `room` tokens of space whose first `used` are those of `old`.
fn grown(old: Option<&Tensor>, like: &Tensor, used: i32, room: i32) -> Result<Tensor> {
    let shape = |tokens| [1, like.dim(1), tokens, like.dim(3)];
    let dtype = like.dtype()?;
    Ok(match old {
        Some(old) if used > 0 => {
            let old = old.slice(2, 0, used)?;
            // Even without spare room this must be a copy: the old buffer may be another's.
            concatenate([&old, &Tensor::zeros(&shape((room - used).max(1)), dtype)?], 2)?
        }
        _ => Tensor::zeros(&shape(room), dtype)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_mlx::{Dtype, eval};

    #[test]
    fn tokens_that_fill_the_buffer_are_copied_out_of_what_they_were_computed_in() {
        // 64 tokens are just the room of the first buffer; the keys lie between queries and values.
        let all = Tensor::arange(0, 64 * 6 * 8, Dtype::F32).unwrap().reshape(&[64, 6, 8]).unwrap();
        let keys = all.slice(1, 2, 4).unwrap().transpose(&[1, 0, 2]).unwrap().expand_dims(0).unwrap();
        let mut buffers = Buffers::<1>::default();
        buffers.write(&[keys.share()], 0, 0, i32::MAX).unwrap();
        let [held] = &buffers.arrays().collect::<Vec<_>>()[..] else { panic!("one array") };
        eval([*held, &keys]).unwrap();
        assert!(keys.to_bytes().is_err(), "a view");
        assert!(held.to_bytes().is_ok(), "a buffer of its own");
        assert_eq!(held.to_vec_f32().unwrap(), keys.to_vec_f32().unwrap());
    }
}
