//! Affine-quantized matrices unpacked into dense f32, transposed, on all cores: what a CPU device computes with.
//! MLX can do it in two operations on one core; this takes a fifth of the time, and loading is mostly this.

use std::num::NonZero;
use std::thread;

/// Rows handled together, so that reads stay in the first-level cache and writes are whole lines.
const TILE: usize = 64;

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

/// Writes value · scale + bias into `out`, `[cols, stride]`, this matrix's rows being the columns from `at` on.
///
/// The caller has checked lengths against shapes; a mismatch only cuts the work short.
pub fn transposed(packed: Packed<'_>, out: &mut [f32], stride: usize, at: usize) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    // Whole groups per thread, so that none starts in the middle of a word.
    let groups = packed.cols / packed.group;
    let share = groups.div_ceil(cores).max(1) * packed.group;
    thread::scope(|scope| {
        for (i, part) in out.chunks_mut(share * stride).enumerate() {
            scope.spawn(move || columns(packed, part, stride, at, i * share));
        }
    });
}

/// Columns `from ..` of the matrix, as many as `out` has rows.
fn columns(packed: Packed<'_>, out: &mut [f32], stride: usize, at: usize, from: usize) {
    let Packed { words, scales, biases, rows, cols, bits, group } = packed;
    let (row_bytes, groups) = (cols * bits / 8, cols / group);
    // 32 values always fill whole bytes, whatever the bits: the unit of unpacking. A tile is turned in a buffer that
    // stays in the cache: writing columns straight into `out` would touch 32 pages, often of one cache set.
    let mut turned = [0f32; 32 * TILE];
    for tile in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - tile);
        for (block, lines) in out.chunks_exact_mut(32 * stride).enumerate() {
            let col = from + block * 32;
            for r in 0..height {
                let row = tile + r;
                let start = row * row_bytes + col * bits / 8;
                let (Some(bytes), Some(&scale), Some(&bias)) = (
                    words.get(start..start + 4 * bits),
                    scales.get(row * groups + col / group),
                    biases.get(row * groups + col / group),
                ) else {
                    return;
                };
                unpack_32(bytes, bits, |i, value| turned[i * TILE + r] = value as f32 * scale + bias);
            }
            for (line, column) in lines.chunks_exact_mut(stride).zip(turned.chunks_exact(TILE)) {
                let place = at + tile;
                if let Some(line) = line.get_mut(place..place + height) {
                    line.copy_from_slice(&column[..height]);
                }
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
            // Fused with two other columns before and one after.
            let stride = rows + 3;
            let mut out = vec![f32::NAN; cols * stride];
            transposed(Packed { words: &words, scales: &scales, biases: &biases, rows, cols, bits, group }, &mut out, stride, 2);
            let shape = [rows as i32, groups as i32];
            let w = QuantizedWeight {
                packed: Tensor::from_bytes(&words, &[rows as i32, (cols * bits / 32) as i32], Dtype::U32).unwrap(),
                scales: Tensor::from_f32(&scales, &shape).unwrap(),
                biases: Some(Tensor::from_f32(&biases, &shape).unwrap()),
                group_size: group as i32, bits: bits as i32, mode: c"affine",
            };
            let want = w.dequantize(Dtype::F32).unwrap().to_vec_f32().unwrap();
            for col in 0..cols {
                for row in 0..rows {
                    let (g, w) = (out[col * stride + row + 2], want[row * cols + col]);
                    prop_assert!((g - w).abs() <= 1e-5 * w.abs().max(1.0), "{row} {col}: {g} {w}");
                }
                prop_assert!(out[col * stride].is_nan() && out[col * stride + stride - 1].is_nan());
            }
        }
    }
}
