//! Cache layouts as data: what each layer keeps per token. The engine builds its caches from it and `fit`
//! counts bytes with it, so the two cannot disagree.

/// Tokens by which a cache's buffer grows at least.
const STEP: u64 = 64;

/// Tokens that a buffer with a token axis gets when it has to hold `tokens` of them: a sixteenth more at least, so that a
/// long row does not copy itself again and again, and is not charged for much that it may never use.
pub fn room_for(tokens: u64) -> u64 {
    (tokens + (tokens / 16).max(STEP) - 1) / STEP * STEP
}

/// What one layer keeps while a row runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerLayout {
    /// Keys and values of every token: 2 · kv_heads · head_dim elements a token.
    Full {
        /// Key/value heads.
        kv_heads: usize,
        /// Elements per head.
        head_dim: usize,
    },
    /// Keys and values of the last `window` tokens.
    Sliding {
        /// Key/value heads.
        kv_heads: usize,
        /// Elements per head.
        head_dim: usize,
        /// Tokens kept.
        window: usize,
    },
    /// A state of constant size: the last inputs of a short convolution, and the matrix of a linear attention.
    Recurrent {
        /// Elements of the convolution's state.
        conv: usize,
        /// Elements of the matrix, which is always f32; 0 where there is none.
        state: usize,
    },
}

impl LayerLayout {
    /// Bytes for a row of `tokens` tokens at `element` bytes per element.
    pub fn bytes(&self, tokens: u64, element: u64) -> u64 {
        match *self {
            LayerLayout::Full { kv_heads, head_dim } => 2 * (kv_heads * head_dim) as u64 * element * tokens,
            LayerLayout::Sliding { kv_heads, head_dim, window } => {
                2 * (kv_heads * head_dim) as u64 * element * tokens.min(window as u64)
            }
            LayerLayout::Recurrent { conv, state } => conv as u64 * element + state as u64 * 4,
        }
    }
}

/// The cache layout of a whole model, layer by layer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheLayout {
    /// One entry per layer.
    pub layers: Vec<LayerLayout>,
}

impl CacheLayout {
    /// Bytes for a row of `tokens` tokens at `element` bytes per element.
    pub fn bytes(&self, tokens: u64, element: u64) -> u64 {
        self.layers.iter().map(|l| l.bytes(tokens, element)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sliding_layers_saturate_at_the_window() {
        let full = LayerLayout::Full { kv_heads: 2, head_dim: 32 };
        let sliding = LayerLayout::Sliding { kv_heads: 2, head_dim: 32, window: 16 };
        let layout = CacheLayout { layers: vec![full, sliding] };
        assert_eq!(layout.bytes(10, 4), 2 * (2 * 64 * 4 * 10));
        assert_eq!(layout.bytes(100, 4), 2 * 64 * 4 * (100 + 16));
    }

    #[test]
    fn recurrent_layers_do_not_grow_and_keep_their_matrix_in_f32() {
        let layer = LayerLayout::Recurrent { conv: 3 * 64, state: 4 * 16 * 32 };
        assert_eq!(layer.bytes(1, 2), 3 * 64 * 2 + 4 * 16 * 32 * 4);
        assert_eq!(layer.bytes(100_000, 2), layer.bytes(1, 2));
    }
}
