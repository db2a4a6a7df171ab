//! A radix tree over token ids: which entry holds the longest usable prefix of a prompt. Integers only; the cost of
//! a look-up depends on the prompt's length and not on how many entries there are.

use std::collections::HashMap;

/// An entry's number.
pub type EntryId = u64;

/// What the tree knows of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Its number.
    pub id: EntryId,
    /// Whether a prefix of it can be used, and from how many tokens on; `None`: only as a whole.
    pub reusable_from: Option<usize>,
}

/// A usable prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Whose.
    pub id: EntryId,
    /// How many tokens of it.
    pub tokens: usize,
}

#[derive(Debug, Default)]
struct Node {
    /// The tokens between the parent and this node; empty for the root only.
    edge: Vec<u32>,
    /// Tokens from the root to here.
    depth: usize,
    parent: usize,
    children: HashMap<u32, usize>,
    leaf: Option<Leaf>,
    /// The least `reusable_from` of this node and everything below it.
    reusable_from: Option<usize>,
}

const ROOT: usize = 0;

/// The tree.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    free: Vec<usize>,
    /// Nodes visited by look-ups since the start.
    #[cfg(test)]
    pub visits: std::cell::Cell<usize>,
}

impl Default for Tree {
    fn default() -> Self {
        Tree {
            nodes: vec![Node::default()],
            free: Vec::new(),
            #[cfg(test)]
            visits: std::cell::Cell::new(0),
        }
    }
}

/// Where a walk along some tokens ends.
struct Walk {
    /// The last node that lies on the tokens wholly.
    node: usize,
    /// The child that they enter, and how many tokens of its edge they share.
    into: Option<(usize, usize)>,
}

impl Tree {
    fn walk(&self, tokens: &[u32]) -> Walk {
        let mut node = ROOT;
        loop {
            self.visit();
            let rest = &tokens[self.nodes[node].depth..];
            let Some(&child) = rest.first().and_then(|first| self.nodes[node].children.get(first)) else {
                return Walk { node, into: None };
            };
            let edge = &self.nodes[child].edge;
            let shared = edge.iter().zip(rest).take_while(|(a, b)| a == b).count();
            if shared < edge.len() {
                return Walk { node, into: Some((child, shared)) };
            }
            node = child;
        }
    }

    fn visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// The longest usable prefix among these tokens (a prompt without its last token, which is always computed).
    pub fn longest(&self, tokens: &[u32]) -> Option<Match> {
        let walk = self.walk(tokens);
        if let Some((child, shared)) = walk.into {
            let depth = self.nodes[walk.node].depth + shared;
            if let Some(id) = self.trimmable_below(child, depth) {
                return Some(Match { id, tokens: depth });
            }
        }
        let mut node = walk.node;
        while node != ROOT {
            self.visit();
            let at = &self.nodes[node];
            if let Some(leaf) = at.leaf {
                return Some(Match { id: leaf.id, tokens: at.depth });
            }
            if let Some(id) = self.trimmable_below(node, at.depth) {
                return Some(Match { id, tokens: at.depth });
            }
            node = at.parent;
        }
        None
    }

    /// An entry at or below this node of which `tokens` tokens can be used.
    fn trimmable_below(&self, mut node: usize, tokens: usize) -> Option<EntryId> {
        let usable = |from: Option<usize>| from.is_some_and(|from| from <= tokens);
        if tokens == 0 || !usable(self.nodes[node].reusable_from) {
            return None;
        }
        loop {
            self.visit();
            if let Some(leaf) = self.nodes[node].leaf.filter(|leaf| usable(leaf.reusable_from)) {
                return Some(leaf.id);
            }
            node = *self.nodes[node].children.values().find(|&&c| usable(self.nodes[c].reusable_from))?;
        }
    }

    /// The entries that are true prefixes of these tokens and at least `from` tokens long.
    pub fn ancestors(&self, tokens: &[u32], from: usize) -> Vec<EntryId> {
        let mut node = self.walk(tokens).node;
        let mut found = Vec::new();
        while node != ROOT {
            let at = &self.nodes[node];
            if at.depth < tokens.len() && at.depth >= from {
                found.extend(at.leaf.map(|leaf| leaf.id));
            }
            node = at.parent;
        }
        found
    }

    /// Adds an entry of these tokens (at least one); one of the same tokens is replaced and returned.
    pub fn insert(&mut self, tokens: &[u32], leaf: Leaf) -> Option<EntryId> {
        let walk = self.walk(tokens);
        let mut node = walk.node;
        if let Some((child, shared)) = walk.into {
            node = self.split(child, shared);
        }
        let depth = self.nodes[node].depth;
        if depth < tokens.len() {
            let edge = tokens[depth..].to_vec();
            let first = edge[0];
            let new = self.add(Node { edge, depth: tokens.len(), parent: node, ..Node::default() });
            self.nodes[node].children.insert(first, new);
            node = new;
        }
        let old = self.nodes[node].leaf.replace(leaf);
        self.refresh_up(node);
        old.map(|leaf| leaf.id)
    }

    /// Removes the entry of exactly these tokens.
    pub fn remove(&mut self, tokens: &[u32]) -> Option<EntryId> {
        let walk = self.walk(tokens);
        let mut node = walk.node;
        if walk.into.is_some() || self.nodes[node].depth != tokens.len() {
            return None;
        }
        let removed = self.nodes[node].leaf.take()?;
        // A node without an entry is there for its branches: with none it goes, with one it joins it.
        while node != ROOT && self.nodes[node].leaf.is_none() && self.nodes[node].children.is_empty() {
            let (parent, first) = (self.nodes[node].parent, self.nodes[node].edge[0]);
            self.nodes[parent].children.remove(&first);
            self.nodes[node] = Node::default();
            self.free.push(node);
            node = parent;
        }
        if node != ROOT && self.nodes[node].leaf.is_none() && self.nodes[node].children.len() == 1 {
            node = self.join(node);
        }
        self.refresh_up(node);
        Some(removed.id)
    }

    /// Whether no entry is left.
    pub fn is_empty(&self) -> bool {
        self.nodes[ROOT].children.is_empty()
    }

    fn add(&mut self, node: Node) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        }
    }

    /// Puts a node into an edge after its first `shared` tokens.
    fn split(&mut self, child: usize, shared: usize) -> usize {
        let parent = self.nodes[child].parent;
        let lower = self.nodes[child].edge.split_off(shared);
        let upper = std::mem::replace(&mut self.nodes[child].edge, lower);
        let (first, below) = (upper[0], self.nodes[child].edge[0]);
        let depth = self.nodes[parent].depth + shared;
        let middle = self.add(Node { edge: upper, depth, parent, ..Node::default() });
        self.nodes[middle].children.insert(below, child);
        self.nodes[child].parent = middle;
        self.nodes[parent].children.insert(first, middle);
        middle
    }

    /// Joins a node with its only child, which is returned.
    fn join(&mut self, node: usize) -> usize {
        let Node { mut edge, parent, children, .. } = std::mem::take(&mut self.nodes[node]);
        self.free.push(node);
        let first = edge[0];
        let mut last = parent;
        for child in children.into_values() {
            edge.extend_from_slice(&self.nodes[child].edge);
            self.nodes[child].edge = std::mem::take(&mut edge);
            self.nodes[child].parent = parent;
            self.nodes[parent].children.insert(first, child);
            last = child;
        }
        last
    }

    fn refresh_up(&mut self, mut node: usize) {
        loop {
            let at = &self.nodes[node];
            let own = at.leaf.and_then(|leaf| leaf.reusable_from);
            let below = at.children.values().filter_map(|&c| self.nodes[c].reusable_from);
            let least = own.into_iter().chain(below).min();
            self.nodes[node].reusable_from = least;
            if node == ROOT {
                return;
            }
            node = self.nodes[node].parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn common(a: &[u32], b: &[u32]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    /// The same by looking at every entry.
    fn longest(all: &BTreeMap<Vec<u32>, Leaf>, tokens: &[u32]) -> usize {
        let usable = |(entry, leaf): (&Vec<u32>, &Leaf)| {
            let p = common(entry, tokens);
            let whole = p == entry.len();
            if whole || leaf.reusable_from.is_some_and(|from| from <= p) { p } else { 0 }
        };
        all.iter().map(usable).max().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn finds_what_a_search_of_all_entries_finds(
            steps in proptest::collection::vec(
                (proptest::bool::weighted(0.7), proptest::collection::vec(0u32..3, 1..12), proptest::option::of(0usize..8)), 1..60),
            prompts in proptest::collection::vec(proptest::collection::vec(0u32..3, 0..14), 1..20),
        ) {
            let (mut tree, mut all) = (Tree::default(), BTreeMap::<Vec<u32>, Leaf>::new());
            for (id, (add, tokens, from)) in steps.into_iter().enumerate() {
                let reusable_from = from.map(|from| from.min(tokens.len()));
                if add {
                    let leaf = Leaf { id: id as u64, reusable_from };
                    prop_assert_eq!(tree.insert(&tokens, leaf), all.insert(tokens, leaf).map(|l| l.id));
                } else {
                    prop_assert_eq!(tree.remove(&tokens), all.remove(&tokens).map(|l| l.id));
                }
                prop_assert_eq!(tree.is_empty(), all.is_empty());
            }
            for prompt in prompts {
                let found = tree.longest(&prompt);
                prop_assert_eq!(found.map_or(0, |m| m.tokens), longest(&all, &prompt));
                if let Some(m) = found {
                    let (entry, leaf) = all.iter().find(|(_, leaf)| leaf.id == m.id).unwrap();
                    prop_assert!(common(entry, &prompt) >= m.tokens);
                    prop_assert!(entry.len() == m.tokens || leaf.reusable_from.is_some_and(|from| from <= m.tokens));
                }
                let mut ancestors = tree.ancestors(&prompt, 2);
                ancestors.sort_unstable();
                let is_ancestor = |(e, _): &(&Vec<u32>, &Leaf)| e.len() >= 2 && e.len() < prompt.len() && prompt.starts_with(e);
                let mut want: Vec<u64> = all.iter().filter(is_ancestor).map(|(_, l)| l.id).collect();
                want.sort_unstable();
                prop_assert_eq!(ancestors, want);
            }
            for tokens in all.keys().cloned().collect::<Vec<_>>() {
                tree.remove(&tokens);
            }
            prop_assert!(tree.is_empty());
            prop_assert_eq!(tree.nodes.len() - tree.free.len(), 1, "nodes are given back");
        }
    }

    #[test]
    fn a_look_up_among_a_thousand_entries_visits_as_many_nodes_as_among_ten() {
        let visits = |entries: u32| {
            let mut tree = Tree::default();
            for n in 0..entries {
                let tokens: Vec<u32> = (0..100).chain([1000 + n, 7, 7, n]).collect();
                tree.insert(&tokens, Leaf { id: u64::from(n), reusable_from: Some(0) });
            }
            tree.visits.set(0);
            let prompt: Vec<u32> = (0..100).chain([1005, 7, 8]).collect();
            assert_eq!(tree.longest(&prompt).unwrap().tokens, 102);
            tree.visits.get()
        };
        assert_eq!(visits(10), visits(1000));
    }
}
