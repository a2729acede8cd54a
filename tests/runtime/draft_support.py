"""Tiny targets with a drafter beside them: every EAGLE-3 dialect, with heads of the size that PagedAttention takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file

from builder.graphs.build import build_graph
from builder.graphs.drafts import build_draft, taps_of
from builder.speculation import engine_record
from runtime.speculation.reference import Eagle3Reference
from tests.builder.quantized_tiny import Quantizer
from tests.support.engines import build_engine
from tests.support.tiny import write_tiny_llama
from tests.trtforge.drafting import checkpoints
from tests.trtforge.drafting.checkpoints import TARGET_LAYERS, Spec
from trtforge.recipe.schema import Build, KvCache, Limits, Speculation

LIMITS = Limits(max_batch_size=8, max_num_tokens=96, max_seq_len=192)
BLOCK = 16
#: rows of the tiny target's embedding (its tokenizer needs 259), and of the drafter's head
VOCAB, DRAFT_VOCAB = 300, 48
SIZES = {"SIZE": 64, "VOCAB": VOCAB, "DRAFT_VOCAB": DRAFT_VOCAB}


@contextmanager
def sized() -> Iterator[None]:
    """The generator of checkpoints, with sizes that an engine takes."""
    with patch.multiple(checkpoints, **SIZES):
        yield


def specs() -> list[Spec]:
    """The generator's grid."""
    return checkpoints.specs()


def write_target(folder: Path, spec: Spec, fmt: str = "none", dtype: str = "float32") -> Path:
    """A target of the width that the drafter reads."""
    layers, width = TARGET_LAYERS, spec.target_width
    return Quantizer(
        write_tiny_llama(
            folder, layers=layers, width=width, heads=4, kv_heads=2, ffn=32, vocab=VOCAB, tie=False, dtype=dtype
        ),
        fmt,
    ).directory


def write_head(folder: Path, target: Path, spec: Spec) -> Path:
    """The drafter of ``spec``; an embedding of its own has the target's width or another."""
    own: dict[str, Any] = {}
    if spec.own_embedding and spec.target_width == checkpoints.WIDTH:
        table = load_file(target / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
        own["embed_tokens__weight"] = ("F32", np.ascontiguousarray(table * 1.01))
    with sized():
        return checkpoints.write(folder, spec, **own)


def speculation(**keys: Any) -> Speculation:
    """The section of a recipe whose drafter is ``head``."""
    return Speculation.model_validate({"method": "eagle3", "draft": "head", "max_draft_len": 4, **keys})


def build(
    root: Path,
    target: Path,
    head: Path,
    asked: Speculation,
    dtype: str = "float32",
    *,
    limits: Limits = LIMITS,
    memory: str = "8MiB",
) -> Path:
    """The engine of both in ``root / "engine"``."""
    graph = root / "graph"
    tree = asked.choices is not None or asked.dynamic_tree is not None
    taps = taps_of(asked, head, target)
    build_graph(target, graph, dtype=dtype, block_size=BLOCK, hidden_states=taps, tree_mask=tree)
    build_draft(asked, head, target, graph, dtype=dtype, block_size=BLOCK)
    recipe = Build(limits=limits, kv_cache=KvCache.model_validate({"block_size": BLOCK, "memory": memory}))
    build_engine(graph, root / "engine", name="tiny", build=recipe, speculation=engine_record(asked, graph))
    shutil.rmtree(graph)
    return root / "engine"


def reference_of(head: Path, target: Path) -> Eagle3Reference:
    """The drafter in plain PyTorch."""
    tables = load_file(target / "model.safetensors")
    return Eagle3Reference.open(
        head, embedding=tables["model.embed_tokens.weight"].float(), lm_head=tables["lm_head.weight"].float()
    )


def made(spec: Spec, length: int, requests: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(tokens [n], taps [n, m·Ht]) of requests, from the drafter's seed."""
    generator = torch.Generator().manual_seed(spec.seed)
    width = len(spec.taps or (0, 0, 0)) * spec.target_width
    return [
        (
            torch.randint(VOCAB, (length + request,), generator=generator),
            torch.randn(length + request, width, generator=generator),
        )
        for request in range(requests)
    ]


def config_of(folder: Path) -> dict[str, Any]:
    """An engine's record."""
    record: dict[str, Any] = json.loads((folder / "engine.json").read_text())
    return record
