//! Repositories in memory: commits, files, their hashes; and a tiny model that is complete.

use std::collections::BTreeMap;

use bytes::Bytes;
use ring::digest::{Algorithm, Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// One file.
#[derive(Debug, Clone)]
pub struct Blob {
    /// Its content.
    pub bytes: Bytes,
    /// Git's hash of it, or of the pointer that stands for it.
    pub git: String,
    /// Its SHA-256, in large-file storage.
    pub sha256: Option<String>,
}

/// A repository.
#[derive(Debug, Clone, Default)]
pub(crate) struct Repo {
    /// Its commits, the newest last.
    pub commits: Vec<(String, BTreeMap<String, Blob>)>,
    /// Whether its terms have to be accepted, and whether the known token's user has.
    pub gated: Option<bool>,
    /// Whether others see it.
    pub private: bool,
}

fn sum(algorithm: &'static Algorithm, parts: &[&[u8]]) -> String {
    let mut context = Context::new(algorithm);
    for part in parts {
        context.update(part);
    }
    context.finish().as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// What `git hash-object` prints.
pub fn git_sum(bytes: &[u8]) -> String {
    sum(&SHA1_FOR_LEGACY_USE_ONLY, &[format!("blob {}\0", bytes.len()).as_bytes(), bytes])
}

/// What `sha256sum` prints.
pub fn sha256_sum(bytes: &[u8]) -> String {
    sum(&SHA256, &[bytes])
}

impl Blob {
    /// A file of that name.
    pub fn new(name: &str, bytes: Vec<u8>) -> Self {
        let large = bytes.len() >= 1_000_000 || name.ends_with(".safetensors");
        let sha256 = large.then(|| sha256_sum(&bytes));
        let git = match &sha256 {
            Some(sha) => {
                let size = bytes.len();
                git_sum(
                    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n").as_bytes(),
                )
            }
            None => git_sum(&bytes),
        };
        Self { bytes: bytes.into(), git, sha256 }
    }

    /// The name of its content: what a cache calls it, and its ETag.
    pub fn hex(&self) -> &str {
        self.sha256.as_deref().unwrap_or(&self.git)
    }
}

impl Repo {
    /// Adds a commit; its name.
    pub fn commit(&mut self, files: BTreeMap<String, Blob>) -> String {
        let listing: String = files.iter().map(|(path, blob)| format!("{path} {}\n", blob.git)).collect();
        let number = self.commits.len();
        let name = sum(&SHA1_FOR_LEGACY_USE_ONLY, &[format!("commit {number}\n{listing}").as_bytes()]);
        self.commits.push((name.clone(), files));
        name
    }

    /// The commit that a revision is.
    pub fn at(&self, revision: &str) -> Option<&(String, BTreeMap<String, Blob>)> {
        match revision {
            "main" => self.commits.last(),
            commit => self.commits.iter().find(|(name, _)| name == commit),
        }
    }
}

/// The files of a complete model that cannot say anything: a configuration, a tokenizer, and weights of `bytes` bytes that differ
/// with `seed`.
pub fn tiny_model(bytes: usize, seed: u8) -> Vec<(&'static str, Vec<u8>)> {
    let rows = bytes.div_ceil(64).max(1);
    let length = rows * 64;
    let header = format!(r#"{{"a.weight":{{"dtype":"F32","shape":[{rows},16],"data_offsets":[0,{length}]}}}}"#);
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.as_bytes());
    let mut state = u32::from(seed) + 1;
    weights.extend((0..length).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }));
    let config = r#"{"model_type": "llama", "max_position_embeddings": 2048, "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 16, "vocab_size": 16, "rms_norm_eps": 1e-5}"#;
    vec![
        ("config.json", config.as_bytes().to_vec()),
        ("tokenizer.json", format!(r#"{{"seed": {seed}}}"#).into_bytes()),
        ("tokenizer_config.json", b"{}".to_vec()),
        ("README.md", b"not needed".to_vec()),
        ("model.safetensors", weights),
    ]
}

/// As [`tiny_model`], with its weights in `files` files of `bytes` bytes each and without an index.
pub fn sharded_model(files: usize, bytes: usize) -> Vec<(String, Vec<u8>)> {
    let small = tiny_model(64, 0).into_iter().filter(|(name, _)| *name != "model.safetensors");
    let mut all: Vec<(String, Vec<u8>)> = small.map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    for i in 0..files {
        let weights = tiny_model(bytes, i as u8).pop().map(|(_, bytes)| bytes).unwrap_or_default();
        // Each tensor in one file: the names are of one length, so that the header keeps its own.
        let letter = [b'a' + (i % 26) as u8];
        let mut weights = weights;
        if let Some(at) = weights.windows(8).position(|w| w == b"a.weight") {
            weights[at..at + 1].copy_from_slice(&letter);
        }
        all.push((format!("model-{:05}-of-{files:05}.safetensors", i + 1), weights));
    }
    all
}
