//! Linux: the time that programs wait for memory, and the limits of memory cgroups, all from files.

use super::Source;
use crate::probes::parse;
use hearth_core::stats::PressureLevel;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shares of the last ten seconds in which programs waited for memory, in percent: from here on it is a warning when
/// some did, and critical when all did.
const WARNING: f64 = 20.0;
const CRITICAL: f64 = 10.0;
/// What is left of a cgroup's limit, in percent of it: below these it is a warning, and critical.
const LOW: u64 = 4;
const LOWEST: u64 = 1;

/// This machine, or a copy of its files.
#[derive(Debug, Clone)]
pub struct Linux {
    proc: PathBuf,
    /// The folders of the memory cgroups that hold this process, the innermost first.
    groups: Vec<PathBuf>,
}

impl Linux {
    /// This machine.
    pub fn here() -> Self {
        Self::at(Path::new("/"))
    }

    /// The machine whose `proc` and `sys` are in this folder.
    pub fn at(root: &Path) -> Self {
        Self::of(&root.join("proc"), &root.join("sys"))
    }

    /// The machine with these `proc` and `sys`.
    pub(crate) fn of(proc: &Path, sys: &Path) -> Self {
        let text = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        Linux { proc: proc.to_owned(), groups: groups(&text, &sys.join("fs/cgroup")) }
    }

    /// What is left of the tightest cgroup: bytes, and the limit.
    pub(crate) fn left(&self) -> Option<(u64, u64)> {
        let all = self.groups.iter().filter_map(|group| group_left(group));
        all.min_by_key(|(left, _)| *left)
    }
}

impl Source for Linux {
    fn level(&self) -> PressureLevel {
        let of_file = |path: PathBuf| parse::memory_stall(&fs::read_to_string(path).ok()?);
        let system = of_file(self.proc.join("pressure/memory"));
        let group = self.groups.first().and_then(|group| of_file(group.join("memory.pressure")));
        let stalled = |test: fn(f64, f64) -> bool| {
            [system, group].iter().flatten().any(|stall| test(stall.some_percent, stall.full_percent))
        };
        let share = self.left().map(|(left, limit)| left.saturating_mul(100) / limit.max(1));
        let below = |percent: u64| share.is_some_and(|share| share < percent);
        if stalled(|_, full| full >= CRITICAL) || below(LOWEST) {
            PressureLevel::Critical
        } else if stalled(|some, _| some >= WARNING) || below(LOW) {
            PressureLevel::Warning
        } else if system.is_none() && share.is_none() {
            PressureLevel::Unknown
        } else {
            PressureLevel::Normal
        }
    }

    fn available(&self) -> Option<u64> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let system = parse::kilobytes(&text, "MemAvailable:")?;
        Some(self.left().map_or(system, |(left, _)| left.min(system)))
    }

    fn own(&self) -> Option<u64> {
        Some(crate::memory().process).filter(|&bytes| bytes > 0)
    }

    /// The kernel averages over ten seconds and updates every two: reading now and then misses nothing.
    fn wait(&self, patience: Duration) -> PressureLevel {
        std::thread::sleep(patience);
        self.level()
    }
}

/// The folders of a process's memory cgroups: its own, and those around it, whose limits hold as well.
fn groups(cgroup: &str, mount: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let root = match controllers {
            // Version 2 has one tree for everything.
            "" => mount.to_owned(),
            list if list.split(',').any(|name| name == "memory") => mount.join("memory"),
            _ => continue,
        };
        let inside = path.trim_matches('/');
        let own = root.join(inside);
        // In a container the path is that of the host, and what is mounted is the group itself.
        let start = if inside.is_empty() || !own.is_dir() { root.clone() } else { own };
        found.extend(start.ancestors().take_while(|folder| folder.starts_with(&root)).map(Path::to_owned));
    }
    found
}

/// What is left of one cgroup's limit, and the limit. Copies of files that nobody uses count as free.
fn group_left(group: &Path) -> Option<(u64, u64)> {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok();
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    // "max", or version 1's largest number: no limit.
    if limit >= 1 << 60 {
        return None;
    }
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = read("memory.stat").unwrap_or_default();
    let field = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    let droppable = field("total_inactive_file").or_else(|| field("inactive_file")).unwrap_or(0);
    Some((limit.saturating_sub(used.saturating_sub(droppable)), limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn psi(some: f64, full: f64) -> String {
        let line = |name: &str, n: f64| format!("{name} avg10={n:.2} avg60=0.00 avg300=0.00 total=1\n");
        line("some", some) + &line("full", full)
    }

    #[test]
    fn stalls_are_levels() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(Linux::at(root).level(), PressureLevel::Unknown);
        for (some, full, level) in [
            (0.0, 0.0, PressureLevel::Normal),
            (19.9, 9.9, PressureLevel::Normal),
            (20.0, 0.0, PressureLevel::Warning),
            (30.0, 10.0, PressureLevel::Critical),
        ] {
            write(root, "proc/pressure/memory", &psi(some, full));
            assert_eq!(Linux::at(root).level(), level, "{some} {full}");
        }
    }

    #[test]
    fn limits_of_both_versions_are_seen() {
        for version in [1, 2] {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path();
            write(root, "proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 4000 kB\n");
            let (line, folder, max, now) = match version {
                1 => {
                    ("4:cpu:/x\n3:memory,hugetlb:/a/b\n", "memory/a", "memory.limit_in_bytes", "memory.usage_in_bytes")
                }
                _ => ("0::/a/b\n", "a", "memory.max", "memory.current"),
            };
            write(root, "proc/self/cgroup", line);
            let group = format!("sys/fs/cgroup/{folder}");
            // The limit is that of the group around: its own has none.
            let inner = format!("{group}/b");
            write(root, &format!("{inner}/{max}"), if version == 1 { "9223372036854771712" } else { "max" });
            write(root, &format!("{group}/{max}"), "1000000\n");
            let used = |used: u64, inactive: u64| {
                write(root, &format!("{group}/{now}"), &used.to_string());
                write(root, &format!("{group}/memory.stat"), &format!("anon 5\ninactive_file {inactive}\n"));
                let linux = Linux::at(root);
                (linux.available().unwrap(), linux.level())
            };
            assert_eq!(used(400_000, 100_000), (700_000, PressureLevel::Normal), "{version}");
            assert_eq!(used(970_000, 0), (30_000, PressureLevel::Warning), "{version}");
            assert_eq!(used(995_000, 0), (5000, PressureLevel::Critical), "{version}");
            assert_eq!(used(2_000_000, 0), (0, PressureLevel::Critical), "{version}");
        }
    }

    #[test]
    fn in_a_container_the_mounted_group_is_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(root, "proc/meminfo", "MemAvailable: 4000000 kB\n");
        write(root, "proc/self/cgroup", "0::/host/only\n");
        write(root, "sys/fs/cgroup/memory.max", "5000\n");
        write(root, "sys/fs/cgroup/memory.current", "1000\n");
        assert_eq!(Linux::at(root).available(), Some(4000));
    }
}
