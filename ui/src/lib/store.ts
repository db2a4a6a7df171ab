// What the page knows of the server: filled by one event stream, read by every part. Nothing polls.

import type { ReactiveController, ReactiveControllerHost } from "lit";
import { get } from "./api";
import type { Download } from "../types/download";
import type {
  DesktopStatus, GuardAction, Health, LogLine, MachineMemory, MemorySample, ModelStats, RequestSummary, Setting, Stats,
} from "../types/hearth";

/** A state of health, with why no model is loaded where there is something to say. */
export type Told = Health & { message?: string; last_model?: string };

export type Link = "connecting" | "open" | "lost" | "signed_out";

interface Snapshot {
  stats: Stats;
  health: Told;
  downloads: Download[];
  settings: Record<string, Setting>;
  requests: { on: boolean; requests: RequestSummary[] };
  machine: MachineMemory;
  history: MemorySample[];
  desktop: DesktopStatus | null;
  version: string;
}

/** Names of what changed. */
export type Topic = "link" | "stats" | "health" | "downloads" | "settings" | "requests" | "machine" | "guard" | "models" | "log";

const WINDOW_MS = 600_000;
const LOGS = 1000;
const RECENT = 50;

class Store {
  link: Link = "connecting";
  stats: Stats | undefined;
  health: Told | undefined;
  downloads = new Map<string, Download>();
  settings: Record<string, Setting> = {};
  inspecting = true;
  requests: RequestSummary[] = [];
  machine: MachineMemory | undefined;
  history: MemorySample[] = [];
  /** What the app around the server can do; null: there is none. */
  desktop: DesktopStatus | null = null;
  /** Somebody asked for a new start: the server is away for a moment. */
  restarting = false;
  version = "";
  logs: LogLine[] = [];
  /** Why the last load came to nothing. */
  loadError: { model: string; message: string } | undefined;
  /** Raised when the list of models on disk may have changed. */
  models = 0;
  /** Events since the page was opened, for tests of how many there are. */
  events = 0;

  private readonly listeners = new Set<(topic: Topic) => void>();
  private source: EventSource | undefined;
  private retry: number | undefined;
  private last = "";

  subscribe(listener: (topic: Topic) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private tell(topic: Topic) {
    for (const listener of this.listeners) listener(topic);
  }

  private setLink(link: Link) {
    if (this.link === link) return;
    this.link = link;
    this.tell("link");
  }

  connect() {
    window.clearTimeout(this.retry);
    this.source?.close();
    const query = this.last ? `?after=${this.last}` : "";
    const source = new EventSource(`/api/hearth/events${query}`);
    this.source = source;
    const on = <T>(name: string, handle: (payload: T) => void) =>
      source.addEventListener(name, (event: MessageEvent<string>) => {
        this.events += 1;
        if (event.lastEventId) this.last = event.lastEventId;
        handle(JSON.parse(event.data) as T);
      });
    source.onopen = () => this.setLink("open");
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return this.setLink("lost");
      source.close();
      void this.reconnect();
    };
    on<Snapshot>("snapshot", (s) => this.start(s));
    on<Stats>("stats", (s) => {
      this.stats = s;
      this.note();
      this.tell("stats");
    });
    on<Told>("health", (health) => {
      this.health = health;
      this.tell("health");
    });
    on<MachineMemory>("machine", (machine) => {
      this.machine = machine;
      this.note();
      this.tell("machine");
    });
    on<GuardAction>("guard", () => this.tell("guard"));
    on<Download>("download", (download) => {
      this.downloads.set(download.id, download);
      this.tell("downloads");
    });
    on<{ model: string; message: string }>("load_failed", (failed) => {
      this.loadError = failed;
      this.tell("models");
    });
    on("models", () => {
      this.models += 1;
      this.tell("models");
    });
    on<{ settings: Record<string, Setting> }>("settings", ({ settings }) => {
      this.settings = settings;
      this.inspecting = settings["inspector"]?.value !== false;
      if (!this.inspecting) this.requests = [];
      this.tell("settings");
    });
    on<RequestSummary>("request", (request) => {
      const known = this.requests.findIndex((r) => r.id === request.id && r.at === request.at);
      if (known >= 0) this.requests[known] = request;
      else this.requests = [request, ...this.requests].slice(0, RECENT);
      this.tell("requests");
    });
    on<LogLine>("log", (line) => {
      this.noteLogs([line]);
      this.tell("log");
    });
  }

  /** Adds lines; those that are known stay single. */
  noteLogs(lines: LogLine[]) {
    const last = this.logs.at(-1)?.id ?? 0;
    if (lines.every((line) => line.id > last)) this.logs.push(...lines);
    else this.logs = [...new Map([...this.logs, ...lines].map((line) => [line.id, line])).values()].sort((a, b) => a.id - b.id);
    if (this.logs.length > LOGS) this.logs.splice(0, this.logs.length - LOGS);
  }

  /** The stream ended for good: either this browser was not let in, or the server is away. */
  private async reconnect() {
    try {
      await get("/api/hearth/settings");
    } catch (error) {
      const status = (error as { status?: number }).status;
      if (status === 401 || status === 403) return this.setLink("signed_out");
      this.setLink("lost");
    }
    this.retry = window.setTimeout(() => this.connect(), 2000);
  }

  private start(s: Snapshot) {
    this.stats = s.stats;
    this.health = s.health;
    this.settings = s.settings;
    this.inspecting = s.requests.on;
    this.requests = s.requests.requests;
    this.machine = s.machine;
    this.history = s.history;
    this.desktop = s.desktop;
    this.restarting = false;
    this.version = s.version;
    this.downloads = new Map(s.downloads.map((d) => [d.id, d]));
    this.models += 1;
    this.note();
    for (const topic of ["stats", "health", "downloads", "settings", "requests", "machine", "models"] as const) this.tell(topic);
    this.setLink("open");
  }

  /** A sample for the chart; what has not changed is no sample. */
  private note() {
    const { stats, machine } = this;
    if (!stats) return;
    const l = stats.memory.ledger;
    const sample: MemorySample = {
      at: Date.now(),
      parts: [l.weights, l.kv, l.prompt_cache, l.prefill_transient, l.allocator_cache, l.reserve],
      budget: l.budget,
      swap: machine?.swap_used ?? 0,
      pressure: stats.memory.guard.pressure,
    };
    const last = this.history.at(-1);
    const same = last && last.budget === sample.budget && last.swap === sample.swap && last.pressure === sample.pressure
      && last.parts.every((part, i) => part === sample.parts[i]);
    if (same) return;
    this.history.push(sample);
    const from = sample.at - WINDOW_MS;
    // One sample before the window stays: it says what held at its beginning.
    const first = this.history.findIndex((s) => s.at >= from);
    if (first > 1) this.history.splice(0, first - 1);
  }
}

/** The models in memory, the one that was used last first. */
export function inMemory(): ModelStats[] {
  return store.stats?.models ?? [];
}

export const store = new Store();

/** Renders its host again when one of the topics changes, at most once a frame. */
export class Watch implements ReactiveController {
  private unsubscribe: (() => void) | undefined;

  constructor(
    private readonly host: ReactiveControllerHost,
    private readonly topics: readonly Topic[],
    private readonly then?: (topic: Topic) => void,
  ) {
    host.addController(this);
  }

  hostConnected() {
    this.unsubscribe = store.subscribe((topic) => {
      if (!this.topics.includes(topic)) return;
      this.then?.(topic);
      this.host.requestUpdate();
    });
  }

  hostDisconnected() {
    this.unsubscribe?.();
  }
}

/** What the server does, in a word and a sentence. */
export function condition(): { word: string; tone: "good" | "warn" | "bad" | "quiet"; model?: string; detail: string } {
  const { health, stats, link } = store;
  if (link === "lost" && store.restarting) return { word: "Restarting", tone: "quiet", detail: "The server is back in a moment." };
  if (link === "lost") return { word: "Offline", tone: "bad", detail: "The server does not answer. This page connects again by itself." };
  if (!health || !stats) return { word: "Connecting", tone: "quiet", detail: "Waiting for the server." };
  switch (health.status) {
    case "empty":
      return { word: "No model", tone: "quiet", detail: health.message ?? "Choose one to start." };
    case "failed":
      return { word: "Failed", tone: "bad", detail: health.message };
    case "loading":
      return { word: "Loading", tone: "quiet", model: health.model, detail: `${health.percent} % loaded` };
    case "ready": {
      const guard = stats.memory.guard;
      const busy = stats.rows.length > 0;
      if (guard.level === "hard") return { word: "Memory full", tone: "bad", model: health.model, detail: "New requests wait until memory is free." };
      if (guard.level === "soft" || guard.pressure === "warning" || guard.pressure === "critical")
        return { word: busy ? "Generating, memory tight" : "Memory tight", tone: "warn", model: health.model, detail: "Prompts are computed in smaller pieces." };
      return busy
        ? { word: "Generating", tone: "good", model: health.model, detail: "" }
        : { word: "Ready", tone: "good", model: health.model, detail: "" };
    }
  }
}

/** Tokens per second of all rows together. */
export function totalSpeed(stats: Stats | undefined): number {
  return (stats?.rows ?? []).filter((r) => r.phase === "decode").reduce((sum, r) => sum + r.tokens_per_s, 0);
}
