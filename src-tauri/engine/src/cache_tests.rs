//! Whatever happens to a row's caches, the next logits are those of a fresh prefill.

use super::*;
use crate::disk::{Strip, Whole};
use crate::loader::{self, LoadOptions, Loaded};
use crate::step::{Segment, Step};
use hearth_core::kv_policy::Asked;
use proptest::prelude::*;
use std::ops::Range;
use std::path::Path;

/// What can happen to one of the live sequences (numbers are taken modulo what there is).
#[derive(Debug, Clone)]
enum Act {
    /// More tokens, in one chunk.
    Extend(usize, Vec<u32>),
    /// The end is forgotten.
    Trim(usize, usize),
    /// A view of the beginning becomes a sequence of its own.
    Lend(usize, usize),
    /// One token for several sequences in one step; those left out have left the batch.
    Together(Vec<bool>, u32),
    /// A copy that somebody else keeps becomes a sequence of its own.
    Copy(usize),
    /// So many tokens more are announced, whether they come or not.
    Expect(usize, usize),
    /// To bytes, in blocks, and back.
    Store(usize, usize),
    /// A sequence ends.
    Drop(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let n = 0usize..100;
    let act = prop_oneof![
        4 => (n.clone(), proptest::collection::vec(3u32..280, 1..24)).prop_map(|(at, ids)| Act::Extend(at, ids)),
        2 => (n.clone(), n.clone()).prop_map(|(at, to)| Act::Trim(at, to)),
        3 => (n.clone(), n.clone()).prop_map(|(at, to)| Act::Lend(at, to)),
        3 => (proptest::collection::vec(proptest::bool::ANY, 4), 3u32..280).prop_map(|(who, id)| Act::Together(who, id)),
        2 => (n.clone(), 1usize..20).prop_map(|(at, block)| Act::Store(at, block)),
        2 => n.clone().prop_map(Act::Copy),
        1 => (n.clone(), n.clone()).prop_map(|(at, more)| Act::Expect(at, more)),
        1 => n.prop_map(Act::Drop),
    ];
    proptest::collection::vec(act, 1..14)
}

struct Sequence {
    tokens: Vec<u32>,
    caches: Vec<LayerCache>,
}

impl Sequence {
    fn can_trim_to(&self, to: usize) -> bool {
        let least = self.caches.iter().map(LayerCache::min_reusable).max().unwrap_or(0);
        to == self.tokens.len() || (to >= least && self.caches.iter().all(LayerCache::can_trim))
    }
}

/// The last logits after these tokens of several sequences went through the model together.
fn forward(model: &Loaded, sequences: &mut [&mut Sequence], ids: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let mut rows: Vec<Vec<LayerCache>> = sequences.iter_mut().map(|s| std::mem::take(&mut s.caches)).collect();
    let segments = rows.iter_mut().zip(ids).map(|(caches, ids)| Segment { tokens: ids.len(), caches }).collect();
    let all: Vec<u32> = ids.concat();
    let hidden = model.model.forward(&Tensor::from_u32(&all).unwrap(), &mut Step::new(segments)).unwrap();
    let logits = model.model.logits(&hidden).unwrap();
    let vocab = logits.dim(1) as usize;
    let values = logits.to_vec_f32().unwrap();
    eval(rows.iter().flatten().flat_map(LayerCache::tensors)).unwrap();
    let mut at = 0;
    let mut last = Vec::new();
    for ((sequence, caches), ids) in sequences.iter_mut().zip(rows).zip(ids) {
        sequence.caches = caches;
        sequence.tokens.extend(ids);
        at += ids.len();
        last.push(values[(at - 1) * vocab..at * vocab].to_vec());
    }
    last
}

/// After the first chunk keys and values are converted, where the model is asked to keep them so.
fn convert(model: &Loaded, sequence: &mut Sequence) {
    for (cache, bits) in sequence.caches.iter_mut().zip(&model.kv_bits) {
        if let Some(bits) = bits {
            cache.quantize(*bits).unwrap();
        }
    }
}

/// What a fresh prefill says after these tokens, whose first `first` were one chunk.
fn fresh(model: &Loaded, tokens: &[u32], first: usize) -> Vec<f32> {
    let mut sequence = Sequence { tokens: Vec::new(), caches: LayerCache::for_layout(&model.layout) };
    let first = first.clamp(1, tokens.len());
    let mut logits = forward(model, &mut [&mut sequence], &[tokens[..first].to_vec()]);
    convert(model, &mut sequence);
    if first < tokens.len() {
        logits = forward(model, &mut [&mut sequence], &[tokens[first..].to_vec()]);
    }
    logits.remove(0)
}

/// Strips in pieces of `block` tokens, put together as the disk does it, with room to spare.
fn stored(model: &Loaded, sequence: &Sequence, block: usize) -> Vec<LayerCache> {
    let n = sequence.tokens.len();
    let pieces: Vec<Range<usize>> = (0..n).step_by(block).map(|from| from..(from + block).min(n)).collect();
    let layers = sequence.caches.iter().zip(&model.layout.layers).zip(&model.kv_bits);
    let restore = |((cache, layout), bits): ((&LayerCache, &LayerLayout), &Option<u8>)| {
        assert!(cache.is_ready().unwrap());
        let parts: Vec<Vec<Strip>> = pieces.iter().map(|p| cache.strips(p.clone()).unwrap()).collect();
        let room = n + 3;
        let strip = |i: usize| {
            let (heads, width, dtype) = (parts[0][i].heads, parts[0][i].width, parts[0][i].dtype);
            let mut bytes = vec![0; heads as usize * room * width as usize];
            for (range, part) in pieces.iter().zip(&parts) {
                let length = range.len() * width as usize;
                for head in 0..heads as usize {
                    let at = (head * room + range.start) * width as usize;
                    bytes[at..at + length].copy_from_slice(&part[i].bytes[head * length..(head + 1) * length]);
                }
            }
            Strip { heads, width, dtype, bytes }
        };
        let strips = (0..parts[0].len()).map(strip).collect();
        let wholes: Vec<Whole> = cache.wholes().unwrap();
        let kind = Kind { layout, bits: *bits, converted_at: cache.min_reusable() };
        let restored = LayerCache::restored(kind, strips, wholes, n).unwrap();
        assert_eq!((restored.offset(), restored.min_reusable()), (n, cache.min_reusable()));
        restored
    };
    layers.map(restore).collect()
}

fn check(model: &Loaded, tolerance: f32, acts: Vec<Act>) -> std::result::Result<(), TestCaseError> {
    let mut live: Vec<Sequence> = Vec::new();
    let mut chunk_of: Vec<usize> = Vec::new();
    let compare = |sequence: &Sequence, logits: &[f32], first: usize, act: &Act| {
        let want = fresh(model, &sequence.tokens, first);
        let worst = logits.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        prop_assert!(worst <= tolerance, "{act:?}: {worst} after {} tokens", sequence.tokens.len());
        Ok(())
    };
    for act in acts {
        let pick = |at: usize| (!live.is_empty()).then(|| at % live.len());
        match &act {
            Act::Extend(at, ids) => {
                let at = match pick(*at).filter(|_| at % 4 > 0 || live.len() > 3) {
                    Some(at) => at,
                    None => {
                        live.push(Sequence { tokens: Vec::new(), caches: LayerCache::for_layout(&model.layout) });
                        chunk_of.push(ids.len());
                        live.len() - 1
                    }
                };
                let is_first = live[at].tokens.is_empty();
                let logits = forward(model, &mut [&mut live[at]], std::slice::from_ref(ids));
                if is_first {
                    convert(model, &mut live[at]);
                }
                compare(&live[at], &logits[0], chunk_of[at], &act)?;
            }
            Act::Trim(at, to) => {
                let Some(at) = pick(*at) else { continue };
                let to = 1 + to % live[at].tokens.len();
                if live[at].can_trim_to(to) {
                    live[at].caches.iter_mut().for_each(|c| c.trim(to));
                    live[at].tokens.truncate(to);
                }
            }
            Act::Lend(at, to) => {
                let Some(at) = pick(*at).filter(|_| live.len() < 4) else { continue };
                let n = live[at].tokens.len();
                let to = if live[at].can_trim_to(1 + to % n) { 1 + to % n } else { n };
                let lease = Lease::default();
                let caches = live[at].caches.iter().map(|c| c.lend(to, &lease)).collect();
                let tokens = live[at].tokens[..to].to_vec();
                live.push(Sequence { tokens, caches });
                chunk_of.push(chunk_of[at]);
            }
            Act::Copy(at) => {
                let Some(at) = pick(*at).filter(|_| live.len() < 4) else { continue };
                let caches: Vec<LayerCache> = live[at].caches.iter().map(|c| c.copied().unwrap()).collect();
                eval(caches.iter().flat_map(LayerCache::tensors)).unwrap();
                let tokens = live[at].tokens.clone();
                live.push(Sequence { tokens, caches });
                chunk_of.push(chunk_of[at]);
            }
            Act::Expect(at, more) => {
                let Some(at) = pick(*at) else { continue };
                let all = live[at].tokens.len() + more;
                live[at].caches.iter_mut().for_each(|c| c.expect(all));
            }
            Act::Together(who, id) => {
                let chosen: Vec<usize> = (0..live.len()).filter(|&i| who[i % who.len()]).collect();
                if chosen.is_empty() {
                    continue;
                }
                let ids = vec![vec![*id]; chosen.len()];
                let mut rows: Vec<&mut Sequence> =
                    live.iter_mut().enumerate().filter(|(i, _)| chosen.contains(i)).map(|(_, s)| s).collect();
                let logits = forward(model, &mut rows, &ids);
                for (i, logits) in chosen.iter().zip(&logits) {
                    compare(&live[*i], logits, chunk_of[*i], &act)?;
                }
            }
            Act::Store(at, block) => {
                let Some(at) = pick(*at) else { continue };
                live[at].caches = stored(model, &live[at], *block);
            }
            Act::Drop(at) => {
                let Some(at) = pick(*at) else { continue };
                live.remove(at);
                chunk_of.remove(at);
            }
        }
    }
    Ok(())
}

fn run(name: &str, kv_bits: Option<u8>, tolerance: f32, cases: u32) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
    let options = LoadOptions { kv: Asked::bits(kv_bits), ..LoadOptions::default() };
    let model = loader::load(&dir, name, options, &mut |_| {}).unwrap();
    assert_eq!(model.kv_bits.iter().any(Option::is_some), kv_bits.is_some(), "{name}");
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    });
    runner.run(&acts(), |acts| check(&model, tolerance, acts)).unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
fn any_history_gives_the_logits_of_a_fresh_prefill() {
    for name in ["llama-f32", "llama_swa-f32", "gemma3_text-f32", "lfm2-f32", "qwen3_5-f32"] {
        run(name, None, 1e-3, 40);
    }
}

/// Keys that differ in their last digit may round to the neighbouring step of their group, which is 1/255 (1/15) of
/// the group's range.
#[test]
fn any_history_of_quantized_keys_and_values_does_so_within_their_rounding() {
    for name in ["gemma3_text-f32", "lfm2-f32", "qwen3_5-f32"] {
        run(name, Some(8), 2e-2, 25);
        run(name, Some(4), 2e-1, 25);
    }
}
