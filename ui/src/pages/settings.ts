// Settings: switches with what they open, folders, and where each value comes from.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { live } from "lit/directives/live.js";
import { post, put } from "../lib/api";
import { Watch, store } from "../lib/store";
import type { DesktopStatus, Origin, Setting } from "../types/hearth";
import { Part } from "../parts/element";
import "../parts/copy-button";
import { failure } from "../parts/notice";

const FROM: Record<Origin, string> = {
  default: "the default", settings: "settings.toml", environment: "an environment variable", flag: "the command line", api: "set while running",
};

/** Settings that only a start takes, as the page calls them. */
const NAMES: Record<string, string> = {
  lan: "use from other machines", api_key_required: "asking for an API key", model_folders: "model folders", reserve: "memory reserve",
};

@customElement("page-settings")
export class SettingsPage extends Part {
  @state() private error: { name: string; error: unknown } | undefined;
  @state() private busy = "";
  @state() private showKey = false;

  constructor() {
    super();
    new Watch(this, ["settings", "stats", "link"]);
  }

  private async set(name: string, value: unknown) {
    this.busy = name;
    this.error = undefined;
    try {
      const { settings } = await put<{ settings: Record<string, Setting> }>("/api/hearth/settings", { [name]: value });
      store.settings = settings;
    } catch (error) {
      this.error = { name, error };
    }
    this.busy = "";
    this.requestUpdate();
  }

  override render() {
    const s = store.settings;
    const key = s["api_key"]?.value;
    if (Object.keys(s).length === 0) return html`<div class="page"><header><h1>Settings</h1></header><p class="quiet">Reading the settings.</p></div>`;
    return html`<div class="page">
      <header><h1>Settings</h1></header>
      ${this.pending()}
      <section class="panel flush" aria-labelledby="network-h"><header><h2 id="network-h">Network</h2></header><ul class="list">
        ${this.toggle("lan", "Let other machines on the network use this server", "Opens the server to every machine that can reach this one: it then listens on all addresses, and every request needs the API key. Traffic is not encrypted.")}
        ${this.toggle("api_key_required", "Ask for an API key", "Off: any key, or none, is accepted from programs on this computer. On: requests without the key get a 401.")}
        ${typeof key === "string" && key !== "" ? html`<li class="row wrap"><span class="grow"><span>API key</span><br /><code class="break">${this.showKey ? key : "•".repeat(12)}</code></span>
          <button @click=${() => (this.showKey = !this.showKey)}>${this.showKey ? "Hide" : "Show"}</button><copy-button .text=${key} what="the API key" wide></copy-button></li>` : nothing}
      </ul></section>
      <section class="panel flush" aria-labelledby="start-h"><header><h2 id="start-h">Start</h2></header><ul class="list">
        ${this.toggle("auto_load", "Load the last model at the start", "After a crash nothing is loaded by itself, whatever this says.")}
        ${store.desktop?.login_item ? this.toggle("launch_at_login", "Launch at login", "Hearth opens in the menu bar when you log in.") : nothing}
        ${this.command()}
      </ul></section>
      <section class="panel flush" aria-labelledby="folders-h"><header><h2 id="folders-h">Model folders</h2>${this.origin("model_folders")}</header>${this.folders()}</section>
      <section class="panel flush" aria-labelledby="privacy-h"><header><h2 id="privacy-h">Inspector</h2></header><ul class="list">
        ${this.toggle("inspector", "Keep the last 50 requests for inspection", "Prompts stay in this server's memory and never reach a disk. Turning it off forgets them at once.")}
      </ul></section>
      <section class="panel" aria-labelledby="values-h"><header><h2 id="values-h">Where values come from</h2></header>
        <div class="scroll"><table><thead><tr><th>Setting</th><th>Value</th><th>From</th></tr></thead><tbody>
          ${Object.entries(s).filter(([name]) => name !== "api_key").map(([name, v]) => html`<tr><td><code>${name}</code></td><td class="break">${v.value === null ? html`<span class="quiet">as the machine and model allow</span>` : String(v.value)}</td><td>${FROM[v.from]}</td></tr>`)}
        </tbody></table></div>
        <p class="small quiet" style="margin-top:8px">A flag goes before a variable, and both before settings.toml. Hearth ${store.version}.</p></section>
    </div>`;
  }

  /** What was changed and does not hold yet, with the way to make it hold. */
  private pending() {
    const names = Object.entries(store.settings).filter(([name, s]) => s.pending && name in NAMES).map(([name]) => NAMES[name]!);
    if (names.length === 0) return nothing;
    const loses = "Running answers end; the prompt cache is kept, and the model that was used last is loaded again.";
    return html`<div class="notice warn" role="status"><span class="grow"><span class="sign">Not in effect yet:</span> ${names.join(", ")}. ${store.desktop
        ? loses : html`End this server (ctrl-c, or <code>hearth stop</code>), then start it again with <code>hearth serve</code>.`}</span>
      ${store.desktop ? html`<button ?disabled=${this.busy !== "" || store.restarting} @click=${() => void this.restart()}>${store.restarting ? "Restarting" : "Restart now"}</button>` : nothing}
      ${this.error?.name === "restart" ? failure(this.error.error) : nothing}</div>`;
  }

  private async restart() {
    this.error = undefined;
    store.restarting = true;
    this.requestUpdate();
    try {
      await post("/api/hearth/desktop/restart");
    } catch (error) {
      store.restarting = false;
      this.error = { name: "restart", error };
    }
  }

  /** The `hearth` command of the app; a server from a terminal needs none. */
  private command() {
    const command = store.desktop?.command;
    if (!command) return nothing;
    return html`<li class="stack tight"><div class="row"><span class="grow">The <code>hearth</code> command</span>
        ${command.installed ? html`<span class="tag good">Installed</span>` : html`<button ?disabled=${this.busy !== ""} @click=${() => void this.install()}>${this.busy === "command" ? "Installing" : "Install"}</button>`}</div>
      <p class="small quiet">Serves, chats and checks from a terminal. ${command.installed ? nothing : html`A link is made at <code class="break">${command.link}</code>; the system may ask for a password.`}</p>
      ${this.error?.name === "command" ? failure(this.error.error) : nothing}</li>`;
  }

  private async install() {
    this.busy = "command";
    this.error = undefined;
    try {
      store.desktop = await post<DesktopStatus>("/api/hearth/desktop/command");
    } catch (error) {
      this.error = { name: "command", error };
    }
    this.busy = "";
  }

  private toggle(name: string, label: string, what: string) {
    const setting = store.settings[name];
    const id = `set-${name}`;
    const fixed = setting?.from === "flag" || setting?.from === "environment";
    return html`<li class="stack tight"><div class="row"><label class="grow" for=${id}>${label}</label>${this.origin(name)}
        <input class="switch" type="checkbox" role="switch" id=${id} .checked=${live(setting?.value === true)} ?disabled=${this.busy !== "" || fixed} aria-describedby=${`${id}-what`}
          @change=${(e: Event) => void this.set(name, (e.target as HTMLInputElement).checked)} /></div>
      <p class="small quiet" id=${`${id}-what`}>${what}${setting?.at_next_start ? " Takes effect after a restart." : ""}</p>
      ${this.error?.name === name ? failure(this.error.error) : nothing}</li>`;
  }

  private origin(name: string) {
    const from = store.settings[name]?.from;
    return from && from !== "default" && from !== "settings" ? html`<span class="tag">${FROM[from]}</span>` : nothing;
  }

  private folders() {
    const value = store.settings["model_folders"]?.value;
    const list = Array.isArray(value) ? value.map(String) : [];
    return html`<ul class="list">
      ${list.map((f) => html`<li class="row"><code class="grow break">${f}</code><button class="danger" ?disabled=${this.busy !== ""} @click=${() => void this.set("model_folders", list.filter((x) => x !== f))} aria-label=${`Remove ${f}`}>Remove</button></li>`)}
      <li class="stack tight"><form class="row" @submit=${(e: Event) => {
          e.preventDefault();
          const input = this.querySelector<HTMLInputElement>("#new-folder")!;
          const folder = input.value.trim();
          if (folder !== "") void this.set("model_folders", [...list.filter((x) => x !== folder), folder]).then(() => { if (!this.error) input.value = ""; });
        }}><input id="new-folder" type="text" placeholder="/Volumes/Models" aria-label="Folder to look in for models" /><button type="submit" ?disabled=${this.busy !== ""}>Add</button></form>
        <p class="small quiet">Besides Hearth's own folder and the Hugging Face cache. Nothing in added folders is ever deleted. Takes effect after a restart.</p>
        ${this.error?.name === "model_folders" ? failure(this.error.error) : nothing}</li></ul>`;
  }
}

