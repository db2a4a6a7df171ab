// Overview: the model, the memory and its limits, the requests.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { post } from "../lib/api";
import { ago, bytes, count, counted, shortModel, speed, time } from "../lib/format";
import { Watch, condition, inMemory, store } from "../lib/store";
import type { ModelStats } from "../types/hearth";
import { Part } from "../parts/element";
import { notice, failure } from "../parts/notice";
import "../parts/copy-button";
import "../parts/memory-chart";
import "../parts/limits-panel";
import "../parts/requests";

/** The sentence of a guard's action. */
const ACTIONS: Record<string, string> = {
  shrink_chunk: "Prompts in smaller pieces", restore_chunk: "Prompts in full pieces again", trim_allocator: "Freed buffers given back",
  demote: "Prompt cache moved out of memory", stop_admission: "New requests wait", resume: "New requests start again", park_row: "A request waits for memory", unload: "A model left memory",
};

@customElement("page-overview")
export class Overview extends Part {
  @state() private error: unknown;
  @state() private busy = "";

  constructor() {
    super();
    new Watch(this, ["stats", "health", "link", "guard"]);
  }

  /** Loads or unloads a model, and shows what went wrong. */
  private async act(verb: "load" | "unload", model: string) {
    this.busy = model;
    this.error = undefined;
    try {
      await post(`/api/hearth/models/${verb}`, { model });
    } catch (error) {
      this.error = error;
    }
    this.busy = "";
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
    const { health } = store;
    const now = condition();
    const address = location.origin;
    const percent = health?.status === "loading" ? health.percent : undefined;
    return html`<section class="panel stack" aria-label="Models in memory">
      <div class="row wrap">
        <span class="dot ${now.tone}"></span>
        <strong>${now.word}</strong>
        ${now.model && !inMemory().some((m) => m.id === now.model) ? html`<span class="break" title=${now.model}>${shortModel(now.model)}</span>` : nothing}
        ${now.detail && !this.left() ? html`<span class="quiet break">${now.detail}</span>` : nothing}
        <span class="row end">
          ${health?.status === "empty" || health?.status === "failed" ? html`<a class="button" href="#/models">Choose a model</a>` : nothing}
          ${inMemory().length > 0 ? html`<a class="button" href="#/chat">Chat</a>` : nothing}
        </span>
      </div>
      ${percent !== undefined ? html`<progress max="100" .value=${percent} aria-label="Load progress"></progress>` : nothing}
      ${this.unclean()}
      ${failure(this.error)}
      ${inMemory().length > 0 ? html`<ul class="list inner" data-test="in-memory">${inMemory().map((m) => this.loaded(m))}</ul>` : nothing}
      <div class="row wrap">
        <span class="quiet">Address</span><code data-test="address">${address}/v1</code>
        <copy-button .text=${`${address}/v1`} what="the address"></copy-button>
      </div>
    </section>`;
  }

  private loaded(m: ModelStats) {
    const rows = (store.stats?.rows ?? []).filter((r) => r.model === m.id || inMemory().length === 1);
    const rate = rows.reduce((sum, r) => sum + (r.phase === "decode" ? r.tokens_per_s : 0), 0);
    const does = rate > 0 ? speed(rate) : m.requests > 0 ? counted(m.requests, "request") : `loaded in ${time(m.load_s)}`;
    return html`<li class="row wrap"><span class="break" title=${m.id}>${shortModel(m.id)}</span>${m.pinned ? html`<span class="tag">Pinned</span>` : nothing}
      <span class="quiet">${bytes(m.weights)} · ${count(m.context)} tokens of context · ${does}</span>
      <button class="end" ?disabled=${this.busy !== "" || m.requests > 0} title=${m.requests > 0 ? "Requests for it wait or run" : ""} aria-label=${`Unload ${shortModel(m.id)}`}
        @click=${() => void this.act("unload", m.id)}>${this.busy === m.id ? "Unloading" : "Unload"}</button></li>`;
  }

  /** What an unclean end left, until a model is there again. */
  private left(): string | undefined {
    return store.link === "open" && store.health?.status === "empty" ? store.health.message : undefined;
  }

  private unclean() {
    const why = this.left();
    if (!why) return nothing;
    const last = store.health?.last_model;
    // A folder outside the usual places is found by its path alone, which only a terminal takes.
    const again = last && !last.startsWith("/") ? html`<button ?disabled=${this.busy !== ""} @click=${() => void this.act("load", last)}>Start ${shortModel(last)} again</button>` : nothing;
    return html`<div class="notice warn" role="status"><span class="grow break"><span class="sign">Nothing was loaded:</span> ${/[.!?]$/.test(why) ? why : `${why}.`}</span>${again}</div>`;
  }

  private guard() {
    const guard = store.stats?.memory.guard;
    const last = guard?.actions.at(-1);
    if (!guard || !last) return nothing;
    const tight = guard.level !== "normal" || !guard.admitting;
    if (!tight && Date.now() - last.at > 600_000) return nothing;
    const text = html`${last.why} <span class="quiet">${ago(last.at)}${last.freed > 0 ? ` · freed ${bytes(last.freed)}` : ""}</span>`;
    return notice(!tight ? "quiet" : guard.level === "hard" ? "bad" : "warn", text, ACTIONS[last.what] ?? last.what);
  }
}
