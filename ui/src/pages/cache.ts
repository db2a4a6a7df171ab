// The prompt cache: what it holds, what it saved, and how to flush or clear it.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { post } from "../lib/api";
import { bytes, count, counted, share, time } from "../lib/format";
import { Watch, store } from "../lib/store";
import type { CacheClear, CacheFlush } from "../types/hearth";
import { Part } from "../parts/element";
import { question } from "../parts/dialog";
import { failure, notice } from "../parts/notice";

@customElement("page-cache")
export class Cache extends Part {
  @state() private busy = "";
  @state() private told = "";
  @state() private error: unknown;
  @state() private asking = false;

  constructor() {
    super();
    new Watch(this, ["stats", "requests"]);
  }

  private async flush() {
    this.busy = "flush";
    this.error = undefined;
    try {
      const done = await post<CacheFlush>("/api/hearth/cache/flush");
      this.told = `${counted(done.entries, "entry", "entries")} on disk, ${bytes(done.bytes)} written.`;
      if (done.failed.length > 0) this.error = new Error(`Not saved: ${done.failed.join("; ")}`);
    } catch (error) {
      this.error = error;
    }
    this.busy = "";
  }

  private async clear() {
    this.busy = "clear";
    this.asking = false;
    this.error = undefined;
    try {
      const done = await post<CacheClear>("/api/hearth/cache/clear");
      this.told = `Removed ${counted(done.entries, "entry", "entries")} from memory (${bytes(done.bytes)}) and ${counted(done.files, "file")} from disk (${bytes(done.file_bytes)}).`;
    } catch (error) {
      this.error = error;
    }
    this.busy = "";
  }

  /** Tokens per second at which prompts were computed lately. */
  private prefillSpeed(): number {
    let tokens = 0;
    let seconds = 0;
    for (const r of store.requests) {
      const computed = r.prompt_tokens - (r.cached_tokens ?? 0);
      const prefill = r.timings_ms?.[1] ?? 0;
      if (computed < 32 || prefill <= 0) continue;
      tokens += computed;
      seconds += prefill / 1000;
    }
    return seconds > 0 ? tokens / seconds : 0;
  }

  override render() {
    const cache = store.stats?.cache;
    return html`<div class="page">
      <header><h1>Cache</h1><span class="row end">
        <button ?disabled=${this.busy !== "" || cache?.ssd.state !== "ready"} @click=${() => void this.flush()}>${this.busy === "flush" ? "Writing" : "Flush to disk"}</button>
        <button class="danger" ?disabled=${this.busy !== "" || !cache} @click=${() => (this.asking = true)}>${this.busy === "clear" ? "Clearing" : "Clear"}</button></span></header>
      ${failure(this.error)} ${this.told ? notice("good", this.told) : nothing}
      ${cache ? html`${this.saved()}${this.tiers()}` : html`<p class="quiet">Waiting for the first figures.</p>`}
      ${this.asking && cache ? question({
        heading: "Clear the prompt cache",
        text: `Every kept conversation goes: ${counted(cache.ram.entries, "entry", "entries")} in memory (${bytes(cache.ram.bytes)}) and ${counted(cache.ssd.files, "file")} on disk (${bytes(cache.ssd.bytes)}). Their prompts are computed again when they are next used.`,
        verb: `Clear and free ${bytes(cache.ram.bytes + cache.ssd.bytes)}`,
        yes: () => void this.clear(),
        no: () => (this.asking = false),
      }) : nothing}
    </div>`;
  }

  private saved() {
    const { ram, ssd } = store.stats!.cache;
    const tokens = ram.reused_tokens + ssd.reused_tokens;
    const hits = ram.hits + ssd.hits;
    // A request that is answered from disk counts there and nowhere else.
    const asked = hits + ram.misses;
    const rate = this.prefillSpeed();
    return html`<section class="panel" aria-labelledby="saved-h"><header><h2 id="saved-h">Saved since the start</h2></header>
      <dl class="figures">
        <div><dt>Hits</dt><dd data-test="hits">${count(hits)}<small>${share(hits, asked, counted(asked, "request"))}</small></dd></div>
        <div><dt>Prompt tokens not computed</dt><dd data-test="tokens-saved">${count(tokens)}</dd></div>
        <div><dt>Time saved, about</dt><dd>${rate > 0 ? time(tokens / rate) : "–"}<small>${rate > 0 ? `at ${count(rate)} prompt tok/s` : "after the next request"}</small></dd></div>
        <div><dt>Read from disk</dt><dd>${bytes(ssd.read)}<small>${counted(ssd.hits, "request")}</small></dd></div>
      </dl></section>`;
  }

  private tiers() {
    const { ram, ssd } = store.stats!.cache;
    return html`<div class="split">
      <section class="panel" aria-labelledby="ram-h"><header><h2 id="ram-h">In memory</h2></header>
        ${ram.cap === 0 ? html`<p class="quiet">Off. The slider on <a href="#/overview">Overview</a> turns it on.</p>` : html`
        ${level(ram.bytes, ram.cap, "--c-cache")}
        <table style="margin-top:8px"><tbody>
          ${line("Conversations kept", count(ram.entries))} ${line("Their tokens", count(ram.tokens))} ${line("Lent to requests now", count(ram.lent))}
          ${line("Replaced by a longer one", count(ram.superseded))} ${line("Evicted for want of room", count(ram.evicted))} ${line("On their way to disk", bytes(ram.waiting))}
        </tbody></table>`}
      </section>
      <section class="panel" aria-labelledby="ssd-h"><header><h2 id="ssd-h">On disk</h2>
          ${ssd.state === "failed" ? html`<span class="tag bad">Not writing</span>` : nothing}</header>
        ${ssd.message ? notice("warn", ssd.message) : nothing}
        ${ssd.state === "off" ? html`<p class="quiet">Off. Start the server with <code>--cache-ssd 32GB</code> to keep conversations over restarts.</p>` : html`
        ${level(ssd.bytes, ssd.cap, "--c-allocator")}
        <table style="margin-top:8px"><tbody>
          ${line("Files", count(ssd.files))} ${line("Written since the start", bytes(ssd.written))} ${line("Waiting to be written", bytes(ssd.pending))}
          ${line("Evicted for want of room", count(ssd.evicted))} ${line("Damaged and removed", count(ssd.corrupt))}
        </tbody></table>
        ${ssd.dir ? html`<p class="small quiet break" style="margin-top:8px">In <code>${ssd.dir}</code></p>` : nothing}`}
      </section></div>`;
  }
}

function line(name: string, value: string) {
  return html`<tr><td>${name}</td><td class="n">${value}</td></tr>`;
}

function level(used: number, cap: number, color: string) {
  return html`<div class="row"><span class="grow">${bytes(used)} of ${bytes(cap)}</span></div>
    <div class="bar" role="img" aria-label=${`${bytes(used)} of ${bytes(cap)} used`}><i style="width:${cap > 0 ? Math.min(100, (used / cap) * 100) : 0}%;background:var(${color})"></i></div>`;
}
