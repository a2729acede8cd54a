"""Quantized checkpoints of every tool, their records, indices and headers mutated; through the audit and intake."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from quantize.audit import audit_checkpoint
from quantize.intake import fetch_checkpoint, inspect_source
from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Target, command
from tests.quantize.forensics import checkpoints as made

_SMALL = (
    "config.json",
    "hf_quant_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "generation_config.json",
)
_FORMS = ("pack-quantized", "float-quantized", "int-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")


def make_audits(pristine: Path) -> Attempt:
    """One checkpoint of each tool's form, some in shards."""
    kinds = {
        "modelopt": made.modelopt("NVFP4", kv=True, moe=True),
        "mixed": made.modelopt("MIXED_PRECISION"),
        "awq": made.awq(),
        "gptq": made.gptq(desc_act=True),
        "blocks": made.fp8_blocks(),
        "static": made.fp8_static(),
        "mxfp4": made.mxfp4(),
        **{form: made.compressed(form, kv=True) for form in _FORMS},
    }
    for number, (name, kind) in enumerate(kinds.items()):
        made.write(pristine / name, *kind, shards=1 + 2 * (number % 2))
    made.trtllm(pristine / "trtllm")
    base = made.write(pristine / "base", *made.unquantized())
    names = (*kinds, "trtllm")

    def attempt(draw: random.Random, folder: Path) -> None:
        model = folder / "model"
        shutil.copytree(pristine / draw.choice(names), model)
        small = [name for name in _SMALL if (model / name).is_file()]
        for name in draw.sample(small, draw.choice((0, 1, 1, 2)) if len(small) > 1 else 1):
            document = json.loads((model / name).read_text(encoding="utf-8"))
            (model / name).write_bytes(mutate.dumped(draw, mutate.document(draw, document)))
        if draw.random() < 0.5:
            path = draw.choice(sorted(model.glob("*.safetensors")))
            raw = path.read_bytes()
            change = mutate.safetensors_header if draw.random() < 0.6 else mutate.data
            path.write_bytes(change(draw, raw))
        kind = draw.random()
        if kind < 0.6:
            audit_checkpoint(model, base=base if draw.random() < 0.5 else None).to_json()
        elif kind < 0.7:
            command("audit", model)
        elif kind < 0.8:
            inspect_source("model", folder, early=draw.random() < 0.5)
        else:
            fetch_checkpoint("model", folder / "out", base_dir=folder, cache_dir=folder / "cache")

    return attempt


AUDITS = Target("audits", "quantized checkpoints of every tool, through the audit and intake", make_audits, cases=60)
