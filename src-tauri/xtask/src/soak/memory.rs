//! Whether the memory ledger tells the truth: many clients in a budget with room for about three of their contexts, with
//! both tiers of the prompt cache and cancels, the figures looked at four times a second. Wanted, with `--cgroup`, in a
//! memory cgroup that leaves five percent beyond what the ledger promises.

mod cgroup;

use crate::http::{self, Answer};
use crate::server::{Server, free_port};
use crate::sh;
use anyhow::{Context, Result, bail};
use cgroup::Cgroup;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Context of the server, in tokens: what three clients may have at once.
const CONTEXT: u64 = 2048;
/// Clients, each with one request at a time.
const CLIENTS: u64 = 16;
/// Kept free for what the ledger does not see: tokenizer, server, fragmentation.
const RESERVE: u64 = 100_000_000;
/// The tiers of the prompt cache: a conversation or two in memory, some dozens on disk.
const CACHE_RAM: u64 = 150_000_000;
const CACHE_SSD: u64 = 1_000_000_000;
/// How far the process may be above its baseline and the budget together, as a share of the budget.
const SLACK: f64 = 0.03;
/// How far apart the idle levels before and after may be.
const IDLE_SLACK: f64 = 0.02;
/// What the cgroup has beyond budget and baseline.
const ROOM: f64 = 0.05;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// Before the idle level is read: what is kept for reuse goes back after a second without work.
const SETTLE: Duration = Duration::from_secs(4);
/// The warm-up, after which the idle level is read.
const WARM_UP: Duration = Duration::from_secs(15);

/// What is needed.
pub struct Soak<'a> {
    /// The `hearth` binary.
    pub hearth: &'a Path,
    /// The model.
    pub model: &'a Path,
    /// Hearth's home, emptied first.
    pub home: PathBuf,
    /// How long.
    pub time: Duration,
    /// In a memory cgroup.
    pub cgroup: bool,
}

/// How requests ended, and how often.
type Ends = BTreeMap<&'static str, u64>;

/// What was seen of the figures.
#[derive(Default)]
struct Seen {
    samples: u64,
    /// Bytes of the process beyond its baseline, at most.
    most: u64,
    /// Bytes of the ledger's total, at most.
    ledger: u64,
    /// Rows at most, and the longest queue.
    rows: usize,
    waiting: u64,
    /// What the guard did, by kind.
    actions: BTreeMap<String, u64>,
    last_action: u64,
    /// What does not hold.
    wrong: Vec<String>,
}

/// A repeatable stream of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

impl Soak<'_> {
    /// Runs it; what was seen, in a few lines.
    ///
    /// # Errors
    /// When anything does not hold that the ledger promises.
    pub fn run(&self, stop: &AtomicBool) -> Result<String> {
        crate::workspace::remove_dir(&self.home)?;
        fs::create_dir_all(&self.home)?;
        let budget = self.budget()?;
        let group = match self.cgroup.then(|| self.group(budget, stop)).transpose()? {
            Some(Ok(group)) => Some(group),
            Some(Err(why)) => return Ok(format!("skipped: no memory cgroup can be made here ({why})")),
            None => None,
        };
        let mut server = self.start(budget, group.as_ref(), stop)?;
        let address = server.address;
        let baseline = ledger(&stats(address)?, "baseline")?;
        eprintln!("Budget {}, baseline {}; warming up", mb(budget), mb(baseline));
        self.ask(address, WARM_UP.min(self.time), 1, stop)?;
        let before = self.idle_level(address)?;
        eprintln!("{CLIENTS} clients for {}", sh::duration(self.time));
        let over = AtomicBool::new(false);
        let (ends, seen) = std::thread::scope(|scope| -> Result<_> {
            let looks = scope.spawn(|| look(address, budget, baseline, &over));
            let ends = self.ask(address, self.time, 2, stop);
            over.store(true, Ordering::Relaxed);
            let seen = looks.join().map_err(|_| anyhow::anyhow!("the looks at the figures failed"))??;
            Ok((ends?, seen))
        })?;
        let after = self.idle_level(address)?;
        let answer = http::post(
            address,
            "/v1/completions",
            &json!({"prompt": "The capital of France is", "max_tokens": 8,
            "temperature": 0}),
        )?;
        if !answer["choices"][0]["text"].as_str().unwrap_or_default().contains("Paris") {
            bail!("after the soak the capital of France is {}", answer["choices"][0]["text"]);
        }
        server.end_within(Duration::from_secs(90))?;
        let killed = group.as_ref().map(Cgroup::oom_kills).transpose()?;
        drop(group);
        let report = Report { budget, baseline, before, after, ends, seen, killed };
        report.judge()?;
        crate::workspace::remove_dir(&self.home)?;
        Ok(report.to_string())
    }

    /// Room for the model and three contexts with their prompt computation, and for the prompt cache in memory.
    fn budget(&self) -> Result<u64> {
        let mut fit = Command::new(self.hearth);
        fit.arg("fit").arg(self.model).args(["--json", "--context", &CONTEXT.to_string(), "--memory-budget", "1TB"]);
        fit.env("HEARTH_HOME", &self.home);
        let fit: Value = serde_json::from_str(&sh::read(&mut fit)?).context("`hearth fit` printed no JSON")?;
        let term = |name: &str| fit["terms"][name].as_u64().with_context(|| format!("no {name} in {fit}"));
        let one = term("weights")? + term("prefill_transient")? + term("allocator_cache")?;
        Ok(one + 3 * term("kv")? + CACHE_RAM + RESERVE)
    }

    /// A cgroup for budget and baseline, which a server tells that is started for this alone.
    fn group(&self, budget: u64, stop: &AtomicBool) -> Result<std::result::Result<Cgroup, String>> {
        let mut server = self.start(budget, None, stop)?;
        let baseline = ledger(&stats(server.address)?, "baseline")?;
        server.end()?;
        let limit = ((budget + baseline) as f64 * (1.0 + ROOM)) as u64;
        eprintln!("A memory cgroup of {}", mb(limit));
        Ok(Cgroup::new(limit))
    }

    fn start(&self, budget: u64, group: Option<&Cgroup>, stop: &AtomicBool) -> Result<Server> {
        let port = free_port()?;
        let mut serve = match group {
            Some(group) => group.command(self.hearth),
            None => Command::new(self.hearth),
        };
        serve.arg("serve").arg(self.model).args(["--port", &port.to_string(), "--context", &CONTEXT.to_string()]);
        serve.args(["--memory-budget", &budget.to_string(), "--reserve", &RESERVE.to_string()]);
        serve.args(["--cache-ram", &CACHE_RAM.to_string(), "--cache-ssd", &CACHE_SSD.to_string(), "--cache-idle", "5"]);
        serve.env("HEARTH_HOME", &self.home);
        let mut server = Server::start(&mut serve, port)?;
        server.wait_ready("/health", Duration::from_secs(300), stop)?;
        Ok(server)
    }

    /// Lets all clients ask until the time is over.
    fn ask(&self, address: SocketAddr, time: Duration, round: u64, stop: &AtomicBool) -> Result<Ends> {
        let ends_at = Instant::now() + time;
        let ends = Mutex::new(Ends::new());
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let ends = &ends;
                    scope.spawn(move || -> Result<()> {
                        let mut dice = Dice(round * 1000 + client);
                        while Instant::now() < ends_at && !stop.load(Ordering::Relaxed) {
                            let end = request(address, &mut dice)?;
                            if let Ok(mut ends) = ends.lock() {
                                *ends.entry(end).or_default() += 1;
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            for client in all {
                client.join().map_err(|_| anyhow::anyhow!("a client failed"))??;
            }
            anyhow::Ok(())
        })?;
        Ok(ends.into_inner().unwrap_or_default())
    }

    /// The process when nothing runs and the prompt cache is empty.
    fn idle_level(&self, address: SocketAddr) -> Result<u64> {
        super::idle(address)?;
        let record: Value = serde_json::from_slice(&fs::read(self.home.join("server.json"))?)?;
        let token = record["token"].as_str().context("no token in server.json")?;
        let cleared = http::send_with(address, "POST", "/api/hearth/cache/clear", None, Some(token))?;
        if cleared.status != 200 {
            bail!("the prompt cache could not be cleared: {}", cleared.text()?);
        }
        std::thread::sleep(SETTLE);
        stats(address)?["memory"]["process"].as_u64().context("no memory.process in /stats")
    }
}

/// One request of a client, and how it ended: each has an answer, or a refusal that says why.
fn request(address: SocketAddr, dice: &mut Dice) -> Result<&'static str> {
    let tokens = match dice.roll(20) {
        // Too long for this server, whatever it does.
        0 => CONTEXT + dice.roll(CONTEXT),
        1..=6 => CONTEXT - 100 - dice.roll(200),
        _ => 8 + dice.roll(CONTEXT / 2),
    };
    // One of a few beginnings, or one that nobody else has.
    let known = dice.roll(3) > 0;
    let mut own = Dice(if known { dice.roll(12) } else { dice.roll(1 << 40) });
    let prompt: Vec<u64> = (0..tokens).map(|_| 20 + own.roll(40_000)).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1 + dice.roll(64), "temperature": 0, "stream": dice.roll(4) > 0});
    let leave_after = (dice.roll(4) == 0).then(|| dice.roll(12));
    let answer = http::send(address, "POST", "/v1/completions", Some(&body))?;
    let (status, retry) = (answer.status, answer.retry_after);
    if status != 200 {
        let text = answer.text()?;
        let error: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = error["error"]["code"].as_str().unwrap_or_default();
        return match (status, code) {
            (400, "context_length_exceeded") if tokens >= CONTEXT => Ok("refused: too long"),
            (503, "insufficient_memory") if retry.is_some() => Ok("refused: no room now"),
            _ => bail!("a prompt of {tokens} tokens was answered with {status}: {text}"),
        };
    }
    if body["stream"] == false {
        let json: Value = serde_json::from_str(&answer.text()?).context("an answer is no JSON")?;
        return match json["choices"][0]["finish_reason"].as_str() {
            Some(_) => Ok("answered"),
            None => bail!("an answer without a finish_reason: {json}"),
        };
    }
    read_stream(answer, leave_after)
}

/// Reads a stream to its end, or leaves it after so many events.
fn read_stream(answer: Answer, leave_after: Option<u64>) -> Result<&'static str> {
    let (mut left, mut end) = (leave_after, None);
    answer.events(|event| {
        if left == Some(0) {
            end = Some("cancelled");
            return Ok(ControlFlow::Break(()));
        }
        left = left.map(|n| n - 1);
        if event["error"]["code"] == "insufficient_memory" {
            end = Some("refused: no room now");
        } else if !event["error"].is_null() {
            bail!("a stream ended with {event}");
        } else if event["choices"][0]["finish_reason"].is_string() {
            end = Some("answered");
        }
        Ok(ControlFlow::Continue(()))
    })?;
    end.context("a stream ended without a finish_reason and without an error")
}

/// Looks at the figures until it is over.
fn look(address: SocketAddr, budget: u64, baseline: u64, over: &AtomicBool) -> Result<Seen> {
    let mut seen = Seen::default();
    while !over.load(Ordering::Relaxed) {
        let at = Instant::now();
        seen.see(&stats(address)?, budget, baseline)?;
        std::thread::sleep(LOOK.saturating_sub(at.elapsed()));
    }
    Ok(seen)
}

impl Seen {
    fn see(&mut self, stats: &Value, budget: u64, baseline: u64) -> Result<()> {
        let process = stats["memory"]["process"].as_u64().context("no memory.process")?;
        let total = ledger(stats, "total")?;
        let parts = ["weights", "kv", "prompt_cache", "prefill_transient", "allocator_cache", "reserve"];
        let sum = parts.into_iter().map(|part| ledger(stats, part)).sum::<Result<u64>>()?;
        let used = process.saturating_sub(baseline);
        let mut wrong = |text: String| {
            if self.wrong.len() < 5 {
                self.wrong.push(text);
            }
        };
        if sum != total {
            wrong(format!("the ledger's categories sum to {sum}, and its total is {total}"));
        }
        if used as f64 > budget as f64 * (1.0 + SLACK) {
            let ledger = &stats["memory"]["ledger"];
            wrong(format!("the process has {} beyond its baseline, the budget is {}: {ledger}", mb(used), mb(budget)));
        }
        self.samples += 1;
        self.most = self.most.max(used);
        self.ledger = self.ledger.max(total);
        self.rows = self.rows.max(stats["rows"].as_array().map_or(0, Vec::len));
        self.waiting = self.waiting.max(stats["waiting"].as_u64().unwrap_or(0));
        for action in stats["memory"]["guard"]["actions"].as_array().into_iter().flatten() {
            let id = action["id"].as_u64().unwrap_or(0);
            if id > self.last_action {
                self.last_action = id;
                *self.actions.entry(action["what"].as_str().unwrap_or("?").to_owned()).or_default() += 1;
            }
        }
        Ok(())
    }
}

/// All that there is to say.
struct Report {
    budget: u64,
    baseline: u64,
    before: u64,
    after: u64,
    ends: Ends,
    seen: Seen,
    /// How often the kernel killed in the cgroup.
    killed: Option<u64>,
}

impl Report {
    /// # Errors
    /// What does not hold.
    fn judge(&self) -> Result<()> {
        let mut wrong = self.seen.wrong.clone();
        let drift = self.after as f64 / self.before as f64 - 1.0;
        if drift.abs() > IDLE_SLACK {
            wrong.push(format!("the idle level went from {} to {}", mb(self.before), mb(self.after)));
        }
        if self.killed.is_some_and(|n| n > 0) {
            wrong.push("the kernel killed in the cgroup".to_owned());
        }
        if self.ends.get("answered").is_none_or(|&n| n == 0) {
            wrong.push("no request was answered".to_owned());
        }
        if wrong.is_empty() {
            return Ok(());
        }
        bail!("{}\n{self}", wrong.join("\n"))
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total: u64 = self.ends.values().sum();
        let ends: Vec<String> = self.ends.iter().map(|(end, n)| format!("{n} {end}")).collect();
        let actions: Vec<String> = self.seen.actions.iter().map(|(what, n)| format!("{n} {what}")).collect();
        writeln!(f, "{total} requests: {}", ends.join(", "))?;
        writeln!(
            f,
            "budget {}, baseline {}; the process beyond it at most {} ({:.1} % of the budget), the ledger at most {}",
            mb(self.budget),
            mb(self.baseline),
            mb(self.seen.most),
            self.seen.most as f64 / self.budget as f64 * 100.0,
            mb(self.seen.ledger)
        )?;
        writeln!(
            f,
            "{} looks: {} rows at most, {} waiting at most; the guard: {}",
            self.seen.samples,
            self.seen.rows,
            self.seen.waiting,
            if actions.is_empty() { "nothing".to_owned() } else { actions.join(", ") }
        )?;
        let drift = (self.after as f64 / self.before as f64 - 1.0) * 100.0;
        write!(f, "idle {} before, {} after ({drift:+.1} %)", mb(self.before), mb(self.after))?;
        match self.killed {
            Some(n) => write!(f, "; {n} killed by the kernel in the cgroup"),
            None => Ok(()),
        }
    }
}

fn stats(address: SocketAddr) -> Result<Value> {
    let (_, text) = http::get(address, "/stats")?;
    serde_json::from_str(&text).with_context(|| format!("/stats is no JSON: {text}"))
}

fn ledger(stats: &Value, name: &str) -> Result<u64> {
    stats["memory"]["ledger"][name].as_u64().with_context(|| format!("no memory.ledger.{name} in /stats"))
}

fn mb(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(process: u64, kv: u64, total: u64) -> Value {
        json!({"memory": {"process": process, "ledger": {"weights": 10, "kv": kv, "prompt_cache": 0, "prefill_transient": 0,
            "allocator_cache": 0, "reserve": 5, "total": total}, "guard": {"actions": [{"id": 1, "what": "demote"}]}},
            "rows": [1, 2], "waiting": 3})
    }

    #[test]
    fn a_ledger_that_does_not_add_up_and_a_process_over_the_budget_are_found() {
        let mut seen = Seen::default();
        seen.see(&figures(150, 20, 35), 100, 50).unwrap();
        seen.see(&figures(152, 20, 35), 100, 50).unwrap();
        assert!(seen.wrong.is_empty() && seen.most == 102 && seen.actions["demote"] == 1, "{:?}", seen.wrong);
        seen.see(&figures(154, 20, 35), 100, 50).unwrap();
        seen.see(&figures(150, 21, 35), 100, 50).unwrap();
        assert_eq!(seen.wrong.len(), 2, "{:?}", seen.wrong);
        assert!(seen.see(&json!({}), 100, 50).is_err());
    }

    #[test]
    fn what_does_not_hold_is_an_error() {
        let good = || Report {
            budget: 100,
            baseline: 50,
            before: 1000,
            after: 1010,
            ends: Ends::from([("answered", 3)]),
            seen: Seen::default(),
            killed: Some(0),
        };
        good().judge().unwrap();
        for bad in [
            Report { after: 1030, ..good() },
            Report { after: 970, ..good() },
            Report { killed: Some(1), ..good() },
            Report { ends: Ends::new(), ..good() },
        ] {
            assert!(bad.judge().is_err());
        }
    }
}
