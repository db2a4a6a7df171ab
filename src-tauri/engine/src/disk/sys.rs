//! The system call that makes the writer's thread step back behind those that compute.

/// The calling thread yields to all others: nice 10.
#[cfg(target_os = "linux")]
pub fn step_back() {
    // SAFETY: takes plain numbers; on Linux, 0 is the calling thread. A refusal changes nothing.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 10) };
}

/// The calling thread does work that nobody waits for: the system gives it the efficient cores.
#[cfg(target_os = "macos")]
pub fn step_back() {
    // SAFETY: takes a class and a plain number, for the calling thread. A refusal changes nothing.
    unsafe { libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_UTILITY, 0) };
}

/// Other systems have no such call that is worth making.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub fn step_back() {}
