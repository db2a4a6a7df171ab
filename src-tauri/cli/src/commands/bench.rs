//! `hearth bench`: how fast a model is on this computer and how much memory it takes, in under a minute, with the engine in
//! this process. What it finds is kept, and `hearth fit` predicts with it from then on.

use crate::args::BenchArgs;
use crate::commands::preferences::{kv, settings_of};
use crate::commands::{local, model, running};
use crate::failure::Failure;
use crate::output::{self, say, size};
use hearth_core::fit::learned::{MemoryRun, Record, SpeedRun};
use hearth_core::stats::Health;
use hearth_core::{Backend, Event, Finish, GenerateRequest, ServedModel};
use hearth_engine::{CacheOptions, Engine, EngineHandle, EngineOptions};
use hearth_host::learning::Known;
use hearth_library::home::Home;
use hearth_library::learned::Log;
use hearth_machine::preflight;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Rows of the measurement with several.
const ROWS: usize = 4;
/// Tokens of the run that only warms up and says how long the others may be.
const WARM_PROMPT: usize = 64;
const WARM_DECODE: usize = 8;
/// The longest prompt, and the most tokens generated, where nobody says.
const LONGEST_PROMPT: usize = 2048;
const MOST_DECODE: usize = 64;
/// Time for the longest prompt, and for each run of generating.
const PROMPT_TIME: f64 = 12.0;
const DECODE_TIME: f64 = 8.0;
/// The engine's chunk.
const CHUNK: u64 = hearth_core::fit::CHUNK;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// The model, and what else its measurements are filed under.
    #[serde(flatten)]
    key: hearth_core::fit::learned::Key,
    chip: Option<String>,
    load_s: f64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
    memory: Vec<Peak>,
    /// What was in the way of a clean measurement.
    disturbances: Vec<String>,
    /// Seconds that all of it took.
    took_s: f64,
}

#[derive(Debug, Serialize)]
struct Prefill {
    tokens: usize,
    tokens_per_s: f64,
}

#[derive(Debug, Serialize)]
struct Decode {
    rows: usize,
    tokens: usize,
    /// Of all rows together.
    tokens_per_s: f64,
}

/// Bytes of MLX's peak, and what was predicted before anything was learned.
#[derive(Debug, Serialize)]
struct Peak {
    tokens: u64,
    rows: usize,
    measured: u64,
    predicted: u64,
}

/// Measures, keeps, and shows.
///
/// # Errors
/// Exit code 1 when a server has a model in memory or the measurement fails, 3 when the model cannot be used.
pub async fn run(args: BenchArgs, home: &Home) -> Result<(), Failure> {
    let started = Instant::now();
    refuse_beside_a_server(home).await?;
    let Some(entry) = model::pick(Some(&args.model), home)? else {
        return Err(Failure::unusable(format!("there is no model {}", args.model)));
    };
    let kv = kv(&args.kv)?.or_bits(settings_of(&entry.id, home).kv_bits);
    let known = Known::of(&entry.id, &entry.path, &kv)?;
    home.prepare()?;
    let disturbances = tokio::task::spawn_blocking(|| preflight::run(&[], &[]).problems).await.unwrap_or_default();
    for problem in &disturbances {
        say!("note: {problem}");
    }
    let engine = Engine::start(EngineOptions {
        max_rows: ROWS,
        prefill_chunk: CHUNK as usize,
        // Nothing may be found that was computed before.
        cache: CacheOptions { ram: 0, ssd: 0, kv, ..CacheOptions::default() },
        ..EngineOptions::default()
    })?;
    let result = async {
        say!("loading {}", entry.id);
        let began = Instant::now();
        let model = model::load(&engine, &entry).await?;
        let load_s = engine.stats().model.map_or_else(|| began.elapsed().as_secs_f64(), |m| m.load_s);
        let mut bench = Bench { engine: &engine, model: &model, known: &known, log: Log::of(home), seed: 1 };
        let mut report = bench.measure(&args).await?;
        report.load_s = load_s;
        report.disturbances = disturbances;
        report.took_s = started.elapsed().as_secs_f64();
        if args.json { output::json(&report) } else { output::print(&shown(&report)) }
    };
    let result = result.await;
    let code = result.as_ref().map_or_else(|failure| failure.code as i32, |()| 0);
    local::shut_down(engine, local::BUSY, code).await;
    result
}

/// Two models would measure each other.
async fn refuse_beside_a_server(home: &Home) -> Result<(), Failure> {
    let Some(running) = running::find(home, None)? else { return Ok(()) };
    match running.client.health().await {
        Ok(Health::Empty) => Ok(()),
        Ok(health) => Err(Failure::no(format!(
            "a server {} runs (process {}), and would be measured as well; stop it first with `hearth stop`",
            local::doing(&health),
            running.record.pid
        ))),
        Err(_) => Ok(()),
    }
}

/// The measurements of one model.
struct Bench<'a> {
    engine: &'a EngineHandle,
    model: &'a ServedModel,
    known: &'a Known,
    log: Log,
    seed: u64,
}

/// One generation, with the moments at which its tokens came.
struct Ran {
    finish: Finish,
    tokens: Vec<Instant>,
}

impl Bench<'_> {
    async fn measure(&mut self, args: &BenchArgs) -> Result<Report, Failure> {
        eprintln!("warming up");
        let warm = self.one(WARM_PROMPT.min(self.model.context / 4).max(1), WARM_DECODE).await?;
        let (short, long, decode) = self.lengths(args, &warm.finish)?;
        let (mut prefill, mut memory, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        for tokens in [short, long] {
            eprintln!("computing a prompt of {tokens} tokens, and {decode} tokens after it");
            hearth_mlx::reset_peak_memory().map_err(|e| Failure::no(e.to_string()))?;
            let ran = self.one(tokens, decode).await?;
            let measured = hearth_mlx::peak_memory().map_err(|e| Failure::no(e.to_string()))? as u64;
            let (usage, timings) = (&ran.finish.usage, &ran.finish.timings);
            let tokens_per_s = timings.prefill_tps(usage);
            prefill.push(Prefill { tokens, tokens_per_s });
            let all = (usage.prompt_tokens + usage.completion_tokens) as u64;
            let (predicted, predicted_transient) = self.known.predict(tokens as u64, all, CHUNK, 0);
            memory.push(Peak { tokens: all, rows: 1, measured, predicted });
            if tokens == short {
                let tokens_per_s = timings.decode_tps(usage);
                decoded.push(Decode { rows: 1, tokens: decode, tokens_per_s });
            }
            let at = all - usage.completion_tokens as u64 / 2;
            let speed = Some(SpeedRun {
                tokens: at,
                decode: timings.decode_tps(usage),
                bytes_per_token: self.known.sizing.bytes_per_token(at),
                prefill: tokens_per_s,
            });
            let run = MemoryRun { tokens: all, rows: 1, predicted, predicted_transient, measured };
            // What was measured is shown all the same.
            if let Err(e) = self.log.append(&Record { memory: Some(run), speed, ..self.known.record("bench") }) {
                eprintln!("note: these figures are not kept for later: {e}");
            }
        }
        eprintln!("generating {decode} tokens in each of {ROWS} rows");
        decoded.push(self.together(short.min(128), decode).await?);
        Ok(Report {
            key: self.known.key.clone(),
            chip: hearth_machine::chips::here().chip,
            load_s: 0.0,
            prefill,
            decode: decoded,
            memory,
            disturbances: Vec::new(),
            took_s: 0.0,
        })
    }

    /// Lengths of the two prompts and of what is generated: as asked, or what takes seconds at the speed of the
    /// warm-up.
    fn lengths(&self, args: &BenchArgs, warm: &Finish) -> Result<(usize, usize, usize), Failure> {
        let context = self.model.context;
        let in_time = |rate: f64, seconds: f64, most: usize| ((rate * seconds) as usize).clamp(1, most);
        let decode = match args.decode {
            Some(n) => n as usize,
            None => in_time(warm.timings.decode_tps(&warm.usage), DECODE_TIME, MOST_DECODE).max(WARM_DECODE),
        };
        let room = context.saturating_sub(decode + 1);
        let long = match args.prompt {
            Some(n) => n as usize,
            // A short prompt is computed more slowly than a long one, token by token.
            None => {
                let most = in_time(warm.timings.prefill_tps(&warm.usage), PROMPT_TIME, LONGEST_PROMPT);
                (most.max(WARM_PROMPT) / WARM_PROMPT * WARM_PROMPT).min(room)
            }
        };
        if long > room || long == 0 {
            return Err(Failure::usage(format!(
                "a prompt of {long} tokens and {decode} after it do not fit into the context of {context} tokens; give less \
                 with --prompt and --decode"
            )));
        }
        Ok(((long / 4).max(1), long, decode))
    }

    /// Token ids that nobody computed before: cheap numbers, the same with every run.
    fn prompt(&mut self, tokens: usize) -> Vec<u32> {
        let known = self.model.tokenizer.vocab_size().min(self.model.vocab_size).max(1) as u64;
        let next = |_| {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.seed >> 33) % known) as u32
        };
        (0..tokens).map(next).collect()
    }

    async fn one(&mut self, prompt: usize, decode: usize) -> Result<Ran, Failure> {
        let request = GenerateRequest::greedy(&self.prompt(prompt), decode);
        self.finish(request).await
    }

    async fn finish(&self, request: GenerateRequest) -> Result<Ran, Failure> {
        let mut generation = self.engine.submit(self.model, request)?;
        let mut tokens = Vec::new();
        loop {
            match generation.events.recv().await {
                Some(Event::Delta(delta)) => tokens.extend(delta.tokens.iter().map(|_| Instant::now())),
                Some(Event::Finished(finish)) => return Ok(Ran { finish, tokens }),
                Some(Event::Failed(e)) => return Err(e.into()),
                Some(_) => {}
                None => return Err(Failure::no("the engine ended in the middle of the measurement")),
            }
        }
    }

    /// Several rows at once, over the time in which all of them generate.
    async fn together(&mut self, prompt: usize, decode: usize) -> Result<Decode, Failure> {
        let requests: Vec<_> = (0..ROWS).map(|_| GenerateRequest::greedy(&self.prompt(prompt), decode)).collect();
        let [a, b, c, d]: [GenerateRequest; ROWS] =
            requests.try_into().map_err(|_| Failure::no("the rows could not be prepared"))?;
        let (a, b, c, d) = tokio::try_join!(self.finish(a), self.finish(b), self.finish(c), self.finish(d))?;
        let rows = [a, b, c, d].map(|ran| ran.tokens);
        let from = rows.iter().filter_map(|tokens| tokens.first()).max();
        let to = rows.iter().filter_map(|tokens| tokens.last()).min();
        let tokens_per_s = match (from, to) {
            (Some(&from), Some(&to)) => {
                let count = rows.iter().flatten().filter(|&&at| at > from && at <= to).count();
                count as f64 / to.saturating_duration_since(from).max(Duration::from_micros(1)).as_secs_f64()
            }
            _ => 0.0,
        };
        Ok(Decode { rows: ROWS, tokens: decode, tokens_per_s })
    }
}

fn shown(report: &Report) -> String {
    let mut rows = vec![vec!["load".to_owned(), String::new(), output::duration(report.load_s)]];
    for one in &report.prefill {
        rows.push(vec![
            "prefill".into(),
            format!("{} tokens", one.tokens),
            format!("{:.1} tokens/s", one.tokens_per_s),
        ]);
    }
    for one in &report.decode {
        let what = output::counted(one.rows as u64, "row", "rows");
        let in_all = if one.rows > 1 { " in all" } else { "" };
        rows.push(vec!["decode".into(), what, format!("{:.1} tokens/s{in_all}", one.tokens_per_s)]);
    }
    for one in &report.memory {
        let off = (one.predicted as f64 / one.measured.max(1) as f64 - 1.0) * 100.0;
        let peak = format!("{}; predicted {} ({off:+.1} %)", size(one.measured), size(one.predicted));
        rows.push(vec!["peak memory".into(), format!("{} tokens", one.tokens), peak]);
    }
    let key = &report.key;
    let chip = report.chip.as_deref().unwrap_or(&key.device);
    let table = output::table(&["", "", ""], &[false, true, false], &rows);
    format!(
        "{}, weights {}, on {chip}, MLX {}\n\n{}\nkept: `hearth fit` predicts with this from now on\n",
        key.model,
        key.quantization,
        key.mlx,
        table.trim_start_matches('\n')
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use hearth_core::fit::Device;
    use hearth_core::fit::learned::Key;

    #[test]
    fn the_table_names_what_was_measured_and_how_far_off_the_prediction_was() {
        let report = Report {
            key: Key::new("org/m", "4-bit", Device::Gpu, "float", "0.32.2"),
            chip: Some("Apple M2".into()),
            load_s: 0.42,
            prefill: vec![Prefill { tokens: 512, tokens_per_s: 812.34 }],
            decode: vec![
                Decode { rows: 1, tokens: 64, tokens_per_s: 60.0 },
                Decode { rows: 4, tokens: 64, tokens_per_s: 131.25 },
            ],
            memory: vec![Peak { tokens: 576, rows: 1, measured: 1_000_000_000, predicted: 1_050_000_000 }],
            disturbances: Vec::new(),
            took_s: 9.0,
        };
        let text = shown(&report);
        for line in [
            "org/m, weights 4-bit, on Apple M2, MLX 0.32.2\n\nload ",
            "prefill      512 tokens  812.3 tokens/s\n",
            "decode            1 row  60.0 tokens/s\n",
            "decode           4 rows  131.2 tokens/s in all\n",
            "peak memory  576 tokens  1.0 GB; predicted 1.1 GB (+5.0 %)\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
