// Chat: a place to try the model. Conversations stay in this browser.

import { html, nothing } from "lit";
import { customElement, state } from "lit/decorators.js";
import { sentence, stream } from "../lib/api";
import { newChat, presets, request, saveChats, savePresets, title, chats, type Chat, type Message, type Options, type Preset } from "../lib/chats";
import { count, shortModel, speed, time } from "../lib/format";
import { render as markdown } from "../lib/markdown";
import { Watch, condition, inMemory, store } from "../lib/store";
import { Part } from "../parts/element";
import { icon } from "../parts/icons";
import "../parts/copy-button";
import { question } from "../parts/dialog";

interface Chunk {
  model?: string;
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null }; finish_reason?: string | null }[];
  usage?: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details?: { cached_tokens?: number } } | null;
  timings?: { decode_tps: number; ttft_ms: number };
}

@customElement("page-chat")
export class ChatPage extends Part {
  @state() private list: Chat[] = chats();
  @state() private chat: Chat = this.list[0] ?? newChat();
  @state() private presets: Preset[] = presets();
  @state() private running: AbortController | undefined;
  @state() private editing: number | undefined;
  @state() private pane: "" | "talks" | "options" = "";
  @state() private deleting: Chat | undefined;
  @state() private kept = true;
  @state() private announced = "";
  private frame = 0;
  /** The end of the talk is in view, and stays there while text comes. */
  private following = true;

  constructor() {
    super();
    new Watch(this, ["health", "link", "models"]);
  }

  override connectedCallback() {
    super.connectedCallback();
    void this.updateComplete.then(() => this.follow());
  }

  private save() {
    this.chat.at = Date.now();
    this.list = [this.chat, ...this.list.filter((c) => c.id !== this.chat.id)].filter((c) => c.messages.length > 0);
    this.kept = saveChats(this.list);
  }

  private pick(chat: Chat) {
    this.running?.abort();
    this.chat = chat;
    this.editing = undefined;
    this.pane = "";
    this.following = true;
    void this.updateComplete.then(() => this.follow());
  }

  private readonly submit = (event: Event) => {
    event.preventDefault();
    const area = this.querySelector<HTMLTextAreaElement>("#message")!;
    const text = area.value.trim();
    if (text === "" || this.running) return;
    area.value = "";
    if (this.chat.messages.length === 0) this.chat.title = title(text);
    this.chat.messages.push({ role: "user", text });
    void this.answer();
  };

  private readonly key = (event: KeyboardEvent) => {
    // Enter sends; with shift, or while an input method composes, it does not.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    this.submit(event);
  };

  /** Lets the model answer the conversation as it stands. */
  private async answer() {
    const chat = this.chat;
    const answer: Message = { role: "assistant", text: "" };
    const running = new AbortController();
    this.running = running;
    this.following = true;
    chat.messages.push(answer);
    this.announced = "The answer is coming.";
    const begun = performance.now();
    let pieces = 0;
    let first = 0;
    this.redraw();
    try {
      const body = { ...request({ ...chat, messages: chat.messages.slice(0, -1) }) };
      for await (const payload of stream("/v1/chat/completions", body, running.signal)) {
        const { choices, usage, timings, model } = payload as Chunk;
        if (model) answer.model = model;
        const choice = choices?.[0];
        const text = choice?.delta?.content;
        const thought = choice?.delta?.reasoning_content;
        if (thought) answer.thinking = (answer.thinking ?? "") + thought;
        if (text || thought) {
          pieces += 1;
          first ||= performance.now();
          answer.text += text ?? "";
          const seconds = (performance.now() - first) / 1000;
          if (pieces > 2 && seconds > 0.2) answer.speed = (pieces - 1) / seconds;
        }
        if (choice?.finish_reason) answer.end = choice.finish_reason === "length" ? "length" : "stop";
        if (timings) {
          answer.speed = timings.decode_tps;
          answer.first_s = timings.ttft_ms / 1000;
        }
        if (usage) answer.usage = { prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens ?? 0, answer: usage.completion_tokens };
        this.redraw();
      }
      answer.end ??= "error";
      if (answer.end === "error") answer.error = "The answer broke off before its end.";
    } catch (error) {
      answer.end = running.signal.aborted ? "stopped" : "error";
      if (answer.end === "error") answer.error = sentence(error);
    }
    answer.first_s ??= first > 0 ? (first - begun) / 1000 : undefined;
    if (this.running === running) this.running = undefined;
    this.announced = answer.end === "error" ? "The answer failed." : "The answer is complete.";
    if (this.chat === chat) this.save();
    else saveChats(this.list);
    this.redraw();
  }

  /** Draws at most once a frame, however fast text comes. */
  private redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.requestUpdate();
      void this.updateComplete.then(() => this.follow());
    });
  }

  private follow() {
    const box = this.querySelector(".messages");
    if (box && this.following) box.scrollTop = box.scrollHeight;
  }

  private readonly scrolled = (event: Event) => {
    const box = event.target as HTMLElement;
    this.following = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  };

  private regenerate(index: number) {
    if (this.running) return;
    this.chat.messages.length = index;
    void this.answer();
  }

  private edited(event: Event, index: number) {
    event.preventDefault();
    const text = this.querySelector<HTMLTextAreaElement>("#edit")!.value.trim();
    if (text === "" || this.running) return;
    this.chat.messages.length = index;
    if (index === 0) this.chat.title = title(text);
    this.chat.messages.push({ role: "user", text });
    this.editing = undefined;
    void this.answer();
  }

  private option(name: keyof Options, text: string) {
    const options = this.chat.options as unknown as Record<string, unknown>;
    if (name === "system") options[name] = text;
    else if (name === "model") options[name] = text || undefined;
    else if (text.trim() === "" || Number.isNaN(Number(text))) delete options[name];
    else options[name] = Number(text);
    if (this.chat.messages.length > 0) this.save();
    this.requestUpdate();
  }

  override render() {
    const { chat } = this;
    const state = condition();
    const able = (store.health?.status === "ready" || inMemory().length > 0) && store.link === "open";
    const toggle = (pane: "talks" | "options") => () => (this.pane = this.pane === pane ? "" : pane);
    return html`<div class="chat">
      <aside class=${this.pane === "talks" ? "open" : ""} aria-label="Conversations">${this.talks()}</aside>
      <section class="talk" aria-label="Conversation">
        <header>
          <button class="plain icon only-narrow" aria-label="Conversations" aria-expanded=${this.pane === "talks"} @click=${toggle("talks")}>${icon("menu")}</button>
          <h1 class="cut grow" style="font-size:13px;line-height:20px">${chat.title}</h1>
          <span class="row small quiet"><span class="dot ${state.tone}"></span><span class="hide-narrow cut">${state.model ? shortModel(state.model) : state.word}</span></span>
          <button class="plain icon only-narrow" aria-label="Options" aria-expanded=${this.pane === "options"} @click=${toggle("options")}>${icon("settings")}</button>
        </header>
        <div class="messages" @scroll=${this.scrolled} tabindex="0" role="region" aria-label="Messages">
          ${chat.messages.length === 0 ? this.empty(able) : html`<ol>${chat.messages.map((m, i) => this.message(m, i))}</ol>`}
        </div>
        <div class="composer">
          <form @submit=${this.submit}>
            <textarea id="message" rows="1" aria-label="Message" placeholder=${able ? "Message" : state.detail || "Start a model first"} @keydown=${this.key}></textarea>
            ${this.running
              ? html`<button type="button" @click=${() => this.running?.abort()}>${icon("stop")}Stop</button>`
              : html`<button class="primary" type="submit" ?disabled=${!able}>Send</button>`}
          </form>
          ${this.kept ? nothing : html`<p class="small warn" style="max-width:760px;margin:4px auto 0">This browser keeps no conversations: its storage is full or turned off.</p>`}
        </div>
        <p class="hidden-text" role="status">${this.announced}</p>
      </section>
      <aside class="options ${this.pane === "options" ? "open" : ""}" aria-label="Options">${this.options()}</aside>
      ${this.deleting ? question({
        heading: "Delete this conversation",
        text: `“${this.deleting.title}” goes, with its ${this.deleting.messages.length} messages. It is only in this browser.`,
        verb: "Delete",
        yes: () => this.discard(this.deleting!),
        no: () => (this.deleting = undefined),
      }) : nothing}
    </div>`;
  }

  private empty(able: boolean) {
    if (!able) {
      const state = condition();
      return html`<div class="empty"><h2>${state.word}</h2><p>${state.detail}</p>${store.health?.status === "empty" ? html`<a class="button" href="#/models">Choose a model</a>` : nothing}</div>`;
    }
    return html`<div class="empty" style="max-width:760px;margin:0 auto"><h2>Ask the model something</h2><p>Answers are made on this computer. Enter sends, shift and Enter begins a new line.</p></div>`;
  }

  private talks() {
    return html`<button @click=${() => this.pick(newChat(this.chat.options))}>New conversation</button>
      <ul class="talks">${this.list.map(
        (c) => html`<li><button class="pick" aria-current=${c.id === this.chat.id ? "true" : nothing} title=${c.title} @click=${() => this.pick(c)}><span>${c.title}</span></button>
          <button class="plain icon" aria-label=${`Delete ${c.title}`} @click=${() => (this.deleting = c)}>${icon("close")}</button></li>`,
      )}</ul>`;
  }

  private discard(chat: Chat) {
    this.deleting = undefined;
    this.list = this.list.filter((c) => c.id !== chat.id);
    saveChats(this.list);
    if (chat.id === this.chat.id) this.pick(this.list[0] ?? newChat(chat.options));
  }

  private message(m: Message, i: number) {
    const last = i === this.chat.messages.length - 1;
    const live = last && this.running !== undefined && m.role === "assistant";
    if (m.role === "user") {
      if (this.editing === i)
        return html`<li class="message user"><form class="stack" @submit=${(e: Event) => this.edited(e, i)}>
          <textarea id="edit" rows="4" aria-label="Edit the message" .value=${m.text}></textarea>
          <div class="row"><button class="primary" type="submit">Send</button><button type="button" @click=${() => (this.editing = undefined)}>Cancel</button>
            <span class="small quiet">Everything after it is answered anew.</span></div></form></li>`;
      return html`<li class="message user"><div class="who">You</div><div class="text"><p>${m.text}</p></div>
        <div class="after"><button class="plain" ?disabled=${!!this.running} @click=${() => (this.editing = i)} aria-label="Edit this message">Edit</button></div></li>`;
    }
    return html`<li class="message" data-test="answer"><div class="who">${shortModel(m.model ?? store.stats?.model?.id ?? "Model")}</div>
      ${m.thinking ? html`<details class="thinking" ?open=${live && m.text === ""}><summary>Thinking</summary><p>${m.thinking}</p></details>` : nothing}
      <div class="text ${live ? "caret" : ""}">${m.text === "" && live && !m.thinking ? html`<p class="quiet">Reading the prompt</p>` : markdown(m.text)}</div>
      ${m.error ? html`<div class="notice bad" role="alert" style="margin-top:8px"><span class="grow break"><span class="sign">Error:</span> ${m.error}</span><copy-button .text=${m.error} what="details" wide></copy-button></div>` : nothing}
      <div class="after">${this.figures(m, live)}
        ${live ? nothing : html`<copy-button .text=${m.text} what="the answer"></copy-button>
          <button class="plain" ?disabled=${!!this.running} @click=${() => this.regenerate(i)}>Regenerate</button>`}</div></li>`;
  }

  private figures(m: Message, live: boolean) {
    const told = [];
    if (m.end === "length") told.push("ended at the token limit");
    if (m.end === "stopped") told.push("stopped");
    if (m.usage) {
      told.push(`${count(m.usage.answer)} tokens`);
      told.push(m.usage.cached > 0 ? `prompt ${count(m.usage.prompt)}, ${count(m.usage.cached)} from cache` : `prompt ${count(m.usage.prompt)}`);
    }
    if (m.speed) told.push(speed(m.speed));
    if (m.first_s !== undefined && !live) told.push(`first token after ${time(m.first_s)}`);
    return html`<span data-test="figures">${told.join(" · ")}</span>`;
  }

  private options() {
    const o = this.chat.options;
    const number = (name: "temperature" | "top_p" | "max_tokens" | "seed", label: string, least: number, most: number, step: string) =>
      html`<label class="field"><span>${label}</span><input type="number" min=${least} max=${most} step=${step} placeholder="the model's own"
        .value=${o[name] === undefined ? "" : String(o[name])} @change=${(e: Event) => this.option(name, (e.target as HTMLInputElement).value)} /></label>`;
    return html`<div class="stack">
      <h2>Options</h2>
      ${this.models()}
      <label class="field"><span>Preset</span><select @change=${this.usePreset}><option value="">None</option>${this.presets.map((p) => html`<option value=${p.name}>${p.name}</option>`)}</select></label>
      <label class="field"><span>System prompt</span><textarea rows="5" .value=${o.system} @change=${(e: Event) => this.option("system", (e.target as HTMLTextAreaElement).value)}></textarea></label>
      ${number("temperature", "Temperature, 0 to 2", 0, 2, "0.1")} ${number("top_p", "Top-p, above 0 to 1", 0.01, 1, "0.01")}
      ${number("max_tokens", "Most tokens in an answer", 1, 1_000_000, "1")} ${number("seed", "Seed", 0, 4_294_967_295, "1")}
      <form class="row" @submit=${this.keepPreset}><input id="preset-name" type="text" maxlength="40" placeholder="Name" aria-label="Name of the preset" /><button type="submit">Save preset</button></form>
      ${this.presets.length > 0 ? html`<button class="link" style="justify-self:start" @click=${this.dropPreset}>Delete the chosen preset</button>` : nothing}
    </div>`;
  }

  /** Which of several models answers. */
  private models() {
    const chosen = this.chat.options.model ?? "";
    const ids = inMemory().map((m) => m.id);
    if (ids.length < 2 && chosen === "") return nothing;
    const all = chosen === "" || ids.includes(chosen) ? ids : [chosen, ...ids];
    return html`<label class="field"><span>Model</span><select @change=${(e: Event) => this.option("model", (e.target as HTMLSelectElement).value)}>
      <option value="" ?selected=${chosen === ""}>The one used last</option>${all.map((id) => html`<option value=${id} ?selected=${id === chosen}>${shortModel(id)}</option>`)}</select></label>`;
  }

  private readonly usePreset = (event: Event) => {
    const chosen = this.presets.find((p) => p.name === (event.target as HTMLSelectElement).value);
    if (!chosen) return;
    this.chat.options = { ...chosen.options };
    this.requestUpdate();
  };

  private readonly keepPreset = (event: Event) => {
    event.preventDefault();
    const input = this.querySelector<HTMLInputElement>("#preset-name")!;
    const name = input.value.trim();
    if (name === "") return;
    this.presets = [...this.presets.filter((p) => p.name !== name), { name, options: { ...this.chat.options } }];
    savePresets(this.presets);
    input.value = "";
  };

  private readonly dropPreset = () => {
    const name = this.querySelector<HTMLSelectElement>(".options select")?.value;
    this.presets = this.presets.filter((p) => p.name !== name);
    savePresets(this.presets);
  };
}
