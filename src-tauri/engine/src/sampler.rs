//! Sampling on the device, one row at a time: processors, log-probabilities, truncation, the draw. Nothing here
//! waits for a result, so that the next step can be dispatched before this one's token is known.
//!
//! The order is the one documented at `SamplingParams`; each piece computes what mlx-lm's sampler of that name does.

use crate::error::Result;
use hearth_core::sampling::{Hlg, SamplingParams};
use hearth_mlx::{Dtype, Tensor, concatenate, key, split};

/// The tokens that a penalty looks at: the last few, or a count over everything.
#[derive(Debug)]
enum History {
    /// Ids u32 `[1, n]`, n ≤ the window; `None` until there is one.
    Window(usize, Option<Tensor>),
    /// Occurrences f32 `[1, vocab]`.
    Whole(Tensor),
}

impl History {
    fn new(window: usize, vocab: usize, past: &[u32]) -> Result<Self> {
        if window > 0 {
            let last = &past[past.len().saturating_sub(window)..];
            let ids = if last.is_empty() { None } else { Some(Tensor::from_u32(last)?.reshape(&[1, -1])?) };
            return Ok(History::Window(window, ids));
        }
        let mut counts = vec![0f32; vocab];
        for &id in past {
            if let Some(n) = counts.get_mut(id as usize) {
                *n += 1.0;
            }
        }
        Ok(History::Whole(Tensor::from_f32(&counts, &[1, vocab as i32])?))
    }

    /// Adds a token `[1]` that may not be computed yet.
    fn push(&mut self, token: &Tensor) -> Result<()> {
        let token = token.reshape(&[1, 1])?;
        match self {
            History::Window(window, ids) => {
                let joined = match ids.take() {
                    None => token,
                    Some(old) => {
                        let n = old.dim(1);
                        let old = if n as usize >= *window { old.slice(1, 1, n)? } else { old };
                        if old.dim(1) == 0 { token } else { concatenate([&old, &token], 1)? }
                    }
                };
                *ids = Some(joined);
            }
            History::Whole(counts) => *counts = counts.scatter_add_axis(&token, &one()?, 1)?,
        }
        Ok(())
    }
}

fn one() -> Result<Tensor> {
    Ok(Tensor::scalar(1.0).reshape(&[1, 1])?)
}

fn minus_infinity() -> Tensor {
    Tensor::scalar(f32::NEG_INFINITY)
}

/// What one row's draw gives; everything may still be lazy.
#[derive(Debug)]
pub struct Sampled {
    /// The token, u32 `[1]`.
    pub token: Tensor,
    /// Its log-probability `[1, 1]` and the best ids and log-probabilities `[1, k]` in no order; only when asked for.
    pub logprobs: Option<(Tensor, Option<(Tensor, Tensor)>)>,
}

/// One row's sampler: its parameters, its random stream, its history.
#[derive(Debug)]
pub struct RowSampler {
    params: SamplingParams,
    key: Option<Tensor>,
    bias: Option<(Tensor, Tensor)>,
    repetition: Option<History>,
    presence: Option<History>,
    frequency: Option<History>,
    exempt: Option<Tensor>,
    logprobs: Option<u8>,
}

impl RowSampler {
    /// A sampler for a row with this prompt. `exempt` are the ids that XTC never drops (end of sequence, newline).
    ///
    /// # Errors
    /// MLX's.
    pub fn new(
        params: &SamplingParams,
        logprobs: Option<u8>,
        vocab: usize,
        prompt: &[u32],
        exempt: &[u32],
        fresh_seed: u64,
    ) -> Result<Self> {
        let history = |on: bool, window: usize, past: &[u32]| {
            if on { History::new(window, vocab, past).map(Some) } else { Ok(None) }
        };
        let bias = if params.logit_bias.is_empty() {
            None
        } else {
            let (ids, values): (Vec<u32>, Vec<f32>) = params.logit_bias.iter().map(|(id, b)| (*id, *b)).unzip();
            Some((Tensor::from_u32(&ids)?.reshape(&[1, -1])?, Tensor::from_f32(&values, &[1, values.len() as i32])?))
        };
        let draws = params.temperature > 0.0;
        let exempts = params.xtc_probability > 0.0 && !exempt.is_empty();
        Ok(RowSampler {
            key: if draws { Some(key(params.seed.unwrap_or(fresh_seed))?) } else { None },
            bias,
            repetition: history(params.repetition_penalty != 1.0, params.repetition_context_size, prompt)?,
            presence: history(params.presence_penalty != 0.0, params.presence_context_size, &[])?,
            frequency: history(params.frequency_penalty != 0.0, params.frequency_context_size, &[])?,
            exempt: if exempts { Some(Tensor::from_u32(exempt)?.reshape(&[1, -1])?) } else { None },
            params: params.clone(),
            logprobs,
        })
    }

    /// Whether the row can share the batch's plain argmax.
    pub fn is_plain(&self) -> bool {
        self.logprobs.is_none() && self.params.is_plain_greedy()
    }

    /// Draws from the logits `[1, vocab]` of one row and advances the row's state.
    ///
    /// # Errors
    /// MLX's.
    pub fn sample(&mut self, logits: &Tensor) -> Result<Sampled> {
        let logits = self.process(logits)?;
        let logprobs = logits.subtract(&logits.logsumexp_axis(-1)?)?;
        let token = self.draw(&logprobs)?;
        for history in [&mut self.repetition, &mut self.presence, &mut self.frequency].into_iter().flatten() {
            history.push(&token)?;
        }
        let report = match self.logprobs {
            None => None,
            Some(k) => Some((logprobs.take_along_axis(&token.reshape(&[1, 1])?, -1)?, best(&logprobs, i32::from(k))?)),
        };
        Ok(Sampled { token, logprobs: report })
    }

    fn process(&self, logits: &Tensor) -> Result<Tensor> {
        let mut logits = logits.astype(Dtype::F32)?;
        if let Some((ids, values)) = &self.bias {
            logits = logits.scatter_add_axis(ids, values, 1)?;
        }
        if let Some(history) = &self.repetition {
            logits = repetition(&logits, history, self.params.repetition_penalty)?;
        }
        if let Some(history) = &self.presence {
            logits = presence(&logits, history, self.params.presence_penalty)?;
        }
        if let Some(history) = &self.frequency {
            logits = frequency(&logits, history, self.params.frequency_penalty)?;
        }
        Ok(logits)
    }

    fn draw(&mut self, logprobs: &Tensor) -> Result<Tensor> {
        let p = &self.params;
        let Some(stream) = &self.key else {
            return Ok(logprobs.argmax(-1)?);
        };
        let (mut next, now) = split(stream)?;
        let mut l = logprobs.share();
        if let Some(hlg) = &p.hlg {
            let token = curve(&l, hlg, p.temperature)?.categorical(&now)?;
            self.key = Some(next);
            return Ok(token);
        }
        if p.top_p < 1.0 {
            l = top_p(&l, p.top_p)?;
        }
        if p.min_p > 0.0 {
            let least = l.max_axis(-1)?.add(&Tensor::scalar(p.min_p.ln()))?;
            l = minus_infinity().select(&l.less(&least)?, &l)?;
        }
        if p.xtc_probability > 0.0 {
            let (after, coin) = split(&next)?;
            next = after;
            l = xtc(&l, p.xtc_probability, p.xtc_threshold, self.exempt.as_ref(), &coin)?;
        }
        let vocab = l.dim(1);
        if p.top_k > 0 && p.top_k < vocab as u32 {
            let k = p.top_k as i32;
            let dropped = l.negative()?.argpartition(k - 1, -1)?.slice(1, k, vocab)?;
            l = l.put_along_axis(&dropped, &minus_infinity(), -1)?;
        }
        self.key = Some(next);
        Ok(l.multiply(&Tensor::scalar(1.0 / p.temperature))?.categorical(&now)?)
    }
}

/// The k best of the log-probabilities `[1, vocab]`: ids and values, in no order.
fn best(logprobs: &Tensor, k: i32) -> Result<Option<(Tensor, Tensor)>> {
    let k = k.min(logprobs.dim(1));
    if k == 0 {
        return Ok(None);
    }
    let ids = logprobs.negative()?.argpartition(k - 1, -1)?.slice(1, 0, k)?.contiguous()?;
    let values = logprobs.take_along_axis(&ids, -1)?;
    Ok(Some((ids, values)))
}

/// Keskar et al. 2019, without compounding: a token that occurs twice is penalized once.
fn repetition(logits: &Tensor, history: &History, penalty: f32) -> Result<Tensor> {
    let penalty = Tensor::scalar(penalty);
    let penalized = |x: &Tensor| -> Result<Tensor> {
        Ok(x.multiply(&penalty)?.select(&x.less(&Tensor::scalar(0.0))?, &x.divide(&penalty)?)?)
    };
    Ok(match history {
        History::Window(_, None) => logits.share(),
        History::Window(_, Some(ids)) => {
            logits.put_along_axis(ids, &penalized(&logits.take_along_axis(ids, -1)?)?, -1)?
        }
        History::Whole(counts) => penalized(logits)?.select(&counts.greater(&Tensor::scalar(0.0))?, logits)?,
    })
}

/// Subtracted once from every token that occurs.
fn presence(logits: &Tensor, history: &History, penalty: f32) -> Result<Tensor> {
    let penalty = Tensor::scalar(penalty);
    Ok(match history {
        History::Window(_, None) => logits.share(),
        History::Window(_, Some(ids)) => {
            logits.put_along_axis(ids, &logits.take_along_axis(ids, -1)?.subtract(&penalty)?, -1)?
        }
        History::Whole(counts) => logits.subtract(&penalty)?.select(&counts.greater(&Tensor::scalar(0.0))?, logits)?,
    })
}

/// Subtracted for every occurrence.
fn frequency(logits: &Tensor, history: &History, penalty: f32) -> Result<Tensor> {
    Ok(match history {
        History::Window(_, None) => logits.share(),
        History::Window(_, Some(ids)) => {
            let each = Tensor::scalar(-penalty).reshape(&[1, 1])?.broadcast_to(ids.shape())?;
            logits.scatter_add_axis(ids, &each, 1)?
        }
        History::Whole(counts) => logits.subtract(&counts.multiply(&Tensor::scalar(penalty))?)?,
    })
}

/// Nucleus sampling (Holtzman et al. 2020): the smallest set of best tokens whose mass reaches `p`.
fn top_p(logprobs: &Tensor, p: f32) -> Result<Tensor> {
    let sorted = logprobs.sort(-1)?;
    let probs = sorted.exp()?;
    let above = probs.cumsum(-1, true, false)?;
    let total = above.slice(1, 0, 1)?.add(&probs.slice(1, 0, 1)?)?;
    let dropped = above.greater_equal(&total.multiply(&Tensor::scalar(p))?)?.astype(Dtype::I32)?.sum_axis(-1)?;
    let least = sorted.take_along_axis(&dropped, -1)?;
    Ok(minus_infinity().select(&logprobs.less(&least)?, logprobs)?)
}

/// Exclude top choices: of the tokens above the threshold only the least likely stays, with this probability.
fn xtc(logprobs: &Tensor, probability: f32, threshold: f32, exempt: Option<&Tensor>, coin: &Tensor) -> Result<Tensor> {
    let probs = logprobs.softmax(-1)?;
    let above = probs.select(&probs.greater(&Tensor::scalar(threshold))?, &Tensor::scalar(f32::INFINITY))?;
    let mut dropped = probs.greater(&above.min_axis(-1)?)?;
    if let Some(ids) = exempt {
        let keep = Tensor::zeros(ids.shape(), Dtype::Bool)?;
        dropped = dropped.put_along_axis(ids, &keep, -1)?;
    }
    let applies = Tensor::scalar(probability).greater_equal(&Tensor::uniform(coin)?)?;
    Ok(minus_infinity().select(&dropped.logical_and(&applies)?, logprobs)?)
}

/// HLG curve: linear around μ = max − offset, logarithmic beyond ±width; the slope is 1/temperature.
fn curve(logprobs: &Tensor, hlg: &Hlg, temperature: f32) -> Result<Tensor> {
    let (m, w) = (1.0 / temperature, hlg.width);
    let s = Tensor::scalar;
    let z = logprobs.subtract(&logprobs.max_axis(-1)?.subtract(&s(hlg.offset))?)?;
    // How far beyond the width, on each side (0 in the middle), bent by its own softness.
    let bend = |beyond: Tensor, b: f32| -> Result<Tensor> {
        let beyond = beyond.maximum(&s(0.0))?;
        Ok(beyond.multiply(&s(1.0 / b))?.log1p()?.multiply(&s(b))?)
    };
    let shoulder = bend(z.subtract(&s(w))?, hlg.shoulder)?;
    let toe = bend(z.negative()?.subtract(&s(w))?, hlg.toe)?;
    let middle = z.maximum(&s(-w))?.minimum(&s(w))?;
    Ok(middle.add(&shoulder)?.subtract(&toe)?.multiply(&s(m))?)
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
