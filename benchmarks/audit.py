"""Seconds of ``trtforge audit`` on a model of 70 billion parameters, in FP8 and in NVFP4: a fresh process each round.

    python -m benchmarks.audit [--rounds 3] [--json]

The checkpoints have the tensors of Llama-3.3-70B in shards of 5 GB; weights are holes of sparse files, and so are block
scales where a sampled reading does not look. One scale of each is planted wrong and must be found, alone. The limit is
10 s for the median round, interpreter and imports included; torch must not be imported.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fresh_process import figures_of, measure
from quantize.forensics.checkpoint import PIECE, PIECES
from trtforge.ground.safetensors_header import DTYPE_BITS

LIMIT_SECONDS = 10.0
LAYERS, WIDTH, KV, FFN, VOCAB = 80, 8192, 1024, 28672, 128256
LINEARS = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KV, WIDTH),
    "self_attn.v_proj": (KV, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (FFN, WIDTH),
    "mlp.up_proj": (FFN, WIDTH),
    "mlp.down_proj": (WIDTH, FFN),
}
SHARD_BYTES = 5_000_000_000
PLANTED = "model.layers.41.mlp.up_proj"


def tensors(algorithm: str) -> list[tuple[str, str, tuple[int, ...], float | None]]:
    """Name, type, shape, and the value of a scale (None: a hole; block scales repeat theirs)."""
    draw = np.random.default_rng(0)
    found: list[tuple[str, str, tuple[int, ...], float | None]] = [
        ("model.embed_tokens.weight", "BF16", (VOCAB, WIDTH), None),
        ("lm_head.weight", "BF16", (VOCAB, WIDTH), None),
        ("model.norm.weight", "BF16", (WIDTH,), None),
    ]
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found.append((f"{base}.{norm}.weight", "BF16", (WIDTH,), None))
        shared = {part: float(draw.uniform(1e-5, 1e-3)) for part in ("self_attn", "mlp")}
        for name, (rows, columns) in LINEARS.items():
            module, own = f"{base}.{name}", shared[name.partition(".")[0]]
            if algorithm == "FP8":
                found.append((f"{module}.weight", "F8_E4M3", (rows, columns), None))
                found.append((f"{module}.weight_scale", "F32", (), float(draw.uniform(1e-5, 1e-3))))
            else:
                found.append((f"{module}.weight", "U8", (rows, columns // 2), None))
                found.append((f"{module}.weight_scale", "F8_E4M3", (rows, columns // 16), 0.0))
                found.append((f"{module}.weight_scale_2", "F32", (), own))
            found.append((f"{module}.input_scale", "F32", (), float("nan") if module == PLANTED else own))
    return found


def length_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return DTYPE_BITS[dtype] * math.prod(shape) // 8


def write_checkpoint(folder: Path, algorithm: str) -> int:
    """The checkpoint with sparse shards; returns its length in bytes."""
    shards: list[list[tuple[str, str, tuple[int, ...], float | None]]] = [[]]
    size = total = 0
    for tensor in tensors(algorithm):
        length = length_of(tensor[1], tensor[2])
        if size + length > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size, total = size + length, total + length
    blocks = np.random.default_rng(1).integers(0x28, 0x40, PIECE * PIECES).astype(np.uint8).tobytes()
    index = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        header: dict[str, Any] = {}
        end = 0
        for name, dtype, shape, _ in shard:
            begin, end = end, end + length_of(dtype, shape)
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
            index[name] = file
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            start = out.tell()
            out.truncate(start + end)
            for name, dtype, _, value in shard:
                if value is None:
                    continue
                begin, stop = header[name]["data_offsets"]
                out.seek(start + begin)
                if dtype == "F32":
                    out.write(np.float32(value).tobytes())
                    continue
                whole = stop - begin <= len(blocks)
                step = (stop - begin) // PIECES // 64 * 64
                for place in (0,) if whole else range(0, PIECES * step, step):
                    out.seek(start + begin + place)
                    out.write(blocks[: stop - begin] if whole else blocks[:PIECE])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    record = {"quant_algo": algorithm, "exclude_modules": ["lm_head"], "group_size": 16}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": record}))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": LAYERS,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {}}}))
    return total


def main() -> int:
    """Measure, print, and exit with 1 when the limit is missed, the fault was overlooked or torch was imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    passed = True
    figures: dict[str, dict[str, Any]] = {}
    for algorithm in ("FP8", "NVFP4"):
        with tempfile.TemporaryDirectory() as scratch:
            total = write_checkpoint(Path(scratch), algorithm)
            rounds = [measure("audit", scratch) for _ in range(arguments.rounds)]
        document = rounds[-1].document
        found = [(one["code"], one["names"]) for one in document["findings"]]
        right = found == [("TF-K7-103", [f"{PLANTED}.input_scale"])]
        row = figures[algorithm] = figures_of(rounds) | {
            "gigabytes": total / 1e9,
            "scales_read": document["read"]["bytes"],
            "scales": document["read"]["of"],
            "only_the_planted_fault": right,
        }
        passed = passed and row["median_seconds"] < LIMIT_SECONDS and right and not row["torch_imported"]
    if arguments.json:
        print(json.dumps(figures | {"passed": passed}))
        return 0 if passed else 1
    for algorithm, row in figures.items():
        print(
            f"audit of 70B in {algorithm} ({row['gigabytes']:.0f} GB): median {row['median_seconds']:.2f} s "
            f"({row['fastest']:.2f} to {row['slowest']:.2f}; limit {LIMIT_SECONDS:g}), "
            f"{row['processor_seconds']:.2f} s of processor time, "
            f"{row['scales_read'] / 1e6:.1f} of {row['scales'] / 1e6:.1f} MB of scales read, the planted fault "
            f"{'alone found' if row['only_the_planted_fault'] else 'NOT alone found'}"
        )
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
