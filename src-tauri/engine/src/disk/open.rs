//! Opening the folder: its lock, what a killed run left, the index from the files' headers.

use super::format::{self, Kind, Seen};
use super::index::{Entry, Index, Node};
use super::key::Key;
use super::shared::{Shared, nanos};
use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

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

/// Makes the tier ready as far as possible; what is wrong is left as its failure, to be tried again.
pub fn prepare(shared: &Shared) {
    let retry = Some(shared.options.retry);
    if let Err(e) = shared.files.make_dir(&shared.options.dir) {
        return shared.fail(shared.explain("make the folder", &e), retry);
    }
    match lock(shared) {
        Locked::Ours(file) => {
            let mut state = shared.lock();
            (state.lock, state.failure) = (Some(file), None);
        }
        Locked::Others(message) => return shared.fail(message, retry),
        Locked::Unwritable(e) => shared.fail(shared.explain("write", &e), retry),
    }
    match scan(shared) {
        Ok(index) => {
            let mut state = shared.lock();
            (state.index, state.prepared) = (index, true);
        }
        Err(e) => return shared.fail(shared.explain("list files", &e), retry),
    }
    if let Err(why) = shared.make_room(0, &HashSet::new()) {
        tracing::warn!("prompt cache on disk: over its cap: {why}");
    }
}

/// Does what could not be done at the start, if it is time to try again.
pub fn prepare_again(shared: &Shared) {
    let due = {
        let state = shared.lock();
        !state.prepared && state.refusal().is_none()
    };
    if due {
        prepare(shared);
    }
    shared.lock().preparing = false;
}

/// Whether the lock that is held is that of the folder as it is now.
fn is_current(shared: &Shared) -> bool {
    let held = shared.lock().lock.as_ref().map(File::metadata);
    let there = std::fs::symlink_metadata(shared.path(LOCK));
    matches!((held, there), (Some(Ok(a)), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Has the folder's lock, or tries once more to get it. A folder that is gone is made again.
///
/// # Errors
/// Why there is none.
pub fn take_lock(shared: &Shared) -> Result<(), String> {
    if !shared.lock().prepared {
        return Err(shared.lock().failure.as_ref().map_or("not ready".to_owned(), |f| f.message.clone()));
    }
    if is_current(shared) {
        return Ok(());
    }
    // The folder or its lock was removed, and another process may have made them anew.
    let lost = shared.lock().lock.take().is_some();
    if lost {
        shared.forget_vanished();
    }
    let made = shared.files.make_dir(&shared.options.dir);
    match made.map_or_else(Locked::Unwritable, |()| lock(shared)) {
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

/// Opens the lock's file and nothing in its place: neither what a link leads to nor a pipe that nobody reads.
fn open_lock(shared: &Shared) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let not_a_file = || io::Error::other(format!("{LOCK} is not a regular file: remove it"));
    let file = match options.open(shared.path(LOCK)) {
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(not_a_file()),
        opened => opened?,
    };
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

/// The process that wrote itself into the lock's file: `Some(None)` if nothing is in there, `None` if it is
/// something else.
fn owner(mut file: &File) -> Option<Option<u32>> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(20).read_to_string(&mut text).ok()?;
    if text.is_empty() { Some(None) } else { text.trim().parse().ok().map(Some) }
}

fn lock(shared: &Shared) -> Locked {
    let mut file = match open_lock(shared) {
        Ok(file) => file,
        Err(e) => return Locked::Unwritable(e),
    };
    match file.try_lock() {
        Ok(()) => {
            // For the other one's message only; what somebody else wrote stays.
            if owner(&file).is_some() {
                let pid = std::process::id().to_string();
                _ = file
                    .set_len(0)
                    .and_then(|()| file.seek(SeekFrom::Start(0)))
                    .and_then(|_| file.write_all(pid.as_bytes()));
            }
            Locked::Ours(file)
        }
        Err(TryLockError::WouldBlock) => {
            let who = owner(&file).flatten().map_or(String::new(), |pid| format!(" (process {pid})"));
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
                let gone = shared.remove_file(&entry.name);
                let removed = if gone { " and removed" } else { "" };
                tracing::warn!("prompt cache on disk: {} is damaged{removed}: {what}", path.display());
                if gone {
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
        let parent = (node.start > 0).then_some(node.parent);
        for before in parent.into_iter().chain(index.cover(node)) {
            if index.get(&before).is_some_and(|entry| entry.used < used) {
                index.set_used(&before, used);
            }
        }
    }
}
