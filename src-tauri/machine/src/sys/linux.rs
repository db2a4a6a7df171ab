//! The two constants that figures in /proc are counted in.

/// Clock ticks in a second of CPU time.
pub fn ticks_per_second() -> Option<u64> {
    // SAFETY: takes a plain number; safe at any time on any thread.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|&n| n > 0)
}

/// Bytes in a page.
pub fn page_size() -> Option<u64> {
    // SAFETY: takes a plain number; safe at any time on any thread.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|&n| n > 0)
}
