//! The command line as data: every command, flag, default and environment variable. Nothing here does anything.

use crate::given::Given;
use crate::sizes;
use clap::{Args, Parser, Subcommand};
use hearth_server::logs::LogRing;
use std::path::PathBuf;
use std::time::Duration;

/// What every `--help` ends with.
const EXIT_CODES: &str = "\
Exit codes:
  0  ok
  1  the answer is no (a check failed, the port is taken, the computation failed)
  2  the command line is wrong
  3  a model or file is unusable
  4  the server cannot be reached
  130  a second ctrl-c ended a server before it had saved its prompt cache";

/// `hearth`.
#[derive(Debug, Parser)]
#[command(
    name = "hearth",
    version,
    about = "Run local language models with MLX and serve them over an OpenAI-compatible API",
    after_help = EXIT_CODES,
    infer_long_args = false
)]
pub struct Cli {
    /// What to log to standard error: off, error, warn, info (a line for each request), debug, trace, or a filter
    /// such as `warn,hearth_engine=debug`
    #[arg(long, global = true, env = "HEARTH_LOG", default_value = "warn", value_name = "FILTER")]
    pub log: String,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP
    #[command(after_help = EXIT_CODES)]
    Serve(ServeArgs),
    /// Chat in the terminal
    #[command(after_help = EXIT_CODES)]
    Run(RunArgs),
    /// Complete one prompt and print the text
    #[command(after_help = EXIT_CODES)]
    Generate(GenerateArgs),
    /// Turn a GGUF file into a model folder, losslessly
    #[command(after_help = EXIT_CODES)]
    Import(ImportArgs),
    /// Quantize an unquantized model into a new folder
    #[command(after_help = EXIT_CODES)]
    Convert(ConvertArgs),
    /// Download a model from the hub, or go on with a download
    #[command(after_help = EXIT_CODES)]
    Pull(PullArgs),
    /// Search the hub for models
    #[command(after_help = EXIT_CODES)]
    Search(SearchArgs),
    /// Remove a model from this computer
    #[command(after_help = EXIT_CODES)]
    Rm(RmArgs),
    /// List the models on this computer, and downloads that are not complete
    #[command(after_help = EXIT_CODES)]
    Ls(DataArgs),
    /// Show the running server: its model, rows and memory
    #[command(after_help = EXIT_CODES)]
    Ps(DataArgs),
    /// Stop the running server, which saves its prompt cache first; 1 and the reason if it could not. With MODEL: unload it
    #[command(after_help = EXIT_CODES)]
    Stop(StopArgs),
    /// Show, flush or clear the prompt cache of the running server
    #[command(subcommand, after_help = EXIT_CODES)]
    Cache(CacheCommand),
    /// Open the running server's dashboard in a browser, by a link that works once
    #[command(after_help = EXIT_CODES)]
    Dashboard(DashboardArgs),
    /// Check that this computer is ready, and say what to do where it is not
    #[command(after_help = EXIT_CODES)]
    Doctor(DataArgs),
    /// Tell whether a model fits on this computer, with how much context and how fast; reads no weights
    #[command(after_help = EXIT_CODES)]
    Fit(FitArgs),
    /// Measure a model on this computer in under a minute: speeds, and memory against the prediction
    #[command(after_help = EXIT_CODES)]
    Bench(BenchArgs),
    /// Check that this computer is quiet and has room for a model now, and say what to do where it has not
    #[command(after_help = EXIT_CODES)]
    Preflight(PreflightArgs),
}

/// Options of a command that only prints data.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Take only this model out of memory, named as in a request; the server goes on
    pub model: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth dashboard`.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Only print the link
    #[arg(long)]
    pub no_open: bool,
    /// Print JSON, and open nothing
    #[arg(long)]
    pub json: bool,
}

/// `hearth fit`.
#[derive(Debug, Args)]
pub struct FitArgs {
    /// The model: a folder, a hub id that is on disk, or an unambiguous part of a name
    pub model: String,
    /// Context in tokens, prompt and answer together [default: 8192, or the model's own where that is less]
    #[arg(long, value_name = "N", value_parser = count(1, 1 << 30))]
    pub context: Option<u32>,
    /// Memory that model and reserve may take, such as 18GB [default: three quarters of the memory, and no more than the
    /// GPU may hold]
    #[arg(long, env = "HEARTH_MEMORY_BUDGET", value_name = "SIZE", value_parser = budget)]
    pub memory_budget: Option<u64>,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// Show on which Macs it would run
    #[arg(long)]
    pub skus: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model: a folder, a hub id that is on disk, or an unambiguous part of a name
    pub model: String,
    /// Tokens of the longer of the two prompts; the other has a quarter of it [default: what takes about 12 seconds, 2048
    /// at most]
    #[arg(long, value_name = "N", value_parser = count(4, 1 << 30))]
    pub prompt: Option<u32>,
    /// Tokens to generate in each run [default: what takes about 8 seconds, 64 at most]
    #[arg(long, value_name = "N", value_parser = count(2, 1 << 20))]
    pub decode: Option<u32>,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How keys and values are kept.
#[derive(Debug, Clone, Default, Args)]
pub struct KvArgs {
    /// Keep keys and values in 4 or 8 bits: less memory for each token, a little less exact [default: as computed]
    #[arg(long, value_name = "BITS", value_parser = ["4", "8"])]
    pub kv_bits: Option<String>,
    /// Elements that share a scale: 64, and nothing else for now
    #[arg(long, value_name = "N", value_parser = ["64"])]
    pub kv_group: Option<String>,
    /// A JSON list with an entry for each layer, null or {"bits": 8}, in place of one number for all
    #[arg(long, value_name = "FILE", conflicts_with = "kv_bits")]
    pub kv_config: Option<PathBuf>,
}

/// `hearth preflight`.
#[derive(Debug, Args)]
pub struct PreflightArgs {
    /// A program whose CPU use is forgiven, by its exact command line, arguments joined by one space; may be given
    /// several times. Its memory is never forgiven
    #[arg(long, value_name = "CMD", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub allow_cpu_process: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth cache`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// Show what the cache holds and what it saved
    #[command(after_help = EXIT_CODES)]
    Stats(CacheArgs),
    /// Write all of it to disk; returns when that is done, with 1 and the reason if something could not be written
    #[command(after_help = EXIT_CODES)]
    Flush(CacheArgs),
    /// Remove all of it from memory and disk
    #[command(after_help = EXIT_CODES)]
    Clear(CacheArgs),
}

/// Options of `hearth cache`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Talk to the server on this port: `stats` of any home's server, the rest of this home's only
    /// [default: the one that `hearth ps` shows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How the engine runs, wherever it runs.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Context limit in tokens, prompt and answer together [default: the model's own, as far as the memory budget has room]
    #[arg(long, env = "HEARTH_CONTEXT", value_name = "N", value_parser = count(1, 1 << 30))]
    pub context: Option<u32>,
    /// Memory that the model, its requests and the prompt cache may take together, such as 18GB [default: three quarters of
    /// the memory, and no more than the GPU may hold]
    #[arg(long, env = "HEARTH_MEMORY_BUDGET", value_name = "SIZE", value_parser = budget)]
    pub memory_budget: Option<u64>,
    /// Part of the budget that stays free for what arithmetic does not see, such as 512MB [default: a thirty-second of the
    /// memory, from 256MiB to 2GiB]
    #[arg(long, env = "HEARTH_RESERVE", value_name = "SIZE", value_parser = sizes::parse)]
    pub reserve: Option<u64>,
    /// The budget comes from `settings.toml`.
    #[arg(skip)]
    pub budget_is_set: bool,
    /// Prompt tokens computed at once while nothing else runs
    #[arg(long, env = "HEARTH_PREFILL_CHUNK", value_name = "N", default_value_t = 2048, value_parser = count(1, 1 << 20))]
    pub prefill_chunk: u32,
}

impl EngineArgs {
    /// Where the memory budget comes from, for those who are shown it.
    pub fn budget_from(&self) -> &'static str {
        let given = std::env::args().any(|arg| arg == "--memory-budget" || arg.starts_with("--memory-budget="));
        match (self.memory_budget, given) {
            (Some(_), _) if self.budget_is_set => "settings",
            (None, _) => "default",
            (Some(_), true) => "flag",
            (Some(_), false) => "environment",
        }
    }
}

/// `hearth serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The model: a folder, a hub id that is on disk, or an unambiguous part of a name. It answers to any name. Without
    /// it, the name in a request chooses among the models on disk
    /// [default: the last used one, or the only one]
    pub model: Option<String>,
    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "HEARTH_PORT", value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// Address to listen on; anything but loopback needs an API key
    #[arg(long, env = "HEARTH_HOST", value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Most requests computed at the same time
    #[arg(long, env = "HEARTH_MAX_ROWS", value_name = "N", default_value_t = 8, value_parser = count(1, 256))]
    pub max_rows: u32,
    /// How long a model stays in memory without work, such as 30s, 5m or 2h [default: until another one needs its room]
    #[arg(long, env = "HEARTH_MODEL_TTL", value_name = "TIME", value_parser = time_to_stay, allow_hyphen_values = true)]
    pub model_ttl: Option<Stay>,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The prompt cache.
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Leave the x-anthropic-billing-header line at the start of a system prompt, which is new with every request
    #[arg(long)]
    pub keep_client_headers: bool,
    /// Which of these were given, and how.
    #[arg(skip)]
    pub given: Given,
    /// The last log lines.
    #[arg(skip)]
    pub logs: LogRing,
    /// A key that requests must carry; may be given several times [default: any key is accepted]
    #[arg(long = "api-key", env = "HEARTH_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_keys: Vec<String>,
    /// A further name that requests may use for this server, such as host.docker.internal; may be given several times
    #[arg(long = "allow-host", env = "HEARTH_ALLOW_HOST", value_name = "NAME", value_delimiter = ',')]
    pub allow_hosts: Vec<String>,
    /// A further web origin that may call this server, such as http://localhost:3000; may be given several times
    #[arg(long = "allow-origin", env = "HEARTH_ALLOW_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub allow_origins: Vec<String>,
}

/// A time that a model stays; `None` is for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay(pub Option<Duration>);

fn time_to_stay(text: &str) -> Result<Stay, String> {
    hearth_core::model_settings::stay(&text.into()).map(Stay).map_err(|expected| format!("expected {expected}"))
}

/// The prompt cache of `hearth serve`. A SIZE has a unit: 2GB, 512MiB; 0 turns its tier off.
#[derive(Debug, Clone, Args)]
pub struct CacheFlags {
    /// Folder of the prompt cache's files [default: cache in Hearth's home]
    #[arg(long, value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// Most memory for the prompt cache, such as 2GB; 0 turns it off [default: 8GiB, or a quarter of the memory]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    pub cache_ram: Option<u64>,
    /// Most disk space for the prompt cache, such as 32GB; 0 turns it off [default: 32GiB]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    pub cache_ssd: Option<u64>,
    /// Seconds until what nobody uses moves from memory to disk
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = count(1, 1 << 30))]
    pub cache_idle: u32,
    /// How keys and values are kept
    #[command(flatten)]
    pub kv: KvArgs,
}

/// `hearth run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The model: a folder, a hub id that is on disk, or an unambiguous part of a name; refused where a running server serves
    /// another one alone [default: the running server's, the last used one, or the only one]
    pub model: Option<String>,
    /// Talk to this server instead of the running one
    #[arg(long, env = "HEARTH_URL", value_name = "URL")]
    pub url: Option<String>,
    /// Key for a server that asks for one
    #[arg(long, env = "HEARTH_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// The system message to start with
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// 0 always takes the likeliest token; up to 2 [default: the model's own]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Most tokens in one answer [default: what the context leaves]
    #[arg(long, value_name = "N", value_parser = count(1, 1 << 30))]
    pub max_tokens: Option<u32>,
}

/// `hearth generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// The model: a folder, a hub id that is on disk, or an unambiguous part of a name
    pub model: String,
    /// The prompt [default: read from standard input]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,
    /// Read the prompt from this file
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// Treat the prompt as a user's message and apply the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// The system message before it
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count(1, 1 << 30))]
    pub max_tokens: u32,
    /// 0 always takes the likeliest token; up to 2 [default: the model's own]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Sample among the likeliest tokens that hold this probability [default: the model's own]
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Sample among this many likeliest tokens; 0 is all [default: the model's own]
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Drop tokens less likely than this share of the likeliest [default: the model's own]
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Make sampling repeatable
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End at this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on past the end of the answer, to measure speed
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print one JSON object instead of the text
    #[arg(long)]
    pub json: bool,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// `hearth import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The GGUF file
    pub file: PathBuf,
    /// The new model folder [default: one in Hearth's models folder, named after the file]
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// The model on the hub: org/name, or org/name@revision for a branch, tag or commit
    #[arg(value_name = "MODEL[@REVISION]")]
    pub model: String,
    /// Only say how much there is to download, and whether the model fits on this computer; reads headers, no weights
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth search`.
#[derive(Debug, Args)]
pub struct SearchArgs {
    /// What to look for, such as qwen3
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub text: String,
    /// Most models to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = count(1, 100))]
    pub limit: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth rm`.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The model, as `hearth ls` shows it, or an unambiguous part of its name
    pub model: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Remove it although Hearth has not made it, and other programs may use it
    #[arg(long)]
    pub foreign: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `hearth convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The model: a folder, a hub id that is on disk, or an unambiguous part of a name
    pub model: String,
    /// How weights are stored
    #[arg(long, default_value = "affine", value_parser = ["affine", "mxfp4", "mxfp8", "nvfp4"])]
    pub mode: String,
    /// Bits for each weight: 2, 3, 4, 5, 6 or 8 for affine, and what the other modes are made of [default: 4, mxfp8: 8]
    #[arg(long, value_name = "BITS")]
    pub bits: Option<u32>,
    /// Weights that share a scale: 32, 64 or 128 for affine [default: 64; mxfp4 and mxfp8: 32, nvfp4: 16]
    #[arg(long, value_name = "N")]
    pub group: Option<u32>,
    /// The new model folder [default: one in Hearth's models folder, named after the model]
    #[arg(long, short, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A size that something is to fit into.
fn budget(text: &str) -> Result<u64, String> {
    match sizes::parse(text)? {
        0 => Err("expected a size above 0, such as 18GB".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A whole number in a range, as clap checks it.
fn count(least: i64, most: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(least..=most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_hold_together() {
        Cli::command().debug_assert();
    }
}
