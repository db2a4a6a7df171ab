// Models: on disk, on their way, in the catalogue, on the hub.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { ApiError, call, get, post } from "../lib/api";
import { bytes, count, parameters, rate, speed, time } from "../lib/format";
import { Watch, inMemory, store } from "../lib/store";
import type { Download } from "../types/download";
import { Part } from "../parts/element";
import "../parts/copy-button";
import { question } from "../parts/dialog";
import { failure } from "../parts/notice";

interface Fit { fits: boolean; total: number; largest_context?: number; tok_s?: number }
interface LibraryModel {
  id: string; path: string; source: string; bytes: number; quantization: string | null; context: number | null; problem: string | null; complete?: boolean;
  state?: string; pinned?: boolean; capabilities?: string[]; fit?: Fit | null; family?: string; size_label?: string;
}
interface CatalogueModel {
  repo: string; name: string; family?: string; parameters?: number | null; on_disk?: boolean; quantization?: string; bytes?: number | null; context?: number | null;
  capabilities?: string[]; purpose?: string; size_class?: string; fit?: Fit | null;
}
interface Found { repo: string; downloads?: number; likes?: number; updated?: string; gated?: boolean }
interface Removal { frees: number; files: number; kept: string[] }

const PURPOSES: Record<string, string> = { try: "Small, to try", chat: "Chat", code: "Code", agents: "Agents and tools", vision: "Pictures", embeddings: "Embeddings" };
const OPEN = new Set(["queued", "checking", "downloading", "verifying", "paused"]);
const DOWNLOADING: Record<string, string> = {
  queued: "Queued", checking: "Checking", downloading: "Downloading", verifying: "Verifying", paused: "Paused", done: "Done", failed: "Failed", cancelled: "Cancelled",
};

/** A list that is read when the page opens, and again when the server says so. */
interface Listed<T> { items?: T[]; error?: unknown; absent?: boolean }

@customElement("page-models")
export class Models extends Part {
  @state() private disk: Listed<LibraryModel> = {};
  @state() private away: string[] = [];
  @state() private catalogue: Listed<CatalogueModel> = {};
  @state() private found: Listed<Found> = {};
  @state() private searching = false;
  @state() private removing: { model: string; removal: Removal } | undefined;
  @state() private busy: string | undefined;
  @state() private error: unknown;
  @state() private purpose = "";
  private query = "";
  private number = 0;

  constructor() {
    super();
    new Watch(this, ["downloads", "health", "stats"]);
    new Watch(this, ["models"], () => {
      void this.load();
      void this.loadCatalogue();
    });
  }

  override connectedCallback() {
    super.connectedCallback();
    // Before the stream is there: its first event brings the list along.
    if (store.link !== "open") return;
    void this.load();
    void this.loadCatalogue();
  }

  private async load() {
    try {
      const { models, away } = await get<{ models: LibraryModel[]; away?: string[] }>("/api/hearth/models");
      this.disk = { items: models };
      this.away = away ?? [];
    } catch (error) {
      this.disk = absent(error) ? { absent: true } : { error };
    }
  }

  private async loadCatalogue() {
    try {
      const { models } = await get<{ models: CatalogueModel[] }>("/api/hearth/catalogue");
      this.catalogue = { items: models };
    } catch (error) {
      this.catalogue = absent(error) ? { absent: true } : { error };
    }
  }

  /** Does something to a model or download, and shows what went wrong. */
  private async act(what: string, work: () => Promise<unknown>) {
    this.busy = what;
    this.error = undefined;
    store.loadError = undefined;
    try {
      await work();
    } catch (error) {
      this.error = error;
    }
    this.busy = undefined;
    void this.load();
  }

  private readonly search = async (event: Event) => {
    event.preventDefault();
    this.query = this.querySelector<HTMLInputElement>("#hub-search")?.value.trim() ?? "";
    if (!this.query) return;
    const number = ++this.number;
    this.searching = true;
    try {
      const { models } = await get<{ models: Found[] }>(`/api/hearth/search?q=${encodeURIComponent(this.query)}`);
      if (number === this.number) this.found = { items: models };
    } catch (error) {
      if (number === this.number) this.found = absent(error) ? { absent: true } : { error };
    }
    if (number === this.number) this.searching = false;
  };

  private async askRemoval(model: string) {
    await this.act(`remove ${model}`, async () => {
      const removal = await get<Removal>(`/api/hearth/models/removal?model=${encodeURIComponent(model)}`);
      this.removing = { model, removal };
    });
  }

  private pull(repo: string) {
    return this.act(`pull ${repo}`, () => post("/api/hearth/downloads", { repo }));
  }

  override render() {
    return html`<div class="page">
      <header><h1>Models</h1></header>
      ${failure(this.error ?? (store.loadError && new Error(`${store.loadError.model} is not loaded: ${store.loadError.message}`)))}
      ${this.downloads()} ${this.onDisk()} ${this.catalogueList()} ${this.hub()}
      ${this.removing ? this.removalDialog(this.removing.model, this.removing.removal) : nothing}
    </div>`;
  }

  private downloads() {
    const list = [...store.downloads.values()].filter((d) => OPEN.has(d.state) || d.state === "failed");
    if (list.length === 0) return nothing;
    return html`<section class="panel flush" aria-labelledby="downloads-h">
      <header><h2 id="downloads-h">Downloads</h2></header>
      <ul class="list">${list.map((d) => this.download(d))}</ul>
    </section>`;
  }

  private download(d: Download) {
    const left = d.remaining_s;
    const to = (verb: string) => () => void this.act(`${verb} ${d.id}`, () => post(`/api/hearth/downloads/${encodeURIComponent(d.id)}/${verb}`));
    return html`<li class="stack tight">
      <div class="row wrap"><strong class="break">${d.repo}</strong><span class="tag ${d.state === "failed" ? "bad" : ""}">${DOWNLOADING[d.state] ?? d.state}</span>
        <span class="row end">
          ${d.state === "paused" || d.state === "failed" ? html`<button @click=${to("resume")}>Resume</button>` : html`<button @click=${to("pause")}>Pause</button>`}
          <button class="danger" @click=${to("cancel")}>Cancel</button>
        </span></div>
      <progress max=${Math.max(1, d.total)} .value=${d.bytes} aria-label=${`Progress of ${d.repo}`}></progress>
      <div class="row wrap small quiet"><span>${bytes(d.bytes)} of ${bytes(d.total)}</span>
        ${d.state === "downloading" ? html`<span>${rate(d.speed)}</span>` : nothing}
        ${d.state === "downloading" && left !== null ? html`<span>${time(left)} left</span>` : nothing}
        ${d.message ? html`<span class="break">${d.message}</span>` : nothing}</div>
    </li>`;
  }

  private onDisk() {
    const { items, error, absent } = this.disk;
    const elsewhere = inMemory().filter((m) => !items?.some((i) => i.id === m.id));
    let content;
    if (absent) content = this.loadedOnly();
    else if (error) content = html`<div style="padding:12px 16px">${failure(error, () => void this.load())}</div>`;
    else if (!items) content = html`<p class="empty">Looking for models.</p>`;
    else if (items.length === 0 && elsewhere.length === 0)
      content = html`<div class="empty"><h3>No models on this computer yet</h3><p>Take one from the catalogue below; each says whether it fits.</p></div>`;
    else content = html`<ul class="list" data-test="on-disk">${elsewhere.map((m) => this.elsewhere(m.id))}${items.map((m) => this.model(m))}</ul>`;
    return html`<section class="panel flush" aria-labelledby="disk-h"><header><h2 id="disk-h">On disk</h2></header>${content}
      ${this.away.length > 0 ? html`<p class="small quiet" style="padding:0 16px 12px">Away now: ${this.away.join(", ")}. Connect the drive to see its models.</p>` : nothing}
    </section>`;
  }

  /** A loaded model that was named by its folder. */
  private elsewhere(id: string) {
    return html`<li class="stack tight"><div class="row wrap"><strong class="break">${id}</strong><span class="tag good">Loaded</span>
      <span class="row end"><button ?disabled=${!!this.busy} @click=${() => void this.act(`unload ${id}`, () => post("/api/hearth/models/unload", { model: id }))} aria-label=${`Unload ${id}`}>Unload</button></span></div>
      <p class="small quiet">From a folder of its own, outside of those that are looked in.</p></li>`;
  }

  private loadedOnly() {
    const model = store.stats?.model;
    return html`<div class="empty">${model ? html`<h3>${model.id}</h3><p>Loaded, ${count(model.context)} tokens of context.</p>` : html`<h3>No model is loaded</h3>`}
      <p>This server does not list the models on disk. In a terminal, <code>hearth ls</code> does, and <code>hearth serve MODEL</code> loads one.</p></div>`;
  }

  private model(m: LibraryModel) {
    const health = store.health;
    const now = inMemory().find((one) => one.id === m.id);
    const busy = now !== undefined && now.requests > 0;
    const loading = health?.status === "loading" && health.model === m.id;
    const state = m.problem ? (m.complete ? "unusable" : "incomplete") : loading ? "loading" : now ? "loaded" : "on_disk";
    const word: Record<string, string> = { incomplete: "Incomplete", unusable: "Unusable", loading: "Loading", loaded: "Loaded", on_disk: "On disk" };
    const facts = [bytes(m.bytes), m.quantization, m.context ? `${count(m.context)} tokens` : null, ...(m.capabilities ?? [])].filter(Boolean);
    const start = () => void this.act(`load ${m.id}`, () => post("/api/hearth/models/load", { model: m.id }));
    const stop = () => void this.act(`unload ${m.id}`, () => post("/api/hearth/models/unload", { model: m.id }));
    const pin = () => void this.act(`pin ${m.id}`, () => post("/api/hearth/models/pin", { model: m.id, pinned: !m.pinned }));
    return html`<li class="stack tight">
      <div class="row wrap"><strong class="break">${m.id}</strong>
        <span class="tag ${state === "loaded" ? "good" : m.problem ? "warn" : ""}">${word[state] ?? state}</span>
        ${m.pinned ? html`<span class="tag">Pinned</span>` : nothing} ${fitTag(m.fit)}
        <span class="row end">
          ${state === "loaded" ? html`<button @click=${stop} ?disabled=${!!this.busy || busy} title=${busy ? "Requests for it wait or run" : ""} aria-label=${`Unload ${m.id}`}>Unload</button>` : nothing}
          ${state === "on_disk" ? html`<button @click=${start} ?disabled=${!!this.busy} aria-label=${`Start ${m.id}`}>${this.busy === `load ${m.id}` ? "Starting" : "Start"}</button>` : nothing}
          ${state === "loaded" ? html`<button @click=${pin} ?disabled=${!!this.busy} aria-label=${`${m.pinned ? "Unpin" : "Pin"} ${m.id}`}>${m.pinned ? "Unpin" : "Pin"}</button>` : nothing}
          <button class="danger" @click=${() => void this.askRemoval(m.id)} ?disabled=${!!this.busy || state === "loaded" || state === "loading"} aria-label=${`Delete ${m.id}`}>Delete</button>
        </span></div>
      ${loading ? html`<progress max="100" .value=${health.percent} aria-label=${`Load progress of ${m.id}`}></progress>` : nothing}
      <p class="small quiet break">${facts.join(" · ")}</p>
      ${m.problem ? html`<p class="small warn break">${m.problem}</p>` : nothing}
    </li>`;
  }

  private removalDialog(model: string, removal: Removal) {
    const close = () => (this.removing = undefined);
    return question({
      heading: `Delete ${model}`,
      text: html`This removes ${count(removal.files)} files and frees ${bytes(removal.frees)}. ${removal.kept.length > 0 ? html`Kept: ${removal.kept.join("; ")}.` : nothing}`,
      verb: `Delete and free ${bytes(removal.frees)}`,
      yes: () => void this.act(`remove ${model}`, () => call("DELETE", `/api/hearth/models?model=${encodeURIComponent(model)}`)).then(close),
      no: close,
    });
  }

  private catalogueList() {
    const { items, error, absent } = this.catalogue;
    if (absent) return nothing;
    const here = new Set((this.disk.items ?? []).map((m) => m.id));
    const coming = new Set([...store.downloads.values()].filter((d) => OPEN.has(d.state)).map((d) => d.repo));
    return html`<section class="panel flush" aria-labelledby="catalogue-h"><header><h2 id="catalogue-h">Catalogue</h2>
        <select class="end" aria-label="Purpose" @change=${(e: Event) => (this.purpose = (e.target as HTMLSelectElement).value)}><option value="">Every purpose</option>
          ${[...new Set((items ?? []).map((m) => m.purpose ?? ""))].filter(Boolean).map((p) => html`<option value=${p}>${PURPOSES[p] ?? p}</option>`)}</select></header>
      ${error ? html`<div style="padding:12px 16px">${failure(error, () => void this.loadCatalogue())}</div>` : nothing}
      ${items ? html`<ul class="list" data-test="catalogue">${items.filter((m) => this.purpose === "" || m.purpose === this.purpose).map((m) => {
        const facts = [m.purpose ? (PURPOSES[m.purpose] ?? m.purpose) : null, m.parameters ? parameters(m.parameters) : null, m.quantization, m.bytes ? bytes(m.bytes) : "size unknown", m.context ? `${count(m.context)} tokens` : null, ...(m.capabilities ?? [])].filter(Boolean);
        return html`<li class="stack tight">
          <div class="row wrap"><strong>${m.name}</strong>${m.fit ? fitTag(m.fit) : sizeTag(m.bytes)}<span class="row end">
            ${m.on_disk || here.has(m.repo) ? html`<span class="tag good">On disk</span>` : coming.has(m.repo) ? html`<span class="tag">Downloading</span>`
              : html`<button @click=${() => void this.pull(m.repo)} ?disabled=${!!this.busy} aria-label=${`Download ${m.name}`}>Download</button>`}</span></div>
          <p class="small quiet break">${facts.join(" · ")}</p>
        </li>`;
      })}</ul>` : error ? nothing : html`<p class="empty">Reading the catalogue.</p>`}
    </section>`;
  }

  private hub() {
    const { items, error, absent } = this.found;
    return html`<section class="panel" aria-labelledby="hub-h"><header><h2 id="hub-h">Search the hub</h2></header>
      <form class="row" role="search" @submit=${this.search}>
        <input id="hub-search" type="search" placeholder="Name of a model" aria-label="Search the hub for models" />
        <button type="submit" ?disabled=${this.searching}>${this.searching ? "Searching" : "Search"}</button>
      </form>
      <div style="margin-top:8px">
        ${absent ? html`<p class="quiet">This server does not search the hub.</p>` : nothing}
        ${failure(error)}
        ${items ? (items.length === 0 ? html`<p class="quiet">Nothing on the hub matches “${this.query}”.</p>`
          : html`<ul class="list">${items.map((m) => html`<li class="row wrap" style="padding:8px 0">
              <span class="break">${m.repo}</span>${m.gated ? html`<span class="tag warn">Needs access</span>` : nothing}
              <span class="small quiet">${m.downloads !== undefined ? `${count(m.downloads)} downloads` : ""}</span>
              <button class="end" @click=${() => void this.pull(m.repo)} ?disabled=${!!this.busy} aria-label=${`Download ${m.repo}`}>Download</button></li>`)}</ul>`) : nothing}
      </div>
    </section>`;
  }
}

/** Whether this server has no such route, or nothing behind it. */
function absent(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 404 || error.status === 501);
}

/** Whether a model's weights alone are more than the budget; the whole is known only once its files' headers are. */
function sizeTag(weights: number | null | undefined) {
  const ledger = store.stats?.memory.ledger;
  if (!weights || !ledger || ledger.budget === 0) return nothing;
  return weights + ledger.reserve > ledger.budget
    ? html`<span class="tag bad">Too large: ${bytes(weights)} of weights, budget ${bytes(ledger.budget)}</span>`
    : html`<span class="tag good" title=${`${bytes(weights)} of a budget of ${bytes(ledger.budget)}; how much context fits is known when it is here`}>Weights fit</span>`;
}

/** Whether a model fits, in a word and a shape. */
function fitTag(fit: Fit | null | undefined) {
  if (!fit) return nothing;
  const quick = fit.tok_s ? ` · about ${speed(fit.tok_s)}` : "";
  return fit.fits
    ? html`<span class="tag good" title=${`Needs ${bytes(fit.total)}`}>Fits${quick}</span>`
    : html`<span class="tag bad" title=${`Needs ${bytes(fit.total)}`}>Does not fit: needs ${bytes(fit.total)}</span>`;
}
