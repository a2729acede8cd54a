"""What the targets that build from the graph share: limits, sizes, hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from builder.files import content_files
from builder.graphs.info import GraphInfo
from builder.memory import DraftMemory, MemoryPlan, activation_bytes, plan_memory
from builder.targets.record import ENGINE_FILE
from trtforge.drafting.record import DRAFT_DIR, SpeculationRecord
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.ground.progress import Progress
from trtforge.models.kv import kv_bytes_per_token
from trtforge.recipe.schema import Build, Limits


def longest_input(limits: Limits) -> int:
    """The recipe's ``max_input_len``, or what ``max_seq_len`` leaves beside one token of an answer.

    Raises:
        ForgeError: ``TF-BLD-013`` no room for an answer.
    """
    longest = limits.max_seq_len - 1 if limits.max_input_len is None else limits.max_input_len
    if 0 < longest < limits.max_seq_len:
        return longest
    raise ForgeError(
        "TF-BLD-013",
        f"max_input_len {longest} leaves no room for an answer in max_seq_len {limits.max_seq_len}",
        asked=f"build.limits.max_input_len: {longest}",
        numbers={"max_input_len": longest, "max_seq_len": limits.max_seq_len},
        why="max_seq_len counts prompt and answer together.",
        remedies=["Raise build.limits.max_seq_len", "Lower build.limits.max_input_len (or leave it out)"],
    )


def check_limits(graph: GraphInfo, build: Build, *, target: str) -> Limits:
    """The recipe's limits with ``max_input_len`` filled in, held against the graph.

    Raises:
        ForgeError: ``TF-BLD-012``/``013`` limits, ``TF-BLD-014`` parallelism, ``TF-BLD-015`` block sizes differ.
    """
    limits, parallel = build.limits, build.parallel
    if (parallel.tp, parallel.pp, parallel.ep) != (1, 1, 1):
        raise ForgeError(
            "TF-BLD-014",
            f"The {target} target runs on one device, not tp {parallel.tp} x pp {parallel.pp} x ep {parallel.ep}",
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
    longest = longest_input(limits)
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
    return limits.model_copy(update={"max_input_len": longest})


def model_facts(graph: GraphInfo) -> dict[str, Any]:
    """What engine.json says of the model, for every target that starts from a graph."""
    return {
        "architecture": graph.architecture,
        "dtype": graph.dtype,
        "quant_format": graph.quant_format,
        "group_size": graph.group_size,
        "vocab_size": graph.vocab_size,
        "max_position_embeddings": graph.max_position_embeddings,
    }


def _pooled(graph: GraphInfo, limits: Limits, plan: MemoryPlan, bytes_per_block: int) -> dict[str, Any]:
    return {
        **model_facts(graph),
        "limits": limits.model_dump(),
        "kv_cache": {
            "format": graph.kv_cache["format"],
            "scales": graph.kv_cache["scales"],
            "block_size": plan.block_size,
            "num_blocks": plan.num_blocks,
            "bytes_per_block": bytes_per_block,
        },
    }


def graph_facts(graph: GraphInfo, limits: Limits, plan: MemoryPlan) -> dict[str, Any]:
    """What engine.json says of the graph, the limits and the KV pool, for every target that serves the paged graph."""
    return {**_pooled(graph, limits, plan, plan.target_bytes_per_block), "memory_plan": plan.to_json()}


def draft_facts(graph: GraphInfo, limits: Limits, plan: MemoryPlan) -> dict[str, Any]:
    """What the draft's engine.json says of its graph, its limits (the target's) and its pools."""
    pooled = _pooled(graph, limits, plan, plan.draft_bytes_per_block)
    return {**pooled, "drafter": graph.drafter} if graph.drafter else pooled


def check_draft(graph: GraphInfo, draft: GraphInfo) -> None:
    """A draft's graph against its target's.

    Raises:
        ForgeError: ``TF-BLD-123`` another vocabulary, other blocks, or taps that the target's graph does not put out.
    """
    pairs = {
        "vocab_size": (draft.vocab_size, graph.vocab_size),
        "block_size": (draft.kv_cache["block_size"], graph.kv_cache["block_size"]),
        "taps": (list(draft.drafter.get("taps", [])), list(graph.hidden_states) if draft.drafter else []),
        "tree_mask": (draft.tree_mask, graph.tree_mask if draft.drafter else draft.tree_mask),
    }
    wrong = {name: {"draft": one, "target": other} for name, (one, other) in pairs.items() if one != other}
    if wrong:
        raise ForgeError(
            "TF-BLD-123",
            f"The draft's graph is not one of this target: {', '.join(wrong)} differ",
            numbers=wrong,
            why="A drafted token is an id of the target's vocabulary, and both models share their block numbers.",
            remedies=["a draft that was trained for this target, with its tokenizer", "Build both graphs again"],
        )


class Planned(Protocol):
    """A graph that a target has planned, before its engine is written."""

    @property
    def graph(self) -> GraphInfo:
        """What the graph is."""

    @property
    def limits(self) -> Limits:
        """The recipe's, with ``max_input_len``."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights as they are executed."""

    def write(self, out: Path, facts: dict[str, Any], plan: MemoryPlan, hashes: Mapping[str, str]) -> dict[str, Any]:
        """Write the engine and return its engine.json; ``hashes`` are those of files in sub-folders."""


def write_engines(
    model: Planned,
    draft: Planned | None,
    out: Path,
    *,
    name: str,
    build: Build,
    speculation: SpeculationRecord | None,
    free_bytes: Callable[[], int | None],
) -> dict[str, Any]:
    """Plan the memory of a model and of what drafts beside it, and write both; returns engine.json of the model.

    Args:
        draft: goes into the folder ``draft`` of ``out``.
        free_bytes: asked where the recipe says a share of the free memory.

    Raises:
        ForgeError: ``TF-BLD-010``/``011`` memory; what writing raises.
    """
    limits, beside, hashes = model.limits, None, {}
    if draft is not None:
        per_token = kv_bytes_per_token(draft.graph.kv, draft.graph.kv_cache["format"])
        beside = DraftMemory(draft.weight_bytes, activation_bytes(draft.graph, limits), per_token)
    plan = plan_memory(
        model.graph,
        limits,
        build.kv_cache,
        weights_bytes=model.weight_bytes,
        free_bytes=free_bytes() if build.kv_cache.free_fraction is not None else None,
        draft_tokens=0 if speculation is None else speculation.most_tokens,
        draft=beside,
    )
    if draft is not None:
        facts = {"name": f"{name}-draft", **draft_facts(draft.graph, limits, plan)}
        drafted = draft.write(out / DRAFT_DIR, facts, plan, {})["sha256"]
        drafted |= {ENGINE_FILE: hash_file(out / DRAFT_DIR / ENGINE_FILE)}
        hashes = {f"{DRAFT_DIR}/{file}": digest for file, digest in drafted.items()}
    facts = {"name": name, **graph_facts(model.graph, limits, plan)}
    if speculation is not None:
        facts["speculation"] = speculation.to_json()
    return model.write(out, facts, plan, hashes)


def hash_files(directory: Path, exclude: frozenset[str], progress: Progress) -> dict[str, str]:
    """SHA-256 of the content files of an engine directory, by name."""
    files = list(content_files(directory, exclude=exclude))
    progress.start("hashing the engine", float(sum(path.stat().st_size for path in files)))
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        progress.advance(float(path.stat().st_size))
    return hashes
