//! macOS: system calls; `ps` alone is started, for the processes of other users, whose figures only it may read.

use crate::probes::{Probes, Sample, Samples, Swap, SystemMemory, parse};
use crate::readings::{MemoryStall, Pressure, Thermal};
use crate::sys::macos as sys;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::process::{Command, Stdio};

/// This Mac.
#[derive(Debug, Clone, Copy)]
pub struct Mac;

impl Mac {
    /// This machine.
    pub fn here() -> Self {
        Mac
    }
}

/// The file name of a path.
fn file_name(path: String) -> String {
    path.rsplit('/').next().map(str::to_owned).unwrap_or(path)
}

/// What `ps`, which runs with more rights, says of every process.
fn ps() -> HashMap<u32, parse::PsRow> {
    let mut command = Command::new("/bin/ps");
    command.args(["-axo", "pid=,rss=,time="]).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(output) = command.output() else { return HashMap::new() };
    parse::ps(&String::from_utf8_lossy(&output.stdout)).into_iter().map(|row| (row.pid, row)).collect()
}

impl Probes for Mac {
    fn host(&self) -> Option<String> {
        sys::text(c"kern.hostname")
    }

    fn chip(&self) -> Option<String> {
        sys::text(c"machdep.cpu.brand_string")
    }

    fn ram(&self) -> Option<u64> {
        sys::number(c"hw.memsize")
    }

    fn swap(&self) -> Option<Swap> {
        sys::swap().map(|(used, total)| Swap { used, total })
    }

    /// The percentage is the one that `memory_pressure -Q` shows; from the pages when the system does not say it.
    fn memory(&self) -> Option<SystemMemory> {
        let used = sys::pages().zip(sys::number(c"hw.pagesize")).map(|(pages, size)| pages.used.saturating_mul(size));
        let total = self.ram().filter(|&n| n > 0);
        let free_percent = match sys::number(c"kern.memorystatus_level") {
            Some(percent) => percent as f64,
            None => total.zip(used).map(|(total, used)| total.saturating_sub(used) as f64 / total as f64 * 100.0)?,
        };
        Some(SystemMemory { free_percent, used })
    }

    fn cpu_speed_limit(&self) -> Option<u32> {
        u32::try_from(sys::speed_limit()?).ok()
    }

    fn load(&self) -> Option<[f64; 3]> {
        sys::load()
    }

    fn thermal(&self) -> Option<Thermal> {
        parse::thermal(sys::published(c"com.apple.system.thermalpressurelevel")?)
    }

    fn pressure(&self) -> Option<Pressure> {
        parse::pressure(sys::number(c"kern.memorystatus_vm_pressure_level")?)
    }

    fn memory_stall(&self) -> Option<MemoryStall> {
        None
    }

    fn gpu_wired_limit(&self) -> Option<u64> {
        sys::number(c"iogpu.wired_limit_mb")
    }

    fn processes(&self) -> Option<Samples> {
        let mut samples = Samples::default();
        let mut refused = Vec::new();
        for id in sys::pids()? {
            let Ok(pid) = u32::try_from(id) else { continue };
            let name = || sys::path(id).map(file_name).or_else(|| sys::short_info(id).map(|(_, name)| name));
            match sys::task(id) {
                Ok(task) => samples.list.push(Sample {
                    pid,
                    parent: task.parent,
                    started: task.started,
                    name: name().unwrap_or_default(),
                    memory: task.resident.max(sys::footprint(id).unwrap_or(0)),
                    cpu: task.cpu,
                    kernel: pid == 0,
                }),
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    refused.push((pid, sys::short_info(id).map_or(0, |(parent, _)| parent), name()));
                }
                // It ended since the listing.
                Err(_) => {}
            }
        }
        let others = if refused.is_empty() { HashMap::new() } else { ps() };
        for (pid, parent, name) in refused {
            match (others.get(&pid), name) {
                (Some(row), Some(name)) => samples.list.push(Sample {
                    pid,
                    parent,
                    started: 0,
                    name,
                    memory: row.memory,
                    cpu: row.cpu,
                    kernel: pid == 0,
                }),
                _ => samples.unreadable += 1,
            }
        }
        (!samples.list.is_empty()).then_some(samples)
    }

    fn command(&self, pid: u32) -> Option<String> {
        let id = i32::try_from(pid).ok()?;
        sys::raw_arguments(id).and_then(|bytes| parse::arguments(&bytes)).or_else(|| sys::path(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_machine() {
        let here = Mac::here();
        assert!(here.host().is_some() && here.chip().is_some());
        let (ram, swap, memory) = (here.ram().unwrap(), here.swap().unwrap(), here.memory().unwrap());
        assert!(ram > 1 << 30 && swap.used <= swap.total, "{ram} {swap:?}");
        assert!(memory.free_percent > 0.0 && memory.free_percent <= 100.0 && memory.used.unwrap() < ram, "{memory:?}");
        assert!(here.load().unwrap().iter().all(|load| *load >= 0.0));
        assert!(here.pressure().is_some());
        let processes = here.processes().unwrap();
        let own = processes.list.iter().find(|p| p.pid == std::process::id()).unwrap();
        let test = std::env::current_exe().unwrap();
        assert_eq!(own.name, test.file_name().unwrap().to_string_lossy());
        assert!(own.memory > 1 << 16 && own.parent > 0, "{own:?}");
        let arguments: Vec<String> = std::env::args().collect();
        assert_eq!(here.command(own.pid).unwrap(), arguments.join(" "));
        assert!(processes.list.iter().any(|p| p.name == "launchd"), "other users' processes are read too");
    }
}
