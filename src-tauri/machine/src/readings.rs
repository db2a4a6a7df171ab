//! What a preflight reads, as data: figures of the machine, and the processes of others.

use crate::preflight::LIMITS;
use crate::probes::{Probes, Sample};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// macOS's thermal pressure, coolest first. From `heavy` on the system slows the machine down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Thermal {
    Nominal,
    Moderate,
    Heavy,
    Trapping,
    Sleeping,
}

/// macOS's memory pressure, as its last event said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Pressure {
    Normal,
    Warning,
    Critical,
}

/// Linux's memory pressure: shares of the last ten seconds, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryStall {
    /// Some task waited for memory.
    pub some_percent: f64,
    /// All tasks waited for memory.
    pub full_percent: f64,
}

/// Another program that runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// The file name of its executable.
    pub name: String,
    /// Its command line, arguments joined by one space; the name where it cannot be read.
    pub command: String,
    /// Bytes that it holds.
    pub memory: u64,
    /// CPU time in percent of one core.
    pub cpu_percent: f64,
    /// A thread of the kernel's own.
    #[serde(skip)]
    pub kernel: bool,
}

/// The figures of one preflight. `None`: the machine does not say.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Readings {
    /// Bytes of swap in use.
    pub swap_used: Option<u64>,
    /// Bytes of swap there are.
    pub swap_total: Option<u64>,
    /// Memory that programs could have without swapping, in percent of the whole.
    pub memory_free_percent: Option<f64>,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
    /// What the CPU's speed is limited to, in percent; many machines have no such figure.
    pub cpu_speed_limit_percent: Option<u32>,
    /// Load average of one minute.
    pub load_1m: Option<f64>,
    /// Load average of five minutes; recorded only.
    pub load_5m: Option<f64>,
    /// Load average of fifteen minutes; recorded only.
    pub load_15m: Option<f64>,
    /// macOS's thermal pressure; recorded only.
    pub thermal: Option<Thermal>,
    /// macOS's memory pressure; recorded only.
    pub memory_pressure: Option<Pressure>,
    /// Linux's memory pressure; recorded only.
    pub memory_stall: Option<MemoryStall>,
    /// macOS's `iogpu.wired_limit_mb`, 0 for the system's own choice; recorded only.
    pub iogpu_wired_limit_mb: Option<u64>,
    /// How many processes there are that could not be read.
    pub processes_unreadable: Option<u64>,
    /// How many processes of others were read.
    pub processes_read: Option<u64>,
    /// The processes of others.
    #[serde(skip)]
    pub processes: Option<Vec<Process>>,
}

impl Readings {
    /// Asks every probe. Takes `interval`, in which the CPU use of the processes is measured. `own` are Hearth's
    /// processes: they and what they started are left out.
    pub fn take(probes: &dyn Probes, interval: Duration, own: &[u32]) -> Self {
        let begin = Instant::now();
        let first = probes.processes();
        std::thread::sleep(interval.saturating_sub(begin.elapsed()));
        let elapsed = begin.elapsed();
        let second = probes.processes();
        let unreadable = second.as_ref().map(|samples| samples.unreadable);
        let processes = first.zip(second).map(|(first, second)| {
            let mut others = foreign(&first.list, &second.list, elapsed, own);
            // Those that count for nothing are never shown, and a command line takes a call of its own.
            for process in others.iter_mut().filter(|p| LIMITS.holds_much(p) || LIMITS.computes_much(p)) {
                process.command = probes.command(process.pid).unwrap_or_else(|| process.name.clone());
            }
            others
        });
        let (swap, memory, load) = (probes.swap(), probes.memory(), probes.load());
        Readings {
            swap_used: swap.map(|swap| swap.used),
            swap_total: swap.map(|swap| swap.total),
            memory_free_percent: memory.map(|memory| memory.free_percent),
            memory_used: memory.and_then(|memory| memory.used),
            cpu_speed_limit_percent: probes.cpu_speed_limit(),
            load_1m: load.map(|load| load[0]),
            load_5m: load.map(|load| load[1]),
            load_15m: load.map(|load| load[2]),
            thermal: probes.thermal(),
            memory_pressure: probes.pressure(),
            memory_stall: probes.memory_stall(),
            iogpu_wired_limit_mb: probes.gpu_wired_limit(),
            processes_unreadable: unreadable,
            processes_read: processes.as_ref().map(|list| list.len() as u64),
            processes,
        }
    }
}

/// The processes of the second sample that are not `own` and not descendants of these, with their CPU use since the
/// first one. One that began in between has no CPU use yet.
fn foreign(first: &[Sample], second: &[Sample], elapsed: Duration, own: &[u32]) -> Vec<Process> {
    let before: HashMap<(u32, u64), Duration> = first.iter().map(|p| ((p.pid, p.started), p.cpu)).collect();
    let own = family(second, own);
    let others = second.iter().filter(|p| !own.contains(&p.pid));
    let process = |p: &Sample| {
        let spent = before.get(&(p.pid, p.started)).map_or(Duration::ZERO, |&cpu| p.cpu.saturating_sub(cpu));
        let share = if elapsed.is_zero() { 0.0 } else { spent.as_secs_f64() / elapsed.as_secs_f64() };
        Process {
            pid: p.pid,
            name: p.name.clone(),
            command: p.name.clone(),
            memory: p.memory,
            cpu_percent: share * 100.0,
            kernel: p.kernel,
        }
    };
    others.map(process).collect()
}

/// These processes and all that they started.
fn family(samples: &[Sample], roots: &[u32]) -> HashSet<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for p in samples {
        children.entry(p.parent).or_default().push(p.pid);
    }
    let (mut known, mut open) = (HashSet::new(), roots.to_vec());
    while let Some(pid) = open.pop() {
        if known.insert(pid) {
            open.extend(children.get(&pid).into_iter().flatten());
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::System;

    fn sample(pid: u32, parent: u32, started: u64, cpu_ms: u64) -> Sample {
        let cpu = Duration::from_millis(cpu_ms);
        Sample { pid, parent, started, name: format!("p{pid}"), memory: 5, cpu, kernel: false }
    }

    #[test]
    fn cpu_use_is_that_between_the_samples() {
        let first = [sample(1, 0, 7, 100), sample(2, 0, 7, 1000), sample(3, 0, 7, 9000), sample(4, 0, 7, 50)];
        let second = [
            sample(1, 0, 7, 400),
            sample(2, 0, 7, 1150),
            sample(3, 0, 8, 9900), // another process under the same id
            sample(4, 0, 7, 40),   // a clock that went back
            sample(5, 0, 8, 300),  // new
        ];
        let found = foreign(&first, &second, Duration::from_millis(300), &[]);
        let shares: Vec<f64> = found.iter().map(|p| p.cpu_percent.round()).collect();
        assert_eq!(shares, [100.0, 50.0, 0.0, 0.0, 0.0]);
        let at_once = foreign(&first, &second, Duration::ZERO, &[]);
        assert!(at_once.iter().all(|p| p.cpu_percent == 0.0));
    }

    #[test]
    fn own_processes_and_their_children_are_left_out() {
        let all = [
            sample(1, 0, 1, 0),
            sample(10, 1, 1, 0),
            sample(11, 10, 1, 0),
            sample(12, 11, 1, 0),
            sample(20, 1, 1, 0),
            sample(30, 31, 1, 0), // a circle of parents ends
            sample(31, 30, 1, 0),
        ];
        let others =
            |own: &[u32]| foreign(&all, &all, Duration::from_secs(1), own).iter().map(|p| p.pid).collect::<Vec<_>>();
        assert_eq!(others(&[10]), [1, 20, 30, 31]);
        assert_eq!(others(&[11, 30]), [1, 10, 20]);
        assert_eq!(others(&[]).len(), 7);
    }

    #[test]
    fn a_busy_process_is_found_and_a_child_is_not_foreign() {
        struct Busy(std::process::Child);
        impl Drop for Busy {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }
        let busy = Busy(std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        let pid = busy.0.id();
        let own = Readings::take(&System::here(), Duration::from_millis(50), &[std::process::id()]);
        // Others may hold the cores for a while: it only has to come to its share in one of many intervals.
        let found = (0..100).find_map(|_| {
            let readings = Readings::take(&System::here(), Duration::from_millis(200), &[]);
            let list = readings.processes.unwrap();
            assert_eq!(readings.processes_read, Some(list.len() as u64));
            list.into_iter().find(|p| p.pid == pid && LIMITS.computes_much(p))
        });
        drop(busy);
        let found = found.expect("the busy process is seen");
        assert_eq!(found.command, "sh -c while :; do :; done");
        assert!(found.cpu_percent < 250.0 && found.memory > 0, "{found:?}");
        assert!(own.processes.unwrap().iter().all(|p| p.pid != pid && p.pid != std::process::id()));
        assert!(own.swap_used.is_some() && own.memory_free_percent.is_some() && own.load_1m.is_some());
    }
}
