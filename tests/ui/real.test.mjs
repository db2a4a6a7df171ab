// The dashboard in a browser, on the real server with the starter model: from the one-time link to a cache hit.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { ask, browser, hub, open, picture, real, show } from "./support.mjs";

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
