"""K11: memory and disk of the host while the engine is made."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.ground.units import format_size
from trtforge.models.loading import LIBRARY_BYTES, Footprint
from trtforge.models.shape import DTYPE_BYTES
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.rules.memory import weight_bytes
from trtforge.preflight.rules.ranks import world_size
from trtforge.rules.sources import thread

#: stages that copy the weights before the store shares them with what holds them already
_COPYING = ("quantize", "graph", "build", "bundle")
#: what trtllm-build keeps a parameter of its rank: the checkpoint's shard and TensorRT's copy of it
BUILD_BYTES_PER_PARAMETER = 4


@rule("TF-K11-001", "not enough memory to quantize and evaluate", thread("TL#102"), needs=("model", "machine"))
def host_memory(facts: Facts) -> Iterator[Violation]:
    """Quantization and the reference evaluation compute in float32: with the whole model in memory, or with one decoder
    layer, the embedding or the output head."""
    footprint, total = Footprint.of_model(facts.require_model()), facts.require_machine().memory_total
    asked = facts.recipe.model.loading
    if footprint.mode(asked, total) is not None:
        return
    whole, by_layer = footprint.whole_bytes(), footprint.by_layer_bytes
    needed = whole if asked == "whole" else by_layer
    yield Violation(
        f"quantizing {footprint.parameters / 1e9:.2f} billion parameters "
        f"{'whole' if asked == 'whole' else 'layer by layer'} needs about {format_size(needed)}, "
        f"this machine has {format_size(total)}",
        facts.asked("model.loading" if asked == "whole" else "model.source"),
        {"parameters": footprint.parameters, "whole": whole, "by_layer": by_layer, "memory_total": total},
        [
            *(["model.loading: by_layer"] if asked == "whole" and by_layer <= total else []),
            *by_hand(f"a machine with {format_size(needed)} or more", "a smaller model"),
        ],
    )


@rule(
    "TF-K11-005",
    "the model is quantized and evaluated layer by layer",
    "https://huggingface.co/docs/accelerate/usage_guides/big_modeling",
    severity="note",
    needs=("model", "machine"),
)
def taken_by_layer(facts: Facts) -> Iterator[Violation]:
    """The whole model does not fit into memory in float32. Results are the same; the checkpoint is read once for every
    pass over the text, and once for every token of an answer."""
    footprint, total = Footprint.of_model(facts.require_model()), facts.require_machine().memory_total
    if facts.recipe.model.loading != "auto" or footprint.mode("auto", total) != "by_layer":
        return
    whole, by_layer = footprint.whole_bytes(), footprint.by_layer_bytes
    yield Violation(
        f"whole it needs about {format_size(whole)}, this machine has {format_size(total)}; one decoder layer at a "
        f"time needs {format_size(by_layer)}",
        facts.asked("model.loading"),
        {"whole": whole, "by_layer": by_layer, "memory_total": total},
        by_hand(f"a machine with {format_size(whole)} or more is quicker"),
    )


@rule("TF-K11-002", "not enough disk for the artifacts", thread("TL#743"), needs=("model", "machine"))
def host_disk(facts: Facts) -> Iterator[Violation]:
    """The checkpoint, the quantized weights and an engine of its own bytes are stored once each; one more copy lies
    there while a stage writes, and stays in a bundle that root makes; none where copies share blocks."""
    free = facts.require_machine().disk_free
    plain = facts.require_model().parameters * DTYPE_BYTES[facts.recipe.model.dtype]
    stored = weight_bytes(facts, stored=True)
    if plain + _contents(facts, frozenset()) * stored <= free:
        return
    made = frozenset(facts.made()) if facts.made is not None else frozenset()
    copies = _contents(facts, made)
    needed = (0 if "intake" in made else plain) + copies * stored
    if needed > free:
        yield Violation(
            f"the artifacts {'that are still to be made ' if made else ''}take about {format_size(needed)}, "
            f"{format_size(free)} are free",
            facts.asked("model.source"),
            {"checkpoint": plain, "quantized": stored, "copies": copies, "needed": needed, "disk_free": free},
            by_hand("trtforge artifacts gc", "--store DIR on a larger disk"),
        )


def _contents(facts: Facts, made: frozenset[str]) -> int:
    """How often weights of the stored size lie on the disk at once beside the checkpoint, for what is not made yet."""
    quantize, row = facts.recipe.quantize, facts.format
    weight = None if row is None else row.weight
    # unquantized weights are the checkpoint's files; integers of four bits are packed once more for a graph; engines
    # that are not compiled hold the very files of the graph or the checkpoint
    own = weight is not None or quantize.kv_cache != "none"
    packed = weight is not None and weight.dtype == "int4" and facts.target.from_graph
    return (
        (own and "quantize" not in made)
        + (packed and "graph" not in made)
        + (facts.target.compiled and "build" not in made)
        + (not facts.require_machine().copies_share and any(stage not in made for stage in _COPYING))
    )


@rule(
    "TF-K11-003",
    "not enough memory to build the ranks at once",
    "https://github.com/NVIDIA/TensorRT-Edge-LLM/issues/30",
    needs=("model", "machine"),
)
def build_memory(facts: Facts) -> Iterator[Violation]:
    """trtllm-build keeps about 4 GB for each billion parameters of every rank that it builds at the same time."""
    workers, ranks = facts.recipe.build.trtllm.workers, world_size(facts)
    if not facts.target.trtllm_build:
        return
    total, each = (
        facts.require_machine().memory_total,
        facts.require_model().parameters * BUILD_BYTES_PER_PARAMETER // ranks,
    )
    at_once = min(workers, ranks)
    needed = at_once * each + LIBRARY_BYTES
    if needed > total:
        fits = max(0, (total - LIBRARY_BYTES) // each)
        yield Violation(
            f"{at_once} workers need about {format_size(needed)}, this machine has {format_size(total)}",
            facts.asked("build.trtllm.workers"),
            {"workers": at_once, "bytes_per_worker": each, "needed": needed, "memory_total": total, "fits": fits},
            [
                *([f"build.trtllm.workers: {fits}"] if fits else []),
                *by_hand(
                    f"a machine with {format_size(each + LIBRARY_BYTES)} or more",
                    "waive this when the engine is built on another machine",
                ),
            ],
        )


@rule(
    "TF-K11-004",
    "host memory for KV blocks that is not there",
    "https://nvidia.github.io/TensorRT-LLM/advanced/kv-cache-reuse.html",
    needs=("machine",),
)
def host_kv_fits(facts: Facts) -> Iterator[Violation]:
    """The memory is pinned when the server starts: it cannot be swapped, and what is missing ends the server."""
    asked, machine = facts.recipe.build.trtllm.host_kv_memory, facts.require_machine()
    if asked is not None and asked > machine.memory_total * 0.8:
        fits = int(machine.memory_total * 0.5) // 2**30
        yield Violation(
            f"{format_size(asked)} of pinned memory on a machine with {format_size(machine.memory_total)}",
            f"build.trtllm.host_kv_memory: {format_size(asked)}",
            {"host_kv_memory": asked, "memory_total": machine.memory_total},
            [
                f"build.trtllm.host_kv_memory: {max(1, fits)}GiB",
                "build.trtllm.host_kv_memory: null",
                *by_hand("waive this when the server runs on another machine"),
            ],
        )
