//! `hearth cache`: the running server's prompt cache, its figures, to disk and away.

use crate::args::{CacheArgs, CacheCommand};
use crate::client::Client;
use crate::commands::running;
use crate::failure::Failure;
use crate::output::{self, counted, size};
use hearth_core::stats::{CacheClear, CacheFlush, CacheStats, SsdState};
use hearth_library::home::Home;

/// Shows, flushes or clears the prompt cache of the running server.
///
/// # Errors
/// Exit code 4 when no server runs, 1 when it refuses or a flush is not complete.
pub async fn run(command: &CacheCommand, home: &Home) -> Result<(), Failure> {
    let (CacheCommand::Stats(args) | CacheCommand::Flush(args) | CacheCommand::Clear(args)) = command;
    let client = client(args, home)?;
    match command {
        CacheCommand::Stats(_) => {
            let stats = client.stats().await?.cache;
            if args.json { output::json(&stats) } else { output::print(&shown(&stats)) }
        }
        CacheCommand::Flush(_) => {
            let flush = client.flush_cache().await?;
            if args.json {
                output::json(&flush)?;
            } else {
                output::line(&flushed(&flush))?;
            }
            incomplete(&flush)
        }
        CacheCommand::Clear(_) => {
            let clear = client.clear_cache().await?;
            if args.json { output::json(&clear) } else { output::line(&cleared(&clear)) }
        }
    }
}

/// The server that owns this home, or the one on the given port.
fn client(args: &CacheArgs, home: &Home) -> Result<Client, Failure> {
    let Some(port) = args.port else { return Ok(running::required(home)?.client) };
    match running::find(home, None) {
        Ok(Some(server)) if server.record.port == port => Ok(server.client),
        // Another home's server: its figures are for everybody, the rest needs a token that only that home has.
        _ => Client::new(&format!("http://127.0.0.1:{port}"), None),
    }
}

fn shown(stats: &CacheStats) -> String {
    let (ram, ssd) = (&stats.ram, &stats.ssd);
    let memory = match ram.cap {
        0 => "off".to_owned(),
        cap => format!(
            "{} of {} in {}, {} tokens",
            size(ram.bytes),
            size(cap),
            counted(ram.entries as u64, "entry", "entries"),
            ram.tokens
        ),
    };
    let disk = match ssd.state {
        SsdState::Off => "off".to_owned(),
        SsdState::Ready | SsdState::Failed => {
            let holds =
                format!("{} of {} in {}", size(ssd.bytes), size(ssd.cap), counted(ssd.files as u64, "file", "files"));
            // What is wrong comes first: the figures under it look like those of a tier that works.
            let wrong = match (ssd.state, &ssd.message) {
                (SsdState::Failed, Some(message)) => format!("failed: {message}\n        "),
                (SsdState::Failed, None) => "failed\n        ".to_owned(),
                (_, Some(message)) => format!("not all written: {message}\n        "),
                (_, None) => String::new(),
            };
            format!("{wrong}{holds}")
        }
    };
    let mut text = format!("memory  {memory}\n");
    if ram.cap > 0 {
        text.push_str(&format!(
            "        {}, {}, {} tokens reused, {} evicted\n",
            counted(ram.hits, "hit", "hits"),
            counted(ram.misses, "miss", "misses"),
            ram.reused_tokens,
            ram.evicted
        ));
    }
    text.push_str(&format!("disk    {disk}\n"));
    if ssd.state != SsdState::Off {
        let folder = ssd.dir.as_ref().map_or_else(String::new, |dir| format!("        {}\n", dir.display()));
        text.push_str(&format!(
            "        {}, {} tokens reused, {} evicted, {} waiting to be written\n{folder}",
            counted(ssd.hits, "hit", "hits"),
            ssd.reused_tokens,
            ssd.evicted,
            size(ssd.pending)
        ));
    }
    text
}

fn flushed(flush: &CacheFlush) -> String {
    let entries = counted(flush.entries as u64, "entry", "entries");
    format!("on disk: {entries}; {} written now", size(flush.bytes))
}

/// What a flush could not make durable, as a failure.
fn incomplete(flush: &CacheFlush) -> Result<(), Failure> {
    if flush.failed.is_empty() {
        return Ok(());
    }
    Err(Failure::no(format!("not on disk: {}", flush.failed.join("; "))))
}

fn cleared(clear: &CacheClear) -> String {
    format!(
        "removed {} from memory ({}) and {} from disk ({})",
        counted(clear.entries as u64, "entry", "entries"),
        size(clear.bytes),
        counted(clear.files as u64, "file", "files"),
        size(clear.file_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{RamCacheStats, SsdCacheStats};

    #[test]
    fn figures_are_readable() {
        let ram = RamCacheStats {
            cap: 2_000_000_000,
            bytes: 12_400_000,
            entries: 1,
            tokens: 900,
            hits: 4,
            misses: 1,
            reused_tokens: 3200,
            ..RamCacheStats::default()
        };
        let ssd = SsdCacheStats {
            state: SsdState::Failed,
            message: Some("the disk is full".into()),
            dir: Some("/tmp/cache".into()),
            cap: 32 << 30,
            bytes: 98_400_000,
            files: 12,
            pending: 5000,
            hits: 3,
            reused_tokens: 2048,
            ..SsdCacheStats::default()
        };
        let text = shown(&CacheStats { ram, ssd });
        for part in [
            "memory  12.4 MB of 2.0 GB in 1 entry, 900 tokens\n        4 hits, 1 miss, 3200 tokens reused, 0 evicted\n",
            "\ndisk    failed: the disk is full\n        98.4 MB of 34.4 GB in 12 files\n        3 hits, 2048 tokens",
            " reused, 0 evicted, 5.0 kB waiting to be written\n        /tmp/cache\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let off = shown(&CacheStats::default());
        assert_eq!(off, "memory  off\ndisk    off\n");
    }

    #[test]
    fn an_incomplete_flush_is_a_no() {
        let mut flush = CacheFlush { entries: 3, bytes: 4096, failed: Vec::new() };
        assert!(incomplete(&flush).is_ok());
        assert_eq!(flushed(&flush), "on disk: 3 entries; 4.1 kB written now");
        flush.failed = vec!["1 entry of 12 MB: the disk is full".into()];
        let failure = incomplete(&flush).unwrap_err();
        assert_eq!(failure.code, crate::failure::Code::No);
        assert_eq!(failure.message, "not on disk: 1 entry of 12 MB: the disk is full");
    }
}
