//! Whose state it is: everything that a cached state depends on, in one key. State of one namespace never seeds a
//! row of another, in memory or on disk.

use crate::disk::Namespace;
use crate::error::Result;
use hearth_core::CoreError;
use hearth_core::config::read_file;
use hearth_core::kv_policy::KvPolicy;
use hearth_library::folder::ModelFolder;
use hearth_mlx::Device;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Raised when the meaning or the layout of a cached state changes.
const FORMAT: u32 = 2;
/// Bytes of each sample of a weight file.
const SAMPLE: u64 = 4096;
/// Samples of each weight file, evenly spread.
const SAMPLES: u64 = 32;

/// The namespace of a model that computes on this kind of device and keeps keys and values by `policy`.
///
/// # Errors
/// [`CoreError::Io`] naming a file that cannot be read.
pub fn of_model(folder: &ModelFolder, device: Device, policy: &KvPolicy) -> Result<Namespace> {
    Ok(Namespace::of(&[
        &FORMAT.to_le_bytes(),
        hearth_mlx::version().as_bytes(),
        format!("{device:?}").as_bytes(),
        &digest_of(&folder.path.join("config.json"))?,
        &digest_of(&folder.path.join("tokenizer.json"))?,
        &weights_identity(folder)?,
        policy.signature().as_bytes(),
    ]))
}

fn digest_of(file: &Path) -> Result<[u8; 32]> {
    let bytes = read_file(file, "a file of the model")?;
    Ok(*blake3::hash(&bytes).as_bytes())
}

/// Names, sizes, times and samples of the weight files: hashing gigabytes at every start would cost seconds, and
/// whoever edits weights in place changes their time.
fn weights_identity(folder: &ModelFolder) -> Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    for shard in &folder.shards {
        let file = File::open(&shard.path).map_err(|e| io(&shard.path, &e))?;
        let meta = file.metadata().map_err(|e| io(&shard.path, &e))?;
        let name = shard.path.file_name().unwrap_or_default().as_encoded_bytes();
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name);
        for number in [meta.len(), meta.mtime() as u64, meta.mtime_nsec() as u64] {
            hasher.update(&number.to_le_bytes());
        }
        for n in 0..SAMPLES {
            let at = meta.len().saturating_sub(SAMPLE) / SAMPLES.saturating_sub(1).max(1) * n;
            let mut sample = vec![0; SAMPLE.min(meta.len() - at) as usize];
            file.read_exact_at(&mut sample, at).map_err(|e| io(&shard.path, &e))?;
            hasher.update(&sample);
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

fn io(file: &Path, e: &std::io::Error) -> CoreError {
    CoreError::Io { file: file.to_owned(), message: e.to_string() }
}
