"""What mlx-lm computes with SmolLM2-135M-Instruct: the golden of the real model.

usage: smollm2.py MODEL.gguf FOLDER OUT.safetensors

FOLDER receives an MLX model made from the GGUF here, apart from Hearth's own import, so that a mistake in the
import cannot hide in its own reference. The quantized layout is kept (Q4_1 is affine 4-bit in groups of 32, Q8_0
is 8-bit), scales, biases and norms are f32. OUT holds for each prompt N = 0, 1, 2:

  ids_N         i32 [L]      token ids
  top_ids_N     i32 [L, 50]  the 50 most likely next tokens at every position, best first
  top_logits_N  f32 [L, 50]  their logits
  lse_N         f32 [L]      log-sum-exp over the vocabulary
  greedy_N      i32 [64]     greedy ids after the prompt, the end token not treated as an end
  gap_N         f32 [64]     the gap between the best two logits of each greedy step
"""

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

mx.set_default_device(mx.cpu)
TOP, NEW = 50, 64

LAYER = dict(
    attn_q="self_attn.q_proj", attn_k="self_attn.k_proj", attn_v="self_attn.v_proj",
    attn_output="self_attn.o_proj", ffn_gate="mlp.gate_proj", ffn_up="mlp.up_proj", ffn_down="mlp.down_proj",
    attn_norm="input_layernorm", ffn_norm="post_attention_layernorm",
)

PROSE = """\
A bakery on a hill opened every morning at five, long before the first tram climbed up from the harbour. The baker, \
a patient woman called Ilse, weighed 1250 grams of rye flour, 830 grams of water and 25 grams of salt, and left the \
dough under a linen cloth until the church bell struck six. By then the street was awake: the postman leaned his \
bicycle against the wall, two students argued about the shape of the universe, and the cat from number 17 sat down \
in front of the door as if it owned the place. "Two loaves, please," said the postman, "and one for the lady in the \
tower." Nobody had seen the lady for eleven years, yet each day the bread was gone from her step by noon. When the \
winter of 1968 came, and the snow lay so deep that the trams stood still for nine days, Ilse carried the loaf up the \
tower herself. There were two hundred and six steps, and on every tenth one somebody had painted a small blue number. \
At the top she knocked, waited, and heard
"""

CODE = """\
# Write a Python module that keeps a running median, with tests.
import heapq


class RunningMedian:
    \"\"\"Median of all numbers added so far, in O(log n) per number.\"\"\"

    def __init__(self):
        self.low = []   # max-heap: negated values
        self.high = []  # min-heap

    def add(self, x: float) -> None:
        if self.low and x > -self.low[0]:
            heapq.heappush(self.high, x)
        else:
            heapq.heappush(self.low, -x)
        if len(self.low) > len(self.high) + 1:
            heapq.heappush(self.high, -heapq.heappop(self.low))
        elif len(self.high) > len(self.low):
            heapq.heappush(self.low, -heapq.heappop(self.high))

    def median(self) -> float:
        if not self.low:
            raise ValueError("no numbers yet")
        if len(self.low) > len(self.high):
            return -self.low[0]
        return (self.high[0] - self.low[0]) / 2


def test_median():
    m = RunningMedian()
    for x, want in [(5, 5), (1, 3), (9, 5), (7, 6)]:
        m.add(x)
"""

CHAT = """\
<|im_start|>system
You are a careful assistant who answers in one short paragraph and never invents facts.<|im_end|>
<|im_start|>user
I am planning a trip from Zürich to Kraków in early May, by train if that is possible. What should I look at? 🚆<|im_end|>
<|im_start|>assistant
Look first at the night train by way of Vienna: it leaves in the evening and saves a hotel night. Seats open about \
six months before, and the cheap ones go quickly. By day you change twice and need some fourteen hours.<|im_end|>
<|im_start|>user
Danke! And what is the weather like there then? 東京 was too hot for me last year: 36 °C on 8 days out of 10. Please \
compare three things: (a) temperature, (b) rain, (c) hours of daylight. Give the numbers in a list, and say how sure \
you are about each of them.<|im_end|>
<|im_start|>assistant
"""


def scalar(value):
    if isinstance(value, mx.array):
        return value.item() if value.size == 1 else value.tolist()
    return value


def rows_in_halves(array, heads):
    """GGUF interleaves the two halves of each rotary head; this puts them one after the other again."""
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, -1).transpose(0, 2, 1, 3).reshape(array.shape)


def convert(gguf, folder):
    tensors, meta = mx.load(gguf, return_metadata=True)
    get = lambda key: scalar(meta[key])
    heads, kv_heads = get("llama.attention.head_count"), get("llama.attention.head_count_kv")
    weights = {}
    for name, value in tensors.items():
        if value.dtype == mx.float16:
            value = value.astype(mx.float32)
        parts = name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                value = rows_in_halves(value, heads if parts[2] == "attn_q" else kv_heads)
            name = f"model.layers.{parts[1]}.{LAYER[parts[2]]}.{parts[3]}"
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]] + "." + parts[1]
        weights[name] = value
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    quantization = dict(group_size=32, bits=4, mode="affine")
    quantization["model.embed_tokens"] = dict(group_size=32, bits=8, mode="affine")
    config = dict(
        model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=get("llama.embedding_length"),
        num_hidden_layers=get("llama.block_count"), intermediate_size=get("llama.feed_forward_length"),
        num_attention_heads=heads, num_key_value_heads=kv_heads,
        rms_norm_eps=round(get("llama.attention.layer_norm_rms_epsilon"), 9), vocab_size=get("llama.vocab_size"),
        max_position_embeddings=get("llama.context_length"), rope_theta=float(get("llama.rope.freq_base")),
        tie_word_embeddings="output.weight" not in tensors, bos_token_id=get("tokenizer.ggml.bos_token_id"),
        eos_token_id=get("tokenizer.ggml.eos_token_id"), quantization=quantization, torch_dtype="float32",
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(get, folder)


def write_tokenizer(get, folder):
    tokens, kinds = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in get("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<|im_start|>", eos_token="<|im_end|>",
                  chat_template=get("tokenizer.chat_template"), clean_up_tokenization_spaces=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))


def reference(model, ids):
    cache = make_prompt_cache(model)
    logits = model(mx.array(ids)[None], cache=cache)[0].astype(mx.float32)
    order = mx.argsort(-logits, axis=-1)[:, :TOP]
    out = dict(
        ids=mx.array(ids, mx.int32), top_ids=order.astype(mx.int32),
        top_logits=mx.take_along_axis(logits, order, axis=-1), lse=mx.logsumexp(logits, axis=-1),
    )
    last, tokens, gaps = logits[-1], [], []
    for _ in range(NEW):
        best = np.sort(np.array(last))[-2:]
        gaps.append(float(best[1] - best[0]))
        tokens.append(mx.argmax(last).item())
        last = model(mx.array([[tokens[-1]]]), cache=cache)[0, -1].astype(mx.float32)
    return dict(out, greedy=mx.array(tokens, mx.int32), gap=mx.array(gaps, mx.float32))


def main():
    gguf, folder, out = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    convert(gguf, folder)
    model, _ = load_model(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    arrays = {}
    for number, text in enumerate([PROSE, CODE, CHAT]):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert len(ids) >= 200, f"prompt {number} has {len(ids)} tokens"
        ref = reference(model, ids)
        arrays.update({f"{key}_{number}": mx.contiguous(value) for key, value in ref.items()})
        near = [(i, round(g, 4)) for i, g in enumerate(ref["gap"].tolist()) if g < 0.01]
        print(f"prompt {number}: {len(ids)} tokens, near ties {near}")
        print("   ", repr(tokenizer.decode(ref["greedy"].tolist(), skip_special_tokens=False)), flush=True)
    mx.save_safetensors(out, arrays)


if __name__ == "__main__":
    main()
