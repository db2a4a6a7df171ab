"""The peer of the benchmark: mlx-lm, measured the way Hearth is.

usage:
  peer.py dense MODEL OUT             the same weights dequantized to f32, which is mlx-lm's best on a CPU
  peer.py toy OUT                     a 30-layer model so small that only the host's time per token counts
  peer.py prompts MODEL COUNT LENGTH...  JSON: for each length, COUNT different texts of exactly so many tokens
  peer.py generate MODEL PROMPT_FILE N   JSON: speeds of one generation of N tokens, in a fresh process
  peer.py first MODEL PROMPT_FILE     prints the first token of an answer as soon as it is there
"""

import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx

mx.set_default_device(mx.cpu)

WORDS = (
    "river stone window garden letter winter bridge music table morning engine forest island paper market silver "
    "captain mountain kitchen sailor painter valley harbor village teacher doctor farmer story summer evening"
).split()


def dense(model, out):
    from mlx.utils import tree_flatten
    from mlx_lm.utils import dequantize_model, load_model

    loaded, config = load_model(Path(model))
    loaded = dequantize_model(loaded)
    weights = {name: value.astype(mx.float32) for name, value in tree_flatten(loaded.parameters())}
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    config = {key: value for key, value in config.items() if not key.startswith("quantization")}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    for file in Path(model).glob("tokenizer*.json"):
        shutil.copy(file, out / file.name)


def toy(out):
    import tiny

    out = Path(out)
    tiny.make(dict(tiny.BASE, model_type="llama", num_hidden_layers=30, tie_word_embeddings=True), "f32", 1, out)


def prompts(model, count, lengths):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    size = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    result = {}
    for length in lengths:
        texts = []
        for number in range(count):
            # Different from the first word on, so that no server's prompt cache helps.
            text, word = WORDS[number % len(WORDS)].title(), number
            if size(text) != 1 and vocabulary > 1000:
                text = "The"
            while size(text) < length:
                word = (word * 7 + 3 + number) % 1009
                text += " " + WORDS[(word + number // len(WORDS)) % len(WORDS)]
            while size(text) > length:
                text = text[:-1]
            assert size(text) == length, (length, size(text))
            texts.append(text)
        assert len(set(texts)) == count, f"{count} prompts of {length} tokens are not all different"
        result[str(length)] = texts
    print(json.dumps(result))


def generate(model, prompt_file, count):
    from mlx_lm import load, stream_generate

    loaded, tokenizer = load(model)
    tokenizer.eos_token_ids = set()
    prompt = tokenizer.encode(Path(prompt_file).read_text(), add_special_tokens=False)
    for last in stream_generate(loaded, tokenizer, prompt, max_tokens=count):
        pass
    print(json.dumps(dict(
        prompt_tokens=last.prompt_tokens, generated_tokens=last.generation_tokens,
        prefill_tps=last.prompt_tps, decode_tps=last.generation_tps,
    )))


def first(model, prompt_file):
    from mlx_lm import load, stream_generate

    loaded, tokenizer = load(model)
    prompt = tokenizer.encode(Path(prompt_file).read_text(), add_special_tokens=False)
    for response in stream_generate(loaded, tokenizer, prompt, max_tokens=8):
        if response.text:
            print(response.text, flush=True)
            break


def main():
    command, args = sys.argv[1], sys.argv[2:]
    if command == "dense":
        dense(*args)
    elif command == "toy":
        toy(*args)
    elif command == "prompts":
        prompts(args[0], int(args[1]), [int(length) for length in args[2:]])
    elif command == "generate":
        generate(args[0], args[1], int(args[2]))
    elif command == "first":
        first(*args)
    else:
        raise SystemExit(__doc__)


main()
