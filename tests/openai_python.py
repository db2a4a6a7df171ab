"""The official OpenAI client for Python against a running Hearth.

Reads HEARTH_URL, HEARTH_KEY and HEARTH_MODEL; the server was started with --context 1024 and that key. Prints `ok NAME`
for each check and stops at the first one that fails.
"""

import asyncio
import json
import os
import sys
import time
import urllib.request

import openai

URL = os.environ["HEARTH_URL"]
KEY = os.environ["HEARTH_KEY"]
MODEL = os.environ["HEARTH_MODEL"]
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=240)
QUESTION = [{"role": "user", "content": "Write one short sentence about the sea."}]
GREEDY = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 16}


def text_of(reply):
    return reply.choices[0].message.content


def streamed(**options):
    """All chunks of one streamed chat."""
    return list(CLIENT.chat.completions.create(**{**GREEDY, "stream": True, **options}))


def joined(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def stats():
    request = urllib.request.Request(f"{URL}/stats", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def expect(error, call):
    """Runs `call`, which has to raise exactly this error class."""
    try:
        call()
    except openai.OpenAIError as e:
        assert type(e) is error, f"expected {error.__name__}, got {type(e).__name__}: {e}"
        return e
    raise AssertionError(f"expected {error.__name__}, and there was no error")


def models():
    listed = CLIENT.models.list().data
    assert [m.id for m in listed] == [MODEL], listed
    assert listed[0].object == "model" and listed[0].created > 1_500_000_000 and listed[0].owned_by
    assert CLIENT.models.retrieve(MODEL).id == MODEL


def chat():
    reply = CLIENT.chat.completions.create(**GREEDY)
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl") and reply.model == MODEL
    choice = reply.choices[0]
    assert len(reply.choices) == 1 and choice.index == 0 and choice.message.role == "assistant"
    assert choice.message.content.strip() and choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage.prompt_tokens > 5 and 0 < usage.completion_tokens <= 16
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert text_of(CLIENT.chat.completions.create(**GREEDY)) == choice.message.content, "greedy text repeats"


def stream():
    whole = CLIENT.chat.completions.create(**GREEDY)
    chunks = streamed()
    assert joined(chunks) == text_of(whole), "streamed or not, the text is the same"
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1
    assert all(c.object == "chat.completion.chunk" and c.usage is None and len(c.choices) == 1 for c in chunks)
    assert [c.choices[0].delta.role for c in chunks].count("assistant") == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason] and chunks[-1].choices[0].finish_reason


def stream_usage():
    chunks = streamed(stream_options={"include_usage": True})
    assert chunks[-1].choices == [] and all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage == CLIENT.chat.completions.create(**GREEDY).usage


def stream_helper():
    # The helper takes an answer that was cut for a failure, so this one ends at its first comma.
    with CLIENT.chat.completions.stream(**GREEDY, stop=",") as events:
        parts = [e.delta for e in events if e.type == "content.delta"]
        final = events.get_final_completion()
    assert "".join(parts) == text_of(final) == text_of(CLIENT.chat.completions.create(**GREEDY, stop=","))


def logprobs():
    options = {**GREEDY, "max_tokens": 6, "logprobs": True, "top_logprobs": 5}
    entries = CLIENT.chat.completions.create(**options).choices[0].logprobs.content
    assert 0 < len(entries) <= 6
    for e in entries:
        best = [t.logprob for t in e.top_logprobs]
        assert len(best) == 5 and best == sorted(best, reverse=True) and e.logprob <= 0
        assert e.token == e.top_logprobs[0].token and e.logprob == best[0], "greedy takes the best"
        assert bytes(e.bytes).decode(errors="replace") == e.token
    chunks = streamed(max_tokens=6, logprobs=True, top_logprobs=5)
    in_stream = [e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert [e.token for e in in_stream] == [e.token for e in entries]
    assert all(abs(a.logprob - b.logprob) < 1e-3 for a, b in zip(in_stream, entries))


def stop():
    whole = text_of(CLIENT.chat.completions.create(**GREEDY))
    words = whole.split(" ")
    assert len(words) > 4, whole
    mark = f"{words[2]} {words[3]}"
    before = whole[: whole.index(mark)]
    reply = CLIENT.chat.completions.create(**GREEDY, stop=["never to be seen", mark])
    assert text_of(reply) == before and reply.choices[0].finish_reason == "stop", (text_of(reply), before)
    chunks = streamed(stop=mark)
    assert joined(chunks) == before, "nothing of the stop text leaks into a stream"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


def seed():
    options = {**GREEDY, "temperature": 1.5, "max_tokens": 10}
    texts = {s: text_of(CLIENT.chat.completions.create(**options, seed=s)) for s in (1, 2, 3)}
    assert texts[2] == text_of(CLIENT.chat.completions.create(**options, seed=2)), "the same seed, the same text"
    assert len(set(texts.values())) > 1, texts


def choices():
    assert len(CLIENT.chat.completions.create(**{**GREEDY, "max_tokens": 1}, n=1).choices) == 1
    error = expect(openai.BadRequestError, lambda: CLIENT.chat.completions.create(**GREEDY, n=2))
    assert error.param == "n", error


def extras():
    """Fields that SDKs and frameworks send without need."""
    CLIENT.chat.completions.create(
        **{**GREEDY, "max_tokens": 1}, tools=[], user="me", metadata={"a": "b"}, store=False, parallel_tool_calls=True,
        response_format={"type": "text"}, stop=None, logit_bias={}, service_tier="auto",
    )
    reply = CLIENT.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=3)
    assert reply.usage.completion_tokens <= 3
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert text_of(CLIENT.chat.completions.create(**{**GREEDY, "messages": parts})) == text_of(
        CLIENT.chat.completions.create(**GREEDY)
    ), "text parts are text"


def completions():
    ask = {"model": MODEL, "temperature": 0, "max_tokens": 6}
    one = CLIENT.completions.create(**ask, prompt="The capital of France is")
    assert one.object == "text_completion" and one.choices[0].text.startswith(" "), "the leading space is kept"
    two = CLIENT.completions.create(**ask, prompt=["The capital of France is", "One, two, three,"])
    assert [c.index for c in two.choices] == [0, 1] and two.choices[0].text == one.choices[0].text
    raw = CLIENT.completions.create(**ask, prompt="The capital of France is", extra_body={"return_token_ids": True})
    ids = raw.choices[0].prompt_token_ids
    again = CLIENT.completions.create(**ask, prompt=ids)
    assert again.choices[0].text == one.choices[0].text, "a prompt given as token ids"
    chunks = list(CLIENT.completions.create(**ask, prompt="The capital of France is", stream=True))
    assert "".join(c.choices[0].text for c in chunks) == one.choices[0].text
    assert len({c.id for c in chunks}) == 1


def cancel():
    long = {**GREEDY, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
    open_stream = CLIENT.chat.completions.create(**long, stream=True)
    for i, _ in enumerate(open_stream):
        if i == 2:
            break
    assert len(stats()["rows"]) == 1
    open_stream.close()
    impatient = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=1.5)
    expect(openai.APITimeoutError, lambda: impatient.chat.completions.create(**long))
    deadline = time.time() + 60
    while stats()["rows"] or stats()["waiting"]:
        assert time.time() < deadline, "rows of clients that went away are still there"
        time.sleep(0.1)
    assert stats()["totals"]["cancelled"] >= 2


def eight_at_once():
    prompts = [f"Count upwards from {n}: {n}, {n + 1}, {n + 2}," for n in (1, 10, 20, 30, 40, 50, 60, 70)]
    ask = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    alone = [CLIENT.completions.create(**ask, prompt=p) for p in prompts]

    async def together():
        client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=240)
        async with client:
            return await asyncio.gather(*(client.completions.create(**ask, prompt=p) for p in prompts))

    batch = asyncio.run(together())
    assert [b.choices[0].text for b in batch] == [a.choices[0].text for a in alone]
    assert len({b.id for b in batch}) == 8


def errors():
    create = CLIENT.chat.completions.create
    hot = expect(openai.BadRequestError, lambda: create(**{**GREEDY, "temperature": 9}))
    assert hot.status_code == 400 and hot.param == "temperature" and "9" in hot.message, hot
    empty = expect(openai.BadRequestError, lambda: create(**{**GREEDY, "messages": []}))
    assert empty.type == "invalid_request_error", empty
    long = [{"role": "user", "content": "word " * 3000}]
    full = expect(openai.BadRequestError, lambda: create(**{**GREEDY, "messages": long}))
    assert full.code == "context_length_exceeded" and "1024" in full.message, full
    expect(openai.NotFoundError, lambda: CLIENT.models.retrieve("no-such-model"))
    expect(openai.NotFoundError, lambda: CLIENT.images.generate(prompt="a cat"))
    stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key="wrong", max_retries=0)
    expect(openai.AuthenticationError, lambda: stranger.models.list())
    nowhere = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key=KEY, max_retries=0)
    expect(openai.APIConnectionError, lambda: nowhere.models.list())
    assert text_of(create(**{**GREEDY, "max_tokens": 2})), "the next request works"


CHECKS = [models, chat, stream, stream_usage, stream_helper, logprobs, stop, seed, choices, extras, completions, cancel,
          eight_at_once, errors]

if __name__ == "__main__":
    for check in CHECKS:
        check()
        print(f"ok {check.__name__}", flush=True)
    print(f"{len(CHECKS)} checks passed")
    sys.exit(0)
