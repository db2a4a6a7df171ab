//! The sampler against a plain computation on the host.

use super::*;
use proptest::prelude::*;

const VOCAB: usize = 40;

fn row(values: &[f32]) -> Tensor {
    Tensor::from_f32(values, &[1, values.len() as i32]).unwrap()
}

fn sampler(params: &SamplingParams, prompt: &[u32]) -> RowSampler {
    RowSampler::new(params, Some(5), VOCAB, prompt, &[], 1).unwrap()
}

fn processed(params: &SamplingParams, prompt: &[u32], generated: &[u32], logits: &[f32]) -> Vec<f32> {
    let mut s = sampler(params, prompt);
    for &id in generated {
        for h in [&mut s.repetition, &mut s.presence, &mut s.frequency].into_iter().flatten() {
            h.push(&Tensor::from_u32(&[id]).unwrap()).unwrap();
        }
    }
    s.process(&row(logits)).unwrap().to_vec_f32().unwrap()
}

/// The same on the host, from the documentation alone.
fn expected(p: &SamplingParams, prompt: &[u32], generated: &[u32], logits: &[f32]) -> Vec<f32> {
    let window = |history: Vec<u32>, size: usize| -> Vec<u32> {
        let from = if size == 0 { 0 } else { history.len().saturating_sub(size) };
        history[from..].to_vec()
    };
    let all = window([prompt, generated].concat(), p.repetition_context_size);
    let present = window(generated.to_vec(), p.presence_context_size);
    let frequent = window(generated.to_vec(), p.frequency_context_size);
    let value = |(id, &l): (usize, &f32)| {
        let id = id as u32;
        let mut l = l + p.logit_bias.get(&id).copied().unwrap_or(0.0);
        if all.contains(&id) {
            l = if l < 0.0 { l * p.repetition_penalty } else { l / p.repetition_penalty };
        }
        if present.contains(&id) {
            l -= p.presence_penalty;
        }
        l - p.frequency_penalty * frequent.iter().filter(|&&t| t == id).count() as f32
    };
    logits.iter().enumerate().map(value).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn processors_match_their_documentation(
        logits in proptest::collection::vec(-8f32..8.0, VOCAB),
        prompt in proptest::collection::vec(0u32..VOCAB as u32, 0..30),
        generated in proptest::collection::vec(0u32..VOCAB as u32, 0..30),
        (repetition, presence, frequency) in (0.5f32..2.0, -2f32..2.0, -2f32..2.0),
        windows in (0usize..25, 0usize..25, 0usize..25),
        bias in proptest::collection::btree_map(0u32..VOCAB as u32, -5f32..5.0, 0..4),
    ) {
        let p = SamplingParams {
            repetition_penalty: repetition, repetition_context_size: windows.0,
            presence_penalty: presence, presence_context_size: windows.1,
            frequency_penalty: frequency, frequency_context_size: windows.2,
            logit_bias: bias, ..SamplingParams::greedy()
        };
        let (got, want) = (processed(&p, &prompt, &generated, &logits), expected(&p, &prompt, &generated, &logits));
        for (g, w) in got.iter().zip(&want) {
            prop_assert!((g - w).abs() < 1e-4, "{got:?}\n{want:?}");
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it(logits in proptest::collection::vec(-4f32..4.0, VOCAB), p in 0.05f32..0.99) {
        let l = row(&logits);
        let l = l.subtract(&l.logsumexp_axis(-1).unwrap()).unwrap();
        let probs: Vec<f32> = l.exp().unwrap().to_vec_f32().unwrap();
        let kept = top_p(&l, p).unwrap().to_vec_f32().unwrap();
        let mut order: Vec<usize> = (0..VOCAB).collect();
        order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]));
        let mut mass = 0.0;
        for id in order {
            // Within rounding of the boundary either is right.
            if (mass - p).abs() > 1e-4 {
                prop_assert_eq!(kept[id].is_finite(), mass < p, "mass {} p {}", mass, p);
            }
            mass += probs[id];
        }
    }
}

#[test]
fn greedy_takes_the_best_and_reports_it() {
    let mut logits = vec![0f32; VOCAB];
    (logits[7], logits[9]) = (3.0, 2.0);
    let mut s = sampler(&SamplingParams::greedy(), &[]);
    let out = s.sample(&row(&logits)).unwrap();
    assert_eq!(out.token.to_vec_u32().unwrap(), [7]);
    let (chosen, best) = out.logprobs.unwrap();
    let (ids, values) = best.unwrap();
    let (ids, values) = (ids.to_vec_u32().unwrap(), values.to_vec_f32().unwrap());
    let at = ids.iter().position(|&i| i == 7).unwrap();
    assert_eq!(values[at], chosen.to_vec_f32().unwrap()[0]);
    assert!(ids.contains(&9) && ids.len() == 5);
    let norm: f32 = logits.iter().map(|l| l.exp()).sum();
    assert!((values[at] - (3.0 - norm.ln())).abs() < 1e-5);
}

fn support(params: SamplingParams, logits: &[f32], exempt: &[u32]) -> std::collections::BTreeSet<u32> {
    (0..200)
        .map(|seed| {
            let p = SamplingParams { seed: Some(seed), ..params.clone() };
            let mut s = RowSampler::new(&p, None, logits.len(), &[], exempt, 0).unwrap();
            s.sample(&row(logits)).unwrap().token.to_vec_u32().unwrap()[0]
        })
        .collect()
}

#[test]
fn truncations_keep_what_they_should() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.1, 0.06, 0.04].iter().map(|p| p.ln()).collect();
    let d = SamplingParams::default;
    assert_eq!(support(d(), &logits, &[]), [0, 1, 2, 3, 4].into());
    assert_eq!(support(SamplingParams { top_k: 2, ..d() }, &logits, &[]), [0, 1].into());
    assert_eq!(support(SamplingParams { top_k: 100, ..d() }, &logits, &[]), [0, 1, 2, 3, 4].into());
    assert_eq!(support(SamplingParams { top_p: 0.79, ..d() }, &logits, &[]), [0, 1].into());
    assert_eq!(support(SamplingParams { min_p: 0.19, ..d() }, &logits, &[]), [0, 1, 2].into());
    let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.2, ..d() };
    assert_eq!(support(xtc.clone(), &logits, &[]), [1, 2, 3, 4].into(), "of 0 and 1 the less likely stays");
    assert_eq!(support(xtc, &logits, &[0]), [0, 1, 2, 3, 4].into(), "an exempt token is never dropped");
}

#[test]
fn equal_seeds_draw_equally_and_each_step_anew() {
    let logits = vec![0f32; VOCAB];
    let draws = |seed| {
        let mut s = RowSampler::new(&SamplingParams { seed, ..Default::default() }, None, VOCAB, &[], &[], 9).unwrap();
        (0..12).map(|_| s.sample(&row(&logits)).unwrap().token.to_vec_u32().unwrap()[0]).collect::<Vec<_>>()
    };
    assert_eq!(draws(Some(3)), draws(Some(3)));
    assert_ne!(draws(Some(3)), draws(Some(4)));
    assert!(draws(Some(3)).windows(2).any(|w| w[0] != w[1]));
}

#[test]
fn the_hlg_curve_is_linear_inside_and_bent_outside() {
    let hlg = Hlg::default();
    let logprobs = [0.0, -6.0, -2.0, -10.0, -20.0, f32::NEG_INFINITY];
    let y = curve(&row(&logprobs), &hlg, 0.5).unwrap().to_vec_f32().unwrap();
    let close = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
    close(y[1], 0.0);
    close(y[2], 2.0 * 4.0);
    close(y[0], 2.0 * 4.0 + 2.0 * 4.0 * (1.0f32 + 2.0 / 4.0).ln());
    close(y[3], -2.0 * 4.0);
    close(y[4], -2.0 * 4.0 - 2.0 * 6.0 * (1.0f32 + 10.0 / 6.0).ln());
    assert_eq!(y[5], f32::NEG_INFINITY);
}
