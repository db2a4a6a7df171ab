//! Affine-quantized matrices unpacked into dense f32 on all cores: what a CPU device computes with.
//! MLX can do it on one core; loading is mostly this.

use std::num::NonZero;
use std::thread;

/// A packed matrix `[rows, cols]` as the files have it.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// Little-endian words, `rows · cols · bits / 8` bytes: value `i` of a row in bits `i · bits ..` of the row.
    pub words: &'a [u8],
    /// One scale per group, `[rows, cols / group]`.
    pub scales: &'a [f32],
    /// One bias per group.
    pub biases: &'a [f32],
    /// Output width.
    pub rows: usize,
    /// Input width, a multiple of 32 and of the group size.
    pub cols: usize,
    /// Bits per value: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Values per scale.
    pub group: usize,
}

/// Writes value · scale + bias into `out`, `[rows, cols]`.
///
/// The caller has checked lengths against shapes; a mismatch only cuts the work short.
pub fn dense(packed: Packed<'_>, out: &mut [f32]) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let share = packed.rows.div_ceil(cores).max(1);
    thread::scope(|scope| {
        let mut parts = out.chunks_mut(share * packed.cols).enumerate();
        // One part for this thread.
        let own = parts.next();
        for (i, part) in parts {
            scope.spawn(move || rows(packed, part, i * share));
        }
        if let Some((i, part)) = own {
            rows(packed, part, i * share);
        }
    });
}

/// Rows from `from` on, as many as `out` holds.
fn rows(packed: Packed<'_>, out: &mut [f32], from: usize) {
    let Packed { words, scales, biases, cols, bits, group, .. } = packed;
    let (row_bytes, groups) = (cols * bits / 8, cols / group);
    for (i, line) in out.chunks_exact_mut(cols).enumerate() {
        let row = from + i;
        let (Some(words), Some(scales), Some(biases)) = (
            words.get(row * row_bytes..(row + 1) * row_bytes),
            scales.get(row * groups..(row + 1) * groups),
            biases.get(row * groups..(row + 1) * groups),
        ) else {
            return;
        };
        let groups = line.chunks_exact_mut(group).zip(words.chunks_exact(group * bits / 8));
        for ((line, words), (&scale, &bias)) in groups.zip(scales.iter().zip(biases)) {
            // 32 values always fill whole bytes, whatever the bits: the unit of unpacking.
            for (line, words) in line.chunks_exact_mut(32).zip(words.chunks_exact(4 * bits)) {
                unpack_32(words, bits, |i, value| line[i] = value as f32 * scale + bias);
            }
        }
    }
}

/// The 32 values in these `4 · bits` bytes, lowest bits first.
#[inline(always)]
fn unpack_32(bytes: &[u8], bits: usize, mut put: impl FnMut(usize, u32)) {
    match bits {
        4 => {
            for (i, &b) in bytes.iter().enumerate().take(16) {
                put(2 * i, u32::from(b & 15));
                put(2 * i + 1, u32::from(b >> 4));
            }
        }
        8 => {
            for (i, &b) in bytes.iter().enumerate().take(32) {
                put(i, u32::from(b));
            }
        }
        _ => {
            let (mut held, mut have, mut i) = (0u32, 0, 0);
            for &b in bytes {
                held |= u32::from(b) << have;
                have += 8;
                while have >= bits && i < 32 {
                    put(i, held & ((1 << bits) - 1));
                    held >>= bits;
                    have -= bits;
                    i += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_mlx::{Dtype, QuantizedWeight, Tensor};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_mlx_for_every_width(
            bits in prop::sample::select(vec![2usize, 3, 4, 5, 6, 8]),
            group in prop::sample::select(vec![32usize, 64, 128]),
            rows in 1usize..150, groups in 1usize..5, seed in any::<u32>(),
        ) {
            let cols = group * groups;
            let mut state = seed;
            let mut next = || { state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223); (state >> 24) as u8 };
            let words: Vec<u8> = (0..rows * cols * bits / 8).map(|_| next()).collect();
            let scales: Vec<f32> = (0..rows * groups).map(|_| f32::from(next()) / 64.0 - 1.0).collect();
            let biases: Vec<f32> = (0..rows * groups).map(|_| f32::from(next()) / 32.0 - 4.0).collect();
            let mut out = vec![f32::NAN; rows * cols];
            dense(Packed { words: &words, scales: &scales, biases: &biases, rows, cols, bits, group }, &mut out);
            let shape = [rows as i32, groups as i32];
            let w = QuantizedWeight {
                packed: Tensor::from_bytes(&words, &[rows as i32, (cols * bits / 32) as i32], Dtype::U32).unwrap(),
                scales: Tensor::from_f32(&scales, &shape).unwrap(),
                biases: Some(Tensor::from_f32(&biases, &shape).unwrap()),
                group_size: group as i32, bits: bits as i32, mode: c"affine",
            };
            let want = w.dequantize(Dtype::F32).unwrap().to_vec_f32().unwrap();
            for (i, (g, w)) in out.iter().zip(&want).enumerate() {
                prop_assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{i}: {g} {w}");
            }
        }
    }
}
