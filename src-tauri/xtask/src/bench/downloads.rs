//! `cargo xtask bench downloads`: downloads against a hub on this machine: a large file against `curl`, many small ones on a slow line against
//! the hub's own Python client, and memory. Contestants take turns; figures are medians.

use super::Options;
use crate::hub::TestHub;
use crate::venv::Venv;
use crate::workspace::{Profile, Workspace, remove_dir};
use crate::{setup, sh, starter};
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of the large file.
const LARGE: u64 = 1_000_000_000;
/// The small ones, and what each answer is late by.
const SMALL: (usize, usize) = (10, 2_000_000);
const LATE: u64 = 30;

struct Bench<'a> {
    hearth: &'a Path,
    dir: PathBuf,
}

/// What a process took.
struct Took {
    time: Duration,
    peak: u64,
}

/// Measures, and prints a table on stderr (and JSON on stdout if wanted).
///
/// # Errors
/// When something cannot be built, started or measured. A missed target is no error: the table says so.
pub fn run(ws: &Workspace, options: &Options) -> Result<()> {
    setup::run(ws)?;
    let hearth = ws.build_hearth(Profile::Release)?;
    let starter = starter::ensure(ws, Profile::Release)?.folder;
    let venv = Venv::ensure(ws)?;
    let bench = Bench { hearth: &hearth, dir: ws.cache.join("bench-downloads") };
    let runs = if options.quick { 1 } else { options.runs };
    let large = if options.quick { LARGE / 10 } else { LARGE };
    let fast = TestHub::start(
        ws,
        &[format!("--shards=bench/large=1x{large}"), format!("--model=bench/starter={}", starter.display())],
    )?;
    let idle = bench.measure(&fast, &["ls"])?.peak;
    let (mut rows, mut peak) = (Vec::new(), 0);
    for (name, repo, bytes) in [
        ("large file", "bench/large", large),
        ("starter", "bench/starter", fs::metadata(starter.join("model.safetensors"))?.len()),
    ] {
        let (mut ours, mut curls, mut durable) = (Vec::new(), Vec::new(), Vec::new());
        let file = if repo == "bench/large" { "model-00001-of-00001.safetensors" } else { "model.safetensors" };
        for _ in 0..=runs {
            bench.clear()?;
            let took = bench.measure(&fast, &["pull", repo])?;
            peak = peak.max(took.peak);
            ours.push(took.time);
            bench.clear()?;
            let (came, synced) = bench.curl(&fast, repo, file)?;
            curls.push(came);
            durable.push(synced);
        }
        let ours = median(&mut ours[1..]);
        let speed = |t: Duration| bytes as f64 / t.as_secs_f64() / 1e6;
        // `curl` leaves the file in the page cache, where losing power loses it; what Hearth calls there is on the disk.
        for (other, times, target) in [("curl", &mut curls, "≥ 0.9"), ("curl, then sync", &mut durable, "")] {
            let other_speed = speed(median(&mut times[1..]));
            rows.push((format!("{name}, MB/s ({other})"), speed(ours), other_speed, speed(ours) / other_speed, target));
        }
    }
    drop(fast);
    let slow =
        TestHub::start(ws, &[format!("--shards=bench/small={}x{}", SMALL.0, SMALL.1), format!("--latency={LATE}")])?;
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..=runs {
        bench.clear()?;
        ours.push(bench.measure(&slow, &["pull", "bench/small"])?.time);
        bench.clear()?;
        peers.push(bench.python(&venv, &slow, "bench/small")?);
    }
    let (ours, peer) = (median(&mut ours[1..]), median(&mut peers[1..]));
    rows.push((
        "ten files of 2 MB, s (huggingface_hub)".to_owned(),
        ours.as_secs_f64(),
        peer.as_secs_f64(),
        peer.as_secs_f64() / ours.as_secs_f64(),
        "≥ 2",
    ));
    let over = peak.saturating_sub(idle) as f64 / 1e6;
    rows.push(("memory over idle, MB (limit)".to_owned(), over, 50.0, over / 50.0, "≤ 1"));
    bench.clear()?;
    eprintln!("\n{:<44}{:>10}{:>10}{:>8}  target", "", "hearth", "other", "ratio");
    for (name, hearth, other, ratio, target) in &rows {
        eprintln!("{name:<44}{hearth:>10.2}{other:>10.2}{ratio:>8.2}  {target}");
    }
    if options.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, hearth, other, ratio, target)| {
                json!({"name": name, "hearth": hearth, "other": other, "ratio": ratio, "target": target})
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&json!({"runs": runs, "rows": rows}))?);
    }
    Ok(())
}

impl Bench<'_> {
    fn clear(&self) -> Result<()> {
        remove_dir(&self.dir)?;
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {}", self.dir.display()))
    }

    /// Runs `hearth` with an empty home and cache.
    fn measure(&self, hub: &TestHub, args: &[&str]) -> Result<Took> {
        let mut cmd = Command::new(self.hearth);
        cmd.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        hub.only(&mut cmd);
        cmd.env("HEARTH_HOME", self.dir.join("home")).env("HF_HUB_CACHE", self.dir.join("hub"));
        let began = Instant::now();
        let mut child = cmd.spawn().context("`hearth` could not be started")?;
        let mut peak = 0;
        let status = loop {
            peak = peak.max(high_water(child.id()));
            if let Some(status) = child.try_wait()? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if !status.success() {
            bail!("`hearth {}` failed ({status})", args.join(" "));
        }
        Ok(Took { time: began.elapsed(), peak })
    }

    /// `curl` fetches one file, redirect included: until it is there, and until the disk has it.
    fn curl(&self, hub: &TestHub, repo: &str, file: &str) -> Result<(Duration, Duration)> {
        let url = format!("{}/{repo}/resolve/main/{file}", hub.url);
        let mut cmd = Command::new("curl");
        cmd.args(["--silent", "--show-error", "--fail", "--location", "--noproxy", "*", "--output"]);
        let path = self.dir.join("file");
        cmd.arg(&path).arg(url);
        let began = Instant::now();
        sh::run_quiet(&mut cmd)?;
        let came = began.elapsed();
        let synced = fs::File::open(&path).and_then(|file| file.sync_data());
        synced.with_context(|| format!("cannot sync {}", path.display()))?;
        Ok((came, began.elapsed()))
    }

    /// The hub's own client fetches a repository; only the call is timed, not Python's start.
    fn python(&self, venv: &Venv, hub: &TestHub, repo: &str) -> Result<Duration> {
        let code = format!(
            "import time\nfrom huggingface_hub import snapshot_download\nt = time.perf_counter()\n\
             snapshot_download('{repo}')\nprint(time.perf_counter() - t)"
        );
        let mut cmd = venv.python();
        hub.only(&mut cmd);
        cmd.args(["-c", &code]).env("HF_HUB_OFFLINE", "0").env("HF_HUB_CACHE", self.dir.join("hub"));
        cmd.env("HF_HOME", self.dir.join("hf")).env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_PROGRESS_BARS", "1");
        cmd.env("HF_HUB_DISABLE_TELEMETRY", "1");
        let seconds: f64 =
            sh::read(&mut cmd)?.lines().last().unwrap_or_default().parse().context("no time was printed")?;
        Ok(Duration::from_secs_f64(seconds))
    }
}

/// The largest resident set of a process so far, in bytes; 0 where the system does not say.
fn high_water(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kb| kb * 1024)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
