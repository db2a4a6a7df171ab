// Logs: the last lines of the server, and new ones as they come.

import { html } from "lit";
import { customElement, state } from "lit/decorators.js";
import { get } from "../lib/api";
import { clock, counted } from "../lib/format";
import { Watch, store } from "../lib/store";
import type { LogLine } from "../types/hearth";
import { Part } from "../parts/element";
import "../parts/copy-button";
import { failure } from "../parts/notice";

const LEVELS = ["error", "warn", "info"];

@customElement("page-logs")
export class Logs extends Part {
  @state() private error: unknown;
  @state() private level = "info";
  @state() private text = "";
  private following = true;
  private read = false;

  constructor() {
    super();
    new Watch(this, ["log", "link"], (topic) => {
      // What was said while the server was out of reach.
      if (topic === "link" && store.link === "open") void this.load();
    });
  }

  override connectedCallback() {
    super.connectedCallback();
    void this.load();
  }

  private async load() {
    this.error = undefined;
    try {
      const { lines } = await get<{ lines: LogLine[] }>("/api/hearth/logs?lines=1000");
      store.noteLogs(lines);
      this.read = true;
      this.requestUpdate();
    } catch (error) {
      this.error = error;
    }
  }

  protected override updated() {
    const box = this.querySelector(".log");
    if (box && this.following) box.scrollTop = box.scrollHeight;
  }

  private readonly scrolled = (event: Event) => {
    const box = event.target as HTMLElement;
    this.following = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  };

  override render() {
    const shown = LEVELS.slice(0, LEVELS.indexOf(this.level) + 1);
    const wanted = this.text.toLowerCase();
    const lines = store.logs.filter((l) => shown.includes(l.level) && (wanted === "" || `${l.target} ${l.message}`.toLowerCase().includes(wanted)));
    const all = lines.map((l) => `${new Date(l.at).toISOString()} ${l.level} ${l.target} ${l.message}`).join("\n");
    return html`<div class="page">
      <header><h1>Logs</h1><span class="quiet">${counted(lines.length, "line")}</span>
        <span class="row wrap end">
          <select aria-label="Least level" @change=${(e: Event) => (this.level = (e.target as HTMLSelectElement).value)}>
            <option value="info" selected>All lines</option><option value="warn">Warnings and errors</option><option value="error">Errors</option></select>
          <input type="search" style="width:180px" placeholder="Filter" aria-label="Filter lines" @input=${(e: Event) => (this.text = (e.target as HTMLInputElement).value)} />
          <copy-button .text=${all} what="the lines shown" wide></copy-button></span></header>
      ${failure(this.error, () => void this.load())}
      <section class="panel flush" aria-label="Lines">
        ${lines.length === 0 ? html`<p class="empty">${this.read ? (store.logs.length === 0 ? "Nothing was logged yet." : "No line matches.") : "Reading the log."}</p>`
          : html`<div class="log" tabindex="0" role="log" aria-label="Log lines" @scroll=${this.scrolled}><ol>${lines.map((l) => html`<li class=${l.level}><span>${clock(l.at)}</span><span>${l.level}</span><span class="break"><span class="target">${l.target.replace(/^hearth_/, "")}</span> ${l.message}</span></li>`)}</ol></div>`}
      </section>
    </div>`;
  }
}
