// One place for numbers: the same value reads the same everywhere.

const THIN = "\u2009";
const NO_BREAK = "\u00a0";

/** Bytes as Finder says them: 1 GB is 10⁹ bytes. */
export function bytes(n: number): string {
  const size = Math.abs(n);
  const sign = n < 0 ? "−" : "";
  if (size >= 999_950_000_000) return `${sign}${(size / 1e12).toFixed(1)}${NO_BREAK}TB`;
  if (size >= 99_950_000) return `${sign}${(size / 1e9).toFixed(1)}${NO_BREAK}GB`;
  if (size >= 999_500) return `${sign}${Math.round(size / 1e6)}${NO_BREAK}MB`;
  if (size >= 1000) return `${sign}${Math.round(size / 1e3)}${NO_BREAK}kB`;
  return `${sign}${size}${NO_BREAK}${size === 1 ? "byte" : "bytes"}`;
}

/** Installed memory, which is sold in powers of two. */
export function ram(n: number): string {
  return `${Math.round(n / 2 ** 30)}${NO_BREAK}GiB`;
}

/** A number of parameters: 135M, 1.2B. */
export function parameters(n: number): string {
  if (n >= 999.5e6) return `${(n / 1e9).toFixed(n < 9.95e9 ? 1 : 0)}B`;
  return `${Math.round(n / 1e6)}M`;
}

/** A whole number with thin separators. */
export function count(n: number): string {
  const digits = Math.round(Math.abs(n)).toString();
  return (n < 0 ? "−" : "") + digits.replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** `1 request`, `1 200 requests`. */
export function counted(n: number, one: string, many = `${one}s`): string {
  return `${count(n)}${NO_BREAK}${Math.round(n) === 1 ? one : many}`;
}

/** Tokens per second. */
export function speed(n: number): string {
  return `${n.toFixed(1)}${NO_BREAK}tok/s`;
}

/** Bytes per second. */
export function rate(n: number): string {
  return `${bytes(n)}/s`;
}

/** A time: 240 ms, 1.2 s, 34 s, 3 min, 2 h 05 min. */
export function time(seconds: number): string {
  if (seconds < 0.0005) return `0${NO_BREAK}ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)}${NO_BREAK}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}${NO_BREAK}s`;
  if (seconds < 59.5) return `${Math.round(seconds)}${NO_BREAK}s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes}${NO_BREAK}min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}${NO_BREAK}h ${String(minutes % 60).padStart(2, "0")}${NO_BREAK}min`;
  return `${Math.round(hours / 24)}${NO_BREAK}days`;
}

/** Milliseconds, as a time. */
export function ms(n: number): string {
  return time(n / 1000);
}

/** A share, always with what it is of: `24 % of 8.0 GB`. */
export function share(part: number, whole: number, of: string): string {
  const percent = whole > 0 ? Math.round((part / whole) * 100) : 0;
  return `${percent}${NO_BREAK}% of ${of}`;
}

/** The time of day of a moment, in milliseconds since 1970. */
export function clock(at: number): string {
  return new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

/** How long ago a moment is. */
export function ago(at: number, now = Date.now()): string {
  const seconds = Math.max(0, (now - at) / 1000);
  return seconds < 5 ? "just now" : `${time(seconds)} ago`;
}

/** The part of a model's id that tells it from others. */
export function shortModel(id: string): string {
  return id.split("/").pop() ?? id;
}
