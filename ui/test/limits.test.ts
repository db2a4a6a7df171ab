import { describe, expect, it } from "vitest";
import * as limits from "../src/lib/limits";

const plain = (text: string) => text.replace(/[\u00a0\u2009]/g, " ");
const none = { fits: true, short_by: 0, largest_context: 0, demoted_entries: 0, demoted_bytes: 0 };

describe("limits", () => {
  it("stops at the value that holds, and ascends", () => {
    for (const stops of [limits.budgetStops(24e9, 17.3e9), limits.cacheStops(24e9, 7e8), limits.contextStops(8192, 8000), limits.rowStops(7)]) {
      expect(stops).toEqual([...stops].sort((a, b) => a - b));
      expect(new Set(stops).size).toBe(stops.length);
    }
    expect(limits.budgetStops(24e9, 17.3e9)).toContain(17.3e9);
    expect(limits.budgetStops(24e9, 17.3e9)).toContain(18e9);
    expect(limits.cacheStops(24e9, 7e8)).toContain(0);
    expect(limits.contextStops(8192, 8000)).toContain(8192);
    expect(Math.max(...limits.contextStops(8192, 8000))).toBe(8192);
  });
  it("says what would follow", () => {
    expect(plain(limits.consequence({ ...none, largest_context: 42_000, demoted_entries: 3, demoted_bytes: 1.2e9 }))).toBe(
      "Fits 42 000 tokens of context · moves 3 cached conversations (1.2 GB) out of memory.",
    );
    expect(plain(limits.consequence({ ...none, fits: false, short_by: 2.5e9 }))).toBe("The loaded model would not fit: 2.5 GB short.");
    expect(limits.consequence(none)).toBe("Nothing else would change.");
  });
  it("sends only what differs", () => {
    const from = limits.draft({ budget: 10, cache_ram: 5, cache_ssd: 0, context: 4096, max_rows: 8 });
    expect(limits.difference(from, { ...from, max_rows: 4 })).toEqual({ max_rows: 4 });
    expect(limits.difference(from, from)).toEqual({});
  });
});
