//! The figures that `/stats`, the event stream, the CLI and the UI share. Additive: fields are added, never renamed.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the [`Stats`] schema; raised when a field's meaning changes.
pub const STATS_VERSION: u32 = 1;

/// Whether the server can answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
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
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct Stats {
    /// [`STATS_VERSION`].
    pub version: u32,
    /// Seconds since the process started.
    pub uptime_s: f64,
    /// The loaded model, if any; of several the one that was used last.
    pub model: Option<ModelStats>,
    /// All models in memory, the one that was used last first.
    pub models: Vec<ModelStats>,
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
    /// The prompt cache.
    pub cache: CacheStats,
}

/// A loaded model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ModelStats {
    /// Its id.
    pub id: String,
    /// `model_type` of its config.
    pub model_type: String,
    /// Context limit in tokens.
    pub context: usize,
    /// Seconds the load took.
    pub load_s: f64,
    /// Bytes of its weights.
    pub weights: u64,
    /// Whether it stays in memory whatever else is asked for.
    pub pinned: bool,
    /// Requests for it that wait or run.
    pub requests: usize,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct RowStats {
    /// The row's number.
    pub id: u64,
    /// `prefill`, `decode`, `paused` (its client does not read) or `waiting` (for memory to grow in).
    pub phase: String,
    /// Prompt length in tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens computed.
    pub prefilled: usize,
    /// Generated tokens.
    pub generated: usize,
    /// Decode speed in tokens per second.
    pub tokens_per_s: f64,
    /// The id of its model.
    pub model: String,
}

/// Sums since the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
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
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
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
    /// What the memory is for, against the budget.
    pub ledger: LedgerStats,
    /// What is done when it gets tight.
    pub guard: GuardStats,
}

/// The memory ledger in bytes: what everything is for, against one budget. The six categories sum to `total` exactly.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct LedgerStats {
    /// Bytes that may be used.
    pub budget: u64,
    /// Where the budget comes from: `default`, `flag`, `environment`, `settings` or `api`.
    pub budget_from: String,
    /// Model weights.
    pub weights: u64,
    /// Keys, values and states of the rows, with the room that is reserved for their next tokens.
    pub kv: u64,
    /// The prompt cache in memory, with what is on its way from there to disk.
    pub prompt_cache: u64,
    /// What computing the next chunk and step holds for a moment; 0 without rows.
    pub prefill_transient: u64,
    /// Freed buffers that the allocator keeps, or may keep while rows run.
    pub allocator_cache: u64,
    /// For what arithmetic does not see: kernels, tokenizer, server, fragmentation.
    pub reserve: u64,
    /// The sum of the six above.
    pub total: u64,
    /// What is left of the budget; 0 when it is exceeded.
    pub free: u64,
    /// From here on prompts are computed in smaller chunks, and the prompt cache leaves memory.
    pub soft: u64,
    /// From here on nothing new is admitted while anything runs.
    pub hard: u64,
    /// The process before any model was loaded.
    pub baseline: u64,
    /// What the process holds beyond the baseline and what the ledger says is allocated by now; may be negative.
    pub unaccounted: i64,
    /// Tokens that one row could have in this budget with the loaded model; 0 without one.
    pub largest_context: u64,
}

/// How tight memory is, and what was done about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct GuardStats {
    /// Which mark is passed.
    pub level: GuardLevel,
    /// What the operating system says.
    pub pressure: PressureLevel,
    /// Whether new requests get rows.
    pub admitting: bool,
    /// Prompt tokens in one chunk, at most, at this moment.
    pub chunk: usize,
    /// What was done lately, the newest last; 32 at most.
    pub actions: Vec<GuardAction>,
}

/// Marks of the memory ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum GuardLevel {
    /// Below both.
    #[default]
    Normal,
    /// Past the soft one: prompts in smaller chunks, the prompt cache leaves memory.
    Soft,
    /// Past the hard one: nothing new is admitted while anything runs.
    Hard,
}

/// Memory pressure as the operating system sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum PressureLevel {
    /// It does not say.
    #[default]
    Unknown,
    /// None.
    Normal,
    /// Programs should give memory back.
    Warning,
    /// Programs are about to be ended.
    Critical,
}

/// One thing that the guard did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct GuardAction {
    /// Its number, one more than that of the action before it.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// `shrink_chunk`, `restore_chunk`, `trim_allocator`, `demote`, `stop_admission`, `resume`, `park_row` or `unload`.
    pub what: String,
    /// Why, as a sentence with the numbers.
    pub why: String,
    /// Bytes that it freed or will free.
    pub freed: u64,
}

/// The prompt cache's two tiers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct CacheStats {
    /// Entries in memory.
    pub ram: RamCacheStats,
    /// Files on disk.
    pub ssd: SsdCacheStats,
}

/// The prompt cache in memory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct RamCacheStats {
    /// Most bytes it may hold; 0: it is off.
    pub cap: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Bytes of entries that left for want of room and are not on disk yet: a quarter of the cap at most, or 64 MiB.
    pub waiting: u64,
    /// Entries held.
    pub entries: usize,
    /// Tokens of all entries.
    pub tokens: u64,
    /// Requests that found a prefix here.
    pub hits: u64,
    /// Requests that did not.
    pub misses: u64,
    /// Prompt tokens that did not have to be computed.
    pub reused_tokens: u64,
    /// Entries stored.
    pub stored: u64,
    /// Entries that a longer one took the place of.
    pub superseded: u64,
    /// Entries that had to go for want of room.
    pub evicted: u64,
    /// Entries whose buffers rows are reading at this moment.
    pub lent: usize,
    /// Hits that took the entry over, because there was no room for a copy.
    pub moved: u64,
}

/// The prompt cache on disk.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct SsdCacheStats {
    /// Whether it works.
    pub state: SsdState,
    /// Why it does not, and what to do.
    pub message: Option<String>,
    /// Its folder.
    pub dir: Option<PathBuf>,
    /// Most bytes that the folder may hold.
    pub cap: u64,
    /// Bytes that Hearth's files take there, those of other models included.
    pub bytes: u64,
    /// Hearth's files there.
    pub files: usize,
    /// Bytes that wait to be written.
    pub pending: u64,
    /// Requests that were continued from disk.
    pub hits: u64,
    /// Prompt tokens read back instead of computed.
    pub reused_tokens: u64,
    /// Bytes written since the start.
    pub written: u64,
    /// Bytes read since the start.
    pub read: u64,
    /// Files that had to go for want of room.
    pub evicted: u64,
    /// Files that were damaged and removed.
    pub corrupt: u64,
    /// Restores that failed; the prompt was computed instead.
    pub failed_restores: u64,
}

/// Whether the prompt cache on disk works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum SsdState {
    /// It was not asked for.
    #[default]
    Off,
    /// It works.
    Ready,
    /// Writing failed (a full disk, a folder without permission): nothing more is written, what is there is read.
    Failed,
}

/// What a flush of the prompt cache did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct CacheFlush {
    /// Entries that are on disk now.
    pub entries: usize,
    /// Bytes written for it; what was there already is not written again.
    pub bytes: u64,
    /// What could not be made durable, and why.
    pub failed: Vec<String>,
}

/// What a clearing of the prompt cache removed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct CacheClear {
    /// Entries in memory.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files on disk.
    pub files: usize,
    /// Their bytes.
    pub file_bytes: u64,
}
