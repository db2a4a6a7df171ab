//! The token sequences that follow one parent, as a radix tree: a search costs as many steps as its own tokens
//! branch, however many sequences there are.

use super::key::Key;
use std::collections::HashMap;

/// A set of sequences, each with a key.
#[derive(Debug, Default)]
pub struct Trie {
    /// The sequence that ends here.
    key: Option<Key>,
    next: HashMap<u32, Branch>,
}

#[derive(Debug)]
struct Branch {
    /// Tokens on the way to the node, at least one.
    edge: Box<[u32]>,
    node: Trie,
    /// Some key at or below the node.
    any: Key,
}

/// How many tokens two sequences have in common at the front.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl Trie {
    /// Adds a sequence, or gives it another key.
    pub fn insert(&mut self, tokens: &[u32], key: Key) {
        let Some(first) = tokens.first() else {
            self.key = Some(key);
            return;
        };
        let Some(branch) = self.next.get_mut(first) else {
            let node = Trie { key: Some(key), next: HashMap::new() };
            self.next.insert(*first, Branch { edge: tokens.into(), node, any: key });
            return;
        };
        let shared = common(&branch.edge, tokens);
        if shared < branch.edge.len() {
            let lower = std::mem::take(&mut branch.node);
            let lower = Branch { edge: branch.edge[shared..].into(), node: lower, any: branch.any };
            branch.node.next.insert(branch.edge[shared], lower);
            branch.edge = branch.edge[..shared].into();
        }
        branch.any = key;
        branch.node.insert(&tokens[shared..], key);
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, tokens: &[u32]) {
        let Some(first) = tokens.first() else {
            self.key = None;
            return;
        };
        let Some(branch) = self.next.get_mut(first) else { return };
        if !tokens.starts_with(&branch.edge) {
            return;
        }
        branch.node.remove(&tokens[branch.edge.len()..]);
        let Some(any) = branch.node.any() else {
            self.next.remove(first);
            return;
        };
        branch.any = any;
        if branch.node.key.is_none() && branch.node.next.len() == 1 {
            let only = std::mem::take(&mut branch.node.next).into_values().next();
            if let Some(lower) = only {
                branch.edge = [&branch.edge[..], &lower.edge[..]].concat().into();
                branch.node = lower.node;
            }
        }
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.any().is_none()
    }

    fn any(&self) -> Option<Key> {
        self.key.or_else(|| self.next.values().next().map(|branch| branch.any))
    }

    /// Every key.
    pub fn keys(&self) -> Vec<Key> {
        let below = self.next.values().flat_map(|branch| branch.node.keys());
        self.key.into_iter().chain(below).collect()
    }

    /// A sequence that has the most tokens in common with `tokens` at the front, and how many. Adds to `steps`
    /// the nodes looked at.
    pub fn longest(&self, tokens: &[u32], steps: &mut usize) -> Option<(usize, Key)> {
        let (mut node, mut at, mut best) = (self, 0, self.any()?);
        loop {
            *steps += 1;
            best = node.key.unwrap_or(best);
            let Some(branch) = tokens.get(at).and_then(|t| node.next.get(t)) else { return Some((at, best)) };
            let shared = common(&branch.edge, &tokens[at..]);
            at += shared;
            best = branch.any;
            if shared < branch.edge.len() {
                return Some((at, best));
            }
            node = &branch.node;
        }
    }

    /// The sequences that `tokens` begins with, shortest first, with their lengths.
    pub fn prefixes(&self, tokens: &[u32], steps: &mut usize) -> Vec<(usize, Key)> {
        let (mut node, mut at, mut found) = (self, 0, Vec::new());
        loop {
            *steps += 1;
            found.extend(node.key.map(|key| (at, key)));
            let Some(branch) = tokens.get(at).and_then(|t| node.next.get(t)) else { return found };
            if !tokens[at..].starts_with(&branch.edge) {
                return found;
            }
            at += branch.edge.len();
            node = &branch.node;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a plain list, with few different tokens so that sequences share much.
        #[test]
        fn a_trie_answers_as_a_list_does(
            steps in proptest::collection::vec((any::<bool>(), proptest::collection::vec(0u32..3, 0..7)), 1..60),
            queries in proptest::collection::vec(proptest::collection::vec(0u32..3, 0..8), 1..20),
        ) {
            let (mut trie, mut list) = (Trie::default(), BTreeMap::new());
            for (i, (add, tokens)) in steps.iter().enumerate() {
                if *add {
                    let key = Key::of_name(&i.to_string());
                    trie.insert(tokens, key);
                    list.insert(tokens.clone(), key);
                } else {
                    trie.remove(tokens);
                    list.remove(tokens);
                }
            }
            prop_assert_eq!(trie.is_empty(), list.is_empty());
            let mut keys = trie.keys();
            keys.sort();
            let mut all: Vec<Key> = list.values().copied().collect();
            all.sort();
            prop_assert_eq!(keys, all);
            for query in queries {
                let best = list.keys().map(|tokens| common(tokens, &query)).max();
                let found = trie.longest(&query, &mut 0);
                prop_assert_eq!(found.map(|f| f.0), best);
                if let Some((n, key)) = found {
                    prop_assert!(list.iter().any(|(tokens, k)| *k == key && common(tokens, &query) == n));
                }
                let mut prefixes: Vec<(usize, Key)> =
                    list.iter().filter(|(t, _)| query.starts_with(t)).map(|(t, k)| (t.len(), *k)).collect();
                prefixes.sort_by_key(|p| p.0);
                prop_assert_eq!(trie.prefixes(&query, &mut 0), prefixes);
            }
        }
    }
}
