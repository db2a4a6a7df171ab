//! The headers of a model's weight files, read once from end to end and handed out tensor by tensor: what sizes a model
//! of hundreds of files in milliseconds. [`crate::folder`] checks more and remembers everything; here nothing is kept.

use std::borrow::Cow;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::Path;

use hearth_core::fit::Model;
use hearth_core::fit::weights::{Head, Stored};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::folder::{config_of, weight_files};
use crate::{LibraryError, json, opening};

/// Largest header accepted, in bytes; the format's own limit.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// What reading took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Weight files opened, each once.
    pub files: u64,
    /// Bytes read of them.
    pub bytes: u64,
    /// Tensors seen.
    pub tensors: u64,
}

/// The sizes of the model in `dir`, from `config.json` and headers alone.
///
/// # Errors
/// [`LibraryError`] naming the file, what was expected and what was found.
pub fn model(dir: &Path) -> Result<(Model, Work), LibraryError> {
    let config = Value::Object(config_of(dir)?);
    let mut model = Model::from_config(&config, &dir.join("config.json"))?;
    let names = match numbered(dir)? {
        Some(names) => names,
        None => weight_files(dir)?.names,
    };
    if let [one] = names.as_slice() {
        let (model, work) = files(dir, std::slice::from_ref(one), model)?;
        return counted(dir, model, work);
    }
    // A hundred thousand tensors (every expert by itself) take a core tens of milliseconds.
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8);
    let share = names.len().div_ceil(threads).max(1);
    let mut work = Work::default();
    let parts: Vec<_> = std::thread::scope(|scope| {
        let model = &model;
        let start = |names| scope.spawn(move || files(dir, names, model.part()));
        let running: Vec<_> = names.chunks(share).map(start).collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    for part in parts {
        let broken = |_| LibraryError::mismatch(dir, "the weights", "headers that can be read", "headers that cannot");
        let (part, done) = part.map_err(broken)??;
        model.merge(&part);
        work = Work {
            files: work.files + done.files,
            bytes: work.bytes + done.bytes,
            tensors: work.tensors + done.tensors,
        };
    }
    counted(dir, model, work)
}

fn counted(dir: &Path, model: Model, work: Work) -> Result<(Model, Work), LibraryError> {
    if work.tensors == 0 {
        return Err(LibraryError::mismatch(dir, "the weights", "at least one tensor", "none"));
    }
    Ok((model, work))
}

/// The weight files, where they are numbered and all there: then the index says nothing more, and takes as long to read
/// as all headers.
fn numbered(dir: &Path) -> Result<Option<Vec<String>>, LibraryError> {
    let mut names = Vec::new();
    let mut total = None;
    for entry in fs::read_dir(dir).map_err(LibraryError::io("list", dir))? {
        let entry = entry.map_err(LibraryError::io("list", dir))?;
        let name = entry.file_name().into_string().unwrap_or_default();
        let Some(stem) = name.strip_suffix(".safetensors") else { continue };
        let number = stem.strip_prefix("model-").and_then(|rest| rest.split_once("-of-"));
        match number.map(|(number, all)| (number.parse::<usize>(), all.parse::<usize>())) {
            Some((Ok(_), Ok(all))) if total.is_none_or(|total| total == all) => {
                total = Some(all);
                names.push(name);
            }
            // Another kind of folder: the index decides, or the names.
            _ => return Ok(None),
        }
    }
    names.sort();
    let whole = total.is_some_and(|total| {
        names.len() == total && (1..=total).zip(&names).all(|(n, name)| name.starts_with(&format!("model-{n:05}-of-")))
    });
    Ok(whole.then_some(names))
}

/// Counts the tensors of these files.
fn files(dir: &Path, names: &[String], mut model: Model) -> Result<(Model, Work), LibraryError> {
    let mut work = Work::default();
    for name in names {
        work.bytes += file(&dir.join(name), &mut |head| {
            work.tensors += 1;
            model.add(head);
        })?;
        work.files += 1;
    }
    Ok((model, work))
}

/// Reads one file's header; returns the bytes read.
fn file(path: &Path, each: &mut dyn FnMut(Head<'_>)) -> Result<u64, LibraryError> {
    let mut file = opening::open(path)?;
    let length = file.metadata().map_err(LibraryError::io("read", path))?.len();
    let cut = |expected: u64| {
        let found = format!("{length} bytes (cut short?)");
        LibraryError::mismatch(path, "the length of the file", format!("{expected} bytes"), found)
    };
    let mut prefix = [0; 8];
    if length < 8 {
        return Err(cut(8));
    }
    file.read_exact(&mut prefix).map_err(LibraryError::io("read", path))?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER {
        let expected = format!("at most {MAX_HEADER} bytes");
        let found = format!("{header} (not a safetensors file?)");
        return Err(LibraryError::mismatch(path, "the length of the header", expected, found));
    }
    if 8 + header > length {
        return Err(cut(8 + header));
    }
    let mut bytes = vec![0; header as usize];
    file.read_exact(&mut bytes).map_err(LibraryError::io("read", path))?;
    let end = tensors(path, &bytes, each)?;
    match length == 8 + header + end {
        true => Ok(8 + header),
        false => Err(cut((8 + header).saturating_add(end))),
    }
}

/// Counts the tensors of a header that has been read already, such as one from the hub; `path` is for messages. Returns where their
/// data ends, in bytes from its start.
pub(crate) fn tensors(path: &Path, bytes: &[u8], each: &mut dyn FnMut(Head<'_>)) -> Result<u64, LibraryError> {
    let mut end = 0;
    let mut wrong = None;
    let visit = Tensors(&mut |name: &str, entry: Entry<'_>| match entry.head(name) {
        Ok(head) => {
            end = end.max(entry.data_offsets.1);
            each(head);
        }
        Err((expected, found)) => {
            wrong.get_or_insert_with(|| LibraryError::mismatch(path, format!("tensor {name}"), expected, found));
        }
    });
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    // Parsed once more only where it fails, for a message with the place.
    if visit.deserialize(&mut parser).and_then(|()| parser.end()).is_err() {
        json::parse::<serde_json::Map<String, Value>>(path, bytes, "a safetensors header")?;
        return Err(LibraryError::mismatch(
            path,
            "the header",
            "tensors with dtype, shape and data_offsets",
            "something else",
        ));
    }
    wrong.map_or(Ok(end), Err)
}

/// A tensor of a header, nothing copied.
#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Elements,
    data_offsets: (u64, u64),
}

impl Entry<'_> {
    /// The tensor, where its range fits its shape; else what was expected and what was found.
    fn head<'n>(&self, name: &'n str) -> Result<Head<'n>, (String, String)> {
        let (begin, end) = self.data_offsets;
        let elements = self.shape.0;
        let (stored, bits) = match &*self.dtype {
            "F32" => (Stored::F32, 32),
            "F16" | "BF16" => (Stored::Half, 16),
            "U32" => (Stored::U32, 32),
            "F64" | "I64" | "U64" => (Stored::Other, 64),
            "I32" => (Stored::Other, 32),
            "I16" | "U16" => (Stored::Other, 16),
            "F4" | "F6_E2M3" | "F6_E3M2" => (Stored::Other, 0),
            _ => (Stored::Other, 8),
        };
        // Smaller than a byte: the range is all there is to go by.
        let wanted = if bits == 0 { end.checked_sub(begin) } else { elements.and_then(|n| n.checked_mul(bits / 8)) };
        match (elements, wanted) {
            (Some(elements), Some(bytes)) if end.checked_sub(begin) == Some(bytes) && end < 1 << 60 => {
                Ok(Head { name, stored, elements, bytes })
            }
            (Some(elements), Some(bytes)) => Err((
                format!("{bytes} bytes for {elements} elements of {}", self.dtype),
                format!("data from {begin} to {end}"),
            )),
            _ => Err(("a shape that fits into memory".into(), "a larger one".into())),
        }
    }
}

/// The product of a shape, which is not kept; `None` where it is too large to be one.
struct Elements(Option<u64>);

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = Elements;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Elements, A::Error> {
                let mut product = Some(1u64);
                while let Some(dim) = seq.next_element::<u64>()? {
                    product = product.and_then(|n| n.checked_mul(dim));
                }
                Ok(Elements(product))
            }
        }
        deserializer.deserialize_seq(Shape)
    }
}

/// Hands out the tensors of a header as they are parsed.
struct Tensors<'f>(&'f mut dyn FnMut(&str, Entry<'_>));

impl<'de> DeserializeSeed<'de> for Tensors<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// A key of the header, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Tensors<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Name(name)) = map.next_key::<Name<'_>>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                (self.0)(&name, map.next_value()?);
            }
        }
        Ok(())
    }
}
