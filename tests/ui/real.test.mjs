// The dashboard in a browser, on the real server with the starter model: from the one-time link to a cache hit.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { answered, ask, browser, hub, open, picture, real, show, until } from "./support.mjs";

let chrome;

before(async () => {
  chrome = await browser();
});

after(async () => {
  await chrome?.close();
});

test("chat, limits, cache and requests on a real model", async () => {
  const server = await real({ args: ["--context", "2048"] });
  try {
    const page = await open(server, chrome);
    await page.getByText("Ready").first().waitFor();
    await picture(page, "real-overview");

    await show(page, "chat");
    await page.getByRole("textbox", { name: "System prompt" }).fill("You answer in one short sentence. ".repeat(40));
    await page.getByLabel("Most tokens in an answer").fill("40");
    await page.getByLabel("Temperature, 0 to 2").fill("0");
    await page.getByLabel("Seed").fill("1");
    await ask(page, "Why is the sky blue?");
    const figures = page.locator("[data-test=figures]");
    assert.match(await figures.last().innerText(), /tokens · prompt \d+/);
    const text = await page.locator("[data-test=answer] .text").last().innerText();
    assert.ok(text.trim().length > 5, text);
    await ask(page, "And at night?");
    // The second turn begins with what the first one computed.
    assert.match(await figures.last().innerText(), /\d+ from cache/);
    await picture(page, "real-chat");

    await show(page, "cache");
    await page.waitForFunction(() => Number(document.querySelector("[data-test=tokens-saved]")?.textContent?.replace(/\D/g, "") ?? 0) > 100);
    await picture(page, "real-cache");
    await page.getByRole("button", { name: "Flush to disk" }).click();
    await page.getByText("on disk,", { exact: false }).waitFor();

    await show(page, "overview");
    const told = page.locator("[data-test=consequence]");
    await page.getByRole("slider", { name: "Memory budget" }).focus();
    await page.keyboard.press("Home");
    await told.getByText(/would not fit|tokens of context/).waitFor();
    await picture(page, "real-sliders");
    await page.getByRole("button", { name: "Reset" }).click();
    await page.getByRole("slider", { name: "Requests at once" }).focus();
    await page.keyboard.press("Home");
    await page.getByRole("button", { name: "Apply" }).click();
    await page.getByRole("button", { name: "Apply" }).waitFor({ state: "detached" });
    const stats = await (await fetch(`${server.url}/stats`)).json();
    assert.equal(stats.max_rows, 1);

    // The figures of the page are those of /stats, and they add up.
    const l = stats.memory.ledger;
    assert.equal(l.weights + l.kv + l.prompt_cache + l.prefill_transient + l.allocator_cache + l.reserve, l.total);

    await page.locator("[data-test=recent]").getByRole("button", { name: /Inspect/ }).first().click();
    await page.getByRole("dialog").getByText("And at night?").waitFor();
    await picture(page, "real-inspector");
    await page.keyboard.press("Escape");

    await show(page, "connect");
    await page.getByRole("button", { name: "Test", exact: true }).click();
    await page.getByText("answered as curl expects", { exact: false }).waitFor();
    await show(page, "logs");
    await page.getByText("/v1/chat/completions").first().waitFor();
    await show(page, "preflight");
    await page.getByText("Readings", { exact: true }).waitFor();
    await picture(page, "real-preflight");
    await show(page, "models");
    await page.getByRole("heading", { name: "On disk" }).waitFor();
    await picture(page, "real-models");
    assert.deepEqual(page.complaints, []);
    await page.finish();
  } finally {
    await server.stop();
  }
});

test("hearth dashboard lets a browser in, and one without a model says what to do", async () => {
  const server = await real({ model: false });
  try {
    const run = promisify(execFile);
    const env = { ...process.env, ...server.env, DISPLAY: "", WAYLAND_DISPLAY: "" };
    const { stdout } = await run(process.env.HEARTH_BIN, ["dashboard", "--json"], { env });
    const { url } = JSON.parse(stdout);
    assert.ok(url.startsWith(`${server.url}/?ticket=`), url);
    const page = await open(server, chrome, { signedIn: false });
    await page.goto(url);
    assert.equal(new URL(page.url()).search, "", "the ticket is not in the address");
    await page.getByText("No model").first().waitFor();
    await picture(page, "real-empty");
    await show(page, "chat");
    await page.getByRole("heading", { name: "No model" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Send" }).isDisabled(), true);
    assert.deepEqual(page.complaints, []);
    await page.finish();
  } finally {
    await server.stop();
  }
});


test("a model is found on the hub, downloaded with a pause, and deleted", async () => {
  const models = await hub();
  const server = await real({ model: false, more: { HF_ENDPOINT: models.url } });
  try {
    const page = await open(server, chrome, { path: "/#/models" });
    await page.getByText("No models on this computer yet").waitFor();
    await page.getByRole("searchbox", { name: "Search the hub for models" }).fill("tiny-b");
    await page.getByRole("button", { name: "Search" }).click();
    await page.getByRole("button", { name: "Download test/tiny-b" }).click();
    const downloads = page.getByRole("region", { name: "Downloads" });
    await downloads.getByText("Downloading").waitFor();
    await downloads.getByText(/kB\/s|MB\/s/).waitFor();
    await downloads.getByRole("button", { name: "Pause" }).click();
    await downloads.getByText("Paused").waitFor();
    await picture(page, "real-download");
    await downloads.getByRole("button", { name: "Resume" }).click();
    const disk = page.locator("[data-test=on-disk]");
    await disk.getByText("test/tiny-b").waitFor({ timeout: 60_000 });
    await downloads.waitFor({ state: "detached" });
    await picture(page, "real-downloaded");
    await disk.getByRole("button", { name: "Delete test/tiny-b" }).click();
    await page.getByRole("dialog").getByText(/removes \d+ files and frees/).waitFor();
    await page.getByRole("button", { name: /Delete and free/ }).click();
    await page.getByText("No models on this computer yet").waitFor();
    assert.deepEqual(page.complaints, []);
    await page.finish();
  } finally {
    await server.stop();
    await models.stop();
  }
});

test("the first run: from an empty computer to an answer, a cache hit and an empty memory", async () => {
  const id = "mlx-community/SmolLM2-135M-Instruct";
  const models = await hub(["--rate", "2000000", "--model", `${id}=${process.env.HEARTH_STARTER}`]);
  const server = await real({ model: false, args: ["--context", "2048", "--max-rows", "2", "--reserve", "1GB"], more: { HF_ENDPOINT: models.url } });
  const said = (pattern) => page.getByText(pattern).first();
  const page = await open(server, chrome);
  try {
    // The empty overview leads to the models, where one is found and fetched.
    await page.getByRole("link", { name: "Choose a model" }).first().click();
    await said("No models on this computer yet").waitFor();
    await page.getByRole("button", { name: "Download SmolLM2 135M" }).click();
    const downloads = page.getByRole("region", { name: "Downloads" });
    await downloads.getByText(/ left$/).waitFor();
    await picture(page, "first-download");
    const disk = page.locator("[data-test=on-disk]");
    await disk.getByRole("button", { name: `Start ${id}` }).click({ timeout: 120_000 });
    await disk.getByText("Loaded", { exact: true }).waitFor({ timeout: 60_000 });
    await picture(page, "first-loaded");

    // It answers, piece by piece.
    await show(page, "chat");
    await page.getByRole("textbox", { name: "System prompt" }).fill("You are a helpful assistant who explains things plainly. ".repeat(12));
    await page.getByLabel("Most tokens in an answer").fill("60");
    await page.getByLabel("Temperature, 0 to 2").fill("0");
    await page.getByRole("textbox", { name: "Message", exact: true }).fill("Tell me about the sea.");
    await page.evaluate(() => {
      window.lengths = new Set();
      const look = () => {
        window.lengths.add(document.querySelector("[data-test=answer] .text")?.textContent?.length ?? 0);
        requestAnimationFrame(look);
      };
      look();
    });
    await page.keyboard.press("Enter");
    await answered(page);
    const seen = await page.evaluate(() => window.lengths.size);
    assert.ok(seen > 5, `the answer was drawn in ${seen} steps`);
    await ask(page, "And about rivers?");
    const figures = await page.locator("[data-test=figures]").last().innerText();
    const hit = Number(/prompt [\d\u2009]+, ([\d\u2009]+) from cache/.exec(figures)?.[1]?.replace("\u2009", "") ?? 0);
    assert.ok(hit > 100, figures);

    // Sliders say what they would do while they move, refuse what the model does not fit in, and apply the rest.
    await show(page, "overview");
    const told = page.locator("[data-test=consequence]");
    const cache = page.getByRole("slider", { name: "Prompt cache in memory" });
    await cache.focus();
    await page.keyboard.press("Home");
    await told.getByText(/moves \d+\scached conversations? .* out of memory/).waitFor();
    await picture(page, "first-demotes");
    await page.getByRole("button", { name: "Reset" }).click();
    await page.getByRole("slider", { name: "Memory budget" }).focus();
    await page.keyboard.press("Home");
    await told.getByText(/The loaded model would not fit: \d+\.\d\sGB short/).waitFor();
    assert.equal(await page.getByRole("button", { name: "Apply" }).isDisabled(), true);
    await picture(page, "first-refused");
    await page.getByRole("button", { name: "Reset" }).click();
    await page.getByRole("slider", { name: "Requests at once" }).focus();
    await page.keyboard.press("ArrowRight");
    await page.getByRole("button", { name: "Apply" }).click();
    await page.getByRole("button", { name: "Apply" }).waitFor({ state: "detached" });
    assert.equal((await (await fetch(`${server.url}/stats`)).json()).max_rows, 3);

    // The hit is on the page of the cache as well.
    await show(page, "cache");
    await page.waitForFunction((least) => Number(document.querySelector("[data-test=tokens-saved]")?.textContent?.replace(/\D/g, "") ?? 0) >= least, hit);

    await show(page, "overview");
    await page.locator("[data-test=in-memory]").getByRole("button", { name: /^Unload/ }).click();
    await said("No model").waitFor();
    await page.locator("[data-test=in-memory]").waitFor({ state: "detached" });
    await page.waitForFunction(async () => (await (await fetch("/stats")).json()).memory.ledger.weights === 0);
    await picture(page, "first-unloaded");
    assert.deepEqual(page.complaints, []);
  } finally {
    await page.finish();
    await server.stop();
    await models.stop();
  }
});

test("after a kill nothing is loaded, the page says why, and one click goes on", async () => {
  const golden = new URL("../goldens/llama-q4", import.meta.url).pathname;
  const first = await real({ models: { tiny: golden, other: golden }, model: false });
  try {
    const headers = { authorization: `Bearer ${first.token}`, "content-type": "application/json" };
    const loads = await fetch(`${first.url}/api/hearth/models/load`, { method: "POST", headers, body: JSON.stringify({ model: "tiny" }) });
    assert.ok(loads.ok, await loads.text());
    const record = () => readFile(join(first.env.HEARTH_HOME, "running.json"), "utf8").then((text) => text, () => "");
    await until("the record of the model", async () => (await record()).includes("tiny"));
    const server = await first.crash();
    const page = await open(server, chrome);
    const why = page.getByText(/was killed or crashed (with|while it loaded) tiny/).first();
    await why.waitFor();
    await picture(page, "unclean");
    // Until a person has started something, no request does.
    const asks = await fetch(`${server.url}/v1/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ model: "other", prompt: "a", max_tokens: 1 }) });
    assert.equal(asks.status, 404);
    await page.getByRole("button", { name: "Start tiny again" }).click();
    await page.locator("[data-test=in-memory]").getByText("tiny").waitFor();
    await why.waitFor({ state: "detached" });
    assert.deepEqual(page.complaints, []);
    await page.finish();
  } finally {
    await first.stop();
  }
});
