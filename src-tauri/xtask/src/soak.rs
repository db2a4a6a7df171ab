//! `cargo xtask soak`: clients that come, read a little and hang up, for as long as wanted; then kills in the middle of
//! the prompt cache's writing. `cargo xtask soak memory`: many clients in a small budget. Not part of CI.

mod kills;
mod memory;

use crate::server::{Server, free_port, stop_flag};
use crate::workspace::{Profile, Workspace};
use crate::{http, setup, sh, starter};
use anyhow::{Result, bail};
use kills::Kills;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How far memory may be above that of the warm server, as a share.
const MEMORY_SLACK: f64 = 0.02;

/// How long.
pub struct Options {
    /// Seconds.
    pub seconds: u64,
    /// Clients at once.
    pub clients: usize,
    /// Kills afterwards.
    pub kills: usize,
}

/// Runs both loops, of those that are asked for.
///
/// # Errors
/// When something does not hold, or a server ends.
pub fn run(ws: &Workspace, options: &Options) -> Result<()> {
    setup::run(ws)?;
    let hearth = ws.build_hearth(Profile::Release)?;
    let starter = starter::ensure(ws, Profile::Release)?;
    let stop = stop_flag()?;
    let home = ws.cache.join("soak-home");
    if options.seconds > 0 {
        println!("{}", hang_ups(&hearth, &starter.folder, &home, options, &stop)?);
    }
    if options.kills > 0 {
        let kills = Kills { hearth: &hearth, model: &starter.folder, home, count: options.kills };
        println!("{}", kills.run(&stop)?);
    }
    Ok(())
}

/// Many clients in a small memory budget, for so long; in a memory cgroup if wanted.
///
/// # Errors
/// When the ledger promised what does not hold, or a request was lost.
pub fn memory(ws: &Workspace, time: Duration, cgroup: bool) -> Result<()> {
    setup::run(ws)?;
    let hearth = ws.build_hearth(Profile::Release)?;
    let starter = starter::ensure(ws, Profile::Release)?;
    let home = ws.cache.join("soak-memory-home");
    let soak = memory::Soak { hearth: &hearth, model: &starter.folder, home, time, cgroup };
    println!("{}", soak.run(&*stop_flag()?)?);
    Ok(())
}

/// Kills downloads at random moments, as the test of that name does, so many times.
///
/// # Errors
/// When one does not go on from what is on disk, or a file is not right in the end.
pub fn downloads(ws: &Workspace, kills: u32) -> Result<()> {
    setup::run(ws)?;
    let starter = starter::ensure(ws, Profile::Dev)?;
    let mut cargo = ws.cargo();
    cargo.args(["test", "-p", "hearth-cli", "--test", "downloads", "--", "--nocapture", "killed_at_any_moment"]);
    cargo.env("HEARTH_TEST_KILLS", kills.to_string()).env("HEARTH_STARTER", &starter.folder);
    sh::run(&mut cargo)
}

/// Clients that hang up; afterwards no row may be active, an answer must still come, and memory must be back.
fn hang_ups(hearth: &Path, model: &Path, home: &Path, options: &Options, stop: &AtomicBool) -> Result<String> {
    let port = free_port()?;
    let mut serve = Command::new(hearth);
    // Without the prompt cache, which keeps what they computed.
    serve.arg("serve").arg(model).args(["--port", &port.to_string(), "--cache-ram", "0", "--cache-ssd", "0"]);
    serve.env("HEARTH_HOME", home);
    let mut server = Server::start(&mut serve, port)?;
    server.wait_ready("/health", Duration::from_secs(300), stop)?;
    let address = server.address;
    let seconds = |n| Duration::from_secs(n);
    eprintln!("Warming up");
    clients(address, options.clients, seconds(options.seconds.min(20)), stop)?;
    idle(address)?;
    let before = server.memory()?;
    eprintln!("{} clients for {}", options.clients, sh::duration(seconds(options.seconds)));
    let requests = clients(address, options.clients, seconds(options.seconds), stop)?;
    idle(address)?;
    let after = server.memory()?;
    let answer = http::post(address, "/v1/completions", &request("The capital of France is", 8, false))?;
    let text = answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    server.end()?;
    if !text.contains("Paris") {
        bail!("after the soak the capital of France is {text:?}");
    }
    let grown = after as f64 / before as f64 - 1.0;
    let report = format!(
        "{requests} requests; memory {:.0} MB before, {:.0} MB after ({:+.1} %)",
        before as f64 / 1e6,
        after as f64 / 1e6,
        grown * 100.0
    );
    if grown > MEMORY_SLACK {
        bail!("memory is not back: {report}");
    }
    Ok(report)
}

fn request(prompt: &str, count: u64, stream: bool) -> Value {
    json!({"prompt": prompt, "max_tokens": count, "temperature": 0, "stream": stream})
}

/// Lets `count` clients ask, read a few events and hang up, until the time is over. Returns the number of requests.
fn clients(server: SocketAddr, count: usize, time: Duration, stop: &AtomicBool) -> Result<u64> {
    let ends = Instant::now() + time;
    let requests = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..count)
            .map(|client| {
                let requests = &requests;
                scope.spawn(move || -> Result<()> {
                    let mut turn = client;
                    while Instant::now() < ends && !stop.load(Ordering::Relaxed) {
                        turn = (turn * 31 + 7) % 997;
                        let mut events = turn % 9;
                        let body = request(&format!("Story number {turn} begins"), 24, true);
                        http::stream(server, "/v1/completions", &body, |_| {
                            let leave = events == 0;
                            events = events.saturating_sub(1);
                            Ok(if leave { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                        })?;
                        requests.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        for one in all {
            one.join().map_err(|_| anyhow::anyhow!("a client failed"))??;
        }
        anyhow::Ok(())
    })?;
    Ok(requests.into_inner())
}

/// Waits until no row is active and nothing waits.
fn idle(server: SocketAddr) -> Result<()> {
    let started = Instant::now();
    loop {
        let (_, text) = http::get(server, "/stats")?;
        let stats: Value = serde_json::from_str(&text)?;
        let rows = stats["rows"].as_array().map_or(usize::MAX, Vec::len);
        let waiting = stats["waiting"].as_u64().unwrap_or(u64::MAX);
        if rows == 0 && waiting == 0 {
            return Ok(());
        }
        if started.elapsed() > Duration::from_secs(60) {
            bail!("a minute after the last client left, {rows} rows are active and {waiting} requests wait");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
