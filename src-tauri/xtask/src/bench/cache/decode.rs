//! How fast a row is decoded while conversations are written to disk, and how fast right before and after. A machine's
//! speed drifts by more than what is looked for, so that each conversation makes a pair of its own.

use super::lines::Line;
use super::{Bench, HEARTH, SAVING, message, ssd, turns};
use crate::bench::report::Target;
use crate::http;
use crate::server::Server;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::net::SocketAddr;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The row's name.
pub const NAME: &str = "decode while 500 MB are written";

/// Conversations of about 1,550 tokens, 72 MB each: 500 MB.
const CONVERSATIONS: usize = 7;
const QUICK_CONVERSATIONS: usize = 2;
/// How long to look without writing, before and after each; writing one takes twice as long.
const WINDOW: Duration = Duration::from_secs(3);
/// From the end of a conversation's prefill to the first window.
const SETTLED: Duration = Duration::from_millis(500);
/// Tokens before the first window.
const RUN_UP: usize = 24;
/// More than there is time for.
const TOKENS: usize = 6000;

/// Tokens per second of a running row, with and without writing, in pairs.
pub fn while_writing(bench: &Bench<'_>) -> Result<Line> {
    bench.new_home()?;
    let mut server = bench.serve(HEARTH, &bench.contest.quantized)?;
    let mut pairs = Vec::new();
    bench.rounds(NAME, &[HEARTH], |_, round| {
        let count = match (round, bench.options.quick) {
            (0, _) => 1,
            (_, true) => QUICK_CONVERSATIONS,
            (_, false) => CONVERSATIONS,
        };
        let first = 6000 + round * CONVERSATIONS;
        let measured = beside_a_row(bench, &server, first..first + count)?;
        bench.cache("clear")?;
        if round > 0 {
            pairs.extend(measured);
        }
        Ok(())
    })?;
    server.end_within(SAVING)?;
    let (bytes, seconds) = pairs.iter().fold((0, 0.0), |(b, s), pair| (b + pair.bytes, s + pair.seconds));
    let (count, mb) = (pairs.len(), bytes as f64 / 1e6);
    Ok(Line {
        name: NAME.into(),
        unit: "tok/s",
        hearth: pairs.iter().map(|pair| pair.with).collect(),
        against: "before and after",
        other: pairs.iter().map(|pair| pair.without).collect(),
        target: Some(Target::AtLeast(0.95)),
        note: format!("{count} pairs, {mb:.0} MB in {seconds:.1} s, {:.0} MB/s", mb / seconds),
    })
}

/// One conversation beside a running row.
struct Pair {
    with: f64,
    without: f64,
    /// Written meanwhile, and in what time.
    bytes: u64,
    seconds: f64,
}

/// A row runs, and conversations come and are written one after the other, at the rate that the writer keeps to beside a
/// row.
fn beside_a_row(bench: &Bench<'_>, server: &Server, numbers: Range<usize>) -> Result<Vec<Pair>> {
    let (tokens, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let row = scope.spawn(|| stream(server.address, &tokens, &stop));
        let measured = (|| {
            let alive = || if row.is_finished() { bail!("the running row ended early") } else { Ok(()) };
            while tokens.load(Ordering::Relaxed) < RUN_UP {
                alive()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            let pairs = numbers.map(|number| {
                let pair = one(bench, server, &tokens, number)?;
                alive().map(|()| pair)
            });
            pairs.collect::<Result<Vec<_>>>()
        })();
        stop.store(true, Ordering::Relaxed);
        row.join().map_err(|_| anyhow::anyhow!("the client failed"))??;
        measured
    })
}

fn one(bench: &Bench<'_>, server: &Server, tokens: &AtomicUsize, number: usize) -> Result<Pair> {
    let written = || -> Result<u64> { ssd(server)?["written"].as_u64().context("no written bytes in /stats") };
    let [system, user] = [turns::words(number, 1000), turns::words(number + 500_000, 550)];
    turns::ask(server.address, &[message("system", &system), message("user", &user)], 8, None)?;
    std::thread::sleep(SETTLED);
    let rest = || {
        std::thread::sleep(WINDOW);
        Ok(())
    };
    let before = rate(tokens, rest)?;
    let at = written()?;
    let with = rate(tokens, || bench.cache("flush").map(|_| ()))?;
    let bytes = written()? - at;
    let after = rate(tokens, rest)?;
    Ok(Pair { with: with.0, without: f64::midpoint(before.0, after.0), bytes, seconds: with.1 })
}

/// Tokens per second while `work` is done, and the seconds that it took.
fn rate(tokens: &AtomicUsize, work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let (started, before) = (Instant::now(), tokens.load(Ordering::Relaxed));
    work()?;
    let (seconds, count) = (started.elapsed().as_secs_f64(), tokens.load(Ordering::Relaxed) - before);
    Ok((count as f64 / seconds, seconds))
}

/// Counts the tokens of one long answer until it is told to stop.
fn stream(server: SocketAddr, tokens: &AtomicUsize, stop: &AtomicBool) -> Result<()> {
    let body = json!({"prompt": "Once upon a time", "max_tokens": TOKENS, "temperature": 0, "stream": true,
                      "ignore_eos": true, "return_token_ids": true});
    http::stream(server, "/v1/completions", &body, |event| {
        let ids = event["choices"][0]["token_ids"].as_array().map_or(0, Vec::len);
        tokens.fetch_add(ids, Ordering::Relaxed);
        Ok(if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue::<(), ()>(()) })
    })
}
