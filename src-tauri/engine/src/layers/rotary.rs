//! Rotary position embedding (Su et al. 2021) over tokens of many rows at once.
//!
//! On a GPU it is one fused kernel. On a CPU MLX composes it from a dozen operations per call, sines and
//! cosines included; here those are computed once per step and shared by all layers, and queries and keys are
//! turned together in three operations.

use crate::error::Result;
use hearth_core::rope::Rope;
use hearth_mlx::{Device, Dtype, Tensor, concatenate};

/// The rotation of a model's heads.
#[derive(Debug)]
pub struct Rotary {
    traditional: bool,
    dims: i32,
    magnitude: f32,
    /// Angle per position of each pair, `[dims/2]`.
    inverse_frequencies: Tensor,
    /// Its reciprocal, as the fused kernel takes it.
    periods: Tensor,
    fused: bool,
}

/// What one step needs to turn its heads.
#[derive(Debug)]
pub enum Angles {
    /// The fused kernel's positions, i32 `[tokens]`.
    Positions(Tensor),
    /// Cosines and signed sines, ready to broadcast over `[tokens, heads, dims]` with pairs split out.
    Tables {
        /// cos, `[tokens, 1, 1, dims/2]` (or `[tokens, 1, dims/2, 1]` interleaved).
        cos: Tensor,
        /// (−sin, sin) along the pair axis.
        sin: Tensor,
    },
}

impl Rotary {
    /// Prepares a rotation for this device.
    ///
    /// # Errors
    /// MLX's.
    pub fn new(rope: &Rope, device: Device) -> Result<Self> {
        let inverse = rope.inverse_frequencies();
        let inverse_frequencies = Tensor::from_f32(&inverse, &[inverse.len() as i32])?;
        Ok(Rotary {
            traditional: rope.traditional,
            dims: rope.dims as i32,
            magnitude: rope.magnitude,
            periods: inverse_frequencies.reciprocal()?,
            inverse_frequencies,
            fused: device == Device::Gpu,
        })
    }

    /// The angles for tokens at these positions.
    ///
    /// # Errors
    /// MLX's.
    pub fn angles(&self, positions: &[i32]) -> Result<Angles> {
        let positions = Tensor::from_i32(positions)?;
        if self.fused {
            return Ok(Angles::Positions(positions));
        }
        let (pair_axis, shape) =
            if self.traditional { (3, [-1, 1, self.dims / 2, 1]) } else { (2, [-1, 1, 1, self.dims / 2]) };
        let theta = positions.astype(Dtype::F32)?.reshape(&[-1, 1])?.multiply(&self.inverse_frequencies)?;
        let (mut cos, mut sin) = (theta.cos()?, theta.sin()?);
        if self.magnitude != 1.0 {
            let magnitude = Tensor::scalar(self.magnitude);
            (cos, sin) = (cos.multiply(&magnitude)?, sin.multiply(&magnitude)?);
        }
        let (cos, sin) = (cos.reshape(&shape)?, sin.reshape(&shape)?);
        Ok(Angles::Tables { sin: concatenate([&sin.negative()?, &sin], pair_axis)?, cos })
    }

    /// Turns the first `dims` dimensions of heads `[tokens, heads, head_dim]`.
    ///
    /// # Errors
    /// MLX's.
    pub fn apply(&self, x: &Tensor, angles: &Angles) -> Result<Tensor> {
        let (tokens, heads, width) = (x.dim(0), x.dim(1), x.dim(2));
        if width > self.dims && !(self.fused && self.magnitude == 1.0) {
            let turned = self.apply(&x.slice(2, 0, self.dims)?, angles)?;
            return Ok(concatenate([&turned, &x.slice(2, self.dims, width)?], 2)?);
        }
        match angles {
            Angles::Positions(positions) => {
                let x = if self.magnitude == 1.0 {
                    x.share()
                } else {
                    x.multiply(&Tensor::scalar(self.magnitude).astype(x.dtype()?)?)?
                };
                // Every token is a batch of its own, so that each can have its own position.
                let turned = x.expand_dims(2)?.rope(self.dims, self.traditional, 1.0, positions, &self.periods)?;
                Ok(turned.reshape(&[tokens, heads, width])?)
            }
            Angles::Tables { cos, sin } => {
                let half = self.dims / 2;
                // (a, b) → (a·cos − b·sin, b·cos + a·sin): the pair itself, and the pair swapped.
                let (shape, start, stop, strides) = if self.traditional {
                    ([tokens, heads, half, 2], [0, 0, 0, 1], [tokens, heads, half, -3], [1, 1, 1, -1])
                } else {
                    ([tokens, heads, 2, half], [0, 0, 1, 0], [tokens, heads, -3, half], [1, 1, -1, 1])
                };
                let pairs = x.reshape(&shape)?;
                let swapped = pairs.slice_strided(&start, &stop, &strides)?;
                let turned = pairs.multiply(cos)?.add(&swapped.multiply(sin)?)?;
                Ok(turned.reshape(&[tokens, heads, self.dims])?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_and_the_fused_operation_agree() {
        for traditional in [false, true] {
            for magnitude in [1.0, 1.25] {
                let rope = Rope { dims: 8, traditional, scale: 0.5, base: 100.0, periods: None, magnitude };
                let x = Tensor::arange(0, 72, Dtype::F32).unwrap().reshape(&[3, 2, 12]).unwrap();
                let turn = |device| {
                    let r = Rotary::new(&rope, device).unwrap();
                    r.apply(&x, &r.angles(&[0, 5, 1000]).unwrap()).unwrap().to_vec_f32().unwrap()
                };
                let (a, b) = (turn(Device::Cpu), turn(Device::Gpu));
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 2e-3), "{a:?}\n{b:?}");
                assert!((a[0] - 0.0).abs() < 1e-6 && (a[1] - magnitude).abs() < 1e-6, "position 0 turns nothing");
                assert_eq!(a[68..], [68.0, 69.0, 70.0, 71.0], "dimensions beyond the rotation's stay as they are");
            }
        }
    }
}
