// The official OpenAI client for Node against a running Hearth.
//
// Reads HEARTH_URL, HEARTH_KEY, HEARTH_MODEL and HEARTH_SDK (the folder that holds node_modules); the server was started
// with --context 1024 and that key. Prints `ok NAME` for each check and stops at the first one that fails.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { HEARTH_URL: url, HEARTH_KEY: key, HEARTH_MODEL: model, HEARTH_SDK: sdk } = process.env;
const { OpenAI } = createRequire(`${sdk}/`)("openai");
const options = { baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout: 240_000 };
const client = new OpenAI(options);
const messages = [{ role: "user", content: "Write one short sentence about the sea." }];
const greedy = { model, messages, temperature: 0, max_tokens: 16 };

const create = (more = {}) => client.chat.completions.create({ ...greedy, ...more });
const textOf = (reply) => reply.choices[0].message.content;
const stats = async () => (await fetch(`${url}/stats`, { headers: { Authorization: `Bearer ${key}` } })).json();

async function streamed(more = {}) {
  const chunks = [];
  for await (const chunk of await create({ ...more, stream: true })) chunks.push(chunk);
  return chunks;
}

const joined = (chunks) => chunks.map((c) => c.choices[0]?.delta.content ?? "").join("");

const checks = {
  async models() {
    const ids = [];
    for await (const m of client.models.list()) ids.push(m.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async chat() {
    const reply = await create();
    assert.equal(reply.model, model);
    assert.equal(reply.choices.length, 1);
    assert.ok(textOf(reply).trim());
    assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
  },

  async stream() {
    const whole = await create();
    const chunks = await streamed({ stream_options: { include_usage: true } });
    assert.equal(joined(chunks), textOf(whole));
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
    assert.equal(chunks.filter((c) => c.choices[0]?.delta.role).length, 1);
    assert.equal(chunks.filter((c) => c.choices[0]?.finish_reason).length, 1);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.deepEqual(chunks.at(-1).usage, whole.usage);
  },

  async streamHelper() {
    const runner = client.chat.completions.stream(greedy);
    let text = "";
    runner.on("content", (delta) => (text += delta));
    const final = await runner.finalChatCompletion();
    assert.equal(text, textOf(final));
    assert.equal(text, textOf(await create()));
  },

  async logprobs() {
    const ask = { max_tokens: 4, logprobs: true, top_logprobs: 3 };
    const entries = (await create(ask)).choices[0].logprobs.content;
    assert.ok(entries.length > 0);
    for (const e of entries) {
      assert.equal(e.top_logprobs.length, 3);
      assert.equal(e.token, e.top_logprobs[0].token);
      assert.ok(e.top_logprobs[0].logprob >= e.top_logprobs[1].logprob);
    }
    const inStream = (await streamed(ask)).flatMap((c) => c.choices[0]?.logprobs?.content ?? []);
    assert.deepEqual(inStream.map((e) => e.token), entries.map((e) => e.token));
  },

  async stop() {
    const whole = textOf(await create());
    const words = whole.split(" ");
    const mark = `${words[2]} ${words[3]}`;
    const before = whole.slice(0, whole.indexOf(mark));
    const reply = await create({ stop: mark });
    assert.equal(textOf(reply), before);
    assert.equal(reply.choices[0].finish_reason, "stop");
    assert.equal(joined(await streamed({ stop: [mark] })), before);
  },

  async seed() {
    const ask = { temperature: 1.5, max_tokens: 10 };
    const texts = [];
    for (const seed of [1, 2, 2, 3]) texts.push(textOf(await create({ ...ask, seed })));
    assert.equal(texts[1], texts[2]);
    assert.ok(new Set(texts).size > 1);
  },

  async choices() {
    assert.equal((await create({ n: 1, max_tokens: 1 })).choices.length, 1);
    await assert.rejects(create({ n: 2 }), OpenAI.BadRequestError);
  },

  async cancel() {
    const long = { max_tokens: 400, ignore_eos: true };
    const stream = await create({ ...long, stream: true });
    let seen = 0;
    for await (const _ of stream) {
      if (++seen === 3) break; // leaving the loop aborts the request
    }
    const controller = new AbortController();
    const call = client.chat.completions.create({ ...greedy, ...long }, { signal: controller.signal });
    setTimeout(() => controller.abort(), 1000);
    await assert.rejects(call, OpenAI.APIUserAbortError);
    for (let tries = 0; ; tries++) {
      const now = await stats();
      if (now.rows.length === 0 && now.waiting === 0) break;
      assert.ok(tries < 600, "rows of clients that went away are still there");
      await new Promise((done) => setTimeout(done, 100));
    }
  },

  async eightAtOnce() {
    const prompts = [1, 10, 20, 30, 40, 50, 60, 70].map((n) => `Count upwards from ${n}: ${n}, ${n + 1}, ${n + 2},`);
    const ask = (prompt) => client.completions.create({ model, prompt, temperature: 0, max_tokens: 8 });
    const alone = [];
    for (const prompt of prompts) alone.push((await ask(prompt)).choices[0].text);
    const batch = await Promise.all(prompts.map(ask));
    assert.deepEqual(batch.map((b) => b.choices[0].text), alone);
  },

  async errors() {
    const refusal = async (call, kind) => {
      const e = await call.then(() => assert.fail("no error"), (e) => e);
      assert.equal(e.constructor, kind, `${e}`);
      return e;
    };
    assert.equal((await refusal(create({ temperature: 9 }), OpenAI.BadRequestError)).param, "temperature");
    const long = [{ role: "user", content: "word ".repeat(3000) }];
    assert.equal((await refusal(create({ messages: long }), OpenAI.BadRequestError)).code, "context_length_exceeded");
    await refusal(client.models.retrieve("no-such-model"), OpenAI.NotFoundError);
    await refusal(new OpenAI({ ...options, apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
    await refusal(new OpenAI({ ...options, baseURL: "http://127.0.0.1:9/v1" }).models.list(), OpenAI.APIConnectionError);
    assert.ok(textOf(await create({ max_tokens: 2 })));
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok ${name}`);
}
console.log(`${Object.keys(checks).length} checks passed`);
