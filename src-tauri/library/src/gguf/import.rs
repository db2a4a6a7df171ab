//! Imports a GGUF file: plans every output tensor, then streams the weights into a new model folder.
//!
//! The folder is written under a temporary name beside its final place and renamed when everything is on disk, so that a folder with
//! that name is always complete. Memory use does not grow with the tensors.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use super::config::{Arch, ModelConfig};
use super::reader::{GgufFile, GgufTensor, SUPPORTED_TYPES, TensorType};
use super::tensors::{Affine, GROUP, Layout, interleaved_row};
use super::tokenizer::{self, TokenizerFiles};
use crate::LibraryError;
use crate::staging::{Staging, write, write_json};

/// Source bytes handled at once.
const CHUNK: u64 = 4 << 20;

/// What an import did.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportReport {
    /// The new model folder.
    pub folder: PathBuf,
    /// `general.architecture` of the file.
    pub architecture: String,
    /// `general.name` of the file, if it has one.
    pub name: Option<String>,
    /// Tensors in the new `model.safetensors` (three for each quantized one of the file).
    pub tensors: usize,
    /// Weights of the model, counted as elements.
    pub parameters: u64,
    /// Bytes of the new `model.safetensors`.
    pub bytes: u64,
    /// How many tensors of each GGUF type there were, by name.
    pub types: Vec<(String, usize)>,
    /// Layers of the model.
    pub layers: u64,
    /// Longest context the model was made for, in tokens.
    pub context: u64,
}

/// One tensor of the file with the outputs that it becomes.
struct Plan<'a> {
    source: &'a GgufTensor,
    /// Hugging Face name with its last part (`weight`, `bias`).
    name: String,
    layout: Layout,
    interleaved: Option<u64>,
    rows: u64,
    /// Bytes of one row in the file.
    row_bytes: u64,
}

/// One tensor of `model.safetensors`.
struct Output {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
}

impl Plan<'_> {
    /// The outputs: one, or weight, scales and biases.
    fn outputs(&self) -> Vec<Output> {
        match self.layout {
            Layout::Plain(dtype, _) => {
                let (shape, bytes) = (self.source.shape.clone(), self.source.bytes);
                vec![Output { name: self.name.clone(), dtype, shape, bytes }]
            }
            Layout::Affine(bits) => {
                let columns = self.source.shape.last().copied().unwrap_or(0);
                let stem = self.stem();
                let part = |part: &str, dtype, columns: u64| Output {
                    name: format!("{stem}.{part}"),
                    dtype,
                    shape: vec![self.rows, columns],
                    bytes: self.rows * columns * 4,
                };
                let groups = columns / GROUP as u64;
                vec![
                    part("weight", "U32", columns * u64::from(bits) / 32),
                    part("scales", "F32", groups),
                    part("biases", "F32", groups),
                ]
            }
        }
    }

    /// The name of the layer, without `.weight`.
    fn stem(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }
}

/// Imports the GGUF file `gguf` as the new model folder `out_dir` (its parent has to exist; it may exist only as an empty folder).
///
/// Writes `config.json`, `model.safetensors`, `tokenizer.json`, `tokenizer_config.json` (with the chat template) and
/// `generation_config.json`. Nothing is lost: floats are copied, quantized blocks keep every bit (see `tensors`). `progress` is
/// called with the bytes of tensor data done and in all, first with 0.
///
/// # Errors
/// Whatever is wrong with the file, each naming it, what was expected and what was found; a file that uses what cannot be imported;
/// an output folder that exists with content; too little disk space. Nothing is left behind after an error.
pub fn import_gguf(
    gguf: &Path,
    out_dir: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ImportReport, LibraryError> {
    let file = GgufFile::open(gguf)?;
    let data = File::open(gguf).map_err(LibraryError::io("open", gguf))?;
    let factors = rope_factors(&file, &data)?;
    let config = ModelConfig::read(&file, factors.as_deref())?;
    let plans = plan(&file, &config)?;
    let extra_stop = matches!(config.arch, Arch::Qwen2 | Arch::Qwen3).then_some("<|endoftext|>");
    let tokenizer = tokenizer::convert(&file, config.vocab, config.context, extra_stop)?;
    let (header, offsets, size) = header(&plans);

    let staging = Staging::begin(out_dir, "importing", size + tokenizer.tokenizer.len() as u64 + (1 << 20))?;

    write_tokenizer(staging.path(), &tokenizer)?;
    write_json(&staging.path().join("generation_config.json"), &tokenizer.ids.to_json())?;
    let config_json = config.to_json(&tokenizer.ids, dtype(&plans), &quantization(&plans));
    write_json(&staging.path().join("config.json"), &config_json)?;
    let weights = staging.path().join("model.safetensors");
    write_weights(&file, &data, &plans, &weights, (&header, &offsets, size), progress)?;

    staging.finish()?;

    let mut types: Vec<(String, usize)> = Vec::new();
    for p in &plans {
        let name = p.source.kind.name();
        match types.iter_mut().find(|(n, _)| *n == name) {
            Some((_, count)) => *count += 1,
            None => types.push((name, 1)),
        }
    }
    Ok(ImportReport {
        folder: out_dir.to_path_buf(),
        architecture: config.arch.key().to_owned(),
        name: file.opt_str("general.name")?.map(str::to_owned),
        tensors: offsets.values().map(Vec::len).sum(),
        parameters: plans.iter().map(|p| p.source.shape.iter().product::<u64>()).sum(),
        bytes: size,
        types,
        layers: config.layers,
        context: config.context,
    })
}

/// Matches the file's tensors with those that the model has to have, and checks shapes and types.
fn plan<'a>(file: &'a GgufFile, config: &ModelConfig) -> Result<Vec<Plan<'a>>, LibraryError> {
    let path = &file.path;
    let unsupported: Vec<&GgufTensor> = file.tensors.iter().filter(|t| Layout::of(t.kind).is_none()).collect();
    if let Some(first) = unsupported.first() {
        let more = match unsupported.len() {
            1 => String::new(),
            n => format!(" (and {} more tensors)", n - 1),
        };
        let what = format!("the type of tensor {}{more}", first.name);
        return Err(LibraryError::unsupported(path, what, first.kind.name(), SUPPORTED_TYPES));
    }
    let by_name: HashMap<&str, &GgufTensor> = file.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let mut used: HashSet<&str> = HashSet::new();
    let mut plans = Vec::new();
    for expected in config.expected() {
        let Some(&source) = by_name.get(expected.gguf.as_str()) else {
            if expected.optional {
                continue;
            }
            return Err(LibraryError::missing(path, format!("tensor {}", expected.gguf)));
        };
        if source.shape != expected.shape {
            let what = format!("the shape of tensor {}", source.name);
            return Err(LibraryError::mismatch(
                path,
                what,
                format!("{:?}", expected.shape),
                format!("{:?}", source.shape),
            ));
        }
        let Some(layout) = Layout::of(source.kind) else { continue };
        if matches!(layout, Layout::Affine(_)) && source.shape.len() != 2 {
            let what = format!("the type of the one-dimensional tensor {}", source.name);
            return Err(LibraryError::unsupported(path, what, source.kind.name(), "F32, F16, BF16"));
        }
        used.insert(source.name.as_str());
        let matrix = source.shape.len() == 2;
        let rows =
            if matrix || expected.interleaved.is_some() { source.shape.first().copied().unwrap_or(1) } else { 1 };
        plans.push(Plan {
            source,
            name: expected.hf,
            layout,
            interleaved: expected.interleaved,
            rows,
            row_bytes: source.bytes / rows.max(1),
        });
    }
    let left_over = |t: &&GgufTensor| {
        !used.contains(t.name.as_str())
            && t.name != "rope_freqs.weight"
            // Stored by old converters; computed from the rope base.
            && !t.name.ends_with(".attn_rot_embd.weight")
            && !t.name.ends_with(".attn_rot_embd")
    };
    if let Some(t) = file.tensors.iter().find(left_over) {
        let what = format!("tensor {}", t.name);
        return Err(LibraryError::unsupported(path, what, "not part of this architecture", "its usual tensors only"));
    }
    Ok(plans)
}

/// Content of `rope_freqs.weight`, if the file has it.
fn rope_factors(file: &GgufFile, data: &File) -> Result<Option<Vec<f32>>, LibraryError> {
    let Some(t) = file.tensor("rope_freqs.weight") else { return Ok(None) };
    if t.kind != TensorType::F32 || t.shape.len() != 1 || t.bytes > 1 << 20 {
        let found = format!("{} {:?}", t.kind.name(), t.shape);
        return Err(LibraryError::mismatch(&file.path, "tensor rope_freqs.weight", "a short vector of F32", found));
    }
    let mut bytes = vec![0; t.bytes as usize];
    data.read_exact_at(&mut bytes, t.offset).map_err(LibraryError::io("read", &file.path))?;
    let value = |b: &[u8]| b.try_into().map(f32::from_le_bytes).unwrap_or(f32::NAN);
    Ok(Some(bytes.chunks_exact(4).map(value).collect()))
}

/// The safetensors header (with its length in front), where each plan's outputs start in the file, and the file's size.
fn header(plans: &[Plan<'_>]) -> (Vec<u8>, HashMap<String, Vec<u64>>, u64) {
    // Four-byte types first, so that everything stays aligned.
    let mut order: Vec<&Plan<'_>> = plans.iter().collect();
    order.sort_by_key(|p| matches!(p.layout, Layout::Plain(_, 2)));
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
    let mut starts = HashMap::new();
    let mut at = 0u64;
    for p in order {
        let mut own = Vec::new();
        for o in p.outputs() {
            let end = at + o.bytes;
            entries.insert(o.name, json!({"dtype": o.dtype, "shape": o.shape, "data_offsets": [at, end]}));
            own.push(at);
            at = end;
        }
        starts.insert(p.source.name.clone(), own);
    }
    let mut text = Json::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    let base = bytes.len() as u64;
    for start in starts.values_mut().flatten() {
        *start += base;
    }
    (bytes, starts, base + at)
}

fn write_weights(
    file: &GgufFile,
    data: &File,
    plans: &[Plan<'_>],
    target: &Path,
    (header, starts, size): (&[u8], &HashMap<String, Vec<u64>>, u64),
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LibraryError> {
    let write_error = || LibraryError::io("write", target);
    let out = File::create_new(target).map_err(LibraryError::io("create", target))?;
    out.write_all_at(header, 0).map_err(write_error())?;
    let total: u64 = plans.iter().map(|p| p.source.bytes).sum();
    let mut done = 0;
    progress(0, total);
    let (mut input, mut affine) = (Vec::new(), Affine::default());
    for p in plans {
        let Some(starts) = starts.get(&p.source.name) else { continue };
        // Where the next bytes of each output go.
        let mut at = starts.clone();
        let rows_at_once = (CHUNK / p.row_bytes.max(1)).max(1);
        let mut row = 0;
        while row < p.rows {
            let rows = rows_at_once.min(p.rows - row);
            read_rows(data, p, row, rows, &mut input).map_err(LibraryError::io("read", &file.path))?;
            let parts: [&[u8]; 3] = match p.layout {
                Layout::Plain(..) => [&input, &[], &[]],
                Layout::Affine(_) => {
                    affine.clear();
                    affine.push_blocks(p.source.kind, &input).map_err(|block| {
                        let what = format!("block {block} after row {row} of tensor {}", p.source.name);
                        LibraryError::mismatch(&file.path, what, "a finite scale", "infinity or NaN")
                    })?;
                    [&affine.weight, &affine.scales, &affine.biases]
                }
            };
            for (bytes, at) in parts.iter().zip(at.iter_mut()) {
                out.write_all_at(bytes, *at).map_err(write_error())?;
                *at += bytes.len() as u64;
            }
            row += rows;
            done += rows * p.row_bytes;
            progress(done, total);
        }
    }
    let written = out.metadata().map_err(write_error())?.len();
    if written != size {
        return Err(LibraryError::mismatch(target, "the size", size, written));
    }
    out.sync_all().map_err(write_error())
}

/// Reads `count` rows from output row `first` on into `into`, in the order of the output.
fn read_rows(data: &File, p: &Plan<'_>, first: u64, count: u64, into: &mut Vec<u8>) -> std::io::Result<()> {
    into.resize((count * p.row_bytes) as usize, 0);
    match p.interleaved {
        None => data.read_exact_at(into, p.source.offset + first * p.row_bytes),
        Some(head_dim) => {
            for (row, bytes) in (first..).zip(into.chunks_exact_mut(p.row_bytes as usize)) {
                let source = interleaved_row(row, head_dim);
                data.read_exact_at(bytes, p.source.offset + source * p.row_bytes)?;
            }
            Ok(())
        }
    }
}

/// The MLX quantization entry: the most frequent setting in front, then what differs; null for an unquantized model.
fn quantization(plans: &[Plan<'_>]) -> Json {
    let setting = |bits: u32| json!({"group_size": GROUP, "bits": bits, "mode": "affine"});
    let bits = |p: &Plan<'_>| match p.layout {
        Layout::Affine(bits) => Some(bits),
        Layout::Plain(..) => None,
    };
    let count = |b: u32| plans.iter().filter(|p| bits(p) == Some(b)).count();
    let base = match (count(4), count(8)) {
        (0, 0) => return Json::Null,
        (four, eight) if four >= eight => 4,
        _ => 8,
    };
    let mut entry = setting(base);
    // Norms and biases are never quantized; matrices that are not, next to others that are, have to be named.
    for p in plans.iter().filter(|p| p.source.shape.len() == 2) {
        match bits(p) {
            Some(b) if b == base => {}
            Some(b) => entry[p.stem()] = setting(b),
            None => entry[p.stem()] = json!(false),
        }
    }
    entry
}

/// What the matrices hold; f32 for quantized ones, as their scales are f32.
fn dtype(plans: &[Plan<'_>]) -> &'static str {
    let matrices = || plans.iter().filter(|p| p.source.shape.len() == 2);
    let all = |d: &str| matrices().all(|p| matches!(p.layout, Layout::Plain(x, _) if x == d));
    match (all("F16"), all("BF16")) {
        (true, _) => "float16",
        (_, true) => "bfloat16",
        _ => "float32",
    }
}

fn write_tokenizer(folder: &Path, files: &TokenizerFiles) -> Result<(), LibraryError> {
    write(&folder.join("tokenizer.json"), &files.tokenizer)?;
    write_json(&folder.join("tokenizer_config.json"), &files.config)?;
    if !files.named_templates.is_empty() {
        let more = folder.join("additional_chat_templates");
        fs::create_dir(&more).map_err(LibraryError::io("create", &more))?;
        for (name, text) in &files.named_templates {
            write(&more.join(format!("{name}.jinja")), text.as_bytes())?;
        }
    }
    Ok(())
}
