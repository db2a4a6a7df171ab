//! What was measured, and how it corrects what is computed. A correction may make the estimate of the transient term larger
//! or smaller, within bounds; it never makes an estimate less than what was measured at that context or a shorter one.
//!
//! T(c) is computed for a context of c tokens. Contexts go into buckets: up to 512 tokens, up to 1024, and so on. The factor
//! f(b) of a bucket is the largest of measured ÷ computed there, within [`LEAST`] and [`MOST`]; a bucket without
//! measurements has the factor of the nearest one below it, where that is above 1 (what was too little there is too
//! little here), and else 1. The corrected term is the largest of
//!
//! * f(b) · T(c) of c's own bucket,
//! * f(b) · T(upper end of b) of each bucket below it, and
//! * each measured transient of a context up to c, whatever the bounds say.
//!
//! Each of these grows with c, so that the largest context is still found by halving.

use super::Device;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The least that a correction leaves of the computed transient.
pub const LEAST: f64 = 0.5;
/// The most that a correction makes of it.
pub const MOST: f64 = 3.0;
/// Contexts up to this share the first bucket.
const FIRST_BUCKET: u64 = 512;
/// Measurements of one bucket that count: the latest ones.
const LATEST: usize = 16;

/// What measurements have in common that may be compared: anything else computes or keeps something different.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The model's id.
    pub model: String,
    /// How its weights are quantized (`4-bit`, `mxfp4`, `none`).
    pub quantization: String,
    /// `gpu` or `cpu`.
    pub device: String,
    /// How keys and values are kept: [`crate::kv_policy::KvPolicy::signature`].
    pub kv: String,
    /// MLX's version.
    pub mlx: String,
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When, in seconds since 1970.
    pub at: u64,
    /// Who measured: `serve` or `bench`.
    pub from: String,
    /// What was measured.
    #[serde(flatten)]
    pub key: Key,
    /// Bytes that the weights take; a model of the same name whose weights differ is another one.
    pub weights: u64,
    /// Memory, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryRun>,
    /// Speed, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedRun>,
}

/// A peak of memory, and what was computed for the same case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRun {
    /// Tokens of the longest row.
    pub tokens: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes computed for weights, keys and values of all rows, prompt cache and transient.
    pub predicted: u64,
    /// Of these, the transient.
    pub predicted_transient: u64,
    /// Bytes of MLX's peak.
    pub measured: u64,
}

/// Speeds in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SpeedRun {
    /// Tokens of the row while it decoded.
    pub tokens: u64,
    /// Decoding one row.
    pub decode: f64,
    /// Bytes that each of its tokens read, as computed.
    pub bytes_per_token: u64,
    /// Computing a prompt.
    pub prefill: f64,
}

impl MemoryRun {
    /// What the transient was: the measured peak less everything else, as computed.
    pub fn measured_transient(&self) -> u64 {
        self.measured.saturating_sub(self.predicted.saturating_sub(self.predicted_transient))
    }

    /// Measured ÷ computed, within the bounds.
    fn factor(&self) -> f64 {
        (self.measured_transient() as f64 / self.predicted_transient.max(1) as f64).clamp(LEAST, MOST)
    }
}

/// What is known of one key.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Learned {
    /// Memory: the latest of each bucket, with their times.
    runs: BTreeMap<u64, Vec<(u64, MemoryRun)>>,
    /// The latest speed.
    speed: Option<(u64, SpeedRun)>,
}

/// What `fit` shows of it, for one context.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Shown {
    /// Peaks that were measured in this context's bucket, at most the latest 16.
    pub runs: usize,
    /// The bucket: contexts up to this many tokens, and more than half of it.
    pub bucket: u64,
    /// When the last one was measured, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The run with the largest peak: tokens, rows, computed and measured bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest: Option<MemoryRun>,
    /// The transient as computed, before what was measured.
    pub computed_transient: u64,
    /// The last speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<SpeedRun>,
    /// When that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed_at: Option<u64>,
}

impl Key {
    /// A key for this device.
    pub fn new(model: &str, quantization: &str, device: Device, kv: &str, mlx: &str) -> Self {
        let device = if device == Device::Gpu { "gpu" } else { "cpu" };
        let [model, quantization, device, kv, mlx] = [model, quantization, device, kv, mlx].map(str::to_owned);
        Key { model, quantization, device, kv, mlx }
    }
}

/// The bucket of a context: the least power of two that is not less, and 512 at least.
pub fn bucket(tokens: u64) -> u64 {
    tokens.max(FIRST_BUCKET).checked_next_power_of_two().unwrap_or(u64::MAX)
}

impl Learned {
    /// What these records, oldest first, say of this key and weights of so many bytes.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>, key: &Key, weights: u64) -> Self {
        let mut learned = Learned::default();
        for record in records.into_iter().filter(|r| r.key == *key && r.weights == weights) {
            if let Some(run) = record.memory {
                let runs = learned.runs.entry(bucket(run.tokens)).or_default();
                runs.push((record.at, run));
                if runs.len() > LATEST {
                    runs.remove(0);
                }
            }
            if let Some(speed) = record.speed.filter(|s| s.decode.is_finite() && s.decode > 0.0) {
                learned.speed = Some((record.at, speed));
            }
        }
        learned
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.speed.is_none()
    }

    /// The corrected transient for a context, from `computed`, which gives the computed one of any context and grows
    /// with it.
    pub fn transient(&self, context: u64, computed: impl Fn(u64) -> u64) -> u64 {
        let scaled = |bytes: u64, factor: f64| (bytes as f64 * factor).ceil() as u64;
        if self.runs.is_empty() {
            return computed(context);
        }
        let own = bucket(context);
        let mut corrected = scaled(computed(context), self.factor(own));
        let mut below = own / 2;
        while below >= FIRST_BUCKET {
            corrected = corrected.max(scaled(computed(below), self.factor(below)));
            below /= 2;
        }
        let known = self.runs.range(..=own).flat_map(|(_, runs)| runs);
        let known = known.filter(|(_, run)| run.tokens <= context).map(|(_, run)| run.measured_transient());
        corrected.max(known.max().unwrap_or(0))
    }

    /// The factor of a bucket: its own; without one that of the nearest measured bucket below, where that is above 1.
    fn factor(&self, bucket: u64) -> f64 {
        let largest = |runs: &[(u64, MemoryRun)]| runs.iter().map(|(_, run)| run.factor()).fold(LEAST, f64::max);
        match self.runs.range(..=bucket).next_back() {
            Some((measured, runs)) if *measured == bucket => largest(runs),
            Some((_, runs)) => largest(runs).max(1.0),
            None => 1.0,
        }
    }

    /// Decode speed of one row whose tokens read so many bytes, by the last measurement: the same bytes per second.
    pub fn decode(&self, bytes_per_token: u64) -> Option<f64> {
        let (_, speed) = self.speed?;
        Some(speed.decode * speed.bytes_per_token as f64 / bytes_per_token.max(1) as f64)
    }

    /// What there is to show for a context; `None` where nothing is known at all.
    pub fn shown(&self, context: u64, computed_transient: u64) -> Option<Shown> {
        if self.is_empty() {
            return None;
        }
        let bucket = bucket(context);
        let runs = self.runs.get(&bucket).map(Vec::as_slice).unwrap_or_default();
        Some(Shown {
            runs: runs.len(),
            bucket,
            at: runs.last().map(|(at, _)| *at),
            largest: runs.iter().map(|(_, run)| *run).max_by_key(|run| run.measured),
            computed_transient,
            speed: self.speed.map(|(_, speed)| speed),
            speed_at: self.speed.map(|(at, _)| at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(model: &str) -> Key {
        Key::new(model, "4-bit", Device::Cpu, "float", "0.32.2")
    }

    /// 1000 bytes of everything else.
    fn run(tokens: u64, transient: u64, measured_transient: u64) -> Record {
        let memory = MemoryRun {
            tokens,
            rows: 1,
            predicted: 1000 + transient,
            predicted_transient: transient,
            measured: 1000 + measured_transient,
        };
        Record { at: tokens, from: "bench".into(), key: key("m"), weights: 9, memory: Some(memory), speed: None }
    }

    #[test]
    fn only_the_same_model_on_the_same_ground_counts() {
        let records = [run(100, 50, 100)];
        assert!(!Learned::of(&records, &key("m"), 9).is_empty());
        assert!(Learned::of(&records, &key("m"), 8).is_empty() && Learned::of(&records, &key("n"), 9).is_empty());
        let other = Key { mlx: "0.33".into(), ..key("m") };
        assert!(Learned::of(&records, &other, 9).is_empty());
    }

    #[test]
    fn too_little_is_raised_from_there_on_and_too_much_is_lowered_there_only() {
        let linear = |c: u64| c;
        let raised = Learned::of(&[run(400, 400, 600)], &key("m"), 9);
        assert_eq!([100, 512, 4096].map(|c| raised.transient(c, linear)), [150, 768, 6144]);
        let lowered = Learned::of(&[run(2000, 2000, 1200)], &key("m"), 9);
        // A shorter one was not measured; a longer one is not believed to be lower.
        assert_eq!([1000, 2048, 4096].map(|c| lowered.transient(c, linear)), [1000, 1229, 4096]);
        let bounded = Learned::of(&[run(400, 400, 4000)], &key("m"), 9);
        assert_eq!(bounded.transient(300, linear), 900, "at most three times");
        assert_eq!(bounded.transient(400, linear), 4000, "but never less than what was measured");
        let least = Learned::of(&[run(500, 500, 1)], &key("m"), 9);
        assert_eq!(least.transient(500, linear), 250, "half of it stays");
    }

    #[test]
    fn speed_goes_by_the_bytes_that_a_token_reads() {
        let mut record = run(100, 50, 50);
        record.speed = Some(SpeedRun { tokens: 128, decode: 40.0, bytes_per_token: 500, prefill: 300.0 });
        let learned = Learned::of(&[record], &key("m"), 9);
        assert_eq!(learned.decode(1000), Some(20.0));
        assert_eq!(Learned::default().decode(1000), None);
        let shown = learned.shown(512, 512).unwrap();
        assert_eq!((shown.runs, shown.at, shown.largest.unwrap().measured), (1, Some(100), 1050));
        assert_eq!(learned.shown(2048, 9).unwrap().runs, 0, "another bucket");
        assert_eq!(Learned::default().shown(512, 0), None);
    }

    proptest! {
        /// Whatever was measured: the estimate grows with the context, is no less than any measured peak of a context up
        /// to it, and within the bounds where nothing measured says more.
        #[test]
        fn a_correction_is_safe_and_monotone(
            runs in proptest::collection::vec((1u64..20_000, 0.0f64..6.0), 0..12), steps in proptest::collection::vec(1u64..3000, 1..12),
        ) {
            let computed = |c: u64| 1000 + c * 3;
            let records: Vec<Record> = runs.iter().map(|&(t, f)| run(t, computed(t), (computed(t) as f64 * f) as u64)).collect();
            let learned = Learned::of(&records, &key("m"), 9);
            let (mut context, mut before) = (0, 0);
            for step in steps {
                context += step;
                let corrected = learned.transient(context, computed);
                prop_assert!(corrected >= before, "{context}: {corrected} after {before}");
                let measured = records.iter().filter_map(|r| r.memory).filter(|m| m.tokens <= context);
                let floor = measured.map(|m| m.measured_transient()).max().unwrap_or(0);
                prop_assert!(corrected >= floor);
                prop_assert!(corrected as f64 >= computed(context) as f64 * LEAST);
                // The end of the bucket below may be above what this context's own factor makes.
                prop_assert!(corrected as f64 <= (computed(context) as f64 * MOST + 1.0).max(floor as f64 + 1.0));
                before = corrected;
            }
        }
    }
}
