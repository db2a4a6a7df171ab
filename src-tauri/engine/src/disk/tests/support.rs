//! State that tells what it was computed from, and a file system that fails on demand and measures its folder.

use crate::disk::files::{Files, Listed, Output, System};
use crate::disk::{Disk, DiskOptions, Found, Namespace, Parts, Plan, RestoreEvent, Strip, Whole};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Tokens of a block in these tests.
pub const BLOCK: usize = 256;

pub const STRIPS: Parts = Parts { strips: true, snapshot: false };
pub const BOTH: Parts = Parts { strips: true, snapshot: true };
pub const SNAPSHOT: Parts = Parts { strips: false, snapshot: true };

const LAYERS: usize = 2;
/// Heads and width of the strips of each layer.
const SHAPES: [(u32, u32); 2] = [(2, 8), (2, 3)];

pub fn space(name: &str) -> Namespace {
    Namespace::of(&[name.as_bytes()])
}

/// Tokens of a conversation: the same up to `shared`, then `own`'s.
pub fn talk(own: u32, shared: usize, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| if (i as usize) < shared { i } else { 100_000 * (own + 1) + i }).collect()
}

/// A number for each prefix.
fn marks(ns: &Namespace, tokens: &[u32]) -> Vec<u64> {
    let mut mark = u64::from_le_bytes(ns.0[..8].try_into().unwrap());
    let mut next = |token: &u32| {
        mark = (mark ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        mark
    };
    tokens.iter().map(&mut next).collect()
}

fn row(mark: u64, layer: usize, array: usize, head: u32, width: u32) -> impl Iterator<Item = u8> {
    let seed = mark ^ (layer as u64) << 40 ^ (array as u64) << 30 ^ u64::from(head) << 20;
    (0..width).map(move |i| (seed.wrapping_add(u64::from(i)).wrapping_mul(0xd134_2543_de82_ef95) >> 56) as u8 | 1)
}

/// The strips of the marked tokens with room for `room`.
fn strips(marks: &[u64], layer: usize, room: usize) -> Vec<Strip> {
    let strip = |(array, &(heads, width)): (usize, &(u32, u32))| {
        let mut bytes = Vec::new();
        for head in 0..heads {
            bytes.extend(marks.iter().flat_map(|mark| row(*mark, layer, array, head, width)));
            bytes.resize(bytes.len() + (room - marks.len()) * width as usize, 0);
        }
        Strip { heads, width, dtype: 0, bytes }
    };
    SHAPES.iter().enumerate().map(strip).collect()
}

fn wholes(mark: u64, layer: usize) -> Vec<Whole> {
    vec![Whole { shape: vec![5, 3], dtype: 4, bytes: row(mark, layer, 9, 0, 15).collect() }]
}

/// Fills and hands over every piece.
pub fn fill(ns: &Namespace, tokens: &[u32], plan: &mut Plan) {
    let marks = marks(ns, tokens);
    for mut piece in plan.pieces.drain(..) {
        let range = piece.range();
        for layer in 0..LAYERS {
            if piece.is_snapshot() {
                piece.push_wholes(wholes(marks[range.end - 1], layer));
            } else {
                piece.push_strips(strips(&marks[range.clone()], layer, range.len()));
            }
        }
        piece.put();
    }
}

/// Plans, fills and hands over.
pub fn store(disk: &Disk, ns: &Namespace, tokens: &[u32], parts: Parts) -> Plan {
    let mut plan = disk.plan(ns, tokens, 0, parts);
    fill(ns, tokens, &mut plan);
    plan
}

/// Stores and waits until it is durable.
pub fn keep(disk: &Disk, ns: &Namespace, tokens: &[u32], parts: Parts) {
    store(disk, ns, tokens, parts);
    assert_eq!(disk.flush().recv().unwrap().failed, Vec::<String>::new());
}

/// Waits for the writer without asking it to try again what failed.
pub fn settled(disk: &Disk) {
    for _ in 0..10_000 {
        let state = disk.shared.lock();
        if state.in_flight.is_empty() && state.queue.is_empty() && !state.preparing {
            return;
        }
        drop(state);
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the writer does not come to an end");
}

/// Restores and compares every byte; the length of the prefix, or what the tier said.
pub fn restore(disk: &Disk, ns: &Namespace, prompt: &[u32], parts: Parts, found: Found) -> Result<usize, String> {
    let (tokens, room) = (found.tokens(), found.tokens() + 7);
    let marks = marks(ns, &prompt[..tokens]);
    let mut layer = 0;
    for event in disk.restore(found, room) {
        match event {
            RestoreEvent::Layer { strips: got, wholes: arrays } => {
                let expected = if parts.strips { strips(&marks, layer, room) } else { Vec::new() };
                assert!(got == expected, "wrong strips in layer {layer}");
                let expected = if parts.snapshot { wholes(marks[tokens - 1], layer) } else { Vec::new() };
                assert!(arrays == expected, "wrong arrays in layer {layer}");
                layer += 1;
            }
            RestoreEvent::Done { tokens: done } => {
                assert_eq!((done, layer), (tokens, LAYERS));
                return Ok(tokens);
            }
            RestoreEvent::Failed { message } => return Err(message),
        }
    }
    panic!("a restore without an end");
}

/// The longest prefix that is really there: what fails is tried again, as a next request would.
pub fn read(disk: &Disk, ns: &Namespace, prompt: &[u32], parts: Parts) -> usize {
    for _ in 0..100 {
        let Some(found) = disk.find(ns, prompt, parts, 0) else { return 0 };
        if let Ok(tokens) = restore(disk, ns, prompt, parts, found) {
            return tokens;
        }
    }
    panic!("a damaged file is found again and again");
}

/// What the file system does.
#[derive(Debug, Default)]
pub struct Control {
    /// Steps that still succeed; the one after is done by half, and then nothing is.
    pub lives: Option<usize>,
    /// Bytes that the folder can hold.
    pub space: Option<u64>,
    /// Every new file is refused with this.
    pub refuse: Option<ErrorKind>,
    /// New files asked for.
    pub creates: usize,
    /// Most bytes that were in the folder at any time.
    pub peak: u64,
}

/// The real file system with [`Control`]. Syncing costs nothing: a test cannot pull the plug anyway.
#[derive(Debug, Clone)]
pub struct Watched {
    pub control: Arc<Mutex<Control>>,
    dir: PathBuf,
}

struct WatchedOutput {
    files: Watched,
    output: Box<dyn Output>,
}

/// Bytes of all files but the lock.
pub fn folder_bytes(dir: &Path) -> u64 {
    let files = System.list(dir).unwrap_or_default();
    files.iter().filter(|file| !file.name.ends_with(".lock")).map(|file| file.bytes).sum()
}

impl Watched {
    pub fn new(dir: &Path) -> Self {
        Watched { control: Arc::default(), dir: dir.to_owned() }
    }

    pub fn set(&self, change: impl FnOnce(&mut Control)) {
        change(&mut self.control.lock().unwrap());
    }

    /// Counts one step and does it; the last one only by half.
    fn step(&self, half: impl FnOnce() -> io::Result<()>, whole: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut control = self.control.lock().unwrap();
        let result = match control.lives {
            Some(0) => Err(io::Error::other("dead")),
            Some(1) => half().and(Err(io::Error::other("dies"))),
            _ => whole(),
        };
        control.lives = control.lives.map(|lives| lives.saturating_sub(1));
        control.peak = control.peak.max(folder_bytes(&self.dir));
        result
    }

    fn check_space(&self, more: usize) -> io::Result<()> {
        let control = self.control.lock().unwrap();
        let full = control.space.is_some_and(|space| folder_bytes(&self.dir) + more as u64 > space);
        if full { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl Output for WatchedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.files.check_space(bytes.len())?;
        let output = std::cell::RefCell::new(&mut self.output);
        let half = || output.borrow_mut().write(&bytes[..bytes.len() / 2]);
        self.files.step(half, || output.borrow_mut().write(bytes))
    }

    fn write_start(&mut self, bytes: &[u8]) -> io::Result<()> {
        let output = std::cell::RefCell::new(&mut self.output);
        let half = || output.borrow_mut().write_start(&bytes[..bytes.len() / 2]);
        self.files.step(half, || output.borrow_mut().write_start(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files.step(|| Ok(()), || Ok(()))
    }
}

impl Files for Watched {
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
        System.read(path, offset, buffer)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.set(|control| control.creates += 1);
        if let Some(kind) = self.control.lock().unwrap().refuse {
            return Err(kind.into());
        }
        let mut output = None;
        let make = || {
            output = Some(System.create(path)?);
            Ok(())
        };
        self.step(|| Ok(()), make)?;
        Ok(Box::new(WatchedOutput { files: self.clone(), output: output.unwrap() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|| Ok(()), || System.rename(from, to))
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.step(|| Ok(()), || Ok(()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|| Ok(()), || System.remove(path))
    }

    fn touch(&self, path: &Path, time: SystemTime) -> io::Result<()> {
        self.step(|| Ok(()), || System.touch(path, time))
    }
}

/// A folder, its file system and a tier on it.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub files: Watched,
    pub options: DiskOptions,
}

impl Place {
    pub fn new(cap: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = DiskOptions { retry: Duration::ZERO, block: BLOCK, ..DiskOptions::new(dir.path(), cap) };
        Place { files: Watched::new(dir.path()), options, dir }
    }

    pub fn open(&self) -> Disk {
        Disk::open_with(self.options.clone(), Arc::new(self.files.clone()))
    }

    /// The cache's files, by name.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = System.list(self.dir.path()).unwrap().into_iter().map(|file| file.name).collect();
        names.retain(|name| name.contains(".hearthkv"));
        names.sort();
        names
    }
}

/// A file's length with `tokens` tokens in it, give or take nothing: measured once.
pub fn block_bytes(tokens: usize) -> u64 {
    let place = Place::new(1 << 20);
    let disk = place.open();
    keep(&disk, &space("measure"), &talk(0, 0, tokens), STRIPS);
    disk.stats().bytes
}
