"""Self test of the CUDA ops on this machine: on its GPU, or under the host shim where there is none.

A quick proof that the built kernels compute right here; the conformance suites live in the tests. ``trtforge plugins
test`` prints the result.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from plugins import reference, reference_trees
from plugins.cuda.build import build_shim_library
from plugins.cuda.library import CudaLibrary, find_cuda_library
from plugins.host import load
from plugins.selftest import TOLERANCE, Check, _run, _step
from plugins.shared_ops import SharedOps
from plugins.trees import TreeShape, new_state
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import Progress, SilentProgress

PAIRS = (
    ("bfloat16", "bfloat16"), ("bfloat16", "float8_e4m3fn"), ("float16", "float16"), ("float16", "float8_e4m3fn"),
    ("float32", "float32"), ("bfloat16", "float16"),
)  # fmt: skip


def open_library() -> CudaLibrary:
    """The GPU library when a GPU and a build are here, else the kernels under the host shim.

    Raises:
        EnvironmentLacks: TF-ENV-001, 002 or TF-OPS-007 when neither can be had.
    """
    if torch.cuda.is_available():
        return CudaLibrary(find_cuda_library())
    return CudaLibrary(build_shim_library().library)


def run_cuda_checks(*, progress: Progress | None = None) -> list[Check]:
    """Compare the CUDA ops and the host's speculation ops with the references; never raises for a difference.

    Raises:
        EnvironmentLacks: the CUDA ops can run neither on a GPU nor under the shim.
        ForgeError: TF-CLI-008, 009 when the shim cannot be compiled.
    """
    progress = progress or SilentProgress()
    library = open_library()
    host = load()
    where = "GPU" if library.on_gpu else "shim"
    checks: list[tuple[str, Callable[[], str | None]]] = [
        (f"{where}: attention, {activation} on {pool}", functools.partial(_attention, library, activation, pool))
        for activation, pool in PAIRS
    ]
    for name, ops in (("host", host), (where, library)):
        checks += [
            (f"{name}: EagleTreeBuild", functools.partial(_tree, ops)),
            (f"{name}: EagleAccept", functools.partial(_accept, ops)),
            (f"{name}: PagedKVMove", functools.partial(_move, ops)),
        ]
    progress.start(f"CUDA ops ({where})", total=float(len(checks)))
    results = []
    for name, check in checks:
        try:
            fault = check()
        except ForgeError as error:
            fault = f"{error.code}: {error.message}"
        results.append(Check(name, fault is None, fault or "agrees with the reference"))
        progress.advance()
    return results


def can_run() -> str | None:
    """None when :func:`run_cuda_checks` can run here, else what is missing."""
    try:
        open_library()
    except (EnvironmentLacks, ForgeError) as lacks:
        return f"{lacks.code}: {lacks.message}"
    return None


def _attention(library: CudaLibrary, activation: str, pool: str) -> str | None:
    step = _step(pool, [(330, 1), (0, 21), (40, 3)], activation)
    there: dict[str, Any] = {
        name: tuple(x.to(library.device) for x in value) if isinstance(value, tuple) else
        value.to(library.device) if isinstance(value, torch.Tensor) else value
        for name, value in step.items()
    }  # fmt: skip
    for options in ({}, {"sliding_window": 33, "soft_cap": 20.0}):
        ours, theirs = there["pool"].clone(), step["pool"].clone()
        actual = _run(library.paged_attention, there, ours, **options).float().cpu()
        expected = _run(reference.paged_attention, step, theirs, **options).float()
        difference = float((actual - expected).abs().max())
        if not difference <= TOLERANCE[activation]:
            return f"largest difference {difference:.1e}, allowed {TOLERANCE[activation]:.0e}"
        if not torch.equal(ours.cpu().view(torch.uint8), theirs.view(torch.uint8)):
            return "stored keys and values differ"
    return None


def _tree(ops: SharedOps) -> str | None:
    generator = torch.Generator().manual_seed(3)
    shape = TreeShape(top_k=6, expand=5, levels=3, total=24)
    ours, theirs = new_state(shape, 2, ops.device), new_state(shape, 2)
    roots = torch.tensor([5, 7], dtype=torch.int32)
    for level in range(shape.levels):
        logits = torch.randn(2, 1 if level == 0 else shape.expand, 500, generator=generator)
        actual = ops.eagle_tree_build(logits.to(ops.device), roots.to(ops.device), ours, shape, level)
        expected = reference_trees.eagle_tree_build(logits, roots, theirs, shape, level)
        for field in dataclasses.fields(expected):
            mine, wanted = getattr(actual, field.name).cpu(), getattr(expected, field.name)
            same = torch.allclose(mine, wanted, atol=1e-5) if field.name == "scores" else torch.equal(mine, wanted)
            if not same:
                return f"level {level}: {field.name} differ"
    return None


def _accept(ops: SharedOps) -> str | None:
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 3, (3, 12), generator=generator).int()
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 3, 3, 4, 6, 6, 9], dtype=torch.int32).expand(3, -1).contiguous()
    counts = torch.tensor([12, 5, 1], dtype=torch.int32)
    logits = torch.randn(36, 3, generator=generator)
    for sampled in (False, True):
        options: dict[str, torch.Tensor] = {}
        if sampled:
            options = {"temperatures": torch.tensor([0.7, 0.0, 1.3]), "seeds": torch.tensor([1, 2, -3]),
                       "root_positions": torch.tensor([9, 8, 7], dtype=torch.int32)}  # fmt: skip
        there = {name: value.to(ops.device) for name, value in options.items()}
        moved = [x.to(ops.device) for x in (logits, tokens, parents, counts)]
        actual = ops.eagle_accept(*moved, **there)
        expected = reference_trees.eagle_accept(logits, tokens, parents, counts, **options)
        for field in dataclasses.fields(expected):
            if not torch.equal(getattr(actual, field.name).cpu(), getattr(expected, field.name)):
                return f"{field.name} differ ({'sampled' if sampled else 'greedy'})"
    return None


def _move(ops: SharedOps) -> str | None:
    generator = torch.Generator().manual_seed(5)
    pools = [torch.randn(8, 2, 2, 16, 64, generator=generator).bfloat16() for _ in range(2)]
    table = torch.randperm(8, generator=generator).int().view(2, 4)
    base = torch.tensor([10, 30], dtype=torch.int32)
    path = torch.tensor([[0, 2, 3, 9, -1], [0, 1, 20, -1, -1]], dtype=torch.int32)
    lengths = torch.tensor([4, 3], dtype=torch.int32)
    ours, theirs = [pool.clone().to(ops.device) for pool in pools], [pool.clone() for pool in pools]
    ops.paged_kv_move(ours, *(x.to(ops.device) for x in (table, base, path, lengths)))
    reference_trees.paged_kv_move(theirs, table, base, path, lengths)
    same = all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))
    return None if same else "moved rows differ"
