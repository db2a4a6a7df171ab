//! Running other programs: one place that words what went wrong.

use anyhow::{Context, Result, bail};
use std::io::{IsTerminal, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program and its first arguments, for messages.
fn describe(cmd: &Command) -> String {
    let mut text = cmd.get_program().to_string_lossy().into_owned();
    for arg in cmd.get_args().take(4) {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

fn not_started(cmd: &Command) -> String {
    format!("`{}` could not be started; is it installed and on the PATH?", cmd.get_program().to_string_lossy())
}

/// Runs `cmd` with its output shown on stderr, so that stdout keeps only this program's results.
///
/// # Errors
/// When it cannot be started or exits with anything but 0.
pub fn run(cmd: &mut Command) -> Result<()> {
    let status = cmd.stdout(std::io::stderr()).status().with_context(|| not_started(cmd))?;
    if !status.success() {
        bail!("`{}` failed ({status})", describe(cmd));
    }
    Ok(())
}

/// Runs `cmd` silently; when it fails, what it printed (the last 60 lines) is part of the error.
///
/// # Errors
/// When it cannot be started or exits with anything but 0.
pub fn run_quiet(cmd: &mut Command) -> Result<Output> {
    let out = cmd.stdin(Stdio::null()).output().with_context(|| not_started(cmd))?;
    if !out.status.success() {
        let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&out.stderr));
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(60)..].join("\n");
        bail!("`{}` failed ({})\n{tail}", describe(cmd), out.status);
    }
    Ok(out)
}

/// What `cmd` prints on stdout, without the last newline.
///
/// # Errors
/// As [`run_quiet`].
pub fn read(cmd: &mut Command) -> Result<String> {
    let out = run_quiet(cmd)?;
    Ok(String::from_utf8_lossy(&out.stdout).trim_end().to_owned())
}

/// True when `cmd` starts and exits with 0. Its output is dropped.
pub fn succeeds(cmd: &mut Command) -> bool {
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Shows `title` while `work` runs, with the seconds passed when stderr is a terminal, and then its duration.
///
/// # Errors
/// Those of `work`.
pub fn step<T>(title: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let result = if std::io::stderr().is_terminal() {
        with_ticker(title, started, work)
    } else {
        eprintln!("  {title} …");
        work()
    };
    let took = duration(started.elapsed());
    match &result {
        Ok(_) => eprintln!("  {title}: done in {took}"),
        Err(_) => eprintln!("  {title}: failed after {took}"),
    }
    result
}

fn with_ticker<T>(title: &str, started: Instant, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprint!("\r  {title} … {} s ", started.elapsed().as_secs());
                let _ = std::io::stderr().flush();
            }
            eprint!("\r\x1b[2K");
        });
        let result = work();
        drop(stop);
        result
    })
}

/// `0.4 s`, `12 s`, `3 min 05 s`.
pub fn duration(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0..10 => format!("{:.1} s", d.as_secs_f64()),
        10..60 => format!("{s} s"),
        _ => format!("{} min {:02} s", s / 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(Duration::from_millis(420)), "0.4 s");
        assert_eq!(duration(Duration::from_secs(12)), "12 s");
        assert_eq!(duration(Duration::from_secs(185)), "3 min 05 s");
    }

    #[test]
    fn a_failure_names_the_command_and_shows_its_output() {
        let error = run_quiet(Command::new("sh").args(["-c", "echo seen; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("seen") && error.contains('3'), "{error}");
        let error = run_quiet(&mut Command::new("no-such-program-here")).unwrap_err().to_string();
        assert!(error.contains("no-such-program-here"), "{error}");
    }
}
