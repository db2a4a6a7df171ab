//! macOS: the level from sysctl, its changes from a dispatch source.

use super::Source;
use crate::readings::Pressure;
use crate::sys::macos as sys;
use hearth_core::stats::PressureLevel;
use std::time::Duration;

/// This machine.
#[derive(Debug, Clone)]
pub struct Mac;

impl Mac {
    /// This machine; from the first call on its changes are listened to.
    pub fn here() -> Self {
        sys::listen_to_pressure();
        Mac
    }
}

impl Source for Mac {
    fn level(&self) -> PressureLevel {
        let level = sys::number(c"kern.memorystatus_vm_pressure_level").and_then(crate::probes::parse::pressure);
        match level {
            Some(Pressure::Normal) => PressureLevel::Normal,
            Some(Pressure::Warning) => PressureLevel::Warning,
            Some(Pressure::Critical) => PressureLevel::Critical,
            None => PressureLevel::Unknown,
        }
    }

    /// macOS compresses and swaps before it ends a program: free pages say little, the level is what counts.
    fn available(&self) -> Option<u64> {
        None
    }

    fn own(&self) -> Option<u64> {
        Some(crate::memory().process).filter(|&bytes| bytes > 0)
    }

    fn wait(&self, patience: Duration) -> PressureLevel {
        sys::wait_for_pressure(patience);
        self.level()
    }
}
