//! The gated MLP of Llama-like models: down(act(gate(x)) · up(x)) (SwiGLU and GeGLU, Shazeer 2020).

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::weights::Weights;
use hearth_core::config::{Activation, ModelConfig};
use hearth_mlx::Tensor;

/// Gate and up as one product, then down.
#[derive(Debug)]
pub struct Mlp {
    gate_up: Linear,
    down: Linear,
    width: i32,
    activation: Activation,
}

/// Llama's names of gate, up and down.
pub const LLAMA: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl Mlp {
    /// Reads gate, up and down, called like this below `path`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, names: [&str; 3], config: &ModelConfig) -> Result<Self> {
        let (hidden, width) = (config.hidden_size, config.intermediate_size);
        let [gate, up, down] = names.map(|name| format!("{path}.{name}"));
        Ok(Mlp {
            gate_up: weights.linear(&[(&gate, width), (&up, width)], hidden, config.mlp_bias)?,
            down: weights.linear(&[(&down, hidden)], width, config.mlp_bias)?,
            width: width as i32,
            activation: config.activation,
        })
    }

    /// `[tokens, hidden]` → the same.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let both = self.gate_up.forward(x)?;
        let (gate, up) = (both.slice(1, 0, self.width)?, both.slice(1, self.width, 2 * self.width)?);
        let open = match self.activation {
            Activation::Silu => gate.sigmoid()?,
            Activation::GeluTanh => gelu_share(&gate)?,
        };
        self.down.forward(&gate.multiply(&open)?.multiply(&up)?)
    }
}

/// What GELU's tanh approximation lets through: ½(1 + tanh y) = sigmoid(2y), y = √(2/π)·(x + 0.044715·x³).
fn gelu_share(x: &Tensor) -> Result<Tensor> {
    const FACTOR: f32 = 1.595_769_2; // 2·√(2/π)
    let constant = |value: f32| Tensor::scalar(value).astype(x.dtype()?);
    let curve = x.multiply(x)?.multiply(&constant(FACTOR * 0.044_715)?)?.add(&constant(FACTOR)?)?;
    Ok(x.multiply(&curve)?.sigmoid()?)
}
