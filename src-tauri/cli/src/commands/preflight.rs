//! `hearth preflight`: is this computer quiet and roomy enough for a model now, and what to do where it is not.

use crate::args::PreflightArgs;
use crate::failure::Failure;
use crate::output::{self, size};
use hearth_library::home::Home;
use hearth_machine::preflight::{self, Report, printable};
use hearth_machine::readings::{Process, Readings};

/// Reads and judges this computer.
///
/// # Errors
/// Exit code 1 when there are problems.
pub fn run(args: &PreflightArgs, home: &Home) -> Result<(), Failure> {
    // Hearth's own server is no foreign program. Where the home cannot be looked at there is none to exempt.
    let server = home.inspect().ok().flatten().and_then(|holder| holder.pid);
    let report = preflight::run(&args.allow_cpu_process, &server.into_iter().collect::<Vec<_>>());
    if args.json {
        output::json(&report)?;
    } else {
        output::print(&shown(&report))?;
    }
    match report.ok {
        true => Ok(()),
        // The report has said it.
        false => Err(Failure::no("")),
    }
}

fn shown(report: &Report) -> String {
    let mut text = format!(
        "{}, {}, {}, {}\n\n",
        printable(&report.host),
        report.chip,
        if report.ram == 0 { "memory unknown".to_owned() } else { size(report.ram) },
        report.time
    );
    for (name, figure) in figures(&report.readings) {
        text.push_str(&format!("{name:<10} {figure}\n"));
    }
    if !report.allowed_cpu_processes.is_empty() {
        text.push_str("\nforgiven:\n");
        text.extend(report.allowed_cpu_processes.iter().map(command));
    }
    if report.ok {
        text.push_str("\nok: ready for a model\n");
        return text;
    }
    text.push_str("\nproblems:\n");
    for problem in &report.problems {
        text.push_str(&format!("  {problem}\n"));
    }
    if !report.background_cpu_processes.is_empty() {
        text.push_str("\ncommand lines of those that use the CPU:\n");
        text.extend(report.background_cpu_processes.iter().map(command));
    }
    text
}

/// Each reading with its name; those that this system does not have are left out.
fn figures(r: &Readings) -> Vec<(&'static str, String)> {
    let unknown = || "cannot be read".to_owned();
    let of = |total: Option<u64>| total.map_or_else(String::new, |total| format!(" of {}", size(total)));
    let swap = r.swap_used.map_or_else(unknown, |used| format!("{}{} used", size(used), of(r.swap_total)));
    let number = |n: Option<f64>| n.map_or_else(|| "?".to_owned(), |n| format!("{n:.2}"));
    let free = r.memory_free_percent.map_or_else(unknown, |percent| format!("{percent:.1} % free"));
    let used = r.memory_used.map_or_else(String::new, |used| format!(", {} used", size(used)));
    let load = [r.load_1m, r.load_5m, r.load_15m].map(number).join(", ");
    let unreadable = match r.processes_unreadable {
        None | Some(0) => String::new(),
        Some(n) => format!(", and {n} that cannot be read"),
    };
    let named = |value: Option<String>| value.unwrap_or_else(|| "not reported".to_owned());
    let mut figures = vec![
        ("swap", swap),
        ("memory", format!("{free}{used}")),
        ("cpu speed", named(r.cpu_speed_limit_percent.map(|percent| format!("{percent} %")))),
        ("load", format!("{load} in 1, 5 and 15 minutes")),
        ("processes", r.processes_read.map_or_else(unknown, |n| format!("{n} of others{unreadable}"))),
    ];
    if let Some(stall) = r.memory_stall {
        let shares = format!("some {:.2} %, full {:.2} % of the last 10 s", stall.some_percent, stall.full_percent);
        figures.push(("stalls", shares));
    }
    if cfg!(target_os = "macos") {
        figures.push(("thermal", named(r.thermal.map(|level| format!("{level:?}").to_lowercase()))));
        figures.push(("pressure", named(r.memory_pressure.map(|level| format!("{level:?}").to_lowercase()))));
        let wired = r.iogpu_wired_limit_mb.map(|mb| if mb == 0 { "default".to_owned() } else { format!("{mb} MB") });
        figures.push(("gpu wired", named(wired)));
    }
    figures
}

fn command(process: &Process) -> String {
    format!("  {:>7}  {:>4.0} %  {}\n", process.pid, process.cpu_percent, printable(&process.command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_machine::preflight::{Machine, judge};

    #[test]
    fn sentences_are_shown_as_they_are() {
        let busy = |pid, command: &str| Process {
            pid,
            name: "make".into(),
            command: command.into(),
            memory: 0,
            cpu_percent: 93.0,
            kernel: false,
        };
        let readings = Readings {
            swap_used: Some(1_500_000_000),
            swap_total: Some(2_000_000_000),
            memory_free_percent: Some(70.0),
            load_1m: Some(1.0),
            processes_read: Some(2),
            processes: Some(vec![busy(1, "make all"), busy(2, "make\nit")]),
            ..Readings::default()
        };
        let machine = |host: &str| Machine { host: host.into(), chip: "M4".into(), ram: 16 << 30, time: "now".into() };
        let report = judge(readings.clone(), machine("mac"), &["make all".into()]);
        let text = shown(&report);
        for problem in &report.problems {
            assert!(text.contains(&format!("  {problem}\n")), "{text}");
        }
        for part in [
            "mac, M4, 17.2 GB, now\n",
            "swap       1.5 GB of 2.0 GB used\n",
            "memory     70.0 % free\n",
            "cpu speed  not reported\n",
            "load       1.00, ?, ? in 1, 5",
            "forgiven:\n        1    93 %  make all\n",
            "use the CPU:\n        2    93 %  make\\nit\n",
        ] {
            assert!(text.contains(part), "{part:?} in:\n{text}");
        }
        let fine = Readings { swap_used: Some(0), processes: Some(Vec::new()), ..readings };
        let text = shown(&judge(fine, machine("a\u{1b}"), &[]));
        assert!(text.ends_with("ok: ready for a model\n") && text.starts_with("a\\u{1b}, "), "{text}");
        let nothing = shown(&judge(Readings::default(), machine("mac"), &[]));
        assert!(
            nothing.contains("swap       cannot be read\n") && nothing.contains("processes  cannot be read\n"),
            "{nothing}"
        );
    }
}
