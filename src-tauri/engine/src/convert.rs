//! Quantizes an unquantized model folder into a new one, some rows of one matrix at a time, so that memory does not grow
//! with the model.
//!
//! The matrices are those that mlx-lm's `convert -q` takes: every linear layer and embedding whose width is a multiple of
//! the group. Names and layouts of all tensors stay as they are in the source; both loaders know them. The values come
//! from MLX's own quantizer, so that the result is mlx-lm's, bit for bit.

use crate::error::Result;
use crate::weights::mlx_name;
use hearth_core::CoreError;
use hearth_core::config::ModelConfig;
use hearth_core::quantization::{Mode, Quantization, QuantizationConfig};
use hearth_library::LibraryError;
use hearth_library::folder::{self, ModelFolder, TensorInfo};
use hearth_library::staging::{Staging, write_json};
use hearth_mlx::{Dtype, Tensor, eval};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Source bytes handled at once.
const PIECE: u64 = 16 << 20;
/// The same for the float modes: on a CPU MLX makes them of some twenty arrays of this size.
const PIECE_OF_FLOATS: u64 = 2 << 20;
/// Files beside the weights that are larger than this are not part of what a model needs.
const LARGEST_TEXT: u64 = 256 << 20;

/// What a conversion did.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertReport {
    /// The new model folder.
    pub folder: PathBuf,
    /// Matrices that were quantized.
    pub quantized: usize,
    /// Tensors that stay as they are, but for their dtype.
    pub kept: usize,
    /// Bytes of the weights before and after.
    pub bytes: (u64, u64),
}

/// What becomes of one tensor.
struct Plan<'a> {
    name: &'a str,
    info: &'a TensorInfo,
    /// `[rows, cols]` as far as pieces are concerned.
    rows: u64,
    quantized: bool,
    dtype: Dtype,
    /// Where the next bytes of each output go in the new file.
    at: Vec<u64>,
}

/// Reads `quantization` values as `config.json` would have them.
///
/// # Errors
/// Where the mode, the bits and the group do not go together; the message says what does.
pub fn scheme(mode: &str, bits: Option<u32>, group: Option<u32>) -> std::result::Result<Quantization, String> {
    let config = json!({"quantization": {"mode": mode, "bits": bits, "group_size": group}});
    let read = QuantizationConfig::from_config(&config, Path::new("config.json")).map_err(|e| match e {
        CoreError::Invalid { expected, found, .. } => format!("expected {expected}, found {found}"),
        CoreError::Unsupported { found, supported, .. } => format!("{found} is none of {supported}"),
        other => other.to_string(),
    })?;
    read.for_layer("").ok_or_else(|| "no quantization".to_owned())
}

/// Quantizes the model in `source` into the new folder `out` (its parent has to exist; it may exist only as an empty
/// folder). `progress` is called with the source bytes done and in all.
///
/// # Errors
/// A family that Hearth does not run, a model that is quantized already or whose files are damaged, an output folder with
/// content, too little disk space. Nothing is left behind after an error.
pub fn convert(
    source: &Path,
    out: &Path,
    scheme: Quantization,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport> {
    let folder = folder::open(source).map_err(of_library)?;
    let config_file = source.join("config.json");
    let config = ModelConfig::read(&config_file)?;
    for name in ["quantization", "quantization_config"] {
        if folder.config.get(name).is_some_and(|q| !q.is_null()) {
            let found = format!("`{name}`: the model is quantized already ({})", folder.precision());
            let expected = "the unquantized model".to_owned();
            return Err(CoreError::Invalid { file: config_file, what: "weights".into(), expected, found }.into());
        }
    }
    let mut plans = plan(&folder, &config, scheme);
    let (header, size) = header(&mut plans, scheme)?;
    let staging = Staging::begin(out, "converting", size).map_err(of_library)?;
    copy_texts(source, staging.path())?;
    write_json(&staging.path().join("config.json"), &new_config(&folder, scheme)).map_err(of_library)?;
    let target = staging.path().join("model.safetensors");
    let file = File::create_new(&target).map_err(io(&target))?;
    file.write_all_at(&header, 0).map_err(io(&target))?;
    let total = plans.iter().map(|plan| plan.info.bytes).sum();
    let mut done = 0;
    progress(0, total);
    for plan in &mut plans {
        pieces(&folder, plan, scheme, |plan, parts, source_bytes| {
            for (bytes, at) in parts.iter().zip(&mut plan.at) {
                file.write_all_at(bytes, *at).map_err(io(&target))?;
                *at += bytes.len() as u64;
            }
            done += source_bytes;
            progress(done, total);
            Ok(())
        })?;
        // Buffers of this matrix's size are of no use to the next one.
        hearth_mlx::clear_cache()?;
    }
    file.sync_all().map_err(io(&target))?;
    staging.finish().map_err(of_library)?;
    let quantized = plans.iter().filter(|plan| plan.quantized).count();
    let kept = plans.len() - quantized;
    Ok(ConvertReport { folder: out.to_path_buf(), quantized, kept, bytes: (folder.weight_bytes(), size) })
}

fn of_library(e: LibraryError) -> CoreError {
    CoreError::Folder(e.to_string())
}

fn io(file: &Path) -> impl Fn(std::io::Error) -> CoreError + '_ {
    move |e| CoreError::Io { file: file.to_owned(), message: e.to_string() }
}

fn float(dtype: folder::Dtype) -> Option<Dtype> {
    match dtype {
        folder::Dtype::F32 => Some(Dtype::F32),
        folder::Dtype::F16 => Some(Dtype::F16),
        folder::Dtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// The dtype that mlx-lm brings all floats to: what the config says, else as stored.
fn wanted(config: &Map<String, Value>) -> Option<Dtype> {
    let of = |value: Option<&Value>| match value?.as_str()? {
        "float32" => Some(Dtype::F32),
        "float16" => Some(Dtype::F16),
        "bfloat16" => Some(Dtype::Bf16),
        _ => None,
    };
    match config.get("torch_dtype") {
        None | Some(Value::Null) => of(config.get("text_config").and_then(|text| text.get("dtype"))),
        said => of(said),
    }
}

fn plan<'a>(folder: &'a ModelFolder, config: &ModelConfig, scheme: Quantization) -> Vec<Plan<'a>> {
    let dropped = |name: &str| {
        // What mlx-lm drops as well: tables that are computed, and a copy of the embedding.
        name.ends_with("rotary_emb.inv_freq") || (name == "lm_head.weight" && config.tie_word_embeddings == Some(true))
    };
    let wanted = wanted(&folder.config);
    let tensors = folder.tensors.iter().filter(|(name, _)| !dropped(name));
    let plans = tensors.map(|(name, info)| {
        let stored = float(info.dtype);
        let width = info.shape.last().copied().unwrap_or(1);
        let matrix = info.shape.len() == 2 && name.ends_with(".weight") && stored.is_some();
        Plan {
            name,
            info,
            rows: if info.shape.len() == 2 { info.shape[0] } else { 1 },
            quantized: matrix && width > 0 && width.is_multiple_of(u64::from(scheme.group_size)),
            dtype: stored.and(wanted).or(stored).unwrap_or(Dtype::U8),
            at: Vec::new(),
        }
    });
    plans.collect()
}

/// Name, dtype, shape and bytes of what a tensor becomes.
fn outputs(plan: &Plan<'_>, scheme: Quantization) -> Vec<(String, String, Vec<u64>, u64)> {
    let name_of = |dtype: Dtype| match dtype {
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
        _ => "F32",
    };
    if !plan.quantized {
        let count: u64 = plan.info.shape.iter().product();
        let (dtype, bytes) = match float(plan.info.dtype) {
            Some(_) => (name_of(plan.dtype).to_owned(), count * plan.dtype.size() as u64),
            None => (format!("{:?}", plan.info.dtype), plan.info.bytes),
        };
        return vec![(plan.name.to_owned(), dtype, plan.info.shape.clone(), bytes)];
    }
    let (rows, cols) = (plan.rows, plan.info.shape[1]);
    let (words, groups) = (cols * u64::from(scheme.bits) / 32, cols / u64::from(scheme.group_size));
    let path = plan.name.strip_suffix("weight").unwrap_or(plan.name);
    let mut outputs = vec![(plan.name.to_owned(), "U32".to_owned(), vec![rows, words], rows * words * 4)];
    if scheme.mode == Mode::Affine {
        let bytes = rows * groups * plan.dtype.size() as u64;
        for part in ["scales", "biases"] {
            outputs.push((format!("{path}{part}"), name_of(plan.dtype).to_owned(), vec![rows, groups], bytes));
        }
    } else {
        outputs.push((format!("{path}scales"), "U8".to_owned(), vec![rows, groups], rows * groups));
    }
    outputs
}

/// The safetensors header with its length in front, and the size of the whole file. Notes where each output starts.
fn header(plans: &mut [Plan<'_>], scheme: Quantization) -> Result<(Vec<u8>, u64)> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "mlx"}));
    let mut all: Vec<(usize, _)> = Vec::new();
    for (number, plan) in plans.iter().enumerate() {
        all.extend(outputs(plan, scheme).into_iter().map(|output| (number, output)));
    }
    // Wide elements first keeps every tensor aligned; the order within a plan stays.
    let width = |dtype: &str| match dtype {
        "F64" | "I64" | "U64" => 8,
        "U32" | "F32" | "I32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        _ => 1,
    };
    all.sort_by_key(|(_, (_, dtype, ..))| std::cmp::Reverse(width(dtype)));
    let mut at = 0;
    for (number, (name, dtype, shape, bytes)) in all {
        entries.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes]}));
        plans[number].at.push(at);
        at += bytes;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    let base = bytes.len() as u64;
    plans.iter_mut().flat_map(|plan| &mut plan.at).for_each(|at| *at += base);
    Ok((bytes, base + at))
}

/// Calls `write` with the new bytes of some rows at a time, and how many source bytes they were.
fn pieces<'a>(
    folder: &ModelFolder,
    plan: &mut Plan<'a>,
    scheme: Quantization,
    mut write: impl FnMut(&mut Plan<'a>, &[Vec<u8>], u64) -> Result<()>,
) -> Result<()> {
    let path = folder.file_of(plan.info).unwrap_or(&folder.path).to_owned();
    let file = File::open(&path).map_err(io(&path))?;
    let Some(stored) = float(plan.info.dtype) else {
        return copy_bytes(&file, &path, plan, write);
    };
    let elements: u64 = plan.info.shape.iter().product();
    let cols = elements / plan.rows.max(1);
    let row_bytes = cols * stored.size() as u64;
    let piece = if scheme.mode == Mode::Affine { PIECE } else { PIECE_OF_FLOATS };
    let step = (piece / row_bytes.max(1)).max(1);
    let mut row = 0;
    while row < plan.rows && elements > 0 {
        let rows = step.min(plan.rows - row);
        let mut bytes = vec![0; (rows * row_bytes) as usize];
        file.read_exact_at(&mut bytes, plan.info.offset + row * row_bytes).map_err(io(&path))?;
        let values = Tensor::from_vec_bytes(bytes, &[rows as i32, cols as i32], stored)?.astype(plan.dtype)?;
        let parts = if plan.quantized {
            let q = values.quantize_as(mlx_name(scheme.mode), scheme.group_size as i32, scheme.bits as i32)?;
            let all: Vec<&Tensor> = [&q.packed, &q.scales].into_iter().chain(&q.biases).collect();
            eval(all.iter().copied())?;
            all.into_iter().map(Tensor::to_bytes).collect::<hearth_mlx::Result<Vec<_>>>()?
        } else {
            eval([&values])?;
            vec![values.to_bytes()?]
        };
        write(plan, &parts, rows * row_bytes)?;
        row += rows;
    }
    Ok(())
}

fn copy_bytes<'a>(
    file: &File,
    path: &Path,
    plan: &mut Plan<'a>,
    mut write: impl FnMut(&mut Plan<'a>, &[Vec<u8>], u64) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    while at < plan.info.bytes {
        let mut bytes = vec![0; PIECE.min(plan.info.bytes - at) as usize];
        file.read_exact_at(&mut bytes, plan.info.offset + at).map_err(io(path))?;
        let count = bytes.len() as u64;
        write(plan, &[bytes], count)?;
        at += count;
    }
    Ok(())
}

/// The source's config with what was done, under both names that programs look for.
fn new_config(folder: &ModelFolder, scheme: Quantization) -> Value {
    let block = json!({"group_size": scheme.group_size, "bits": scheme.bits, "mode": scheme.mode.name()});
    let mut config = folder.config.clone();
    config.remove("_name_or_path");
    config.insert("quantization".into(), block.clone());
    config.insert("quantization_config".into(), block);
    Value::Object(config)
}

/// Tokenizer, templates, licence: everything beside the weights, without the indices of files that are not there any more.
fn copy_texts(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).map_err(io(from))? {
        let path = entry.map_err(io(from))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let is_text = matches!(&*kind, "json" | "jinja" | "txt" | "model" | "md" | "tiktoken") || name == "LICENSE";
        let is_index = name == "config.json" || name.ends_with(".index.json") || name.starts_with('.');
        // A link in the Hugging Face cache leads to the file itself.
        let meta = fs::metadata(&path).map_err(io(&path))?;
        if meta.is_dir() && name == "additional_chat_templates" {
            let target = to.join(&name);
            fs::create_dir(&target).map_err(io(&target))?;
            copy_texts(&path, &target)?;
        } else if meta.is_file() && is_text && !is_index && meta.len() <= LARGEST_TEXT {
            fs::copy(&path, to.join(&name)).map_err(io(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
    }

    /// All tensors of a folder: dtype, shape and bytes.
    fn content(dir: &Path) -> BTreeMap<String, (String, Vec<u64>, Vec<u8>)> {
        let folder = folder::open(dir).unwrap();
        let tensor = |(name, info): (&String, &TensorInfo)| {
            let mut bytes = vec![0; info.bytes as usize];
            File::open(folder.file_of(info).unwrap()).unwrap().read_exact_at(&mut bytes, info.offset).unwrap();
            (name.clone(), (format!("{:?}", info.dtype), info.shape.clone(), bytes))
        };
        folder.tensors.iter().map(tensor).collect()
    }

    /// The goldens' quantized models are mlx-lm's own conversions of the unquantized ones.
    #[test]
    fn the_result_is_mlx_lms_bit_for_bit() {
        for (from, to) in [
            ("llama-f32", "llama-q2"),
            ("llama-f32", "llama-q3"),
            ("llama-f32", "llama-q4"),
            ("llama-f32", "llama-q5"),
            ("llama-f32", "llama-q6"),
            ("llama-f32", "llama-q8"),
            ("llama-f32", "llama-mxfp4"),
            ("llama-f32", "llama-mxfp8"),
            ("llama-f32", "llama-nvfp4"),
            ("qwen3-f32", "qwen3-q4"),
            ("smollm3-f32", "smollm3-q4"),
            ("gemma3_text-f32", "gemma3_text-q4"),
            ("lfm2-f32", "lfm2-q4"),
            ("qwen3_5-f32", "qwen3_5-q4"),
        ] {
            let reference = golden(to);
            let config: Value = serde_json::from_slice(&fs::read(reference.join("config.json")).unwrap()).unwrap();
            let wanted = QuantizationConfig::from_config(&config, Path::new("config.json")).unwrap();
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("out");
            let (mut last, mut calls) = (0, 0);
            let report = convert(&golden(from), &out, wanted.for_layer("").unwrap(), &mut |done, total| {
                assert!(last <= done && done <= total);
                (last, calls) = (done, calls + 1);
            });
            let report = report.unwrap();
            assert!(calls > 1 && report.quantized > 0 && report.kept > 0, "{to}: {report:?}");
            let (got, want) = (content(&out), content(&reference));
            assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{to}");
            for (name, tensor) in &want {
                assert!(got[name] == *tensor, "{to}: {name}");
            }
            assert_eq!(
                fs::read(out.join("tokenizer.json")).unwrap(),
                fs::read(reference.join("tokenizer.json")).unwrap()
            );
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "something is left beside it");
        }
    }

    #[test]
    fn what_cannot_be_converted_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let q4 = scheme("affine", Some(4), None).unwrap();
        let refuse = |source: &Path, out: &Path| convert(source, out, q4, &mut |_, _| {}).unwrap_err().to_string();
        let out = dir.path().join("out");
        assert!(refuse(&golden("llama-q4"), &out).contains("quantized already (4-bit)"));
        assert!(refuse(&dir.path().join("none"), &out).contains("none"));
        assert!(refuse(&golden("llama-f32"), &dir.path().join("no/parent")).contains("no"));
        fs::create_dir(&out).unwrap();
        fs::write(out.join("mine"), "x").unwrap();
        assert!(refuse(&golden("llama-f32"), &out).contains("already exists"));
        assert_eq!(fs::read(out.join("mine")).unwrap(), b"x");
        // A family that is not known.
        let foreign = dir.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::copy(golden("llama-f32").join("model.safetensors"), foreign.join("model.safetensors")).unwrap();
        fs::write(foreign.join("config.json"), r#"{"model_type": "unheard_of"}"#).unwrap();
        assert!(refuse(&foreign, &dir.path().join("new")).contains("unheard_of"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "something is left");
    }

    #[test]
    fn a_scheme_says_what_goes_together() {
        assert_eq!(scheme("affine", None, None).unwrap().group_size, 64);
        assert_eq!(scheme("mxfp4", None, None).unwrap().bits, 4);
        assert!(scheme("affine", Some(7), None).unwrap_err().contains("2, 3, 4, 5, 6 or 8 bits"));
        assert!(scheme("mxfp4", Some(8), None).unwrap_err().contains("4 bits in groups of 32"));
        assert!(scheme("int4", None, None).unwrap_err().contains("affine, mxfp4"));
    }
}
