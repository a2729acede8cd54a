"""The ``tensorrt-rtx`` target: RTX engines, compiled on a CPU from the plugin-free graph.

The artifact::

    engine.json             what was asked, what each RTX engine is for, inputs, profiles, hashes
    <architecture>.rtx      one RTX engine for each architecture of the recipe
    build.log               what the compiler said
    tokenizer.json …

The KV cache is linear: a tensor [B, kv heads, max_seq_len, head size] for keys and one for values in every layer,
which the caller owns and hands in at each step (see :mod:`builder.graphs.native`).
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from builder.graphs.info import GRAPH_FILE, GraphInfo
from builder.special_tokens import special_tokens
from builder.targets.parts import check_limits, model_facts
from builder.targets.record import write_engine
from builder.targets.rtx import refusals
from builder.targets.rtx.compiler import Request, compile_engine
from builder.targets.rtx.heap import compile_heap
from builder.targets.rtx.profiles import Profile, input_dims, make_profiles
from builder.targets.trtllm.common import copy_tokenizer
from trtforge.drafting.record import SpeculationRecord
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.models.kv import kv_bytes_per_token
from trtforge.recipe.schema import Build, Limits
from trtforge.targets import names
from trtforge.targets.record import ENGINE_VERSION
from trtforge.targets.rtx import RTX

NAME = RTX.name
LOG_FILE = "build.log"
SUFFIX = ".rtx"
KIND = "RTX engine"
LOADS_IN = "TensorRT for RTX {version}, on the architecture of the file; never in TensorRT or TensorRT-LLM"
REPRODUCIBLE = (
    "on one installation the same graph, limits, architecture and release give the same bytes: each engine is the "
    "first build of its process, on a heap whose addresses do not depend on time"
)


def build_engine(
    graph_dir: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    speculation: SpeculationRecord | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compile an RTX engine for every architecture of the recipe; returns what engine.json holds.

    Args:
        graph_dir: a graph of mode ``native``, as :func:`builder.graphs.build.build_graph` wrote it.

    Raises:
        ForgeError: ``TF-BLD-012`` … ``TF-BLD-014`` limits, ``TF-BLD-087`` the graph is of another mode,
            ``TF-BLD-088`` no architecture is named, ``TF-BLD-080`` … ``TF-BLD-086`` the compiler,
            ``TF-ENV-001``, ``TF-BLD-089`` and ``TF-BLD-090`` the heap that it runs on; ``TF-BLD-121`` speculation.
    """
    import onnx

    from builder.targets.rtx.lowering import lower

    graph_dir, out = Path(graph_dir), Path(out)
    progress = progress or SilentProgress()
    if speculation is not None:
        drafting = names(lambda target: target.runs_here)
        raise ForgeError(
            "TF-BLD-121",
            "An RTX engine drafts nothing",
            asked=f"speculation.method: {speculation.method}",
            why="Its requests have linear caches and padded batches; drafts are verified over paged caches.",
            remedies=[
                "speculation.method: none",
                *(f"build.target: {other}" for other in drafting),
            ],
        )
    graph = GraphInfo.read(graph_dir)
    _check(graph_dir, graph, build)
    limits = check_limits(graph, build, target=NAME)
    if find_spec("tensorrt_rtx") is None:
        raise refusals.refusal(
            "import", ["it is not installed"], architecture=build.architectures[0], asked=f"build.target: {NAME}"
        )
    lowered = lower(onnx.load(graph_dir / GRAPH_FILE, load_external_data=False), capacity=limits.max_seq_len)
    inputs, profiles = input_dims(lowered), make_profiles(limits)
    out.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(graph_dir, out)
    engines, version = [], ""
    with tempfile.TemporaryDirectory(prefix=".rtx-", dir=out) as scratch:
        model = Path(scratch) / GRAPH_FILE
        model.write_bytes(lowered.SerializeToString(deterministic=True))
        heap = compile_heap(Path(scratch))
        for architecture in dict.fromkeys(build.architectures):
            file = out / f"{architecture}{SUFFIX}"
            request = Request(
                model=model,
                weights=graph_dir / GRAPH_FILE,
                engine=Path(scratch) / file.name,
                architecture=architecture,
                profiles=tuple(profile.shapes(inputs) for profile in profiles),
            )
            asked = f"build.target: {NAME}, build.architectures: {architecture}, format {graph.quant_format}"
            built = compile_engine(request, out / LOG_FILE, heap=heap, asked=asked, progress=progress)
            request.engine.replace(file)
            version = built["version"]
            engines.append(
                {
                    "architecture": architecture,
                    "file": file.name,
                    "bytes": built["bytes"],
                    "layers": built["layers"],
                    "sha256": hash_file(file),
                }
            )
    engine = {
        "version": ENGINE_VERSION,
        "target": NAME,
        "kind": KIND,
        "name": name,
        "compiled": True,
        "tensorrt_rtx": version,
        "loads_in": LOADS_IN.format(version=version),
        "architectures": [item["architecture"] for item in engines],
        "engines": engines,
        "reproducible": REPRODUCIBLE,
        **_describe(graph, limits, profiles, inputs),
        **special_tokens(graph_dir),
    }
    return write_engine(out, engine)


def _check(graph_dir: Path, graph: GraphInfo, build: Build) -> None:
    if graph.mode != "native":
        raise ForgeError(
            "TF-BLD-087",
            f"RTX engines are built from native graphs, not from {graph.mode} ones",
            asked=str(graph_dir),
            why="TensorRT for RTX is given no plugins: a graph that carries them aborts its parser.",
            remedies=["Build the graph with mode native (trtforge run does so for this target)"],
        )
    if not build.architectures:
        raise ForgeError(
            "TF-BLD-088",
            "The recipe names no architecture to compile an RTX engine for",
            asked="build.architectures: []",
            why="The engine is compiled on the CPU, for GPUs that need not be here.",
            remedies=["build.architectures: [sm_89]", "build.architectures: [sm_80, sm_86, sm_120]"],
        )


def _describe(
    graph: GraphInfo, limits: Limits, profiles: tuple[Profile, ...], inputs: dict[str, tuple[int | str, ...]]
) -> dict[str, Any]:
    kind = graph.kv_cache["format"]
    per_token = kv_bytes_per_token(graph.kv, kind)
    return {
        **model_facts(graph),
        "sliding_window": graph.sliding_window,
        "full_attention_layers": list(graph.full_attention_layers),
        "limits": limits.model_dump(),
        "kv_cache": {
            "format": kind,
            "layout": "linear",
            "capacity": limits.max_seq_len,
            "bytes_per_request": per_token * limits.max_seq_len,
            "bytes": per_token * limits.max_seq_len * limits.max_batch_size,
        },
        "inputs": {name: list(dims) for name, dims in inputs.items()},
        "profiles": [profile.to_json() for profile in profiles],
        "quantized_linears": sum(linear.format != "none" for linear in graph.linears),
    }
