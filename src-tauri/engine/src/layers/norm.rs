//! RMS norm (Zhang and Sennrich 2019).

use crate::error::Result;
use crate::weights::Weights;
use hearth_mlx::Tensor;

/// Root-mean-square norm over the last axis with a learned weight.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Reads `{path}.weight`, `[width]`.
    ///
    /// # Errors
    /// Missing or of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, width: usize, eps: f32) -> Result<Self> {
        Ok(RmsNorm { weight: weights.tensor(&format!("{path}.weight"), &[width])?, eps })
    }

    /// `[…, width]` → the same.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.rms_norm(&self.weight, self.eps)?)
    }
}
