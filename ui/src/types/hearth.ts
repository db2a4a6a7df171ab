// Made from the Rust types by `cargo xtask types`; not to be edited.

export type Health = { "status": "ready", model: string } | { "status": "loading", model: string, percent: number } | { "status": "empty" } | { "status": "failed", message: string };

export type Stats = { version: number, uptime_s: number, model: ModelStats | null, rows: Array<RowStats>, waiting: number, max_rows: number, totals: Totals, memory: MemoryStats, cache: CacheStats };

export type ModelStats = { id: string, model_type: string, context: number, load_s: number };

export type RowStats = { id: number, phase: string, prompt_tokens: number, prefilled: number, generated: number, tokens_per_s: number };

export type Totals = { requests: number, finished: number, cancelled: number, failed: number, prompt_tokens: number, generated_tokens: number, steps: number };

export type MemoryStats = { weights: number, kv: number, mlx_active: number, mlx_cache: number, mlx_peak: number, process: number, ledger: LedgerStats, guard: GuardStats };

export type LedgerStats = { budget: number, budget_from: string, weights: number, kv: number, prompt_cache: number, prefill_transient: number, allocator_cache: number, reserve: number, total: number, free: number, soft: number, hard: number, baseline: number, unaccounted: number, largest_context: number };

export type GuardStats = { level: GuardLevel, pressure: PressureLevel, admitting: boolean, chunk: number, actions: Array<GuardAction> };

export type GuardLevel = "normal" | "soft" | "hard";

export type PressureLevel = "unknown" | "normal" | "warning" | "critical";

export type GuardAction = { id: number, at: number, what: string, why: string, freed: number };

export type CacheStats = { ram: RamCacheStats, ssd: SsdCacheStats };

export type RamCacheStats = { cap: number, bytes: number, waiting: number, entries: number, tokens: number, hits: number, misses: number, reused_tokens: number, stored: number, superseded: number, evicted: number, lent: number, moved: number };

export type SsdCacheStats = { state: SsdState, message: string | null, dir: string | null, cap: number, bytes: number, files: number, pending: number, hits: number, reused_tokens: number, written: number, read: number, evicted: number, corrupt: number, failed_restores: number };

export type SsdState = "off" | "ready" | "failed";

export type CacheFlush = { entries: number, bytes: number, failed: Array<string> };

export type CacheClear = { entries: number, bytes: number, files: number, file_bytes: number };

export type Limits = { budget: number | null, cache_ram: number | null, cache_ssd: number | null, context: number | null, max_rows: number | null };

export type LimitsPreview = { fits: boolean, short_by: number, largest_context: number, demoted_entries: number, demoted_bytes: number };

export type MemorySample = { at: number, parts: [number, number, number, number, number, number], budget: number, swap: number, pressure: string };

export type MachineMemory = { total: number, available: number, swap_used: number, swap_total: number };

export type RequestSummary = { id: number, at: number, model: string, state: string, prompt_tokens: number, cached_tokens: number | null, generated: number | null, timings_ms: [number, number, number] | null, error: string | null };

export type LogLine = { at: number, level: string, target: string, message: string };

export type Setting = { value: any, from: Origin, at_next_start: boolean };

export type Origin = "default" | "settings" | "environment" | "flag" | "api";

export type Connect = { address: string, lan: boolean, key_required: boolean, key: string | null, clients: Array<ConnectClient> };

export type ConnectClient = { id: string, name: string, served: boolean, needs: Array<string> };

export type ConnectTest = { ok: boolean, status: number, ms: number, message: string };

