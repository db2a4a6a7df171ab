//! Texts and buffers of the two systems, as data. Pure: each is tested on captured output, whichever system runs the
//! tests.
#![cfg_attr(not(test), allow(dead_code, reason = "each system uses its part"))]

use crate::readings::{MemoryStall, Pressure, Thermal};
use std::time::Duration;

/// The value of a `Name:   123 kB` line of /proc, in bytes.
pub fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The chip in /proc/cpuinfo.
pub fn model_name(text: &str) -> Option<String> {
    let (_, name) = text.lines().find(|line| line.starts_with("model name"))?.split_once(':')?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Load averages: /proc/loadavg, `5.31 5.97 5.12 6/162 13460`.
pub fn load(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split_whitespace().map(|word| word.parse::<f64>().ok().filter(|n| n.is_finite()));
    Some([numbers.next()??, numbers.next()??, numbers.next()??])
}

/// /proc/pressure/memory: the shares of the last ten seconds.
pub fn memory_stall(text: &str) -> Option<MemoryStall> {
    let share = |kind: &str| {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(kind))?;
        let figure = line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
        figure.parse::<f64>().ok().filter(|n| n.is_finite())
    };
    Some(MemoryStall { some_percent: share("some")?, full_percent: share("full")? })
}

/// What preflight needs of /proc/PID/stat.
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// The command name, 15 bytes at most.
    pub name: String,
    /// The parent's id.
    pub parent: u32,
    /// Whether it is a kernel thread.
    pub kernel: bool,
    /// User and system time in clock ticks.
    pub ticks: u64,
    /// Start in clock ticks after boot.
    pub started: u64,
    /// Resident pages.
    pub pages: u64,
}

/// /proc/PID/stat. The name is in brackets, and may hold spaces and brackets itself.
pub fn stat(text: &str) -> Option<Stat> {
    /// `PF_KTHREAD` of the kernel's `sched.h`.
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let name = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text.get(close + 1..)?.split_whitespace().collect();
    // The first field after the name is the third of the manual.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        name,
        parent: u32::try_from(field(4)?).ok()?,
        kernel: field(9)? & KERNEL_THREAD != 0,
        ticks: field(14)?.checked_add(field(15)?)?,
        started: field(22)?,
        pages: field(24)?,
    })
}

/// /proc/PID/cmdline: arguments that each end with a NUL, joined by spaces.
pub fn nul_separated(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let arguments: Vec<_> = bytes.split(|&b| b == 0).map(String::from_utf8_lossy).collect();
    Some(arguments.join(" ")).filter(|command| !command.is_empty())
}

/// macOS's `KERN_PROCARGS2`: the number of arguments, the executable's path, NULs up to a word, the arguments with a
/// NUL after each, and then the environment, which is nobody's business. Arguments joined by spaces.
pub fn arguments(bytes: &[u8]) -> Option<String> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
    let path = rest.iter().position(|&b| b == 0)?;
    let rest = rest.get(path..)?;
    let first = rest.iter().position(|&b| b != 0)?;
    let arguments: Vec<_> = rest.get(first..)?.split(|&b| b == 0).take(count).map(String::from_utf8_lossy).collect();
    (count > 0 && arguments.len() == count).then(|| arguments.join(" "))
}

/// A row of `ps -axo pid=,rss=,time=`.
#[derive(Debug, PartialEq, Eq)]
pub struct PsRow {
    /// The process.
    pub pid: u32,
    /// Resident bytes.
    pub memory: u64,
    /// CPU time.
    pub cpu: Duration,
}

/// What `ps -axo pid=,rss=,time=` prints; rows of another form are left out.
pub fn ps(text: &str) -> Vec<PsRow> {
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let memory = words.next()?.parse::<u64>().ok()?.checked_mul(1024)?;
        Some(PsRow { pid, memory, cpu: cpu_time(words.next()?)? })
    };
    text.lines().filter_map(row).collect()
}

/// `0:00.03`, `123:45.67`, `1:02:03.04`, `2-01:02:03`: the last part is seconds.
fn cpu_time(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let (clock, hundredths) = match clock.split_once('.') {
        Some((clock, part)) if part.len() == 2 => (clock, part.parse::<u64>().ok()?),
        Some(_) => return None,
        None => (clock, 0),
    };
    let mut seconds = 0u64;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    let seconds = days.checked_mul(86_400)?.checked_add(seconds)?;
    Some(Duration::from_secs(seconds) + Duration::from_millis(hundredths * 10))
}

/// `OSThermalPressureLevel` of macOS.
pub fn thermal(level: u64) -> Option<Thermal> {
    [Thermal::Nominal, Thermal::Moderate, Thermal::Heavy, Thermal::Trapping, Thermal::Sleeping]
        .get(usize::try_from(level).ok()?)
        .copied()
}

/// `kern.memorystatus_vm_pressure_level` of macOS.
pub fn pressure(level: u64) -> Option<Pressure> {
    match level {
        1 => Some(Pressure::Normal),
        2 => Some(Pressure::Warning),
        4 => Some(Pressure::Critical),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMINFO: &str = "\
MemTotal:       24689572 kB
MemFree:         1203012 kB
MemAvailable:   18031244 kB
SwapCached:            0 kB
SwapTotal:       2097148 kB
SwapFree:        2000000 kB
HugePages_Total:       0
";

    #[test]
    fn meminfo() {
        assert_eq!(kilobytes(MEMINFO, "MemTotal:"), Some(24_689_572 * 1024));
        assert_eq!(kilobytes(MEMINFO, "SwapFree:"), Some(2_000_000 * 1024));
        assert_eq!(kilobytes(MEMINFO, "Mem"), None, "a whole name only");
        assert_eq!(kilobytes("MemTotal: lots kB", "MemTotal:"), None);
        assert_eq!(kilobytes("MemTotal: 18446744073709551615 kB", "MemTotal:"), None);
    }

    #[test]
    fn cpuinfo() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7B13\nflags\t: fpu\n";
        assert_eq!(model_name(text).as_deref(), Some("AMD EPYC 7B13"));
        assert_eq!(model_name("processor\t: 0\nCPU part\t: 0xd0c\n"), None);
    }

    #[test]
    fn loadavg() {
        assert_eq!(load("5.31 5.97 5.12 6/162 13460\n"), Some([5.31, 5.97, 5.12]));
        for wrong in ["", "5.31 5.97", "NaN 1 1", "a b c"] {
            assert_eq!(load(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn pressure_stalls() {
        let text =
            "some avg10=1.53 avg60=0.36 avg300=0.13 total=2503417\nfull avg10=0.41 avg60=0.20 avg300=0.05 total=1\n";
        assert_eq!(memory_stall(text), Some(MemoryStall { some_percent: 1.53, full_percent: 0.41 }));
        assert_eq!(memory_stall("some avg10=1.53 avg60=0.36 avg300=0.13 total=2503417\n"), None);
    }

    #[test]
    fn process_states() {
        let kworker =
            "14 (kworker/0:1-events) I 2 0 0 0 -1 69238880 0 0 0 0 0 61 0 0 20 0 1 0 21 0 0 18446744073709551615 0\n";
        let kworker = stat(kworker).unwrap();
        assert_eq!((kworker.name.as_str(), kworker.parent, kworker.kernel), ("kworker/0:1-events", 2, true));
        let chrome = "991 (Web) (Content) R 880 991 880 34816 991 4194304 29 0 3 0 1520 307 0 0 20 0 31 0 884213 2748 60211 99\n";
        let expected = Stat {
            name: "Web) (Content".into(),
            parent: 880,
            kernel: false,
            ticks: 1827,
            started: 884_213,
            pages: 60_211,
        };
        assert_eq!(stat(chrome), Some(expected));
        for wrong in ["", "12 (x", "12 (x) S", ") (", "1 (a) S x 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 1 0 1 0"] {
            assert_eq!(stat(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn command_lines_of_linux() {
        assert_eq!(nul_separated(b"python3\0-m\0http.server\0").as_deref(), Some("python3 -m http.server"));
        assert_eq!(nul_separated(b"sshd: root@pts/0").as_deref(), Some("sshd: root@pts/0"));
        assert_eq!(nul_separated(b"a\0\0b\0").as_deref(), Some("a  b"), "an empty argument stays");
        assert_eq!(nul_separated(b""), None);
    }

    #[test]
    fn command_lines_of_macos() {
        let buffer = |count: i32, rest: &[u8]| [&count.to_ne_bytes()[..], rest].concat();
        let ffmpeg =
            buffer(3, b"/opt/homebrew/bin/ffmpeg\0\0\0\0\0\0\0\0ffmpeg\0-i\0my film.mov\0HOME=/Users/a\0SECRET=1\0");
        assert_eq!(arguments(&ffmpeg).as_deref(), Some("ffmpeg -i my film.mov"));
        let one = buffer(1, b"/usr/sbin/daemon\0\0/usr/sbin/daemon\0\0\0");
        assert_eq!(arguments(&one).as_deref(), Some("/usr/sbin/daemon"));
        for wrong in [
            &b""[..],
            b"\x01",
            &buffer(1, b""),
            &buffer(1, b"/a\0\0\0"),
            &buffer(0, b"/a\0a\0"),
            &buffer(-1, b"/a\0a\0"),
        ] {
            assert_eq!(arguments(wrong), None, "{wrong:?}");
        }
        assert_eq!(arguments(&buffer(9, b"/a\0a\0b")), None, "cut off");
    }

    #[test]
    fn ps_of_macos() {
        let text = "\
    1  14288  12:31.80
  311 205872 183:22.07
  402   1744   0:00.03
 9001    512 1:02:03.04
 9002    512 2-01:02:03
broken
 9003    512 0:00.1
";
        let rows = ps(text);
        let milliseconds: Vec<_> = rows.iter().map(|row| (row.pid, row.memory / 1024, row.cpu.as_millis())).collect();
        let expected = [
            (1, 14_288, 751_800),
            (311, 205_872, 11_002_070),
            (402, 1744, 30),
            (9001, 512, 3_723_040),
            (9002, 512, 176_523_000),
        ];
        assert_eq!(milliseconds, expected);
    }

    #[test]
    fn levels_of_macos() {
        let thermals = [Some(Thermal::Nominal), Some(Thermal::Heavy), Some(Thermal::Sleeping), None, None];
        assert_eq!([0, 2, 4, 5, u64::MAX].map(thermal), thermals);
        let pressures = [None, Some(Pressure::Normal), Some(Pressure::Warning), None, Some(Pressure::Critical), None];
        assert_eq!([0, 1, 2, 3, 4, 5].map(pressure), pressures);
    }

    proptest! {
        #[test]
        fn nothing_makes_a_parser_fall_over(text in "\\PC*", bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let line = format!("1 ({text}) S {text}");
            let _ = (stat(&text), stat(&line), load(&text), memory_stall(&text), ps(&text), cpu_time(&text));
            let _ = (model_name(&text), kilobytes(&text, ""), nul_separated(&bytes), arguments(&bytes));
        }

        #[test]
        fn macos_arguments_never_hold_the_environment(
            words in proptest::collection::vec("[a-z -]{1,8}", 1..6),
            padding in 1usize..9,
        ) {
            let mut bytes = (words.len() as i32).to_ne_bytes().to_vec();
            bytes.extend(b"/bin/x");
            bytes.extend(vec![0; padding]);
            for word in words.iter().map(String::as_str).chain(["PATH=/bin"]) {
                bytes.extend(word.bytes().chain([0]));
            }
            prop_assert_eq!(arguments(&bytes), Some(words.join(" ")));
        }
    }
}
