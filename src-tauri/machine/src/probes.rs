//! Where readings come from: a trait with one question per figure, and this system's answers.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
pub(crate) mod parse;

#[cfg(target_os = "linux")]
pub use linux::Linux as System;
#[cfg(target_os = "macos")]
pub use macos::Mac as System;

use crate::readings::{MemoryStall, Pressure, Thermal};
use std::time::Duration;

/// Swap space in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// In use.
    pub used: u64,
    /// There is.
    pub total: u64,
}

/// The system's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SystemMemory {
    /// What programs could have without swapping, in percent of the whole, as the system counts it.
    pub free_percent: f64,
    /// Bytes in use that are no droppable copies of files; `None` when only the percentage is known.
    pub used: Option<u64>,
}

/// One process at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// When it began, in a unit of the system's: tells processes with the same id apart.
    pub started: u64,
    /// The file name of its executable.
    pub name: String,
    /// Bytes it holds: the resident set; on macOS the physical footprint where that is more (the set misses GPU buffers).
    pub memory: u64,
    /// CPU time so far, of all threads.
    pub cpu: Duration,
    /// A thread of the kernel's own.
    pub kernel: bool,
}

/// All processes at one moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Samples {
    /// Those that could be read.
    pub list: Vec<Sample>,
    /// How many are there that could not be read.
    pub unreadable: u64,
}

/// What a machine can be asked. `None`: it does not say.
pub trait Probes {
    /// The machine's name.
    fn host(&self) -> Option<String>;
    /// The name of its chip.
    fn chip(&self) -> Option<String>;
    /// Installed memory in bytes.
    fn ram(&self) -> Option<u64>;
    /// Swap space.
    fn swap(&self) -> Option<Swap>;
    /// Memory in use.
    fn memory(&self) -> Option<SystemMemory>;
    /// What the CPU's speed is limited to now, in percent of its full speed. Many machines have no such figure.
    fn cpu_speed_limit(&self) -> Option<u32>;
    /// Load averages of 1, 5 and 15 minutes.
    fn load(&self) -> Option<[f64; 3]>;
    /// macOS's thermal pressure.
    fn thermal(&self) -> Option<Thermal>;
    /// macOS's memory pressure.
    fn pressure(&self) -> Option<Pressure>;
    /// How much programs wait for memory (Linux).
    fn memory_stall(&self) -> Option<MemoryStall>;
    /// macOS's `iogpu.wired_limit_mb`; 0 is the system's own choice.
    fn gpu_wired_limit(&self) -> Option<u64>;
    /// The processes now.
    fn processes(&self) -> Option<Samples>;
    /// A process's command line, arguments joined by one space.
    fn command(&self, pid: u32) -> Option<String>;
}
