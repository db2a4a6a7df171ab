//! The arithmetic: dot products with rows of B, or sums of rows of B, for up to four rows of A at a time.
//! AVX2 with FMA; tiles are as large as sixteen registers allow.

use std::arch::x86_64::{
    __m256, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps, _mm_shuffle_ps, _mm256_add_ps,
    _mm256_castps256_ps128, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_storeu_ps,
};

/// One product: C = A·Bᵀ (rows of B are outputs) or A·B, or that added to C. All matrices are row-major; `ld*` are the
/// distances of their rows in elements.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) depth: usize,
    pub(super) a: *const f32,
    pub(super) lda: usize,
    pub(super) b: *const f32,
    pub(super) ldb: usize,
    pub(super) b_rows_are_outputs: bool,
    pub(super) add: bool,
    pub(super) c: *mut f32,
    pub(super) ldc: usize,
}

/// Floats in a register.
const LANES: usize = 8;
/// Rows of A in a tile.
const TILE: usize = 4;

/// Whether this CPU has what the kernels are made of.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Computes the outputs `from..to` of all rows.
///
/// # Safety
/// The pointers are valid for the sizes, C's columns `from..to` are nobody else's, and [`is_supported`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn compute(p: &Product, from: usize, to: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if p.b_rows_are_outputs {
            // Few rows of A leave registers for more rows of B.
            match p.rows {
                1 => dots::<4>(p, from, to),
                2 => dots::<4>(p, from, to),
                _ => dots::<3>(p, from, to),
            }
        } else {
            sums(p, from, to);
        }
    }
}

/// A·Bᵀ with `R` rows of B at a time, which stay in the cache for all rows of A.
#[target_feature(enable = "avx2,fma")]
unsafe fn dots<const R: usize>(p: &Product, from: usize, to: usize) {
    // SAFETY: the caller's promise; tiles end where the matrices do.
    unsafe {
        let mut n = from;
        while n + R <= to {
            dots_of::<R>(p, n);
            n += R;
        }
        while n < to {
            dots_of::<1>(p, n);
            n += 1;
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn dots_of<const R: usize>(p: &Product, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut m = 0;
        while m < p.rows {
            match p.rows - m {
                1 => dots_tile::<1, R>(p, m, n),
                2 => dots_tile::<2, R>(p, m, n),
                3 => dots_tile::<3, R>(p, m, n),
                _ => dots_tile::<TILE, R>(p, m, n),
            }
            m += TILE;
        }
    }
}

/// Rows `m..m + M` of A with rows `n..n + R` of B.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn dots_tile<const M: usize, const R: usize>(p: &Product, m: usize, n: usize) {
    // SAFETY: the caller's promise: M rows of A and R rows of B from here on, each `depth` long.
    unsafe {
        let a: [*const f32; M] = std::array::from_fn(|i| p.a.add((m + i) * p.lda));
        let b: [*const f32; R] = std::array::from_fn(|j| p.b.add((n + j) * p.ldb));
        let mut sums = [[_mm256_setzero_ps(); R]; M];
        let mut k = 0;
        while k + LANES <= p.depth {
            let weights: [__m256; R] = load(&b, k);
            for i in 0..M {
                let x = _mm256_loadu_ps(a[i].add(k));
                for j in 0..R {
                    sums[i][j] = _mm256_fmadd_ps(x, weights[j], sums[i][j]);
                }
            }
            k += LANES;
        }
        for i in 0..M {
            for j in 0..R {
                let mut sum = total(sums[i][j]);
                for k in k..p.depth {
                    sum += *a[i].add(k) * *b[j].add(k);
                }
                let c = p.c.add((m + i) * p.ldc + n + j);
                *c = if p.add { *c + sum } else { sum };
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn load<const R: usize>(rows: &[*const f32; R], k: usize) -> [__m256; R] {
    let mut registers = [_mm256_setzero_ps(); R];
    for (register, row) in registers.iter_mut().zip(rows) {
        // SAFETY: the caller has checked that eight more are there.
        *register = unsafe { _mm256_loadu_ps(row.add(k)) };
    }
    registers
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn total(v: __m256) -> f32 {
    let halves = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let quarters = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
    _mm_cvtss_f32(_mm_add_ss(quarters, _mm_shuffle_ps::<1>(quarters, quarters)))
}

/// A·B, sixteen columns of B at a time.
#[target_feature(enable = "avx2,fma")]
unsafe fn sums(p: &Product, from: usize, to: usize) {
    // SAFETY: the caller's promise; tiles end where the matrices do.
    unsafe {
        let mut n = from;
        while n + 2 * LANES <= to {
            let mut m = 0;
            while m < p.rows {
                match p.rows - m {
                    1 => sums_tile::<1>(p, m, n),
                    2 => sums_tile::<2>(p, m, n),
                    3 => sums_tile::<3>(p, m, n),
                    _ => sums_tile::<TILE>(p, m, n),
                }
                m += TILE;
            }
            n += 2 * LANES;
        }
        for m in 0..p.rows {
            for n in n..to {
                let mut sum = 0.0;
                for k in 0..p.depth {
                    sum += *p.a.add(m * p.lda + k) * *p.b.add(k * p.ldb + n);
                }
                let c = p.c.add(m * p.ldc + n);
                *c = if p.add { *c + sum } else { sum };
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn sums_tile<const M: usize>(p: &Product, m: usize, n: usize) {
    // SAFETY: the caller's promise: M rows of A, and sixteen columns of B and C from here on.
    unsafe {
        let a: [*const f32; M] = std::array::from_fn(|i| p.a.add((m + i) * p.lda));
        let mut sums = [[_mm256_setzero_ps(); 2]; M];
        for k in 0..p.depth {
            let row = p.b.add(k * p.ldb + n);
            let weights = [_mm256_loadu_ps(row), _mm256_loadu_ps(row.add(LANES))];
            for i in 0..M {
                let x = _mm256_set1_ps(*a[i].add(k));
                for j in 0..2 {
                    sums[i][j] = _mm256_fmadd_ps(x, weights[j], sums[i][j]);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let c = p.c.add((m + i) * p.ldc + n + j * LANES);
                _mm256_storeu_ps(c, if p.add { _mm256_add_ps(sum, _mm256_loadu_ps(c)) } else { sum });
            }
        }
    }
}
