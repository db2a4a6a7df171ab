//! Opening the folder: its lock, what a killed run left, the index from the files' headers.

use super::format::{self, Kind, Seen};
use super::index::{Entry, Index, Node};
use super::key::{BLOCK, Key};
use super::shared::{Shared, nanos};
use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

/// The file whose lock says that the folder is in use.
const LOCK: &str = "hearth-cache.lock";

/// What became of the attempt to lock the folder.
enum Locked {
    /// It is ours until the process ends.
    Ours(File),
    /// It is another process's.
    Others(String),
    /// It can only be read.
    Unwritable(io::Error),
}

/// Makes the tier ready as far as possible; what is wrong is left as its failure.
pub fn prepare(shared: &Shared) -> bool {
    if let Err(e) = shared.files.make_dir(&shared.options.dir) {
        shared.fail(shared.explain("make the folder", &e), None);
        return false;
    }
    match lock(shared) {
        Locked::Ours(file) => shared.lock().lock = Some(file),
        Locked::Others(message) => {
            shared.fail(message, None);
            return false;
        }
        Locked::Unwritable(e) => shared.fail(shared.explain("write", &e), Some(shared.options.retry)),
    }
    let index = match scan(shared) {
        Ok(index) => index,
        Err(e) => {
            shared.fail(shared.explain("list files", &e), None);
            return false;
        }
    };
    shared.lock().index = index;
    if let Err(why) = shared.make_room(0, &HashSet::new()) {
        tracing::warn!("prompt cache on disk: over its cap: {why}");
    }
    true
}

/// Has the folder's lock, or tries once more to get it.
///
/// # Errors
/// Why there is none.
pub fn take_lock(shared: &Shared) -> Result<(), String> {
    if shared.lock().lock.is_some() {
        return Ok(());
    }
    match lock(shared) {
        Locked::Ours(file) => {
            shared.lock().lock = Some(file);
            // Nobody could remove them before.
            let listed = shared.files.list(&shared.options.dir).unwrap_or_default();
            for file in listed {
                if format::is_leftover(shared.files.as_ref(), &shared.path(&file.name), &file.name, file.bytes) {
                    shared.remove_file(&file.name);
                }
            }
            Ok(())
        }
        Locked::Others(message) => {
            shared.fail(message.clone(), Some(shared.options.retry));
            Err(message)
        }
        Locked::Unwritable(e) => {
            let message = shared.explain("write", &e);
            shared.fail(message.clone(), Some(shared.options.retry));
            Err(message)
        }
    }
}

fn lock(shared: &Shared) -> Locked {
    let path = shared.path(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = match options.open(&path) {
        Ok(file) => file,
        Err(e) => return Locked::Unwritable(e),
    };
    match file.try_lock() {
        Ok(()) => {
            // For the other one's message only.
            let pid = std::process::id().to_string();
            _ = file
                .set_len(0)
                .and_then(|()| file.seek(SeekFrom::Start(0)))
                .and_then(|_| file.write_all(pid.as_bytes()));
            Locked::Ours(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            _ = file.take(20).read_to_string(&mut pid);
            let who = pid.trim().parse::<u32>().map_or(String::new(), |pid| format!(" (process {pid})"));
            Locked::Others(format!(
                "{} is in use by another Hearth{who}: give this one another folder with --cache-dir; \
                 it runs without the prompt cache on disk",
                shared.options.dir.display()
            ))
        }
        Err(TryLockError::Error(e)) => Locked::Unwritable(e),
    }
}

/// Reads the header of every file; removes what is damaged and what a killed run left.
fn scan(shared: &Shared) -> io::Result<Index> {
    let (mut index, mut corrupt) = (Index::default(), 0);
    for file in shared.files.list(&shared.options.dir)? {
        let path = shared.path(&file.name);
        let files = shared.files.as_ref();
        let leftover = format::is_leftover(files, &path, &file.name, file.bytes);
        let seen = if leftover {
            Seen::Other
        } else {
            match format::look(files, &path, &file.name, file.bytes) {
                Ok(seen) => seen,
                Err(e) => {
                    tracing::warn!("prompt cache on disk: cannot read {}: {e}", path.display());
                    continue;
                }
            }
        };
        let mut entry =
            Entry { name: file.name, bytes: file.bytes, used: nanos(file.modified).max(1), pins: 0, node: None };
        let mut key = Key::of_name(&entry.name);
        match seen {
            Seen::Foreign => continue,
            Seen::Ours(header, _) => {
                key = header.key();
                entry.node = Some(Node::of(&header));
            }
            Seen::Other if leftover => {
                if shared.remove_file(&entry.name) {
                    continue;
                }
                entry.used = 0;
            }
            Seen::Other => {}
            Seen::Damaged(what) => {
                corrupt += 1;
                tracing::warn!("prompt cache on disk: {} is damaged and removed: {what}", path.display());
                if shared.remove_file(&entry.name) {
                    continue;
                }
                entry.used = 0;
            }
        }
        index.insert(key, entry);
    }
    shared.lock().counts.corrupt += corrupt;
    order(&mut index);
    Ok(index)
}

/// What nothing leads to is first to go, and what leads somewhere counts as used whenever that was.
fn order(index: &mut Index) {
    let mut nodes: Vec<(Key, Node, u64)> = Vec::new();
    for key in index.keys() {
        if let Some(entry) = index.get(&key) {
            nodes.extend(entry.node.clone().map(|node| (key, node, entry.used)));
        }
    }
    nodes.sort_by_key(|(_, node, _)| (node.start, node.kind == Kind::Snapshot));
    let mut reachable: HashSet<Key> = HashSet::new();
    for (key, node, _) in &nodes {
        let after_blocks = node.start == 0 || reachable.contains(&node.parent);
        let there = after_blocks && index.is_reachable(node) || node.kind == Kind::Snapshot && !node.continues_blocks;
        if there {
            reachable.insert(*key);
        } else {
            index.set_used(key, 0);
        }
    }
    for (key, node, _) in nodes.iter().rev().filter(|(key, ..)| reachable.contains(key)) {
        let used = index.get(key).map_or(0, |entry| entry.used);
        let parent = (node.start as usize >= BLOCK).then_some(node.parent);
        for before in parent.into_iter().chain(index.cover(node)) {
            if index.get(&before).is_some_and(|entry| entry.used < used) {
                index.set_used(&before, used);
            }
        }
    }
}
