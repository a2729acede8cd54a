"""Checkpoints: the JSON beside the weights, the headers of safetensors, GGUF files; through intake and ``check``."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from quantize.intake import fetch_checkpoint, inspect_source
from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Fault, Target, command
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_recipe import RECIPE
from trtforge.ground.errors import ForgeError

_JSON = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
_ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
#: keys that no tiny checkpoint has, so that a mutation may meet what reads them
_MORE: dict[str, Any] = {
    "quantization_config": {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}},
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64},
    "auto_map": {"AutoModel": "x.Y"},
    "layer_types": ["full_attention", "sliding_attention"],
    "text_config": {"hidden_size": 64},
    "head_dim": 32,
}


def _attempted(draw: random.Random, folder: Path, source: Path) -> None:
    """Headers, the whole of intake, or the command; intake leaves a checkpoint or nothing that looks like one."""
    kind = draw.random()
    if kind < 0.4:
        inspect_source(source.name, source.parent)
    elif kind < 0.8:
        out = folder / "out"
        try:
            fetch_checkpoint(source.name, out, base_dir=source.parent, cache_dir=folder / "cache")
        except ForgeError:
            if (out / "checkpoint.json").exists():
                raise Fault("refused, but checkpoint.json says that it is whole") from None
            raise
        inspect_source("out", folder)
    else:
        (folder / "tiny.yaml").write_text(
            RECIPE.replace("FORMAT", "none").replace("KV", "none").replace("source: model", f"source: {source.name}")
        )
        command("check", folder / "tiny.yaml", "--store", folder / "store")


def make_configs(pristine: Path) -> Attempt:
    """Tiny checkpoints of each architecture."""
    for name in _ARCHITECTURES:
        write_tiny_llama(pristine / name, architecture=name, layers=1)

    def attempt(draw: random.Random, folder: Path) -> None:
        model = folder / "model"
        _link(pristine / draw.choice(_ARCHITECTURES), model)
        for name in draw.sample(_JSON, draw.choice((1, 1, 2))):
            document = json.loads((model / name).read_text(encoding="utf-8"))
            if name == "config.json":
                document |= {key: _MORE[key] for key in _MORE if draw.random() < 0.1}
            raw = mutate.dumped(draw, mutate.document(draw, document))
            (model / name).unlink()
            (model / name).write_bytes(raw)
        _attempted(draw, folder, model)

    return attempt


def make_safetensors(pristine: Path) -> Attempt:
    """A tiny checkpoint in one file, and one in shards with an index."""
    write_tiny_llama(pristine / "one", layers=1)
    write_tiny_llama(pristine / "shards", layers=1, shards=3)

    def attempt(draw: random.Random, folder: Path) -> None:
        model = folder / "model"
        _link(pristine / draw.choice(("one", "shards")), model)
        path = draw.choice(sorted([*model.glob("*.safetensors"), *model.glob("*.index.json")]))
        raw = path.read_bytes()
        path.unlink()
        if path.suffix == ".json":
            path.write_bytes(mutate.dumped(draw, mutate.document(draw, json.loads(raw))))
        elif draw.random() < 0.5:
            path.write_bytes(mutate.safetensors_header(draw, raw))
        else:
            path.write_bytes(mutate.data(draw, raw, within=4096))
        if draw.random() < 0.05:
            os.truncate(path, draw.choice((0, 7, 8, 2**40)))  # the last is sparse, and never read whole
        _attempted(draw, folder, model)

    return attempt


def make_gguf(pristine: Path) -> Attempt:
    """Tiny GGUF files of two types."""
    write_tiny_llama(pristine / "model", layers=1)
    files = [
        write_tiny_gguf(pristine / f"{kind}.gguf", pristine / "model", matrix_type=kind).read_bytes()
        for kind in ("F32", "Q8_0")
    ]

    def attempt(draw: random.Random, folder: Path) -> None:
        path = folder / "model.gguf"
        raw = draw.choice(files)
        # the keys, the tokens, the tensors' table: the header of these files has some 25 kB
        path.write_bytes(mutate.data(draw, raw, within=draw.choice((64, 1200, 30000, None))))
        if draw.random() < 0.05:
            os.truncate(path, draw.choice((0, 23, 2**26)))  # the last is sparse; all of it is hashed
        _attempted(draw, folder, path)

    return attempt


def _link(source: Path, target: Path) -> None:
    """A copy of a folder of files that are replaced, never written to."""
    shutil.copytree(source, target, copy_function=os.link)


CONFIGS = Target("configs", "config.json, generation_config, tokenizer files: intake and check", make_configs)
SAFETENSORS = Target("safetensors", "headers and indexes of safetensors: intake and check", make_safetensors)
GGUF = Target("gguf", "GGUF files: intake and check", make_gguf)
