//! The judgement as a table: every limit below, at and above; and as properties of the sentences.

use super::*;
use proptest::prelude::*;

/// A machine without a fault.
fn quiet() -> Readings {
    Readings {
        swap_used: Some(0),
        swap_total: Some(2_000_000_000),
        memory_free_percent: Some(63.0),
        memory_used: Some(9_000_000_000),
        cpu_speed_limit_percent: Some(100),
        load_1m: Some(1.2),
        processes: Some(vec![process(10, "editor", 300 << 20, 3.0)]),
        ..Readings::default()
    }
}

fn process(pid: u32, name: &str, memory: u64, cpu_percent: f64) -> Process {
    Process { pid, name: name.into(), command: format!("/bin/{name} --go"), memory, cpu_percent, kernel: false }
}

fn judged(readings: Readings, allow: &[&str]) -> Report {
    let machine =
        Machine { host: "mac".into(), chip: "Apple M4".into(), ram: 16 << 30, time: "2026-01-02T03:04:05Z".into() };
    let allow: Vec<String> = allow.iter().map(|&s| s.to_owned()).collect();
    let report = judge(readings, machine, &allow);
    assert_eq!(report.ok, report.problems.is_empty());
    for problem in &report.problems {
        assert!(problem.ends_with('.') && problem.contains("; Hearth wants ") && problem.contains(": "), "{problem}");
    }
    report
}

fn with(change: impl FnOnce(&mut Readings)) -> Readings {
    let mut readings = quiet();
    change(&mut readings);
    readings
}

/// The numbers of a text, in order.
fn numbers(text: &str) -> Vec<f64> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.'))
        .filter_map(|word| word.trim_end_matches('.').parse().ok())
        .collect()
}

#[test]
fn a_quiet_machine_is_ok() {
    let report = judged(quiet(), &[]);
    assert!(report.ok, "{report:?}");
    let silent = with(|r| r.cpu_speed_limit_percent = None);
    assert!(judged(silent, &[]).ok, "many machines do not say a speed limit");
}

#[test]
fn every_limit_below_at_and_above() {
    type Change = Box<dyn Fn(&mut Readings)>;
    let swap = |n: u64| -> Change { Box::new(move |r| r.swap_used = Some(n)) };
    let free = |n: f64| -> Change { Box::new(move |r| r.memory_free_percent = Some(n)) };
    let speed = |n: u32| -> Change { Box::new(move |r| r.cpu_speed_limit_percent = Some(n)) };
    let load = |n: f64| -> Change { Box::new(move |r| r.load_1m = Some(n)) };
    let holds = |n: u64| -> Change { Box::new(move |r| r.processes = Some(vec![process(7, "vm", n, 0.0)])) };
    let uses = |n: f64| -> Change { Box::new(move |r| r.processes = Some(vec![process(7, "ffmpeg", 0, n)])) };
    let mib = 1u64 << 20;
    let cases: Vec<(Change, Option<&str>)> = vec![
        (swap(511_999_999), None),
        (swap(512_000_000), None),
        (
            swap(512_000_001),
            Some("Swap in use is 512.000001 MB; Hearth wants at most 512 MB: quit applications or restart"),
        ),
        (swap(640_000_000), Some("Swap in use is 640.0 MB; Hearth wants at most 512 MB")),
        (swap(1_234_567_890), Some("Swap in use is 1.2 GB; Hearth wants at most 512 MB")),
        (free(35.1), None),
        (free(35.0), None),
        (free(34.96), Some("Free memory is 34.96 %; Hearth wants at least 35 %: quit applications")),
        (free(12.0), Some("Free memory is 12.0 %; Hearth wants at least 35 %")),
        (free(0.0), Some("Free memory is 0.0 %")),
        (free(f64::NAN), Some("Free memory cannot be read; Hearth wants at least 35 %")),
        (speed(101), None),
        (speed(100), None),
        (speed(99), Some("The CPU is limited to 99 % of its speed; Hearth wants 100 %: let the")),
        (load(7.99), None),
        (load(8.0), None),
        (load(8.01), Some("The load of the last minute is 8.01; Hearth wants at most 8: stop other work")),
        (load(12.34), Some("The load of the last minute is 12.3;")),
        (load(f64::INFINITY), Some("The load of the last minute cannot be read")),
        (holds(2048 * mib - 1), None),
        (holds(2048 * mib), Some("vm (process 7) holds 2048 MiB of memory; Hearth wants less than 2048 MiB")),
        (holds(3000 * mib), Some("vm (process 7) holds 3000 MiB of memory; Hearth wants less than 2048 MiB")),
        (uses(49.999), None),
        (uses(50.0), Some("ffmpeg (process 7) uses 50 % of a CPU core; Hearth wants less than 50 %")),
        (uses(312.4), Some("ffmpeg (process 7) uses 312 % of a CPU core; Hearth wants less than 50 %")),
    ];
    for (change, expected) in cases {
        let report = judged(with(change), &[]);
        match expected {
            None => assert!(report.ok, "{report:?}"),
            Some(start) => {
                assert_eq!(report.problems.len(), 1, "{report:?}");
                assert!(report.problems[0].starts_with(start), "{start:?} in {:?}", report.problems);
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_a_problem() {
    let report = judged(Readings::default(), &[]);
    let starts =
        ["Swap in use cannot be read;", "Free memory cannot be read;", "The load", "The processes cannot be read;"];
    assert_eq!(report.problems.len(), starts.len(), "{report:?}");
    for (problem, start) in report.problems.iter().zip(starts) {
        assert!(problem.starts_with(start) && problem.contains("cannot be read"), "{problem}");
    }
}

#[test]
fn recorded_figures_are_never_judged() {
    let report = judged(
        with(|r| {
            r.iogpu_wired_limit_mb = Some(1);
            r.thermal = Some(crate::readings::Thermal::Trapping);
            r.memory_pressure = Some(crate::readings::Pressure::Critical);
            r.memory_stall = Some(crate::readings::MemoryStall { some_percent: 99.0, full_percent: 99.0 });
            (r.load_5m, r.load_15m) = (Some(99.0), Some(99.0));
            r.processes_unreadable = Some(12);
        }),
        &[],
    );
    assert!(report.ok, "{report:?}");
}

#[test]
fn the_allow_list_forgives_cpu_and_never_memory() {
    let readings = with(|r| {
        r.processes = Some(vec![
            process(1, "cargo", 0, 80.0),
            process(2, "rustc", 3 << 30, 199.0),
            process(3, "vm", 4 << 30, 10.0),
            process(4, "idle", 0, 1.0),
        ]);
    });
    let pids = |list: &[Process]| list.iter().map(|p| p.pid).collect::<Vec<_>>();
    let lists = |report: &Report| {
        let lists = [&report.allowed_cpu_processes, &report.background_cpu_processes, &report.big_processes];
        lists.map(|list| pids(list))
    };
    let none = judged(readings.clone(), &[]);
    assert_eq!(lists(&none), [vec![], vec![2, 1], vec![3, 2]], "busiest and largest first");
    assert_eq!(none.problems.len(), 4);
    let both = judged(readings.clone(), &["/bin/rustc --go", "/bin/cargo --go", "/bin/vm --go", "/bin/idle --go"]);
    assert_eq!(lists(&both), [vec![2, 1], vec![], vec![3, 2]]);
    assert_eq!(both.problems.len(), 2);
    assert!(both.problems.iter().all(|p| p.contains("MiB")), "{both:?}");
    for near in ["/bin/cargo", "/bin/cargo --go ", "/BIN/cargo --go", "cargo", ".*", ""] {
        assert_eq!(lists(&judged(readings.clone(), &[near]))[0], [0u32; 0], "{near:?} is not the exact command line");
    }
}

#[test]
fn the_system_itself_is_not_judged() {
    let name = if cfg!(target_os = "macos") { "WindowServer" } else { "systemd" };
    let kernel = Process { kernel: true, ..process(2, "kswapd0", 9 << 30, 99.0) };
    let report = judged(with(|r| r.processes = Some(vec![process(1, name, 9 << 30, 99.0), kernel])), &[]);
    assert!(report.ok && report.big_processes.is_empty() && report.background_cpu_processes.is_empty(), "{report:?}");
}

#[test]
fn names_that_others_chose_do_no_harm() {
    let report = judged(with(|r| r.processes = Some(vec![process(1, "a\u{1b}[2J\nb\u{202e}ü", 0, 99.0)])), &[]);
    assert!(report.problems[0].starts_with("a\\u{1b}[2J\\nb\\u{202e}ü (process 1)"), "{report:?}");
}

#[test]
fn the_json_has_its_fields() {
    let report = judged(with(|r| r.processes = Some(vec![process(7, "vm", 4 << 30, 75.5)])), &[]);
    let value = serde_json::to_value(&report).unwrap();
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "ok",
        "problems",
        "time",
        "host",
        "chip",
        "ram",
        "readings",
        "limits",
        "allowed_cpu_processes",
        "background_cpu_processes",
        "big_processes",
    ];
    assert_eq!(keys, expected);
    let listed = serde_json::json!({"pid": 7, "name": "vm", "command": "/bin/vm --go", "memory": 4u64 << 30, "cpu_percent": 75.5});
    assert_eq!((&value["big_processes"][0], &value["background_cpu_processes"][0]), (&listed, &listed));
    assert_eq!(value["readings"]["iogpu_wired_limit_mb"], serde_json::Value::Null);
    assert!(value["readings"].get("processes").is_none(), "only those that count are told");
    assert_eq!(value["limits"]["process_memory"], 2_147_483_648u64);
}

#[test]
fn this_machine_is_judged() {
    let report = run(&[], &[]);
    assert!(report.ram > 1 << 28 && !report.host.is_empty() && !report.chip.is_empty(), "{report:?}");
    assert!(report.time.ends_with('Z') && report.time.len() == "2026-01-02T03:04:05Z".len(), "{}", report.time);
    assert!(report.problems.iter().all(|p| !p.contains("cannot be read")), "{report:?}");
    assert!(report.readings.processes_read.is_some_and(|n| n > 0));
    let own = std::process::id();
    let lists = [&report.allowed_cpu_processes, &report.background_cpu_processes, &report.big_processes];
    assert!(lists.into_iter().flatten().all(|p| p.pid != own && !p.command.is_empty()), "{report:?}");
}

proptest! {
    /// The numbers in a sentence imply it, however near to the limit they are.
    #[test]
    fn a_sentence_proves_itself(
        swap in prop_oneof![Just(512_000_001u64), 512_000_001u64..512_100_000, 512_000_001u64..100_000_000_000],
        free in prop_oneof![34.9..35.0f64, Just(35.0f64.next_down()), 0.0..35.0f64],
        load in prop_oneof![8.0f64.next_up()..8.1, Just(8.0f64.next_up()), 8.0f64.next_up()..500.0],
        memory in 2048u64 << 20..1 << 40,
        cpu in 50.0..6400.0f64,
    ) {
        let report = judged(with(|r| {
            (r.swap_used, r.memory_free_percent, r.load_1m) = (Some(swap), Some(free), Some(load));
            r.processes = Some(vec![process(7, "p", memory, cpu)]);
        }), &[]);
        prop_assert_eq!(report.problems.len(), 5);
        let figures: Vec<Vec<f64>> = report.problems.iter().map(|p| numbers(p)).collect();
        let unit = if report.problems[0].contains(" GB;") { 1000.0 } else { 1.0 };
        prop_assert!(figures[0][0] * unit > figures[0][1], "{}", report.problems[0]);
        prop_assert!(figures[1][0] < figures[1][1], "{}", report.problems[1]);
        prop_assert!(figures[2][0] > figures[2][1], "{}", report.problems[2]);
        prop_assert!(figures[3][1] >= figures[3][2], "{}", report.problems[3]);
        prop_assert!(figures[4][1] >= figures[4][2], "{}", report.problems[4]);
    }

    /// Each problem stands for a limit that is broken, and each broken limit has its problem.
    #[test]
    fn problems_are_the_broken_limits(
        swap in 0u64..1_024_000_000, free in 0.0..70.0f64, speed in 50u32..150, load in 0.0..16.0f64,
        processes in proptest::collection::vec((0u64..4 << 30, 0.0..100.0f64), 0..5),
    ) {
        let list: Vec<Process> = processes.iter().zip(1..).map(|(&(memory, cpu), pid)| process(pid, "p", memory, cpu)).collect();
        let broken = usize::from(swap > 512_000_000) + usize::from(free < 35.0) + usize::from(speed < 100)
            + usize::from(load > 8.0)
            + processes.iter().map(|&(memory, cpu)| usize::from(memory >= 2 << 30) + usize::from(cpu >= 50.0)).sum::<usize>();
        let report = judged(with(|r| {
            (r.swap_used, r.memory_free_percent) = (Some(swap), Some(free));
            (r.cpu_speed_limit_percent, r.load_1m, r.processes) = (Some(speed), Some(load), Some(list));
        }), &[]);
        prop_assert_eq!(report.problems.len(), broken);
    }
}
