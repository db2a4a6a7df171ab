// Connect: ready-made settings for editors, agents and SDKs, and a test that makes the call that the client makes.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { get, post, sentence } from "../lib/api";
import { recipe, type Facts } from "../lib/clients";
import { ms } from "../lib/format";
import { Watch, inMemory, store } from "../lib/store";
import type { Connect, ConnectClient, ConnectTest } from "../types/hearth";
import { Part } from "../parts/element";
import "../parts/copy-button";
import { failure, notice } from "../parts/notice";

@customElement("page-connect")
export class ConnectPage extends Part {
  @state() private info: Connect | undefined;
  @state() private error: unknown;
  @state() private chosen = "curl";
  @state() private testing = "";
  @state() private results = new Map<string, ConnectTest>();

  constructor() {
    super();
    new Watch(this, ["health", "models", "link"], (topic) => {
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
      this.info = await get<Connect>("/api/hearth/connect");
      const wanted = location.hash.split("/")[2];
      if (wanted && this.info.clients.some((c) => c.id === wanted)) this.chosen = wanted;
    } catch (error) {
      this.error = error;
    }
  }

  private async test(client: string) {
    this.testing = client;
    let result: ConnectTest;
    try {
      result = await post<ConnectTest>("/api/hearth/connect/test", { client });
    } catch (error) {
      result = { ok: false, status: 0, ms: 0, message: sentence(error) };
    }
    this.results = new Map(this.results).set(client, result);
    this.testing = "";
  }

  private facts(info: Connect): Facts {
    const model = store.stats?.model;
    return { address: info.address, model: model?.id ?? "the-loaded-model", context: model?.context ?? 32_768, key: info.key ?? (info.key_required ? "YOUR-API-KEY" : "hearth") };
  }

  override render() {
    const { info } = this;
    if (!info) return html`<div class="page"><header><h1>Connect</h1></header>${this.error ? failure(this.error, () => void this.load()) : html`<p class="quiet">Looking at what is served.</p>`}</div>`;
    const served = info.clients.filter((c) => c.served);
    const later = info.clients.filter((c) => !c.served);
    const client = info.clients.find((c) => c.id === this.chosen) ?? served[0];
    const base = `${info.address}/v1`;
    return html`<div class="page">
      <header><h1>Connect</h1></header>
      <section class="panel stack" aria-label="Address">
        <div class="row wrap"><span class="quiet">Base URL</span><code>${base}</code><copy-button .text=${base} what="the base URL"></copy-button>
          <span class="quiet">${info.key_required ? "An API key is required." : "Any API key is accepted."} ${info.lan ? "Other machines on the network can reach it." : "Only programs on this computer can reach it."}</span></div>
        ${this.without()}
      </section>
      <div class="connect">
        <nav class="panel flush" aria-label="Clients"><ul class="talks" style="padding:8px">
          ${served.map((c) => this.pick(c))}
          ${later.length > 0 ? html`<li class="small quiet" style="padding:8px 8px 2px;grid-column:1/-1">Not served yet</li>` : nothing}
          ${later.map((c) => this.pick(c))}
        </ul></nav>
        ${client ? this.client(client, this.facts(info)) : nothing}
      </div>
      <p class="small quiet">Cursor calls models from its own servers, which cannot reach this computer: it cannot use Hearth.</p>
    </div>`;
  }

  /** What clients meet while nothing is in memory. */
  private without() {
    const { health } = store;
    if (inMemory().length > 0 || health?.status !== "empty") return nothing;
    const what = health.message ? "clients get an error until one is" : "the first request waits until the model that it names is";
    return notice("warn", html`No model is in memory: ${what}. <a href="#/models">Choose a model</a>`, "Note");
  }

  private pick(c: ConnectClient) {
    return html`<li><button class="pick" aria-current=${c.id === this.chosen ? "true" : nothing} @click=${() => (this.chosen = c.id)}><span class=${c.served ? "" : "quiet"}>${c.name}</span></button></li>`;
  }

  private client(c: ConnectClient, facts: Facts) {
    const how = recipe(c.id, facts);
    const result = this.results.get(c.id);
    return html`<section class="panel stack" aria-labelledby="client-h">
      <div class="row wrap"><h2 id="client-h">${c.name}</h2>
        ${c.served ? html`<button class="end" ?disabled=${this.testing !== ""} @click=${() => void this.test(c.id)}>${this.testing === c.id ? "Testing" : "Test"}</button>` : html`<span class="tag warn">Not served yet</span>`}</div>
      ${c.served ? nothing : html`<p>${c.name} needs ${c.needs.join(" and ")}. It appears here as ready when this server speaks it.</p>`}
      ${result ? notice(result.ok ? "good" : "bad", html`${result.message} <span class="quiet">${ms(result.ms)}</span>`, result.ok ? "Works" : "Does not work") : nothing}
      ${c.served && how ? html`
        ${how.note ? html`<p>${how.note}</p>` : nothing}
        ${how.snippets.map((s) => html`<div class="stack tight"><div class="row"><span class="small quiet">${s.where}</span><span class="end"></span><copy-button .text=${s.text} .what=${s.where} wide></copy-button></div>
          <pre class="code" tabindex="0" aria-label=${s.where}>${s.text}</pre></div>`)}` : nothing}
      <p class="small quiet">The test makes the calls that ${c.name} begins with: ${c.needs.join(", ")}.</p>
    </section>`;
  }
}
