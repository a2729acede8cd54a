"""The ``torch`` target: the plugin graph packed for the torch executor, on a CPU or a CUDA device.

Policy: nothing is compiled and no weight is changed; an engine is the graph directory plus
``engine.json``, which fixes limits, KV pool and the kernel plan. Weights keep their stored
representation on disk; what the executor turns them into at load is stated for every linear. The same
graph, recipe section and kind of processor give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.files import copy_directory
from builder.graphs.info import GraphInfo
from builder.memory import MemoryPlan
from builder.special_tokens import special_tokens
from builder.targets.parts import check_draft, check_limits, hash_files, write_engines
from builder.targets.record import ENGINE_FILE, write_engine
from builder.targets.torch.kernels import choose, table, weight_bytes
from trtforge.drafting.record import SpeculationRecord
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.ground.safetensors_header import TensorInfo, read_headers
from trtforge.machine.memory import memory
from trtforge.machine.processor import processor
from trtforge.native.ops import ABI_VERSION, OPS_VERSION
from trtforge.recipe.schema import Build, Limits
from trtforge.targets.record import ENGINE_VERSION
from trtforge.targets.torch import TORCH

NAME = TORCH.name
_STORED_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def key_facts() -> dict[str, Any]:
    """What an engine of this target depends on beside graph, recipe and processor: its contracts and kernel table."""
    return {
        "engine": ENGINE_VERSION,
        "ops": OPS_VERSION,
        "host_abi": ABI_VERSION,
        "kernels": hash_file(Path(__file__).with_name("kernels.yaml")),
    }


def build_engine(
    graph_dir: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    speculation: SpeculationRecord | None = None,
    progress: Progress | None = None,
    capability: str | None = None,
) -> dict[str, Any]:
    """Write the engine directory and return what engine.json holds.

    Args:
        graph_dir: what :func:`builder.graphs.build.build_graph` wrote.
        speculation: what the engine drafts by; None: nothing.
        capability: processor level to plan for (see :mod:`trtforge.machine.processor`); default: this machine's.

    Raises:
        ForgeError: ``TF-BLD-010``/``011`` memory, ``TF-BLD-012``/``013`` limits, ``TF-BLD-014``
            parallelism, ``TF-BLD-015`` block sizes differ, ``TF-BLD-016`` the graph is not
            paged, ``TF-BLD-123`` the draft is another target's, ``TF-GRF-015`` no graph directory.
    """
    graph_dir, out = Path(graph_dir), Path(out)
    progress = progress or SilentProgress()
    capability = capability or processor().capability
    model, draft = _Model.read(graph_dir, build, capability, progress), None
    if speculation is not None and speculation.draft is not None:
        draft = _Model.read(graph_dir / speculation.draft, build, capability, progress)
        check_draft(model.graph, draft.graph)
    return write_engines(
        model, draft, out, name=name, build=build, speculation=speculation, free_bytes=lambda: memory().available
    )


@dataclass(frozen=True)
class _Model:
    """One graph with the plan of its linears: the engine's own, or the one that drafts."""

    directory: Path
    graph: GraphInfo
    limits: Limits
    capability: str
    linears: list[dict[str, Any]]
    weight_bytes: int
    progress: Progress

    @classmethod
    def read(cls, directory: Path, build: Build, capability: str, progress: Progress) -> _Model:
        """The graph in ``directory``, held against the limits; errors as :func:`build_engine`."""
        graph = GraphInfo.read(directory)
        if graph.mode != "paged":
            raise ForgeError(
                "TF-BLD-016",
                f"The torch target runs paged graphs, not {graph.mode} ones",
                asked=str(directory),
                why="Its executor keeps the KV cache in pools of blocks.",
                remedies=["Build the graph with mode paged"],
            )
        headers = read_headers(directory)
        linears, linear_bytes = _plan_linears(graph, headers, capability)
        weight_bytes = linear_bytes + _other_weight_bytes(graph, headers)
        limits = check_limits(graph, build, target=NAME)
        return cls(directory, graph, limits, capability, linears, weight_bytes, progress)

    def write(self, out: Path, facts: dict[str, Any], plan: MemoryPlan, hashes: Mapping[str, str]) -> dict[str, Any]:
        """Copy the graph, write engine.json and return it; ``hashes`` are those of files in sub-folders."""
        copy_directory(self.directory, out, exclude=frozenset({ENGINE_FILE}), progress=self.progress)
        stored = {linear["stored"] for linear in self.linears}
        engine: dict[str, Any] = {
            "version": ENGINE_VERSION,
            "target": NAME,
            **facts,
            "planned_for": self.capability,
            "linears": self.linears,
            "kernel_choices": [row.model_dump(exclude_unset=True) for row in table()[1] if row.stored in stored],
            "ops_version": OPS_VERSION,
            "host_abi": ABI_VERSION,
            **special_tokens(out),
            "sha256": {**hash_files(out, frozenset({ENGINE_FILE}), self.progress), **hashes},
        }
        return write_engine(out, engine)


#: names of the embedding table: a decoder's, and an EAGLE-3 head's
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight")


def _embedding_name(headers: Mapping[str, TensorInfo]) -> str:
    return next(name for name in _EMBEDDINGS if name in headers)


def _weight_name(linear: str, headers: Mapping[str, TensorInfo]) -> str:
    """A tied head has no weight of its own: it runs on the embedding table."""
    own = f"{linear}.weight"
    return own if own in headers else _embedding_name(headers)


def _plan_linears(
    graph: GraphInfo, headers: Mapping[str, TensorInfo], capability: str
) -> tuple[list[dict[str, Any]], int]:
    plans, total = [], 0
    for linear in graph.linears:
        stored = linear.format
        if stored == "none":
            stored = _STORED_TYPES[headers[_weight_name(linear.name, headers)].dtype]
        group = linear.group_size
        choice = choose(stored, capability, linear.shape, group)
        total += weight_bytes(choice, linear.shape, group)
        plan = {
            "name": linear.name,
            "shape": list(linear.shape),
            "stored": stored,
            "group_size": group,
            "rounds_input": linear.rounds_input,
            "executed": choice.executed_of(linear.rounds_input),
            "kernel": choice.kernel,
            "native": choice.native,
        }
        plans.append(plan)
    return plans, total


def _other_weight_bytes(graph: GraphInfo, headers: Mapping[str, TensorInfo]) -> int:
    """Embedding table as stored, and norms in float32."""
    norms = (2 * graph.num_layers + 1) * graph.hidden_size * 4
    return headers[_embedding_name(headers)].nbytes + norms
