//! Products of a few rows with a matrix on an x86-64 CPU under Linux, in place of BLAS.
//!
//! MLX hands every f32 product to `cblas_sgemm`. For many rows nothing beats BLAS. For the few rows of a decode step
//! OpenBLAS spends most of its time copying the weights into its own order, every step again; reading them once,
//! as they are, takes half as long. So the program has a `cblas_sgemm` of its own: the dynamic linker gives it to
//! libmlx in place of the library's, it computes what it is better at, and passes everything else on.
//!
//! Without AVX2, on other systems, and where the linker does not play along, BLAS computes everything as before.

mod kernel;
mod team;

use kernel::Product;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// `cblas_sgemm`: orders and transpositions are enums, which C passes as ints.
type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// Most rows that are computed here. With more, BLAS's copy of the weights has paid for itself.
const MOST_ROWS: usize = 32;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// glibc's "the next one after this object, in the order of search".
const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;

/// The library's own function. A program without one could not have been started: libmlx needs it.
fn library() -> Option<Sgemm> {
    static FOUND: OnceLock<Option<Sgemm>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // SAFETY: a look-up by a NUL-terminated name; what it finds has the signature that CBLAS gives it.
        unsafe {
            let found = dlsym(RTLD_NEXT, c"cblas_sgemm".as_ptr());
            std::mem::transmute::<*mut c_void, Option<Sgemm>>(found)
        }
    })
}

/// C ← α·op(A)·op(B) + β·C, as CBLAS defines it.
///
/// # Safety
/// As CBLAS: pointers are valid for what the sizes and leading dimensions say.
#[unsafe(no_mangle)]
unsafe extern "C" fn cblas_sgemm(
    order: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f32,
    a: *const f32,
    lda: c_int,
    b: *const f32,
    ldb: c_int,
    beta: f32,
    c: *mut f32,
    ldc: c_int,
) {
    let few = (1..=MOST_ROWS as c_int).contains(&m) && n > 0 && k > 0;
    let plain = order == ROW_MAJOR && trans_a == NO_TRANS && alpha == 1.0 && (beta == 0.0 || beta == 1.0);
    if few && plain && (trans_b == TRANS || trans_b == NO_TRANS) && kernel::is_supported() {
        let product = Product {
            rows: m as usize,
            outputs: n as usize,
            depth: k as usize,
            a,
            lda: lda as usize,
            b,
            ldb: ldb as usize,
            b_rows_are_outputs: trans_b == TRANS,
            add: beta == 1.0,
            c,
            ldc: ldc as usize,
        };
        // SAFETY: the caller's promise, and AVX2 with FMA is there.
        return unsafe { team::compute(product) };
    }
    if let Some(sgemm) = library() {
        // SAFETY: the caller's arguments, unchanged.
        unsafe { sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the library computes, and what this does.
    fn both(m: usize, n: usize, k: usize, trans_b: bool, beta: f32, pad: usize) -> (Vec<f32>, Vec<f32>) {
        let mut state = (m * 31 + n * 7 + k) as u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let (lda, ldc) = (k + pad, n + pad);
        let (b_rows, ldb) = if trans_b { (n, k + pad) } else { (k, n + pad) };
        let a: Vec<f32> = (0..m * lda).map(|_| next()).collect();
        let b: Vec<f32> = (0..b_rows * ldb).map(|_| next()).collect();
        // With β = 0 the target's old content must not matter, whatever it is.
        let c: Vec<f32> = (0..m * ldc).map(|_| if beta == 0.0 { f32::NAN } else { next() }).collect();
        let run = |sgemm: Sgemm| {
            let mut c = c.clone();
            let trans = if trans_b { TRANS } else { NO_TRANS };
            let [m, n, k, lda, ldb, ldc] = [m, n, k, lda, ldb, ldc].map(|x| x as c_int);
            // SAFETY: the vectors have just these sizes.
            unsafe {
                sgemm(
                    ROW_MAJOR,
                    NO_TRANS,
                    trans,
                    m,
                    n,
                    k,
                    1.0,
                    a.as_ptr(),
                    lda,
                    b.as_ptr(),
                    ldb,
                    beta,
                    c.as_mut_ptr(),
                    ldc,
                );
            }
            c
        };
        (run(library().unwrap()), run(cblas_sgemm))
    }

    fn compare((want, got): (Vec<f32>, Vec<f32>), k: usize) {
        for (i, (w, g)) in want.iter().zip(&got).enumerate() {
            let same = w.is_nan() && g.is_nan() || (w - g).abs() <= 1e-5 * (k as f32).sqrt().max(1.0);
            assert!(same, "{i}: {w} {g}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn equals_the_library(
            m in 1usize..40, n in 1usize..150, k in 1usize..200,
            trans_b: bool, add: bool, pad in 0usize..5,
        ) {
            compare(both(m, n, k, trans_b, if add { 1.0 } else { 0.0 }, pad), k);
        }
    }

    #[test]
    fn large_ones_are_shared_among_threads() {
        for m in [1, 3, 8] {
            compare(both(m, 3001, 577, true, 0.0, 0), 577);
            compare(both(m, 3001, 577, false, 1.0, 3), 577);
        }
    }

    #[test]
    fn many_threads_may_ask_at_once() {
        std::thread::scope(|scope| {
            for m in 1..6 {
                scope.spawn(move || compare(both(m, 1500, 300, true, 0.0, 0), 300));
            }
        });
    }

    #[test]
    fn mlx_uses_it() {
        let before = team::computed();
        let a = crate::Tensor::arange(0, 64, crate::Dtype::F32).unwrap().reshape(&[2, 32]).unwrap();
        let b = crate::Tensor::arange(0, 96, crate::Dtype::F32).unwrap().reshape(&[3, 32]).unwrap();
        let product = a.matmul(&b.swap_last().unwrap()).unwrap().to_vec_f32().unwrap();
        let dot = |i: usize, j: usize| (0..32).map(|k| (i * 32 + k) as f32 * (j * 32 + k) as f32).sum::<f32>();
        let want: Vec<f32> = (0..6).map(|i| dot(i / 3, i % 3)).collect();
        assert_eq!(product, want);
        assert!(team::computed() > before, "libmlx calls another cblas_sgemm");
    }
}
