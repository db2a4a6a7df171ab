//! Linux: every figure from /proc, the speed limit from /sys.

use crate::pressure::linux as pressure;
use crate::probes::{Probes, Sample, Samples, Swap, SystemMemory, parse};
use crate::readings::{MemoryStall, Pressure, Thermal};
use crate::sys::linux as sys;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// This machine, or a copy of its files.
#[derive(Debug, Clone)]
pub struct Linux {
    proc: PathBuf,
    sys: PathBuf,
}

impl Linux {
    /// This machine.
    pub fn here() -> Self {
        Self::at(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` are in this folder.
    pub fn at(root: &Path) -> Self {
        Linux { proc: root.join("proc"), sys: root.join("sys") }
    }

    /// The memory cgroups of this process.
    fn group(&self) -> pressure::Linux {
        pressure::Linux::of(&self.proc, &self.sys)
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.proc.join(file)).ok()
    }

    fn sample(&self, pid: u32, stat: &str, ticks: u64, page: u64) -> Option<Sample> {
        let stat = parse::stat(stat)?;
        let nanoseconds = u128::from(stat.ticks) * 1_000_000_000 / u128::from(ticks);
        let executable = fs::read_link(self.proc.join(pid.to_string()).join("exe")).ok();
        let name = executable.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
        Some(Sample {
            pid,
            parent: stat.parent,
            started: stat.started,
            // The link is not readable for other users' processes, and is marked when the file was replaced.
            name: name.map_or(stat.name, |name| name.trim_end_matches(" (deleted)").to_owned()),
            memory: stat.pages.saturating_mul(page),
            cpu: Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)),
            kernel: stat.kernel,
        })
    }
}

impl Probes for Linux {
    fn host(&self) -> Option<String> {
        Some(self.read("sys/kernel/hostname")?.trim().to_owned())
    }

    fn chip(&self) -> Option<String> {
        parse::model_name(&self.read("cpuinfo")?)
    }

    fn ram(&self) -> Option<u64> {
        let installed = parse::kilobytes(&self.read("meminfo")?, "MemTotal:")?;
        Some(self.group().left().map_or(installed, |(_, limit)| limit.min(installed)))
    }

    fn swap(&self) -> Option<Swap> {
        let text = self.read("meminfo")?;
        let total = parse::kilobytes(&text, "SwapTotal:")?;
        let free = parse::kilobytes(&text, "SwapFree:")?;
        Some(Swap { used: total.checked_sub(free)?, total })
    }

    fn memory(&self) -> Option<SystemMemory> {
        let text = self.read("meminfo")?;
        let total = parse::kilobytes(&text, "MemTotal:").filter(|&n| n > 0)?;
        let available = parse::kilobytes(&text, "MemAvailable:")?;
        let free = |available: u64, total: u64| available as f64 / total as f64 * 100.0;
        let mut free_percent = free(available, total);
        // A limit of a memory cgroup holds for Hearth, however much the machine has.
        if let Some((left, limit)) = self.group().left()
            && limit > 0
        {
            free_percent = free_percent.min(free(left, limit));
        }
        Some(SystemMemory { free_percent, used: Some(total.saturating_sub(available)) })
    }

    /// The lowest of the cores' limits. They are set by power profiles and by thermal protection.
    fn cpu_speed_limit(&self) -> Option<u32> {
        let policies = fs::read_dir(self.sys.join("devices/system/cpu/cpufreq")).ok()?;
        let limit = |policy: PathBuf| {
            let figure = |file: &str| fs::read_to_string(policy.join(file)).ok()?.trim().parse::<u64>().ok();
            let (limit, full) = (figure("scaling_max_freq")?, figure("cpuinfo_max_freq").filter(|&n| n > 0)?);
            // Whole percents: a turbo step is often written as 1 MHz more.
            u32::try_from((limit * 100 + full / 2) / full).ok()
        };
        policies.filter_map(|policy| limit(policy.ok()?.path())).min()
    }

    fn load(&self) -> Option<[f64; 3]> {
        parse::load(&self.read("loadavg")?)
    }

    fn thermal(&self) -> Option<Thermal> {
        None
    }

    fn pressure(&self) -> Option<Pressure> {
        None
    }

    fn memory_stall(&self) -> Option<MemoryStall> {
        parse::memory_stall(&self.read("pressure/memory")?)
    }

    fn gpu_wired_limit(&self) -> Option<u64> {
        None
    }

    fn processes(&self) -> Option<Samples> {
        let (ticks, page) = (sys::ticks_per_second()?, sys::page_size()?);
        let mut samples = Samples::default();
        for entry in fs::read_dir(&self.proc).ok()?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            match fs::read(entry.path().join("stat")) {
                Ok(bytes) => match self.sample(pid, &String::from_utf8_lossy(&bytes), ticks, page) {
                    Some(sample) => samples.list.push(sample),
                    None => samples.unreadable += 1,
                },
                // It ended between the listing and the reading.
                Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) => samples.unreadable += 1,
            }
        }
        (!samples.list.is_empty()).then_some(samples)
    }

    fn command(&self, pid: u32) -> Option<String> {
        parse::nul_separated(&fs::read(self.proc.join(pid.to_string()).join("cmdline")).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of files: path, content.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let linux = Linux::at(root.path());
        (root, linux)
    }

    #[test]
    fn reads_this_machine() {
        let here = Linux::here();
        assert!(!here.host().unwrap().is_empty());
        let (ram, swap, memory) = (here.ram().unwrap(), here.swap().unwrap(), here.memory().unwrap());
        assert!(ram > 1 << 28 && swap.used <= swap.total, "{ram} {swap:?}");
        assert!(memory.free_percent > 0.0 && memory.free_percent <= 100.0 && memory.used.unwrap() < ram, "{memory:?}");
        assert!(here.load().unwrap().iter().all(|load| (0.0..10_000.0).contains(load)));
        assert!(here.cpu_speed_limit().is_none_or(|percent| percent > 0));
        assert!(here.memory_stall().is_none_or(|stall| (0.0..=100.0).contains(&stall.some_percent)));
        let processes = here.processes().unwrap();
        let own = processes.list.iter().find(|p| p.pid == std::process::id()).unwrap();
        let test = std::env::current_exe().unwrap();
        assert_eq!(own.name, test.file_name().unwrap().to_string_lossy());
        assert!(own.memory > 1 << 16 && own.parent > 0 && !own.kernel && own.started > 0, "{own:?}");
        let arguments: Vec<String> = std::env::args().collect();
        assert_eq!(here.command(own.pid).unwrap(), arguments.join(" "));
    }

    #[test]
    fn a_speed_limit_is_the_lowest_of_the_cores() {
        let policy = |n: u32, file: &str| format!("sys/devices/system/cpu/cpufreq/policy{n}/{file}");
        let (turbo, full, slow) =
            (policy(0, "scaling_max_freq"), policy(0, "cpuinfo_max_freq"), policy(4, "scaling_max_freq"));
        let (_root, nearly) = machine(&[(&turbo, "3200000\n"), (&full, "3201000\n")]);
        assert_eq!(nearly.cpu_speed_limit(), Some(100), "a turbo step is no limit");
        let (_root, one) = machine(&[
            (&turbo, "3200000\n"),
            (&full, "3200000\n"),
            (&slow, "1500000\n"),
            (&policy(4, "cpuinfo_max_freq"), "2000000\n"),
        ]);
        assert_eq!(one.cpu_speed_limit(), Some(75));
        let (_root, none) = machine(&[(&turbo, "3200000\n")]);
        assert_eq!(none.cpu_speed_limit(), None);
    }

    #[test]
    fn what_is_not_there_is_not_guessed() {
        let (_root, empty) = machine(&[("proc/meminfo", "MemTotal: 1000 kB\nSwapTotal: 10 kB\n")]);
        assert_eq!((empty.host(), empty.chip(), empty.ram()), (None, None, Some(1_024_000)));
        assert_eq!((empty.swap(), empty.memory(), empty.load()), (None, None, None));
        assert_eq!((empty.memory_stall(), empty.processes(), empty.command(1)), (None, None, None));
    }

    #[test]
    fn processes_that_cannot_be_read_are_counted() {
        let (_root, linux) = machine(&[
            ("proc/7/stat", "7 (a b) c) S 1 7 7 0 -1 4194304 0 0 0 0 150 50 0 0 20 0 1 0 4242 0 1000 0\n"),
            ("proc/7/cmdline", "/bin/a\0--key\0a b\0"),
            ("proc/8/stat", "8 (x\n"),
            ("proc/9/status", "gone\n"),
            ("proc/uptime", "1 1\n"),
        ]);
        let samples = linux.processes().unwrap();
        assert_eq!((samples.list.len(), samples.unreadable), (1, 1), "{samples:?}");
        let seven = &samples.list[0];
        assert_eq!((seven.name.as_str(), seven.parent, seven.started), ("a b) c", 1, 4242));
        assert_eq!(seven.memory, 1000 * sys::page_size().unwrap());
        assert_eq!(seven.cpu, Duration::from_secs_f64(200.0 / sys::ticks_per_second().unwrap() as f64));
        assert_eq!(linux.command(7).unwrap(), "/bin/a --key a b");
    }
}
