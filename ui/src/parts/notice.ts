// Errors stay where they happened, with their details to copy.

import { html, nothing } from "lit";
import { sentence } from "../lib/api";
import "./copy-button";

const SIGNS = { bad: "Error", warn: "Warning", good: "Done", quiet: "Note" } as const;

/** A line in a state's colour, with its word. */
export function notice(tone: keyof typeof SIGNS, text: unknown, sign: string = SIGNS[tone]) {
  return html`<div class="notice ${tone}" role=${tone === "bad" ? "alert" : "status"}>
    <span class="grow break"><span class="sign">${sign}:</span> ${text}</span>
  </div>`;
}

/** What went wrong, if something did. */
export function failure(error: unknown, retry?: () => void) {
  if (error === undefined || error === null) return nothing;
  const text = sentence(error);
  return html`<div class="notice bad" role="alert">
    <span class="grow break"><span class="sign">Error:</span> ${text}</span>
    ${retry ? html`<button @click=${retry}>Try again</button>` : nothing}
    <copy-button .text=${text} what="details" wide></copy-button>
  </div>`;
}
