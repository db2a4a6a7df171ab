//! What a request may ask of the sampler: the parameters, their defaults and their ranges.
//! The order in which they apply is fixed and documented at [`SamplingParams`]; the computation is the engine's.

use crate::error::EngineError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// HLG curve sampling: a soft-knee transform of the logits that takes the place of truncation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hlg {
    /// Half-width of the linear middle, in logits.
    pub width: f32,
    /// Softness of the upper knee (b), in logits.
    pub shoulder: f32,
    /// Softness of the lower knee (b), in logits.
    pub toe: f32,
    /// Distance of the curve's centre below the largest logit.
    pub offset: f32,
}

impl Default for Hlg {
    fn default() -> Self {
        Hlg { width: 4.0, shoulder: 4.0, toe: 6.0, offset: 6.0 }
    }
}

/// Sampling parameters of one row, applied in this order: logit_bias → repetition → presence → frequency →
/// logprobs = logits − logsumexp → top-p → min-p → XTC → top-k → ÷ temperature → categorical.
/// A temperature of 0 is greedy: argmax, truncation has no effect.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; range [0, 2].
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 is off.
    pub top_p: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Drop tokens below `min_p` × the largest probability; range [0, 1], 0 is off.
    pub min_p: f32,
    /// With this probability, drop all but the least likely of the tokens above the threshold; range [0, 1].
    pub xtc_probability: f32,
    /// XTC's probability threshold; range [0, 0.5].
    pub xtc_threshold: f32,
    /// Positive logits are divided by it, negative ones multiplied; range (0, 10], 1 is off.
    pub repetition_penalty: f32,
    /// Window of the repetition penalty over prompt and text, in tokens; 0 is the whole history.
    pub repetition_context_size: usize,
    /// Subtracted once from each distinct generated token; range [−2, 2].
    pub presence_penalty: f32,
    /// Window of the presence penalty over the generated text, in tokens; 0 is all of it.
    pub presence_context_size: usize,
    /// Subtracted per occurrence of a generated token; range [−2, 2].
    pub frequency_penalty: f32,
    /// Window of the frequency penalty over the generated text, in tokens; 0 is all of it.
    pub frequency_context_size: usize,
    /// Added to the logits of these token ids; each in [−100, 100].
    pub logit_bias: BTreeMap<u32, f32>,
    /// The row's own random stream; `None` draws a fresh one.
    pub seed: Option<u64>,
    /// Replaces truncation (top-p, min-p, XTC, top-k) when set.
    pub hlg: Option<Hlg>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repetition_penalty: 1.0,
            repetition_context_size: 20,
            presence_penalty: 0.0,
            presence_context_size: 0,
            frequency_penalty: 0.0,
            frequency_context_size: 0,
            logit_bias: BTreeMap::new(),
            seed: None,
            hlg: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding, everything else off.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Whether the row needs no processor at all: its next token is the argmax of the raw logits.
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && !self.has_processors()
    }

    /// Whether anything changes the logits before they are normalized.
    pub fn has_processors(&self) -> bool {
        !self.logit_bias.is_empty()
            || self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Checks every range.
    ///
    /// # Errors
    /// [`EngineError::InvalidRequest`] naming the first parameter out of range, its range and the value.
    pub fn validate(&self, vocab_size: usize) -> Result<(), EngineError> {
        let range = |name: &str, value: f32, ok: bool, allowed: &str| {
            if value.is_finite() && ok { Ok(()) } else { Err(EngineError::param(name, allowed, value)) }
        };
        for (name, v) in [
            ("temperature", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
            ("repetition_penalty", self.repetition_penalty),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            allowed(name, v).map_err(|range| EngineError::param(name, range, v))?;
        }
        for (&id, &bias) in &self.logit_bias {
            if id as usize >= vocab_size {
                return Err(EngineError::param("logit_bias", &format!("keyed by token ids below {vocab_size}"), id));
            }
            range("logit_bias", bias, (-100.0..=100.0).contains(&bias), "between -100 and 100")?;
        }
        if let Some(h) = self.hlg {
            for (name, v) in [("hlg.width", h.width), ("hlg.shoulder", h.shoulder), ("hlg.toe", h.toe)] {
                range(name, v, v > 0.0 && v <= 100.0, "above 0 and at most 100")?;
            }
            range("hlg.offset", h.offset, (0.0..=100.0).contains(&h.offset), "between 0 and 100")?;
        }
        Ok(())
    }
}

/// Whether a parameter that is one number may have this value; any may that has no range.
///
/// # Errors
/// The range, as the end of "must be".
pub fn allowed(name: &str, value: f32) -> Result<(), &'static str> {
    let (ok, range) = match name {
        "temperature" => ((0.0..=2.0).contains(&value), "between 0 and 2"),
        "top_p" => (value > 0.0 && value <= 1.0, "above 0 and at most 1"),
        "min_p" | "xtc_probability" => ((0.0..=1.0).contains(&value), "between 0 and 1"),
        "xtc_threshold" => ((0.0..=0.5).contains(&value), "between 0 and 0.5"),
        "repetition_penalty" => (value > 0.0 && value <= 10.0, "above 0 and at most 10"),
        "presence_penalty" | "frequency_penalty" => ((-2.0..=2.0).contains(&value), "between -2 and 2"),
        _ => (true, "a number"),
    };
    if ok && value.is_finite() { Ok(()) } else { Err(range) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_out_of_range_is_named() {
        let d = SamplingParams::default;
        let cases: Vec<(&str, SamplingParams)> = vec![
            ("temperature", SamplingParams { temperature: -0.1, ..d() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..d() }),
            ("top_p", SamplingParams { top_p: 0.0, ..d() }),
            ("min_p", SamplingParams { min_p: 1.1, ..d() }),
            ("xtc_probability", SamplingParams { xtc_probability: 2.0, ..d() }),
            ("xtc_threshold", SamplingParams { xtc_threshold: 0.9, ..d() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..d() }),
            ("presence_penalty", SamplingParams { presence_penalty: 2.5, ..d() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: -2.5, ..d() }),
            ("logit_bias", SamplingParams { logit_bias: [(100, 1.0)].into(), ..d() }),
            ("logit_bias", SamplingParams { logit_bias: [(1, 101.0)].into(), ..d() }),
            ("hlg.toe", SamplingParams { hlg: Some(Hlg { toe: 0.0, ..Hlg::default() }), ..d() }),
        ];
        for (name, params) in cases {
            match params.validate(100) {
                Err(EngineError::InvalidRequest { param, message }) => {
                    assert_eq!(param, name);
                    assert!(message.contains(name) && message.contains("it is"), "{message}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(d().validate(100).is_ok());
    }
}
