// Line icons, 16 px, drawn for this page.

import { svg, html, type TemplateResult } from "lit";

const PATHS = {
  overview: "M2.5 13.5v-5h3v5zm5 0v-11h3v11zm5 0v-8h1v8z",
  models: "M8 2 2.5 5v6L8 14l5.5-3V5zM2.5 5 8 8l5.5-3M8 8v6",
  chat: "M2.5 3.5h11v8h-6L4.5 14v-2.5h-2z",
  cache: "M8 2.5c3 0 5.5.9 5.5 2S11 6.5 8 6.5 2.5 5.6 2.5 4.5 5 2.5 8 2.5zM2.5 4.5v7c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2v-7M2.5 8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2",
  preflight: "M3 8.5 6.5 12 13 4.5",
  connect: "M6 10l4-4M5 7 3.5 8.5a2.8 2.8 0 0 0 4 4L9 11M11 9l1.5-1.5a2.8 2.8 0 0 0-4-4L7 5",
  settings: "M2.5 4.5h7m2 0h2M2.5 11.5h2m2 0h7M10.5 3v3M5.5 10v3",
  logs: "M3 3.5h10M3 6.5h10M3 9.5h7M3 12.5h5",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  stop: "M4.5 4.5h7v7h-7z",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
} as const;

export type IconName = keyof typeof PATHS;

export function icon(name: IconName): TemplateResult {
  return html`<svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.3" stroke-linejoin="round" stroke-linecap="round" aria-hidden="true">${svg`<path d=${PATHS[name]}></path>`}</svg>`;
}

export const flame = html`<svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true">
  <path d="M3 29V14.5L16 4l13 10.5V29h-8v-6a5 5 0 0 0-10 0v6z" fill="currentColor" opacity="0.75"></path>
  <path d="M16 14c.6 2.6 3.4 3.6 3.4 6.8a3.4 3.4 0 0 1-6.8 0c0-1.5.8-2.3 1.4-3.1.3 1 .8 1.5 1.3 1.7-.4-2 0-3.9.7-5.4z" fill="#e8833a"></path>
</svg>`;
