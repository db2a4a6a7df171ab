//! Linear attention by the gated delta rule (Yang et al. 2024): a matrix per head that maps keys to values, forgets
//! a share of itself with every token, and is corrected towards the token's value. A short convolution goes before.

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::layers::norm::RmsNorm;
use crate::layers::short_conv::Convolution;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config;
use hearth_mlx::{Device, Dtype, Launch, MetalKernel, Tensor, concatenate, eval, metal_available};
use std::ffi::CStr;
use std::rc::Rc;

/// Epsilon of the unit length of queries and keys.
const UNIT_EPS: f32 = 1e-6;

/// One layer's gated delta net.
#[derive(Debug)]
pub struct GatedDelta {
    /// Queries, keys and values (what the convolution sees), output gate, correction gate, decay: one product.
    input: Linear,
    conv: Convolution,
    /// −exp(A), f32 `[value_heads]`.
    rate: Tensor,
    /// f32 `[value_heads]`.
    rate_bias: Tensor,
    query_norm: RmsNorm,
    key_norm: RmsNorm,
    output_norm: RmsNorm,
    out: Linear,
    rule: Rule,
    heads: config::GatedDelta,
}

impl GatedDelta {
    /// Reads a layer below `path` (`model.layers.3.linear_attn`).
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(
        weights: &mut Weights<'_>,
        path: &str,
        model: &config::ModelConfig,
        heads: config::GatedDelta,
        rule: &Rule,
    ) -> Result<Self> {
        let name = |part: &str| format!("{path}.{part}");
        let (values, channels) = (heads.value_heads * heads.value_dim, heads.channels());
        let parts = [
            (&*name("in_proj_qkv"), channels),
            (&*name("in_proj_z"), values),
            (&*name("in_proj_b"), heads.value_heads),
            (&*name("in_proj_a"), heads.value_heads),
        ];
        let input = weights.linear(&parts, model.hidden_size, false)?;
        let rate = weights.tensor(&name("A_log"), &[heads.value_heads])?.astype(Dtype::F32)?.exp()?.negative()?;
        let rate_bias = weights.tensor(&name("dt_bias"), &[heads.value_heads])?.astype(Dtype::F32)?;
        let output_weight = weights.tensor(&name("norm.weight"), &[heads.value_dim])?;
        eval([&rate, &rate_bias, &output_weight])?;
        // An RMS norm times 1/√dim is a vector of unit length; a query is divided by √dim once more.
        let share = (heads.key_dim as f32).powf(-0.5);
        let dtype = output_weight.dtype()?;
        let unit = |length: f32| -> Result<RmsNorm> {
            let weight = Tensor::from_f32(&vec![length * share; heads.key_dim], &[heads.key_dim as i32])?;
            Ok(RmsNorm::new(weight.astype(dtype)?, UNIT_EPS * share * share))
        };
        Ok(GatedDelta {
            input,
            conv: Convolution::load(weights, &name("conv1d"), channels, heads.taps, false)?,
            rate,
            rate_bias,
            query_norm: unit(share)?,
            key_norm: unit(1.0)?,
            output_norm: RmsNorm::new(output_weight, model.rms_norm_eps),
            out: weights.linear(&[(&name("out_proj"), model.hidden_size)], values, false)?,
            rule: rule.clone(),
            heads,
        })
    }

    /// `[tokens, hidden]` → the same; every row's state goes on by its tokens.
    ///
    /// # Errors
    /// MLX's; a layer's cache that is not recurrent.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let tokens = x.dim(0);
        let [hk, hv, dk, dv] = self.sizes();
        let (channels, values) = (self.heads.channels() as i32, hv * dv);
        let all = self.input.forward(x)?;
        let (mixed, gates) = (all.slice(1, 0, channels)?, channels + values);
        let gate = all.slice(1, channels, gates)?.reshape(&[tokens, hv, dv])?;
        let correction = all.slice(1, gates, gates + hv)?.sigmoid()?;
        let change = all.slice(1, gates + hv, gates + 2 * hv)?.astype(Dtype::F32)?.add(&self.rate_bias)?;
        // softplus, then a share between 0 and 1.
        let decay = change.logaddexp(&Tensor::scalar(0.0))?.multiply(&self.rate)?.exp()?;

        let (convolved, kept) = self.conv.forward(&mixed, step, layer)?;
        let convolved = convolved.multiply(&convolved.sigmoid()?)?;
        let part = |from: i32, heads: i32, dim: i32| {
            convolved.slice(1, from, from + heads * dim)?.reshape(&[tokens, heads, dim])
        };
        let inputs = Inputs {
            queries: self.query_norm.forward(&part(0, hk, dk)?)?,
            keys: self.key_norm.forward(&part(hk * dk, hk, dk)?)?,
            values: part(2 * hk * dk, hv, dv)?,
            decay,
            correction,
        };
        let mut outputs = Vec::with_capacity(step.rows());
        let mut at = 0;
        for (row, conv) in kept.into_iter().enumerate() {
            let n = step.tokens(row);
            let cache = step.cache(row, layer).recurrent()?;
            let state = match cache.state() {
                Some(state) => state.share(),
                None => Tensor::zeros(&[hv, dv, dk], Dtype::F32)?,
            };
            let (output, state) = self.rule.apply(&inputs.tokens(at, n)?, state)?;
            cache.advance(n as usize, Some(conv), Some(state));
            outputs.push(output);
            at += n;
        }
        let output = match &outputs[..] {
            [one] => one.share(),
            many => concatenate(many, 0)?,
        };
        let normed = self.output_norm.forward(&output)?;
        let open = gate.astype(Dtype::F32)?;
        let open = open.multiply(&open.sigmoid()?)?;
        let gated = normed.astype(Dtype::F32)?.multiply(&open)?.astype(x.dtype()?)?;
        self.out.forward(&gated.reshape(&[tokens, values])?)
    }

    /// Key heads, value heads, and their dimensions.
    fn sizes(&self) -> [i32; 4] {
        let h = &self.heads;
        [h.key_heads, h.value_heads, h.key_dim, h.value_dim].map(|n| n as i32)
    }
}

/// What the rule takes of each token.
#[derive(Debug)]
struct Inputs {
    /// `[tokens, key_heads, key_dim]`, of length 1/√key_dim.
    queries: Tensor,
    /// `[tokens, key_heads, key_dim]`, of length 1.
    keys: Tensor,
    /// `[tokens, value_heads, value_dim]`.
    values: Tensor,
    /// The share of the state that a token keeps, f32 `[tokens, value_heads]`.
    decay: Tensor,
    /// The share of the error that a token corrects, `[tokens, value_heads]`.
    correction: Tensor,
}

impl Inputs {
    /// Those of `n` tokens from `at` on.
    fn tokens(&self, at: i32, n: i32) -> Result<Inputs> {
        let part = |t: &Tensor| t.slice(0, at, at + n);
        Ok(Inputs {
            queries: part(&self.queries)?,
            keys: part(&self.keys)?,
            values: part(&self.values)?,
            decay: part(&self.decay)?,
            correction: part(&self.correction)?,
        })
    }
}

/// The recurrence over the tokens of one row: a kernel where there is Metal, plain operations elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    kernel: Option<Rc<MetalKernel>>,
}

/// Lanes of a SIMD group, which share a row of the state.
const LANES: i32 = 32;

/// One SIMD group owns one row of one head's matrix (the memory of one value element) and walks through the tokens.
/// Lane i holds the key elements i, i + 32, …, so that neighbours read neighbours.
const SOURCE: &CStr = c"
    constexpr int SHARE = KEY_DIM / 32;
    const uint lane = thread_position_in_threadgroup.x;
    const uint element = thread_position_in_grid.y;
    const uint head = thread_position_in_grid.z;
    const uint key_head = head / (VALUE_HEADS / KEY_HEADS);
    const size_t row = (size_t(head) * VALUE_DIM + element) * KEY_DIM + lane;
    const int count = tokens[0];

    float memory[SHARE];
    for (int i = 0; i < SHARE; ++i) {
        memory[i] = state[row + 32 * i];
    }
    for (int token = 0; token < count; ++token) {
        const size_t at_key = (size_t(token) * KEY_HEADS + key_head) * KEY_DIM + lane;
        const size_t at_head = size_t(token) * VALUE_HEADS + head;
        const size_t at_value = at_head * VALUE_DIM + element;

        const float keep = decay[at_head];
        float recalled = 0.0f;
        for (int i = 0; i < SHARE; ++i) {
            memory[i] *= keep;
            recalled += memory[i] * float(keys[at_key + 32 * i]);
        }
        const float error = float(values[at_value]) - simd_sum(recalled);
        const float change = error * float(correction[at_head]);

        float answer = 0.0f;
        for (int i = 0; i < SHARE; ++i) {
            memory[i] += change * float(keys[at_key + 32 * i]);
            answer += memory[i] * float(queries[at_key + 32 * i]);
        }
        answer = simd_sum(answer);
        if (lane == 0) {
            outputs[at_value] = T(answer);
        }
    }
    for (int i = 0; i < SHARE; ++i) {
        new_state[row + 32 * i] = memory[i];
    }
";

impl Rule {
    /// The rule for a model laid out for this device: the kernel where that is a GPU, and the one that MLX computes
    /// on is a GPU with Metal.
    ///
    /// # Errors
    /// MLX's.
    pub fn new(device: Device, key_dim: usize) -> Result<Self> {
        let fits = key_dim.is_multiple_of(LANES as usize);
        if device != Device::Gpu || !fits || !metal_available() || hearth_mlx::device()? != Device::Gpu {
            return Ok(Rule::default());
        }
        let inputs = [c"queries", c"keys", c"values", c"decay", c"correction", c"state", c"tokens"];
        let kernel = MetalKernel::new(c"hearth_gated_delta", &inputs, &[c"outputs", c"new_state"], SOURCE)?;
        Ok(Rule { kernel: Some(Rc::new(kernel)) })
    }

    /// One row's tokens on its state, f32 `[value_heads, value_dim, key_dim]`: outputs `[tokens, value_heads,
    /// value_dim]` in the dtype of the queries, and the new state.
    fn apply(&self, inputs: &Inputs, state: Tensor) -> Result<(Tensor, Tensor)> {
        match &self.kernel {
            Some(kernel) => with_kernel(kernel, inputs, &state),
            None => with_operations(inputs, state),
        }
    }
}

fn with_kernel(kernel: &MetalKernel, inputs: &Inputs, state: &Tensor) -> Result<(Tensor, Tensor)> {
    let (dtype, count) = (inputs.queries.dtype()?, Tensor::from_i32(&[inputs.queries.dim(0)])?);
    let (hv, dv, dk) = (state.dim(0), state.dim(1), state.dim(2));
    let launch = Launch {
        grid: [LANES, dv, hv],
        group: [LANES, dv.min(4), 1],
        types: &[(c"T", dtype)],
        constants: &[(c"KEY_HEADS", inputs.keys.dim(1)), (c"VALUE_HEADS", hv), (c"KEY_DIM", dk), (c"VALUE_DIM", dv)],
        outputs: &[(inputs.values.shape(), dtype), (state.shape(), Dtype::F32)],
    };
    let Inputs { queries, keys, values, decay, correction } = inputs;
    let mut made = kernel.apply([queries, keys, values, decay, correction, state, &count], &launch)?.into_iter();
    match (made.next(), made.next()) {
        (Some(outputs), Some(state)) => Ok((outputs, state)),
        _ => Err(hearth_mlx::MlxError { operation: "gated_delta", message: "a kernel without outputs".into() }.into()),
    }
}

/// Token by token, in f32.
fn with_operations(inputs: &Inputs, mut state: Tensor) -> Result<(Tensor, Tensor)> {
    let (n, hv, dv, dk) = (inputs.values.dim(0), state.dim(0), state.dim(1), state.dim(2));
    let group = hv / inputs.keys.dim(1);
    // Each key head serves a group of value heads.
    let spread = |t: &Tensor| -> Result<Tensor> {
        let t = t.astype(Dtype::F32)?;
        if group == 1 {
            return Ok(t);
        }
        Ok(t.expand_dims(2)?.broadcast_to(&[n, hv / group, group, dk])?.reshape(&[n, hv, dk])?)
    };
    let (queries, keys) = (spread(&inputs.queries)?, spread(&inputs.keys)?);
    let values = inputs.values.astype(Dtype::F32)?;
    let correction = inputs.correction.astype(Dtype::F32)?;
    let mut outputs = Vec::with_capacity(n as usize);
    for token in 0..n {
        let at = |t: &Tensor, shape: [i32; 3]| t.slice(0, token, token + 1)?.reshape(&shape);
        let (key, value) = (at(&keys, [hv, 1, dk])?, at(&values, [hv, dv, 1])?);
        state = state.multiply(&at(&inputs.decay, [hv, 1, 1])?)?;
        let error = value.subtract(&state.matmul(&key.swap_last()?)?)?;
        let change = error.multiply(&at(&correction, [hv, 1, 1])?)?;
        state = state.add(&change.multiply(&key)?)?;
        outputs.push(state.matmul(&at(&queries, [hv, dk, 1])?)?.reshape(&[1, hv, dv])?);
    }
    let outputs = match &outputs[..] {
        [one] => one.share(),
        many => concatenate(many, 0)?,
    };
    Ok((outputs.astype(inputs.queries.dtype()?)?, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: [i32; 4] = [2, 4, 32, 6];

    fn wave(shape: &[i32], step: f32) -> Tensor {
        let count: i32 = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i as f32 * step).sin()).collect();
        Tensor::from_f32(&values, shape).unwrap()
    }

    fn inputs(tokens: i32) -> Inputs {
        let [hk, hv, dk, dv] = HEADS;
        let small = Tensor::scalar(0.2);
        Inputs {
            queries: wave(&[tokens, hk, dk], 0.7).multiply(&small).unwrap(),
            keys: wave(&[tokens, hk, dk], 1.3).multiply(&small).unwrap(),
            values: wave(&[tokens, hv, dv], 0.9),
            decay: wave(&[tokens, hv], 2.1).sigmoid().unwrap(),
            correction: wave(&[tokens, hv], 1.7).sigmoid().unwrap(),
        }
    }

    fn close(a: &[f32], b: &[f32]) {
        assert_eq!(a.len(), b.len());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?}\n{b:?}");
    }

    /// The recurrence in plain loops: outputs and state.
    fn by_hand(inputs: &Inputs, tokens: i32) -> (Vec<f32>, Vec<f32>) {
        let [hk, hv, dk, dv] = HEADS.map(|n| n as usize);
        let values = |t: &Tensor| t.to_vec_f32().unwrap();
        let (q, k, v) = (values(&inputs.queries), values(&inputs.keys), values(&inputs.values));
        let (decay, correction) = (values(&inputs.decay), values(&inputs.correction));
        let (mut state, mut outputs) = (vec![0.0; hv * dv * dk], Vec::new());
        for token in 0..tokens as usize {
            for head in 0..hv {
                let at = (token * hk + head / (hv / hk)) * dk;
                let (key, query) = (&k[at..at + dk], &q[at..at + dk]);
                let gate = token * hv + head;
                for element in 0..dv {
                    let row = &mut state[(head * dv + element) * dk..][..dk];
                    row.iter_mut().for_each(|s| *s *= decay[gate]);
                    let dot = |row: &[f32], with: &[f32]| row.iter().zip(with).map(|(a, b)| a * b).sum::<f32>();
                    let change = (v[gate * dv + element] - dot(row, key)) * correction[gate];
                    row.iter_mut().zip(key).for_each(|(s, k)| *s += change * k);
                    outputs.push(dot(row, query));
                }
            }
        }
        (outputs, state)
    }

    #[test]
    fn the_rule_equals_its_recurrence_whole_and_in_parts() {
        let [_, hv, dk, dv] = HEADS;
        let zeros = || Tensor::zeros(&[hv, dv, dk], Dtype::F32).unwrap();
        for tokens in [1, 5, 70] {
            let all = inputs(tokens);
            let (want, want_state) = by_hand(&all, tokens);
            for rule in [Rule::default(), Rule::new(Device::Gpu, 32).unwrap()] {
                let (outputs, state) = rule.apply(&all, zeros()).unwrap();
                close(&outputs.to_vec_f32().unwrap(), &want);
                close(&state.to_vec_f32().unwrap(), &want_state);
                let (mut state, mut outputs) = (zeros(), Vec::new());
                for (at, n) in [(0, tokens / 3), (tokens / 3, tokens - tokens / 3)] {
                    if n > 0 {
                        let (output, next) = rule.apply(&all.tokens(at, n).unwrap(), state).unwrap();
                        outputs.extend(output.to_vec_f32().unwrap());
                        state = next;
                    }
                }
                close(&outputs, &want);
                close(&state.to_vec_f32().unwrap(), &want_state);
            }
        }
    }

    #[test]
    fn the_kernel_is_for_gpus_with_metal_and_whole_simd_groups() {
        let metal = metal_available() && hearth_mlx::device().unwrap() == Device::Gpu;
        assert_eq!(Rule::new(Device::Gpu, 128).unwrap().kernel.is_some(), metal);
        assert!(Rule::new(Device::Gpu, 48).unwrap().kernel.is_none());
        assert!(Rule::new(Device::Cpu, 128).unwrap().kernel.is_none());
    }
}
