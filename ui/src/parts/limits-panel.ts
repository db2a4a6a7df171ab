// The five limits, each with what it would mean while it is moved, and refused where the loaded model would not fit.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { get, post, put } from "../lib/api";
import { bytes, count } from "../lib/format";
import * as limits from "../lib/limits";
import { Watch, store } from "../lib/store";
import type { Limits, LimitsPreview } from "../types/hearth";
import { Part } from "./element";
import "./limit-slider";
import { failure } from "./notice";

const SETTING: Record<keyof limits.Draft, string> = {
  budget: "memory_budget", cache_ram: "cache_ram", cache_ssd: "cache_ssd", context: "context", max_rows: "max_rows",
};

@customElement("limits-panel")
export class LimitsPanel extends Part {
  @state() private applied: limits.Draft | undefined;
  @state() private draft: limits.Draft | undefined;
  @state() private preview: LimitsPreview | undefined;
  @state() private error: unknown;
  @state() private busy = false;
  private asked = 0;
  private timer: number | undefined;
  private due: number | undefined;

  constructor() {
    super();
    new Watch(this, ["settings", "health"], () => this.reload());
  }

  override connectedCallback() {
    super.connectedCallback();
    if (store.link === "open") void this.load();
  }

  /** Once for several events that come together. */
  private reload() {
    window.clearTimeout(this.due);
    this.due = window.setTimeout(() => void this.load(), 50);
  }

  private async load() {
    try {
      const now = limits.draft(await get<Limits>("/api/hearth/limits"));
      const touched = this.applied && this.draft && Object.keys(limits.difference(this.applied, this.draft)).length > 0;
      this.applied = now;
      if (!touched) this.draft = { ...now };
      this.error = undefined;
    } catch (error) {
      if (store.link === "open") this.error = error;
    }
  }

  private move(name: keyof limits.Draft, value: number) {
    if (!this.draft) return;
    this.draft = { ...this.draft, [name]: value };
    this.error = undefined;
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.ask(), 60);
  }

  private async ask() {
    if (!this.applied || !this.draft) return;
    const change = limits.difference(this.applied, this.draft);
    if (Object.keys(change).length === 0) {
      this.preview = undefined;
      return;
    }
    const number = ++this.asked;
    try {
      const preview = await post<LimitsPreview>("/api/hearth/limits/preview", change);
      if (number === this.asked) this.preview = preview;
    } catch (error) {
      if (number === this.asked) this.error = error;
    }
  }

  private async apply() {
    if (!this.applied || !this.draft) return;
    const change = limits.difference(this.applied, this.draft) as Record<string, number>;
    const values = Object.fromEntries(Object.entries(change).map(([name, value]) => [SETTING[name as keyof limits.Draft], value]));
    this.busy = true;
    try {
      await put("/api/hearth/settings", values);
      this.preview = undefined;
      this.applied = { ...this.draft };
      await this.load();
      this.draft = this.applied ? { ...this.applied } : undefined;
      this.error = undefined;
    } catch (error) {
      this.error = error;
    }
    this.busy = false;
  }

  private reset() {
    this.draft = this.applied ? { ...this.applied } : undefined;
    this.preview = undefined;
    this.error = undefined;
  }

  override render() {
    const { draft, applied, preview } = this;
    if (!draft || !applied) return this.error ? failure(this.error, () => void this.load()) : html`<p class="quiet">Reading the limits.</p>`;
    const memory = store.machine?.total || applied.budget;
    const ledger = store.stats?.memory.ledger;
    const longest = Math.max(store.stats?.model?.context ?? 0, Number(ledger?.largest_context ?? 0), applied.context, 4096);
    const changed = Object.keys(limits.difference(applied, draft)).length > 0;
    const ssdOff = applied.cache_ssd === 0;
    const slider = (name: keyof limits.Draft, label: string, stops: number[], format: (n: number) => string, note = "", disabled = false) =>
      html`<limit-slider .name=${name} .label=${label} .stops=${stops} .value=${draft[name]} .applied=${applied[name]} .format=${format} .note=${note}
        .disabled=${disabled} @moved=${(e: CustomEvent<number>) => this.move(name, e.detail)}></limit-slider>`;
    const off = (n: number) => (n === 0 ? "off" : bytes(n));
    return html`
      <div class="sliders">
        ${slider("budget", "Memory budget", limits.budgetStops(memory, applied.budget), bytes)}
        ${slider("cache_ram", "Prompt cache in memory", limits.cacheStops(memory, applied.cache_ram), off)}
        ${slider("cache_ssd", "Prompt cache on disk", limits.cacheStops(512e9, applied.cache_ssd), off, ssdOff ? "turned on at the next start" : "", ssdOff)}
        ${slider("context", "Context limit", limits.contextStops(longest, applied.context), (n) => (n === 0 ? "what has room" : `${count(n)} tokens`))}
        ${slider("max_rows", "Requests at once", limits.rowStops(applied.max_rows), count)}
      </div>
      <div class="consequence" style="margin-top:8px">
        <span class="grow ${preview && !preview.fits ? "bad" : ""}" role="status" data-test="consequence">
          ${preview ? limits.consequence(preview) : changed ? "" : html`<span class="quiet">Move a slider to see what it would mean. Nothing changes until you apply it.</span>`}
        </span>
        ${changed
          ? html`<button @click=${() => this.reset()}>Reset</button>
              <button class="primary" ?disabled=${this.busy || preview?.fits === false} @click=${() => void this.apply()}>Apply</button>`
          : nothing}
      </div>
      ${failure(this.error)}`;
  }
}
