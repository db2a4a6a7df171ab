//! `cargo xtask bench`: Hearth against mlx-lm and its server, in one run on one machine.
//!
//! Both use the same MLX, the same BLAS and the same weights; what Hearth computes without BLAS, the products of a few
//! rows, is its own merit. The peer appears twice: with the same 4-bit file, and with
//! those weights dequantized to f32, which is its best on a CPU. Contestants take turns in rotating order, the first
//! round is dropped, and each figure is a median.

pub mod cache;
pub mod downloads;
mod measure;
pub mod memory;
mod report;

use crate::server::Server;
use crate::starter;
use crate::venv::Venv;
use crate::workspace::{Profile, Workspace};
use crate::{setup, sh};
use anyhow::{Context, Result, bail};
use measure::Contest;
use report::{Against, Row, Target};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What to measure.
pub struct Options {
    /// Rounds that count; one more comes first and is dropped.
    pub runs: usize,
    /// Print JSON on stdout.
    pub json: bool,
    /// One short round, to see that everything works.
    pub quick: bool,
    /// Only rows whose name holds this.
    pub only: Option<String>,
}

/// Sizes of the workloads.
struct Sizes {
    prompt: usize,
    decode: usize,
    concurrent: usize,
    toy: usize,
}

const FULL: Sizes = Sizes { prompt: 256, decode: 32, concurrent: 24, toy: 256 };
const QUICK: Sizes = Sizes { prompt: 64, decode: 8, concurrent: 6, toy: 32 };

/// Prompt lengths of the rows about the first token.
const SHORT: usize = 5;
const MEDIUM: usize = 62;
const ROWS: usize = 8;

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
    let toy = model(ws, &venv, &peer, "toy", &quantized)?;
    let sizes = if options.quick { QUICK } else { FULL };
    let runs = if options.quick { 1 } else { options.runs };
    let prompts = prompts(&venv, &peer, &quantized, runs, &sizes)?;
    let contest = Contest { hearth, venv, peer, home: ws.cache.join("bench-home"), quantized, dense, runs };
    std::fs::create_dir_all(&contest.home)?;
    let mut rows = Vec::new();
    let wanted = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    if wanted("prefill") || wanted("decode") {
        let file = prompts.file(ws, sizes.prompt, 0)?;
        let [prefill, decode] = contest.speeds(&file, sizes.decode)?;
        note(&mut rows, prefill.row("prefill", "tok/s", Target::AtLeast(0.97), Against::Best));
        note(&mut rows, decode.row("decode", "tok/s", Target::AtLeast(1.03), Against::Best));
    }
    if wanted("start to first token") {
        let samples = contest.starts(&prompts.file(ws, MEDIUM, 0)?)?;
        note(&mut rows, samples.row("start to first token", "s", Target::AtMost(0.4), Against::Best));
    }
    if wanted("host time per token") {
        let samples = contest.toy(&toy, &prompts.file(ws, SHORT, 0)?, sizes.toy)?;
        note(&mut rows, samples.row("host time per token, 30-layer toy", "ms", Target::AtMost(0.75), Against::Best));
    }
    server_rows(ws, &contest, &prompts, &sizes, &wanted, &mut rows)?;
    rows.retain(|row| wanted(&row.name));
    if rows.is_empty() {
        bail!("no row's name holds {:?}", options.only.as_deref().unwrap_or_default());
    }
    eprint!("{}", report::table(&rows));
    if options.json {
        println!("{:#}", report::json(&rows, runs));
    }
    Ok(())
}

/// The rows that need servers, as far as they are wanted. The peak of memory is that of whatever ran before it.
fn server_rows(
    ws: &Workspace,
    contest: &Contest,
    prompts: &Prompts,
    sizes: &Sizes,
    wanted: &dyn Fn(&str) -> bool,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let first_token = |length: usize| format!("first token of a {length}-token prompt");
    let firsts = [(MEDIUM, 0.95), (SHORT, 0.6)].map(|(length, target)| (first_token(length), length, target));
    let (concurrent, peak, overhead) =
        ("8 concurrent, in all", "peak memory of the server", "server overhead per token");
    if !firsts.iter().any(|(name, ..)| wanted(name)) && ![concurrent, peak, overhead].into_iter().any(wanted) {
        return Ok(());
    }
    let mut servers: [Server; 3] = contest.servers()?;
    for (name, length, target) in firsts {
        if wanted(&name) || wanted(peak) {
            let samples = contest.first_tokens(&servers, prompts.of(length)?)?;
            note(rows, samples.row(&name, "s", Target::AtMost(target), Against::Best));
        }
    }
    let overhead = match wanted(overhead) {
        true => Some(contest.overhead(&servers[0], ws, prompts, sizes.decode)?),
        false => None,
    };
    if wanted(concurrent) || wanted(peak) {
        let samples = contest.concurrent(&servers, prompts.of(MEDIUM)?, ROWS, sizes.concurrent)?;
        note(rows, samples.row(concurrent, "tok/s", Target::AtLeast(1.1), Against::Best));
    }
    if wanted(peak) {
        let peaks = contest.peaks(&servers)?;
        note(rows, peaks.row(peak, "MB", Target::AtMost(0.8), Against::Dense));
    }
    if let Some(overhead) = overhead {
        note(rows, overhead);
    }
    for server in &mut servers {
        server.end()?;
    }
    Ok(())
}

/// Keeps a row and shows it at once: a long run that is broken off has not been for nothing.
fn note(rows: &mut Vec<Row>, row: Row) {
    eprint!("{}", report::table(std::slice::from_ref(&row)));
    rows.push(row);
}

/// A model of the peer's making, kept in the cache.
fn model(ws: &Workspace, venv: &Venv, peer: &Path, kind: &str, quantized: &Path) -> Result<PathBuf> {
    let of = quantized.file_name().context("the starter model has no folder name")?.to_string_lossy().into_owned();
    ws.cached(&format!("bench-{kind}-{of}"), |part| {
        let mut python = venv.python();
        python.arg(peer).arg(kind);
        if kind == "dense" {
            python.arg(quantized);
        }
        sh::step(&format!("Making the {kind} model"), || sh::run_quiet(python.arg(part))).map(|_| ())
    })
}

/// Texts by their length in tokens.
struct Prompts(Value);

fn prompts(venv: &Venv, peer: &Path, model: &Path, runs: usize, sizes: &Sizes) -> Result<Prompts> {
    // Three servers times the rounds, times the requests of a round, never twice the same.
    let count = (runs + 1) * ROWS * 2;
    let lengths = [SHORT, MEDIUM, sizes.prompt].map(|n| n.to_string());
    let mut python = venv.python();
    python.arg(peer).arg("prompts").arg(model).arg(count.to_string()).args(lengths);
    let text = sh::read(&mut python)?;
    Ok(Prompts(serde_json::from_str(&text).context("the peer printed no JSON")?))
}

impl Prompts {
    fn of(&self, length: usize) -> Result<Vec<String>> {
        let list = self.0[length.to_string()].as_array().context("no prompts of that length")?;
        Ok(list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect())
    }

    /// A file that holds one of them.
    fn file(&self, ws: &Workspace, length: usize, number: usize) -> Result<PathBuf> {
        let path = ws.cache.join(format!("bench-prompt-{length}.txt"));
        let texts = self.of(length)?;
        std::fs::write(&path, texts.get(number).context("too few prompts")?)?;
        Ok(path)
    }
}
