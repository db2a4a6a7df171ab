//! Preflight: is this machine quiet and roomy enough for a model? Pure judgement over [`Readings`]; every figure that
//! is beyond its limit becomes a sentence with the reading, the limit and what to do.

mod exempt;

use crate::probes::{Probes, System};
use crate::readings::{Process, Readings};
use serde::Serialize;
use std::time::Duration;

/// How long the CPU use of processes is measured.
const INTERVAL: Duration = Duration::from_millis(300);
/// What the user has.
const COMPUTER: &str = if cfg!(target_os = "macos") { "Mac" } else { "computer" };

/// What a machine may have and still be ready.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    /// Most bytes of swap in use.
    pub swap_used: u64,
    /// Least free memory in percent.
    pub memory_free_percent: f64,
    /// Least CPU speed in percent.
    pub cpu_speed_limit_percent: u32,
    /// Highest load average of one minute.
    pub load_1m: f64,
    /// Bytes that any other process has to stay below.
    pub process_memory: u64,
    /// CPU use in percent of one core that any other process has to stay below.
    pub process_cpu_percent: f64,
}

/// The limits.
pub const LIMITS: Limits = Limits {
    swap_used: 512_000_000,
    memory_free_percent: 35.0,
    cpu_speed_limit_percent: 100,
    load_1m: 8.0,
    process_memory: 2048 << 20,
    process_cpu_percent: 50.0,
};

impl Limits {
    /// Whether a process holds too much memory.
    pub(crate) fn holds_much(&self, process: &Process) -> bool {
        process.memory >= self.process_memory
    }

    /// Whether a process computes too much.
    pub(crate) fn computes_much(&self, process: &Process) -> bool {
        process.cpu_percent >= self.process_cpu_percent
    }
}

/// Which machine, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Its chip.
    pub chip: String,
    /// Installed memory in bytes; 0 when unknown.
    pub ram: u64,
    /// The moment, as RFC 3339 in UTC.
    pub time: String,
}

/// A preflight's result: what `hearth preflight --json` and `GET /api/hearth/preflight` show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Whether there are no problems.
    pub ok: bool,
    /// One sentence each: the reading, the limit, what to do.
    pub problems: Vec<String>,
    /// The moment, as RFC 3339 in UTC.
    pub time: String,
    /// The machine's name.
    pub host: String,
    /// Its chip.
    pub chip: String,
    /// Installed memory in bytes; 0 when unknown.
    pub ram: u64,
    /// The figures.
    pub readings: Readings,
    /// What they were held against.
    pub limits: Limits,
    /// Processes at or above the CPU limit that were forgiven, busiest first.
    pub allowed_cpu_processes: Vec<Process>,
    /// Processes at or above the CPU limit that were not, busiest first.
    pub background_cpu_processes: Vec<Process>,
    /// Processes at or above the memory limit, largest first. Nothing forgives these.
    pub big_processes: Vec<Process>,
}

/// Reads and judges this machine; takes a third of a second. `allow` are exact command lines whose CPU use is
/// forgiven; `own` are ids of Hearth's other processes (this one and what it started are always left out).
pub fn run(allow: &[String], own: &[u32]) -> Report {
    let probes = System::here();
    let own: Vec<u32> = own.iter().copied().chain([std::process::id()]).collect();
    let readings = Readings::take(&probes, INTERVAL, &own);
    let unknown = || "unknown".to_owned();
    let now = jiff::Timestamp::now();
    let machine = Machine {
        host: probes.host().unwrap_or_else(unknown),
        chip: probes.chip().unwrap_or_else(unknown),
        ram: probes.ram().unwrap_or(0),
        time: now.round(jiff::Unit::Second).unwrap_or(now).to_string(),
    };
    judge(readings, machine, allow)
}

/// Holds the readings against [`LIMITS`].
pub fn judge(readings: Readings, machine: Machine, allow: &[String]) -> Report {
    let foreign: Vec<&Process> = readings.processes.iter().flatten().filter(|p| !exempt::is_system(p)).collect();
    let pick = |wanted: &dyn Fn(&Process) -> bool| -> Vec<Process> {
        foreign.iter().filter(|p| wanted(p)).map(|&p| p.clone()).collect()
    };
    let allowed = |p: &Process| allow.contains(&p.command);
    let mut big = pick(&|p| LIMITS.holds_much(p));
    let mut forgiven = pick(&|p| LIMITS.computes_much(p) && allowed(p));
    let mut busy = pick(&|p| LIMITS.computes_much(p) && !allowed(p));
    big.sort_by(|a, b| b.memory.cmp(&a.memory).then(a.pid.cmp(&b.pid)));
    for list in [&mut forgiven, &mut busy] {
        list.sort_by(|a, b| b.cpu_percent.total_cmp(&a.cpu_percent).then(a.pid.cmp(&b.pid)));
    }
    let mut problems: Vec<String> =
        [swap(&readings), memory(&readings), speed(&readings), load(&readings)].into_iter().flatten().collect();
    if readings.processes.is_none() {
        problems.push(format!(
            "The processes cannot be read; Hearth wants to see that no other holds {} MiB or more or uses {} % of a CPU \
             core or more: run preflight outside of sandboxes and containers, or close other programs.",
            LIMITS.process_memory >> 20,
            LIMITS.process_cpu_percent
        ));
    }
    problems.extend(big.iter().map(holder));
    problems.extend(busy.iter().map(worker));
    Report {
        ok: problems.is_empty(),
        problems,
        time: machine.time,
        host: machine.host,
        chip: machine.chip,
        ram: machine.ram,
        readings,
        limits: LIMITS,
        allowed_cpu_processes: forgiven,
        background_cpu_processes: busy,
        big_processes: big,
    }
}

fn swap(readings: &Readings) -> Option<String> {
    let limit = LIMITS.swap_used;
    let wants = format!("Hearth wants at most {} MB", limit / 1_000_000);
    match readings.swap_used {
        Some(used) if used <= limit => None,
        Some(used) => Some(format!(
            "Swap in use is {}; {wants}: quit applications or restart the {COMPUTER}.",
            figure(|digits| decimal_size(used, digits), |shown| shown > limit as f64),
        )),
        None => Some(format!(
            "Swap in use cannot be read; {wants}: run preflight outside of sandboxes and containers, or restart the \
             {COMPUTER}."
        )),
    }
}

fn memory(readings: &Readings) -> Option<String> {
    let limit = LIMITS.memory_free_percent;
    match readings.memory_free_percent.filter(|free| free.is_finite()) {
        Some(free) if free >= limit => None,
        Some(free) => Some(format!(
            "Free memory is {} %; Hearth wants at least {limit} %: quit applications that hold much memory.",
            plain(free, |shown| shown < limit),
        )),
        None => Some(format!(
            "Free memory cannot be read; Hearth wants at least {limit} %: run preflight outside of sandboxes and \
             containers, or restart the {COMPUTER}."
        )),
    }
}

/// A machine without this figure has no problem.
fn speed(readings: &Readings) -> Option<String> {
    let limit = LIMITS.cpu_speed_limit_percent;
    let percent = readings.cpu_speed_limit_percent.filter(|&percent| percent < limit)?;
    Some(format!(
        "The CPU is limited to {percent} % of its speed; Hearth wants {limit} %: let the {COMPUTER} cool down, plug it in \
         and turn off low-power mode."
    ))
}

fn load(readings: &Readings) -> Option<String> {
    let limit = LIMITS.load_1m;
    match readings.load_1m.filter(|load| load.is_finite()) {
        Some(load) if load <= limit => None,
        Some(load) => Some(format!(
            "The load of the last minute is {}; Hearth wants at most {limit}: stop other work or wait until it is done.",
            plain(load, |shown| shown > limit),
        )),
        None => Some(format!(
            "The load of the last minute cannot be read; Hearth wants at most {limit}: run preflight outside of \
             sandboxes and containers, or restart the {COMPUTER}."
        )),
    }
}

fn holder(process: &Process) -> String {
    format!(
        "{} (process {}) holds {} MiB of memory; Hearth wants less than {} MiB in any other program: quit it.",
        printable(&process.name),
        process.pid,
        process.memory >> 20,
        LIMITS.process_memory >> 20
    )
}

fn worker(process: &Process) -> String {
    format!(
        "{} (process {}) uses {:.0} % of a CPU core; Hearth wants less than {} % in any other program: quit it, wait \
         until it is done, or forgive it with --allow-cpu-process and its exact command line.",
        printable(&process.name),
        process.pid,
        process.cpu_percent,
        LIMITS.process_cpu_percent
    )
}

/// Text that another program chose, without what could move the cursor or break the line.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // Beside control characters, those that turn the direction of writing.
        if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The number with the fewest digits from one decimal on that still says what was judged: 34.96 % below 35 % is not
/// shown as 35.0.
fn plain(value: f64, tells: impl Fn(f64) -> bool) -> String {
    figure(|digits| if digits > 6 { (value.to_string(), value) } else { rounded(value, digits, 1.0) }, tells)
}

/// Bytes in MB or GB with this many decimals, and the bytes that the text means. Six decimals of a MB are exact.
fn decimal_size(bytes: u64, digits: usize) -> (String, f64) {
    let (unit, name) = if bytes < 1_000_000_000 || digits > 6 { (1e6, "MB") } else { (1e9, "GB") };
    let (text, shown) = rounded(bytes as f64 / unit, digits.min(6), unit);
    (format!("{text} {name}"), shown)
}

fn rounded(value: f64, digits: usize, unit: f64) -> (String, f64) {
    let text = format!("{value:.digits$}");
    let shown = text.parse::<f64>().unwrap_or(value) * unit;
    (text, shown)
}

/// The first text whose number still tells.
fn figure(show: impl Fn(usize) -> (String, f64), tells: impl Fn(f64) -> bool) -> String {
    (1..7).map(&show).find(|(_, shown)| tells(*shown)).unwrap_or_else(|| show(7)).0
}

#[cfg(test)]
mod tests;
