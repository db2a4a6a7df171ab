// Questions before something is lost, and panels over the page. The browser's own dialog keeps the focus inside.

import { html, type TemplateResult } from "lit";
import { customElement, property } from "lit/decorators.js";
import { Part } from "./element";

/** A panel that opens when it is there; it tells `dismiss` when the user closes it. */
@customElement("modal-panel")
export class ModalPanel extends Part {
  @property() heading = "";
  @property({ type: Boolean }) wide = false;
  @property({ attribute: false }) body: TemplateResult | undefined;
  @property({ attribute: false }) actions: TemplateResult | undefined;

  protected override firstUpdated() {
    this.querySelector("dialog")?.showModal();
  }

  private dismiss() {
    this.dispatchEvent(new CustomEvent("dismiss"));
  }

  override render() {
    return html`<dialog class=${this.wide ? "wide" : ""} aria-labelledby="modal-heading" @close=${() => this.dismiss()}>
      <div>
        <h2 id="modal-heading">${this.heading}</h2>
        ${this.body}
        <footer>${this.actions}<button @click=${() => this.querySelector("dialog")?.close()}>${this.actions ? "Cancel" : "Close"}</button></footer>
      </div>
    </dialog>`;
  }
}

/** Asks before something goes: says what, and what it frees. */
export function question(ask: { heading: string; text: TemplateResult | string; verb: string; busy?: boolean; yes: () => void; no: () => void }) {
  return html`<modal-panel
    .heading=${ask.heading}
    .body=${html`<p>${ask.text}</p>`}
    .actions=${html`<button class="danger" ?disabled=${ask.busy ?? false} @click=${ask.yes}>${ask.verb}</button>`}
    @dismiss=${ask.no}
  ></modal-panel>`;
}
