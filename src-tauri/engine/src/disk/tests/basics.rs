//! What goes in comes out: blocks, tails, snapshots, sharing, plans, flush and clear.

use super::support::*;
use crate::disk::{DiskOptions, Progress, Strip};
use hearth_core::stats::SsdState;
use proptest::prelude::*;

#[test]
fn blocks_and_tails_come_back_for_any_prefix() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    for (i, length) in [1, 100, 255, 256, 257, 600, 1024].into_iter().enumerate() {
        let tokens = talk(i as u32, 0, length);
        keep(&disk, &ns, &tokens, STRIPS);
        let longer = [&tokens[..], &[7, 8]].concat();
        assert_eq!(read(&disk, &ns, &longer, STRIPS), length);
        assert_eq!(read(&disk, &ns, &tokens, STRIPS), length - 1, "one token is left to compute");
        for prefix in [1, 2, 99, 255, 256, 257, 300, 512, 513].into_iter().filter(|p| *p < length) {
            let other = [&tokens[..prefix], &[5, 6]].concat();
            assert_eq!(read(&disk, &ns, &other, STRIPS), prefix);
        }
    }
    let stats = disk.stats();
    assert_eq!((stats.state, stats.corrupt, stats.failed_restores, stats.pending), (SsdState::Ready, 0, 0, 0));
    assert_eq!(stats.bytes, folder_bytes(place.dir.path()));
    assert_eq!(stats.files, place.names().len());
    assert!(stats.hits > 7 && stats.read > 0 && stats.written == stats.bytes);
}

#[test]
fn a_restart_finds_everything() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let tokens = talk(1, 0, 700);
    keep(&place.open(), &ns, &tokens, BOTH);
    let disk = place.open();
    let longer = [&tokens[..], &[7]].concat();
    assert_eq!(read(&disk, &ns, &longer, BOTH), 700);
    assert_eq!(read(&disk, &space("b"), &longer, BOTH), 0, "another model's state");
    assert!(disk.find(&ns, &longer, BOTH, 699).is_some());
    assert!(disk.find(&ns, &longer, BOTH, 700).is_none(), "what is in memory is as long");
}

#[test]
fn snapshots_are_used_only_where_they_were_taken() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    let tokens = talk(1, 0, 1000);
    for parts in [SNAPSHOT, BOTH] {
        let ns = if parts == BOTH { ns } else { space("alone") };
        for length in [50, 256, 300, 512, 900] {
            keep(&disk, &ns, &tokens[..length], parts);
        }
        for (length, expected) in [(50, 0), (51, 50), (256, 50), (257, 256), (511, 300), (901, 900), (1000, 900)] {
            assert_eq!(read(&disk, &ns, &tokens[..length], parts), expected, "{length}");
        }
        let fork = [&tokens[..299], &[1, 2, 3]].concat();
        assert_eq!(read(&disk, &ns, &fork, parts), 256);
    }
}

#[test]
fn a_snapshot_without_its_blocks_is_not_used() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let tokens = talk(1, 0, 300);
    {
        let disk = place.open();
        let mut plan = disk.plan(&ns, &tokens, 0, BOTH);
        assert_eq!(plan.pieces.len(), 3);
        // The tail is given up, so the snapshot has nothing to stand on.
        plan.pieces.remove(1);
        fill(&ns, &tokens, &mut plan);
        assert_eq!(disk.flush().recv().unwrap().failed.len(), 1);
        assert!(matches!(plan.ticket.progress(), Progress::Failed(_)));
        assert_eq!(read(&disk, &ns, &[&tokens[..], &[1]].concat(), BOTH), 0);
        keep(&disk, &ns, &tokens, BOTH);
    }
    let first = ns.block(&ns.root(), &tokens[..BLOCK]);
    std::fs::remove_file(place.dir.path().join(first.hex() + ".hearthkv")).unwrap();
    let disk = place.open();
    assert_eq!(disk.stats().files, 2, "they count");
    assert_eq!(read(&disk, &ns, &[&tokens[..], &[1]].concat(), BOTH), 0);
    assert_eq!(disk.plan(&ns, &tokens, 0, BOTH).pieces.len(), 1);
}

#[test]
fn state_is_not_continued_before_its_conversion() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    let tokens = talk(1, 0, 600);
    let mut plan = disk.plan(&ns, &tokens, 400, STRIPS);
    fill(&ns, &tokens, &mut plan);
    disk.flush().recv().unwrap();
    assert_eq!(read(&disk, &ns, &tokens[..400], STRIPS), 0, "399 < 400");
    assert_eq!(read(&disk, &ns, &tokens[..401], STRIPS), 400);
    assert_eq!(read(&disk, &ns, &[&tokens[..], &[1]].concat(), STRIPS), 600);
    // The same tokens with an earlier conversion take the place of the block that they share.
    let short = [&tokens[..300], &[9, 9]].concat();
    let mut plan = disk.plan(&ns, &short, 100, STRIPS);
    assert_eq!(plan.pieces.len(), 2);
    fill(&ns, &short, &mut plan);
    assert_eq!(disk.flush().recv().unwrap().failed.len(), 0);
    assert_eq!(read(&disk, &ns, &tokens[..200], STRIPS), 199);
    assert_eq!(read(&disk, &ns, &[&tokens[..], &[1]].concat(), STRIPS), 600);
    assert_eq!(disk.stats().bytes, folder_bytes(place.dir.path()));
}

#[test]
fn ten_conversations_store_their_common_prompt_once() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    for i in 0..10 {
        keep(&disk, &ns, &talk(i, 1024, 1024 + 300), STRIPS);
    }
    let (shared, own) = (4 * block_bytes(BLOCK), 10 * block_bytes(300));
    let bytes = disk.stats().bytes;
    assert!(bytes * 10 <= (shared + own) * 13, "{bytes} bytes for {shared} + {own}");
    for i in 0..10 {
        assert_eq!(read(&disk, &ns, &[talk(i, 1024, 1324), vec![1]].concat(), STRIPS), 1324);
    }
}

/// A system prompt seldom ends where a block does.
#[test]
fn a_common_prompt_that_ends_within_a_block_is_nearly_stored_once() {
    let (mut place, ns) = (Place::new(1 << 30), space("a"));
    place.options.block = DiskOptions::new(place.dir.path(), 0).block;
    let disk = place.open();
    let mut written = 0;
    for i in 0..10 {
        let plan = disk.plan(&ns, &talk(i, 1011, 1062), 0, STRIPS);
        written += plan.pieces.iter().map(|piece| piece.range().len()).sum::<usize>();
        drop(plan);
        keep(&disk, &ns, &talk(i, 1011, 1062), STRIPS);
    }
    assert!(written * 10 <= (1011 + 10 * 51) * 13, "{written} tokens");
    for i in 0..10 {
        assert_eq!(read(&disk, &ns, &[talk(i, 1011, 1062), vec![1]].concat(), STRIPS), 1062);
    }
}

#[test]
fn a_growing_conversation_leaves_no_tails_behind() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    for length in (50..1100).step_by(50) {
        keep(&disk, &ns, &talk(1, 0, length), STRIPS);
    }
    assert_eq!(disk.stats().files, 5, "four blocks and a tail");
    assert_eq!(disk.stats().evicted, 0);
    assert_eq!(disk.plan(&ns, &talk(1, 0, 1030), 0, STRIPS).pieces.len(), 0, "a shorter one is covered");
}

#[test]
fn what_is_in_flight_is_written_once() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    let (a, b) = (talk(1, 256, 400), talk(2, 256, 500));
    let mut first = disk.plan(&ns, &a, 0, STRIPS);
    let mut second = disk.plan(&ns, &b, 0, STRIPS);
    assert_eq!((first.pieces.len(), second.pieces.len()), (2, 1));
    // The child is handed over before its parent: it waits.
    fill(&ns, &b, &mut second);
    assert!(disk.backlog() > 0);
    assert_eq!(second.ticket.progress(), Progress::Pending);
    fill(&ns, &a, &mut first);
    let flushed = disk.flush().recv().unwrap();
    assert_eq!(flushed.failed, Vec::<String>::new());
    assert_eq!((first.ticket.progress(), second.ticket.progress()), (Progress::Durable, Progress::Durable));
    assert_eq!((disk.stats().files, disk.backlog(), disk.stats().written), (3, 0, disk.stats().bytes));
    assert_eq!(disk.plan(&ns, &a, 0, STRIPS).ticket.progress(), Progress::Durable);
}

#[test]
fn what_is_given_up_frees_its_place() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    let (a, b) = (talk(1, 256, 300), talk(2, 256, 300));
    let first = disk.plan(&ns, &a, 0, STRIPS);
    let mut second = disk.plan(&ns, &b, 0, STRIPS);
    fill(&ns, &b, &mut second);
    drop(first.pieces);
    assert!(matches!(first.ticket.progress(), Progress::Failed(_)));
    let failed = disk.flush().recv().unwrap().failed;
    assert_eq!(failed.len(), 1, "its block before it never came: {failed:?}");
    assert!(matches!(second.ticket.progress(), Progress::Failed(_)));
    assert_eq!((disk.backlog(), disk.stats().files), (0, 0));
    keep(&disk, &ns, &a, STRIPS);
    assert_eq!(read(&disk, &ns, &a, STRIPS), 299);
}

#[test]
fn what_does_not_fit_together_is_not_written() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let disk = place.open();
    let mut plan = disk.plan(&ns, &[1, 2, 3], 0, BOTH);
    let mut snapshot = plan.pieces.pop().unwrap();
    let mut block = plan.pieces.pop().unwrap();
    block.push_strips(vec![Strip { heads: 2, width: 4, dtype: 0, bytes: vec![0; 23] }]);
    snapshot.push_strips(vec![Strip { heads: 2, width: 4, dtype: 0, bytes: vec![0; 24] }]);
    block.put();
    snapshot.put();
    let failed = disk.flush().recv().unwrap().failed.join("; ");
    assert!(failed.contains("23 bytes, expected 24") && failed.contains("another kind"), "{failed}");
    disk.plan(&ns, &[1, 2, 3], 0, STRIPS).pieces.remove(0).put();
    assert!(disk.flush().recv().unwrap().failed[0].contains("without layers"));
    assert_eq!((disk.backlog(), disk.stats().files), (0, 0));
}

#[test]
fn clear_removes_every_model_and_what_is_on_its_way() {
    let place = Place::new(1 << 30);
    let disk = place.open();
    for name in ["a", "b"] {
        keep(&disk, &space(name), &talk(1, 0, 600), BOTH);
    }
    let (bytes, ns) = (disk.stats().bytes, space("c"));
    let mut late = disk.plan(&ns, &talk(1, 0, 10), 0, STRIPS);
    let cleared = disk.clear();
    fill(&ns, &talk(1, 0, 10), &mut late);
    let cleared = cleared.recv().unwrap();
    assert_eq!((cleared.files, cleared.bytes, cleared.left), (8, bytes, 0));
    assert_eq!(disk.flush().recv().unwrap().failed.len(), 1, "planned before");
    assert_eq!((place.names().len(), disk.stats().bytes, disk.stats().files), (0, 0, 0));
    keep(&disk, &ns, &talk(1, 0, 10), STRIPS);
    assert_eq!(place.names().len(), 1);
}

#[test]
fn a_flush_does_not_wait_for_the_pace() {
    let mut place = Place::new(1 << 30);
    // At this rate the files would take weeks.
    place.options.rate = 1;
    let (disk, ns) = (place.open(), space("a"));
    disk.set_busy(true);
    keep(&disk, &ns, &talk(1, 0, 1000), BOTH);
    assert_eq!(read(&disk, &ns, &talk(1, 0, 1001), BOTH), 1000);
    // Nor does the end.
    store(&disk, &ns, &talk(2, 0, 1000), BOTH);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any set of conversations that fork from each other, against the definition of the longest prefix.
    #[test]
    fn the_longest_prefix_is_found(
        talks in proptest::collection::vec((0usize..4, 0usize..700, 1usize..400), 1..8),
        queries in proptest::collection::vec((0usize..8, 0usize..1100, 0usize..3), 1..12),
        snapshots in any::<bool>(),
    ) {
        let (place, ns) = (Place::new(1 << 30), space("a"));
        let disk = place.open();
        let parts = if snapshots { BOTH } else { STRIPS };
        let mut stored: Vec<Vec<u32>> = Vec::new();
        for (i, (from, keep, own)) in talks.iter().enumerate() {
            let mut tokens = stored.get(*from).cloned().unwrap_or_default();
            tokens.truncate(*keep);
            tokens.extend((0..*own as u32).map(|n| n * 8 + i as u32));
            store(&disk, &ns, &tokens, parts);
            stored.push(tokens);
        }
        prop_assert!(disk.flush().recv().unwrap().failed.is_empty());
        for (from, keep, more) in queries {
            let mut prompt = stored.get(from).cloned().unwrap_or_default();
            prompt.truncate(keep);
            prompt.extend((0..more as u32).map(|n| 999_000 + n));
            let limit = prompt.len().saturating_sub(1);
            let common = |tokens: &Vec<u32>| tokens.iter().zip(&prompt[..limit]).take_while(|(a, b)| a == b).count();
            let whole = |tokens: &&Vec<u32>| common(tokens) == tokens.len();
            let expected = if snapshots {
                stored.iter().filter(whole).map(Vec::len).max()
            } else {
                stored.iter().map(common).max()
            };
            prop_assert_eq!(read(&disk, &ns, &prompt, parts), expected.unwrap_or(0));
        }
    }
}
