//! Rotary embedding settings from GGUF metadata: linear and yarn scaling, and llama3 scaling from its table of factors.

use std::f64::consts::TAU;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::reader::GgufFile;
use crate::LibraryError;

/// The `rope_scaling` entry of `config.json`: `null` where nothing is scaled.
///
/// `factors` is the content of `rope_freqs.weight` if the file has it; `theta` and `head_dim` are the model's.
pub(crate) fn scaling(
    file: &GgufFile,
    arch: &str,
    theta: f64,
    head_dim: u64,
    context: u64,
    factors: Option<&[f32]>,
) -> Result<Json, LibraryError> {
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    let kind = file.opt_str(&key("type"))?;
    // Very old files have only a linear factor, under this key.
    let old_linear = file.opt_f64(&format!("{arch}.rope.scale_linear"))?;
    let attn_factor = file.opt_f64(&key("attn_factor"))?;
    if let Some(f) = attn_factor
        && f != 1.0
    {
        return Err(LibraryError::unsupported(&file.path, format!("metadata key {}", key("attn_factor")), f, "1"));
    }
    if let Some(factors) = factors
        && factors.iter().any(|f| *f != 1.0)
    {
        if kind.is_some_and(|k| k != "none") {
            return Err(LibraryError::unsupported(
                &file.path,
                "rope scaling",
                "both rope_freqs.weight and a scaling type",
                "one of them",
            ));
        }
        return llama3(&file.path, theta, head_dim, factors);
    }
    let factor = match file.opt_f64(&key("factor"))? {
        Some(f) => Some(f),
        None => old_linear,
    };
    if let Some(f) = factor
        && f < 1.0
        && f != 0.0
    {
        return Err(LibraryError::mismatch(&file.path, "the rope scaling factor", "at least 1", f));
    }
    let kind = match (kind, factor) {
        (Some(k), _) => k,
        (None, Some(f)) if f > 1.0 => "linear",
        (None, _) => "none",
    };
    match (kind, factor) {
        ("none", _) | ("linear" | "yarn", None | Some(0.0)) => Ok(Json::Null),
        ("linear", Some(1.0)) => Ok(Json::Null),
        ("linear", Some(f)) => Ok(json!({"type": "linear", "rope_type": "linear", "factor": f})),
        ("yarn", Some(f)) => {
            let original = match file.opt_u64(&key("original_context_length"))? {
                Some(n) => n,
                None => context,
            };
            let mut entry = json!({
                "type": "yarn",
                "rope_type": "yarn",
                "factor": f,
                "original_max_position_embeddings": original,
            });
            for (gguf, config) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(v) = file.opt_f64(&key(gguf))? {
                    entry[config] = json!(v);
                }
            }
            for (gguf, neutral) in [("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_log_multiplier", 0.0)] {
                if let Some(v) = file.opt_f64(&key(gguf))?
                    && v != neutral
                    // -1 is llama.cpp's own "not set".
                    && v >= 0.0
                {
                    return Err(LibraryError::unsupported(
                        &file.path,
                        format!("metadata key {}", key(gguf)),
                        v,
                        neutral,
                    ));
                }
            }
            Ok(entry)
        }
        (other, _) => {
            Err(LibraryError::unsupported(&file.path, "the rope scaling type", other, "none, linear, yarn, llama3"))
        }
    }
}

/// llama3 scaling as the four numbers that it is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    /// The factor by which the wavelength of `wavelen` positions is stretched.
    fn stretch(self, wavelen: f64) -> f64 {
        if wavelen < self.original / self.high {
            1.0
        } else if wavelen > self.original / self.low {
            self.factor
        } else {
            let smooth = (self.original / wavelen - self.low) / (self.high - self.low);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }

    fn explains(self, wavelens: &[f64], factors: &[f32]) -> bool {
        wavelens.iter().zip(factors).all(|(w, f)| (self.stretch(*w) - f64::from(*f)).abs() <= 2e-4 * f64::from(*f))
    }
}

/// Finds the llama3 settings that give this table of factors.
///
/// low, high and original only matter up to a common scale, so that low = 1 (as in every published model) loses nothing; the two
/// others then follow from a straight line: 1/f = (1 − s)/factor + s with s linear in 1/wavelength.
fn llama3(path: &Path, theta: f64, head_dim: u64, factors: &[f32]) -> Result<Json, LibraryError> {
    let fail = |found: String| {
        LibraryError::mismatch(path, "tensor rope_freqs.weight", "the factors of a llama3 rope scaling", found)
    };
    if factors.len() as u64 != head_dim / 2 {
        return Err(fail(format!("{} factors for a head dimension of {head_dim}", factors.len())));
    }
    if !factors.iter().all(|f| f.is_finite() && *f >= 1.0) {
        return Err(fail("factors below 1 or not finite".to_owned()));
    }
    let wavelens: Vec<f64> = (0..factors.len()).map(|i| TAU * theta.powf(2.0 * i as f64 / head_dim as f64)).collect();
    let factor = factors.iter().fold(1.0f64, |m, f| m.max(f64::from(*f)));
    let usual = Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
    let found = if usual.explains(&wavelens, factors) { Some(usual) } else { solve(&wavelens, factors, factor) };
    match found {
        Some(s) => Ok(json!({
            "type": "llama3",
            "rope_type": "llama3",
            "factor": s.factor,
            "low_freq_factor": s.low,
            "high_freq_factor": s.high,
            "original_max_position_embeddings": s.original as u64,
        })),
        None => Err(fail("a table that no such scaling gives".to_owned())),
    }
}

fn solve(wavelens: &[f64], factors: &[f32], factor: f64) -> Option<Llama3> {
    // Points (1/wavelength, smooth) strictly between the two ends.
    let points: Vec<(f64, f64)> = wavelens
        .iter()
        .zip(factors)
        .map(|(w, f)| (1.0 / w, (1.0 / f64::from(*f) - 1.0 / factor) / (1.0 - 1.0 / factor)))
        .filter(|(_, s)| *s > 1e-3 && *s < 1.0 - 1e-3)
        .collect();
    let (first, last) = (points.first()?, points.last()?);
    if first.0 == last.0 {
        return None;
    }
    let slope = (first.1 - last.1) / (first.0 - last.0);
    let intercept = first.1 - slope * first.0;
    // s = (original/w − 1)/(high − 1)
    let span = -1.0 / intercept;
    let high = ((1.0 + span) * 1000.0).round() / 1000.0;
    let original = (slope * (high - 1.0)).round();
    let candidate = Llama3 { factor, low: 1.0, high, original };
    let sane = high > 1.0 && (1.0..1e9).contains(&original);
    (sane && candidate.explains(wavelens, factors)).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(s: Llama3, theta: f64, head_dim: u64) -> Vec<f32> {
        (0..head_dim / 2).map(|i| s.stretch(TAU * theta.powf(2.0 * i as f64 / head_dim as f64)) as f32).collect()
    }

    #[test]
    fn finds_the_settings_of_llama_3_1_and_3_2() {
        for (factor, head_dim) in [(8.0, 128), (32.0, 64), (32.0, 128)] {
            let s = Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
            let found = llama3(Path::new("f"), 500_000.0, head_dim, &table(s, 500_000.0, head_dim)).unwrap();
            assert_eq!(found["factor"], factor);
            assert_eq!(found["low_freq_factor"], 1.0);
            assert_eq!(found["high_freq_factor"], 4.0);
            assert_eq!(found["original_max_position_embeddings"], 8192);
        }
    }

    #[test]
    fn finds_unusual_settings_that_give_the_same_table() {
        // low = 2 is the same scaling as low = 1 with high and original halved.
        let s = Llama3 { factor: 16.0, low: 2.0, high: 16.0, original: 8192.0 };
        let found = llama3(Path::new("f"), 1_000_000.0, 128, &table(s, 1_000_000.0, 128)).unwrap();
        assert_eq!(found["low_freq_factor"], 1.0);
        assert_eq!(found["high_freq_factor"], 8.0);
        assert_eq!(found["original_max_position_embeddings"], 4096);
    }

    #[test]
    fn refuses_a_table_of_another_kind() {
        let ramp: Vec<f32> = (0..64).map(|i| 1.0 + i as f32 * 0.1).collect();
        let e = llama3(Path::new("x.gguf"), 10_000.0, 128, &ramp).unwrap_err().to_string();
        assert!(e.contains("x.gguf") && e.contains("rope_freqs.weight"), "{e}");
    }
}
