//! A run may be killed at any step: the next one serves, within the cap, with the right bytes.

use super::support::*;
use crate::disk::format::MAGIC;
use crate::disk::{Disk, Namespace};
use hearth_core::stats::SsdState;
use std::fs;

/// Something of everything: growth, forks, snapshots, evictions, reads.
fn live(disk: &Disk, ns: &Namespace) {
    for (own, shared, length) in [(1, 0, 300), (1, 0, 520), (2, 256, 300), (3, 0, 600), (4, 600, 900)] {
        store(disk, ns, &talk(own, shared, length), if own == 3 { BOTH } else { STRIPS });
        disk.flush().recv().unwrap();
        read(disk, ns, &talk(own, shared, length), STRIPS);
    }
}

#[test]
fn the_end_may_come_between_any_two_steps() {
    let ns = space("a");
    let cap = 5 * block_bytes(256);
    for lives in 1..1000 {
        let place = Place::new(cap);
        place.files.set(|control| control.lives = Some(lives));
        live(&place.open(), &ns);
        let died = place.files.control.lock().unwrap().lives == Some(0);
        place.files.set(|control| control.lives = None);
        let disk = place.open();
        assert_eq!(disk.stats().state, SsdState::Ready);
        assert!(place.names().iter().all(|name| name.ends_with(".hearthkv")), "leftovers: {:?}", place.names());
        assert_eq!(disk.stats().corrupt, 0, "a file with its own name is whole");
        assert_eq!(disk.stats().bytes, folder_bytes(place.dir.path()));
        for (own, shared, length) in [(1, 0, 521), (2, 256, 301), (3, 0, 601), (4, 600, 901)] {
            read(&disk, &ns, &talk(own, shared, length), STRIPS);
        }
        read(&disk, &ns, &talk(3, 0, 601), BOTH);
        keep(&disk, &ns, &talk(5, 0, 600), BOTH);
        assert_eq!(read(&disk, &ns, &talk(5, 0, 601), BOTH), 600);
        let peak = place.files.control.lock().unwrap().peak;
        assert!(peak <= cap, "{peak} bytes at death {lives}, cap {cap}");
        if !died {
            assert!(lives > 50, "only {lives} steps");
            return;
        }
    }
    panic!("it never ends");
}

#[test]
fn leftovers_of_a_killed_run_are_removed() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let key = |i: u32| ns.block(&ns.root(), &[i]).hex();
    let leftovers = [Vec::new(), MAGIC[..3].to_vec(), [&MAGIC[..], &[0; 5000]].concat(), vec![0; 5000]];
    for (i, bytes) in leftovers.iter().enumerate() {
        fs::write(place.dir.path().join(key(i as u32) + ".hearthkv.tmp"), bytes).unwrap();
    }
    let disk = place.open();
    assert_eq!((place.names().len(), disk.stats().bytes, disk.stats().corrupt), (0, 0, 0));
}

#[test]
fn blocks_whose_parent_is_gone_go_first() {
    let (place, ns) = (Place::new(5 * block_bytes(256)), space("a"));
    let tokens = talk(1, 0, 768);
    {
        let disk = place.open();
        keep(&disk, &ns, &talk(2, 0, 256), STRIPS);
        keep(&disk, &ns, &tokens, STRIPS);
    }
    let first = ns.block(&ns.root(), &tokens[..256]).hex() + ".hearthkv";
    fs::remove_file(place.dir.path().join(first)).unwrap();
    let disk = place.open();
    assert_eq!((disk.stats().files, read(&disk, &ns, &tokens, STRIPS)), (3, 0));
    for i in 3..6 {
        keep(&disk, &ns, &talk(i, 0, 256), STRIPS);
    }
    // One of the two without a parent is left at most; what can be used is all there.
    for i in [2, 3, 4, 5] {
        assert_eq!(read(&disk, &ns, &talk(i, 0, 257), STRIPS), 256, "{i}");
    }
    // With its parent it is of use again.
    let missing = disk.plan(&ns, &tokens, 0, STRIPS).pieces.len();
    assert!(missing < 3);
}

#[test]
fn a_folder_that_disappears_is_made_again() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let disk = place.open();
    keep(&disk, &ns, &talk(1, 0, 300), STRIPS);
    fs::remove_dir_all(place.dir.path()).unwrap();
    assert_eq!(read(&disk, &ns, &talk(1, 0, 300), STRIPS), 0);
    keep(&disk, &ns, &talk(1, 0, 300), STRIPS);
    assert_eq!(read(&disk, &ns, &talk(1, 0, 300), STRIPS), 299);
}
