//! Bounds-checked parsing of a GGUF file's header: metadata and tensor infos. Reads no tensor data.
//!
//! Every length in the file is checked against what is left of the file before anything is allocated, so that a damaged file is an
//! error and never a crash or a huge allocation.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use crate::LibraryError;

/// Longest single string accepted, in bytes. Chat templates are the longest real ones, at tens of kilobytes.
const MAX_STRING: u64 = 16 << 20;
/// Deepest nesting of arrays accepted. Real files have flat arrays.
const MAX_ARRAY_DEPTH: usize = 4;
/// Memory that all metadata together may take: real tokenizers stay under 40 MB.
const MAX_METADATA: u64 = 512 << 20;

/// One metadata value. Integers of all widths are widened.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// u8, u16, u32, u64.
    Uint(u64),
    /// i8, i16, i32, i64.
    Int(i64),
    /// f32, kept narrow so that it can be printed as short as it was written.
    F32(f32),
    /// f64.
    F64(f64),
    /// bool.
    Bool(bool),
    /// UTF-8 text.
    Str(String),
    /// An array; its elements are all of one type.
    Array(Vec<Value>),
}

impl Value {
    /// The value as a non-negative integer, if it is one.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint(v) => Some(*v),
            Self::Int(v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// The value as a number. An f32 becomes the f64 that prints the same shortest decimal (1e-5 stays 1e-5).
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Uint(v) => Some(*v as f64),
            Self::Int(v) => Some(*v as f64),
            Self::F32(v) => v.to_string().parse().ok(),
            Self::F64(v) => Some(*v),
            _ => None,
        }
    }

    /// The value as a truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// The value as text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(v) => Some(v),
            _ => None,
        }
    }

    /// The elements, if it is an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    /// What it is, for error messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Uint(_) | Self::Int(_) => "an integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Str(_) => "a string",
            Self::Array(_) => "an array",
        }
    }
}

/// The tensor types that can be imported. Others are known only by number and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
    /// Blocks of 32: f16 scale, 32 4-bit values; w = d·(q − 8).
    Q4_0,
    /// Blocks of 32: f16 scale, f16 minimum, 32 4-bit values; w = d·q + m.
    Q4_1,
    /// Blocks of 32: f16 scale, 32 signed 8-bit values; w = d·q.
    Q8_0,
    /// Any other ggml type, by its number.
    Other(u32),
}

/// What can be imported, as printed in errors.
pub(crate) const SUPPORTED_TYPES: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1";

impl TensorType {
    fn from_id(id: u32) -> Self {
        match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            other => Self::Other(other),
        }
    }

    /// Elements and bytes of one block; `None` for types that are not supported.
    pub fn block(self) -> Option<(u64, u64)> {
        match self {
            Self::F32 => Some((1, 4)),
            Self::F16 | Self::Bf16 => Some((1, 2)),
            Self::Q4_0 => Some((32, 18)),
            Self::Q4_1 => Some((32, 20)),
            Self::Q8_0 => Some((32, 34)),
            Self::Other(_) => None,
        }
    }

    /// The name that llama.cpp prints for it.
    pub fn name(self) -> String {
        let known = match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q8_0 => "Q8_0",
            Self::Other(id) => match id {
                6 => "Q5_0",
                7 => "Q5_1",
                9 => "Q8_1",
                10 => "Q2_K",
                11 => "Q3_K",
                12 => "Q4_K",
                13 => "Q5_K",
                14 => "Q6_K",
                15 => "Q8_K",
                16 => "IQ2_XXS",
                17 => "IQ2_XS",
                18 => "IQ3_XXS",
                19 => "IQ1_S",
                20 => "IQ4_NL",
                21 => "IQ3_S",
                22 => "IQ2_S",
                23 => "IQ4_XS",
                24 => "I8",
                25 => "I16",
                26 => "I32",
                27 => "I64",
                28 => "F64",
                29 => "IQ1_M",
                34 => "TQ1_0",
                35 => "TQ2_0",
                39 => "MXFP4",
                _ => return format!("type number {id}"),
            },
        };
        known.to_owned()
    }
}

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufTensor {
    /// Its GGUF name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Its shape with rows first (GGUF stores the row length first; this is the reverse).
    pub shape: Vec<u64>,
    /// How its elements are stored.
    pub kind: TensorType,
    /// Where its data starts, in bytes from the start of the file.
    pub offset: u64,
    /// Length of its data in bytes; 0 for an unsupported type, whose size is not known here.
    pub bytes: u64,
}

/// A parsed GGUF header.
#[derive(Debug)]
pub struct GgufFile {
    /// The file it was read from.
    pub path: PathBuf,
    /// Format version: 2 or 3.
    pub version: u32,
    /// All metadata, by key.
    pub metadata: HashMap<String, Value>,
    /// All tensors, in file order.
    pub tensors: Vec<GgufTensor>,
}

impl GgufFile {
    /// Reads and checks the header of the file at `path`; reads no tensor data.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if it cannot be read; [`LibraryError::Malformed`] or [`LibraryError::Mismatch`] with offset, expected
    /// and found for everything that is not as the format says, including tensor data beyond the end of the file (a truncated file).
    pub fn open(path: &Path) -> Result<Self, LibraryError> {
        let file = File::open(path).map_err(LibraryError::io("open", path))?;
        let meta = file.metadata().map_err(LibraryError::io("read", path))?;
        if !meta.is_file() {
            return Err(LibraryError::mismatch(path, "the path", "a GGUF file", "a folder or device"));
        }
        Self::parse(BufReader::with_capacity(1 << 20, file), meta.len(), path)
    }

    /// Parses a header from `input`, which is `len` bytes long in all; `path` is only used in errors.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn parse(input: impl Read, len: u64, path: &Path) -> Result<Self, LibraryError> {
        let mut r = Cursor { input, at: 0, len, path, metadata_left: MAX_METADATA };
        let magic = r.bytes::<4>("the magic")?;
        if &magic != b"GGUF" {
            return Err(r.bad(0, "the magic", "\"GGUF\"", format!("bytes {magic:02x?}")));
        }
        let version = r.u32("the version")?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => {
                return Err(r.bad(4, "the version", "a little-endian file", "a big-endian file".to_owned()));
            }
            _ => return Err(r.bad(4, "the version", "2 or 3", version.to_string())),
        }
        let tensor_count = r.u64("the number of tensors")?;
        let key_count = r.u64("the number of metadata keys")?;
        // The smallest tensor info is 8 + 4 + 8 + 4 + 8 bytes (one dimension, empty name), the smallest key 8 + 4 + 1.
        r.check_count(8, "the number of tensors", tensor_count, 24)?;
        r.check_count(16, "the number of metadata keys", key_count, 13)?;

        let mut metadata = HashMap::new();
        for _ in 0..key_count {
            let at = r.at;
            let key = r.string("a metadata key")?;
            let kind = r.u32("the type of a metadata value")?;
            let value = r.value(kind, &key, 0)?;
            if metadata.contains_key(&key) {
                return Err(r.bad(at, "a metadata key", "each key once", format!("{key:?} again")));
            }
            metadata.insert(key, value);
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(v) => match v.as_u64() {
                Some(a) if a.is_power_of_two() && (8..=1 << 20).contains(&a) => a,
                _ => {
                    return Err(LibraryError::mismatch(
                        path,
                        "general.alignment",
                        "a power of two from 8 to 1048576",
                        format!("{v:?}"),
                    ));
                }
            },
        };

        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push(r.tensor_info()?);
        }
        let data_start = r.at.next_multiple_of(alignment);
        let mut tensors = Vec::with_capacity(infos.len());
        let mut seen = HashMap::new();
        for info in infos {
            if seen.insert(info.name.clone(), ()).is_some() {
                return Err(r.bad(info.at, "a tensor name", "each name once", format!("{:?} again", info.name)));
            }
            tensors.push(r.place(info, data_start, alignment)?);
        }
        check_overlap(&tensors, path)?;
        Ok(Self { path: path.to_path_buf(), version, metadata, tensors })
    }

    /// The metadata value under `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The tensor of that name, if there is one. Linear: for a few look-ups only.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// The value under `key` through `read`; `None` if absent, an error if it is of another kind.
    pub(crate) fn opt<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, LibraryError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match read(v) {
                Some(t) => Ok(Some(t)),
                None => Err(LibraryError::mismatch(&self.path, format!("metadata key {key}"), expected, v.kind())),
            },
        }
    }

    /// An optional non-negative integer.
    pub(crate) fn opt_u64(&self, key: &str) -> Result<Option<u64>, LibraryError> {
        self.opt(key, "a non-negative integer", Value::as_u64)
    }

    /// An optional number.
    pub(crate) fn opt_f64(&self, key: &str) -> Result<Option<f64>, LibraryError> {
        let number = self.opt(key, "a number", Value::as_f64)?;
        match number {
            Some(v) if !v.is_finite() => {
                Err(LibraryError::mismatch(&self.path, format!("metadata key {key}"), "a finite number", v))
            }
            other => Ok(other),
        }
    }

    /// An optional boolean.
    pub(crate) fn opt_bool(&self, key: &str) -> Result<Option<bool>, LibraryError> {
        self.opt(key, "a boolean", Value::as_bool)
    }

    /// An optional text.
    pub(crate) fn opt_str(&self, key: &str) -> Result<Option<&str>, LibraryError> {
        self.opt(key, "a string", Value::as_str)
    }

    /// A non-negative integer that has to be there.
    pub(crate) fn need_u64(&self, key: &str) -> Result<u64, LibraryError> {
        self.opt_u64(key)?.ok_or_else(|| LibraryError::missing(&self.path, format!("metadata key {key}")))
    }

    /// A text that has to be there.
    pub(crate) fn need_str(&self, key: &str) -> Result<&str, LibraryError> {
        self.opt_str(key)?.ok_or_else(|| LibraryError::missing(&self.path, format!("metadata key {key}")))
    }
}

fn check_overlap(tensors: &[GgufTensor], path: &Path) -> Result<(), LibraryError> {
    let mut order: Vec<&GgufTensor> = tensors.iter().filter(|t| t.bytes > 0).collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if let [a, b] = pair
            && a.offset + a.bytes > b.offset
        {
            return Err(LibraryError::mismatch(
                path,
                format!("tensor {}", b.name),
                format!("data from byte {} on, after {}", a.offset + a.bytes, a.name),
                format!("data at byte {}", b.offset),
            ));
        }
    }
    Ok(())
}

struct Info {
    at: u64,
    name: String,
    shape: Vec<u64>,
    elements: u64,
    kind: TensorType,
    offset: u64,
}

/// A reader that knows where it is and how much is left.
struct Cursor<'p, R> {
    input: R,
    at: u64,
    len: u64,
    path: &'p Path,
    metadata_left: u64,
}

impl<R: Read> Cursor<'_, R> {
    fn bad(&self, offset: u64, what: &str, expected: impl Into<String>, found: String) -> LibraryError {
        LibraryError::Malformed {
            path: self.path.to_path_buf(),
            offset,
            what: what.to_owned(),
            expected: expected.into(),
            found,
        }
    }

    fn left(&self) -> u64 {
        self.len.saturating_sub(self.at)
    }

    fn need(&self, what: &str, bytes: u64) -> Result<(), LibraryError> {
        if bytes > self.left() {
            return Err(self.bad(
                self.at,
                what,
                format!("{bytes} more bytes"),
                format!("{} bytes before the end of the file", self.left()),
            ));
        }
        Ok(())
    }

    /// Refuses a count whose items, at `min` bytes each, cannot fit into the rest of the file.
    fn check_count(&self, at: u64, what: &str, count: u64, min: u64) -> Result<(), LibraryError> {
        let most = self.left() / min.max(1);
        if count > most {
            return Err(self.bad(
                at,
                what,
                format!("at most {most} (the file is {} bytes)", self.len),
                count.to_string(),
            ));
        }
        Ok(())
    }

    fn charge(&mut self, what: &str, bytes: u64) -> Result<(), LibraryError> {
        match self.metadata_left.checked_sub(bytes) {
            Some(left) => {
                self.metadata_left = left;
                Ok(())
            }
            None => Err(self.bad(self.at, what, format!("metadata under {MAX_METADATA} bytes"), "more".to_owned())),
        }
    }

    fn read(&mut self, what: &str, into: &mut [u8]) -> Result<(), LibraryError> {
        self.need(what, into.len() as u64)?;
        self.input.read_exact(into).map_err(LibraryError::io("read", self.path))?;
        self.at += into.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], LibraryError> {
        let mut b = [0; N];
        self.read(what, &mut b)?;
        Ok(b)
    }

    fn u32(&mut self, what: &str) -> Result<u32, LibraryError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, LibraryError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    fn string(&mut self, what: &str) -> Result<String, LibraryError> {
        let at = self.at;
        let len = self.u64(what)?;
        if len > MAX_STRING {
            return Err(self.bad(at, what, format!("a length of at most {MAX_STRING} bytes"), len.to_string()));
        }
        self.need(what, len)?;
        self.charge(what, len)?;
        let mut b = vec![0; len as usize];
        self.read(what, &mut b)?;
        String::from_utf8(b).map_err(|e| {
            self.bad(at + 8 + e.utf8_error().valid_up_to() as u64, what, "UTF-8 text", "other bytes".to_owned())
        })
    }

    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value, LibraryError> {
        let what = key;
        self.charge(what, std::mem::size_of::<Value>() as u64)?;
        Ok(match kind {
            0 => Value::Uint(u8::from_le_bytes(self.bytes(what)?).into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes(what)?).into()),
            2 => Value::Uint(u16::from_le_bytes(self.bytes(what)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes(what)?).into()),
            4 => Value::Uint(self.u32(what)?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes(what)?).into()),
            6 => Value::F32(f32::from_le_bytes(self.bytes(what)?)),
            7 => match self.bytes::<1>(what)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(self.bad(self.at - 1, what, "0 or 1", other.to_string())),
            },
            8 => Value::Str(self.string(what)?),
            9 => {
                if depth >= MAX_ARRAY_DEPTH {
                    return Err(self.bad(
                        self.at,
                        what,
                        format!("arrays at most {MAX_ARRAY_DEPTH} deep"),
                        "deeper".into(),
                    ));
                }
                let element = self.u32(what)?;
                let at = self.at;
                let count = self.u64(what)?;
                let min = match element {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    8 | 10..=12 => 8,
                    9 => 12,
                    _ => return Err(self.bad(at - 4, what, "an element type from 0 to 12", element.to_string())),
                };
                self.check_count(at, what, count, min)?;
                let mut items = Vec::new();
                for _ in 0..count {
                    items.push(self.value(element, key, depth + 1)?);
                }
                Value::Array(items)
            }
            10 => Value::Uint(self.u64(what)?),
            11 => Value::Int(i64::from_le_bytes(self.bytes(what)?)),
            12 => Value::F64(f64::from_le_bytes(self.bytes(what)?)),
            other => {
                return Err(self.bad(self.at.saturating_sub(4), what, "a value type from 0 to 12", other.to_string()));
            }
        })
    }

    fn tensor_info(&mut self) -> Result<Info, LibraryError> {
        let at = self.at;
        let name = self.string("a tensor name")?;
        let dims_at = self.at;
        let dims = self.u32(&name)?;
        if !(1..=4).contains(&dims) {
            return Err(self.bad(dims_at, &name, "1 to 4 dimensions", dims.to_string()));
        }
        let mut shape = Vec::new();
        let mut elements = 1u64;
        for _ in 0..dims {
            let dim_at = self.at;
            let dim = self.u64(&name)?;
            // 2^40 elements are more than any file holds, and leave room for the byte arithmetic.
            elements = match elements.checked_mul(dim) {
                Some(n) if n > 0 && n <= 1 << 40 => n,
                _ => {
                    return Err(self.bad(
                        dim_at,
                        &name,
                        "between 1 and 2^40 elements",
                        format!("a dimension of {dim}"),
                    ));
                }
            };
            shape.push(dim);
        }
        shape.reverse();
        let kind = TensorType::from_id(self.u32(&name)?);
        let offset = self.u64(&name)?;
        Ok(Info { at, name, shape, elements, kind, offset })
    }

    fn place(&self, info: Info, data_start: u64, alignment: u64) -> Result<GgufTensor, LibraryError> {
        let Info { at, name, shape, elements, kind, offset } = info;
        if !offset.is_multiple_of(alignment) {
            return Err(self.bad(
                at,
                &name,
                format!("a data offset that is a multiple of {alignment}"),
                offset.to_string(),
            ));
        }
        let bytes = match kind.block() {
            None => 0,
            Some((block, bytes)) => {
                let row = shape.last().copied().unwrap_or(0);
                if !row.is_multiple_of(block) {
                    return Err(self.bad(
                        at,
                        &name,
                        format!("rows of whole blocks of {block} for {}", kind.name()),
                        format!("rows of {row}"),
                    ));
                }
                elements / block * bytes
            }
        };
        let start = data_start.checked_add(offset);
        match start.and_then(|s| s.checked_add(bytes)) {
            Some(end) if end <= self.len => {}
            _ => {
                return Err(LibraryError::mismatch(
                    self.path,
                    format!("data of tensor {name}"),
                    format!("{bytes} bytes at byte {data_start} + {offset}"),
                    format!("a file of {} bytes (cut short?)", self.len),
                ));
            }
        }
        Ok(GgufTensor { name, shape, kind, offset: data_start + offset, bytes })
    }
}
