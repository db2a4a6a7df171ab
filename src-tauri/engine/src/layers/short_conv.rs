//! Short causal convolutions, each channel by itself: a row's last inputs are all that they keep of its past.

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::step::Step;
use crate::weights::Weights;
use hearth_core::config;
use hearth_mlx::{Device, Tensor, concatenate, eval};

/// A causal convolution over `taps` tokens.
#[derive(Debug)]
pub struct Convolution {
    /// `[taps, channels]`, the oldest token's first.
    taps: Tensor,
    /// The same as the fused operation takes it, `[channels, taps, 1]`; on a GPU only.
    fused: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Convolution {
    /// Reads `{path}.weight`, `[channels, taps, 1]` or as PyTorch keeps it `[channels, 1, taps]`, and `{path}.bias`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, channels: usize, taps: usize, bias: bool) -> Result<Self> {
        let name = format!("{path}.weight");
        let shape = if is_pytorchs(weights, &name) { [channels, 1, taps] } else { [channels, taps, 1] };
        let (channels, count) = (channels as i32, taps as i32);
        // One of the axes has one element, so that both layouts hold the same values in the same order.
        let stored = weights.tensor(&name, &shape)?.reshape(&[channels, count, 1])?;
        let bias = if bias { Some(weights.tensor(&format!("{path}.bias"), &[shape[0]])?) } else { None };
        let taps = stored.reshape(&[channels, count])?.swap_last()?.contiguous()?;
        eval([&taps, &stored])?;
        let fused = (weights.device() == Device::Gpu).then_some(stored);
        Ok(Convolution { taps, fused, bias })
    }

    /// `[tokens, channels]` of all rows → the same, and what each row keeps, `[taps − 1, channels]`.
    ///
    /// # Errors
    /// MLX's; a layer's cache that is not recurrent.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>, layer: usize) -> Result<(Tensor, Vec<Tensor>)> {
        let (keep, channels) = (self.taps.dim(0) - 1, x.dim(1));
        let (mut outputs, mut kept) = (Vec::with_capacity(step.rows()), Vec::with_capacity(step.rows()));
        let mut at = 0;
        for row in 0..step.rows() {
            let n = step.tokens(row);
            let own = x.slice(0, at, at + n)?;
            let window = match step.cache(row, layer).recurrent()?.conv() {
                Some(past) => concatenate([past, &own], 0)?,
                None => concatenate([&Tensor::zeros(&[keep, channels], x.dtype()?)?, &own], 0)?,
            };
            outputs.push(self.convolve(&window, n)?);
            kept.push(last(&window, keep)?);
            at += n;
        }
        let output = match &outputs[..] {
            [one] => one.share(),
            many => concatenate(many, 0)?,
        };
        Ok((
            match &self.bias {
                Some(bias) => output.add(bias)?,
                None => output,
            },
            kept,
        ))
    }

    /// `[taps − 1 + n, channels]` → `[n, channels]`.
    fn convolve(&self, window: &Tensor, n: i32) -> Result<Tensor> {
        if n == 1 {
            return Ok(window.multiply(&self.taps)?.sum_axis(0)?);
        }
        if let Some(taps) = &self.fused {
            return Ok(window.expand_dims(0)?.conv1d_depthwise(taps)?.reshape(&[n, window.dim(1)])?);
        }
        // MLX's convolution of many groups is a loop over them on a CPU; this is a few vector operations.
        let shifted = |tap: i32| window.slice(0, tap, tap + n)?.multiply(&self.taps.slice(0, tap, tap + 1)?);
        let mut sum = shifted(0)?;
        for tap in 1..self.taps.dim(0) {
            sum = sum.add(&shifted(tap)?)?;
        }
        Ok(sum)
    }
}

/// Whether the files hold this convolution in PyTorch's layout, `[channels, 1, taps]`, as unconverted models do.
pub fn is_pytorchs(weights: &Weights<'_>, name: &str) -> bool {
    weights.shape(name).is_some_and(|shape| matches!(shape, [_, 1, taps] if *taps > 1))
}

/// The last rows of a window in a buffer of their own: a joined tensor never shares one, a slice may.
fn last(window: &Tensor, keep: i32) -> Result<Tensor> {
    let rows = window.dim(0);
    if keep == 1 {
        return Ok(window.slice(0, rows - 1, rows)?.contiguous()?);
    }
    Ok(concatenate([&window.slice(0, rows - keep, rows - 1)?, &window.slice(0, rows - 1, rows)?], 0)?)
}

/// LFM2's operator: a convolution between two gates, all made from the same projection.
#[derive(Debug)]
pub struct ShortConv {
    input: Linear,
    conv: Convolution,
    out: Linear,
    width: i32,
}

impl ShortConv {
    /// Reads `in_proj`, `conv` and `out_proj` below `path`.
    ///
    /// # Errors
    /// Missing weights, or weights of another shape.
    pub fn load(weights: &mut Weights<'_>, path: &str, hidden: usize, config: config::ShortConv) -> Result<Self> {
        let bias = config.bias;
        Ok(ShortConv {
            input: weights.linear(&[(&format!("{path}.in_proj"), 3 * hidden)], hidden, bias)?,
            conv: Convolution::load(weights, &format!("{path}.conv"), hidden, config.taps, bias)?,
            out: weights.linear(&[(&format!("{path}.out_proj"), hidden)], hidden, bias)?,
            width: hidden as i32,
        })
    }

    /// `[tokens, hidden]` → the same; every row's state goes on by its tokens.
    ///
    /// # Errors
    /// MLX's; a layer's cache that is not recurrent.
    pub fn forward(&self, x: &Tensor, step: &mut Step<'_>, layer: usize) -> Result<Tensor> {
        let all = self.input.forward(x)?;
        let part = |i: i32| all.slice(1, i * self.width, (i + 1) * self.width);
        let (before, after, x) = (part(0)?, part(1)?, part(2)?);
        let (convolved, kept) = self.conv.forward(&before.multiply(&x)?, step, layer)?;
        for (row, conv) in kept.into_iter().enumerate() {
            let n = step.tokens(row) as usize;
            step.cache(row, layer).recurrent()?.advance(n, Some(conv), None);
        }
        self.out.forward(&after.multiply(&convolved)?)
    }
}
