//! A small GGUF writer for tests, and the tiny models written with it.
#![allow(dead_code)] // Each test target uses a part of it.

use std::path::{Path, PathBuf};

use half::{bf16, f16};

/// Type numbers of ggml.
pub const F32: u32 = 0;
pub const F16: u32 = 1;
pub const Q4_0: u32 = 2;
pub const Q4_1: u32 = 3;
pub const Q8_0: u32 = 8;
pub const Q6_K: u32 = 14;
pub const BF16: u32 = 30;

/// A metadata value.
#[derive(Clone)]
pub enum V {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bools(Vec<bool>),
}

pub fn s(text: &str) -> V {
    V::Str(text.to_owned())
}

fn text(out: &mut Vec<u8>, t: &str) {
    out.extend((t.len() as u64).to_le_bytes());
    out.extend(t.as_bytes());
}

impl V {
    fn write(&self, out: &mut Vec<u8>) {
        let array = |out: &mut Vec<u8>, kind: u32, count: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(kind.to_le_bytes());
            out.extend((count as u64).to_le_bytes());
        };
        match self {
            V::U32(v) => out.extend([4u32.to_le_bytes(), v.to_le_bytes()].concat()),
            V::F32(v) => out.extend([6u32.to_le_bytes(), v.to_le_bytes()].concat()),
            V::Bool(v) => out.extend([&7u32.to_le_bytes()[..], &[u8::from(*v)]].concat()),
            V::Str(v) => {
                out.extend(8u32.to_le_bytes());
                text(out, v);
            }
            V::Strs(v) => {
                array(out, 8, v.len());
                v.iter().for_each(|t| text(out, t));
            }
            V::I32s(v) => {
                array(out, 5, v.len());
                v.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            V::F32s(v) => {
                array(out, 6, v.len());
                v.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            V::Bools(v) => {
                array(out, 7, v.len());
                out.extend(v.iter().map(|b| u8::from(*b)));
            }
        }
    }
}

/// One tensor: shape with rows first, ggml type number, data.
#[derive(Clone)]
pub struct T {
    pub name: String,
    pub shape: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// A GGUF file in the making.
#[derive(Clone, Default)]
pub struct Gguf {
    pub metadata: Vec<(String, V)>,
    pub tensors: Vec<T>,
}

impl Gguf {
    pub fn set(&mut self, key: &str, value: V) -> &mut Self {
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, v)) => *v = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    pub fn tensor(&mut self, name: &str, shape: &[u64], kind: u32) -> &mut Self {
        let data = sample(name, shape.iter().product::<u64>() as usize, kind);
        self.tensors.retain(|t| t.name != name);
        self.tensors.push(T { name: name.to_owned(), shape: shape.to_vec(), kind, data });
        self
    }

    pub fn get(&self, name: &str) -> &T {
        self.tensors.iter().find(|t| t.name == name).unwrap()
    }

    /// The file, and where its header (all but the tensor data) ends.
    pub fn bytes(&self) -> (Vec<u8>, usize) {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (k, v) in &self.metadata {
            text(&mut out, k);
            v.write(&mut out);
        }
        let mut data: Vec<u8> = Vec::new();
        for t in &self.tensors {
            data.resize(data.len().next_multiple_of(32), 0);
            text(&mut out, &t.name);
            out.extend((t.shape.len() as u32).to_le_bytes());
            t.shape.iter().rev().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(&t.data);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        let header = out.len();
        out.extend(data);
        (out, header)
    }

    pub fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, self.bytes().0).unwrap();
        path
    }
}

/// Deterministic numbers, another sequence for every name.
pub struct Random(u64);

impl Random {
    pub fn new(name: &str) -> Self {
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)))
    }

    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// From −1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }
}

/// Data of `count` elements of a ggml type.
pub fn sample(name: &str, count: usize, kind: u32) -> Vec<u8> {
    let mut r = Random::new(name);
    let mut out = Vec::new();
    match kind {
        F32 => (0..count).for_each(|_| out.extend(r.float().to_le_bytes())),
        F16 => (0..count).for_each(|_| out.extend(f16::from_f32(r.float()).to_le_bytes())),
        BF16 => (0..count).for_each(|_| out.extend(bf16::from_f32(r.float()).to_le_bytes())),
        Q6_K => out.resize(count.div_ceil(256) * 210, 0),
        _ => {
            for _ in 0..count / 32 {
                out.extend(f16::from_f32(r.float()).to_le_bytes());
                if kind == Q4_1 {
                    out.extend(f16::from_f32(r.float()).to_le_bytes());
                }
                let quants = if kind == Q8_0 { 32 } else { 16 };
                (0..quants).for_each(|_| out.push(r.next() as u8));
            }
        }
    }
    out
}

/// What the data means, straight from the definition of each ggml type.
pub fn values(t: &T) -> Vec<f32> {
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
    match t.kind {
        F32 => t.data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        F16 => t.data.chunks(2).map(half).collect(),
        BF16 => t.data.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Q8_0 => t.data.chunks(34).flat_map(|b| b[2..].iter().map(move |q| half(b) * f32::from(*q as i8))).collect(),
        Q4_0 | Q4_1 => {
            let size = if t.kind == Q4_0 { 18 } else { 20 };
            let block = |b: &[u8]| -> Vec<f32> {
                let quants = &b[size - 16..];
                let nibbles = quants.iter().map(|q| q & 15).chain(quants.iter().map(|q| q >> 4));
                nibbles
                    .map(|q| match t.kind {
                        Q4_0 => half(b) * (f32::from(q) - 8.0),
                        _ => half(b) * f32::from(q) + half(&b[2..]),
                    })
                    .collect()
            };
            t.data.chunks(size).flat_map(block).collect()
        }
        other => panic!("no values for type {other}"),
    }
}

/// Adds a byte-level BPE vocabulary of the 256 bytes, a few merges and the control tokens `<|start|>` (256) and `<|end|>` (257).
pub fn small_tokenizer(g: &mut Gguf) {
    let mut tokens: Vec<String> = byte_tokens();
    let mut kinds = vec![1; 256];
    for control in ["<|start|>", "<|end|>"] {
        tokens.push(control.to_owned());
        kinds.push(3);
    }
    let merges = ["h e", "l l", "Ġ he", "he ll"];
    for m in merges {
        tokens.push(m.replace(' ', ""));
        kinds.push(1);
    }
    g.set("tokenizer.ggml.model", s("gpt2"))
        .set("tokenizer.ggml.pre", s("smollm"))
        .set("tokenizer.ggml.tokens", V::Strs(tokens))
        .set("tokenizer.ggml.token_type", V::I32s(kinds))
        .set("tokenizer.ggml.merges", V::Strs(merges.map(str::to_owned).to_vec()))
        .set("tokenizer.ggml.bos_token_id", V::U32(256))
        .set("tokenizer.ggml.eos_token_id", V::U32(257))
        .set("tokenizer.chat_template", s("{{ messages }}"));
}

/// The 256 tokens that stand for single bytes in byte-level BPE.
fn byte_tokens() -> Vec<String> {
    let plain = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    (0..256u32)
        .map(|b| {
            let code = if plain(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// Sizes of the tiny model: 2 layers, hidden 64, 4 heads and 2 key/value heads of 16, intermediate 96.
pub const LAYERS: u64 = 2;
pub const HIDDEN: u64 = 64;
pub const HEADS: u64 = 4;
pub const KV_HEADS: u64 = 2;
pub const HEAD_DIM: u64 = 16;
pub const INTERMEDIATE: u64 = 96;
pub const VOCAB: u64 = 262;

/// A complete tiny model with matrices of type `kind`, embeddings tied.
pub fn tiny(arch: &str, kind: u32) -> Gguf {
    let mut g = Gguf::default();
    g.set("general.architecture", s(arch));
    for (k, v) in [
        ("block_count", LAYERS),
        ("context_length", 2048),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", INTERMEDIATE),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
    ] {
        g.set(&format!("{arch}.{k}"), V::U32(v as u32));
    }
    g.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), V::F32(1e-6));
    g.set(&format!("{arch}.rope.freq_base"), V::F32(500_000.0));
    small_tokenizer(&mut g);
    g.tensor("token_embd.weight", &[VOCAB, HIDDEN], kind);
    for n in 0..LAYERS {
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        for (name, rows, columns) in [
            ("attn_q", q, HIDDEN),
            ("attn_k", kv, HIDDEN),
            ("attn_v", kv, HIDDEN),
            ("attn_output", HIDDEN, q),
            ("ffn_gate", INTERMEDIATE, HIDDEN),
            ("ffn_up", INTERMEDIATE, HIDDEN),
            ("ffn_down", HIDDEN, INTERMEDIATE),
        ] {
            g.tensor(&format!("blk.{n}.{name}.weight"), &[rows, columns], kind);
        }
        for name in ["attn_norm", "ffn_norm"] {
            g.tensor(&format!("blk.{n}.{name}.weight"), &[HIDDEN], F32);
        }
        if arch == "qwen2" {
            for (name, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                g.tensor(&format!("blk.{n}.{name}.bias"), &[rows], F32);
            }
        }
        if arch == "qwen3" {
            for name in ["attn_q_norm", "attn_k_norm"] {
                g.tensor(&format!("blk.{n}.{name}.weight"), &[HEAD_DIM], F32);
            }
        }
    }
    g.tensor("output_norm.weight", &[HIDDEN], F32);
    g
}
