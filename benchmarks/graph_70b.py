"""Seconds and memory to write the graph of a 70B Llama.

    python benchmarks/graph_70b.py [--layers 80] [--keep DIR] [--json]

The configuration is Llama-3-70B's; the weights are sparse safetensors shards made for the purpose (headers are
real, the data are holes in a file), so the run needs a few hundred kB of disk and no download. The graph is
written in a process of its own; its peak resident memory and its seconds, imports included, are printed and
compared with the limits: 10 s and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: config.json of Meta-Llama-3-70B
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 8192,
    "initializer_range": 0.02,
    "intermediate_size": 28672,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
SHARDS = 30
LIMIT_SECONDS, LIMIT_BYTES = 10.0, 10**9

_CHILD = """
import json, re, sys, time
start = time.perf_counter()
from pathlib import Path
from typing import Any
from builder.graphs.build import build_graph
directory = Path(sys.argv[1])
info = build_graph(directory, directory)
seconds = time.perf_counter() - start
# not ru_maxrss: that of a new process begins with what the one that started it had
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak,
                  "linears": len(info.linears), "model_onnx_bytes": (directory / "model.onnx").stat().st_size}))
"""


def tensor_shapes(layers: int) -> dict[str, list[int]]:
    """Names and shapes of every weight of the model."""
    width, ffn, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    kv = width // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [vocab, width]}
    for index in range(layers):
        prefix = f"model.layers.{index}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": [width],
            f"{prefix}.self_attn.q_proj.weight": [width, width],
            f"{prefix}.self_attn.k_proj.weight": [kv, width],
            f"{prefix}.self_attn.v_proj.weight": [kv, width],
            f"{prefix}.self_attn.o_proj.weight": [width, width],
            f"{prefix}.post_attention_layernorm.weight": [width],
            f"{prefix}.mlp.gate_proj.weight": [ffn, width],
            f"{prefix}.mlp.up_proj.weight": [ffn, width],
            f"{prefix}.mlp.down_proj.weight": [width, ffn],
        }
    return shapes | {"model.norm.weight": [width], "lm_head.weight": [vocab, width]}


def write_sparse_checkpoint(directory: Path, layers: int = 80) -> int:
    """Write config.json and sparse bfloat16 shards with an index; returns the bytes the weights seem to have."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}, indent=1))
    shapes = tensor_shapes(layers)
    names, weight_map, total = list(shapes), {}, 0
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        header, offset = {}, 0
        for name in names[shard * len(names) // SHARDS : (shard + 1) * len(names) // SHARDS]:
            size = 2
            for length in shapes[name]:
                size *= length
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [offset, offset + size]}
            weight_map[name] = file
            offset += size
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text)
            target.truncate(8 + len(text) + offset)
        total += offset
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def measure(directory: Path) -> dict[str, float]:
    """Build the graph of ``directory`` in place, in a fresh process; its figures and the wall-clock seconds."""
    start = time.perf_counter()
    output = subprocess.run(
        [sys.executable, "-c", _CHILD, str(directory)], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    figures: dict[str, float] = json.loads(output)
    return figures | {"wall_seconds": time.perf_counter() - start}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--keep", type=Path, help="write the checkpoint and the graph here and keep them")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.keep or Path(scratch) / "llama-3-70b"
        weights = write_sparse_checkpoint(directory, arguments.layers)
        figures = measure(directory) | {"weights_bytes": weights, "layers": arguments.layers}
    passed = figures["wall_seconds"] < LIMIT_SECONDS and figures["peak_rss_bytes"] < LIMIT_BYTES
    if arguments.json:
        print(json.dumps(figures | {"passed": passed}))
    else:
        print(
            f"{arguments.layers} layers, {weights / 1e9:.1f} GB of weights, {figures['linears']:.0f} linears: "
            f"{figures['wall_seconds']:.2f} s (limit {LIMIT_SECONDS:g}), "
            f"peak {figures['peak_rss_bytes'] / 1e6:.0f} MB (limit {LIMIT_BYTES / 1e6:.0f}), "
            f"model.onnx {figures['model_onnx_bytes'] / 1e6:.2f} MB: {'passed' if passed else 'FAILED'}"
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
