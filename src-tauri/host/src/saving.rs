//! The prompt cache on its way to disk when Hearth ends.

use crate::words;
use hearth_core::Backend;
use hearth_core::stats::{CacheStats, SsdState};
use hearth_engine::EngineHandle;
use std::path::PathBuf;
use std::time::Duration;

/// What became of the prompt cache.
#[derive(Debug, Clone, PartialEq)]
pub enum Saved {
    /// There was nothing to save.
    Nothing,
    /// All of it is on disk.
    All {
        /// Bytes that it takes there.
        bytes: u64,
        /// Its folder.
        dir: PathBuf,
    },
    /// Some of it is lost, and why.
    Lost(String),
    /// The time was over.
    Late {
        /// How long that was.
        after: Duration,
        /// Bytes that were not written yet.
        pending: u64,
    },
}

impl Saved {
    /// What is lost and why, if anything is.
    pub fn lost(&self) -> Option<String> {
        match self {
            Saved::Nothing | Saved::All { .. } => None,
            Saved::Lost(why) => Some(why.clone()),
            Saved::Late { after, pending } => Some(format!(
                "the prompt cache is not all saved in {} s: {} are lost",
                after.as_secs_f64(),
                words::size(*pending)
            )),
        }
    }
}

/// Whether there is anything that an end in order brings to disk. With the tier off there is nothing to wait for, and
/// nothing that anybody would expect to find again.
pub fn has_to_be_saved(cache: &CacheStats) -> bool {
    cache.ssd.state != SsdState::Off && (cache.ram.entries > 0 || cache.ssd.pending > 0)
}

/// Writes what is not on disk yet, for at most `time`.
pub(crate) async fn save(engine: &EngineHandle, time: Duration) -> Saved {
    if !has_to_be_saved(&engine.stats().cache) {
        return Saved::Nothing;
    }
    match tokio::time::timeout(time, engine.flush_cache()).await {
        Ok(Ok(flush)) if flush.failed.is_empty() => {
            let ssd = engine.stats().cache.ssd;
            Saved::All { bytes: ssd.bytes, dir: ssd.dir.unwrap_or_default() }
        }
        Ok(Ok(flush)) => Saved::Lost(format!("the prompt cache is not all saved: {}", flush.failed.join("; "))),
        Ok(Err(lost)) => Saved::Lost(format!("the prompt cache is not saved: {lost}")),
        Err(_) => Saved::Late { after: time, pending: engine.stats().cache.ssd.pending },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::stats::{RamCacheStats, SsdCacheStats};

    #[test]
    fn what_is_lost_is_said_with_the_time_and_the_size() {
        let late = Saved::Late { after: Duration::from_secs(60), pending: 12_400_000 };
        assert_eq!(late.lost().unwrap(), "the prompt cache is not all saved in 60 s: 12.4 MB are lost");
        assert_eq!(Saved::All { bytes: 1, dir: PathBuf::new() }.lost(), None);
    }

    #[test]
    fn only_what_is_in_memory_and_has_a_place_on_disk_is_waited_for() {
        let ram = RamCacheStats { entries: 1, ..RamCacheStats::default() };
        let ssd = SsdCacheStats { state: SsdState::Ready, ..SsdCacheStats::default() };
        assert!(has_to_be_saved(&CacheStats { ram: ram.clone(), ssd: ssd.clone() }));
        assert!(!has_to_be_saved(&CacheStats { ram, ssd: SsdCacheStats::default() }), "the tier is off");
        assert!(!has_to_be_saved(&CacheStats { ram: RamCacheStats::default(), ssd }), "nothing is there");
    }
}
