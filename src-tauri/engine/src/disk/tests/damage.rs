//! Damaged files are a miss and gone; files that are not Hearth's stay as they are.

use super::support::*;
use crate::disk::files::{Files, System};
use crate::disk::format::{self, Header, Kind, Layer, MAGIC, Seen, VERSION};
use crate::disk::{Disk, Namespace};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

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
    assert_eq!(disk.writer.is_some(), open);
    disk
}

#[test]
fn any_flipped_bit_is_found() {
    damaged(200, |dice, bytes| {
        let at = if dice.below(3) == 0 { dice.below(64) } else { dice.below(bytes.len()) };
        bytes[at] ^= 1 << dice.below(8);
    });
}

#[test]
fn any_missing_end_is_found() {
    damaged(80, |dice, bytes| {
        let length = if dice.below(3) == 0 { dice.below(32) } else { dice.below(bytes.len()) };
        bytes.truncate(length);
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
        .map(|i| of_version(dir, &format!("v{i}.hearthkv"), VERSION + 1 - 2 * (i % 2), size, 1000 + u64::from(i)))
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
        assert!(matches!(copy, Seen::Other), "under another name it is not read, but counts");
    }
}
