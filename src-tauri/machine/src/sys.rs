//! System calls and /proc, one small function per figure.

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

#[cfg(target_os = "linux")]
pub fn memory() -> Memory {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (system, own) = (read("/proc/meminfo"), read("/proc/self/status"));
    Memory {
        total: kilobytes(&system, "MemTotal:"),
        available: kilobytes(&system, "MemAvailable:"),
        process: kilobytes(&own, "VmRSS:"),
        process_peak: peak(),
    }
}

/// The value of a `Name:   123 kB` line, in bytes.
#[cfg(target_os = "linux")]
fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(target_os = "macos")]
pub fn memory() -> Memory {
    let total = sysctl_u64(c"hw.memsize");
    let page = sysctl_u64(c"hw.pagesize");
    Memory { total, available: available_pages() * page, process: footprint(), process_peak: peak() }
}

#[cfg(target_os = "macos")]
fn sysctl_u64(name: &std::ffi::CStr) -> u64 {
    let (mut value, mut size) = (0u64, size_of::<u64>());
    // SAFETY: value and size describe the buffer; the call writes at most `size` bytes.
    let status =
        unsafe { libc::sysctlbyname(name.as_ptr(), (&raw mut value).cast(), &mut size, std::ptr::null_mut(), 0) };
    if status == 0 { value } else { 0 }
}

/// Pages that could be had without swapping: free, inactive, purgeable and speculative ones.
#[cfg(target_os = "macos")]
fn available_pages() -> u64 {
    // SAFETY: an all-zero structure is a valid one; the count is the structure's size in words, as the call wants.
    unsafe {
        let mut stats: libc::vm_statistics64 = std::mem::zeroed();
        let mut count = libc::HOST_VM_INFO64_COUNT;
        #[allow(deprecated)] // libc points to another crate for it; the call itself is current
        let host = libc::mach_host_self();
        let status = libc::host_statistics64(host, libc::HOST_VM_INFO64, (&raw mut stats).cast(), &mut count);
        if status != libc::KERN_SUCCESS {
            return 0;
        }
        [stats.free_count, stats.inactive_count, stats.purgeable_count].iter().map(|&n| u64::from(n)).sum()
    }
}

/// The physical footprint that Activity Monitor shows.
#[cfg(target_os = "macos")]
fn footprint() -> u64 {
    // SAFETY: an all-zero structure is a valid one, and the call fills the version that it is told.
    unsafe {
        let mut usage: libc::rusage_info_v4 = std::mem::zeroed();
        let status = libc::proc_pid_rusage(libc::getpid(), libc::RUSAGE_INFO_V4, (&raw mut usage).cast());
        if status == 0 { usage.ri_phys_footprint } else { 0 }
    }
}
