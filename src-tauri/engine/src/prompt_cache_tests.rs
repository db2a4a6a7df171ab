use super::*;
use crate::cache::{PlainCache, RecurrentCache};
use hearth_mlx::Dtype;

fn plain(tokens: usize) -> LayerCache {
    let t = Tensor::zeros(&[1, 1, tokens as i32, 2], Dtype::F32).unwrap();
    LayerCache::Plain(PlainCache::of(t.share(), t, tokens))
}

fn recurrent(tokens: usize) -> LayerCache {
    let state = Tensor::zeros(&[4], Dtype::F32).unwrap();
    LayerCache::Recurrent(RecurrentCache::of(Some(state), None, tokens))
}

const A: Namespace = Namespace([1; 32]);
const B: Namespace = Namespace([2; 32]);

/// An entry of 16 bytes a token.
fn entry(namespace: Namespace, tokens: &[u32]) -> Entry {
    Entry { namespace, tokens: tokens.to_vec(), caches: vec![plain(tokens.len())], attachments: Vec::new() }
}

/// Stores it; what had to go for it.
fn put(cache: &mut PromptCache, entry: Entry) -> Vec<Entry> {
    match cache.put(entry) {
        Put::Kept(evicted) => evicted.into_iter().map(|(_, entry)| entry).collect(),
        other => panic!("{other:?}"),
    }
}

fn found(cache: &PromptCache, prompt: &[u32]) -> usize {
    cache.longest(&A, prompt).map_or(0, |hit| hit.tokens)
}

#[test]
fn the_longest_prefix_wins_and_the_last_token_is_computed() {
    let mut cache = PromptCache::new(1 << 20);
    put(&mut cache, entry(A, &[1, 2, 3, 4]));
    put(&mut cache, entry(A, &[1, 2, 9, 9, 9]));
    assert_eq!(found(&cache, &[1, 2, 3, 7]), 3);
    assert_eq!(found(&cache, &[1, 2, 3, 4, 5]), 4);
    assert_eq!(found(&cache, &[1, 2, 3, 4]), 3, "the same prompt again: one token is left to compute");
    assert_eq!(found(&cache, &[1, 2, 9, 9, 9, 9]), 5);
    assert_eq!(found(&cache, &[5]), 0);
    assert_eq!(found(&cache, &[1]), 0);
    assert_eq!(cache.longest(&B, &[1, 2, 3, 4]), None, "another namespace never hits");
}

#[test]
fn state_that_cannot_be_trimmed_is_used_as_a_whole() {
    let mut cache = PromptCache::new(1 << 20);
    let mut hybrid = entry(A, &[1, 2, 3, 4]);
    hybrid.caches.push(recurrent(4));
    put(&mut cache, hybrid);
    assert_eq!(found(&cache, &[1, 2, 3, 9]), 0);
    assert_eq!(found(&cache, &[1, 2, 3, 4]), 0, "its own tokens again would need a state one token earlier");
    assert_eq!(found(&cache, &[1, 2, 3, 4, 5]), 4);
    let mut pictured = entry(A, &[7, 8, 9]);
    pictured.attachments.push(Attachment { name: "image", tensors: vec![Tensor::scalar(1.0)] });
    put(&mut cache, pictured);
    assert_eq!(found(&cache, &[7, 8, 1]), 0, "an attachment belongs to the whole");
    let hit = cache.longest(&A, &[7, 8, 9, 1]).unwrap();
    let lent = cache.lend(hit).unwrap();
    assert_eq!((lent.attachments.len(), lent.attachments[0].name, cache.stats().entries), (1, "image", 2));
}

#[test]
fn a_longer_entry_takes_the_place_of_its_prefixes_where_it_can_stand_in_for_them() {
    let mut cache = PromptCache::new(1 << 20);
    put(&mut cache, entry(A, &[1, 2]));
    put(&mut cache, entry(A, &[1, 2, 3]));
    assert_eq!((cache.stats().entries, cache.stats().superseded), (1, 1));
    let mut hybrid = entry(A, &[1, 2, 3, 4]);
    hybrid.caches.push(recurrent(4));
    put(&mut cache, hybrid);
    assert_eq!(cache.stats().entries, 2, "it cannot be trimmed: the shorter one stays");
    put(&mut cache, entry(A, &[1, 2, 3]));
    assert_eq!(cache.stats().entries, 2, "the same tokens are replaced");
    put(&mut cache, entry(B, &[1, 2, 3, 4, 5]));
    assert_eq!(cache.stats().entries, 3);
}

#[test]
fn least_recently_used_entries_go_first_and_are_handed_back() {
    // Room for three entries of four tokens.
    let mut cache = PromptCache::new(3 * 64);
    for first in [10, 20, 30] {
        assert!(put(&mut cache, entry(A, &[first, 1, 2, 3])).is_empty());
    }
    let hit = cache.longest(&A, &[10, 1, 2, 3, 4]).unwrap();
    drop(cache.lend(hit));
    let gone = put(&mut cache, entry(A, &[40, 1, 2, 3]));
    assert_eq!(gone.iter().map(|e| e.tokens[0]).collect::<Vec<_>>(), [20]);
    assert_eq!((cache.stats().bytes, cache.stats().evicted), (3 * 64, 1));
    let large: Vec<u32> = (0..100).collect();
    assert!(matches!(cache.put(entry(A, &large)), Put::TooLarge(back) if back.tokens == large));
    assert_eq!(cache.stats().entries, 3);
    assert!(matches!(PromptCache::new(0).put(entry(A, &[1])), Put::TooLarge(_)), "a cache that is off takes nothing");
}

#[test]
fn an_entry_whose_caches_are_elsewhere_is_refused() {
    let mut cache = PromptCache::new(1 << 20);
    let mut wrong = entry(A, &[1, 2, 3]);
    wrong.tokens.push(4);
    assert!(matches!(cache.put(wrong), Put::Invalid));
    assert!(matches!(cache.put(Entry { tokens: Vec::new(), ..entry(A, &[1]) }), Put::Invalid));
    put(&mut cache, entry(A, &[1, 2, 3]));
    let hit = cache.longest(&A, &[1, 2, 3]).unwrap();
    let caches = cache.lend(hit).unwrap().caches;
    let lent = Entry { caches, ..entry(A, &[1, 2]) };
    assert!(matches!(cache.put(lent), Put::Invalid), "what is lent is not the row's to give");
}

#[test]
fn what_is_lent_counts_until_it_is_copied() {
    let mut cache = PromptCache::new(100);
    put(&mut cache, entry(A, &[1, 2, 3, 4]));
    let hit = cache.longest(&A, &[1, 2, 3, 9]).unwrap();
    let mut lent = cache.lend(hit).unwrap().caches;
    assert_eq!((lent[0].offset(), cache.stats().lent), (3, 1));
    // Evicted while the row has not written yet: the arrays are still there, and counted.
    put(&mut cache, entry(A, &[5, 6, 7, 8]));
    assert_eq!((cache.stats().entries, cache.bytes()), (1, 128));
    let new = Tensor::zeros(&[1, 1, 1, 2], Dtype::F32).unwrap();
    lent[0].update(new.share(), new).unwrap();
    assert_eq!(cache.bytes(), 64);
}

#[test]
fn without_room_for_a_copy_the_entry_moves() {
    let mut cache = PromptCache::new(1 << 20);
    put(&mut cache, entry(A, &[1, 2, 3, 4]));
    let hit = cache.longest(&A, &[1, 2, 3, 9]).unwrap();
    let moved = cache.hand_over(hit).unwrap().caches;
    assert_eq!((moved[0].offset(), cache.stats().entries, cache.stats().moved, cache.bytes()), (3, 0, 1, 0));
    assert_eq!((cache.stats().hits, cache.stats().reused_tokens), (1, 3));
    assert!(cache.lend(hit).is_none(), "it is gone");
}

#[test]
fn idle_entries_are_told_oldest_first() {
    let mut cache = PromptCache::new(1 << 20);
    let ids: Vec<EntryId> = [1, 2, 3]
        .map(|n| {
            put(&mut cache, entry(A, &[n, 7]));
            cache.longest(&A, &[n, 7, 7]).unwrap().id
        })
        .into();
    let now = Instant::now();
    let hit = cache.longest(&A, &[1, 7, 7]).unwrap();
    cache.lend(hit);
    assert_eq!(cache.unused_since(now), ids[1..]);
    assert_eq!(cache.clear(), (3, 96));
    assert_eq!((cache.stats().entries, cache.stats().bytes), (0, 0));
}
