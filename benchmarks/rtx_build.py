"""Seconds, memory and size of RTX engines of a 135M model, and whether two builds give the same bytes.

    python -m benchmarks.rtx_build [CHECKPOINT …] [--architecture sm_80] [--dtype float16] [--once] [--json]

Without a checkpoint the model is random float16 weights in the sizes of SmolLM2-135M. Each engine is built twice by
the product's own target, each time in a process of its own; memory is the peak of a build's process and seconds are
its time by the clock and on the processor (on a loaded machine only the second means anything). Needs tensorrt-rtx.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: config.json of SmolLM2-135M-Instruct
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.04,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "vocab_size": 49152,
}
LIMITS = {"max_batch_size": 16, "max_num_tokens": 2048, "max_seq_len": 2048}


def write_random(directory: Path) -> Path:
    """A checkpoint with random weights in the sizes of :data:`CONFIG`."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    hidden, ffn, kv = 576, 1536, 3 * 64
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (49152, hidden), "model.norm.weight": (hidden,)}
    for layer in range(30):
        prefix = f"model.layers.{layer}"
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            shapes[f"{prefix}.{name}.weight"] = shape
    directory.mkdir(parents=True)
    tensors = {name: (rng.standard_normal(shape) * 0.04).astype(np.float16) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


def measure(checkpoint: Path, architecture: str, dtype: str, scratch: Path) -> dict[str, Any]:
    """One build of one engine; the graph's time is not counted."""
    from builder.graphs.build import build_graph
    from builder.targets.rtx.target import build_engine
    from trtforge.recipe.schema import Build

    graph = scratch / "graph"
    info = build_graph(checkpoint, graph, dtype=dtype, kv_cache_format=dtype, mode="native")
    build = Build.model_validate({"target": "tensorrt-rtx", "architectures": [architecture], "limits": LIMITS})
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    engine = build_engine(graph, scratch / "engine", name="benchmark", build=build)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (item,) = engine["engines"]
    return {
        "format": info.quant_format,
        "architecture": architecture,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_rss_bytes": after.ru_maxrss * 1024,
        "engine_bytes": item["bytes"],
        "sha256": item["sha256"],
        "load_average": round(os.getloadavg()[0], 1),
        "tensorrt_rtx": engine["tensorrt_rtx"],
    }


def _child(arguments: list[str]) -> dict[str, Any]:
    """A measurement in a process of its own: the peak of memory is of its children only."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rtx_build", "--measure", *arguments], stdout=subprocess.PIPE, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", nargs="*", type=Path, help="quantized or plain checkpoint directories")
    parser.add_argument("--architecture", default="sm_80")
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--once", action="store_true", help="one build, no comparison of bytes")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.measure:
        with tempfile.TemporaryDirectory() as scratch:
            print(json.dumps(measure(given.checkpoint[0], given.architecture, given.dtype, Path(scratch))))
        return 0
    results = []
    with tempfile.TemporaryDirectory() as made:
        for checkpoint in given.checkpoint or [write_random(Path(made) / "random")]:
            arguments = [str(checkpoint), "--architecture", given.architecture, "--dtype", given.dtype]
            result = _child(arguments)
            if not given.once:
                result["same_bytes_again"] = _child(arguments)["sha256"] == result["sha256"]
            results.append(result)
    for result in results:
        if given.json:
            print(json.dumps(result))
        else:
            same = {True: ", the same bytes again", False: ", OTHER BYTES AGAIN", None: ""}[
                result.get("same_bytes_again")
            ]
            print(
                f"{result['format']} for {result['architecture']}: {result['seconds']} s ({result['cpu_seconds']} s of "
                f"processor, load {result['load_average']}), {result['peak_rss_bytes'] / 1e9:.2f} GB, RTX engine "
                f"{result['engine_bytes'] / 1e6:.0f} MB{same}"
            )
    return 0 if all(result.get("same_bytes_again", True) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
