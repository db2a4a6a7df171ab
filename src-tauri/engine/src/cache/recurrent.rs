//! The state of a recurrent layer: constant in size, replaced as a whole, never trimmed.

use hearth_mlx::Tensor;

/// What a short convolution and a linear attention carry from one token to the next.
#[derive(Debug, Default)]
pub struct RecurrentCache {
    conv: Option<Tensor>,
    state: Option<Tensor>,
    offset: usize,
}

impl RecurrentCache {
    /// Tokens that went in.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The convolution's last inputs, in the shape that the model gave them; `None` before the first token.
    pub fn conv(&self) -> Option<&Tensor> {
        self.conv.as_ref()
    }

    /// The linear attention's matrix, in the shape that the model gave it.
    pub fn state(&self) -> Option<&Tensor> {
        self.state.as_ref()
    }

    /// Goes on by `tokens` tokens to a new state. What is given must not be a view into larger buffers.
    pub fn advance(&mut self, tokens: usize, conv: Option<Tensor>, state: Option<Tensor>) {
        (self.conv, self.state) = (conv, state);
        self.offset += tokens;
    }

    /// What it holds.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.iter().chain(&self.state)
    }
}
