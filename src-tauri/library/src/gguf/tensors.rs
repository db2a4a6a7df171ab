//! How GGUF tensor data becomes safetensors data in MLX's layout, without losing a bit.
//!
//! Floats are copied. The three quantized types become MLX's affine form, w = scale·q + bias in groups of 32 along a row: `weight`
//! (u32, packed little-endian, element i of a row in bits `bits·(i mod 32/bits)` of word i div (32/bits)), `scales` and `biases` (f32:
//! lossless, and on a CPU many times faster than f16).

use half::f16;

use super::reader::TensorType;

/// Elements of one quantized block, and so of one MLX group.
pub(crate) const GROUP: usize = 32;

/// The layout that a tensor has after import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// Floats, copied byte for byte. The safetensors dtype and its size in bytes.
    Plain(&'static str, usize),
    /// MLX affine quantization with this many bits in groups of 32.
    Affine(u32),
}

impl Layout {
    /// The layout for a GGUF type; `None` if it cannot be imported.
    pub(crate) fn of(kind: TensorType) -> Option<Self> {
        Some(match kind {
            TensorType::F32 => Self::Plain("F32", 4),
            TensorType::F16 => Self::Plain("F16", 2),
            TensorType::Bf16 => Self::Plain("BF16", 2),
            TensorType::Q4_0 | TensorType::Q4_1 => Self::Affine(4),
            TensorType::Q8_0 => Self::Affine(8),
            TensorType::Other(_) => return None,
        })
    }
}

/// The three outputs of a quantized tensor, as little-endian bytes. Appended to row by row.
#[derive(Debug, Default)]
pub(crate) struct Affine {
    /// Packed u32 words.
    pub(crate) weight: Vec<u8>,
    /// f32, one per group.
    pub(crate) scales: Vec<u8>,
    /// f32, one per group.
    pub(crate) biases: Vec<u8>,
}

impl Affine {
    /// Forgets the content, keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.weight.clear();
        self.scales.clear();
        self.biases.clear();
    }

    fn push_group(&mut self, scale: f32, bias: f32) {
        self.scales.extend_from_slice(&scale.to_le_bytes());
        self.biases.extend_from_slice(&bias.to_le_bytes());
    }

    /// Appends whole blocks of `kind`. Returns the index of the first block with a scale or minimum that is not finite, as an error.
    pub(crate) fn push_blocks(&mut self, kind: TensorType, data: &[u8]) -> Result<(), usize> {
        let Some((_, size)) = kind.block() else { return Ok(()) };
        for (index, block) in data.chunks_exact(size as usize).enumerate() {
            let half_at = |at: usize| match block.get(at..at + 2) {
                Some(&[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
                _ => f32::NAN,
            };
            let scale = half_at(0);
            let (bias, quants) = match kind {
                TensorType::Q4_0 => (-8.0 * scale, block.get(2..)),
                TensorType::Q4_1 => (half_at(2), block.get(4..)),
                TensorType::Q8_0 => (-128.0 * scale, block.get(2..)),
                _ => return Ok(()),
            };
            let quants = quants.unwrap_or(&[]);
            if !scale.is_finite() || !bias.is_finite() {
                return Err(index);
            }
            self.push_group(scale, bias);
            match kind {
                // Two's complement to excess 128.
                TensorType::Q8_0 => self.weight.extend(quants.iter().map(|q| q ^ 0x80)),
                _ => {
                    // The block holds element j in the low and j + 16 in the high nibble of byte j; MLX wants neighbours together.
                    let pairs = || quants.chunks_exact(2);
                    let pair = |p: &[u8], shift: u8| match p {
                        &[a, b] => ((a >> shift) & 15) | (((b >> shift) & 15) << 4),
                        _ => 0,
                    };
                    self.weight.extend(pairs().map(|p| pair(p, 0)));
                    self.weight.extend(pairs().map(|p| pair(p, 4)));
                }
            }
        }
        Ok(())
    }
}

/// The GGUF row that holds row `row` of the Hugging Face tensor, for heads of `head_dim` rows whose two rotary halves GGUF interleaves.
pub(crate) fn interleaved_row(row: u64, head_dim: u64) -> u64 {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + (within % half) * 2 + within / half
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What MLX computes from the packed form.
    fn dequantize(a: &Affine, bits: u32) -> Vec<f32> {
        let f32s =
            |b: &[u8]| -> Vec<f32> { b.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect() };
        let (scales, biases) = (f32s(&a.scales), f32s(&a.biases));
        let per_word = 32 / bits;
        let mut out = Vec::new();
        for (i, word) in a.weight.chunks_exact(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            for k in 0..per_word {
                let q = (word >> (k * bits)) & ((1 << bits) - 1);
                let group = (i as u32 * per_word + k) as usize / GROUP;
                out.push(scales[group] * q as f32 + biases[group]);
            }
        }
        out
    }

    #[test]
    fn q4_0_keeps_every_value_in_order() {
        // Element j has the 4-bit value j mod 16 in the first half and 15 − j mod 16 in the second.
        let mut block = f16::from_f32(0.5).to_le_bytes().to_vec();
        block.extend((0..16u8).map(|j| j | ((15 - j) << 4)));
        let mut a = Affine::default();
        a.push_blocks(TensorType::Q4_0, &block).unwrap();
        let expected: Vec<f32> =
            (0..16).map(|j| 0.5 * (j as f32 - 8.0)).chain((0..16).map(|j| 0.5 * (15.0 - j as f32 - 8.0))).collect();
        assert_eq!(dequantize(&a, 4), expected);
    }

    #[test]
    fn q4_1_keeps_every_value_in_order() {
        let (d, m) = (f16::from_f32(0.37), f16::from_f32(-1.21));
        let mut block = [d.to_le_bytes(), m.to_le_bytes()].concat();
        block.extend((0..16u8).map(|j| ((j * 7) % 16) | (((j * 5 + 3) % 16) << 4)));
        let mut a = Affine::default();
        a.push_blocks(TensorType::Q4_1, &block).unwrap();
        let value = |q: u8| d.to_f32() * q as f32 + m.to_f32();
        let expected: Vec<f32> =
            (0..16u8).map(|j| value((j * 7) % 16)).chain((0..16u8).map(|j| value((j * 5 + 3) % 16))).collect();
        assert_eq!(dequantize(&a, 4), expected);
    }

    #[test]
    fn q8_0_keeps_the_full_signed_range() {
        let d = f16::from_f32(0.013);
        let values: Vec<i8> = (0..32).map(|j| (j * 8 - 128) as i8).collect();
        let mut block = d.to_le_bytes().to_vec();
        block.extend(values.iter().map(|v| *v as u8));
        let mut a = Affine::default();
        a.push_blocks(TensorType::Q8_0, &block).unwrap();
        let expected: Vec<f32> = values.iter().map(|v| d.to_f32() * *v as f32).collect();
        assert_eq!(dequantize(&a, 8), expected);
    }

    #[test]
    fn a_scale_that_is_not_finite_is_reported_with_its_block() {
        let good = [f16::from_f32(1.0).to_le_bytes().to_vec(), vec![0; 32]].concat();
        let bad = [f16::NAN.to_le_bytes().to_vec(), vec![0; 32]].concat();
        let mut a = Affine::default();
        assert_eq!(a.push_blocks(TensorType::Q8_0, &[good, bad].concat()), Err(1));
    }

    #[test]
    fn unpermuting_inverts_the_interleaving() {
        // Two heads of 8 rows. llama.cpp's order within a head: 0 4 1 5 2 6 3 7.
        let stored: Vec<u64> = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15].to_vec();
        let restored: Vec<u64> = (0..16).map(|r| stored[interleaved_row(r, 8) as usize]).collect();
        assert_eq!(restored, (0..16).collect::<Vec<u64>>());
    }
}
