// The dashboard in a browser, on a server with a pretended model: every page, in both colours and widths.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, ask, browser, open, picture, scripted, show } from "./support.mjs";

const PAGES = ["overview", "models", "chat", "cache", "preflight", "connect", "settings", "logs"];
let server;
let chrome;

before(async () => {
  [server, chrome] = await Promise.all([scripted(), browser()]);
});

after(async () => {
  await chrome?.close();
  await server?.stop();
});

for (const [width, dark] of [[1280, false], [1280, true], [360, false], [360, true]]) {
  test(`every page at ${width} px, ${dark ? "dark" : "light"}`, async () => {
    const page = await open(server, chrome, { width, height: width < 600 ? 740 : 900, dark });
    for (const name of PAGES) {
      await show(page, name);
      if (name === "chat") await ask(page, "show me code");
      if (name === "overview") await page.locator("limit-slider").first().waitFor();
      if (name === "preflight") await page.getByText("Readings", { exact: true }).waitFor();
      if (name === "connect") await page.getByRole("heading", { name: "curl" }).waitFor();
      if (name === "logs") await page.locator(".log li").first().waitFor();
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(wide, 0, `${name} scrolls sideways by ${wide} px`);
      await accessible(page, name);
      await picture(page, `${name}-${width}-${dark ? "dark" : "light"}`);
    }
    assert.deepEqual(page.complaints, []);
    await page.finish();
  });
}

test("the popover fits, and nothing in it scrolls", async () => {
  for (const dark of [false, true]) {
    const page = await open(server, chrome, { width: 360, height: 320, dark, path: "/popover" });
    await page.getByText("Open the dashboard").waitFor();
    await page.getByRole("img", { name: /of a budget of/ }).waitFor();
    const over = await page.evaluate(() => document.documentElement.scrollHeight - innerHeight);
    assert.ok(over <= 0, `it is ${over} px too tall`);
    await accessible(page, "popover");
    await picture(page, `popover-${dark ? "dark" : "light"}`);
    assert.deepEqual(page.complaints, []);
    await page.finish();
  }
});

test("a browser without a link learns how to get one", async () => {
  const page = await open(server, chrome, { signedIn: false, path: "/" });
  await page.getByRole("heading", { name: "This page needs a link from Hearth" }).waitFor();
  await page.getByText("hearth dashboard").waitFor();
  await accessible(page, "signed out");
  await picture(page, "signed-out");
  await page.finish();
});

test("a chat streams, stops, is edited, regenerated and kept", async () => {
  const page = await open(server, chrome, { path: "/#/chat" });
  await ask(page, "show me code");
  const answer = page.locator("[data-test=answer]").last();
  await answer.locator("pre.code", { hasText: "println" }).waitFor();
  assert.equal(await answer.locator("strong", { hasText: "small" }).count(), 1);
  // What a model writes is text, whatever it looks like.
  assert.equal(await answer.locator("img").count(), 0);
  assert.equal(await page.evaluate(() => "hacked" in window), false);
  await answer.getByRole("button", { name: "Copy the code" }).click();
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /println/);
  assert.match(await answer.locator("[data-test=figures]").innerText(), /tokens · prompt \d+, \d+ from cache · [\d.]+\stok\/s · first token after/);

  await page.getByRole("textbox", { name: "Message", exact: true }).fill("slow");
  await page.keyboard.press("Enter");
  await page.getByText("on on").first().waitFor();
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText("stopped", { exact: false }).first().waitFor();

  await page.getByRole("button", { name: "Edit this message" }).last().click();
  await page.getByRole("textbox", { name: "Edit the message" }).fill("something else");
  await page.locator(".message form").getByRole("button", { name: "Send" }).click();
  await page.getByText("You said: something else").waitFor();
  await page.getByRole("button", { name: "Regenerate" }).last().click();
  await page.getByText("You said: something else").waitFor();

  await page.getByRole("textbox", { name: "Message", exact: true }).fill("fail");
  await page.keyboard.press("Enter");
  await page.getByText("the device ended the computation", { exact: false }).first().waitFor();
  await page.getByRole("textbox", { name: "Message", exact: true }).fill("refuse");
  await page.keyboard.press("Enter");
  await page.getByText(/memory/i).last().waitFor();
  await picture(page, "chat-errors");

  await page.reload();
  await page.getByText("You said: something else").waitFor();
  // The browser itself reports the refusal's status.
  assert.deepEqual(page.complaints.filter((c) => !c.includes("503")), []);
  await page.finish();
});

test("an answer goes on while another page is shown", async () => {
  const page = await open(server, chrome, { path: "/#/chat" });
  await page.getByRole("button", { name: "New conversation" }).click();
  await page.getByRole("textbox", { name: "Message", exact: true }).fill("slow");
  await page.keyboard.press("Enter");
  await page.getByText("on on").first().waitFor();
  await show(page, "overview");
  const running = page.locator("[data-test=running] tbody tr");
  await running.first().waitFor();
  await picture(page, "overview-running");
  await show(page, "chat");
  await page.getByText("on on on on").first().waitFor();
  await show(page, "overview");
  await page.getByRole("button", { name: /Cancel request/ }).first().click();
  await page.getByText("Nothing runs.").waitFor();
  await page.finish();
});

test("sliders tell what they would do, refuse what does not fit, and apply the rest", async () => {
  const page = await open(server, chrome, { path: "/#/overview" });
  const budget = page.getByRole("slider", { name: "Memory budget" });
  const told = page.locator("[data-test=consequence]");
  await budget.focus();
  await page.keyboard.press("Home");
  await told.getByText(/would not fit: \d+\.\d\sGB short/).waitFor();
  assert.equal(await page.getByRole("button", { name: "Apply" }).isDisabled(), true);
  await picture(page, "overview-refused");
  await page.getByRole("button", { name: "Reset" }).click();
  await page.getByRole("slider", { name: "Requests at once" }).focus();
  await page.keyboard.press("ArrowLeft");
  await told.getByText("tokens of context").waitFor();
  await page.getByRole("button", { name: "Apply" }).click();
  await page.getByRole("button", { name: "Apply" }).waitFor({ state: "detached" });
  const limits = await page.evaluate(async () => (await fetch("/api/hearth/limits")).json());
  assert.equal(limits.max_rows, 6);
  assert.deepEqual(page.complaints, []);
  await page.finish();
});

test("the inspector shows a request as the model saw it", async () => {
  const page = await open(server, chrome, { path: "/#/chat" });
  await ask(page, "look into this");
  await show(page, "overview");
  await page.locator("[data-test=recent]").getByRole("button", { name: /Inspect/ }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("<|im_start|>user").waitFor();
  await dialog.getByText("temperature").waitFor();
  await accessible(page, "inspector");
  await picture(page, "inspector");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  assert.deepEqual(page.complaints, []);
  await page.finish();
});

test("the connect page's tests make the calls", async () => {
  const page = await open(server, chrome, { path: "/#/connect" });
  for (const name of ["curl", "Continue", "Open WebUI"]) {
    await page.getByRole("button", { name, exact: true }).click();
    await page.getByRole("heading", { name, exact: true }).waitFor();
    await page.getByRole("button", { name: "Test", exact: true }).click();
    await page.getByText(`answered as ${name} expects`, { exact: false }).waitFor();
  }
  await picture(page, "connect-tested");
  assert.deepEqual(page.complaints, []);
  await page.finish();
});

test("settings are kept, and say when they take effect", async () => {
  const page = await open(server, chrome, { path: "/#/settings" });
  await page.getByRole("switch", { name: "Ask for an API key" }).click();
  await page.getByText("Not in effect yet: asking for an API key.", { exact: false }).waitFor();
  await page.getByRole("button", { name: "Restart now" }).waitFor();
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByText(/sk-hearth-[0-9a-f]{32}/).waitFor();
  await page.getByRole("textbox", { name: "Folder to look in for models" }).fill("relative");
  await page.getByRole("button", { name: "Add" }).click();
  await page.getByText("absolute paths", { exact: false }).waitFor();
  await picture(page, "settings-refused");
  await page.getByRole("textbox", { name: "Folder to look in for models" }).fill("/Volumes/Models");
  await page.getByRole("button", { name: "Add" }).click();
  await page.getByRole("button", { name: "Remove /Volumes/Models" }).waitFor();
  await page.reload();
  await page.getByRole("button", { name: "Remove /Volumes/Models" }).waitFor();
  await page.getByText("Not in effect yet: asking for an API key, model folders.", { exact: false }).waitFor();
  // Taken back, there is nothing to restart for.
  await page.getByRole("button", { name: "Remove /Volumes/Models" }).click();
  await page.getByRole("switch", { name: "Ask for an API key" }).click();
  await page.getByRole("button", { name: "Restart now" }).waitFor({ state: "detached" });

  // What only the app can do, and what the system says to it.
  await page.getByRole("switch", { name: "Launch at login" }).click();
  await page.getByText("allow it in System Settings", { exact: false }).waitFor();
  assert.equal(await page.getByRole("switch", { name: "Launch at login" }).isChecked(), false);
  await page.getByRole("button", { name: "Install" }).click();
  await page.getByText("Installed", { exact: true }).waitFor();
  await picture(page, "settings-app");
  await page.finish();
});

test("clearing the cache says what goes", async () => {
  const page = await open(server, chrome, { path: "/#/cache" });
  await page.getByRole("button", { name: "Clear" }).click();
  await page.getByRole("dialog").getByText("Every kept conversation goes", { exact: false }).waitFor();
  await picture(page, "cache-clear");
  await page.getByRole("button", { name: /Clear and free/ }).click();
  await page.getByText(/Removed 3\sentries from memory/).waitFor();
  assert.deepEqual(page.complaints, []);
  await page.finish();
});

test("ten thousand tokens cost few events and no memory", async () => {
  const page = await open(server, chrome, { path: "/#/overview" });
  await page.getByRole("heading", { name: "Memory" }).waitFor();
  const client = await page.context().newCDPSession(page);
  const heap = async () => {
    await client.send("HeapProfiler.collectGarbage");
    return (await client.send("Runtime.getHeapUsage")).usedSize;
  };
  const generate = async () => {
    const begun = Date.now();
    const body = { messages: [{ role: "user", content: "a long one" }], stream: true };
    const reply = await fetch(`${server.url}/v1/chat/completions`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    let pieces = 0;
    for await (const piece of reply.body.pipeThrough(new TextDecoderStream())) pieces += piece.split("data: ").length - 1;
    return { seconds: (Date.now() - begun) / 1000, pieces };
  };
  await generate();
  const [before, events] = [await heap(), await page.evaluate(() => window.hearthEvents())];
  const { seconds, pieces } = await generate();
  const [grown, told] = [(await heap()) - before, (await page.evaluate(() => window.hearthEvents())) - events];
  console.log(`${pieces} pieces in ${seconds.toFixed(1)} s: ${told} events, heap ${(grown / 1e3).toFixed(0)} kB more`);
  assert.ok(pieces > 3900, `only ${pieces} pieces`);
  // Figures four times a second at most, the machine's own every two, and a few for the request itself; none for a token.
  assert.ok(told <= seconds * 4.5 + 12, `${told} events in ${seconds} s`);
  assert.ok(grown < 3e6, `the heap grew by ${grown} bytes`);
  await page.finish();
});

test("a server that goes away is told, and found again", async () => {
  const own = await scripted();
  const page = await open(own, chrome);
  await page.getByText("Qwen3-14B-4bit").first().waitFor();
  await page.getByText("Qwen3-0.6B-4bit").first().waitFor();
  await own.stop();
  await page.getByText("The server does not answer", { exact: false }).first().waitFor();
  await picture(page, "offline");
  await page.finish();
});
