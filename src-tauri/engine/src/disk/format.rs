//! What a file looks like: a header that describes and checks itself, then the bytes of all layers.
//!
//! Little-endian: magic (8), format version (4), header length (4); kind (1), whether it continues blocks (1), two
//! zeros, namespace (32), parent (32), tokens before (4), minimum reusable length (4), payload length (8), BLAKE3 of
//! the layers' hashes (32), number of tokens (4) and of layers (4); the tokens (4 each); for each layer the BLAKE3 of
//! its bytes (32), the number of its arrays (2), and for each of them dtype (1), rank (1), dimensions (4 each) and
//! bytes (8); BLAKE3 of all this (32). Each layer has a hash of its own, so that it can be used as soon as it is read.

use super::files::Files;
use super::key::{Key, MOST, Namespace};
use std::io;
use std::path::Path;

/// The first bytes of every file.
pub const MAGIC: [u8; 8] = *b"HEARTHKV";
/// Raised when the format changes.
pub const VERSION: u32 = 1;
/// The end of a file's name.
pub const ENDING: &str = ".hearthkv";
/// The end of the name of a file that is being written.
pub const TEMPORARY: &str = ".hearthkv.tmp";

/// Magic, version and header length.
const START: usize = 16;
/// BLAKE3.
const HASH: usize = 32;
/// Longest header: thousands of layers.
const LONGEST: u64 = 8 << 20;
/// Read in one go at first.
const FIRST_READ: u64 = 8 << 10;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Trimmable state of up to 256 tokens.
    Block,
    /// Untrimmable state after some tokens.
    Snapshot,
}

/// One array of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// The engine's mark of the type.
    pub dtype: u8,
    /// Heads and bytes per head and token in blocks; the shape in snapshots.
    pub dims: Vec<u32>,
    /// Its length.
    pub bytes: u64,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// BLAKE3 of its bytes.
    pub hash: [u8; HASH],
    /// Its arrays, in order.
    pub arrays: Vec<Array>,
}

impl Layer {
    /// Bytes of all arrays.
    pub fn bytes(&self) -> u64 {
        self.arrays.iter().fold(0, |sum, array| sum.saturating_add(array.bytes))
    }
}

/// A file's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// What it holds.
    pub kind: Kind,
    /// A snapshot that is of use only together with the blocks up to it.
    pub continues_blocks: bool,
    /// Whose state it is.
    pub namespace: Namespace,
    /// Key of the full block before it.
    pub parent: Key,
    /// Tokens before it.
    pub start: u32,
    /// Shortest prefix that may be continued from it.
    pub min_reusable: u32,
    /// Its tokens; of a snapshot those after the last full block.
    pub tokens: Vec<u32>,
    /// Its layers, in order.
    pub layers: Vec<Layer>,
}

/// What a file turned out to be.
#[derive(Debug)]
pub enum Seen {
    /// A file of this format under its own name, its header's length with it.
    Ours(Header, u64),
    /// A file of Hearth of another format version.
    Other,
    /// A file of Hearth that is damaged or under another one's name: what is wrong.
    Damaged(String),
    /// Not Hearth's.
    Foreign,
}

impl Header {
    /// The key, and so the name.
    pub fn key(&self) -> Key {
        match self.kind {
            Kind::Block => self.namespace.block(&self.parent, &self.tokens),
            Kind::Snapshot => self.namespace.snapshot(&self.parent, &self.tokens),
        }
    }

    /// Bytes of all layers.
    pub fn payload(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.bytes()))
    }

    /// A mark of the arrays' shapes: blocks that are put together must agree in it.
    pub fn layout(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        for layer in &self.layers {
            hasher.update(&[layer.arrays.len() as u8, b'/']);
            for array in &layer.arrays {
                hasher.update(&[array.dtype, array.dims.len() as u8]);
                array.dims.iter().for_each(|dim| _ = hasher.update(&dim.to_le_bytes()));
            }
        }
        hasher.finalize().as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// The header as bytes. The length does not depend on the layers' hashes.
    pub fn encode(&self) -> Vec<u8> {
        let mut all = blake3::Hasher::new();
        self.layers.iter().for_each(|layer| _ = all.update(&layer.hash));
        let mut out = Vec::with_capacity(512 + 4 * self.tokens.len() + 96 * self.layers.len());
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend([0; 4]);
        out.extend([u8::from(self.kind == Kind::Snapshot), u8::from(self.continues_blocks), 0, 0]);
        out.extend(self.namespace.0);
        out.extend(self.parent.0);
        out.extend(self.start.to_le_bytes());
        out.extend(self.min_reusable.to_le_bytes());
        out.extend(self.payload().to_le_bytes());
        out.extend(all.finalize().as_bytes());
        out.extend((self.tokens.len() as u32).to_le_bytes());
        out.extend((self.layers.len() as u32).to_le_bytes());
        self.tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
        for layer in &self.layers {
            out.extend(layer.hash);
            out.extend((layer.arrays.len() as u16).to_le_bytes());
            for array in &layer.arrays {
                out.extend([array.dtype, array.dims.len() as u8]);
                array.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
                out.extend(array.bytes.to_le_bytes());
            }
        }
        let length = (out.len() + HASH) as u32;
        out.splice(12..START, length.to_le_bytes());
        let sum = blake3::hash(&out);
        out.extend(sum.as_bytes());
        out
    }

    /// The header whose bytes these are, checksum and all; `None` if they make no sense.
    fn decode(bytes: &[u8]) -> Option<Header> {
        let mut from = Reader(bytes.get(START..bytes.len().checked_sub(HASH)?)?);
        let [kind, continues_blocks, 0, 0] = from.array()? else { return None };
        let kind = match kind {
            0 => Kind::Block,
            1 => Kind::Snapshot,
            _ => return None,
        };
        let (namespace, parent) = (Namespace(from.array()?), Key(from.array()?));
        let (start, min_reusable, payload) = (from.u32()?, from.u32()?, u64::from_le_bytes(from.array()?));
        let all: [u8; HASH] = from.array()?;
        let (count, layer_count) = (from.u32()?, from.u32()?);
        let tokens = (0..count).map(|_| from.u32()).collect::<Option<Vec<u32>>>()?;
        let mut sum = blake3::Hasher::new();
        let mut layers = Vec::new();
        for _ in 0..layer_count {
            let hash = from.array()?;
            sum.update(&hash);
            let count = u16::from_le_bytes(from.array()?);
            let arrays = (0..count).map(|_| from.shape()).collect::<Option<Vec<Array>>>()?;
            layers.push(Layer { hash, arrays });
        }
        let continues_blocks = continues_blocks != 0;
        let header = Header { kind, continues_blocks, namespace, parent, start, min_reusable, tokens, layers };
        let fits = from.0.is_empty() && header.payload() == payload && *sum.finalize().as_bytes() == all;
        (fits && header.is_sound()).then_some(header)
    }

    fn is_sound(&self) -> bool {
        let block = self.kind == Kind::Block;
        let lengths = if block { 1..=MOST } else { 0..=MOST - 1 };
        let whole = |array: &Array| match array.dims[..] {
            // heads · width · tokens
            [heads, width] if block => {
                let row = u64::from(heads) * u64::from(width);
                row.checked_mul(self.tokens.len() as u64) == Some(array.bytes)
            }
            _ => !block,
        };
        lengths.contains(&self.tokens.len())
            && self.start.checked_add(MOST as u32).is_some()
            && !self.layers.is_empty()
            && (self.start > 0 || self.parent == self.namespace.root())
            && self.layers.iter().flat_map(|layer| &layer.arrays).all(whole)
    }
}

/// Takes values off the front of bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn shape(&mut self) -> Option<Array> {
        let [dtype, rank] = self.array()?;
        let dims = (0..rank).map(|_| self.u32()).collect::<Option<Vec<u32>>>()?;
        Some(Array { dtype, dims, bytes: u64::from_le_bytes(self.array()?) })
    }
}

/// Looks at the header of the file `name`, `length` bytes long, and at nothing else. Without one of our names and
/// our magic, as read just now, a file is not ours, whatever else is the matter with it.
///
/// # Errors
/// Those of reading; a file that became shorter is damaged or not ours instead.
pub fn look(files: &dyn Files, path: &Path, name: &str, length: u64) -> io::Result<Seen> {
    let Some(own) = name.strip_suffix(ENDING).and_then(Key::from_hex) else { return Ok(Seen::Foreign) };
    let mut bytes = vec![0; length.min(FIRST_READ) as usize];
    if !fill(files, path, 0, &mut bytes)? {
        return Ok(if has_magic(files, path)? { Seen::Damaged(SHORTER.to_owned()) } else { Seen::Foreign });
    }
    if !bytes.starts_with(&MAGIC) {
        return Ok(Seen::Foreign);
    }
    let Some((start, _)) = bytes.split_first_chunk::<START>() else { return Ok(short(length, "a header")) };
    let [.., v0, v1, v2, v3, l0, l1, l2, l3] = *start;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    let header = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
    // A damaged version is told from another one by the rest of the header.
    let ours = version == VERSION;
    let refused = |what: Seen| if ours { what } else { Seen::Other };
    if header > LONGEST || header < (START + HASH) as u64 {
        return Ok(refused(Seen::Damaged(format!("a header of {header} bytes cannot be"))));
    }
    if header > length {
        return Ok(refused(short(length, &format!("a header of {header} bytes"))));
    }
    let read = bytes.len();
    bytes.resize(header as usize, 0);
    if let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty())
        && !fill(files, path, read as u64, rest)?
    {
        return Ok(refused(Seen::Damaged(SHORTER.to_owned())));
    }
    bytes.splice(..12, MAGIC.into_iter().chain(VERSION.to_le_bytes()));
    let (body, sum) = bytes.split_at(bytes.len() - HASH);
    if *blake3::hash(body).as_bytes() != *sum {
        return Ok(refused(Seen::Damaged("the header does not have its checksum".to_owned())));
    }
    if !ours {
        return Ok(Seen::Damaged("the file does not begin as Hearth's files of this version do".to_owned()));
    }
    let Some(decoded) = Header::decode(&bytes) else {
        return Ok(Seen::Damaged("the header makes no sense".to_owned()));
    };
    if own != decoded.key() {
        return Ok(Seen::Damaged("it holds what belongs under another name".to_owned()));
    }
    let expected = header.saturating_add(decoded.payload());
    if expected != length {
        return Ok(Seen::Damaged(format!("{length} bytes long, expected {expected}")));
    }
    Ok(Seen::Ours(decoded, header))
}

/// What is wrong with a file whose end went while it was looked at.
const SHORTER: &str = "it became shorter";

/// Reads; false if the file is shorter.
fn fill(files: &dyn Files, path: &Path, at: u64, bytes: &mut [u8]) -> io::Result<bool> {
    match files.read(path, at, bytes) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

fn has_magic(files: &dyn Files, path: &Path) -> io::Result<bool> {
    let mut bytes = [0; MAGIC.len()];
    Ok(fill(files, path, 0, &mut bytes)? && bytes == MAGIC)
}

/// Whether the file `name` may be removed: it has one of our names and begins, now, as our files do.
///
/// # Errors
/// Those of reading.
pub fn may_go(files: &dyn Files, path: &Path, name: &str) -> io::Result<bool> {
    if name.ends_with(TEMPORARY) {
        return Ok(is_leftover(files, path, name, files.len(path)?));
    }
    Ok(name.strip_suffix(ENDING).and_then(Key::from_hex).is_some() && has_magic(files, path)?)
}

fn short(length: u64, expected: &str) -> Seen {
    Seen::Damaged(format!("{length} bytes long, expected {expected}"))
}

/// Whether the file `name` is what a killed run left: our temporary name, and our magic at the beginning; or what a
/// loss of power leaves of that: nothing, a part of the magic, or zeros and nothing else.
pub fn is_leftover(files: &dyn Files, path: &Path, name: &str, length: u64) -> bool {
    if name.strip_suffix(TEMPORARY).and_then(Key::from_hex).is_none() {
        return false;
    }
    let mut bytes = vec![0; length.min(MAGIC.len() as u64) as usize];
    if files.read(path, 0, &mut bytes).is_err() {
        return false;
    }
    if MAGIC.starts_with(&bytes) {
        return true;
    }
    let (mut at, mut piece) = (0, vec![0; 1 << 20]);
    while at < length {
        piece.truncate((length - at).min(1 << 20) as usize);
        if files.read(path, at, &mut piece).is_err() || piece.iter().any(|byte| *byte != 0) {
            return false;
        }
        at += piece.len() as u64;
    }
    true
}
