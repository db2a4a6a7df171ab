//! What a user may change while the engine runs, and what a change would mean before it is made.

use serde::{Deserialize, Serialize};

/// Limits of memory, context and rows. A field that is absent stays as it is; an answer has all that apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct Limits {
    /// Bytes that model, rows, prompt cache in memory, and reserve may take together.
    pub budget: Option<u64>,
    /// Most bytes of the prompt cache in memory; 0 turns it off.
    pub cache_ram: Option<u64>,
    /// Most bytes of the prompt cache on disk. It cannot be turned on or off while the engine runs.
    pub cache_ssd: Option<u64>,
    /// Context limit in tokens; 0 goes back to what the budget has room for. An answer has the limit that holds.
    pub context: Option<usize>,
    /// Rows computed at once, from 1 to 256.
    pub max_rows: Option<usize>,
}

/// What some limits would mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct LimitsPreview {
    /// Whether the loaded model still fits, with the context that was asked for or else a short one.
    pub fits: bool,
    /// Bytes that it would lack; 0 where it fits.
    pub short_by: u64,
    /// Tokens that one row could have.
    pub largest_context: u64,
    /// Prompt-cache entries that would leave memory.
    pub demoted_entries: usize,
    /// Their bytes.
    pub demoted_bytes: u64,
}
