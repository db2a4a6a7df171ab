//! The log of predictions and measurements: JSON lines in the home, appended by servers and benchmarks at the same time,
//! and kept small. What cannot be read is skipped and counted; nothing depends on the log being there.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hearth_core::fit::Device;
use hearth_core::fit::learned::{Key, Learned, Record, bucket};
use hearth_core::kv_policy::KvPolicy;
use serde_json::Value;

use crate::LibraryError;
use crate::folder::config_of;
use crate::home::Home;
use crate::summary::Summary;

/// A log of more bytes is compacted.
const MOST_BYTES: u64 = 256 << 10;
/// Bytes that are read at most, from the end: a log that somebody else made large costs no more.
const MOST_READ: u64 = 4 * MOST_BYTES;
/// Lines that stay for each model, setting and bucket of contexts.
const KEPT_EACH: usize = 16;
/// Lines that stay in all.
const KEPT: usize = 512;
/// A longer line is not Hearth's.
const LONGEST_LINE: usize = 16 << 10;

/// The log of one home.
#[derive(Debug, Clone)]
pub struct Log {
    path: PathBuf,
}

/// What the log holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Records {
    /// What could be read, oldest first.
    pub list: Vec<Record>,
    /// Lines that could not.
    pub skipped: usize,
}

impl Log {
    /// The log of this home, there or not.
    pub fn of(home: &Home) -> Self {
        Log { path: home.learned() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything in it; nothing where there is no log yet.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if it is there and cannot be read.
    pub fn read(&self) -> Result<Records, LibraryError> {
        match File::open(&self.path) {
            Ok(file) => read(&file).map_err(LibraryError::io("read", &self.path)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Records::default()),
            Err(e) => Err(LibraryError::io("open", &self.path)(e)),
        }
    }

    /// What is known of this key and weights of so many bytes; nothing where the log cannot be read.
    pub fn of_key(&self, key: &Key, weights: u64) -> Learned {
        Learned::of(&self.read().unwrap_or_default().list, key, weights)
    }

    /// Adds a record, and compacts the log where it has grown too large. Other processes wait for that moment.
    ///
    /// # Errors
    /// [`LibraryError::Io`] if the home cannot be written.
    pub fn append(&self, record: &Record) -> Result<(), LibraryError> {
        let mut line = serde_json::to_string(record)
            .map_err(|e| LibraryError::mismatch(&self.path, "a record", "something that can be written as JSON", e))?;
        line.push('\n');
        // A lock of its own: compaction puts another file in the log's place.
        let lock_path = self.path.with_extension("lock");
        let open = OpenOptions::new().create(true).write(true).truncate(false).open(&lock_path);
        let lock = open.map_err(LibraryError::io("open", &lock_path))?;
        lock.lock().map_err(LibraryError::io("lock", &lock_path))?;
        let write = LibraryError::io("write", &self.path);
        let size = append(&self.path, &line).map_err(write)?;
        if size > MOST_BYTES {
            self.compact()?;
        }
        Ok(())
    }

    /// Leaves the latest lines of each model, setting and bucket. The lock is the caller's.
    fn compact(&self) -> Result<(), LibraryError> {
        let kept = latest(self.read()?.list);
        let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
        let mut file = tempfile::Builder::new()
            .prefix(".writing-")
            .tempfile_in(folder)
            .map_err(LibraryError::io("create a file in", folder))?;
        for record in &kept {
            let line = serde_json::to_string(record).unwrap_or_default();
            writeln!(file, "{line}").map_err(LibraryError::io("write", &self.path))?;
        }
        file.as_file().sync_all().map_err(LibraryError::io("write", &self.path))?;
        file.persist(&self.path).map_err(|e| LibraryError::io("replace", &self.path)(e.error))?;
        Ok(())
    }
}

/// The key of the model in this folder, computed on `device` with this version of MLX.
///
/// # Errors
/// [`LibraryError`] if its config cannot be read.
pub fn key_of(id: &str, dir: &Path, device: Device, kv: &KvPolicy, mlx: &str) -> Result<Key, LibraryError> {
    let quantization = Summary::of(&Value::Object(config_of(dir)?)).quantization;
    let quantization = quantization.map_or_else(|| "none".to_owned(), |q| q.label());
    Ok(Key::new(id, &quantization, device, &kv.signature(), mlx))
}

/// The latest records of each kind, oldest first.
fn latest(list: Vec<Record>) -> Vec<Record> {
    let mut seen: BTreeMap<(Key, u64, bool), usize> = BTreeMap::new();
    let mut kept: Vec<Record> = list
        .into_iter()
        .rev()
        .filter(|record| {
            let tokens = record.memory.map_or(0, |run| bucket(run.tokens));
            let count = seen.entry((record.key.clone(), tokens, record.speed.is_some())).or_default();
            *count += 1;
            *count <= KEPT_EACH
        })
        .take(KEPT)
        .collect();
    kept.reverse();
    kept
}

/// Appends a line; the size of the file afterwards.
fn append(path: &Path, line: &str) -> std::io::Result<u64> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let size = file.metadata()?.len();
    let mut text = String::new();
    if size > 0 {
        // A process that was killed may have left half a line.
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            text.push('\n');
        }
    }
    text.push_str(line);
    file.write_all(text.as_bytes())?;
    Ok(size + text.len() as u64)
}

fn read(mut file: &File) -> std::io::Result<Records> {
    let size = file.metadata()?.len();
    let mut records = Records::default();
    let from = size.saturating_sub(MOST_READ);
    file.seek(SeekFrom::Start(from))?;
    let mut lines = BufReader::new(file.take(MOST_READ)).split(b'\n');
    if from > 0 {
        // The rest of a line.
        lines.next();
    }
    for line in lines {
        let line = line?;
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice(&line) {
            Ok(record) if line.len() <= LONGEST_LINE => records.list.push(record),
            _ => records.skipped += 1,
        }
    }
    Ok(records)
}

/// Removes the log; no log is fine.
///
/// # Errors
/// [`LibraryError::Io`] if it cannot be removed.
pub fn forget(home: &Home) -> Result<(), LibraryError> {
    let path = home.learned();
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LibraryError::io("remove", &path)(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::fit::Device;
    use hearth_core::fit::learned::MemoryRun;

    fn record(model: &str, tokens: u64, at: u64) -> Record {
        let memory = MemoryRun { tokens, rows: 1, predicted: 10, predicted_transient: 4, measured: 12 };
        Record {
            at,
            from: "bench".into(),
            key: Key::new(model, "none", Device::Cpu, "float", "0.32.2"),
            weights: 6,
            memory: Some(memory),
            speed: None,
        }
    }

    fn log() -> (tempfile::TempDir, Log) {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::of(&Home::at(dir.path()));
        (dir, log)
    }

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_is_skipped() {
        let (_dir, log) = log();
        assert_eq!(log.read().unwrap(), Records::default());
        log.append(&record("a", 100, 1)).unwrap();
        // Half a line of a process that was killed, and what nobody wrote.
        let mut file = OpenOptions::new().append(true).open(log.path()).unwrap();
        file.write_all(b"not json\n\xff\xfe\n\n{\"at\": 1, \"fro").unwrap();
        log.append(&record("b", 200, 2)).unwrap();
        let read = log.read().unwrap();
        assert_eq!(read.list, [record("a", 100, 1), record("b", 200, 2)]);
        assert_eq!(read.skipped, 3);
    }

    #[test]
    fn the_log_stays_small_and_keeps_the_latest_of_each() {
        let (_dir, log) = log();
        log.append(&record("rare", 100, 0)).unwrap();
        for at in 1..3000 {
            log.append(&record("often", 600 + at % 2 * 2000, at)).unwrap();
        }
        assert!(fs::metadata(log.path()).unwrap().len() <= MOST_BYTES + 1000);
        let read = log.read().unwrap().list;
        assert_eq!(read[0].key.model, "rare", "it is the only one of its kind");
        assert_eq!(read.last().unwrap().at, 2999);
        assert!(read.is_sorted_by_key(|r| r.at));
    }

    #[test]
    fn several_write_at_the_same_time_and_nothing_is_lost() {
        let (_dir, log) = log();
        std::thread::scope(|scope| {
            for writer in 0..4u64 {
                let log = &log;
                scope.spawn(move || {
                    for n in 0..100 {
                        log.append(&record(&format!("m{writer}-{n}"), 100, n)).unwrap();
                    }
                });
            }
        });
        let read = log.read().unwrap();
        assert_eq!((read.list.len(), read.skipped), (400, 0));
    }

    #[test]
    fn a_log_that_somebody_made_large_costs_no_more() {
        let (dir, log) = log();
        fs::write(log.path(), "x".repeat(MOST_READ as usize + 10)).unwrap();
        log.append(&record("a", 1, 1)).unwrap();
        assert_eq!(log.read().unwrap().list, [record("a", 1, 1)]);
        assert!(fs::metadata(log.path()).unwrap().len() < 1000, "it was compacted");
        forget(&Home::at(dir.path())).unwrap();
        forget(&Home::at(dir.path())).unwrap();
        assert_eq!(log.read().unwrap(), Records::default());
    }
}
