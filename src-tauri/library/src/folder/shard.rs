//! Reads and checks the header of one safetensors file.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, Deserializer, IntoDeserializer, MapAccess, Visitor};

use super::TensorInfo;
use crate::{LibraryError, json, opening};

/// Largest header accepted, in bytes; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// One weight file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where tensor data starts, in bytes from the start of the file.
    pub data_start: u64,
}

/// Reads the header of `path`. `number` becomes the tensors' [`TensorInfo::shard`].
pub(super) fn open(path: &Path, number: usize) -> Result<(Shard, Vec<(String, TensorInfo)>), LibraryError> {
    let mut file = opening::open(path)?;
    let len = file.metadata().map_err(LibraryError::io("read", path))?.len();
    let cut = |expected: u64| {
        LibraryError::mismatch(
            path,
            "the length of the file",
            format!("{expected} bytes"),
            format!("{len} bytes (cut short?)"),
        )
    };
    if len < 8 {
        return Err(cut(8));
    }
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(LibraryError::io("read", path))?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > MAX_HEADER {
        return Err(LibraryError::mismatch(
            path,
            "the length of the header",
            format!("at most {MAX_HEADER} bytes"),
            format!("{header_len} (not a safetensors file?)"),
        ));
    }
    let data_start = 8 + header_len;
    if data_start > len {
        return Err(cut(data_start));
    }
    let mut bytes = vec![0; header_len as usize];
    file.read_exact(&mut bytes).map_err(LibraryError::io("read", path))?;
    let header: Header = json::parse(path, &bytes, "a safetensors header")?;

    let mut tensors = Vec::with_capacity(header.0.len());
    let mut end = 0;
    for (name, entry) in header.0 {
        let info = entry.check(path, &name, number, data_start)?;
        end = end.max(info.offset + info.bytes);
        tensors.push((name, info));
    }
    let end = end.max(data_start);
    if len < end {
        return Err(cut(end));
    }
    if len > end {
        return Err(LibraryError::mismatch(
            path,
            "the length of the file",
            format!("{end} bytes"),
            format!("{len} bytes"),
        ));
    }
    check_overlap(path, &tensors)?;
    Ok((Shard { path: path.to_path_buf(), bytes: len, data_start }, tensors))
}

fn check_overlap(path: &Path, tensors: &[(String, TensorInfo)]) -> Result<(), LibraryError> {
    let mut order: Vec<&(String, TensorInfo)> = tensors.iter().filter(|(_, t)| t.bytes > 0).collect();
    order.sort_by_key(|(_, t)| t.offset);
    for pair in order.windows(2) {
        if let [(a_name, a), (b_name, b)] = pair
            && a.offset + a.bytes > b.offset
        {
            return Err(LibraryError::mismatch(
                path,
                format!("tensor {b_name}"),
                format!("data from byte {} on, after {a_name}", a.offset + a.bytes),
                format!("data at byte {}", b.offset),
            ));
        }
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    fn check(self, path: &Path, name: &str, shard: usize, data_start: u64) -> Result<TensorInfo, LibraryError> {
        let Self { dtype, shape, data_offsets: (begin, end) } = self;
        let what = || format!("tensor {name}");
        let text: StrDeserializer<'_, serde::de::value::Error> = dtype.as_str().into_deserializer();
        let kind = Dtype::deserialize(text)
            .map_err(|_| LibraryError::mismatch(path, what(), "a safetensors dtype", format!("{dtype:?}")))?;
        let bits = shape.iter().try_fold(kind.bitsize() as u64, |n, dim| n.checked_mul(*dim));
        let Some(bytes) = bits.map(|b| b.div_ceil(8)) else {
            return Err(LibraryError::mismatch(path, what(), "a shape that fits into memory", format!("{shape:?}")));
        };
        if end.checked_sub(begin) != Some(bytes) {
            return Err(LibraryError::mismatch(
                path,
                what(),
                format!("{bytes} bytes for {dtype} {shape:?}"),
                format!("data from {begin} to {end}"),
            ));
        }
        // No file is that long; this keeps the additions below from overflowing.
        if end > 1 << 60 {
            return Err(LibraryError::mismatch(path, what(), "data inside the file", format!("data up to byte {end}")));
        }
        Ok(TensorInfo { shard, dtype: kind, shape, offset: data_start + begin, bytes })
    }
}

/// The header's tensors in file order. A map would silently drop a name that comes twice; whoever collects them sees it.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    }
                    let entry = map
                        .next_value::<Entry>()
                        .map_err(|e| serde::de::Error::custom(format!("tensor {name}: {e}")))?;
                    entries.push((name, entry));
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
