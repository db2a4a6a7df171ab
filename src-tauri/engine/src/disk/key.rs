//! Names of files: what a piece of state was computed from, as a hash.

use std::fmt;

/// Most tokens of a block.
pub const MOST: usize = 256;

/// Which state belongs together: state computed under one namespace is never read under another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(pub [u8; 32]);

/// The key of a file, and of the tokens up to its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

impl Namespace {
    /// The namespace of everything that a state's numbers depend on: config, weights, tokenizer, KV policy, versions.
    /// Each part counts with its length, so that no two lists of parts run together.
    pub fn of(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Namespace(hasher.finalize().into())
    }

    /// The key of no tokens at all.
    pub fn root(&self) -> Key {
        Key(self.0)
    }

    /// The key of the block that holds `tokens` after those of `parent`.
    pub fn block(&self, parent: &Key, tokens: &[u32]) -> Key {
        self.key(b'b', parent, tokens)
    }

    /// The key of the snapshot taken after `tokens`, which follow the full blocks up to `parent`.
    pub fn snapshot(&self, parent: &Key, tokens: &[u32]) -> Key {
        self.key(b's', parent, tokens)
    }

    fn key(&self, kind: u8, parent: &Key, tokens: &[u32]) -> Key {
        let mut bytes = Vec::with_capacity(65 + 4 * tokens.len());
        bytes.push(kind);
        bytes.extend_from_slice(&parent.0);
        bytes.extend_from_slice(&self.0);
        bytes.extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
        Key(blake3::hash(&bytes).into())
    }
}

impl Key {
    /// A key for a file that is counted and never read.
    pub fn of_name(name: &str) -> Self {
        Key(blake3::hash(name.as_bytes()).into())
    }

    /// The key as 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().as_str().to_owned()
    }

    /// The key that [`Key::hex`] wrote, lower case only.
    pub fn from_hex(text: &str) -> Option<Self> {
        let key = Key(*blake3::Hash::from_hex(text).ok()?.as_bytes());
        (key.hex() == text).then_some(key)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex()[..12])
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(Namespace::of(&[b"ab", b"c"]), Namespace::of(&[b"a", b"bc"]));
        assert_ne!(Namespace::of(&[b"ab"]), Namespace::of(&[b"ab", b""]));
        assert_eq!(Namespace::of(&[b"ab", b"c"]), Namespace::of(&[b"ab", b"c"]));
    }

    #[test]
    fn a_key_depends_on_tokens_parent_namespace_and_kind() {
        let (a, b) = (Namespace::of(&[b"a"]), Namespace::of(&[b"b"]));
        let key = a.block(&a.root(), &[1, 2]);
        let others = [
            a.block(&a.root(), &[1, 3]),
            a.block(&key, &[1, 2]),
            b.block(&a.root(), &[1, 2]),
            a.snapshot(&a.root(), &[1, 2]),
        ];
        assert!(others.iter().all(|other| *other != key));
        assert_eq!(Key::from_hex(&key.hex()), Some(key));
        assert_eq!(Key::from_hex(&key.hex().to_uppercase()), None);
        assert_eq!(Key::from_hex("12"), None);
    }
}
