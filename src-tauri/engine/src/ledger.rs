//! Whether there is memory for something, asked before it is allocated.

/// Memory that is left to the system where no limit was set, in bytes.
const RESERVE: u64 = 512 << 20;

/// Whether `bytes` more fit: under the limit, where one was set, with `used` taken already; else in what the machine
/// has free.
pub fn has_room(limit: Option<u64>, used: u64, bytes: u64) -> bool {
    match limit {
        Some(limit) => used.saturating_add(bytes) <= limit,
        None => hearth_machine::memory().available >= bytes.saturating_add(RESERVE),
    }
}

#[cfg(test)]
mod tests {
    use super::has_room;

    #[test]
    fn a_limit_is_kept_and_without_one_the_machine_decides() {
        assert!(has_room(Some(100), 60, 40) && !has_room(Some(100), 60, 41));
        assert!(!has_room(None, 0, u64::MAX));
        assert!(has_room(None, u64::MAX, 1), "what is used already is no longer available");
    }
}
