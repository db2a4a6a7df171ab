//! macOS: one function around one system call each. None of them needs privileges.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::time::Duration;

/// A number by its sysctl name, whether the system keeps it in 4 or 8 bytes.
pub fn number(name: &CStr) -> Option<u64> {
    let (mut bytes, mut size) = ([0u8; 8], 8usize);
    // SAFETY: pointer and size describe the buffer; the call writes at most `size` bytes.
    let status = unsafe { libc::sysctlbyname(name.as_ptr(), bytes.as_mut_ptr().cast(), &mut size, null_mut(), 0) };
    match (status, size) {
        (0, 8) => Some(u64::from_ne_bytes(bytes)),
        (0, 4) => u64::try_from(i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).ok(),
        _ => None,
    }
}

/// A text by its sysctl name, up to 1023 bytes.
pub fn text(name: &CStr) -> Option<String> {
    let mut bytes = [0u8; 1024];
    let mut size = bytes.len();
    // SAFETY: pointer and size describe the buffer; the call writes at most `size` bytes.
    let status = unsafe { libc::sysctlbyname(name.as_ptr(), bytes.as_mut_ptr().cast(), &mut size, null_mut(), 0) };
    let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_string_lossy().into_owned();
    (status == 0).then_some(text)
}

/// Swap: bytes in use, bytes there are.
pub fn swap() -> Option<(u64, u64)> {
    let mut size = size_of::<libc::xsw_usage>();
    // SAFETY: an all-zero structure is a valid one; pointer and size describe it, and the call writes at most that.
    let (status, usage) = unsafe {
        let mut usage: libc::xsw_usage = std::mem::zeroed();
        let status = libc::sysctlbyname(c"vm.swapusage".as_ptr(), (&raw mut usage).cast(), &mut size, null_mut(), 0);
        (status, usage)
    };
    (status == 0 && size == size_of::<libc::xsw_usage>()).then_some((usage.xsu_used, usage.xsu_total))
}

/// Numbers of pages.
pub struct Pages {
    /// What programs could have without swapping: free (speculative ones are among them), inactive and purgeable.
    pub available: u64,
    /// What cannot be had by dropping copies of files: active, inactive, speculative, wired, compressor, less
    /// purgeable and file-backed ones.
    pub used: u64,
}

/// The system's pages.
pub fn pages() -> Option<Pages> {
    // SAFETY: an all-zero structure is a valid one; the count is the structure's size in words, as the call wants.
    let (status, stats) = unsafe {
        let mut stats: libc::vm_statistics64 = std::mem::zeroed();
        let mut count = libc::HOST_VM_INFO64_COUNT;
        #[allow(deprecated)] // libc points to another crate for it; the call itself is current
        let host = libc::mach_host_self();
        (libc::host_statistics64(host, libc::HOST_VM_INFO64, (&raw mut stats).cast(), &mut count), stats)
    };
    let sum = |counts: &[libc::natural_t]| counts.iter().map(|&n| u64::from(n)).sum::<u64>();
    let taken = [
        stats.active_count,
        stats.inactive_count,
        stats.speculative_count,
        stats.wire_count,
        stats.compressor_page_count,
    ];
    let dropped = [stats.purgeable_count, stats.external_page_count];
    (status == libc::KERN_SUCCESS).then(|| Pages {
        available: sum(&[stats.free_count, stats.inactive_count, stats.purgeable_count]),
        used: sum(&taken).saturating_sub(sum(&dropped)),
    })
}

/// Load averages of 1, 5 and 15 minutes.
pub fn load() -> Option<[f64; 3]> {
    let mut load = [0f64; 3];
    // SAFETY: the buffer holds the three numbers that are asked for.
    let n = unsafe { libc::getloadavg(load.as_mut_ptr(), 3) };
    (n == 3).then_some(load)
}

/// The physical footprint of a process that Activity Monitor shows, GPU buffers included. Own user's processes only.
pub fn footprint(pid: i32) -> Option<u64> {
    // SAFETY: an all-zero structure is a valid one, and the call fills the version that it is told.
    unsafe {
        let mut usage: libc::rusage_info_v4 = std::mem::zeroed();
        let status = libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V4, (&raw mut usage).cast());
        (status == 0).then_some(usage.ri_phys_footprint)
    }
}

/// The ids of all processes.
pub fn pids() -> Option<Vec<i32>> {
    // SAFETY: without a buffer the call only counts.
    let count = usize::try_from(unsafe { libc::proc_listallpids(null_mut(), 0) }).ok().filter(|&n| n > 0)?;
    // Room for those that begin meanwhile.
    let mut pids = vec![0i32; count + 256];
    let size = c_int::try_from(size_of_val(pids.as_slice())).ok()?;
    // SAFETY: pointer and size in bytes describe the buffer.
    let filled = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), size) };
    pids.truncate(usize::try_from(filled).ok().filter(|&n| n > 0)?);
    Some(pids)
}

/// What the system counts for one process.
pub struct Task {
    /// Its parent's id.
    pub parent: u32,
    /// When it began, in microseconds since 1970.
    pub started: u64,
    /// Resident bytes.
    pub resident: u64,
    /// CPU time of all its threads.
    pub cpu: Duration,
}

/// Figures of a process of the same user.
///
/// # Errors
/// `PermissionDenied` for other users' processes, something else when it is gone.
pub fn task(pid: i32) -> io::Result<Task> {
    let size = size_of::<libc::proc_taskallinfo>() as c_int;
    // SAFETY: an all-zero structure is a valid one; pointer and size describe it.
    let (filled, all) = unsafe {
        let mut all: libc::proc_taskallinfo = std::mem::zeroed();
        (libc::proc_pidinfo(pid, libc::PROC_PIDTASKALLINFO, 0, (&raw mut all).cast(), size), all)
    };
    if filled != size {
        return Err(io::Error::last_os_error());
    }
    let ticks = all.ptinfo.pti_total_user.saturating_add(all.ptinfo.pti_total_system);
    Ok(Task {
        parent: all.pbsd.pbi_ppid,
        started: all.pbsd.pbi_start_tvsec.saturating_mul(1_000_000).saturating_add(all.pbsd.pbi_start_tvusec),
        resident: all.ptinfo.pti_resident_size,
        cpu: Duration::from_nanos(nanoseconds(ticks)),
    })
}

/// CPU times are counted in the ticks of the machine's clock: 125/3 ns on Apple Silicon, 1 ns on Intel.
#[allow(deprecated)] // libc points to another crate for it; the call itself is current
fn nanoseconds(ticks: u64) -> u64 {
    let mut base = libc::mach_timebase_info { numer: 0, denom: 0 };
    // SAFETY: the call fills the structure.
    unsafe { libc::mach_timebase_info(&mut base) };
    let scaled = u128::from(ticks) * u128::from(base.numer) / u128::from(base.denom.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// `struct proc_bsdshortinfo` of `sys/proc_info.h`: the part of a process that every user may see.
#[repr(C)]
struct ShortInfo {
    pid: u32,
    parent: u32,
    group: u32,
    status: u32,
    name: [u8; 16],
    flags: u32,
    ids: [u32; 6],
    reserved: u32,
}

/// Parent and name (15 bytes of it) of anybody's process.
pub fn short_info(pid: i32) -> Option<(u32, String)> {
    let size = size_of::<ShortInfo>() as c_int;
    // SAFETY: an all-zero structure is a valid one; pointer and size describe it.
    let (filled, info) = unsafe {
        let mut info: ShortInfo = std::mem::zeroed();
        (libc::proc_pidinfo(pid, libc::PROC_PIDT_SHORTBSDINFO, 0, (&raw mut info).cast(), size), info)
    };
    let name = CStr::from_bytes_until_nul(&info.name).ok()?;
    (filled == size).then(|| (info.parent, name.to_string_lossy().into_owned()))
}

/// The path of a process's executable.
pub fn path(pid: i32) -> Option<String> {
    let mut bytes = vec![0u8; libc::PROC_PIDPATHINFO_MAXSIZE as usize];
    // SAFETY: pointer and size describe the buffer.
    let length = unsafe { libc::proc_pidpath(pid, bytes.as_mut_ptr().cast(), bytes.len() as u32) };
    let length = usize::try_from(length).ok().filter(|&n| n > 0)?;
    Some(String::from_utf8_lossy(bytes.get(..length)?).into_owned())
}

/// A process's arguments as the kernel keeps them; `parse::arguments` reads them. Own user's processes only.
pub fn raw_arguments(pid: i32) -> Option<Vec<u8>> {
    let mut bytes = vec![0u8; usize::try_from(number(c"kern.argmax")?).ok()?];
    let mut size = bytes.len();
    let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, pid];
    // SAFETY: the name has three parts; pointer and size describe the buffer, and the call writes at most that.
    let status = unsafe { libc::sysctl(name.as_mut_ptr(), 3, bytes.as_mut_ptr().cast(), &mut size, null_mut(), 0) };
    bytes.truncate(size);
    (status == 0).then_some(bytes)
}

mod notify {
    //! `notify.h`: states that the system publishes by name.
    use super::{c_char, c_int};

    unsafe extern "C" {
        pub fn notify_register_check(name: *const c_char, token: *mut c_int) -> u32;
        pub fn notify_get_state(token: c_int, state: *mut u64) -> u32;
        pub fn notify_cancel(token: c_int) -> u32;
    }
}

/// A number that the system publishes under this name.
pub fn published(name: &CStr) -> Option<u64> {
    let (mut token, mut state) = (0, 0u64);
    // SAFETY: the name is a C string, the token is filled before it is used, and it is given back.
    unsafe {
        if notify::notify_register_check(name.as_ptr(), &mut token) != 0 {
            return None;
        }
        let status = notify::notify_get_state(token, &mut state);
        notify::notify_cancel(token);
        (status == 0).then_some(state)
    }
}

mod frameworks {
    //! The part of IOKit and CoreFoundation that the CPU's speed limit needs.
    use super::{c_char, c_int, c_void};

    #[link(name = "IOKit", kind = "framework")]
    unsafe extern "C" {
        pub fn IOPMCopyCPUPowerStatus(status: *mut *const c_void) -> c_int;
    }

    #[link(name = "CoreFoundation", kind = "framework")]
    unsafe extern "C" {
        pub fn CFStringCreateWithCString(allocator: *const c_void, text: *const c_char, encoding: u32)
        -> *const c_void;
        pub fn CFDictionaryGetValue(dictionary: *const c_void, key: *const c_void) -> *const c_void;
        pub fn CFGetTypeID(object: *const c_void) -> usize;
        pub fn CFNumberGetTypeID() -> usize;
        pub fn CFNumberGetValue(number: *const c_void, kind: isize, value: *mut c_void) -> u8;
        pub fn CFRelease(object: *const c_void);
    }

    /// `kCFStringEncodingUTF8`.
    pub const UTF8: u32 = 0x0800_0100;
    /// `kCFNumberSInt64Type`.
    pub const SIGNED_64: isize = 4;
}

/// `CPU_Speed_Limit` in percent, as `pmset -g therm` shows it; most Macs with Apple Silicon publish none.
pub fn speed_limit() -> Option<i64> {
    use frameworks::*;
    let mut status = std::ptr::null();
    // SAFETY: both objects that the calls create are checked before use and released once; the value belongs to the
    // dictionary, is used while that lives, and is read as a number only when it is one.
    unsafe {
        if IOPMCopyCPUPowerStatus(&mut status) != 0 || status.is_null() {
            return None;
        }
        let mut percent = 0i64;
        let mut read = false;
        let key = CFStringCreateWithCString(std::ptr::null(), c"CPU_Speed_Limit".as_ptr(), UTF8);
        if !key.is_null() {
            let value = CFDictionaryGetValue(status, key);
            if !value.is_null() && CFGetTypeID(value) == CFNumberGetTypeID() {
                read = CFNumberGetValue(value, SIGNED_64, (&raw mut percent).cast()) != 0;
            }
            CFRelease(key);
        }
        CFRelease(status);
        read.then_some(percent)
    }
}

mod dispatch {
    //! The part of libdispatch that events of memory pressure need.
    use super::{c_int, c_void};

    /// `struct dispatch_source_type_s`, of which only the address matters.
    #[repr(C)]
    pub struct SourceType {
        opaque: [u8; 0],
    }

    unsafe extern "C" {
        #[link_name = "_dispatch_source_type_memorypressure"]
        pub static MEMORY_PRESSURE: SourceType;
        pub fn dispatch_source_create(
            kind: *const SourceType,
            handle: usize,
            mask: usize,
            queue: *mut c_void,
        ) -> *mut c_void;
        pub fn dispatch_source_set_event_handler_f(source: *mut c_void, handler: extern "C" fn(*mut c_void));
        pub fn dispatch_get_global_queue(class: isize, flags: usize) -> *mut c_void;
        pub fn dispatch_resume(object: *mut c_void);
    }

    /// `DISPATCH_MEMORYPRESSURE_NORMAL`, `_WARN` and `_CRITICAL`.
    pub const LEVELS: usize = 1 | 2 | 4;
    /// `QOS_CLASS_UTILITY`.
    pub const UTILITY: c_int = 0x11;
}

/// How often the level changed since [`listen_to_pressure`], and who waits for that.
static CHANGES: (std::sync::Mutex<u64>, std::sync::Condvar) = (std::sync::Mutex::new(0), std::sync::Condvar::new());

/// Called by libdispatch on a thread of its own.
extern "C" fn pressure_changed(_: *mut c_void) {
    *CHANGES.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
    CHANGES.1.notify_all();
}

/// Starts to listen to changes of the memory pressure, once in a process.
pub fn listen_to_pressure() {
    static STARTED: std::sync::Once = std::sync::Once::new();
    STARTED.call_once(|| {
        // SAFETY: the source is checked before it is used, lives as long as the process, and its handler has no
        // context to outlive.
        unsafe {
            let queue = dispatch::dispatch_get_global_queue(dispatch::UTILITY as isize, 0);
            let source =
                dispatch::dispatch_source_create(&raw const dispatch::MEMORY_PRESSURE, 0, dispatch::LEVELS, queue);
            if !source.is_null() {
                dispatch::dispatch_source_set_event_handler_f(source, pressure_changed);
                dispatch::dispatch_resume(source);
            }
        }
    });
}

/// Waits for a change of the memory pressure, for at most this long.
pub fn wait_for_pressure(patience: Duration) {
    let changes = CHANGES.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = *changes;
    let _ = CHANGES.1.wait_timeout_while(changes, patience, |now| *now == before);
}
