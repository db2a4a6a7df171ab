// The page: the dashboard at `/`, the menu bar's popover at `/popover`.

import "./style.css";
import { store } from "./lib/store";

declare global {
  interface Window {
    /** Events received since the page was opened; tests read it. */
    hearthEvents: () => number;
  }
}

window.hearthEvents = () => store.events;
store.connect();

/** Not awaited at the top level: in WebKit that import then never ends, as both modules wait for the store's. */
async function show() {
  if (location.pathname === "/popover") {
    await import("./popover");
    document.body.append(document.createElement("hearth-popover"));
  } else {
    await import("./app");
    document.body.append(document.createElement("hearth-app"));
  }
}

void show();
