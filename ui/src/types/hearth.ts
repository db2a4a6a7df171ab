// Made from the Rust types by `cargo xtask types`; not to be edited.

export type Health = { "status": "ready", 
/**
 * Its id.
 */
model: string, } | { "status": "loading", 
/**
 * Its id.
 */
model: string, 
/**
 * Progress, 0–100.
 */
percent: number, } | { "status": "empty" } | { "status": "failed", 
/**
 * What went wrong and what to do.
 */
message: string, };

export type Stats = { 
/**
 * [`STATS_VERSION`].
 */
version: number, 
/**
 * Seconds since the process started.
 */
uptime_s: number, 
/**
 * The loaded model, if any; of several the one that was used last.
 */
model: ModelStats | null, 
/**
 * All models in memory, the one that was used last first.
 */
models: Array<ModelStats>, 
/**
 * Rows being computed.
 */
rows: Array<RowStats>, 
/**
 * Requests waiting for a row.
 */
waiting: number, 
/**
 * Most rows computed at once.
 */
max_rows: number, 
/**
 * Sums since the start.
 */
totals: Totals, 
/**
 * Memory in bytes.
 */
memory: MemoryStats, 
/**
 * The prompt cache.
 */
cache: CacheStats, };

export type ModelStats = { 
/**
 * Its id.
 */
id: string, 
/**
 * `model_type` of its config.
 */
model_type: string, 
/**
 * Context limit in tokens.
 */
context: number, 
/**
 * Seconds the load took.
 */
load_s: number, 
/**
 * Bytes of its weights.
 */
weights: number, 
/**
 * Whether it stays in memory whatever else is asked for.
 */
pinned: boolean, 
/**
 * Requests for it that wait or run.
 */
requests: number, };

export type RowStats = { 
/**
 * The row's number.
 */
id: number, 
/**
 * `prefill`, `decode`, `paused` (its client does not read) or `waiting` (for memory to grow in).
 */
phase: string, 
/**
 * Prompt length in tokens.
 */
prompt_tokens: number, 
/**
 * Prompt tokens computed.
 */
prefilled: number, 
/**
 * Generated tokens.
 */
generated: number, 
/**
 * Decode speed in tokens per second.
 */
tokens_per_s: number, 
/**
 * The id of its model.
 */
model: string, };

export type Totals = { 
/**
 * Generations accepted.
 */
requests: number, 
/**
 * Generations finished (stop or length).
 */
finished: number, 
/**
 * Generations whose client went away.
 */
cancelled: number, 
/**
 * Generations that failed.
 */
failed: number, 
/**
 * Prompt tokens computed.
 */
prompt_tokens: number, 
/**
 * Tokens generated.
 */
generated_tokens: number, 
/**
 * Decode steps run.
 */
steps: number, };

export type MemoryStats = { 
/**
 * Model weights.
 */
weights: number, 
/**
 * KV caches of the running rows.
 */
kv: number, 
/**
 * MLX's live buffers (weights and KV included).
 */
mlx_active: number, 
/**
 * MLX's allocator cache.
 */
mlx_cache: number, 
/**
 * MLX's peak since the start.
 */
mlx_peak: number, 
/**
 * The process: resident set on Linux, physical footprint on macOS.
 */
process: number, 
/**
 * What the memory is for, against the budget.
 */
ledger: LedgerStats, 
/**
 * What is done when it gets tight.
 */
guard: GuardStats, };

export type LedgerStats = { 
/**
 * Bytes that may be used.
 */
budget: number, 
/**
 * Where the budget comes from: `default`, `flag`, `environment`, `settings` or `api`.
 */
budget_from: string, 
/**
 * Model weights.
 */
weights: number, 
/**
 * Keys, values and states of the rows, with the room that is reserved for their next tokens.
 */
kv: number, 
/**
 * The prompt cache in memory, with what is on its way from there to disk.
 */
prompt_cache: number, 
/**
 * What computing the next chunk and step holds for a moment; 0 without rows.
 */
prefill_transient: number, 
/**
 * Freed buffers that the allocator keeps, or may keep while rows run.
 */
allocator_cache: number, 
/**
 * For what arithmetic does not see: kernels, tokenizer, server, fragmentation.
 */
reserve: number, 
/**
 * The sum of the six above.
 */
total: number, 
/**
 * What is left of the budget; 0 when it is exceeded.
 */
free: number, 
/**
 * From here on prompts are computed in smaller chunks, and the prompt cache leaves memory.
 */
soft: number, 
/**
 * From here on nothing new is admitted while anything runs.
 */
hard: number, 
/**
 * The process before any model was loaded.
 */
baseline: number, 
/**
 * What the process holds beyond the baseline and what the ledger says is allocated by now; may be negative.
 */
unaccounted: number, 
/**
 * Tokens that one row could have in this budget with the loaded model; 0 without one.
 */
largest_context: number, };

export type GuardStats = { 
/**
 * Which mark is passed.
 */
level: GuardLevel, 
/**
 * What the operating system says.
 */
pressure: PressureLevel, 
/**
 * Whether new requests get rows.
 */
admitting: boolean, 
/**
 * Prompt tokens in one chunk, at most, at this moment.
 */
chunk: number, 
/**
 * What was done lately, the newest last; 32 at most.
 */
actions: Array<GuardAction>, };

export type GuardLevel = "normal" | "soft" | "hard";

export type PressureLevel = "unknown" | "normal" | "warning" | "critical";

export type GuardAction = { 
/**
 * Its number, one more than that of the action before it.
 */
id: number, 
/**
 * When, in milliseconds since 1970.
 */
at: number, 
/**
 * `shrink_chunk`, `restore_chunk`, `trim_allocator`, `demote`, `stop_admission`, `resume`, `park_row` or `unload`.
 */
what: string, 
/**
 * Why, as a sentence with the numbers.
 */
why: string, 
/**
 * Bytes that it freed or will free.
 */
freed: number, };

export type CacheStats = { 
/**
 * Entries in memory.
 */
ram: RamCacheStats, 
/**
 * Files on disk.
 */
ssd: SsdCacheStats, };

export type RamCacheStats = { 
/**
 * Most bytes it may hold; 0: it is off.
 */
cap: number, 
/**
 * Bytes held.
 */
bytes: number, 
/**
 * Bytes of entries that left for want of room and are not on disk yet: a quarter of the cap at most, or 64 MiB.
 */
waiting: number, 
/**
 * Entries held.
 */
entries: number, 
/**
 * Tokens of all entries.
 */
tokens: number, 
/**
 * Requests that found a prefix here.
 */
hits: number, 
/**
 * Requests that did not.
 */
misses: number, 
/**
 * Prompt tokens that did not have to be computed.
 */
reused_tokens: number, 
/**
 * Entries stored.
 */
stored: number, 
/**
 * Entries that a longer one took the place of.
 */
superseded: number, 
/**
 * Entries that had to go for want of room.
 */
evicted: number, 
/**
 * Entries whose buffers rows are reading at this moment.
 */
lent: number, 
/**
 * Hits that took the entry over, because there was no room for a copy.
 */
moved: number, };

export type SsdCacheStats = { 
/**
 * Whether it works.
 */
state: SsdState, 
/**
 * Why it does not, and what to do.
 */
message: string | null, 
/**
 * Its folder.
 */
dir: string | null, 
/**
 * Most bytes that the folder may hold.
 */
cap: number, 
/**
 * Bytes that Hearth's files take there, those of other models included.
 */
bytes: number, 
/**
 * Hearth's files there.
 */
files: number, 
/**
 * Bytes that wait to be written.
 */
pending: number, 
/**
 * Requests that were continued from disk.
 */
hits: number, 
/**
 * Prompt tokens read back instead of computed.
 */
reused_tokens: number, 
/**
 * Bytes written since the start.
 */
written: number, 
/**
 * Bytes read since the start.
 */
read: number, 
/**
 * Files that had to go for want of room.
 */
evicted: number, 
/**
 * Files that were damaged and removed.
 */
corrupt: number, 
/**
 * Restores that failed; the prompt was computed instead.
 */
failed_restores: number, };

export type SsdState = "off" | "ready" | "failed";

export type CacheFlush = { 
/**
 * Entries that are on disk now.
 */
entries: number, 
/**
 * Bytes written for it; what was there already is not written again.
 */
bytes: number, 
/**
 * What could not be made durable, and why.
 */
failed: Array<string>, };

export type CacheClear = { 
/**
 * Entries in memory.
 */
entries: number, 
/**
 * Their bytes.
 */
bytes: number, 
/**
 * Files on disk.
 */
files: number, 
/**
 * Their bytes.
 */
file_bytes: number, };

export type Limits = { 
/**
 * Bytes that model, rows, prompt cache in memory, and reserve may take together.
 */
budget: number | null, 
/**
 * Most bytes of the prompt cache in memory; 0 turns it off.
 */
cache_ram: number | null, 
/**
 * Most bytes of the prompt cache on disk. It cannot be turned on or off while the engine runs.
 */
cache_ssd: number | null, 
/**
 * Context limit in tokens; 0 goes back to what the budget has room for. An answer has the limit that holds.
 */
context: number | null, 
/**
 * Rows computed at once, from 1 to 256.
 */
max_rows: number | null, };

export type LimitsPreview = { 
/**
 * Whether the loaded model still fits, with the context that was asked for or else a short one.
 */
fits: boolean, 
/**
 * Bytes that it would lack; 0 where it fits.
 */
short_by: number, 
/**
 * Tokens that one row could have.
 */
largest_context: number, 
/**
 * Prompt-cache entries that would leave memory.
 */
demoted_entries: number, 
/**
 * Their bytes.
 */
demoted_bytes: number, };

export type MemorySample = { 
/**
 * Milliseconds since 1970.
 */
at: number, 
/**
 * Bytes by category of the ledger: weights, live KV, prompt cache, prefill transient, allocator cache, reserve.
 */
parts: [number, number, number, number, number, number], 
/**
 * Bytes that may be used; 0 when unknown.
 */
budget: number, 
/**
 * Bytes of swap in use.
 */
swap: number, 
/**
 * `normal`, `warning`, `critical` or `unknown`.
 */
pressure: string, };

export type MachineMemory = { 
/**
 * Bytes installed.
 */
total: number, 
/**
 * Bytes that programs could still take without swapping.
 */
available: number, 
/**
 * Bytes of swap in use.
 */
swap_used: number, 
/**
 * Bytes of swap there are.
 */
swap_total: number, };

export type RequestSummary = { 
/**
 * The row's number.
 */
id: number, 
/**
 * When it was queued, in milliseconds since 1970.
 */
at: number, 
/**
 * The model's id.
 */
model: string, 
/**
 * `queued`, `running`, `stop`, `length`, `cancelled` or `failed`.
 */
state: string, 
/**
 * Prompt length in tokens.
 */
prompt_tokens: number, 
/**
 * Of these, how many the prompt cache had; unknown until it is admitted.
 */
cached_tokens: number | null, 
/**
 * Tokens generated, once it has ended.
 */
generated: number | null, 
/**
 * Milliseconds in the queue, of prefill and of decoding, once it has ended.
 */
timings_ms: [number, number, number] | null, 
/**
 * Why it failed.
 */
error: string | null, };

export type LogLine = { 
/**
 * Its number, higher than that of every line before it, also of an earlier run.
 */
id: number, 
/**
 * Milliseconds since 1970.
 */
at: number, 
/**
 * `error`, `warn`, `info`, `debug` or `trace`.
 */
level: string, 
/**
 * The module that said it.
 */
target: string, 
/**
 * The message and its fields.
 */
message: string, };

export type Setting = { 
/**
 * A number of bytes or a count, a switch, a text, or a list of folders; null: the default, which depends on the
 * machine or the model.
 */
value: unknown, 
/**
 * Where the value comes from.
 */
from: Origin, 
/**
 * Whether a change takes effect only at the next start.
 */
at_next_start: boolean, 
/**
 * Whether it was changed since the start, and what runs goes by the old value.
 */
pending: boolean, };

export type Origin = "default" | "settings" | "environment" | "flag" | "api";

export type Connect = { 
/**
 * The base address on this machine, without a slash at the end.
 */
address: string, 
/**
 * Whether other machines can reach it.
 */
lan: boolean, 
/**
 * Whether requests need a key.
 */
key_required: boolean, 
/**
 * The key to use, where one is needed and may be shown.
 */
key: string | null, 
/**
 * The clients.
 */
clients: Array<ConnectClient>, };

export type ConnectClient = { 
/**
 * A short name.
 */
id: string, 
/**
 * Its name.
 */
name: string, 
/**
 * Whether everything that it needs is served.
 */
served: boolean, 
/**
 * What it needs.
 */
needs: Array<string>, };

export type ConnectTest = { 
/**
 * Whether all calls were answered as the client expects.
 */
ok: boolean, 
/**
 * The last call's status code; 0 when there was no answer.
 */
status: number, 
/**
 * Milliseconds that all calls took together.
 */
ms: number, 
/**
 * What happened.
 */
message: string, };

export type DesktopStatus = { 
/**
 * Whether it can be started at login; whether it is, the setting says.
 */
login_item: boolean, 
/**
 * The `hearth` command, where the app brings one along.
 */
command: CommandStatus | null, };

export type CommandStatus = { 
/**
 * Whether terminals find it.
 */
installed: boolean, 
/**
 * Where the link is, or would be.
 */
link: string, };

