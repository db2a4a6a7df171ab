//! Rotary position embedding as data: which dimensions turn, and how fast. Scaling schemes (linear, llama3,
//! yarn) come down to one list of periods and one factor here, so that the engine knows only one kind.

use crate::error::CoreError;
use serde_json::Value;
use std::f64::consts::PI;
use std::path::Path;

/// Rotary parameters of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Dimensions of each head that turn (even).
    pub dims: usize,
    /// Interleaved pairs (2i, 2i + 1) instead of halves (i, i + dims/2).
    pub traditional: bool,
    /// Positions are multiplied by this (1/factor for linear scaling).
    pub scale: f32,
    /// The base of the geometric series of periods (`rope_theta`).
    pub base: f32,
    /// Period / 2π of each of the dims/2 pairs, where a scaling scheme replaces base^(2i/dims).
    pub periods: Option<Vec<f32>>,
    /// Queries and keys are multiplied by this before turning (yarn's mscale; 1 otherwise).
    pub magnitude: f32,
}

impl Rope {
    /// Angle per position of each of the dims/2 pairs, position scale included.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        match &self.periods {
            Some(periods) => periods.iter().map(|p| self.scale / p).collect(),
            None => {
                periods(f64::from(self.base), self.dims).iter().map(|p| (f64::from(self.scale) / p) as f32).collect()
            }
        }
    }

    /// Reads `rope_scaling` (or `rope_parameters`) of a config.
    ///
    /// # Errors
    /// [`CoreError::Unsupported`] naming an unknown `rope_type`, [`CoreError::Invalid`] naming a bad field.
    pub fn from_config(
        dims: usize,
        base: f64,
        traditional: bool,
        scaling: &Value,
        file: &Path,
    ) -> Result<Self, CoreError> {
        let plain = Rope { dims, traditional, scale: 1.0, base: base as f32, periods: None, magnitude: 1.0 };
        if scaling.is_null() {
            return Ok(plain);
        }
        if !scaling.is_object() {
            return Err(invalid(file, "rope_scaling", "an object", scaling));
        }
        let kind = match (&scaling["type"], &scaling["rope_type"]) {
            (Value::String(kind), _) | (Value::Null, Value::String(kind)) => kind.as_str(),
            (Value::Null, Value::Null) => "default",
            (other, _) => return Err(invalid(file, "rope_scaling.rope_type", "a string", other)),
        };
        let number = |name: &str, default: Option<f64>| match (&scaling[name], default) {
            (Value::Null, Some(d)) => Ok(d),
            (v, _) => v
                .as_f64()
                .filter(|f| f.is_finite())
                .ok_or_else(|| invalid(file, &format!("rope_scaling.{name}"), "a number", v)),
        };
        let positive = |name: &str, default: Option<f64>| {
            number(name, default).and_then(|f| {
                if (1e-6..1e9).contains(&f) {
                    Ok(f)
                } else {
                    Err(invalid(file, &format!("rope_scaling.{name}"), "a number from 1e-6 to 1e9", &f.into()))
                }
            })
        };
        match kind {
            // A text's positions are the same along all three axes of mrope.
            "default" | "mrope" => Ok(plain),
            "linear" => Ok(Rope { scale: (1.0 / positive("factor", None)?) as f32, ..plain }),
            "llama3" => {
                let factor = positive("factor", None)?;
                let low = positive("low_freq_factor", Some(1.0))?;
                let high = positive("high_freq_factor", Some(4.0))?;
                let original = positive("original_max_position_embeddings", Some(8192.0))?;
                if low >= high {
                    let expected = format!("a number below high_freq_factor ({high})");
                    return Err(invalid(file, "rope_scaling.low_freq_factor", &expected, &low.into()));
                }
                Ok(Rope { periods: Some(llama3(base, dims, factor, low, high, original)), ..plain })
            }
            "yarn" => {
                let yarn = Yarn {
                    factor: positive("factor", None)?,
                    original: positive("original_max_position_embeddings", Some(4096.0))?,
                    beta_fast: positive("beta_fast", Some(32.0))?,
                    beta_slow: positive("beta_slow", Some(1.0))?,
                };
                let (mscale, all) = (number("mscale", Some(1.0))?, number("mscale_all_dim", Some(0.0))?);
                let magnitude = (yarn.magnitude(mscale) / yarn.magnitude(all)) as f32;
                Ok(Rope { periods: Some(yarn.periods(base, dims)), magnitude, ..plain })
            }
            other => Err(CoreError::Unsupported {
                file: file.to_owned(),
                what: "rope_type".into(),
                found: other.into(),
                supported: "default, linear, llama3, yarn, mrope".into(),
            }),
        }
    }
}

fn invalid(file: &Path, what: &str, expected: &str, found: &Value) -> CoreError {
    CoreError::Invalid { file: file.to_owned(), what: what.into(), expected: expected.into(), found: found.to_string() }
}

/// base^(2i/dims) for each pair.
fn periods(base: f64, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| base.powf(2.0 * i as f64 / dims as f64)).collect()
}

/// Llama 3.1's scheme: long wavelengths are stretched by `factor`, short ones kept, a smooth ramp between.
/// Source: the rope scaling of Meta's reference implementation, as mlx-lm computes it.
fn llama3(base: f64, dims: usize, factor: f64, low: f64, high: f64, original: f64) -> Vec<f32> {
    let (long, short) = (original / low, original / high);
    let stretch = |period: f64| {
        let wavelength = 2.0 * PI * period;
        if wavelength > long {
            period * factor
        } else if wavelength > short && wavelength < long {
            let smooth = (original / wavelength - low) / (high - low);
            period / ((1.0 - smooth) / factor + smooth)
        } else {
            period
        }
    };
    periods(base, dims).into_iter().map(|p| stretch(p) as f32).collect()
}

/// YaRN (Peng et al. 2023): interpolate slow pairs, keep fast ones, ramp between two rotation counts.
struct Yarn {
    factor: f64,
    original: f64,
    beta_fast: f64,
    beta_slow: f64,
}

impl Yarn {
    fn magnitude(&self, mscale: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * mscale * self.factor.ln() + 1.0 }
    }

    fn periods(&self, base: f64, dims: usize) -> Vec<f32> {
        let d = dims as f64;
        let pair_with = |rotations: f64| d * (self.original / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln());
        let low = pair_with(self.beta_fast).floor().max(0.0);
        let mut high = pair_with(self.beta_slow).ceil().min(d - 1.0);
        if low == high {
            high += 0.001;
        }
        let blend = |(i, keep): (usize, f64)| {
            let stretched = self.factor * keep;
            let mask = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            ((stretched * keep) / (stretched * mask + keep * (1.0 - mask))) as f32
        };
        periods(base, dims).into_iter().enumerate().map(blend).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(scaling: Value) -> Result<Rope, CoreError> {
        Rope::from_config(32, 10_000.0, false, &scaling, Path::new("config.json"))
    }

    #[test]
    fn schemes_agree_where_they_must() {
        let plain = read(Value::Null).unwrap().inverse_frequencies();
        assert_eq!(plain[0], 1.0);
        assert!((plain[8] - 0.01).abs() < 1e-8);
        let linear = read(json!({"type": "linear", "factor": 4.0})).unwrap().inverse_frequencies();
        assert!(plain.iter().zip(&linear).all(|(p, l)| (p / 4.0 - l).abs() < 1e-7));
        let llama3 =
            read(json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32})).unwrap();
        let scaled = llama3.inverse_frequencies();
        assert_eq!(scaled[0], plain[0], "short wavelengths are kept");
        assert!((scaled[15] - plain[15] / 8.0).abs() < 1e-9, "long ones are stretched");
        let yarn = read(json!({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64})).unwrap();
        assert!((yarn.magnitude - 1.277_258_9).abs() < 1e-6, "{}", yarn.magnitude);
        assert_eq!(yarn.inverse_frequencies()[0], 1.0);
    }

    #[test]
    fn unknown_and_broken_schemes_are_named() {
        for (v, says) in [
            (json!({"rope_type": "spiral"}), "`spiral` is not supported"),
            (json!({"rope_type": "linear"}), "rope_scaling.factor: expected a number"),
            (json!({"rope_type": "linear", "factor": 0}), "a number from 1e-6 to 1e9"),
            (json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4}), "below high_freq_factor (4)"),
            (json!({"rope_type": 3}), "expected a string"),
        ] {
            let e = read(v).unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
    }
}
