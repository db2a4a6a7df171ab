// The memory chart: the ledger stacked over ten minutes, the budget as a line, the system's memory pressure as a band
// along the bottom, growth of swap as marks. It is drawn when something changed, and at no other time.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { bytes, clock, time } from "../lib/format";
import { CATEGORIES, budgetFrom } from "../lib/ledger";
import { Watch, store } from "../lib/store";
import type { MemorySample } from "../types/hearth";
import { Part } from "./element";

const WINDOW_S = 600;
/** A server that has just started fills more than a corner of the chart. */
const SHORTEST_S = 120;
/** Swap that grew by less between two samples is no mark. */
const SWAP_STEP = 16e6;
const HEIGHT = 220;

/** Cumulative sums by category, as uPlot takes them, the budget last; the newest values hold until now. */
export function stacked(history: readonly MemorySample[], now: number): uPlot.AlignedData {
  const samples = history.length > 0 ? [...history, { ...history[history.length - 1]!, at: Math.max(now, history[history.length - 1]!.at) }] : [];
  const sums: number[][] = CATEGORIES.map(() => []);
  for (const sample of samples) {
    let sum = 0;
    CATEGORIES.forEach((_, i) => sums[i]!.push((sum += sample.parts[i] ?? 0)));
  }
  // Before the first figures there is no budget, which is not one of 0. The tallest first, so that the lower ones are painted over it.
  return [samples.map((s) => s.at / 1000), ...sums.reverse(), samples.map((s) => s.budget || null)];
}

@customElement("memory-chart")
export class MemoryChart extends Part {
  @state() private at: number | undefined;
  @state() private zoom = false;
  private plot: uPlot | undefined;
  private sizes: ResizeObserver | undefined;
  private frame = 0;
  private readonly dark = window.matchMedia("(prefers-color-scheme: dark)");

  constructor() {
    super();
    new Watch(this, ["stats", "machine"], () => this.draw());
  }

  override connectedCallback() {
    super.connectedCallback();
    this.dark.addEventListener("change", this.rebuild);
    document.addEventListener("visibilitychange", this.shown);
  }

  override disconnectedCallback() {
    super.disconnectedCallback();
    this.dark.removeEventListener("change", this.rebuild);
    document.removeEventListener("visibilitychange", this.shown);
    cancelAnimationFrame(this.frame);
    this.sizes?.disconnect();
    this.plot?.destroy();
    this.plot = undefined;
  }

  protected override firstUpdated() {
    this.build();
    this.sizes = new ResizeObserver(([entry]) => {
      const width = Math.floor(entry?.contentRect.width ?? 0);
      if (width > 0) this.plot?.setSize({ width, height: HEIGHT });
    });
    this.sizes.observe(this.box());
  }

  private readonly rebuild = () => {
    this.plot?.destroy();
    this.build();
  };

  private readonly shown = () => {
    if (!document.hidden) this.draw();
  };

  private box(): HTMLElement {
    return this.querySelector<HTMLElement>(".chart")!;
  }

  private draw() {
    if (!this.plot || document.hidden) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.plot?.setData(stacked(store.history, Date.now())));
  }

  private build() {
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const stepped = uPlot.paths.stepped!({ align: 1 });
    const axis = { stroke: color("--quiet"), font: "11px system-ui, sans-serif", grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    const options: uPlot.Options = {
      width: Math.max(200, this.box().clientWidth),
      height: HEIGHT,
      padding: [8, 28, 0, 0],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: (_, min, max) => [max - Math.min(WINDOW_S, Math.max(SHORTEST_S, max - min)), max] },
        y: { range: () => [0, this.top()] },
      },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((t) => (ticks.length > 1 && ticks[1]! - ticks[0]! < 60 ? clock(t * 1000) : clock(t * 1000).replace(/:\d\d(?!.*:\d\d)/, ""))), space: 90, size: 34, gap: 10 },
        { ...axis, values: (_, ticks) => ticks.map((t) => (t === 0 ? "0" : bytes(t))), size: 62, space: 36 },
      ],
      series: [
        {},
        ...[...CATEGORIES].reverse().map((c) => ({ label: c.name, fill: color(c.color), stroke: color(c.color), width: 0, paths: stepped, points: { show: false } })),
        { label: "Budget", stroke: color("--text"), width: 1.5, dash: [6, 4], paths: stepped, points: { show: false } },
      ],
      hooks: {
        draw: [(u) => this.drawMachine(u, color)],
        setCursor: [(u) => (this.at = u.cursor.idx ?? undefined)],
      },
    };
    this.plot = new uPlot(options, stacked(store.history, Date.now()), this.box());
  }

  private top(): number {
    let most = 1e8;
    for (const sample of store.history) {
      const used = sample.parts.reduce((sum, part) => sum + part, 0);
      most = Math.max(most, used, this.zoom ? 0 : sample.budget);
    }
    return most * 1.08;
  }

  /** The pressure band and the marks of swap growth. */
  private drawMachine(u: uPlot, color: (name: string) => string) {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    const x = (at: number) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, u.valToPos(at / 1000, "x", true)));
    const base = bbox.top + bbox.height + 2 * ratio;
    ctx.save();
    store.history.forEach((sample, i) => {
      const next = store.history[i + 1]?.at ?? Date.now();
      if (sample.pressure === "warning" || sample.pressure === "critical") {
        ctx.fillStyle = color(sample.pressure === "critical" ? "--bad" : "--amber");
        const height = (sample.pressure === "critical" ? 7 : 4) * ratio;
        ctx.fillRect(x(sample.at), base, Math.max(1, x(next) - x(sample.at)), height);
      }
      const before = store.history[i - 1];
      if (before && sample.swap - before.swap >= SWAP_STEP && x(sample.at) > bbox.left) {
        ctx.fillStyle = color("--bad");
        ctx.beginPath();
        ctx.moveTo(x(sample.at), bbox.top + 8 * ratio);
        ctx.lineTo(x(sample.at) - 4 * ratio, bbox.top);
        ctx.lineTo(x(sample.at) + 4 * ratio, bbox.top);
        ctx.fill();
      }
    });
    ctx.restore();
  }

  override render() {
    const now = store.history.at(-1);
    const index = this.at;
    const shown = index !== undefined ? (store.history[Math.min(index, store.history.length - 1)] ?? now) : now;
    const sum = shown?.parts.reduce((a, b) => a + b, 0) ?? 0;
    const ledger = store.stats?.memory.ledger;
    const pressure = shown?.pressure ?? "unknown";
    return html`
      <div class="chart" role="img" aria-label=${this.summary(shown, sum)}>
        ${now ? nothing : html`<p class="nothing">Waiting for the first figures.</p>`}
      </div>
      <ul class="legend small" aria-label="Memory by category">
        ${CATEGORIES.map(
          (c, i) => html`<li><span class="swatch" style="background:var(${c.color})"></span><span>${c.name}</span><span class="value">${bytes(shown?.parts[i] ?? 0)}</span></li>`,
        )}
        <li><span class="swatch"></span><strong>Sum</strong><strong class="value">${bytes(sum)}</strong></li>
        <li><span class="swatch budget"></span><span>Budget</span><span class="value" title=${ledger ? budgetFrom(ledger.budget_from) : ""}>${bytes(shown?.budget ?? 0)}</span></li>
      </ul>
      <div class="row wrap small quiet" style="margin-top:8px">
        <span>${index !== undefined && shown ? `At ${clock(shown.at)}` : "Now"}</span>
        <span>System memory pressure: <span class=${pressure === "critical" ? "bad" : pressure === "warning" ? "warn" : ""}>${pressure === "unknown" ? "not told" : pressure}</span></span>
        <span>Swap in use: ${bytes(shown?.swap ?? 0)}</span>
        <label class="row end"><input type="checkbox" .checked=${this.zoom} @change=${this.toggle} /> Show the used part only</label>
      </div>`;
  }

  private readonly toggle = (event: Event) => {
    this.zoom = (event.target as HTMLInputElement).checked;
    this.draw();
  };

  private summary(sample: MemorySample | undefined, sum: number): string {
    if (!sample) return "Memory chart, no figures yet";
    return `Memory over the last ${time(WINDOW_S)}: ${bytes(sum)} of a budget of ${bytes(sample.budget)} is used.`;
  }
}
