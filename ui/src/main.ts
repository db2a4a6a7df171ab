// The page: the dashboard at `/`, the menu bar's popover at `/popover`.

import "./style.css";
import { store } from "./lib/store";

declare global {
  interface Window {
    /** Events received since the page was opened; tests read it. */
    hearthEvents: () => number;
  }
}

// Where the locale is `C`, WebKit gives that as the language, and the chart's library fails on it.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}

window.hearthEvents = () => store.events;
store.connect();

/** Puts the page where its name stood while it was read. */
function show(page: string) {
  document.querySelector(".opening")?.remove();
  document.body.append(document.createElement(page));
}

if (location.pathname === "/popover") {
  await import("./popover");
  show("hearth-popover");
} else {
  await import("./app");
  show("hearth-app");
}
