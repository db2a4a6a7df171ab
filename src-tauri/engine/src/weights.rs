//! Weights from a model folder: shapes checked against the config, dtypes and layouts chosen for the device.
//! Bytes are read by Hearth and handed to MLX, so that a damaged file is an error that names it, whatever its path.

use crate::error::Result;
use crate::layers::embedding::Embedding;
use crate::layers::linear::{Linear, Weight};
use crate::unpack::{self, Packed};
use hearth_core::CoreError;
use hearth_core::quantization::{Mode, Quantization, QuantizationConfig};
use hearth_library::folder::{self, ModelFolder, TensorInfo};
use hearth_mlx::{Arena, Block, Device, Dtype, QuantizedWeight, Tensor, concatenate, eval};
use std::ffi::CStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Called with the share of the weights that is loaded, 0–1.
pub type Progress<'a> = &'a mut dyn FnMut(f64);

/// A model folder being loaded.
pub struct Weights<'a> {
    folder: &'a ModelFolder,
    quantization: QuantizationConfig,
    device: Device,
    /// On a CPU: unpack quantized matrices to dense f32.
    unpack: bool,
    /// Room for unpacked matrices, and how many floats of them are still to come.
    arenas: Vec<Arena>,
    unplaced: usize,
    /// Packed words on their way.
    scratch: Vec<u8>,
    /// The shard that was read last.
    open: Option<(usize, File)>,
    read: u64,
    total: u64,
    /// Bytes of what was given to the model.
    kept: u64,
    progress: Progress<'a>,
}

/// Share of the available memory that unpacked weights may take on a CPU.
const UNPACK_SHARE: f64 = 0.6;

/// Floats of an arena: 256 MB. Not all at once, because files hold matrices that no model asks for.
const ARENA: usize = 64 << 20;

/// A tensor of fewer bytes is copied: that costs less than the operations that it takes to have it in place.
const IN_PLACE: u64 = 16 << 10;

/// Room of MLX's for a tensor of so many bytes; `None` for a small one, one that MLX cannot count in a row, and where there
/// is no such room.
fn in_place(bytes: u64) -> Option<Block> {
    let floats = usize::try_from(bytes.div_ceil(4)).ok().filter(|&floats| floats < Arena::MOST / 2)?;
    if bytes < IN_PLACE { None } else { Arena::new(floats).ok()?.take(floats) }
}

impl<'a> Weights<'a> {
    /// Prepares to load from this folder, laid out for this device.
    pub fn new(
        folder: &'a ModelFolder,
        quantization: QuantizationConfig,
        device: Device,
        progress: Progress<'a>,
    ) -> Self {
        let total = folder.weight_bytes();
        let mut weights = Weights {
            folder,
            quantization,
            device,
            unpack: false,
            arenas: Vec::new(),
            unplaced: 0,
            scratch: Vec::new(),
            open: None,
            read: 0,
            total,
            kept: 0,
            progress,
        };
        let available = hearth_machine::memory().available;
        weights.unpack = device == Device::Cpu && (weights.dense_bytes() as f64) < available as f64 * UNPACK_SHARE;
        weights.unplaced = weights.unpacked_floats();
        weights
    }

    /// Bytes of everything given so far, as it lies in memory. Counted, because MLX's allocator is one for the whole
    /// process and another thread may use it at the same time.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// The device that everything is laid out for.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether the files hold this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.folder.tensors.contains_key(name)
    }

    /// The shape of this tensor in the files.
    pub fn shape(&self, name: &str) -> Option<&[u64]> {
        self.folder.tensors.get(name).map(|info| &info.shape[..])
    }

    /// Bytes of all weights as f32.
    fn dense_bytes(&self) -> u64 {
        let elements = |(name, info): (&String, &TensorInfo)| {
            let stored: u64 = info.shape.iter().product();
            match name.strip_suffix(".weight").filter(|path| self.has(&format!("{path}.scales"))) {
                Some(path) => self.quantization.for_layer(path).map_or(stored, |q| stored * 32 / u64::from(q.bits)),
                None => stored,
            }
        };
        self.folder.tensors.iter().map(elements).sum::<u64>() * 4
    }

    /// About how many floats [`Weights::unpacked`] will give: the affine matrices, but for an embedding that is no LM
    /// head.
    fn unpacked_floats(&self) -> usize {
        let tied = !self.has("lm_head.weight");
        let matrices = self.folder.tensors.iter().filter_map(|(name, info)| {
            let path = name.strip_suffix(".weight").filter(|path| tied || !path.ends_with("embed_tokens"))?;
            let q = self.affine(path).filter(|_| info.shape.len() == 2)?;
            let stored: u64 = info.shape.iter().product();
            usize::try_from(stored * 32 / u64::from(q.bits)).ok()
        });
        matrices.sum()
    }

    /// Room for a matrix of so many floats; `None` where it is too large for an arena.
    fn room(&mut self, floats: usize) -> Result<Option<Block>> {
        if floats > Arena::MOST {
            return Ok(None);
        }
        // What was too small for the last matrix may do for this one.
        let mut block = self.arenas.iter_mut().find_map(|arena| arena.take(floats));
        if block.is_none() {
            let mut arena = Arena::new(self.unplaced.clamp(floats, floats.max(ARENA)))?;
            block = arena.take(floats);
            self.arenas.push(arena);
        }
        self.unplaced = self.unplaced.saturating_sub(floats);
        // What is left over at an arena's end is never touched, and so takes no memory.
        self.kept += 4 * floats as u64;
        Ok(block)
    }

    /// A float tensor of this shape, in the compute dtype (f32 on a CPU, as stored on a GPU).
    ///
    /// # Errors
    /// Missing, of another shape, of a dtype that is not a float, or unreadable.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.float(name, shape)?;
        self.kept += tensor.nbytes() as u64;
        Ok(tensor)
    }

    fn float(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.raw(name, shape)?;
        if !tensor.dtype()?.is_float() {
            return Err(self.mismatch(name, "a float dtype", format!("{:?}", tensor.dtype()?)).into());
        }
        self.computed(tensor)
    }

    /// Layers of the same input, fused along their outputs; each part is a weight path and its output width.
    /// With `bias`, every part has one.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn linear(&mut self, parts: &[(&str, usize)], inputs: usize, bias: bool) -> Result<Linear> {
        let weight = if self.unpack && parts.iter().all(|(path, _)| self.affine(path).is_some()) {
            Weight::Stored(self.unpacked(parts, inputs)?.swap_last()?)
        } else {
            let mut matrices = Vec::with_capacity(parts.len());
            for (path, outputs) in parts {
                matrices.push(self.matrix(path, *outputs, inputs)?);
            }
            let weight = self.fuse(matrices)?;
            self.kept += weight.bytes();
            weight
        };
        let bias = match bias {
            false => None,
            true => {
                let biases = parts
                    .iter()
                    .map(|(path, outputs)| self.float(&format!("{path}.bias"), &[*outputs]))
                    .collect::<Result<Vec<_>>>()?;
                Some(concatenate(&biases, 0)?)
            }
        };
        if let Some(bias) = &bias {
            eval([bias])?;
            self.kept += bias.nbytes() as u64;
        }
        Ok(Linear::new(weight, bias))
    }

    /// The embedding table `[vocab, width]`; `tied` when the LM head uses it too.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn embedding(&mut self, path: &str, vocab: usize, width: usize, tied: bool) -> Result<Embedding> {
        if tied && self.unpack && self.affine(path).is_some() {
            return Ok(Embedding::Rows(self.unpacked(&[(path, vocab)], width)?));
        }
        let matrix = self.matrix(path, vocab, width)?;
        let embedding = match matrix {
            Matrix::Quantized(q) if tied && self.unpack => {
                let table = q.dequantize(Dtype::F32)?;
                eval([&table])?;
                Embedding::Rows(table)
            }
            Matrix::Dense(table) => {
                eval([&table])?;
                Embedding::Rows(table)
            }
            Matrix::Quantized(q) => {
                let dtype = if self.device == Device::Cpu { Dtype::F32 } else { float_of(&q)? };
                Embedding::Quantized(q, dtype)
            }
        };
        self.kept += embedding.bytes();
        Ok(embedding)
    }

    /// The affine scheme of a layer that the files hold quantized.
    fn affine(&self, path: &str) -> Option<Quantization> {
        let quantized = self.has(&format!("{path}.scales"));
        self.quantization.for_layer(path).filter(|q| quantized && q.mode == Mode::Affine)
    }

    /// Affine layers unpacked one below the other into one dense `[outputs, inputs]`.
    fn unpacked(&mut self, parts: &[(&str, usize)], inputs: usize) -> Result<Tensor> {
        let outputs: usize = parts.iter().map(|(_, n)| n).sum();
        // Before anything is allocated: a damaged config can ask for terabytes.
        for (path, rows) in parts {
            let Some(q) = self.affine(path) else { continue };
            self.check_groups(path, inputs, q)?;
            self.check_shape(&format!("{path}.weight"), &[*rows, inputs * q.bits as usize / 32])?;
        }
        // The unpacking threads touch it first, and MLX then uses it as it is.
        let shape = [outputs as i32, inputs as i32];
        match self.room(outputs * inputs)? {
            Some(mut block) => {
                self.unpack_into(block.values(), parts, inputs)?;
                Ok(block.into_tensor(&shape)?)
            }
            None => {
                let mut dense = vec![0.0; outputs * inputs];
                self.unpack_into(&mut dense, parts, inputs)?;
                let tensor = Tensor::from_f32(&dense, &shape)?;
                self.kept += tensor.nbytes() as u64;
                Ok(tensor)
            }
        }
    }

    fn unpack_into(&mut self, dense: &mut [f32], parts: &[(&str, usize)], inputs: usize) -> Result<()> {
        let mut rest = dense;
        // One buffer for all matrices: fresh ones would be fresh pages each time.
        let mut words = std::mem::take(&mut self.scratch);
        for (path, rows) in parts {
            let Some((part, after)) = rest.split_at_mut_checked(rows * inputs) else { break };
            rest = after;
            let Some(q) = self.affine(path) else { continue };
            let (bits, group) = (q.bits as usize, q.group_size as usize);
            let groups = [*rows, inputs / group];
            let dtype = self.stored_into(&format!("{path}.weight"), &[*rows, inputs * bits / 32], &mut words)?;
            if dtype != Dtype::U32 {
                return Err(self
                    .mismatch(&format!("{path}.weight"), "packed U32 weights", format!("{dtype:?}"))
                    .into());
            }
            let scales = self.floats(&format!("{path}.scales"), &groups)?;
            let biases = self.floats(&format!("{path}.biases"), &groups)?;
            let packed =
                Packed { words: &words, scales: &scales, biases: &biases, rows: *rows, cols: inputs, bits, group };
            unpack::dense(packed, part);
        }
        self.scratch = words;
        Ok(())
    }

    fn fuse(&self, mut matrices: Vec<Matrix>) -> Result<Weight> {
        if self.unpack {
            for matrix in &mut matrices {
                if let Matrix::Quantized(q) = matrix {
                    *matrix = Matrix::Dense(q.dequantize(Dtype::F32)?);
                }
            }
        }
        if matrices.len() > 1 {
            match same_scheme(&matrices) {
                Some(_) => matrices = vec![join(&matrices)?],
                None => {
                    let parts = matrices.into_iter().map(|m| self.single(m)).collect::<Result<_>>()?;
                    return Ok(Weight::Parts(parts));
                }
            }
        }
        match matrices.pop() {
            Some(matrix) => self.single(matrix),
            None => Ok(Weight::Parts(Vec::new())),
        }
    }

    fn single(&self, matrix: Matrix) -> Result<Weight> {
        Ok(match matrix {
            Matrix::Dense(t) => {
                eval([&t])?;
                Weight::Stored(t.swap_last()?)
            }
            Matrix::Quantized(matrix) => {
                eval([&matrix.packed, &matrix.scales].into_iter().chain(&matrix.biases))?;
                Weight::Quantized { matrix, unpack_for_many: self.device == Device::Cpu }
            }
        })
    }

    /// A weight matrix `[outputs, inputs]`, quantized where the files hold scales for it.
    fn matrix(&mut self, path: &str, outputs: usize, inputs: usize) -> Result<Matrix> {
        let name = format!("{path}.weight");
        if !self.has(&format!("{path}.scales")) {
            return Ok(Matrix::Dense(self.float(&name, &[outputs, inputs])?));
        }
        let Some(q) = self.quantization.for_layer(path) else {
            let found = format!("{path}.scales, but no quantization for it in config.json");
            return Err(self.mismatch(&name, "an unquantized layer, as config.json says", found).into());
        };
        self.quantized(path, outputs, inputs, q).map(Matrix::Quantized)
    }

    fn quantized(&mut self, path: &str, outputs: usize, inputs: usize, q: Quantization) -> Result<QuantizedWeight> {
        let (bits, group) = (q.bits as usize, q.group_size as usize);
        self.check_groups(path, inputs, q)?;
        let groups = [outputs, inputs / group];
        let packed = self.raw(&format!("{path}.weight"), &[outputs, inputs * bits / 32])?;
        let affine = q.mode == Mode::Affine;
        let (scales, biases) = if affine {
            let scales = self.float(&format!("{path}.scales"), &groups)?;
            (scales, Some(self.float(&format!("{path}.biases"), &groups)?))
        } else {
            (self.raw(&format!("{path}.scales"), &groups)?, None)
        };
        let (want, found) = (if affine { None } else { Some(Dtype::U8) }, scales.dtype()?);
        if packed.dtype()? != Dtype::U32 || want.is_some_and(|w| w != found) {
            let found = format!("{:?} and {found:?}", packed.dtype()?);
            return Err(self
                .mismatch(&format!("{path}.weight"), "packed U32 weights with scales of their mode", found)
                .into());
        }
        let mode = mlx_name(q.mode);
        Ok(QuantizedWeight { packed, scales, biases, group_size: group as i32, bits: bits as i32, mode })
    }

    fn check_groups(&self, path: &str, inputs: usize, q: Quantization) -> Result<()> {
        if inputs.is_multiple_of(q.group_size as usize) {
            return Ok(());
        }
        let expected = format!("a width that is a multiple of the group size {}", q.group_size);
        Err(self.mismatch(&format!("{path}.weight"), &expected, inputs.to_string()).into())
    }

    /// The compute dtype: f32 on a CPU (f16 and bf16 kernels are 20–90 × slower there), as stored on a GPU.
    fn computed(&self, tensor: Tensor) -> Result<Tensor> {
        Ok(if self.device == Device::Cpu { tensor.astype(Dtype::F32)? } else { tensor })
    }

    /// The tensor as stored, read to where MLX keeps it: a second copy of a model's largest matrix can be gigabytes.
    fn raw(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let info = self.check_shape(name, shape)?;
        let dtype = self.dtype(name, info)?;
        let dims: Vec<i32> = shape.iter().map(|&d| d as i32).collect();
        match in_place(info.bytes) {
            Some(mut block) => {
                let bytes = block.bytes().get_mut(..info.bytes as usize).unwrap_or_default();
                self.fetch(info, bytes)?;
                Ok(block.into_tensor_of(dtype, &dims)?)
            }
            None => {
                let mut bytes = vec![0; info.bytes as usize];
                self.fetch(info, &mut bytes)?;
                Ok(Tensor::from_bytes(&bytes, &dims, dtype)?)
            }
        }
    }

    /// A float tensor's values on the host, row-major.
    fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (bytes, dtype) = self.stored(name, shape)?;
        let pair = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        match dtype {
            Dtype::F32 => Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
            Dtype::F16 => Ok(bytes.chunks_exact(2).map(|b| half::f16::from_bits(pair(b)).to_f32()).collect()),
            Dtype::Bf16 => Ok(bytes.chunks_exact(2).map(|b| half::bf16::from_bits(pair(b)).to_f32()).collect()),
            other => Err(self.mismatch(name, "a float dtype", format!("{other:?}")).into()),
        }
    }

    /// The bytes of a tensor, its shape and dtype checked.
    fn stored(&mut self, name: &str, shape: &[usize]) -> Result<(Vec<u8>, Dtype)> {
        let mut bytes = Vec::new();
        let dtype = self.stored_into(name, shape, &mut bytes)?;
        Ok((bytes, dtype))
    }

    /// [`Weights::stored`] into a buffer that may have been used before.
    fn stored_into(&mut self, name: &str, shape: &[usize], bytes: &mut Vec<u8>) -> Result<Dtype> {
        let info = self.check_shape(name, shape)?;
        let dtype = self.dtype(name, info)?;
        bytes.resize(info.bytes as usize, 0);
        self.fetch(info, bytes)?;
        Ok(dtype)
    }

    fn dtype(&self, name: &str, info: &TensorInfo) -> Result<Dtype> {
        Ok(match info.dtype {
            folder::Dtype::F32 => Dtype::F32,
            folder::Dtype::F16 => Dtype::F16,
            folder::Dtype::BF16 => Dtype::Bf16,
            folder::Dtype::U32 => Dtype::U32,
            folder::Dtype::U8 => Dtype::U8,
            other => return Err(self.mismatch(name, "dtype F32, F16, BF16, U32 or U8", format!("{other:?}")).into()),
        })
    }

    fn check_shape(&self, name: &str, shape: &[usize]) -> Result<&'a TensorInfo> {
        let Some(info) = self.folder.tensors.get(name) else {
            let expected = format!("its safetensors files should hold `{name}` {shape:?}");
            return Err(CoreError::Missing { file: self.folder.path.clone(), expected }.into());
        };
        if !info.shape.iter().copied().eq(shape.iter().map(|&d| d as u64)) {
            return Err(self.mismatch(name, &format!("shape {shape:?}"), format!("{:?}", info.shape)).into());
        }
        Ok(info)
    }

    /// Reads a tensor's bytes, all of them.
    fn fetch(&mut self, info: &TensorInfo, bytes: &mut [u8]) -> Result<()> {
        let path = self.shard(info);
        let io = |e: std::io::Error| CoreError::Io { file: path.to_owned(), message: e.to_string() };
        let file = match self.open.take() {
            Some((shard, file)) if shard == info.shard => file,
            _ => File::open(path).map_err(io)?,
        };
        file.read_exact_at(bytes, info.offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => CoreError::Io {
                file: path.to_owned(),
                message: format!(
                    "it became shorter while it was read: expected {} bytes at byte {}, found its end",
                    info.bytes, info.offset
                ),
            },
            _ => io(e),
        })?;
        self.open = Some((info.shard, file));
        self.read += info.bytes;
        (self.progress)(self.read as f64 / self.total.max(1) as f64);
        Ok(())
    }

    fn shard(&self, info: &TensorInfo) -> &'a Path {
        self.folder.shards.get(info.shard).map_or(&self.folder.path, |s| &s.path)
    }

    fn mismatch(&self, name: &str, expected: &str, found: String) -> CoreError {
        let file = self.folder.tensors.get(name).map_or(&*self.folder.path, |t| self.shard(t)).to_owned();
        CoreError::Invalid { file, what: format!("tensor `{name}`"), expected: expected.into(), found }
    }
}

/// MLX's name of a mode.
pub fn mlx_name(mode: Mode) -> &'static CStr {
    match mode {
        Mode::Affine => c"affine",
        Mode::Mxfp4 => c"mxfp4",
        Mode::Mxfp8 => c"mxfp8",
        Mode::Nvfp4 => c"nvfp4",
    }
}

/// A weight matrix `[out, in]` as the files have it.
enum Matrix {
    Dense(Tensor),
    Quantized(QuantizedWeight),
}

/// The dtype that a quantized layer computes in on a GPU.
fn float_of(q: &QuantizedWeight) -> Result<Dtype> {
    let dtype = q.scales.dtype()?;
    Ok(if dtype.is_float() { dtype } else { Dtype::Bf16 })
}

/// Whether these can be one matrix: all dense of one dtype, or all quantized alike.
fn same_scheme(matrices: &[Matrix]) -> Option<()> {
    let scheme = |m: &Matrix| match m {
        Matrix::Dense(t) => (None, t.dtype().ok()),
        Matrix::Quantized(q) => (Some((q.mode, q.bits, q.group_size)), q.scales.dtype().ok()),
    };
    let first = scheme(matrices.first()?);
    matrices.iter().all(|m| scheme(m) == first).then_some(())
}

fn join(matrices: &[Matrix]) -> Result<Matrix> {
    let (mut dense, mut packed, mut scales, mut biases, mut like) = (vec![], vec![], vec![], vec![], None);
    for m in matrices {
        match m {
            Matrix::Dense(t) => dense.push(t),
            Matrix::Quantized(q) => {
                packed.push(&q.packed);
                scales.push(&q.scales);
                biases.extend(&q.biases);
                like = Some(q);
            }
        }
    }
    Ok(match like {
        None => Matrix::Dense(concatenate(dense, 0)?),
        Some(q) => Matrix::Quantized(QuantizedWeight {
            packed: concatenate(packed, 0)?,
            scales: concatenate(scales, 0)?,
            biases: if biases.is_empty() { None } else { Some(concatenate(biases, 0)?) },
            ..*q
        }),
    })
}
