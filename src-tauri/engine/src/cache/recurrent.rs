//! The state of a recurrent layer: constant in size, replaced as a whole, never trimmed.

use super::Lease;
use hearth_mlx::Tensor;

/// What a short convolution and a linear attention carry from one token to the next.
#[derive(Debug, Default)]
pub struct RecurrentCache {
    conv: Option<Tensor>,
    state: Option<Tensor>,
    offset: usize,
    /// Held while the arrays are somebody else's too.
    lease: Option<Lease>,
}

impl RecurrentCache {
    /// The state after `offset` tokens.
    pub fn of(conv: Option<Tensor>, state: Option<Tensor>, offset: usize) -> Self {
        RecurrentCache { conv, state, offset, lease: None }
    }

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
        *self = RecurrentCache::of(conv, state, self.offset + tokens);
    }

    /// Whether the arrays are somebody else's until the next token.
    pub fn is_lent(&self) -> bool {
        self.lease.is_some()
    }

    /// Another handle to the same state, which nobody writes to: it is replaced.
    pub fn shared(&self) -> Self {
        let share = |t: &Option<Tensor>| t.as_ref().map(Tensor::share);
        Self::of(share(&self.conv), share(&self.state), self.offset)
    }

    /// The same, counted by its owner.
    pub fn lend(&self, lease: &Lease) -> Self {
        RecurrentCache { lease: Some(lease.clone()), ..self.shared() }
    }

    /// What it holds.
    pub fn arrays(&self) -> impl Iterator<Item = &Tensor> {
        self.conv.iter().chain(&self.state)
    }
}
