//! The gated MLP of Llama-like models: down(silu(gate(x)) · up(x)) (SwiGLU, Shazeer 2020).

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::weights::Weights;
use hearth_core::config::ModelConfig;
use hearth_mlx::Tensor;

/// Gate and up as one product, then down.
#[derive(Debug)]
pub struct Mlp {
    gate_up: Linear,
    down: Linear,
    width: i32,
}

impl Mlp {
    /// Reads `gate_proj`, `up_proj` and `down_proj` below `path`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, config: &ModelConfig) -> Result<Self> {
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let (gate, up) = (format!("{path}.gate_proj"), format!("{path}.up_proj"));
        Ok(Mlp {
            gate_up: weights.linear(&[(&gate, width), (&up, width)], hidden, config.mlp_bias)?,
            down: weights.linear(&[(&format!("{path}.down_proj"), hidden)], width, config.mlp_bias)?,
            width: width as i32,
        })
    }

    /// `[tokens, hidden]` → the same.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let both = self.gate_up.forward(x)?;
        let (gate, up) = (both.slice(1, 0, self.width)?, both.slice(1, self.width, 2 * self.width)?);
        self.down.forward(&gate.multiply(&gate.sigmoid()?)?.multiply(&up)?)
    }
}
