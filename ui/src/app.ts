// The dashboard's frame: navigation, the page that the address names, and what to do while the server is away.

import { html, nothing, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { bytes, shortModel, speed } from "./lib/format";
import { Watch, condition, store, totalSpeed } from "./lib/store";
import { Part } from "./parts/element";
import { flame, icon, type IconName } from "./parts/icons";
import "./parts/copy-button";
import "./pages/overview";
import "./pages/models";
import "./pages/chat";
import "./pages/cache";
import "./pages/preflight";
import "./pages/connect";
import "./pages/settings";
import "./pages/logs";

/** Kept while other pages are shown, so that an answer goes on. */
let chat: HTMLElement | undefined;

const PAGES: { id: IconName; name: string; page: () => TemplateResult }[] = [
  { id: "overview", name: "Overview", page: () => html`<page-overview></page-overview>` },
  { id: "models", name: "Models", page: () => html`<page-models></page-models>` },
  { id: "chat", name: "Chat", page: () => html`${(chat ??= document.createElement("page-chat"))}` },
  { id: "cache", name: "Cache", page: () => html`<page-cache></page-cache>` },
  { id: "preflight", name: "Preflight", page: () => html`<page-preflight></page-preflight>` },
  { id: "connect", name: "Connect", page: () => html`<page-connect></page-connect>` },
  { id: "settings", name: "Settings", page: () => html`<page-settings></page-settings>` },
  { id: "logs", name: "Logs", page: () => html`<page-logs></page-logs>` },
];

const FIRST = PAGES[0]!;

/** The page that the address names. */
function named() {
  const id = location.hash.replace(/^#\/?/, "").split("/")[0];
  return PAGES.find((p) => p.id === id) ?? FIRST;
}

@customElement("hearth-app")
export class App extends Part {
  @state() private current = named();

  constructor() {
    super();
    new Watch(this, ["link", "stats", "health"]);
  }

  private readonly moved = () => {
    this.current = named();
    document.title = `${this.current.name} · Hearth`;
    // A screen reader follows to the new page.
    void this.updateComplete.then(() => {
      this.querySelector<HTMLElement>("main")?.focus({ preventScroll: true });
      this.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  };

  override connectedCallback() {
    super.connectedCallback();
    window.addEventListener("hashchange", this.moved);
    document.title = `${this.current.name} · Hearth`;
  }

  override disconnectedCallback() {
    super.disconnectedCallback();
    window.removeEventListener("hashchange", this.moved);
  }

  override render() {
    return html`
      <header class="side">
        <div class="brand">${flame}<span>Hearth</span></div>
        <nav aria-label="Pages">
          ${PAGES.map((p) => html`<a href="#/${p.id}" aria-current=${p === this.current ? "page" : nothing}>${icon(p.id)}<span>${p.name}</span></a>`)}
        </nav>
        <div class="foot stack tight small quiet">${this.foot()}</div>
      </header>
      <main tabindex="-1">${store.link === "signed_out" ? signedOut() : html`${this.away()}${this.current.page()}`}</main>`;
  }

  private foot() {
    const state = condition();
    const ledger = store.stats?.memory.ledger;
    const rate = totalSpeed(store.stats);
    return html`<span class="row"><span class="dot ${state.tone}"></span>${state.word}</span>
      ${state.model ? html`<span class="cut" title=${state.model}>${shortModel(state.model)}</span>` : nothing}
      ${rate > 0 ? html`<span>${speed(rate)}</span>` : nothing}
      ${ledger && ledger.budget > 0 ? html`<span>${bytes(ledger.total)} of ${bytes(ledger.budget)}</span>` : nothing}`;
  }

  private away() {
    if (store.link !== "lost") return nothing;
    if (store.restarting)
      return html`<div class="notice" role="status" style="margin:12px 24px 0"><span><span class="sign">Restarting:</span> The server is back in a moment.</span></div>`;
    return html`<div class="notice bad" role="alert" style="margin:12px 24px 0">
      <span><span class="sign">Offline:</span> The server does not answer. This page connects again by itself once it runs: ${store.desktop ? "open Hearth" : html`<code>hearth serve</code>`}.</span>
    </div>`;
  }
}

function signedOut() {
  const command = "hearth dashboard";
  return html`<div class="page"><div class="panel empty" role="alert">
    <h1>This page needs a link from Hearth</h1>
    <p>The dashboard can load, delete and change things, so a browser is let in by a one-time link only. Links end with the server that made them.</p>
    <p>In a terminal on this computer:</p>
    <div class="row"><pre class="code">${command}</pre><copy-button .text=${command} what="the command" wide></copy-button></div>
    <button @click=${() => location.reload()}>Try again</button>
  </div></div>`;
}
