//! Attention's probabilities on a CPU, computed where the scores lie.
//!
//! MLX's CPU build calls `fmaf` six times for each exponential, some 13 ns a score: half of the time that a long prompt
//! takes. This computes eight at a time, leaves out what the mask hides, and shares the rows among the cores.

use crate::call::Result;
use crate::tensor::{Dtype, Tensor, eval};
use std::num::NonZero;
use std::thread;

/// Scores for which a second thread is worth its start.
const WORTH_SHARING: usize = 64 << 10;
/// Floats that are computed side by side.
const LANES: usize = 16;

/// softmax(queries · keysᵀ), causal: of each group of `queries` rows, the last one sees all keys and every other one key
/// less than the one after it. Evaluates.
///
/// `queries` are `[1, kv_heads, group · queries, head_dim]`, scaled, those of one head side by side; `keys` are
/// `[1, kv_heads, keys, head_dim]`. Gives `[1, kv_heads, group · queries, keys]` in f32.
///
/// # Errors
/// MLX's, where shapes do not fit.
pub fn causal_probabilities(queries: &Tensor, keys: &Tensor, per_head: usize) -> Result<Tensor> {
    let scores = queries.matmul(&keys.swap_last()?)?.astype(Dtype::F32)?;
    let shape = scores.shape().to_vec();
    eval([&scores])?;
    let (rows, width) = (shape[1] as usize * shape[2] as usize, shape[3] as usize);
    let mut values = scores;
    if rows * width > 0 && per_head > 0 {
        share(values.values_mut()?, width, per_head);
    }
    Ok(values)
}

/// Rows of `width` scores, shared among the cores.
fn share(scores: &mut [f32], width: usize, per_head: usize) {
    let rows = scores.len() / width;
    let cores = if scores.len() < WORTH_SHARING { 1 } else { thread::available_parallelism().map_or(1, NonZero::get) };
    let piece = rows.div_ceil(cores.min(8)).max(1);
    thread::scope(|scope| {
        let mut pieces = scores.chunks_mut(piece * width).enumerate();
        let first = pieces.next();
        for (number, piece_of) in pieces {
            scope.spawn(move || softmax_rows(piece_of, number * piece, width, per_head));
        }
        if let Some((_, piece_of)) = first {
            softmax_rows(piece_of, 0, width, per_head);
        }
    });
}

/// Rows `first..` of all.
fn softmax_rows(scores: &mut [f32], first: usize, width: usize, per_head: usize) {
    for (number, row) in scores.chunks_exact_mut(width).enumerate() {
        let hidden = per_head - 1 - (first + number) % per_head;
        let (seen, unseen) = row.split_at_mut(width.saturating_sub(hidden));
        unseen.fill(0.0);
        softmax(seen);
    }
}

/// As [`softmax_of`], with what this CPU has.
fn softmax(row: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2(row: &mut [f32]) {
            softmax_of(row);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: both features are there.
            return unsafe { with_avx2(row) };
        }
    }
    softmax_of(row);
}

/// e^(x − max) over its sum. A row with a value that is no number becomes no numbers.
#[inline(always)]
fn softmax_of(row: &mut [f32]) {
    let mut most = [f32::NEG_INFINITY; LANES];
    let mut blocks = row.chunks_exact(LANES);
    for block in &mut blocks {
        for (most, &x) in most.iter_mut().zip(block) {
            *most = if x > *most { x } else { *most };
        }
    }
    let rest = blocks.remainder().iter().copied();
    let most = most.into_iter().chain(rest).fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    let mut blocks = row.chunks_exact_mut(LANES);
    for block in &mut blocks {
        for (sum, x) in sums.iter_mut().zip(block) {
            *x = exp(*x - most);
            *sum += *x;
        }
    }
    let mut sum: f32 = sums.iter().sum();
    for x in blocks.into_remainder() {
        *x = exp(*x - most);
        sum += *x;
    }
    let share = 1.0 / sum;
    row.iter_mut().for_each(|x| *x *= share);
}

/// e^x for x ≤ 0, to 2 units in the last place: x = n·ln 2 + r, then a polynomial in r (Cephes' expf).
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³: adding it rounds to a whole number, which the low bits then hold.
    const ROUND: f32 = 12_582_912.0;
    // Below this the result would not be a normal number. Written so that what is no number stays so.
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1] {
        p = p * r + c;
    }
    let p = p * r * r + r + 1.0;
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mask;
    use proptest::prelude::*;

    #[test]
    fn the_exponential_is_exact_to_a_few_units_in_the_last_place() {
        for i in 0..=870_000 {
            let x = -(i as f32) / 10_000.0;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= want * 3e-7, "{x}: {} {want}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan() && exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn what_is_no_number_is_not_hidden() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = vec![0.5; 40];
            row[17] = bad;
            softmax(&mut row);
            assert!(row.iter().all(|x| x.is_nan()), "{bad}: {row:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn attention_is_mlxs(kv in 1usize..3, group in 1usize..4, n in 1usize..40, past in 0usize..300, seed: u32) {
            let d = 16;
            let random = |shape: &[i32], salt: u32| {
                let mut state = seed ^ salt;
                let mut next = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / (1 << 22) as f32 - 2.0
                };
                let values: Vec<f32> = (0..shape.iter().product::<i32>()).map(|_| next()).collect();
                Tensor::from_f32(&values, shape).unwrap()
            };
            let (heads, keys) = ((kv * group) as i32, (past + n) as i32);
            let q = random(&[1, heads, n as i32, d], 1);
            let (k, v) = (random(&[1, kv as i32, keys, d], 2), random(&[1, kv as i32, keys, d], 3));
            let want = q.attention(&k, &v, 1.0, Mask::Causal).unwrap().to_vec_f32().unwrap();
            let rows = q.reshape(&[1, kv as i32, (group * n) as i32, d]).unwrap();
            let got = causal_probabilities(&rows, &k, n).unwrap().matmul(&v).unwrap().to_vec_f32().unwrap();
            for (w, g) in want.iter().zip(&got) {
                prop_assert!((w - g).abs() < 1e-5, "{w} {g}");
            }
        }
    }
}
