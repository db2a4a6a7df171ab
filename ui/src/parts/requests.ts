// Requests: those that run, with a way to end them, and the last ones with what the inspector kept.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { get, post } from "../lib/api";
import { ago, bytes, clock, count, ms, share, shortModel, speed, time } from "../lib/format";
import { Watch, inMemory, store } from "../lib/store";
import type { RequestSummary, RowStats } from "../types/hearth";
import "./copy-button";
import "./dialog";
import { Part } from "./element";
import { failure } from "./notice";

type Inspected = RequestSummary & { rendered_prompt: string; parameters: Record<string, unknown> };

const PHASES: Record<string, string> = { prefill: "Reading the prompt", decode: "Generating", paused: "Client is slow", waiting: "Waiting for memory" };
const STATES: Record<string, string> = { queued: "Queued", running: "Running", stop: "Done", length: "Length limit", cancelled: "Cancelled", failed: "Failed" };
const SHOWN = 8;

@customElement("hearth-requests")
export class Requests extends Part {
  @state() private open: Inspected | undefined;
  @state() private error: unknown;
  @state() private all = false;
  @state() private ending = new Set<number>();

  constructor() {
    super();
    new Watch(this, ["stats", "requests", "settings"]);
  }

  private async cancel(id: number) {
    this.ending = new Set(this.ending).add(id);
    this.error = undefined;
    try {
      await post(`/api/hearth/requests/${id}/cancel`);
    } catch (error) {
      this.error = error;
      this.ending.delete(id);
      this.requestUpdate();
    }
  }

  private async inspect(id: number) {
    this.error = undefined;
    try {
      this.open = await get<Inspected>(`/api/hearth/requests/${id}`);
    } catch (error) {
      this.error = error;
    }
  }

  override render() {
    const rows = store.stats?.rows ?? [];
    const waiting = store.stats?.waiting ?? 0;
    const most = store.stats?.max_rows ?? 0;
    return html`<section class="panel" aria-labelledby="requests-h">
      <header><h2 id="requests-h">Requests</h2>
        <span class="quiet small">${rows.length} of ${most} at once${waiting > 0 ? html` · ${waiting} waiting` : nothing}</span></header>
      ${failure(this.error)}
      ${rows.length > 0 ? this.running(rows) : html`<p class="quiet">Nothing runs.</p>`}
      ${this.recent()}
      ${this.open ? this.dialog(this.open) : nothing}
    </section>`;
  }

  private running(rows: RowStats[]) {
    const several = inMemory().length > 1;
    return html`<div class="scroll"><table data-test="running">
      <thead><tr><th class="hide-narrow">Request</th><th>Phase</th><th class="n">Prompt</th><th class="n">Answer</th><th class="n hide-narrow">Speed</th><th><span class="hidden-text">Action</span></th></tr></thead>
      <tbody>${rows.map(
        (r) => html`<tr>
          <td class="hide-narrow">${r.id}</td><td>${PHASES[r.phase] ?? r.phase}${several ? html`<br /><span class="small quiet break">${shortModel(r.model)}</span>` : nothing}</td>
          <td class="n">${r.prefilled < r.prompt_tokens ? html`${count(r.prefilled)} of ` : nothing}${count(r.prompt_tokens)}</td>
          <td class="n">${count(r.generated)}</td><td class="n hide-narrow">${r.tokens_per_s > 0 ? speed(r.tokens_per_s) : "–"}</td>
          <td class="n"><button ?disabled=${this.ending.has(r.id)} @click=${() => void this.cancel(r.id)} aria-label=${`Cancel request ${r.id}`}>Cancel</button></td>
        </tr>`,
      )}</tbody></table></div>`;
  }

  private recent() {
    if (!store.inspecting)
      return html`<p class="quiet small" style="margin-top:12px">The inspector is off. <a href="#/settings">Turn it on</a> to see prompts as the model sees them.</p>`;
    const done = store.requests.filter((r) => r.state !== "queued" && r.state !== "running");
    if (done.length === 0) return nothing;
    const shown = this.all ? done : done.slice(0, SHOWN);
    return html`<h3 style="margin-top:16px">Last requests</h3>
      <div class="scroll"><table data-test="recent">
        <thead><tr><th>Time</th><th>State</th><th class="n">Prompt</th><th class="n">From cache</th><th class="n hide-narrow">Answer</th><th class="n hide-narrow">Took</th><th><span class="hidden-text">Action</span></th></tr></thead>
        <tbody>${shown.map(
          (r) => html`<tr>
            <td title=${ago(r.at)}>${clock(r.at)}</td>
            <td class=${r.state === "failed" ? "bad" : ""} title=${r.error ?? ""}>${STATES[r.state] ?? r.state}</td>
            <td class="n">${count(r.prompt_tokens)}</td><td class="n">${count(r.cached_tokens ?? 0)}</td>
            <td class="n hide-narrow">${r.generated === null ? "–" : count(r.generated)}</td>
            <td class="n hide-narrow">${r.timings_ms ? ms(r.timings_ms.reduce((a, b) => a + b, 0)) : "–"}</td>
            <td class="n"><button @click=${() => void this.inspect(r.id)} aria-label=${`Inspect request ${r.id}`}>Inspect</button></td>
          </tr>`,
        )}</tbody></table></div>
      ${done.length > SHOWN && !this.all ? html`<button class="link" @click=${() => (this.all = true)}>Show all ${done.length}</button>` : nothing}`;
  }

  private dialog(r: Inspected) {
    const [queued, prefill, decode] = r.timings_ms ?? [0, 0, 0];
    const computed = r.prompt_tokens - (r.cached_tokens ?? 0);
    const set = Object.entries(r.parameters).filter(([, v]) => v !== null && !(Array.isArray(v) && v.length === 0) && !(typeof v === "object" && v !== null && Object.keys(v).length === 0));
    const rate = (n: number, duration: number) => (n > 0 && duration > 0 ? speed(n / (duration / 1000)) : "–");
    return html`<modal-panel .heading=${`Request ${r.id}`} wide @dismiss=${() => (this.open = undefined)} .body=${html`
      <dl class="figures">
        <div><dt>State</dt><dd>${STATES[r.state] ?? r.state}<small>${clock(r.at)}</small></dd></div>
        <div><dt>Prompt</dt><dd>${count(r.prompt_tokens)}<small>tokens</small></dd></div>
        <div><dt>From the cache</dt><dd>${count(r.cached_tokens ?? 0)}<small>${share(r.cached_tokens ?? 0, r.prompt_tokens, "the prompt")}</small></dd></div>
        <div><dt>Prompt computed</dt><dd>${time(prefill / 1000)}<small>${rate(computed, prefill)}</small></dd></div>
        <div><dt>Answer</dt><dd>${r.generated === null ? "–" : count(r.generated)}<small>${rate((r.generated ?? 1) - 1, decode)}</small></dd></div>
        <div><dt>Waited</dt><dd>${time(queued / 1000)}</dd></div>
      </dl>
      ${r.error ? failure(new Error(r.error)) : nothing}
      <div class="row"><h3>Prompt as the model sees it</h3><span class="end"></span><copy-button .text=${r.rendered_prompt} what="the prompt" wide></copy-button></div>
      <pre class="code" tabindex="0" aria-label="Prompt as the model sees it" style="max-height:40vh;white-space:pre-wrap;overflow-wrap:anywhere">${r.rendered_prompt}</pre>
      <h3>Parameters as applied</h3>
      <table><tbody>${set.map(([name, value]) => html`<tr><td><code>${name}</code></td><td class="n"><code>${typeof value === "number" ? Number(value.toPrecision(6)) : JSON.stringify(value)}</code></td></tr>`)}</tbody></table>
      <p class="small quiet">Kept in memory only (${bytes(r.prompt_tokens * 4)}), for the last 50 requests.</p>`}></modal-panel>`;
  }
}
