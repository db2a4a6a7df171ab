//! Damaged files are a miss and gone; files that are not Hearth's stay as they are.

use super::support::*;
use crate::disk::files::{Files, Listed, Output, System};
use crate::disk::format::{self, Header, Kind, Layer, MAGIC, Seen, VERSION};
use crate::disk::{Disk, Namespace};
use hearth_core::stats::SsdState;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Damages one file in every way that `damage` knows, under a running tier and before a start, and wants the right
/// bytes or a miss, and the file gone.
fn damaged(rounds: usize, damage: impl Fn(&mut Dice, &mut Vec<u8>)) {
    let (place, ns, tokens) = (Place::new(1 << 30), space("a"), talk(1, 0, 600));
    let prompt = [&tokens[..], &[7]].concat();
    let mut dice = Dice(rounds as u64);
    let mut disk = place.open();
    for round in 0..rounds {
        keep(&disk, &ns, &tokens, BOTH);
        let names = place.names();
        assert_eq!(names.len(), 4);
        let path = place.dir.path().join(&names[dice.below(names.len())]);
        let before = if round % 2 == 1 { 0 } else { disk.stats().corrupt };
        if round % 2 == 1 {
            drop(disk);
            disk = scarred(&place, &path, &mut dice, &damage, true);
        } else {
            drop(scarred(&place, &path, &mut dice, &damage, false));
        }
        let both = read(&disk, &ns, &prompt, BOTH);
        let strips = read(&disk, &ns, &prompt, STRIPS);
        assert!(both == 0 && strips <= 600, "round {round}");
        assert!(!path.exists(), "round {round}: {} is still there", path.display());
        assert_eq!(disk.stats().corrupt, before + 1, "round {round}");
        assert_eq!(disk.stats().bytes, folder_bytes(place.dir.path()));
    }
    keep(&disk, &ns, &tokens, BOTH);
    assert_eq!(read(&disk, &ns, &prompt, BOTH), 600);
}

fn scarred(place: &Place, path: &Path, dice: &mut Dice, damage: impl Fn(&mut Dice, &mut Vec<u8>), open: bool) -> Disk {
    let mut bytes = fs::read(path).unwrap();
    damage(dice, &mut bytes);
    fs::write(path, bytes).unwrap();
    // The other one is only there to have a type: it cannot lock the folder.
    let disk = place.open();
    assert_eq!(disk.shared.lock().prepared, open);
    disk
}

#[test]
fn any_flipped_bit_is_found() {
    damaged(200, |dice, bytes| {
        // Without its magic it would not be Hearth's.
        let at = 8 + if dice.below(3) == 0 { dice.below(56) } else { dice.below(bytes.len() - 8) };
        bytes[at] ^= 1 << dice.below(8);
    });
}

#[test]
fn any_missing_end_is_found() {
    damaged(80, |dice, bytes| {
        let length = if dice.below(3) == 0 { dice.below(32) } else { dice.below(bytes.len()) };
        bytes.truncate(length.max(8));
    });
}

#[test]
fn any_added_byte_is_found() {
    damaged(6, |_, bytes| bytes.push(0));
}

#[test]
fn files_of_others_are_neither_counted_nor_touched() {
    let (place, ns) = (Place::new(3 * block_bytes(256)), space("a"));
    let key = ns.block(&ns.root(), &talk(1, 0, 256)).hex();
    let others = [
        ("notes.txt".to_owned(), b"shopping".to_vec()),
        ("model.hearthkv".to_owned(), b"not a cache".to_vec()),
        ("empty.hearthkv".to_owned(), Vec::new()),
        (format!("{key}.hearthkv"), b"its very name, but not its magic".to_vec()),
        (format!("{key}.hearthkv.tmp"), b"somebody's".to_vec()),
        ("x.hearthkv.tmp".to_owned(), MAGIC[..4].to_vec()),
        ("magic.hearthkv".to_owned(), [&MAGIC[..], &[0; 100]].concat()),
        (format!("{}.hearthkv", ns.block(&ns.root(), &[1]).hex()), Vec::new()),
        (format!("{}.hearthkv", ns.block(&ns.root(), &[2]).hex()), MAGIC[..7].to_vec()),
        (format!("{}.hearthkv", ns.block(&ns.root(), &[3]).hex()), [&b"hEARTHKV"[..], &[0; 100]].concat()),
        (format!("{}.hearthkv.tmp", ns.block(&ns.root(), &[4]).hex()), [&[0; 100][..], b"x"].concat()),
        ("big".to_owned(), vec![b'x'; 100_000]),
    ];
    for (name, bytes) in &others {
        fs::write(place.dir.path().join(name), bytes).unwrap();
    }
    fs::create_dir(place.dir.path().join("folder.hearthkv")).unwrap();
    std::os::unix::fs::symlink("big", place.dir.path().join("link.hearthkv")).unwrap();
    let disk = place.open();
    assert_eq!((disk.stats().files, disk.stats().bytes), (0, 0));
    store(&disk, &ns, &talk(1, 0, 256), STRIPS);
    let failed = disk.flush().recv().unwrap().failed;
    assert!(failed[0].contains("in the way"), "{failed:?}");
    for i in 1..5 {
        store(&disk, &ns, &[i], STRIPS);
        let failed = disk.flush().recv().unwrap().failed;
        assert!(failed[0].contains("in the way"), "{i}: {failed:?}");
    }
    assert_eq!((disk.stats().state, disk.stats().corrupt), (SsdState::Ready, 0));
    for i in 2..8 {
        keep(&disk, &ns, &talk(i, 0, 512), STRIPS);
    }
    assert!(disk.stats().evicted > 0);
    disk.clear().recv().unwrap();
    drop(disk);
    assert_eq!(place.open().stats().files, 0);
    for (name, bytes) in &others {
        assert_eq!(&fs::read(place.dir.path().join(name)).unwrap(), bytes, "{name}");
    }
    assert!(place.dir.path().join("folder.hearthkv").is_dir() && place.dir.path().join("link.hearthkv").is_symlink());
}

/// A file as another format version would leave it, used last at `seconds`.
fn of_version(dir: &Path, name: &str, version: u32, bytes: usize, seconds: u64) -> PathBuf {
    let path = dir.join(name);
    let mut contents = MAGIC.to_vec();
    contents.extend(version.to_le_bytes());
    contents.resize(bytes, 7);
    fs::write(&path, contents).unwrap();
    System.touch(&path, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    path
}

#[test]
fn old_formats_and_other_models_count_and_go_by_age() {
    let size = block_bytes(256) as usize;
    let place = Place::new(4 * size as u64);
    let dir = place.dir.path();
    let old: Vec<PathBuf> = (0..6)
        .map(|i| of_version(dir, &format!("{i:064x}.hearthkv"), VERSION + 1 - 2 * (i % 2), size, 1000 + u64::from(i)))
        .collect();
    // Over the cap at the start: the oldest go.
    let disk = place.open();
    let there = |from: usize| old.iter().map(|path| path.exists()).eq((0..6).map(|i| i >= from));
    assert!(there(2));
    assert_eq!((disk.stats().bytes, disk.stats().files, disk.stats().evicted), (4 * size as u64, 4, 2));
    keep(&disk, &space("other"), &talk(1, 0, 256), STRIPS);
    assert!(there(3));
    keep(&disk, &space("a"), &talk(1, 0, 512), STRIPS);
    assert!(there(5));
    keep(&disk, &space("a"), &talk(2, 0, 512), STRIPS);
    assert!(there(6));
    assert_eq!(disk.stats().files, 4, "the other model's file went next");
    assert_eq!(read(&disk, &space("other"), &talk(1, 0, 257), STRIPS), 0);
    assert_eq!(read(&disk, &space("a"), &talk(1, 0, 513), STRIPS), 512);
}

#[test]
fn the_order_of_use_outlives_a_restart() {
    let place = Place::new(4 * block_bytes(256));
    let ns = space("a");
    {
        let disk = place.open();
        for i in 0..4 {
            keep(&disk, &ns, &talk(i, 0, 256), STRIPS);
        }
        assert_eq!(read(&disk, &ns, &talk(0, 0, 257), STRIPS), 256);
        disk.flush().recv().unwrap();
    }
    let disk = place.open();
    for i in 4..7 {
        keep(&disk, &ns, &talk(i, 0, 256), STRIPS);
    }
    let left: Vec<u32> = (0..7).filter(|i| read(&disk, &ns, &talk(*i, 0, 257), STRIPS) > 0).collect();
    assert_eq!(left, [0, 4, 5, 6]);
}

fn header(tokens: usize, start: u32, ns: Namespace) -> Header {
    let array = format::Array { dtype: 0, dims: vec![2, 3], bytes: 6 * tokens as u64 };
    let layers = vec![Layer { hash: [3; 32], arrays: vec![array.clone(), array] }; 3];
    let parent = if start == 0 { ns.root() } else { ns.block(&ns.root(), &[9; 256]) };
    let tokens = (0..tokens as u32).collect();
    Header { kind: Kind::Block, continues_blocks: false, namespace: ns, parent, start, min_reusable: 5, tokens, layers }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Bytes that were damaged and given a right checksum, as no accident would: sense, or a refusal.
    #[test]
    fn no_header_makes_the_reader_panic(
        tokens in 1usize..40,
        changes in proptest::collection::vec((16usize..2000, any::<u8>()), 0..4),
        cut in proptest::option::of(48usize..600),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let original = header(tokens, 256, space("a"));
        let mut bytes = original.encode();
        bytes.truncate(bytes.len() - 32);
        for (at, value) in &changes {
            let at = at % bytes.len();
            bytes[at.max(16)] = *value;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX).min(bytes.len()));
        let length = bytes.len() as u32 + 32;
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        let sum = blake3::hash(&bytes);
        bytes.extend(sum.as_bytes());
        bytes.resize(bytes.len() + original.payload() as usize, 1);
        let name = original.key().hex() + ".hearthkv";
        let path = dir.path().join(&name);
        fs::write(&path, &bytes).unwrap();
        match format::look(&System, &path, &name, bytes.len() as u64).unwrap() {
            Seen::Ours(seen, at) => {
                prop_assert_eq!(seen.key(), original.key());
                prop_assert_eq!(at + seen.payload(), bytes.len() as u64);
            }
            Seen::Damaged(what) => prop_assert!(!what.is_empty()),
            Seen::Other => {}
            Seen::Foreign => prop_assert!(false, "it has the magic"),
        }
    }
}

#[test]
fn a_header_is_read_back_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than what is read in one go.
    let mut long = header(256, 512, space("a"));
    long.layers = vec![long.layers[0].clone(); 200];
    for written in [header(1, 0, space("a")), header(256, 256, space("b")), long] {
        let name = written.key().hex() + ".hearthkv";
        let mut bytes = written.encode();
        let head = bytes.len() as u64;
        bytes.resize(bytes.len() + written.payload() as usize, 0);
        fs::write(dir.path().join(&name), &bytes).unwrap();
        let length = bytes.len() as u64;
        match format::look(&System, &dir.path().join(&name), &name, length).unwrap() {
            Seen::Ours(seen, at) => assert!(seen == written && at == head),
            other => panic!("{other:?}"),
        }
        fs::rename(dir.path().join(&name), dir.path().join("copy")).unwrap();
        let copy = format::look(&System, &dir.path().join("copy"), "copy", length).unwrap();
        assert!(matches!(copy, Seen::Foreign), "under a name that is none of Hearth's it may be anybody's");
    }
}

/// The real file system, but files end at `end`, whatever their length was said to be.
struct Ending(usize);

impl Files for Ending {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        System.make_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Listed>> {
        System.list(dir)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        System.len(path)
    }
    fn read(&self, path: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset as usize + buffer.len() > self.0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        System.read(path, offset, buffer)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        System.create(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        System.rename(from, to)
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        System.remove(path)
    }
    fn touch(&self, path: &Path, time: SystemTime) -> io::Result<()> {
        System.touch(path, time)
    }
}

#[test]
fn a_file_that_ends_while_it_is_looked_at_goes_only_if_it_began_as_ours() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let dir = place.dir.path();
    let named = |i: u32| dir.join(ns.block(&ns.root(), &[i]).hex() + ".hearthkv");
    let (foreign, ours) = (named(1), named(2));
    let all = [dir.join("notes.txt"), dir.join("state.hearthkv"), foreign.clone(), ours.clone()];
    for end in [0, 7, 8, 16, 63] {
        all[..3].iter().for_each(|path| fs::write(path, [b'x'; 64]).unwrap());
        fs::write(&ours, [&MAGIC[..], &[1; 56]].concat()).unwrap();
        let disk = Disk::open_with(place.options.clone(), Arc::new(Ending(end)));
        assert!(all[..3].iter().all(|path| path.exists()), "end {end}");
        assert_eq!(ours.exists(), end < 8, "end {end}");
        assert_eq!((disk.stats().corrupt, disk.stats().files), (usize::from(end >= 8) as u64, 0), "end {end}");
    }
}

#[test]
fn what_took_the_place_of_a_file_of_ours_stays() {
    let (place, ns) = (Place::new(2 * block_bytes(256)), space("a"));
    let disk = place.open();
    keep(&disk, &ns, &talk(1, 0, 256), STRIPS);
    let path = place.dir.path().join(&place.names()[0]);
    fs::write(&path, "somebody's").unwrap();
    for i in 2..6 {
        keep(&disk, &ns, &talk(i, 0, 256), STRIPS);
    }
    disk.clear().recv().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"somebody's");
    assert_eq!((disk.stats().bytes, disk.stats().files), (0, 0));
}

#[test]
fn files_under_each_others_names_are_damaged() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let disk = place.open();
    let (a, b) = (talk(1, 0, 256), talk(2, 0, 256));
    let path = |tokens: &[u32]| place.dir.path().join(ns.block(&ns.root(), tokens).hex() + ".hearthkv");
    let swap = || {
        keep(&disk, &ns, &a, STRIPS);
        keep(&disk, &ns, &b, STRIPS);
        let other = place.dir.path().join("other");
        fs::rename(path(&a), &other).unwrap();
        fs::rename(path(&b), path(&a)).unwrap();
        fs::rename(&other, path(&b)).unwrap();
    };
    // While it runs: found when it is read.
    swap();
    assert_eq!((read(&disk, &ns, &talk(1, 0, 257), STRIPS), read(&disk, &ns, &talk(2, 0, 257), STRIPS)), (0, 0));
    assert_eq!((disk.stats().corrupt, place.names().len()), (2, 0));
    // Before a start.
    swap();
    drop(disk);
    let disk = place.open();
    assert_eq!((disk.stats().corrupt, disk.stats().files, place.names().len()), (2, 0, 0));
    keep(&disk, &ns, &a, STRIPS);
    assert_eq!(read(&disk, &ns, &talk(1, 0, 257), STRIPS), 256);
}

#[test]
fn what_vanished_or_was_cut_is_written_again() {
    let (place, ns) = (Place::new(1 << 30), space("a"));
    let (disk, tokens) = (place.open(), talk(1, 0, 600));
    keep(&disk, &ns, &tokens, BOTH);
    assert_eq!(disk.plan(&ns, &tokens, 0, BOTH).pieces.len(), 0);
    for name in place.names() {
        fs::remove_file(place.dir.path().join(name)).unwrap();
    }
    keep(&disk, &ns, &tokens, BOTH);
    assert_eq!((place.names().len(), disk.stats().corrupt), (4, 0));
    assert_eq!(disk.stats().bytes, folder_bytes(place.dir.path()));
    for name in place.names() {
        let file = fs::OpenOptions::new().write(true).open(place.dir.path().join(name)).unwrap();
        file.set_len(100).unwrap();
    }
    keep(&disk, &ns, &tokens, BOTH);
    assert_eq!((place.names().len(), disk.stats().corrupt), (4, 4));
    assert_eq!(disk.stats().bytes, folder_bytes(place.dir.path()));
    assert_eq!(read(&disk, &ns, &talk(1, 0, 601), BOTH), 600);
}

#[test]
fn a_file_of_another_version_makes_way() {
    let (place, ns) = (Place::new(1 << 20), space("a"));
    let name = ns.block(&ns.root(), &[1]).hex() + ".hearthkv";
    of_version(place.dir.path(), &name, VERSION + 1, 500, 1000);
    let disk = place.open();
    assert_eq!((disk.stats().files, disk.stats().bytes), (1, 500));
    keep(&disk, &ns, &[1], STRIPS);
    assert_eq!((disk.stats().files, disk.stats().bytes), (1, folder_bytes(place.dir.path())));
    assert_eq!(read(&disk, &ns, &[1, 2], STRIPS), 1);
}
