// What all elements of the page share: they render into the page itself, so that one style sheet serves all.

import { LitElement } from "lit";

export class Part extends LitElement {
  protected override createRenderRoot() {
    return this;
  }
}
