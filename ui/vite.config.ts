import { defineConfig } from "vite";

// The server's own address while the page is served by Vite: `HEARTH=http://127.0.0.1:8080 npm run dev`.
const server = process.env.HEARTH ?? "http://127.0.0.1:8080";

export default defineConfig({
  build: {
    target: "es2022",
    outDir: "dist",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    // A page and a popover share everything; one file loads fastest from the same machine.
    modulePreload: false,
    chunkSizeWarningLimit: 400,
  },
  server: {
    proxy: Object.fromEntries(["/api", "/v1", "/health", "/stats"].map((path) => [path, { target: server }])),
  },
});
