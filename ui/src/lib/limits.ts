// The stops of the limit sliders, and the sentence under the thumb.

import type { Limits, LimitsPreview } from "../types/hearth";
import { bytes, count, counted } from "./format";

/** The values that all limits have, with the ones that hold where something is not told. */
export type Draft = Record<"budget" | "cache_ram" | "cache_ssd" | "context" | "max_rows", number>;

export function draft(limits: Limits): Draft {
  return {
    budget: limits.budget ?? 0,
    cache_ram: limits.cache_ram ?? 0,
    cache_ssd: limits.cache_ssd ?? 0,
    context: limits.context ?? 0,
    max_rows: limits.max_rows ?? 0,
  };
}

/** Only what differs. */
export function difference(from: Draft, to: Draft): Limits {
  const changed = Object.entries(to).filter(([name, value]) => from[name as keyof Draft] !== value);
  return Object.fromEntries(changed) as Limits;
}

/** Ascending, without doubles, with `extra` among them. */
function with_(stops: number[], ...extra: number[]): number[] {
  return [...new Set([...stops, ...extra.filter((n) => n > 0)])].sort((a, b) => a - b);
}

const steps = (most: number, step: number) => Array.from({ length: Math.floor(most / step) }, (_, i) => (i + 1) * step);

/** Budgets from half a GB to the whole memory; quarters of the memory are among them. */
export function budgetStops(memory: number, now: number): number[] {
  const step = memory > 64e9 ? 2e9 : memory > 24e9 ? 1e9 : 5e8;
  return with_(steps(memory, step), memory / 4, memory / 2, (memory * 3) / 4, now);
}

/** From nothing up to a size, in steps that grow with it. */
export function cacheStops(most: number, now: number): number[] {
  const sizes = [0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512].map((gb) => gb * 1e9);
  return [0, ...with_(sizes.filter((n) => n <= most), now)];
}

/** Context limits: powers of two and what lies halfway. */
export function contextStops(most: number, now: number): number[] {
  const stops: number[] = [];
  for (let n = 512; n <= most; n *= 2) stops.push(n, n * 1.5);
  return with_(stops.filter((n) => n <= most), most, now);
}

export const rowStops = (now: number) => with_([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64], now);

/** What the limits would mean, in one sentence. */
export function consequence(preview: LimitsPreview): string {
  if (!preview.fits) return `The loaded model would not fit: ${bytes(preview.short_by)} short.`;
  const parts = [];
  if (preview.largest_context > 0) parts.push(`fits ${count(preview.largest_context)} tokens of context`);
  if (preview.demoted_entries > 0) {
    const what = counted(preview.demoted_entries, "cached conversation");
    parts.push(`moves ${what} (${bytes(preview.demoted_bytes)}) out of memory`);
  }
  if (parts.length === 0) return "Nothing else would change.";
  const text = parts.join(" · ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
