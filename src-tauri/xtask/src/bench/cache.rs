//! `cargo xtask bench cache`: what the prompt cache is worth, as ratios in one run.
//!
//! Hearth serves the 4-bit file; the peer is mlx-lm's server on the same weights in f32, its best on a CPU. They take
//! turns in each round, the first round is dropped, a ratio is taken within each round, and the figure is the median of
//! those. Whether the peer's own cache was of any use to it is what its `usage` says, and decides the target.

mod decode;
mod lines;
mod turns;

use super::measure::{Contest, DENSE, HEARTH};
use super::report::Target;
use super::{Options, model};
use crate::server::Server;
use crate::venv::Venv;
use crate::workspace::{Profile, Workspace, remove_dir};
use crate::{http, setup, sh, starter};
use anyhow::{Context, Result, bail};
use lines::Line;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The tiny models whose state cannot be trimmed: short convolutions with attention, gated delta rule with attention.
const HYBRIDS: [&str; 2] = ["lfm2-f32", "qwen3_5-f32"];
/// Conversations on one system prompt.
const SHARING: usize = 10;
/// A stop saves the cache first.
const SAVING: Duration = Duration::from_secs(90);

/// What is needed to measure.
struct Bench<'a> {
    ws: &'a Workspace,
    contest: Contest,
    options: &'a Options,
}

impl Bench<'_> {
    /// Rounds that count.
    fn runs(&self) -> usize {
        if self.options.quick { 1 } else { self.options.runs }
    }

    /// Whether a row, or all rows whose names begin so, are wanted.
    fn wanted(&self, name: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Rounds of which the first is dropped; in each, the contestants in turns.
    fn rounds(&self, title: &str, who: &[usize], mut once: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
        for round in 0..=self.runs() {
            let shown = if round == 0 { "warm-up".into() } else { format!("{round} of {}", self.runs()) };
            eprintln!("  {title}: {shown}");
            for turn in 0..who.len() {
                once(who[(turn + round) % who.len()], round)?;
            }
        }
        Ok(())
    }

    /// Hearth, or the peer, on this model.
    fn serve(&self, who: usize, model: &Path) -> Result<Server> {
        self.contest.serve(who, model, &[])
    }

    /// An empty home, and so an empty cache.
    fn new_home(&self) -> Result<()> {
        remove_dir(&self.contest.home)?;
        Ok(std::fs::create_dir_all(&self.contest.home)?)
    }

    /// `hearth cache flush` or `clear` of the running server.
    fn cache(&self, command: &str) -> Result<Value> {
        let text = sh::read(self.contest.hearth().args(["cache", command, "--json"]).stdin(Stdio::null()))?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }
}

/// Measures all rows, and prints a table on stderr (and JSON on stdout if wanted).
///
/// # Errors
/// When something cannot be built, started or measured. A missed target is no error: the table says so.
pub fn run(ws: &Workspace, options: &Options) -> Result<()> {
    setup::run(ws)?;
    let hearth = ws.build_hearth(Profile::Release)?;
    let quantized = starter::ensure(ws, Profile::Release)?.folder;
    let venv = Venv::ensure(ws)?;
    let peer = ws.root.join("src-tauri/xtask/parity/peer.py");
    let dense = model(ws, &venv, &peer, "dense", &quantized)?;
    let home = ws.cache.join("bench-cache-home");
    let contest = Contest { hearth, venv, peer, home, quantized, dense, runs: options.runs };
    let bench = Bench { ws, contest, options };
    let mut all = Vec::new();
    let mut note = |lines: Vec<Line>| {
        // A long run that is broken off has not been for nothing.
        let lines: Vec<Line> = lines.into_iter().filter(|line| bench.wanted(&line.name)).collect();
        eprint!("{}", lines::table(&lines));
        all.extend(lines);
    };
    if turns::NAMES.iter().any(|name| bench.wanted(&format!("SmolLM2: {name}"))) {
        note(turns::smollm(&bench)?);
    }
    for name in HYBRIDS {
        if turns::NAMES.iter().any(|row| bench.wanted(&format!("{name}: {row}"))) {
            note(turns::hybrid(&bench, name)?);
        }
    }
    if bench.wanted(DISK) {
        note(vec![disk(&bench)?]);
    }
    if bench.wanted(LOOKUP) {
        note(vec![lookup(&bench)?]);
    }
    if bench.wanted(decode::NAME) {
        note(vec![decode::while_writing(&bench)?]);
    }
    remove_dir(&bench.contest.home)?;
    if all.is_empty() {
        bail!("no row's name holds {:?}", options.only.as_deref().unwrap_or_default());
    }
    eprint!("{}", lines::table(&all));
    if options.json {
        println!("{:#}", lines::json(&all, bench.runs()));
    }
    Ok(())
}

const DISK: &str = "disk: 10 conversations, one system prompt";

/// Bytes on disk of conversations that share a system prompt, and what their state takes stored once.
fn disk(bench: &Bench<'_>) -> Result<Line> {
    bench.new_home()?;
    let mut server = bench.serve(HEARTH, &bench.contest.quantized)?;
    let system = turns::words(77, if bench.options.quick { 300 } else { 1000 });
    let (mut lengths, mut shared) = (Vec::new(), u64::MAX);
    for number in 0..SHARING {
        let question = format!("{}?", turns::words(100 + number, 40));
        let messages = [message("system", &system), message("user", &question)];
        let turn = turns::ask(server.address, &messages, 16, None)?;
        lengths.push(turn.prompt + turn.generated - 1);
        if number > 0 {
            shared = shared.min(turn.cached);
        }
    }
    bench.cache("flush")?;
    let bytes = ssd(&server)?["bytes"].as_u64().context("no bytes in /stats")?;
    server.end_within(SAVING)?;
    let own: u64 = lengths.iter().map(|length| length.saturating_sub(shared)).sum();
    let once = bytes_per_token(&bench.contest.quantized)? * (shared + own);
    Ok(Line {
        name: DISK.into(),
        unit: "MB",
        hearth: vec![bytes as f64 / 1e6],
        against: "shared + own",
        other: vec![once as f64 / 1e6],
        target: Some(Target::AtMost(1.3)),
        note: format!("{shared} tokens shared, {own} of their own; {} in all", lengths.iter().sum::<u64>()),
    })
}

/// Bytes that a token's keys and values take in f32, as `config.json` says.
fn bytes_per_token(folder: &Path) -> Result<u64> {
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let field = |name: &str| config[name].as_u64().with_context(|| format!("config.json has no {name}"));
    let head = match config["head_dim"].as_u64() {
        Some(dim) => dim,
        None => field("hidden_size")? / field("num_attention_heads")?,
    };
    Ok(field("num_hidden_layers")? * 2 * field("num_key_value_heads")? * head * 4)
}

/// The prompt cache on disk, as `/stats` shows it.
fn ssd(server: &Server) -> Result<Value> {
    let (_, text) = http::get(server.address, "/stats")?;
    let stats: Value = serde_json::from_str(&text)?;
    Ok(stats["cache"]["ssd"].clone())
}

const LOOKUP: &str = "look-up with 1,000 entries";

/// Look-ups in memory, of prompts that share 1,000 tokens with every entry.
fn lookup(bench: &Bench<'_>) -> Result<Line> {
    let mut cargo = bench.ws.cargo();
    cargo.args(["run", "--release", "--quiet", "-p", "hearth-engine", "--example", "lookups", "--"]);
    let text = sh::read(cargo.arg(bench.runs().max(5).to_string()))?;
    let times: Value = serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))?;
    let list = |name: &str| -> Result<Vec<f64>> {
        let list = times[name].as_array().with_context(|| format!("no {name} in {text}"))?;
        Ok(list.iter().filter_map(Value::as_f64).collect())
    };
    Ok(Line {
        name: LOOKUP.into(),
        unit: "µs",
        hearth: list("entries_1000")?,
        against: "with 10",
        other: list("entries_10")?,
        target: Some(Target::AtMost(1.5)),
        note: String::new(),
    })
}

/// A request body's message.
fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}
