"""The graph of an RTX engine, in float32 under ONNX Runtime, against the reference model of its checkpoint.

    python -m benchmarks.rtx_graph CHECKPOINT [--layers N] [--prompts 16] [--json]

What the stage ``parity`` computes, for any checkpoint that ``trtforge quantize`` wrote. With ``--layers`` both sides
have the first N layers only: where activations are quantized, a rounding error becomes a step of the grid and grows
from layer to layer, so that few layers tell the graph's own faults from noise. Needs no GPU and no TensorRT.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

PROMPT_TOKENS = 128
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def shortened(checkpoint: Path, out: Path, layers: int) -> Path:
    """A copy of a checkpoint with its first layers only."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    out.mkdir()
    for path in checkpoint.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, out / path.name)
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if not (m := _LAYER.search(name)) or int(m[1]) < layers]  # noqa: SIM118
        save_file({name: file.get_tensor(name) for name in names}, out / "model.safetensors", metadata=file.metadata())
    config = json.loads((checkpoint / "config.json").read_text())
    config["num_hidden_layers"] = layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    (out / "config.json").write_text(json.dumps(config))
    return out


def measure(checkpoint: Path, prompts: int, scratch: Path) -> dict[str, Any]:
    """Figures of :class:`evals.parity.ParityResult`."""
    import torch

    from builder.targets.rtx.float32 import emit_float32
    from builder.targets.rtx.session import Float32Session
    from evals.parity import compare, slice_prompts
    from quantize.corpora import corpus_tokens, load_corpus
    from quantize.reference import load_reference_model
    from trtforge.pipeline.stages.parity import ROUNDING

    info = emit_float32(checkpoint, scratch / "float32")
    session = Float32Session(scratch / "float32")
    reference = load_reference_model(checkpoint, dtype="float32")
    corpus = load_corpus("builtin:python-topics", checkpoint, "evaluation")
    tokens = corpus_tokens(corpus, reference.tokenizer).tolist()
    config = json.loads((checkpoint / "config.json").read_text())
    dtype = config.get("dtype") or config.get("torch_dtype")
    result = compare(
        lambda ids: torch.from_numpy(session.logits(ids.tolist())),
        reference.logits,
        slice_prompts(tokens, prompts, PROMPT_TOKENS),
        perturbed_logits=lambda ids: reference.perturbed_logits(ids, ROUNDING[dtype], seed=0),
    )
    return {"format": info.quant_format, "layers": info.num_layers, **result.to_json()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--layers", type=int, help="only the first N layers")
    parser.add_argument("--prompts", type=int, default=16, help=f"of {PROMPT_TOKENS} tokens")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = given.checkpoint
        if given.layers:
            checkpoint = shortened(checkpoint, Path(scratch) / "short", given.layers)
        found = measure(checkpoint, given.prompts, Path(scratch))
    if given.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['format']}, {found['layers']} layers, {found['positions']} positions: the same best token at "
            f"{found['raw_agreement']['value']:.2%} (the reference with itself {found['floor_raw_agreement']:.2%}), "
            f"KL {found['mean_kl']:.2e} (floor {found['floor_kl']:.2e}), logits at most "
            f"{found['max_abs_logit_difference']:.2g} apart"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
