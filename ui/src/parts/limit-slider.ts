// One limit as a slider: a label, the value, and what holds now.

import { html } from "lit";
import { customElement, property } from "lit/decorators.js";
import { Part } from "./element";

@customElement("limit-slider")
export class LimitSlider extends Part {
  @property() name = "";
  @property() label = "";
  /** The points that the thumb stops at, ascending. */
  @property({ attribute: false }) stops: readonly number[] = [];
  @property({ type: Number }) value = 0;
  /** What the slider was before the user moved it. */
  @property({ type: Number }) applied = 0;
  @property({ attribute: false }) format: (n: number) => string = String;
  @property() note = "";
  @property({ type: Boolean }) disabled = false;

  private index(): number {
    let best = 0;
    this.stops.forEach((stop, i) => {
      if (Math.abs(stop - this.value) < Math.abs((this.stops[best] ?? 0) - this.value)) best = i;
    });
    return best;
  }

  private readonly moved = (event: Event) => {
    const value = this.stops[Number((event.target as HTMLInputElement).value)];
    if (value === undefined) return;
    this.value = value;
    this.dispatchEvent(new CustomEvent("moved", { detail: value }));
  };

  override render() {
    const changed = this.value !== this.applied;
    const id = `slider-${this.name}`;
    const ends = [this.stops[0] ?? 0, this.stops.at(-1) ?? 0].map((n) => this.format(n));
    return html`<div class="slider">
      <label for=${id}>${this.label}</label>
      <output for=${id}>${changed ? html`<span class="quiet">${this.format(this.applied)} → </span>` : ""}<strong>${this.format(this.value)}</strong></output>
      <input id=${id} type="range" min="0" max=${Math.max(0, this.stops.length - 1)} step="1" .value=${String(this.index())}
        aria-valuetext=${this.format(this.value)} ?disabled=${this.disabled} @input=${this.moved} />
      <div class="ends"><span>${ends[0]}</span><span>${this.note}</span><span>${ends[1]}</span></div>
    </div>`;
  }
}
