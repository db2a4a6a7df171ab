//! The tensor against hand-computed values, and errors that must come back as errors.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may fail

use hearth_mlx::{Dtype, QuantizedWeight, Tensor, concatenate, eval, key, split};

#[test]
fn shapes_slices_and_in_place_updates() {
    let a = Tensor::arange(0, 12, Dtype::F32).unwrap().reshape(&[3, 4]).unwrap();
    assert_eq!(a.shape(), [3, 4]);
    assert_eq!(a.slice(1, 1, 3).unwrap().to_vec_f32().unwrap(), [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
    let reversed = a.slice_strided(&[0, 3], &[3, -5], &[1, -1]).unwrap();
    assert_eq!(reversed.slice(0, 0, 1).unwrap().to_vec_f32().unwrap(), [3.0, 2.0, 1.0, 0.0]);
    let b = a.with_slice(&Tensor::zeros(&[1, 4], Dtype::F32).unwrap(), 0, 1).unwrap();
    assert_eq!(b.to_vec_f32().unwrap(), [0., 1., 2., 3., 0., 0., 0., 0., 8., 9., 10., 11.]);
    let c = concatenate([&b, &b], 0).unwrap();
    assert_eq!(c.shape(), [6, 4]);
}

#[test]
fn a_failing_operation_is_an_error_and_the_next_one_works() {
    let a = Tensor::zeros(&[2, 3], Dtype::F32).unwrap();
    let e = a.matmul(&a).unwrap_err();
    assert!(e.message.contains("matmul"), "{e}");
    assert!(Tensor::from_f32(&[1.0], &[2]).is_err());
    assert!(a.reshape(&[7]).is_err());
    assert_eq!(a.add(&Tensor::scalar(1.0)).unwrap().to_vec_f32().unwrap(), [1.0; 6]);
}

#[test]
fn quantized_product_equals_the_dequantized_one() {
    // 4-bit affine, groups of 32: q = 0, 1, …, scale 0.5, bias -1.
    let words: Vec<u8> = (0..2 * 16).map(|i| (i % 16) as u8 * 17).collect();
    let w = QuantizedWeight {
        packed: Tensor::from_bytes(&words, &[2, 4], Dtype::U32).unwrap(),
        scales: Tensor::from_f32(&[0.5, 0.25], &[2, 1]).unwrap(),
        biases: Some(Tensor::from_f32(&[-1.0, 0.0], &[2, 1]).unwrap()),
        group_size: 32,
        bits: 4,
        mode: c"affine",
    };
    let x = Tensor::arange(0, 32, Dtype::F32).unwrap().reshape(&[1, 32]).unwrap();
    let dense = w.dequantize(Dtype::F32).unwrap();
    assert_eq!(dense.to_vec_f32().unwrap()[..4], [-1.0, -1.0, -0.5, -0.5]);
    let fast = w.matmul(&x).unwrap().to_vec_f32().unwrap();
    let slow = x.matmul(&dense.swap_last().unwrap()).unwrap().to_vec_f32().unwrap();
    assert!(fast.iter().zip(&slow).all(|(a, b)| (a - b).abs() < 1e-3), "{fast:?} {slow:?}");
    assert_eq!(w.take_rows(&Tensor::from_u32(&[1]).unwrap()).unwrap().packed.shape(), [1, 4]);
}

#[test]
fn a_seed_determines_the_draws() {
    let draw = |seed| {
        let (next, now) = split(&key(seed).unwrap()).unwrap();
        let logits = Tensor::zeros(&[1, 1000], Dtype::F32).unwrap();
        let ids = [logits.categorical(&now).unwrap(), logits.categorical(&next).unwrap()];
        eval(&ids).unwrap();
        ids.map(|t| t.to_vec_u32().unwrap()[0])
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
}

#[test]
fn rms_norm_and_softmax() {
    let x = Tensor::from_f32(&[3.0, 4.0], &[1, 2]).unwrap();
    let w = Tensor::from_f32(&[1.0, 2.0], &[2]).unwrap();
    let y = x.rms_norm(&w, 0.0).unwrap().to_vec_f32().unwrap();
    assert!((y[0] - 0.848_528).abs() < 1e-5 && (y[1] - 2.262_742).abs() < 1e-5, "{y:?}");
    let p = Tensor::zeros(&[1, 4], Dtype::F32).unwrap().softmax(-1).unwrap().to_vec_f32().unwrap();
    assert_eq!(p, [0.25; 4]);
}
