// The ledger's categories: one order, one name and one colour each, in every chart, slider and table.

import type { LedgerStats } from "../types/hearth";

export const CATEGORIES = [
  { key: "weights", name: "Weights", color: "--c-weights" },
  { key: "kv", name: "Live KV", color: "--c-kv" },
  { key: "prompt_cache", name: "Prompt cache", color: "--c-cache" },
  { key: "prefill_transient", name: "Transient", color: "--c-transient" },
  { key: "allocator_cache", name: "Allocator", color: "--c-allocator" },
  { key: "reserve", name: "Reserve", color: "--c-reserve" },
] as const satisfies readonly { key: keyof LedgerStats; name: string; color: string }[];

/** The categories' bytes, in their order. */
export function parts(ledger: LedgerStats): number[] {
  return CATEGORIES.map((c) => ledger[c.key]);
}

/** Where the budget comes from, in words. */
export function budgetFrom(from: string): string {
  switch (from) {
    case "flag":
      return "from --memory-budget";
    case "environment":
      return "from HEARTH_MEMORY_BUDGET";
    case "settings":
      return "from the settings";
    case "api":
      return "set while running";
    default:
      return "the default for this machine";
  }
}
