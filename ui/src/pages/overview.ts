// Overview: the model, the memory and its limits, the requests.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { post } from "../lib/api";
import { ago, bytes, count, shortModel, speed, time } from "../lib/format";
import { Watch, condition, store, totalSpeed } from "../lib/store";
import { Part } from "../parts/element";
import { notice, failure } from "../parts/notice";
import "../parts/copy-button";
import "../parts/memory-chart";
import "../parts/limits-panel";
import "../parts/requests";

/** The sentence of a guard's action. */
const ACTIONS: Record<string, string> = {
  shrink_chunk: "Prompts in smaller pieces", restore_chunk: "Prompts in full pieces again", trim_allocator: "Freed buffers given back",
  demote: "Prompt cache moved out of memory", stop_admission: "New requests wait", resume: "New requests start again", park_row: "A request waits for memory",
};

@customElement("page-overview")
export class Overview extends Part {
  @state() private error: unknown;
  @state() private unloading = false;

  constructor() {
    super();
    new Watch(this, ["stats", "health", "link", "guard"]);
  }

  private async unload(model: string) {
    this.unloading = true;
    this.error = undefined;
    try {
      await post("/api/hearth/models/unload", { model });
    } catch (error) {
      this.error = error;
    }
    this.unloading = false;
  }

  override render() {
    return html`<div class="page">
      <header><h1>Overview</h1></header>
      ${this.model()}
      ${this.guard()}
      <section class="panel" aria-labelledby="memory-h">
        <header><h2 id="memory-h">Memory</h2></header>
        <memory-chart></memory-chart>
      </section>
      <section class="panel" aria-labelledby="limits-h">
        <header><h2 id="limits-h">Limits</h2></header>
        <limits-panel></limits-panel>
      </section>
      <hearth-requests></hearth-requests>
    </div>`;
  }

  private model() {
    const { stats, health } = store;
    const now = condition();
    const model = stats?.model;
    const rate = totalSpeed(stats);
    const address = location.origin;
    const percent = health?.status === "loading" ? health.percent : undefined;
    return html`<section class="panel stack" aria-label="Model">
      <div class="row wrap">
        <span class="dot ${now.tone}"></span>
        <strong>${now.word}</strong>
        ${now.model ? html`<span class="break" title=${now.model}>${shortModel(now.model)}</span>` : nothing}
        ${now.detail ? html`<span class="quiet">${now.detail}</span>` : nothing}
        <span class="row end">
          ${health?.status === "empty" ? html`<a class="button" href="#/models">Choose a model</a>` : nothing}
          ${health?.status === "ready" ? html`<a class="button" href="#/chat">Chat</a>
            <button ?disabled=${this.unloading} @click=${() => void this.unload(health.model)}>${this.unloading ? "Unloading" : "Unload"}</button>` : nothing}
        </span>
      </div>
      ${percent !== undefined ? html`<progress max="100" .value=${percent} aria-label="Load progress"></progress>` : nothing}
      ${failure(this.error)}
      <div class="row wrap">
        <span class="quiet">Address</span><code data-test="address">${address}/v1</code>
        <copy-button .text=${`${address}/v1`} what="the address"></copy-button>
        ${model ? html`<span class="quiet end">${count(model.context)} tokens of context · ${rate > 0 ? speed(rate) : `loaded in ${time(model.load_s)}`}</span>` : nothing}
      </div>
    </section>`;
  }

  private guard() {
    const guard = store.stats?.memory.guard;
    const last = guard?.actions.at(-1);
    if (!guard || !last) return nothing;
    const tight = guard.level !== "normal" || !guard.admitting;
    if (!tight && Date.now() - last.at > 600_000) return nothing;
    const text = html`${last.why} <span class="quiet">${ago(last.at)}${last.freed > 0 ? ` · freed ${bytes(last.freed)}` : ""}</span>`;
    return notice(guard.level === "hard" ? "bad" : "warn", text, ACTIONS[last.what] ?? last.what);
  }
}
