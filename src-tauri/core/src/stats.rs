//! The figures that `/stats`, the event stream, the CLI and the UI share. Additive: fields are added, never renamed.

use serde::{Deserialize, Serialize};

/// Version of the [`Stats`] schema; raised when a field's meaning changes.
pub const STATS_VERSION: u32 = 1;

/// Whether the server can answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Health {
    /// A model is in memory.
    Ready {
        /// Its id.
        model: String,
    },
    /// A model is being loaded.
    Loading {
        /// Its id.
        model: String,
        /// Progress, 0–100.
        percent: u8,
    },
    /// No model was asked for.
    Empty,
    /// The load or the engine failed.
    Failed {
        /// What went wrong and what to do.
        message: String,
    },
}

/// The engine's figures at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// [`STATS_VERSION`].
    pub version: u32,
    /// Seconds since the process started.
    pub uptime_s: f64,
    /// The loaded model, if any.
    pub model: Option<ModelStats>,
    /// Rows being computed.
    pub rows: Vec<RowStats>,
    /// Requests waiting for a row.
    pub waiting: usize,
    /// Most rows computed at once.
    pub max_rows: usize,
    /// Sums since the start.
    pub totals: Totals,
    /// Memory in bytes.
    pub memory: MemoryStats,
}

/// The loaded model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelStats {
    /// Its id.
    pub id: String,
    /// `model_type` of its config.
    pub model_type: String,
    /// Context limit in tokens.
    pub context: usize,
    /// Seconds the load took.
    pub load_s: f64,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RowStats {
    /// The row's number.
    pub id: u64,
    /// `prefill`, `decode` or `paused` (its client does not read).
    pub phase: String,
    /// Prompt length in tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens computed.
    pub prefilled: usize,
    /// Generated tokens.
    pub generated: usize,
    /// Decode speed in tokens per second.
    pub tokens_per_s: f64,
}

/// Sums since the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Generations accepted.
    pub requests: u64,
    /// Generations finished (stop or length).
    pub finished: u64,
    /// Generations whose client went away.
    pub cancelled: u64,
    /// Generations that failed.
    pub failed: u64,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Decode steps run.
    pub steps: u64,
}

/// Memory in bytes, as MLX and the operating system see it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStats {
    /// Model weights.
    pub weights: u64,
    /// KV caches of the running rows.
    pub kv: u64,
    /// MLX's live buffers (weights and KV included).
    pub mlx_active: u64,
    /// MLX's allocator cache.
    pub mlx_cache: u64,
    /// MLX's peak since the start.
    pub mlx_peak: u64,
    /// The process: resident set on Linux, physical footprint on macOS.
    pub process: u64,
}
