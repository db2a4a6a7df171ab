import { describe, expect, it } from "vitest";
import * as f from "../src/lib/format";

const plain = (text: string) => text.replace(/[\u00a0\u2009]/g, (c) => (c === "\u2009" ? "'" : " "));

describe("numbers", () => {
  it("writes bytes as Finder does, GB with one decimal", () => {
    const told = [0, 1, 999, 1000, 4200, 999_499, 999_500, 12_400_000, 99_949_999, 99_950_000, 1_000_000_000, 18_040_000_000, 999_949_999_999, 2_500_000_000_000];
    expect(told.map((n) => plain(f.bytes(n)))).toEqual([
      "0 bytes", "1 byte", "999 bytes", "1 kB", "4 kB", "999 kB", "1 MB", "12 MB", "100 MB", "0.1 GB", "1.0 GB", "18.0 GB", "999.9 GB", "2.5 TB",
    ]);
    expect(plain(f.bytes(-1_500_000_000))).toBe("−1.5 GB");
  });
  it("names memory in GiB", () => {
    expect(plain(f.ram(24 * 2 ** 30))).toBe("24 GiB");
  });
  it("separates thousands thinly", () => {
    expect([0, 999, 1000, 42_000, 1_234_567].map((n) => plain(f.count(n)))).toEqual(["0", "999", "1'000", "42'000", "1'234'567"]);
    expect([1, 2].map((n) => plain(f.counted(n, "entry", "entries")))).toEqual(["1 entry", "2 entries"]);
  });
  it("tells times in the unit that fits", () => {
    const told = [0, 0.24, 0.9994, 1.2, 9.94, 9.96, 59.4, 59.6, 180, 3599, 7500, 200_000];
    expect(told.map((s) => plain(f.time(s)))).toEqual([
      "0 ms", "240 ms", "999 ms", "1.2 s", "9.9 s", "10 s", "59 s", "1 min", "3 min", "1 h 00 min", "2 h 05 min", "2 days",
    ]);
    expect(plain(f.ago(1000, 4000))).toBe("just now");
    expect(plain(f.ago(0, 120_000))).toBe("2 min ago");
  });
  it("never tells a share without its whole", () => {
    expect(plain(f.share(1, 4, f.bytes(8e9)))).toBe("25 % of 8.0 GB");
    expect(plain(f.share(1, 0, "0"))).toBe("0 % of 0");
  });
  it("shortens numbers of parameters", () => {
    expect([135e6, 999e6, 1.236e9, 9.96e9, 30.5e9].map(f.parameters)).toEqual(["135M", "999M", "1.2B", "10B", "31B"]);
  });
  it("tells speeds", () => {
    expect(plain(f.speed(42.345))).toBe("42.3 tok/s");
    expect(plain(f.rate(12e6))).toBe("12 MB/s");
  });
});
