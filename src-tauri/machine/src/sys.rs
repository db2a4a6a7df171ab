//! System calls and /proc, one small function per figure.

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "macos")]
pub mod macos;

use crate::Memory;

/// The most memory this process ever had resident, in bytes.
fn peak() -> u64 {
    // SAFETY: an all-zero rusage is a valid one, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    // Linux counts kilobytes, macOS bytes.
    usage.ru_maxrss as u64 * if cfg!(target_os = "macos") { 1 } else { 1024 }
}

/// glibc keeps freed buffers of up to 32 MB in its heap; this gives their pages back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn release_freed() {
    // SAFETY: takes a plain number; safe at any time on any thread.
    unsafe { libc::malloc_trim(0) };
}

/// macOS returns large buffers by itself, and asks processes for the rest under memory pressure.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn release_freed() {}

/// glibc learns from each large buffer that is freed to take the next ones from its heap, up to 32 MB, and to keep twice
/// that at the heap's end: buffers between those in use then hold pages that nobody has. From here on they are mapped.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn prepare_allocator() {
    // SAFETY: all take plain numbers, and change what later calls of malloc and free do.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 << 20);
        // Each further arena would keep up to that much at its own end, where `malloc_trim` does not look.
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// macOS maps large buffers.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn prepare_allocator() {}

#[cfg(target_os = "linux")]
pub fn memory() -> Memory {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (system, own) = (read("/proc/meminfo"), read("/proc/self/status"));
    let figure = |text: &str, name: &str| crate::probes::parse::kilobytes(text, name).unwrap_or(0);
    Memory {
        total: figure(&system, "MemTotal:"),
        available: figure(&system, "MemAvailable:"),
        process: figure(&own, "VmRSS:"),
        process_peak: peak(),
    }
}

#[cfg(target_os = "macos")]
pub fn memory() -> Memory {
    let page = macos::number(c"hw.pagesize").unwrap_or(0);
    Memory {
        total: macos::number(c"hw.memsize").unwrap_or(0),
        available: macos::pages().map_or(0, |pages| pages.available) * page,
        process: i32::try_from(std::process::id()).ok().and_then(macos::footprint).unwrap_or(0),
        process_peak: peak(),
    }
}

/// The kernel's own name for this start.
#[cfg(target_os = "linux")]
pub fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()
}

/// The kernel's own name for this start.
#[cfg(target_os = "macos")]
pub fn boot_id() -> Option<String> {
    macos::text(c"kern.bootsessionuuid")
}
