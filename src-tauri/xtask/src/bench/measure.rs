//! One measurement of one contestant, and the rounds in which contestants take turns.

use super::Prompts;
use super::report::{Against, Row, Samples, Target, median};
use crate::server::{Server, free_port};
use crate::venv::Venv;
use crate::workspace::Workspace;
use crate::{http, sh};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::Read;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Indices of the contestants in [`Samples`].
pub const HEARTH: usize = 0;
pub const DENSE: usize = 2;
/// Rounds of engine and server for each round of the others: their times differ by little.
const OVERHEAD_RUNS: usize = 4;
/// How long the end of a process is felt.
const SETTLE: Duration = Duration::from_millis(2500);

/// All that is needed to measure.
pub struct Contest {
    /// The `hearth` binary.
    pub hearth: PathBuf,
    /// The Python of the peer.
    pub venv: Venv,
    /// `peer.py`.
    pub peer: PathBuf,
    /// `HEARTH_HOME`, so that a user's settings do not matter.
    pub home: PathBuf,
    /// The 4-bit model.
    pub quantized: PathBuf,
    /// The same weights in f32.
    pub dense: PathBuf,
    /// Rounds that count.
    pub runs: usize,
}

/// The speeds that one generation reports.
struct Speeds {
    prefill: f64,
    decode: f64,
}

impl Contest {
    /// Runs one dropped round and `runs` that count; in each, every contestant once, in rotating order.
    fn rounds<T>(
        &self,
        title: &str,
        who: &[usize],
        once: impl FnMut(usize, usize) -> Result<T>,
    ) -> Result<Vec<(usize, T)>> {
        Self::so_many_rounds(self.runs, title, who, once)
    }

    fn so_many_rounds<T>(
        runs: usize,
        title: &str,
        who: &[usize],
        mut once: impl FnMut(usize, usize) -> Result<T>,
    ) -> Result<Vec<(usize, T)>> {
        let mut kept = Vec::new();
        for round in 0..=runs {
            eprintln!("  {title}: {}", if round == 0 { "warm-up".into() } else { format!("{round} of {runs}") });
            for turn in 0..who.len() {
                let contestant = who[(turn + round) % who.len()];
                let value = once(contestant, round)?;
                if round > 0 {
                    kept.push((contestant, value));
                }
            }
        }
        Ok(kept)
    }

    fn all(&self, title: &str, once: impl FnMut(usize, usize) -> Result<f64>) -> Result<Samples> {
        let mut samples = Samples::default();
        for (contestant, value) in self.rounds(title, &[0, 1, 2], once)? {
            samples.0[contestant].push(value);
        }
        Ok(samples)
    }

    /// Hearth runs the 4-bit file, as a user would.
    fn model(&self, contestant: usize) -> &Path {
        if contestant == DENSE { &self.dense } else { &self.quantized }
    }

    /// `hearth` with this contest's home and none of the user's settings.
    pub fn hearth(&self) -> Command {
        let mut cmd = Command::new(&self.hearth);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HEARTH_") {
                cmd.env_remove(name);
            }
        }
        cmd.env("HEARTH_HOME", &self.home);
        cmd
    }

    fn python(&self) -> Command {
        let mut cmd = self.venv.python();
        cmd.arg(&self.peer);
        cmd
    }

    /// One generation of `count` tokens in a fresh process.
    fn generate(&self, contestant: usize, model: &Path, prompt: &Path, count: usize) -> Result<Speeds> {
        let mut cmd = if contestant == HEARTH {
            let mut cmd = self.hearth();
            cmd.arg("generate").arg(model).arg("--prompt-file").arg(prompt);
            cmd.args(["--max-tokens", &count.to_string(), "--temperature", "0", "--ignore-eos", "--json"]);
            cmd
        } else {
            let mut cmd = self.python();
            cmd.arg("generate").arg(model).arg(prompt).arg(count.to_string());
            cmd
        };
        let text = sh::read(&mut cmd)?;
        let json: Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))?;
        let field = |name: &str| json[name].as_f64().with_context(|| format!("no {name} in {text}"));
        let generated = field("generated_tokens")?;
        if generated != count as f64 {
            bail!("asked for {count} tokens and got {generated}");
        }
        Ok(Speeds { prefill: field("prefill_tps")?, decode: field("decode_tps")? })
    }

    /// Prefill and decode speed in tokens per second.
    pub fn speeds(&self, prompt: &Path, count: usize) -> Result<[Samples; 2]> {
        let mut samples = [Samples::default(), Samples::default()];
        let all =
            self.rounds("prefill and decode", &[0, 1, 2], |c, _| self.generate(c, self.model(c), prompt, count))?;
        for (contestant, speeds) in all {
            samples[0].0[contestant].push(speeds.prefill);
            samples[1].0[contestant].push(speeds.decode);
        }
        Ok(samples)
    }

    /// Seconds from starting a process to the first text it prints.
    pub fn starts(&self, prompt: &Path) -> Result<Samples> {
        self.all("start to first token", |contestant, _| {
            let mut cmd = if contestant == HEARTH {
                let mut cmd = self.hearth();
                cmd.arg("generate").arg(self.model(contestant)).arg("--prompt-file").arg(prompt);
                cmd.args(["--max-tokens", "8", "--temperature", "0", "--ignore-eos"]);
                cmd
            } else {
                let mut cmd = self.python();
                cmd.arg("first").arg(self.model(contestant)).arg(prompt);
                cmd
            };
            let started = Instant::now();
            let mut child = cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            let mut stdout = child.stdout.take().context("no stdout")?;
            let read = stdout.read(&mut [0; 1]);
            let took = started.elapsed().as_secs_f64();
            std::io::copy(&mut stdout, &mut std::io::sink())?;
            let status = child.wait()?;
            if read? == 0 || !status.success() {
                bail!("a contestant printed nothing ({status})");
            }
            Ok(took)
        })
    }

    /// Milliseconds per token of a model that costs nothing to compute.
    pub fn toy(&self, toy: &Path, prompt: &Path, count: usize) -> Result<Samples> {
        let mut samples = Samples::default();
        // The toy is f32 only: one peer.
        for (contestant, speeds) in self.rounds("toy", &[HEARTH, DENSE], |c, _| self.generate(c, toy, prompt, count))? {
            samples.0[contestant].push(1e3 / speeds.decode);
        }
        Ok(samples)
    }

    /// Starts a contestant's server for a model on a free port, with further arguments, and waits until it is ready.
    pub fn serve(&self, contestant: usize, model: &Path, args: &[&str]) -> Result<Server> {
        let number = free_port()?;
        let port = number.to_string();
        let mut cmd = if contestant == HEARTH {
            let mut cmd = self.hearth();
            cmd.arg("serve").arg(model).args(["--port", &port]);
            cmd
        } else {
            let mut cmd = self.venv.python();
            cmd.args(["-m", "mlx_lm", "server", "--host", "127.0.0.1", "--port", &port, "--log-level", "ERROR"]);
            cmd.arg("--model").arg(model);
            cmd
        };
        let mut server = Server::start(cmd.args(args).stdout(Stdio::null()).stderr(Stdio::null()), number)?;
        server.wait_ready("/health", Duration::from_secs(300), &AtomicBool::new(false))?;
        Ok(server)
    }

    /// Starts Hearth's server and the peer's two, and waits until they are ready.
    pub fn servers(&self) -> Result<[Server; 3]> {
        // Memory for the prompt cache as the peer has it: ten such prompts. Nothing on disk: the next run asks the same.
        let args = |c| if c == HEARTH { &["--cache-ram", "64MB", "--cache-ssd", "0"][..] } else { &[] };
        let servers: Vec<Server> = (0..3).map(|c| self.serve(c, self.model(c), args(c))).collect::<Result<_>>()?;
        servers.try_into().map_err(|_| anyhow::anyhow!("not three servers"))
    }

    /// Seconds from sending a request to the first text in its stream.
    pub fn first_tokens(&self, servers: &[Server; 3], prompts: Vec<String>) -> Result<Samples> {
        let mut next = prompts.iter().cycle();
        self.all("time to first token", |contestant, _| {
            let prompt = next.next().context("no prompts")?;
            Ok(stream(servers[contestant].address, prompt, 8)?.first)
        })
    }

    /// Tokens per second of `rows` requests at once, all together.
    pub fn concurrent(
        &self,
        servers: &[Server; 3],
        prompts: Vec<String>,
        rows: usize,
        count: usize,
    ) -> Result<Samples> {
        self.all("concurrent", |contestant, round| {
            let address = servers[contestant].address;
            let started = Instant::now();
            // From the end: the rows about the first token took theirs from the start.
            let batch = prompts.iter().rev().skip(round * rows % prompts.len()).take(rows);
            let tokens = std::thread::scope(|scope| {
                let all: Vec<_> = batch.map(|prompt| scope.spawn(move || complete(address, prompt, count))).collect();
                all.into_iter()
                    .map(|one| one.join().map_err(|_| anyhow::anyhow!("a client failed"))?)
                    .sum::<Result<u64>>()
            })?;
            Ok(tokens as f64 / started.elapsed().as_secs_f64())
        })
    }

    /// The most memory each server has had, in MB.
    pub fn peaks(&self, servers: &[Server; 3]) -> Result<Samples> {
        let mut samples = Samples::default();
        for (server, values) in servers.iter().zip(&mut samples.0) {
            values.push(server.peak_memory()? as f64 / 1e6);
        }
        Ok(samples)
    }

    /// How much longer a token takes through the server than in the engine alone, as a share.
    pub fn overhead(&self, server: &Server, ws: &Workspace, prompts: &Prompts, count: usize) -> Result<Row> {
        let texts = prompts.of(super::MEDIUM)?;
        // One whose answer is long enough, so that both sides compute the same number of tokens.
        let mut number = 0;
        while !stream(server.address, texts.get(number).context("every answer ended early")?, count)?.full {
            number += 1;
        }
        let file = prompts.file(ws, super::MEDIUM, number)?;
        // Two per cent are less than what a busy moment does to either side, so there are more rounds; and a process that
        // ends leaves the system half a gigabyte to clear, which slows down whatever comes next, so each waits for that.
        let times = Self::so_many_rounds(OVERHEAD_RUNS * self.runs, "server overhead", &[0, 1], |side, _| {
            std::thread::sleep(SETTLE);
            Ok(if side == 0 {
                1.0 / self.generate(HEARTH, &self.quantized, &file, count)?.decode
            } else {
                // The engine's process has just loaded its model: the server should not have just slept either.
                stream(server.address, &texts[number], count)?;
                stream(server.address, &texts[number], count)?.per_token
            })
        })?;
        let of = |side| times.iter().filter(|(s, _)| *s == side).map(|(_, t)| *t).collect::<Vec<f64>>();
        let (engine, served) = (median(&of(0)).context("no rounds")?, median(&of(1)).context("no rounds")?);
        let samples = Samples([vec![served / engine - 1.0], Vec::new(), Vec::new()]);
        Ok(samples.row("server overhead per token", "share", Target::AtMost(0.02), Against::Nothing))
    }
}

/// What a streamed completion took.
struct Streamed {
    /// Seconds to the first text.
    first: f64,
    /// Seconds per token after it.
    per_token: f64,
    /// True when it ran to the limit.
    full: bool,
}

fn stream(server: SocketAddr, prompt: &str, count: usize) -> Result<Streamed> {
    let body = json!({"prompt": prompt, "max_tokens": count, "temperature": 0, "stream": true});
    let sent = Instant::now();
    let (mut first, mut last, mut full) = (None, sent, false);
    http::stream(server, "/v1/completions", &body, |event| {
        let choice = &event["choices"][0];
        if choice["text"].as_str().is_some_and(|text| !text.is_empty()) {
            last = Instant::now();
            first.get_or_insert(last);
        }
        full |= choice["finish_reason"] == "length";
        Ok(ControlFlow::Continue(()))
    })?;
    let first = first.context("a server's stream has no text")?;
    let per_token = (last - first).as_secs_f64() / (count.max(2) - 1) as f64;
    Ok(Streamed { first: (first - sent).as_secs_f64(), per_token, full })
}

/// Completes a prompt; returns how many tokens it generated.
fn complete(server: SocketAddr, prompt: &str, count: usize) -> Result<u64> {
    let answer =
        http::post(server, "/v1/completions", &json!({"prompt": prompt, "max_tokens": count, "temperature": 0}))?;
    answer["usage"]["completion_tokens"].as_u64().with_context(|| format!("no usage in {answer}"))
}
