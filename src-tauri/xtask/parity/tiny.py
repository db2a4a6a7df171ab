"""Tiny random models and what mlx-lm computes from them: the goldens of the parity tests.

usage: tiny.py OUT [name ...]

Each golden OUT/<family>-<layout>/ is a model folder (config.json, model.safetensors, tokenizer.json,
tokenizer_config.json) and ref.safetensors:

  prompt          i32 [L]       token ids
  logits_nocache  f32 [L, V]    one forward pass, no cache
  logits_cache    f32 [L, V]    one prefill with a cache
  logits_chunk    f32 [L, V]    prefill in chunks of 7 with a cache
  logits_step     f32 [N+1, V]  logits before each greedy step, and after the last
  greedy          i32 [N]       greedy ids after the prompt
  batch_bounds    i32 [4, 2]    four prompts, as start and end within `prompt`
  batch_greedy    i32 [4, N]    their greedy ids, each computed alone (and equal in mlx-lm's own batch)

Weights are drawn until no greedy step is a near tie and no special token is generated, so that equality of ids
is a fair demand. Layouts that hold 16-bit floats are computed with those cast to f32, as Hearth does on a CPU.
"""

import copy
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes, load_model, quantize_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

mx.set_default_device(mx.cpu)

VOCAB = 288  # 256 bytes, 7 special tokens, and 25 rows that no token has
NEW = 24
MIN_GAP = 2e-3
BOUNDS = [(0, 40), (5, 23), (2, 3), (11, 40)]
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]

BASE = dict(
    hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, rms_norm_eps=1e-6, vocab_size=VOCAB, max_position_embeddings=4096, rope_theta=10000.0,
    tie_word_embeddings=False, eos_token_id=258, torch_dtype="float32",
)
# Heads of 64 in few and narrow layers.
WIDE = dict(BASE, num_hidden_layers=3, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=64)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=32)
LINEAR = dict(type="linear", factor=4.0)

FAMILIES = {
    "llama": dict(BASE, model_type="llama", tie_word_embeddings=True, head_dim=32, intermediate_size=128,
                  rope_scaling=LLAMA3),
    "llama_swa": dict(BASE, model_type="llama", num_hidden_layers=3, sliding_window=16, attention_bias=True,
                      mlp_bias=True, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "llama_yarn": dict(BASE, model_type="llama", rope_scaling=YARN),
    "llama_linear": dict(BASE, model_type="llama", tie_word_embeddings=True, rope_scaling=LINEAR),
    "mistral": dict(BASE, model_type="mistral", num_key_value_heads=1, rope_theta=1e6),
    "qwen2": dict(BASE, model_type="qwen2", tie_word_embeddings=True, rope_theta=1e6),
    "qwen3": dict(BASE, model_type="qwen3", tie_word_embeddings=True, head_dim=32, rope_theta=1e6),
    "smollm3": dict(BASE, model_type="smollm3", no_rope_layer_interval=2, tie_word_embeddings=True),
    # For groups of 128.
    "llama_wide": dict(BASE, model_type="llama", tie_word_embeddings=True, hidden_size=128, head_dim=32,
                       num_hidden_layers=1, intermediate_size=128),
    # The prompt is longer than the window; head_dim 64 is for caches quantized in groups of 64.
    "gemma3_text": dict(WIDE, model_type="gemma3_text", tie_word_embeddings=True, rms_norm_eps=1e-6, sliding_window=16,
                        sliding_window_pattern=3, query_pre_attn_scalar=32, rope_theta=1e6,
                        rope_local_base_freq=10000.0, hidden_activation="gelu_pytorch_tanh"),
    "lfm2": dict(WIDE, model_type="lfm2", tie_word_embeddings=True, hidden_size=128, num_hidden_layers=2, norm_eps=1e-5,
                 conv_bias=False, conv_L_cache=3, block_dim=128, block_ff_dim=90, block_multiple_of=32,
                 block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True, rope_theta=1e6,
                 layer_types=["conv", "full_attention"]),
    # As real files are: the text model's config inside, its quantization and end of sequence outside.
    "qwen3_5": dict(
        model_type="qwen3_5", eos_token_id=258,
        text_config=dict(
            WIDE, model_type="qwen3_5_text", tie_word_embeddings=True, full_attention_interval=2,
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=16,
            linear_conv_kernel_dim=4, rope_parameters=dict(rope_type="default", rope_theta=1e6,
                                                           partial_rotary_factor=0.25, mrope_section=[3, 3, 2]),
        ),
    ),
}


def affine(bits, group):
    return dict(bits=bits, group_size=group, mode="affine")


LAYOUTS = {
    "f32": None, "bf16": None,
    "q4": affine(4, 32), "q2": affine(2, 32), "q3": affine(3, 64), "q5": affine(5, 32), "q6": affine(6, 64),
    "q8": affine(8, 64), "q4g128": affine(4, 128), "q8g128": affine(8, 128), "q4bf16": affine(4, 64),
    "mxfp4": dict(bits=4, group_size=32, mode="mxfp4"), "mxfp8": dict(bits=8, group_size=32, mode="mxfp8"),
    "nvfp4": dict(bits=4, group_size=16, mode="nvfp4"), "mixed": affine(4, 32),
}
GOLDENS = [(family, layout) for family in FAMILIES if family != "llama_wide" for layout in ("f32", "q4")]
GOLDENS += [("llama", layout) for layout in
            ("bf16", "q2", "q3", "q5", "q6", "q8", "q4bf16", "mxfp4", "mxfp8", "nvfp4", "mixed")]
GOLDENS += [("llama_wide", "q4g128"), ("llama_wide", "q8g128")]

# What one layer has instead of the default in the mixed layout: other bits, another mode, none at all.
MIXED = {
    "model.embed_tokens": affine(6, 32),
    "model.layers.0.mlp.down_proj": affine(8, 64),
    "model.layers.0.self_attn.v_proj": False,
    "model.layers.1.self_attn.o_proj": dict(bits=4, group_size=32, mode="mxfp4"),
}


def write_tokenizer(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|pad|>",
                  chat_template=template, model_max_length=4096, clean_up_tokenization_spaces=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def new_model(config):
    model_class, args_class = _get_classes(copy.deepcopy(config))[:2]
    model = model_class(args_class.from_dict(copy.deepcopy(config)))
    if config["model_type"] == "gemma3_text" and config["tie_word_embeddings"]:
        model.sanitize({})  # drops the head that it makes whatever the config says
    return model


def randomize(model, seed):
    """Weights whose logits spread like a trained model's; rows of special tokens are small, so they never win."""
    key = mx.random.key(seed)
    gemma = model.model_type == "gemma3_text"  # scales its embeddings up
    weights = []
    for name, value in tree_flatten(model.parameters()):
        key, sub = mx.random.split(key)
        noise = mx.random.normal(value.shape, key=sub)
        if name.endswith("A_log"):
            new = noise - 2.0  # memories of some tens of tokens
        elif value.ndim == 1 and "norm" in name and gemma:
            new = 0.1 * noise + (2.0 if name == "model.norm.weight" else 0.0)  # these norms multiply by 1 + weight
        elif value.ndim == 1:
            new = value + 0.1 * noise if "norm" in name else 0.1 * noise
        elif "conv" in name and value.ndim == 3:
            new = noise / value.shape[1] ** 0.5  # [channels, taps, 1]
        elif "embed" in name or "lm_head" in name:
            new = noise * ((0.05 if gemma else 0.15) if "embed" in name else 1.2 / value.shape[-1] ** 0.5)
            new = mx.where(mx.arange(VOCAB)[:, None] < 256, new, 0.2 * new)
        else:
            new = noise * (1.2 / value.shape[-1] ** 0.5)
        weights.append((name, new.astype(mx.float32)))
    model.update(tree_unflatten(weights))
    mx.eval(model.parameters())


def cast(model, old, new):
    for name, value in tree_flatten(model.parameters()):
        if value.dtype == old:
            model.update(tree_unflatten([(name, value.astype(new))]))


def make(config, layout, seed, folder):
    """Writes the model folder."""
    config = copy.deepcopy(config)
    model = new_model(config)
    randomize(model, seed)
    if "bf16" in layout:
        cast(model, mx.float32, mx.bfloat16)
        config["torch_dtype"] = "bfloat16"
    if LAYOUTS[layout]:
        predicate = (lambda path, module: MIXED.get(path, True)) if layout == "mixed" else None
        quant = LAYOUTS[layout]
        model, config = quantize_model(model, config, quant["group_size"], quant["bits"], quant["mode"], predicate)
        if layout == "mixed":
            config["quantization"].update(MIXED)
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(folder)


def f32(array):
    return np.array(array.astype(mx.float32))


def greedy(model, prompt, count=NEW):
    """Greedy ids, the logits before each step and after the last, and the prompt's logits."""
    cache = make_prompt_cache(model)
    logits = model(mx.array(prompt)[None], cache=cache)
    prefill, last = f32(logits[0]), logits[0, -1]
    ids, steps = [], [f32(last)]
    for _ in range(count):
        token = mx.argmax(last).item()
        ids.append(token)
        last = model(mx.array([[token]]), cache=cache)[0, -1]
        steps.append(f32(last))
    return np.array(ids, np.int32), np.stack(steps), prefill


def gap(steps):
    top = np.sort(steps[:-1], axis=-1)
    return float((top[:, -1] - top[:, -2]).min())


def batched(model, prompts):
    generator = BatchGenerator(model, max_tokens=NEW, stream=mx.default_stream(mx.default_device()))
    uids = generator.insert(prompts, [NEW] * len(prompts))
    out = {uid: [] for uid in uids}
    while any(len(ids) < NEW for ids in out.values()):
        responses = generator.next_generated()
        if not responses:
            break
        for response in responses:
            out[response.uid].append(response.token)
    return np.array([out[uid] for uid in uids], np.int32)


def reference(folder, prompt):
    """What mlx-lm computes from the folder, or the reason why these weights are no good."""
    model, _ = load_model(folder)
    cast(model, mx.bfloat16, mx.float32)
    rows = [greedy(model, prompt[a:b]) for a, b in BOUNDS]
    ids, steps, prefill = rows[0]
    worst = min(gap(row[1]) for row in rows)
    if worst < MIN_GAP:
        return None, f"a gap of {worst:.5f}"
    if any((row[0] >= 256).any() for row in rows):
        return None, "a special token"
    alone = np.stack([row[0] for row in rows])
    together = batched(model, [prompt[a:b] for a, b in BOUNDS])
    if not (alone == together).all():
        return None, "a batch that differs from its rows"
    tokens = mx.array(prompt)[None]
    cache = make_prompt_cache(model)
    chunks = [f32(model(tokens[:, i : i + 7], cache=cache)[0]) for i in range(0, len(prompt), 7)]
    return dict(
        prompt=np.array(prompt, np.int32), logits_nocache=f32(model(tokens)[0]), logits_cache=prefill,
        logits_chunk=np.concatenate(chunks), logits_step=steps, greedy=ids,
        batch_bounds=np.array(BOUNDS, np.int32), batch_greedy=alone,
    ), f"gap {worst:.4f}, std {prefill.std():.2f}, {len(set(ids.tolist()))} distinct ids"


def main():
    out, wanted = Path(sys.argv[1]), sys.argv[2:]
    prompt = np.random.default_rng(7).integers(0, 256, 40).tolist()
    for family, layout in GOLDENS:
        name = f"{family}-{layout}"
        if wanted and name not in wanted:
            continue
        folder = out / name
        for seed in range(1, 500):
            make(FAMILIES[family], layout, seed, folder)
            ref, note = reference(folder, prompt)
            if ref:
                break
        else:
            raise SystemExit(f"{name}: no good weights in 500 tries")
        assert all(np.isfinite(value).all() for value in ref.values())
        for other in ("logits_nocache", "logits_chunk"):
            assert np.abs(ref[other] - ref["logits_cache"]).max() < 1e-3, (name, other)
        mx.save_safetensors(str(folder / "ref.safetensors"), {key: mx.array(value) for key, value in ref.items()})
        size = sum(file.stat().st_size for file in folder.iterdir()) // 1024
        print(f"{name}: seed {seed}, {note}, {size} KB", flush=True)


if __name__ == "__main__":
    main()
