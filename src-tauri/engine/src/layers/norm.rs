//! RMS norm (Zhang and Sennrich 2019).

use crate::error::Result;
use crate::weights::Weights;
use hearth_core::config::ModelConfig;
use hearth_mlx::{Tensor, eval};

/// Root-mean-square norm over the last axis with a learned weight.
#[derive(Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Reads `{path}.weight`, `[width]`, and adds the offset that the config has for its norms.
    ///
    /// # Errors
    /// Missing or of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, width: usize, config: &ModelConfig) -> Result<Self> {
        let stored = weights.tensor(&format!("{path}.weight"), &[width])?;
        let weight = match config.norm_offset {
            0.0 => stored,
            offset => stored.add(&Tensor::scalar(offset).astype(stored.dtype()?)?)?,
        };
        eval([&weight])?;
        Ok(RmsNorm { weight, eps: config.rms_norm_eps })
    }

    /// A norm of this weight `[width]`.
    pub fn new(weight: Tensor, eps: f32) -> Self {
        RmsNorm { weight, eps }
    }

    /// `[…, width]` → the same.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.rms_norm(&self.weight, self.eps)?)
    }
}
