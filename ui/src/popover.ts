// The menu bar's popover: the model and its state, one action, memory, the address, the two warnings that matter most.
// 360 px wide, and nothing scrolls.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { get, post, sentence } from "./lib/api";
import { bytes, counted, shortModel, speed } from "./lib/format";
import { CATEGORIES, parts } from "./lib/ledger";
import { Watch, condition, inMemory, store, totalSpeed } from "./lib/store";
import { Part } from "./parts/element";
import "./parts/copy-button";

@customElement("hearth-popover")
export class Popover extends Part {
  @state() private problems: string[] = [];
  @state() private error = "";
  @state() private busy = false;

  constructor() {
    super();
    new Watch(this, ["link", "stats", "health"], (topic) => {
      if (topic === "link" && store.link === "open") void this.check();
    });
  }

  override connectedCallback() {
    super.connectedCallback();
    if (store.link === "open") void this.check();
  }

  private async check() {
    try {
      this.problems = (await get<{ problems: string[] }>("/api/hearth/preflight")).problems;
    } catch {
      this.problems = [];
    }
  }

  private async act(path: string, body: unknown) {
    this.busy = true;
    this.error = "";
    try {
      await post(path, body);
    } catch (error) {
      this.error = sentence(error);
    }
    this.busy = false;
  }

  override render() {
    if (store.link === "signed_out")
      return html`<main class="stack"><h1>Hearth</h1><p>This page needs a link from Hearth. In a terminal, run <code>hearth dashboard</code>.</p></main>`;
    const now = condition();
    const rate = totalSpeed(store.stats);
    const address = `${location.origin}/v1`;
    return html`<main class="stack"><h1 class="hidden-text">Hearth</h1>
      <div class="row"><span class="dot ${now.tone}"></span><strong class="cut">${now.model ? shortModel(now.model) : now.word}</strong>
        <span class="quiet cut end">${now.model ? now.word : ""}</span></div>
      ${store.health?.status === "loading" ? html`<progress max="100" .value=${store.health.percent} aria-label="Load progress"></progress>` : nothing}
      ${now.detail ? html`<p class="small quiet clamp">${now.detail}</p>` : nothing}
      <div class="row">${this.action()}<span class="end quiet cut">${rate > 0 ? speed(rate) : this.others()}</span></div>
      ${this.error ? html`<p class="small bad clamp" role="alert">${this.error}</p>` : nothing}
      <hr />${this.memory()}<hr />
      <div class="row"><code class="cut grow">${address}</code><copy-button .text=${address} what="the address"></copy-button></div>
      ${this.warnings()}
      <a href="/#/overview" target="_blank" rel="noopener">Open the dashboard</a>
    </main>`;
  }

  /** How many more models are in memory than the one that is shown. */
  private others() {
    const more = inMemory().length - 1;
    return more > 0 ? `and ${counted(more, "other model")} in memory` : "";
  }

  private action() {
    const { health } = store;
    const busy = inMemory().some((m) => health?.status === "ready" && m.id === health.model && m.requests > 0);
    if (health?.status === "ready") return html`<button ?disabled=${this.busy || busy} @click=${() => void this.act("/api/hearth/models/unload", { model: health.model })}>Unload</button>`;
    if (health?.status === "empty" || health?.status === "failed") return html`<a class="button" href="/#/models" target="_blank" rel="noopener">Choose a model</a>`;
    return nothing;
  }

  private memory() {
    const ledger = store.stats?.memory.ledger;
    if (!ledger || ledger.budget === 0) return html`<p class="small quiet">No memory figures yet.</p>`;
    // Where the budget is exceeded, the bar is as long as what is used, and the mark shows the budget.
    const whole = Math.max(ledger.budget, ledger.total) * 1.05;
    const width = (n: number) => `${(n / whole) * 100}%`;
    return html`<div class="stack tight">
      <div class="row small"><span>Memory</span><span class="end">${bytes(ledger.total)} of ${bytes(ledger.budget)}</span></div>
      <div class="bar-frame" role="img" aria-label=${`${bytes(ledger.total)} of a budget of ${bytes(ledger.budget)} is used`}>
        <div class="bar">${parts(ledger).map((n, i) => html`<i style="width:${width(n)};background:var(${CATEGORIES[i]!.color})"></i>`)}</div>
        <span class="mark" style="left:${width(ledger.budget)}"></span></div></div>`;
  }

  private warnings() {
    const guard = store.stats?.memory.guard;
    const tight = guard && guard.level !== "normal" ? guard.actions.at(-1)?.why : undefined;
    const list = [...(tight ? [tight] : []), ...this.problems].slice(0, 2);
    return list.map((p) => html`<div class="row small" style="align-items:baseline"><span class="dot warn" role="img" aria-label="Warning"></span><span class="clamp two" title=${p}>${p}</span></div>`);
  }
}
