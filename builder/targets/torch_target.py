"""The ``torch`` target: the plugin graph packed for the torch executor, on a CPU or a CUDA device.

Policy: nothing is compiled and no weight is changed; an engine is the graph directory plus
``engine.json``, which fixes limits, KV pool and the kernel plan. Weights keep their stored
representation on disk; what the executor turns them into at load is stated for every linear. The same
graph, recipe section and kind of processor give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.files import content_files, copy_directory
from builder.graphs.info import GraphInfo
from builder.machine import cpu_capability, free_memory
from builder.memory import ModelShape, plan_memory
from builder.targets.kernels import choose, table, weight_bytes
from trtforge.errors import ForgeError
from trtforge.progress import Progress, SilentProgress
from trtforge.recipe.schema import Build, Limits
from trtforge.safetensors_header import TensorInfo, read_headers

NAME = "torch"
ENGINE_FILE = "engine.json"
ENGINE_VERSION = 1
#: version of the op contracts (domain trtforge) that the engine's graph uses
OPS_VERSION = 1
#: C ABI of the host library that the executor needs (TRTFORGE_HOST_ABI)
HOST_ABI = 1
_STORED_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def build_engine(
    graph_dir: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    progress: Progress | None = None,
    capability: str | None = None,
) -> dict[str, Any]:
    """Write the engine directory and return what engine.json holds.

    Args:
        graph_dir: what :func:`builder.graphs.build_graph` wrote.
        capability: processor level to plan for (see :mod:`builder.machine`); default: this machine's.

    Raises:
        ForgeError: ``TF-BLD-010``/``011`` memory, ``TF-BLD-012``/``013`` limits, ``TF-BLD-014``
            parallelism, ``TF-BLD-015`` block sizes differ, ``TF-BLD-016`` the graph is not
            paged, ``TF-GRF-015`` no graph directory.
    """
    graph_dir, out = Path(graph_dir), Path(out)
    progress = progress or SilentProgress()
    graph = GraphInfo.read(graph_dir)
    if graph.mode != "paged":
        raise ForgeError(
            "TF-BLD-016",
            f"The torch target runs paged graphs, not {graph.mode} ones",
            asked=str(graph_dir),
            why="Its executor keeps the KV cache in pools of blocks.",
            remedies=["Build the graph with mode paged"],
        )
    limits = _checked_limits(graph, build)
    capability = capability or cpu_capability()
    headers = read_headers(graph_dir)
    linears, linear_bytes = _plan_linears(graph, headers, capability)
    fraction = build.kv_cache.free_fraction
    plan = plan_memory(
        _shape(graph),
        limits,
        build.kv_cache,
        graph.kv_cache["format"],
        weights_bytes=linear_bytes + _other_weight_bytes(graph, headers),
        free_bytes=free_memory() if fraction is not None else None,
    )
    copy_directory(graph_dir, out, exclude=frozenset({ENGINE_FILE}), progress=progress)
    stored = {linear["stored"] for linear in linears}
    engine: dict[str, Any] = {
        "version": ENGINE_VERSION,
        "target": NAME,
        "name": name,
        "architecture": graph.architecture,
        "dtype": graph.dtype,
        "quant_format": graph.quant_format,
        "group_size": graph.group_size,
        "vocab_size": graph.vocab_size,
        "max_position_embeddings": graph.max_position_embeddings,
        "limits": limits.model_dump(),
        "kv_cache": {
            "format": graph.kv_cache["format"],
            "scales": graph.kv_cache["scales"],
            "block_size": plan.block_size,
            "num_blocks": plan.num_blocks,
            "bytes_per_block": plan.bytes_per_block,
        },
        "memory_plan": plan.to_json(),
        "planned_for": capability,
        "linears": linears,
        "kernel_choices": [row.to_json() for row in table()[1] if row.stored in stored],
        "ops_version": OPS_VERSION,
        "host_abi": HOST_ABI,
        **_special_tokens(out),
        "sha256": _hashes(out, progress),
    }
    text = json.dumps(engine, indent=1, sort_keys=True) + "\n"
    partial = out / f"{ENGINE_FILE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(out / ENGINE_FILE)
    result: dict[str, Any] = json.loads(text)
    return result


def _shape(graph: GraphInfo) -> ModelShape:
    return ModelShape(
        graph.num_layers,
        graph.hidden_size,
        graph.intermediate_size,
        graph.num_heads,
        graph.num_kv_heads,
        graph.head_size,
        graph.vocab_size,
    )


def _checked_limits(graph: GraphInfo, build: Build) -> Limits:
    limits, parallel = build.limits, build.parallel
    if (parallel.tp, parallel.pp, parallel.ep) != (1, 1, 1):
        raise ForgeError(
            "TF-BLD-014",
            f"The torch target runs on one device, not tp {parallel.tp} x pp {parallel.pp} x ep {parallel.ep}",
            asked=f"build.parallel tp={parallel.tp} pp={parallel.pp} ep={parallel.ep}",
            why="Its executor has no collectives.",
            remedies=["Remove build.parallel", "Serve several instances behind a balancer"],
        )
    if limits.max_seq_len > graph.max_position_embeddings:
        raise ForgeError(
            "TF-BLD-012",
            f"max_seq_len {limits.max_seq_len} is over the model's {graph.max_position_embeddings} positions",
            asked=f"build.limits.max_seq_len: {limits.max_seq_len}",
            numbers={"max_seq_len": limits.max_seq_len, "max_position_embeddings": graph.max_position_embeddings},
            why="Past its trained positions a rotary model turns to garbage without an error.",
            remedies=[f"Set build.limits.max_seq_len to at most {graph.max_position_embeddings}"],
        )
    longest_input = limits.max_seq_len - 1 if limits.max_input_len is None else limits.max_input_len
    if not 0 < longest_input < limits.max_seq_len:
        raise ForgeError(
            "TF-BLD-013",
            f"max_input_len {longest_input} leaves no room for an answer in max_seq_len {limits.max_seq_len}",
            asked=f"build.limits.max_input_len: {longest_input}",
            numbers={"max_input_len": longest_input, "max_seq_len": limits.max_seq_len},
            why="max_seq_len counts prompt and answer together.",
            remedies=["Raise build.limits.max_seq_len", "Lower build.limits.max_input_len (or leave it out)"],
        )
    if limits.max_num_tokens < limits.max_batch_size:
        raise ForgeError(
            "TF-BLD-013",
            f"max_num_tokens {limits.max_num_tokens} is under max_batch_size {limits.max_batch_size}",
            asked=f"build.limits.max_num_tokens: {limits.max_num_tokens}",
            numbers={"max_num_tokens": limits.max_num_tokens, "max_batch_size": limits.max_batch_size},
            why="Each running request takes at least one token of every step.",
            remedies=[
                f"Set build.limits.max_num_tokens to at least {limits.max_batch_size}",
                "Lower build.limits.max_batch_size",
            ],
        )
    if build.kv_cache.block_size != graph.kv_cache["block_size"]:
        raise ForgeError(
            "TF-BLD-015",
            f"The graph has KV blocks of {graph.kv_cache['block_size']} slots, not {build.kv_cache.block_size}",
            asked=f"build.kv_cache.block_size: {build.kv_cache.block_size}",
            numbers={"graph": graph.kv_cache["block_size"], "recipe": build.kv_cache.block_size},
            why="The block size is part of the graph's pool shapes.",
            remedies=["Build the graph again with the recipe's block size"],
        )
    return limits.model_copy(update={"max_input_len": longest_input})


def _weight_name(linear: str, headers: Mapping[str, TensorInfo]) -> str:
    """A tied head has no weight of its own: it runs on the embedding table."""
    own = f"{linear}.weight"
    return own if own in headers else "model.embed_tokens.weight"


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
            "executed": choice.executed,
            "kernel": choice.kernel,
            "native": choice.native,
        }
        if choice.above is not None:
            plan |= {"max_rows": choice.max_rows, "above": choice.above}
        plans.append(plan)
    return plans, total


def _other_weight_bytes(graph: GraphInfo, headers: Mapping[str, TensorInfo]) -> int:
    """Embedding table as stored, and norms in float32."""
    norms = (2 * graph.num_layers + 1) * graph.hidden_size * 4
    return headers["model.embed_tokens.weight"].nbytes + norms


def _special_tokens(directory: Path) -> dict[str, Any]:
    """End and start tokens; generation_config.json wins over config.json, as in transformers' generate."""
    found: dict[str, Any] = {}
    for file in ("config.json", "generation_config.json"):
        path = directory / file
        if path.is_file():
            raw = json.loads(path.read_text(encoding="utf-8"))
            found |= {key: raw[key] for key in ("eos_token_id", "bos_token_id") if raw.get(key) is not None}
    ends = found.get("eos_token_id", [])
    return {"eos_token_ids": [ends] if isinstance(ends, int) else list(ends), "bos_token_id": found.get("bos_token_id")}


def _hashes(directory: Path, progress: Progress) -> dict[str, str]:
    files = list(content_files(directory, exclude=frozenset({ENGINE_FILE})))
    progress.start("hashing the engine", float(sum(path.stat().st_size for path in files)))
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        progress.advance(float(path.stat().st_size))
    return hashes
