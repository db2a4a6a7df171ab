//! The cap, the lock, the full disk.

use super::support::*;
use crate::disk::{Disk, DiskOptions, Progress};
use hearth_core::stats::SsdState;
use proptest::prelude::*;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

/// Every file that counts as used can be reached from its first block on.
fn nothing_dangles(disk: &Disk) -> bool {
    let mut state = disk.shared.lock();
    let keys = state.index.keys();
    let nodes: Vec<_> = keys.iter().filter_map(|key| state.index.get(key)?.node.clone()).collect();
    nodes.iter().all(|node| state.index.is_reachable(node))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_folder_never_exceeds_its_cap(
        blocks in 1u64..9,
        steps in proptest::collection::vec((0u32..20, 0u32..6, 0usize..600, 1usize..900), 1..30),
    ) {
        let cap = blocks * 14_000;
        let (place, ns) = (Place::new(cap), space("a"));
        let mut disk = place.open();
        for (what, own, shared, length) in steps {
            let tokens = talk(own, shared / 100 * 100, length);
            match what {
                0..9 => drop(store(&disk, &ns, &tokens, if own % 2 == 0 { STRIPS } else { BOTH })),
                9..15 => _ = read(&disk, &ns, &tokens, if own % 2 == 0 { STRIPS } else { BOTH }),
                15..17 => _ = disk.flush().recv().unwrap(),
                17 => _ = disk.clear().recv().unwrap(),
                _ => {
                    drop(disk);
                    disk = place.open();
                }
            }
        }
        disk.flush().recv().unwrap();
        let peak = place.files.control.lock().unwrap().peak;
        prop_assert!(peak <= cap, "{} bytes, cap {}", peak, cap);
        prop_assert_eq!(disk.stats().bytes, folder_bytes(place.dir.path()));
        prop_assert_eq!((disk.stats().corrupt, disk.backlog()), (0, 0));
        prop_assert!(nothing_dangles(&disk));
        prop_assert!(disk.shared.lock().in_flight.is_empty());
    }
}

#[test]
fn what_can_never_fit_costs_nobody_a_place() {
    let (place, ns) = (Place::new(2 * block_bytes(256)), space("a"));
    let disk = place.open();
    keep(&disk, &ns, &talk(1, 0, 256), STRIPS);
    // Three blocks, of which the last cannot have a place beside its own parents.
    let plan = store(&disk, &ns, &talk(2, 0, 768), STRIPS);
    let failed = disk.flush().recv().unwrap().failed;
    assert!(failed.len() == 1 && failed[0].contains("--cache-ssd"), "{failed:?}");
    assert!(matches!(plan.ticket.progress(), Progress::Failed(_)));
    assert_eq!(disk.stats().state, SsdState::Ready);
    assert_eq!(read(&disk, &ns, &talk(2, 0, 769), STRIPS), 512, "its beginning is there");
    assert_eq!(disk.flush().recv().unwrap().failed, Vec::<String>::new(), "said once");

    let (place, ns) = (Place::new(block_bytes(256) - 1), space("a"));
    let disk = place.open();
    keep(&disk, &ns, &talk(1, 0, 10), STRIPS);
    store(&disk, &ns, &talk(2, 0, 256), STRIPS);
    assert_eq!(disk.flush().recv().unwrap().failed.len(), 1);
    assert_eq!((disk.stats().evicted, read(&disk, &ns, &talk(1, 0, 11), STRIPS)), (0, 10));
}

#[test]
fn the_least_recently_used_goes_and_its_end_before_its_beginning() {
    let (place, ns) = (Place::new(6 * block_bytes(256)), space("a"));
    let disk = place.open();
    for i in [1, 2] {
        keep(&disk, &ns, &talk(i, 0, 768), STRIPS);
    }
    assert_eq!(read(&disk, &ns, &talk(1, 0, 769), STRIPS), 768);
    keep(&disk, &ns, &talk(3, 0, 256), STRIPS);
    assert_eq!(read(&disk, &ns, &talk(2, 0, 769), STRIPS), 512);
    keep(&disk, &ns, &talk(4, 0, 512), STRIPS);
    assert_eq!((1..5).map(|i| read(&disk, &ns, &talk(i, 0, 769), STRIPS)).collect::<Vec<_>>(), [256, 512, 256, 512]);
    assert_eq!(disk.stats().evicted, 3);
}

#[test]
fn what_is_being_read_stays() {
    let (place, ns) = (Place::new(2 * block_bytes(256)), space("a"));
    let disk = place.open();
    keep(&disk, &ns, &talk(1, 0, 256), STRIPS);
    let prompt = talk(1, 0, 257);
    let found = disk.find(&ns, &prompt, STRIPS, 0).unwrap();
    assert_eq!((found.tokens(), found.bytes()), (256, block_bytes(256)));
    for i in 2..6 {
        keep(&disk, &ns, &talk(i, 0, 256), STRIPS);
    }
    assert_eq!(restore(&disk, &ns, &prompt, STRIPS, found), Ok(256));
    for i in 6..8 {
        keep(&disk, &ns, &talk(i, 0, 256), STRIPS);
    }
    assert_eq!(read(&disk, &ns, &prompt, STRIPS), 0);
    // A restore that nobody listens to ends, and lets go of its files.
    let found = disk.find(&ns, &talk(7, 0, 257), STRIPS, 0).unwrap();
    drop(disk.restore(found, 300));
    keep(&disk, &ns, &talk(8, 0, 256), STRIPS);
}

#[test]
fn a_second_process_runs_without_the_tier() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let first = place.open();
    keep(&first, &ns, &talk(1, 0, 300), STRIPS);
    let options = DiskOptions { retry: Duration::from_secs(3600), ..place.options.clone() };
    let second = Disk::open(options);
    let stats = second.stats();
    let message = stats.message.unwrap();
    assert_eq!(stats.state, SsdState::Failed);
    let process = format!("process {}", std::process::id());
    assert!(message.contains("another Hearth") && message.contains(&process), "{message}");
    assert!(message.contains("--cache-dir"), "{message}");
    assert_eq!(read(&second, &ns, &talk(1, 0, 300), STRIPS), 0);
    let plan = second.plan(&ns, &talk(2, 0, 300), 0, STRIPS);
    assert!(plan.pieces.is_empty() && matches!(plan.ticket.progress(), Progress::Failed(_)));
    assert_eq!(second.flush().recv().unwrap().failed.len(), 0);
    assert_eq!(second.clear().recv().unwrap().files, 0);
    drop(second);
    keep(&first, &ns, &talk(2, 0, 300), STRIPS);
    drop(first);
    assert_eq!(place.open().stats().state, SsdState::Ready);
}

#[test]
fn a_folder_that_cannot_be_made_is_said() {
    let place = Place::new(1 << 20);
    std::fs::write(place.dir.path().join("file"), "").unwrap();
    let disk = Disk::open(DiskOptions::new(place.dir.path().join("file/cache"), 1 << 20));
    let stats = disk.stats();
    assert_eq!(stats.state, SsdState::Failed);
    assert!(stats.message.is_some_and(|m| m.contains("file/cache") && m.contains("--cache-dir")));
    assert!(disk.find(&space("a"), &[1, 2], STRIPS, 0).is_none());
}

#[test]
fn a_full_disk_stops_writing_until_there_is_space() {
    let mut place = Place::new(1 << 20);
    place.options.retry = Duration::from_secs(3600);
    let ns = space("a");
    let disk = place.open();
    keep(&disk, &ns, &talk(1, 0, 300), STRIPS);
    let used = folder_bytes(place.dir.path());
    place.files.set(|control| control.space = Some(used + 3000));
    let plan = store(&disk, &ns, &talk(2, 0, 600), STRIPS);
    let failed = disk.flush().recv().unwrap().failed;
    assert!(failed.iter().any(|f| f.contains("is full: free space or lower --cache-ssd")), "{failed:?}");
    assert!(matches!(plan.ticket.progress(), Progress::Failed(_)));
    let stats = disk.stats();
    assert_eq!((stats.state, stats.bytes, disk.backlog()), (SsdState::Failed, used, 0));
    assert_eq!(folder_bytes(place.dir.path()), used, "nothing is left of the attempt");
    assert_eq!(read(&disk, &ns, &talk(1, 0, 301), STRIPS), 300, "what is there is read");
    // Until it is time to try again, which a flush makes it, there is not even an attempt.
    store(&disk, &ns, &talk(2, 0, 600), STRIPS);
    settled(&disk);
    let creates = place.files.control.lock().unwrap().creates;
    assert!(disk.plan(&ns, &talk(2, 0, 600), 0, STRIPS).pieces.is_empty());
    assert_eq!(disk.plan(&ns, &talk(1, 0, 300), 0, STRIPS).ticket.progress(), Progress::Durable);
    assert_eq!(place.files.control.lock().unwrap().creates, creates);
    drop(disk);

    place.options.retry = Duration::ZERO;
    let disk = place.open();
    store(&disk, &ns, &talk(2, 0, 600), STRIPS);
    assert!(!disk.flush().recv().unwrap().failed.is_empty());
    assert_eq!(disk.stats().state, SsdState::Failed);
    place.files.set(|control| control.space = None);
    keep(&disk, &ns, &talk(2, 0, 600), STRIPS);
    assert_eq!((disk.stats().state, disk.stats().message), (SsdState::Ready, None));
}

#[test]
fn a_folder_without_permission_is_only_read() {
    for (kind, word) in [(ErrorKind::PermissionDenied, "permission"), (ErrorKind::ReadOnlyFilesystem, "read-only")] {
        let (place, ns) = (Place::new(1 << 20), space("a"));
        let disk = place.open();
        keep(&disk, &ns, &talk(1, 0, 300), STRIPS);
        place.files.set(|control| control.refuse = Some(kind));
        store(&disk, &ns, &talk(2, 0, 300), STRIPS);
        assert!(disk.flush().recv().unwrap().failed.iter().any(|f| f.contains(word)));
        let stats = disk.stats();
        assert!(stats.state == SsdState::Failed && stats.message.is_some_and(|m| m.contains(word)));
        assert_eq!(read(&disk, &ns, &talk(1, 0, 301), STRIPS), 300);
    }
}

/// The real thing, where this user may mount.
#[test]
fn a_small_tmpfs_fills_up() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let dir = place.dir.path();
    let mount = |options: &str| {
        Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "hearth-test"])
            .arg(dir)
            .output()
            .is_ok_and(|o| o.status.success())
    };
    if !mount("size=128k") {
        eprintln!("cannot mount here; the same is tested on a file system that says it is full");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let options = DiskOptions { retry: Duration::ZERO, ..DiskOptions::new(dir, 1 << 30) };
        let disk = Disk::open(options.clone());
        keep(&disk, &ns, &talk(0, 0, 300), STRIPS);
        for i in 1..20 {
            store(&disk, &ns, &talk(i, 0, 300), STRIPS);
        }
        let failed = disk.flush().recv().unwrap().failed;
        assert!(failed.iter().any(|f| f.contains("is full")), "{failed:?}");
        let stats = disk.stats();
        assert_eq!((stats.state, stats.bytes), (SsdState::Failed, folder_bytes(dir)));
        assert_eq!(read(&disk, &ns, &talk(0, 0, 301), STRIPS), 300);
        assert!(mount("remount,size=8m"));
        keep(&disk, &ns, &talk(30, 0, 300), STRIPS);
        assert_eq!(disk.stats().state, SsdState::Ready);
        drop(disk);
        assert!(mount("remount,ro"));
        let disk = Disk::open(options);
        assert!(disk.stats().message.is_some_and(|m| m.contains("read-only")));
        assert_eq!(read(&disk, &ns, &talk(30, 0, 301), STRIPS), 300, "a read-only folder is read");
        store(&disk, &ns, &talk(31, 0, 300), STRIPS);
        assert!(disk.flush().recv().unwrap().failed.iter().any(|f| f.contains("read-only")));
    });
    assert!(Command::new("umount").arg(dir).status().is_ok_and(|status| status.success()));
    if let Err(cause) = outcome {
        std::panic::resume_unwind(cause);
    }
}

#[test]
fn the_second_takes_over_when_the_first_is_gone() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let first = place.open();
    keep(&first, &ns, &talk(1, 0, 300), STRIPS);
    let later = DiskOptions { retry: Duration::from_secs(3600), ..place.options.clone() };
    let (asked, waiting) = (Disk::open(later.clone()), Disk::open(later));
    let soon = place.open();
    assert_eq!(asked.flush().recv().unwrap().files, 0);
    assert!(asked.stats().message.is_some_and(|m| m.contains("another Hearth")));
    drop(first);
    // Not before its time, unless it is asked to.
    assert_eq!(read(&asked, &ns, &talk(1, 0, 301), STRIPS), 0);
    waiting.retry_now();
    drop(waiting);
    assert_eq!(asked.stats().state, SsdState::Failed);
    asked.flush().recv().unwrap();
    assert_eq!((asked.stats().state, asked.stats().message), (SsdState::Ready, None));
    assert_eq!(read(&asked, &ns, &talk(1, 0, 301), STRIPS), 300, "what was there was looked through");
    keep(&asked, &ns, &talk(2, 0, 300), STRIPS);
    drop(asked);
    // By itself, with whatever comes next.
    keep(&soon, &ns, &talk(3, 0, 300), STRIPS);
    assert_eq!(soon.stats().state, SsdState::Ready);
    assert_eq!((1..4).map(|i| read(&soon, &ns, &talk(i, 0, 301), STRIPS)).collect::<Vec<_>>(), [300; 3]);
}

#[test]
fn a_search_is_enough_to_try_the_lock_again() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let first = place.open();
    keep(&first, &ns, &talk(1, 0, 300), STRIPS);
    let second = place.open();
    drop(first);
    assert_eq!(read(&second, &ns, &talk(1, 0, 301), STRIPS), 0, "it is only asked for");
    settled(&second);
    assert_eq!(read(&second, &ns, &talk(1, 0, 301), STRIPS), 300);
}

#[test]
fn a_flush_or_a_clearing_tries_again_at_once() {
    let mut place = Place::new(1 << 20);
    place.options.retry = Duration::from_secs(3600);
    let (disk, ns) = (place.open(), space("a"));
    for clears in [false, true] {
        place.files.set(|control| control.refuse = Some(ErrorKind::PermissionDenied));
        store(&disk, &ns, &[1], STRIPS);
        settled(&disk);
        place.files.set(|control| control.refuse = None);
        assert!(disk.plan(&ns, &[1], 0, STRIPS).pieces.is_empty());
        if clears {
            disk.clear().recv().unwrap();
        } else {
            disk.flush().recv().unwrap();
        }
        keep(&disk, &ns, &[1], STRIPS);
        assert_eq!(disk.stats().state, SsdState::Ready);
        disk.clear().recv().unwrap();
    }
}

#[test]
fn the_locks_file_is_no_way_to_other_files() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let lock = place.dir.path().join("hearth-cache.lock");
    let target = place.dir.path().join("target");
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &lock).unwrap();
    {
        let disk = place.open();
        let message = disk.stats().message.unwrap();
        assert!(message.contains("hearth-cache.lock is not a regular file: remove it"), "{message}");
        store(&disk, &ns, &[1], STRIPS);
        assert!(!disk.flush().recv().unwrap().failed.is_empty());
        assert_eq!(place.names().len(), 0, "nothing is written without the lock");
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    std::fs::remove_file(&lock).unwrap();
    for (before, stays) in [("somebody's notes", true), ("12 34", true), ("", false), ("4294", false)] {
        std::fs::write(&lock, before).unwrap();
        let disk = place.open();
        assert_eq!(disk.stats().state, SsdState::Ready);
        let own = std::process::id().to_string();
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), if stays { before } else { &own });
        assert!(place.open().stats().message.is_some_and(|m| m.contains("another Hearth")));
    }
}

#[test]
fn a_folder_that_was_made_anew_is_locked_anew() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let first = place.open();
    keep(&first, &ns, &talk(1, 0, 300), STRIPS);
    std::fs::remove_dir_all(place.dir.path()).unwrap();
    keep(&first, &ns, &talk(1, 0, 300), STRIPS);
    assert_eq!(place.names().len(), 2);
    let second = place.open();
    assert!(second.stats().message.is_some_and(|m| m.contains("another Hearth")));
    // And the other way round.
    drop(second);
    std::fs::remove_dir_all(place.dir.path()).unwrap();
    let second = place.open();
    store(&first, &ns, &talk(1, 0, 300), STRIPS);
    let failed = first.flush().recv().unwrap().failed;
    assert!(failed.iter().any(|why| why.contains("another Hearth")), "{failed:?}");
    keep(&second, &ns, &talk(1, 0, 300), STRIPS);
}
