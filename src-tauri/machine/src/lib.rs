//! What the machine has and does. No MLX in here.
//!
//! ```
//! let memory = hearth_machine::memory();
//! assert!(memory.process > 0);
//! ```

pub mod chips;
pub mod preflight;
pub mod pressure;
pub mod probes;
pub mod readings;
mod sys;

/// Memory in bytes at one moment. A figure that the system does not give is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Installed.
    pub total: u64,
    /// What programs could still take without swapping.
    pub available: u64,
    /// This process: resident set on Linux, physical footprint on macOS (where the resident set misses GPU buffers).
    pub process: u64,
    /// The most that `process` ever was (on macOS, the resident set's peak).
    pub process_peak: u64,
}

/// Reads the memory figures.
pub fn memory() -> Memory {
    sys::memory()
}

/// Which start of the computer this is: another text after each. `None` where the system does not say.
pub fn boot_id() -> Option<String> {
    sys::boot_id().map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Gives memory that was freed, and that the allocator kept, back to the system. Takes milliseconds: for idle moments, and
/// after work that takes hundreds of them.
pub fn release_freed() {
    sys::release_freed();
}

/// Has the C library take large buffers from the system and give them back at once, and the others of all threads from one
/// heap: at 8,192 tokens SmolLM2 held 70 MB of pages without the one that no buffer had, and the idle level rose by tens of
/// megabytes in half an hour without the other. For the start of a process, before it has threads.
pub fn prepare_allocator() {
    sys::prepare_allocator();
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_start_of_the_computer_has_one_name() {
        let id = super::boot_id().unwrap();
        assert!(id.len() >= 8 && Some(id) == super::boot_id());
    }

    #[test]
    fn the_figures_are_plausible() {
        let m = super::memory();
        assert!(m.total > 1 << 28 && m.available <= m.total, "{m:?}");
        assert!(m.process > 1 << 16 && m.process <= m.total && m.process_peak >= m.process / 2, "{m:?}");
    }
}
