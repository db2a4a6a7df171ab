//! Grouped-query attention (Ainslie et al. 2023) with rotary embedding: projections and rotation over all
//! tokens of a step, attention itself row by row on each row's own cache.

use crate::cache::{Reach, Seen};
use crate::error::Result;
use crate::layers::linear::Linear;
use crate::layers::norm::RmsNorm;
use crate::layers::rotary::Rotary;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config::{LayerConfig, ModelConfig};
use hearth_mlx::{Device, Mask, Tensor, causal_probabilities, concatenate, eval};

/// What a family calls attention's own weights beside `q_proj`, `k_proj` and `v_proj`.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The output projection.
    pub out: &'static str,
    /// The norm of the queries.
    pub q_norm: &'static str,
    /// The norm of the keys.
    pub k_norm: &'static str,
}

/// Llama's names, which most families took over.
pub const LLAMA: Names = Names { out: "o_proj", q_norm: "q_norm", k_norm: "k_norm" };

/// Queries that share one product on a CPU.
const QUERY_BLOCK: i32 = 128;

/// One layer's attention.
#[derive(Debug)]
pub struct Attention {
    qkv: Linear,
    out: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    rope: bool,
    /// Whether each head of the q projection is a query and the gate of its output.
    gated: bool,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    scale: f32,
    device: Device,
}

impl Attention {
    /// Reads the projections (and the norms of queries and keys where the config has them) below `path`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(
        weights: &mut Weights<'_>,
        path: &str,
        names: Names,
        config: &ModelConfig,
        layer: &LayerConfig,
    ) -> Result<Self> {
        let (q, kv) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        let name = |part: &str| format!("{path}.{part}");
        let queries = if config.attention_gate { 2 * q } else { q };
        let parts = [(&*name("q_proj"), queries), (&*name("k_proj"), kv), (&*name("v_proj"), kv)];
        let norms = if config.qk_norm {
            let mut norm = |part| RmsNorm::load(weights, &name(part), config.head_dim, config);
            Some((norm(names.q_norm)?, norm(names.k_norm)?))
        } else {
            None
        };
        Ok(Attention {
            qkv: weights.linear(&parts, config.hidden_size, config.qkv_bias)?,
            out: weights.linear(&[(&name(names.out), config.hidden_size)], q, config.o_bias)?,
            norms,
            rope: layer.rope,
            gated: config.attention_gate,
            heads: config.num_heads as i32,
            kv_heads: config.num_kv_heads as i32,
            head_dim: config.head_dim as i32,
            scale: config.attention_scale,
            device: weights.device(),
        })
    }

    /// `[tokens, hidden]` → the same; `layer` says which cache of each row is this layer's.
    ///
    /// # Errors
    /// MLX's.
    pub fn forward(&self, x: &Tensor, rotary: &Rotary, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let (tokens, h, kv, d) = (x.dim(0), self.heads, self.kv_heads, self.head_dim);
        let (qkv, gate) = match self.qkv.forward(x)? {
            both if self.gated => self.split_gate(&both)?,
            qkv => (qkv, None),
        };
        let qkv = qkv.reshape(&[tokens, h + 2 * kv, d])?;
        let values = qkv.slice(1, h + kv, h + 2 * kv)?;
        let mut qk = qkv.slice(1, 0, h + kv)?;
        if let Some((q_norm, k_norm)) = &self.norms {
            let (q, k) = (q_norm.forward(&qk.slice(1, 0, h)?)?, k_norm.forward(&qk.slice(1, h, h + kv)?)?);
            qk = concatenate([&q, &k], 1)?;
        }
        if self.rope {
            qk = rotary.apply(&qk, step.angles(rotary)?)?;
        }
        let single = (0..step.rows()).all(|row| step.tokens(row) == 1);
        let mut output = if single && self.device == Device::Cpu {
            self.attend_singly(&qk, &values, step, layer)?
        } else {
            self.attend(&qk, &values, step, layer)?
        };
        if let Some(gate) = gate {
            output = output.multiply(&gate)?;
        }
        self.out.forward(&output)
    }

    /// Every row's attention on its own cache, one after the other.
    fn attend(&self, qk: &Tensor, values: &Tensor, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let (h, kv, d) = (self.heads, self.kv_heads, self.head_dim);
        let mut outputs = Vec::with_capacity(step.rows());
        let mut at = 0;
        for row in 0..step.rows() {
            let n = step.tokens(row);
            let part = |of: &Tensor, from: i32, to: i32| of.slice_strided(&[at, from, 0], &[at + n, to, d], &[1, 1, 1]);
            // [n, heads, d] → [1, heads, n, d]; for a single token that is a reshape, not a transposition.
            let heads_first = |t: Tensor, heads: i32| {
                if n == 1 { t.reshape(&[1, heads, 1, d]) } else { t.transpose(&[1, 0, 2])?.expand_dims(0) }
            };
            let keys = heads_first(part(qk, h, h + kv)?, kv)?;
            let values = heads_first(part(values, 0, kv)?, kv)?;
            let seen = step.cache(row, layer).update(keys, values)?;
            let queries = part(qk, 0, h)?;
            let output = if n == 1 && (self.device == Device::Cpu || seen.packed.is_some()) {
                self.attend_one(&self.grouped(&queries)?, &seen)?.reshape(&[1, h * d])?
            } else {
                let queries = heads_first(queries, h)?;
                let output = match seen.reach {
                    Reach::All if n == 1 => queries.attention(&seen.keys, &seen.values, self.scale, Mask::None)?,
                    Reach::All if self.device == Device::Cpu => {
                        self.attend_in_blocks(&queries, &seen.keys, &seen.values)?
                    }
                    Reach::All => queries.attention(&seen.keys, &seen.values, self.scale, Mask::Causal)?,
                    Reach::Window(window) => {
                        let mask = step.window_mask(row, window, seen.keys.dim(2))?;
                        queries.attention(&seen.keys, &seen.values, self.scale, Mask::Array(mask))?
                    }
                };
                output.transpose(&[0, 2, 1, 3])?.reshape(&[n, h * d])?
            };
            outputs.push(output);
            at += n;
        }
        match &outputs[..] {
            [one] => Ok(one.share()),
            many => Ok(concatenate(many, 0)?),
        }
    }

    /// One token of every row on a CPU: each operation costs some microseconds there however little it computes, so
    /// that whatever can is done for all rows at once.
    fn attend_singly(&self, qk: &Tensor, values: &Tensor, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let (h, kv) = (self.heads, self.kv_heads);
        let queries = self.grouped(&qk.slice(1, 0, h)?)?;
        let (keys, values) = (qk.slice(1, h, h + kv)?.expand_dims(2)?, values.expand_dims(2)?);
        let mut outputs = Vec::with_capacity(step.rows());
        for row in 0..step.rows() {
            let part = |of: &Tensor| of.slice(0, row as i32, row as i32 + 1);
            let seen = step.cache(row, layer).update(part(&keys)?, part(&values)?)?;
            outputs.push(self.attend_one(&part(&queries)?, &seen)?);
        }
        let output = match &outputs[..] {
            [one] => one.share(),
            many => concatenate(many, 0)?,
        };
        Ok(output.reshape(&[step.rows() as i32, h * self.head_dim])?)
    }

    /// Queries `[rows, heads, head_dim]`, scaled, by the key/value head that they look at:
    /// `[rows, kv_heads, group, head_dim]`.
    fn grouped(&self, queries: &Tensor) -> Result<Tensor> {
        let scaled = queries.multiply(&Tensor::scalar(self.scale).astype(queries.dtype()?)?)?;
        Ok(scaled.reshape(&[queries.dim(0), self.kv_heads, self.heads / self.kv_heads, self.head_dim])?)
    }

    /// The projections without the gate, and the open share of each output, `[tokens, heads · head_dim]`.
    fn split_gate(&self, qkv: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let (tokens, h, kv, d) = (qkv.dim(0), self.heads, self.kv_heads, self.head_dim);
        let both = qkv.slice(1, 0, 2 * h * d)?.reshape(&[tokens, h, 2, d])?;
        let half = |i: i32| both.slice(2, i, i + 1)?.reshape(&[tokens, h * d]);
        let (queries, gate) = (half(0)?, half(1)?.sigmoid()?);
        Ok((concatenate([&queries, &qkv.slice(1, 2 * h * d, (2 * h + 2 * kv) * d)?], 1)?, Some(gate)))
    }

    /// Many tokens on a CPU, a block of queries at a time over the keys that it may see: a product would compute hidden
    /// scores like all others, and this leaves out nearly half of them, and most of their memory.
    fn attend_in_blocks(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let (n, past, kv) = (queries.dim(2), keys.dim(2) - queries.dim(2), self.kv_heads);
        let queries = queries.multiply(&Tensor::scalar(self.scale).astype(queries.dtype()?)?)?;
        let mut outputs = Vec::new();
        for from in (0..n).step_by(QUERY_BLOCK as usize) {
            let to = (from + QUERY_BLOCK).min(n);
            let (keys, values) = (keys.slice(2, 0, past + to)?, values.slice(2, 0, past + to)?);
            // The query heads that look at one key head are the rows of one product.
            let (group, block) = (self.heads / kv, to - from);
            let rows = queries.slice(2, from, to)?.reshape(&[1, kv, group * block, self.head_dim])?;
            let seen = causal_probabilities(&rows, &keys, block as usize)?.matmul(&values)?;
            // Now, so that the scores of one block go before those of the next come.
            eval([&seen])?;
            outputs.push(seen.reshape(&[1, self.heads, block, self.head_dim])?);
        }
        match &outputs[..] {
            [one] => Ok(one.share()),
            many => Ok(concatenate(many, 2)?),
        }
    }

    /// One token's grouped queries `[1, kv_heads, group, head_dim]` → the same shape, on a CPU or over quantized keys
    /// and values: the group's query heads are the rows of one small product per key/value head. No mask: whatever a
    /// cache hands to a single token, it may see.
    fn attend_one(&self, queries: &Tensor, seen: &Seen) -> Result<Tensor> {
        Ok(match &seen.packed {
            Some((keys, values)) => values.matmul_untransposed(&keys.matmul(queries)?.softmax(-1)?)?,
            None => queries.matmul(&seen.keys.swap_last()?)?.softmax(-1)?.matmul(&seen.values)?,
        })
    }
}
