// What the browser tests share: a server that dies with its test, a browser, and a page whose complaints are counted.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cp, mkdtemp, mkdir, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const need = createRequire(new URL("../../ui/package.json", import.meta.url));
const { chromium } = need("playwright-core");
const axe = await readFile(need.resolve("axe-core/axe.min.js"), "utf8");

/** Where pictures of the pages go; they are looked at by people. */
const SHOTS = process.env.HEARTH_SHOTS;
const PATIENCE = 60_000;

/** A program of this checkout, named by a variable. */
function program(name) {
  const path = process.env[name];
  assert.ok(path, `${name} is not set: \`cargo xtask test --only dashboard\` sets it`);
  return path;
}

/** Starts a server; resolves when a line of its output begins with `ready`. */
async function start(command, args, env, ready) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const lines = [];
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${command} did not say "${ready}": ${lines.join(" / ")}`)), PATIENCE);
    createInterface({ input: child.stdout }).on("line", (line) => {
      lines.push(line);
      if (line.startsWith(ready)) {
        clearTimeout(timer);
        resolve();
      }
    });
    ended.then((code) => reject(new Error(`${command} ended with ${code}: ${lines.join(" / ")}`)));
  });
  const told = (start) => lines.find((line) => line.startsWith(start))?.slice(start.length);
  const stop = async () => {
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 10_000);
    await ended;
    clearTimeout(timer);
  };
  /** As a crash does. */
  const kill = async () => {
    child.kill("SIGKILL");
    await ended;
  };
  return { url: told("listening on "), told, stop, kill, pid: child.pid };
}

/** The server with a pretended model. */
export async function scripted() {
  const home = await mkdtemp(join(tmpdir(), "hearth-ui-"));
  const server = await start(program("HEARTH_SCRIPTED"), [], { HEARTH_HOME: home }, "admin token ");
  const token = server.told("admin token ");
  const stop = async () => {
    await server.stop();
    await rm(home, { recursive: true, force: true });
  };
  return { ...server, token, stop };
}

/** `hearth serve` with the starter model, or with none; `models` are folders by their names in its home. */
export async function real({ model = true, models = {}, args = [], more = {} } = {}) {
  const dir = await mkdtemp(join(tmpdir(), "hearth-ui-"));
  for (const name of ["home", "user", "hub"]) await mkdir(join(dir, name));
  for (const [name, folder] of Object.entries(models)) await cp(folder, join(dir, "home/models", name), { recursive: true });
  const env = { HEARTH_HOME: join(dir, "home"), HOME: join(dir, "user"), HF_HUB_CACHE: join(dir, "hub"), ...more };
  const begin = async (command, ready) => {
    const server = await start(program("HEARTH_BIN"), [...command, "--port", "0", ...args], env, ready);
    const record = JSON.parse(await readFile(join(dir, "home", "server.json"), "utf8"));
    return { ...server, token: record.token };
  };
  let server = await begin(["serve", ...(model ? [program("HEARTH_STARTER")] : [])], model ? "ready: " : "no model is loaded");
  /** Ends it as a crash does, and starts the next one. */
  const crash = async () => {
    await server.kill();
    server = await begin(["serve"], "no model is loaded: ");
    return server;
  };
  const stop = async () => {
    await server.stop();
    await rm(dir, { recursive: true, force: true });
  };
  return { ...server, env, crash, stop };
}

/** A model hub on this machine, with tiny models that come slowly enough to be watched. */
export async function hub(args = ["--rate", "100000"]) {
  const server = await start(program("HEARTH_HUB"), args, {}, "http://");
  return { ...server, url: `http://${server.told("http://")}` };
}

/** Waits until something is so. */
export async function until(what, so) {
  const end = Date.now() + PATIENCE;
  while (!(await so())) {
    assert.ok(Date.now() < end, `waited ${PATIENCE / 1000} s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** A link that lets a browser in. */
export async function ticket(server) {
  const reply = await fetch(`${server.url}/api/hearth/session/ticket`, { method: "POST", headers: { authorization: `Bearer ${server.token}` } });
  assert.equal(reply.status, 200);
  return server.url + (await reply.json()).path;
}

export async function browser() {
  return chromium.launch({
    executablePath: process.env.HEARTH_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/** A page that is let in, and fails the test when it complains. */
export async function open(server, chrome, options = {}) {
  const context = await chrome.newContext({
    viewport: { width: options.width ?? 1280, height: options.height ?? 900 },
    colorScheme: options.dark ? "dark" : "light",
    reducedMotion: "reduce",
    permissions: ["clipboard-read", "clipboard-write"],
  });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const complaints = [];
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  if (options.signedIn !== false) await page.goto(await ticket(server));
  if (options.path) await page.goto(server.url + options.path);
  return Object.assign(page, { complaints, finish: () => context.close() });
}

/** Shows a page of the dashboard. */
export async function show(page, name) {
  await page.evaluate((id) => (location.hash = `#/${id}`), name);
  await page.waitForFunction((id) => document.querySelector(`nav a[href="#/${id}"]`)?.getAttribute("aria-current") === "page", name);
}

/** Fails when the page has what a screen reader or a keyboard stumbles over. */
export async function accessible(page, where) {
  await page.evaluate(axe);
  const result = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = result.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
  assert.deepEqual(serious.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).slice(0, 3).join(" ")}`), [], where);
}

/** Takes a picture where somebody wants them. */
export async function picture(page, name) {
  if (!SHOTS) return;
  await mkdir(SHOTS, { recursive: true });
  await page.screenshot({ path: join(SHOTS, `${name}.png`) });
}

/** Waits until the answer that is coming is complete. */
export async function answered(page) {
  await page.getByText("The answer is complete.").waitFor({ state: "attached", timeout: PATIENCE });
}

/** Sends a message in the chat and waits for its answer. */
export async function ask(page, text) {
  await page.getByRole("textbox", { name: "Message", exact: true }).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
  await answered(page);
}
