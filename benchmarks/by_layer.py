"""Most memory that quantizing and evaluating a model of 8 billion parameters takes, one decoder layer at a time.

    python -m benchmarks.by_layer [--layers 32] [--format nvfp4] [--json FILE]

The configuration is Llama-3.1-8B's, in shards of 5 GB as on the Hub. The shards are sparse: the embedding and the
first rows of every linear are random, the rest are holes that read as zeros, and weigh the same in memory. Calibration
text and evaluated text are a few hundred random tokens, since memory is what is measured. Quantization and evaluation
run in a process each; the bar is 1.5 x the largest shard + 2 GB of peak resident memory. Takes about 20 GB of disk
for a format of eight bits, 11 GB for one of four, below the folder of temporary files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from benchmarks.fresh_process import ROOT

#: config.json of Llama-3.1-8B
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "vocab_size": 128256,
}
SHARD_BYTES = 5 * 10**9
TOKENS = 128
#: random rows of every linear
ROWS = 64

_CHILD = """
import json, re, sys, time
from pathlib import Path
begin = time.perf_counter()
sys.path.insert(0, sys.argv[1])
from benchmarks import by_layer
getattr(by_layer, sys.argv[2])(*map(Path, sys.argv[3:5]), *sys.argv[5:])
# not ru_maxrss: that of a new process begins with what the one that started it had
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps({"seconds": time.perf_counter() - begin, "peak_bytes": peak}))
"""


def write_checkpoint(directory: Path, layers: int) -> int:
    """Write the sparse checkpoint; returns the bytes of its largest shard."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    Tokenizer(models.BPE()).save(str(directory / "tokenizer.json"))  # no text is read
    width, ffn, vocab, kv = 4096, 14336, 128256, 1024
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(layers):
        linears = {"q": (width, width), "k": (kv, width), "v": (kv, width), "o": (width, width)}
        stem = f"model.layers.{layer}"
        shapes |= {f"{stem}.self_attn.{name}_proj.weight": shape for name, shape in linears.items()}
        shapes |= {f"{stem}.mlp.{name}_proj.weight": (ffn, width) for name in ("gate", "up")}
        shapes[f"{stem}.mlp.down_proj.weight"] = (width, ffn)
        shapes |= {f"{stem}.{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {"model.norm.weight": (width,), "lm_head.weight": (vocab, width)}
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        if filled + size > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += size
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(names, shards, strict=True):
        _write_shard(directory / file, shard)
    weight_map = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return max((directory / file).stat().st_size for file in names)


def _write_shard(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
        for name, shape in shapes.items():
            rows = shape[0] if "embed" in name else min(ROWS, shape[0])
            values = np.ones(shape, np.float32) if len(shape) == 1 else None
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            for begin in range(0, rows, 4096):
                count = min(4096, rows - begin)
                part = rng.standard_normal((count, shape[1]), np.float32) / 64 if values is None else values[:count]
                file.write((part.view(np.uint32) >> 16).astype(np.uint16).tobytes())
                if values is not None:
                    break


def quantize(source: Path, out: Path, format: str) -> None:
    """What the stage quantize does, over a few random tokens."""
    from importlib.metadata import version

    from quantize.by_layer.calibrate import ByLayer
    from quantize.export import copy_companions
    from quantize.plan import plan_quantization, read_config
    from quantize.ptq import import_stack
    from trtforge.ground.progress import SilentProgress
    from trtforge.ground.safetensors_header import read_headers
    from trtforge.recipe.schema import Quantize

    import_stack()
    section, config = Quantize(format=format, kv_cache="fp8"), read_config(source)
    plan = plan_quantization(config, read_headers(source), section)
    batch = np.random.default_rng(0).integers(0, CONFIG["vocab_size"], (2, TOKENS))
    work = out.with_name("work")
    ByLayer(plan, source, config, batch, section, version("nvidia-modelopt"), work, SilentProgress()).run(out)
    copy_companions(source, out)


def evaluate(checkpoint: Path, work: Path) -> None:
    """Perplexity of a window, as the stages baseline and evaluate measure it."""
    from evals.windows import measure_windows
    from quantize.by_layer.reference import LayeredReference

    tokens = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], 512 + 256).tolist()
    reference = LayeredReference(checkpoint, work=work)
    measure_windows(reference.logits, tokens, window=512, stride=256, keep=True, prepare=reference.prepare)


def main() -> int:
    """Make the checkpoint, measure, and hold the peaks against the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--format", default="nvfp4")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trtforge-by-layer-") as folder:
        source, out = Path(folder, "source"), Path(folder, "quantized")
        shard = write_checkpoint(source, arguments.layers)
        bar = int(1.5 * shard + 2e9)
        runs = {
            "quantize": ("quantize", source, out, arguments.format),
            "baseline": ("evaluate", source, Path(folder, "baseline")),
            "evaluate": ("evaluate", out, Path(folder, "evaluated")),
        }
        figures: dict[str, Any] = {"largest_shard_bytes": shard, "bar_bytes": bar, "layers": arguments.layers}
        for name, (what, *rest) in runs.items():
            command = [sys.executable, "-c", _CHILD, str(ROOT), what, *map(str, rest)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr[-3000:], file=sys.stderr)
                return 1
            figures[name] = json.loads(done.stdout.strip().splitlines()[-1])
            peak, seconds = figures[name]["peak_bytes"], figures[name]["seconds"]
            print(f"{name}: peak {peak / 1e9:.2f} GB of at most {bar / 1e9:.2f} GB, {seconds:.0f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(figures[name]["peak_bytes"] <= bar for name in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
