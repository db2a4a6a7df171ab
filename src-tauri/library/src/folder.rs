//! Opens a model folder without loading it: `config.json`, which files hold the weights, and every tensor's type, shape and place.
//!
//! Reads headers only, so it takes milliseconds. Everything that would go wrong later in loading is checked here, where it can still be
//! said clearly: a missing or truncated shard, ranges that overlap or do not fit their shape, a tensor in two files.

mod shard;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use safetensors::Dtype;
pub use shard::Shard;

use crate::summary::Summary;
use crate::{LibraryError, json};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// One tensor of a model folder.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// The shard it is in, an index into [`ModelFolder::shards`].
    pub shard: usize,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape, as stored.
    pub shape: Vec<u64>,
    /// Where its data starts, in bytes from the start of the shard file.
    pub offset: u64,
    /// Length of its data in bytes.
    pub bytes: u64,
}

/// An opened model folder. Holds no file open and no weights.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    /// The folder.
    pub path: PathBuf,
    /// The content of `config.json`.
    pub config: Map<String, Value>,
    /// The weight files, sorted by name.
    pub shards: Vec<Shard>,
    /// Every tensor by name.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Opens the model folder `dir`: reads `config.json` and the safetensors headers, and checks both.
///
/// Weights may be one file, shards with an index, or shards without one. Whether the shapes fit the architecture is not checked here.
///
/// # Errors
/// [`LibraryError`] naming the file, what was expected and what was found.
pub fn open(dir: &Path) -> Result<ModelFolder, LibraryError> {
    let config = config_of(dir)?;
    let WeightFiles { names, index } = weight_files(dir)?;
    let mut shards = Vec::new();
    let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
    for (number, name) in names.iter().enumerate() {
        let (shard, found) = shard::open(&dir.join(name), number)?;
        for (tensor, info) in found {
            let there = match tensors.entry(tensor) {
                Entry::Vacant(free) => {
                    free.insert(info);
                    continue;
                }
                Entry::Occupied(there) => there,
            };
            let (tensor, other) = (there.key(), there.get().shard);
            let twice = |what: String, found: String| {
                LibraryError::mismatch(&shard.path, what, "each tensor once, in one file", found)
            };
            return Err(match names.get(other) {
                Some(first) if other != number => twice(format!("tensor {tensor}"), format!("it is in {first} too")),
                _ => twice(format!("tensor {tensor} twice"), "two of this name".to_owned()),
            });
        }
        shards.push(shard);
    }
    if let Some(index) = index {
        for (tensor, file) in index {
            let place = tensors.get(&tensor).and_then(|t| names.get(t.shard));
            if place != Some(&file) {
                let found = match place {
                    Some(other) => format!("it in {other}"),
                    None => "it nowhere".to_owned(),
                };
                return Err(LibraryError::mismatch(
                    &dir.join(INDEX),
                    format!("tensor {tensor}"),
                    format!("it in {file}"),
                    found,
                ));
            }
        }
    }
    if tensors.is_empty() {
        return Err(LibraryError::mismatch(dir, "the weights", "at least one tensor", "none"));
    }
    Ok(ModelFolder { path: dir.to_path_buf(), config, shards, tensors })
}

/// The content of `config.json` in the model folder `dir`.
pub(crate) fn config_of(dir: &Path) -> Result<Map<String, Value>, LibraryError> {
    let meta = fs::metadata(dir).map_err(LibraryError::io("open the model folder", dir))?;
    if !meta.is_dir() {
        return Err(match dir.extension() {
            Some(e) if e.eq_ignore_ascii_case("gguf") => LibraryError::NeedsImport { path: dir.to_path_buf() },
            _ => LibraryError::mismatch(dir, "the model", "a folder", "a file"),
        });
    }
    let config_path = dir.join("config.json");
    if !config_path.exists() {
        return Err(LibraryError::missing(dir, "config.json"));
    }
    json::read(&config_path, "a JSON object")
}

impl ModelFolder {
    /// Bytes of all tensors together, as they are on disk.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes).sum()
    }

    /// Number of weights. A packed tensor counts as what it unpacks to; scales and biases of quantization do not count.
    pub fn parameters(&self) -> u64 {
        let config = Value::Object(self.config.clone());
        let elements = |shape: &[u64]| shape.iter().product::<u64>();
        self.tensors
            .iter()
            .map(|(name, t)| {
                let layer = |suffix: &str| {
                    let stem = name.strip_suffix(suffix)?;
                    self.tensors.contains_key(&format!("{stem}.scales")).then_some(stem)
                };
                match (layer(".weight"), layer(".biases")) {
                    _ if name.ends_with(".scales") => 0,
                    (_, Some(_)) => 0,
                    (Some(stem), None) if t.dtype == Dtype::U32 => match Summary::bits(&config, stem) {
                        Some(bits @ 1..=32) => elements(&t.shape) * 32 / bits,
                        _ => elements(&t.shape),
                    },
                    _ => elements(&t.shape),
                }
            })
            .sum()
    }

    /// The file that holds `tensor`.
    pub fn file_of(&self, tensor: &TensorInfo) -> Option<&Path> {
        self.shards.get(tensor.shard).map(|s| s.path.as_path())
    }

    /// Family, context and quantization in short.
    pub fn summary(&self) -> Summary {
        Summary::of(&Value::Object(self.config.clone()))
    }

    /// How the weights are stored, as shown to people: `4-bit`, `mxfp4`, or the float type that most bytes have, such as `bf16`.
    pub fn precision(&self) -> String {
        let summary = self.summary();
        if let Some(method) = summary.foreign_quantization {
            return method;
        }
        if let Some(q) = summary.quantization {
            return q.label();
        }
        let mut by_type: BTreeMap<String, u64> = BTreeMap::new();
        for t in self.tensors.values() {
            *by_type.entry(format!("{:?}", t.dtype).to_lowercase()).or_default() += t.bytes;
        }
        by_type.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(name, _)| name).unwrap_or_default()
    }
}

/// Tensor name → file name, from the index.
type WeightMap = BTreeMap<String, String>;

/// The weight files of a folder.
pub(crate) struct WeightFiles {
    /// Their names, sorted.
    pub(crate) names: Vec<String>,
    /// The index, if it is the one that named them.
    index: Option<WeightMap>,
}

/// Which files hold the weights; all that should be there are.
pub(crate) fn weight_files(dir: &Path) -> Result<WeightFiles, LibraryError> {
    let index_path = dir.join(INDEX);
    if index_path.exists() {
        let index = read_index(&index_path)?;
        let names: BTreeSet<&String> = index.values().collect();
        let missing: Vec<&String> = names.iter().copied().filter(|n| !dir.join(n).exists()).collect();
        if missing.is_empty() && !names.is_empty() {
            return Ok(WeightFiles { names: names.into_iter().cloned().collect(), index: Some(index) });
        }
        // Some converted models keep the original's index beside a single file of their own.
        let stale = missing.len() == names.len() && dir.join(SINGLE).exists();
        if !stale {
            let list = missing.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(", ");
            return Err(LibraryError::mismatch(
                &index_path,
                "the weight files it names",
                format!("{} files in this folder", names.len()),
                format!("{} missing: {list}", missing.len()),
            ));
        }
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).map_err(LibraryError::io("list", dir))? {
        let entry = entry.map_err(LibraryError::io("list", dir))?;
        if let Ok(name) = entry.file_name().into_string() {
            all.push(name);
        }
    }
    all.sort();
    let starting = |prefix: &str| -> Vec<String> {
        all.iter().filter(|n| n.starts_with(prefix) && n.ends_with(".safetensors")).cloned().collect()
    };
    let mut names = starting("model");
    if names.is_empty() {
        names = starting("weights");
    }
    if names.is_empty() {
        let others: Vec<&str> = all
            .iter()
            .map(String::as_str)
            .filter(|n| [".bin", ".pth", ".pt", ".gguf", ".npz", ".safetensors"].iter().any(|e| n.ends_with(e)))
            .collect();
        let found = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        return Err(LibraryError::mismatch(dir, "the weights", "model.safetensors or model-*.safetensors", found));
    }
    check_numbering(dir, &names)?;
    Ok(WeightFiles { names, index: None })
}

fn read_index(path: &Path) -> Result<WeightMap, LibraryError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: WeightMap,
    }
    let index: Index = json::read(path, "an object with a weight_map of tensor names and file names")?;
    for (tensor, file) in &index.weight_map {
        let plain = !file.contains(['/', '\\']) && !file.starts_with('.') && file.ends_with(".safetensors");
        if !plain {
            return Err(LibraryError::mismatch(
                path,
                format!("the file of tensor {tensor}"),
                "the name of a .safetensors file in this folder",
                format!("{file:?}"),
            ));
        }
    }
    Ok(index.weight_map)
}

/// Where files are numbered `-00001-of-00003`, all of them have to be there.
fn check_numbering(dir: &Path, names: &[String]) -> Result<(), LibraryError> {
    let parse = |name: &str| -> Option<(String, u32, u32, usize)> {
        let stem = name.strip_suffix(".safetensors")?;
        let (rest, total) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        Some((prefix.to_owned(), number.parse().ok()?, total.parse().ok()?, number.len()))
    };
    let numbered: Vec<_> = names.iter().filter_map(|n| parse(n)).collect();
    let Some((prefix, _, total, width)) = numbered.first() else { return Ok(()) };
    let have: BTreeSet<u32> = numbered.iter().map(|n| n.1).collect();
    if let Some(other) = numbered.iter().find(|n| n.2 != *total) {
        return Err(LibraryError::mismatch(
            dir,
            "the weight files",
            format!("all of {total}"),
            format!("one of {}", other.2),
        ));
    }
    // A damaged name may claim any total: look for the first gap instead of listing them all.
    if let Some(gap) = (1..=*total).find(|n| !have.contains(n)) {
        let name = format!("{prefix}-{gap:0width$}-of-{total:0width$}.safetensors");
        return Err(LibraryError::missing(dir, format!("{name} (there are {} of {total} weight files)", have.len())));
    }
    Ok(())
}
