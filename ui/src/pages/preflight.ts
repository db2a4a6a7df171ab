// Preflight: whether this machine is quiet and has room, each warning with its reading, its limit and the remedy.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { get } from "../lib/api";
import { bytes, clock, count, ram } from "../lib/format";
import { Part } from "../parts/element";
import { failure } from "../parts/notice";

interface Process { pid: number; name: string; command: string; memory: number; cpu_percent: number }
interface Report {
  ok: boolean; problems: string[]; time: string; host: string; chip: string; ram: number;
  readings: {
    swap_used: number | null; swap_total: number | null; memory_free_percent: number | null; memory_used: number | null; cpu_speed_limit_percent: number | null;
    load_1m: number | null; load_5m: number | null; load_15m: number | null; thermal: string | null; memory_pressure: string | null; iogpu_wired_limit_mb: number | null;
    processes_read: number | null; processes_unreadable: number | null;
  };
  limits: { swap_used: number; memory_free_percent: number; cpu_speed_limit_percent: number; load_1m: number; process_memory: number; process_cpu_percent: number };
  allowed_cpu_processes: Process[]; background_cpu_processes: Process[]; big_processes: Process[];
}

@customElement("page-preflight")
export class Preflight extends Part {
  @state() private report: Report | undefined;
  @state() private error: unknown;
  @state() private busy = false;

  override connectedCallback() {
    super.connectedCallback();
    void this.run();
  }

  private async run() {
    this.busy = true;
    this.error = undefined;
    try {
      this.report = await get<Report>("/api/hearth/preflight");
    } catch (error) {
      this.error = error;
    }
    this.busy = false;
  }

  override render() {
    const r = this.report;
    return html`<div class="page">
      <header><h1>Preflight</h1>${r ? html`<span class="quiet">Checked at ${clock(Date.parse(r.time))}</span>` : nothing}
        <button class="end" ?disabled=${this.busy} @click=${() => void this.run()}>${this.busy ? "Checking" : "Check again"}</button></header>
      ${failure(this.error, () => void this.run())}
      ${r ? this.result(r) : this.error ? nothing : html`<p class="quiet">Reading this machine's figures.</p>`}
    </div>`;
  }

  private result(r: Report) {
    return html`<section class="panel flush" aria-labelledby="problems-h"><header><h2 id="problems-h">${r.ok ? "This machine is ready" : "What is in the way"}</h2></header>
        ${r.ok ? html`<div class="empty"><p><span class="good">●</span> Nothing to do: it is quiet and has room for a model.</p></div>`
          : html`<ul class="list">${r.problems.map((p) => html`<li class="row" style="align-items:baseline"><span class="dot warn" role="img" aria-label="Warning"></span><span class="break">${p}</span></li>`)}</ul>`}
      </section>
      <section class="panel" aria-labelledby="readings-h"><header><h2 id="readings-h">Readings</h2><span class="quiet small">${r.chip} · ${ram(r.ram)} · ${r.host}</span></header>
        <table><thead><tr><th>What</th><th class="n">Reading</th><th class="n">Limit</th></tr></thead><tbody>
          ${reading("Swap in use", size(r.readings.swap_used), `at most ${bytes(r.limits.swap_used)}`)}
          ${reading("Free memory", percent(r.readings.memory_free_percent, "of all memory"), `at least ${r.limits.memory_free_percent}\u00a0%`)}
          ${reading("CPU speed", percent(r.readings.cpu_speed_limit_percent, "of full speed"), `at least ${r.limits.cpu_speed_limit_percent}\u00a0%`)}
          ${reading("Load, 1 minute", r.readings.load_1m?.toFixed(1), `at most ${r.limits.load_1m}`)}
          ${reading("Load, 5 and 15 minutes", r.readings.load_5m === null ? null : `${r.readings.load_5m.toFixed(1)}, ${r.readings.load_15m?.toFixed(1)}`)}
          ${reading("Memory pressure", r.readings.memory_pressure)} ${reading("Thermal pressure", r.readings.thermal)}
          ${reading("GPU wired limit", r.readings.iogpu_wired_limit_mb === null ? null : r.readings.iogpu_wired_limit_mb === 0 ? "the system's own" : `${count(r.readings.iogpu_wired_limit_mb)} MB`)}
          ${reading("Other processes read", r.readings.processes_read === null ? null : count(r.readings.processes_read))}
        </tbody></table></section>
      ${this.processes("Large processes", r.big_processes, `${bytes(r.limits.process_memory)} or more`)}
      ${this.processes("Busy processes", r.background_cpu_processes, `${r.limits.process_cpu_percent} % of a core or more`)}
      ${this.processes("Busy and forgiven", r.allowed_cpu_processes, "on the allow-list")}`;
  }

  private processes(title: string, list: Process[], why: string) {
    if (list.length === 0) return nothing;
    return html`<section class="panel" aria-label=${title}><header><h2>${title}</h2><span class="small quiet">${why}</span></header>
      <div class="scroll"><table><thead><tr><th>Name</th><th class="n">Process</th><th class="n">Memory</th><th class="n">CPU, of a core</th></tr></thead>
      <tbody>${list.map((p) => html`<tr><td title=${p.command} class="break">${p.name}</td><td class="n">${p.pid}</td><td class="n">${bytes(p.memory)}</td><td class="n">${Math.round(p.cpu_percent)} %</td></tr>`)}</tbody></table></div></section>`;
  }
}

const size = (n: number | null) => (n === null ? null : bytes(n));
const percent = (n: number | null, of: string) => (n === null ? null : `${Math.round(n)}\u00a0% ${of}`);

function reading(name: string, value: string | null | undefined, limit = "recorded only") {
  return html`<tr><td>${name}</td><td class="n">${value ?? html`<span class="quiet">not told</span>`}</td><td class="n quiet">${limit}</td></tr>`;
}
