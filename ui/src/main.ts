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

if (location.pathname === "/popover") {
  await import("./popover");
  document.body.append(document.createElement("hearth-popover"));
} else {
  await import("./app");
  document.body.append(document.createElement("hearth-app"));
}
