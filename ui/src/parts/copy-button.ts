// A button that copies a text and says so.

import { html } from "lit";
import { customElement, property, state } from "lit/decorators.js";
import { icon } from "./icons";
import { Part } from "./element";

/** Copies a text, also where the clipboard's own interface is missing (a page over plain HTTP on the network). */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    const open = document.querySelector("dialog[open]") ?? document.body;
    open.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

@customElement("copy-button")
export class CopyButton extends Part {
  @property() text = "";
  /** What is copied, for the button's name. */
  @property() what = "";
  /** Show the word beside the icon. */
  @property({ type: Boolean }) wide = false;
  @state() private told = "";

  private async take() {
    this.told = (await copy(this.text)) ? "Copied" : "Could not copy";
    window.setTimeout(() => (this.told = ""), 1500);
  }

  override render() {
    const word = this.told || "Copy";
    return html`<button class=${this.wide ? "" : "plain"} @click=${() => this.take()} aria-label=${`Copy ${this.what}`} title=${`Copy ${this.what}`}>
        ${icon("copy")}${this.wide || this.told ? html`<span>${word}</span>` : null}
      </button><span class="hidden-text" role="status">${this.told}</span>`;
  }
}
