//! A search costs as much among a thousand files as among ten.

use super::support::*;
use crate::disk::Parts;
use crate::disk::format::Kind;
use crate::disk::index::{Entry, Index, Node};

/// An index of `count` conversations that share `shared` tokens, without files.
fn index(count: u32, shared: usize, length: usize) -> Index {
    let (mut index, ns) = (Index::default(), space("a"));
    for i in 0..count {
        let tokens = talk(i, shared, length);
        let mut parent = ns.root();
        let mut add = |kind, parent, start: usize, tokens: &[u32]| {
            let key = if kind == Kind::Block { ns.block(&parent, tokens) } else { ns.snapshot(&parent, tokens) };
            let (start, tokens) = (start as u32, tokens.into());
            let node = Node { kind, continues_blocks: true, parent, start, tokens, min_reusable: 0, layout: 0 };
            index.insert(key, Entry { name: key.hex(), bytes: 1, used: 1, pins: 0, node: Some(node) });
            key
        };
        for (number, block) in tokens.chunks(BLOCK).enumerate() {
            let key = add(Kind::Block, parent, number * BLOCK, block);
            if block.len() < BLOCK {
                add(Kind::Snapshot, parent, number * BLOCK, block);
            }
            parent = key;
        }
    }
    index
}

fn steps(index: &mut Index, prompt: &[u32], parts: Parts) -> (usize, usize) {
    let before = index.steps;
    let tokens = index.find(&space("a"), prompt, parts, BLOCK).map_or(0, |path| path.tokens);
    (index.steps - before, tokens)
}

#[test]
fn a_thousand_entries_cost_no_more_steps_than_ten() {
    for shared in [0, 100, 600] {
        let (mut few, mut many) = (index(10, shared, 900), index(1000, shared, 900));
        assert!(many.len() > 50 * few.len() && few.len() > 10);
        for parts in [STRIPS, BOTH] {
            for prompt in [talk(3, shared, 901), talk(3, shared, 700), talk(5000, shared, 901), talk(5000, 0, 50)] {
                let (a, b) = (steps(&mut few, &prompt, parts), steps(&mut many, &prompt, parts));
                assert_eq!(a.1, b.1, "the same is found");
                assert!(b.0 <= a.0, "{} steps among many, {} among few", b.0, a.0);
                assert!(b.0 <= 20, "{}", b.0);
            }
        }
    }
}
