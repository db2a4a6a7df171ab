// The page: the dashboard at `/`, the menu bar's popover at `/popover`.

import "./style.css";
// Not imported when they are needed: WebKit does not always end such an import, and the app's window stays empty.
import "./app";
import "./popover";
import { store } from "./lib/store";

declare global {
  interface Window {
    /** Events received since the page was opened; tests read it. */
    hearthEvents: () => number;
  }
}

window.hearthEvents = () => store.events;
store.connect();

document.body.append(document.createElement(location.pathname === "/popover" ? "hearth-popover" : "hearth-app"));
