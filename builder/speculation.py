"""From the recipe's section ``speculation`` to the engine's record, for the targets that run trtforge's own runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.graphs.info import GraphInfo
from trtforge.drafting.record import (
    DRAFT_DIR,
    DRAFTED_METHODS,
    METHODS,
    DraftPolicy,
    DynamicTree,
    NGramSizes,
    SpeculationRecord,
    StaticTree,
)
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Speculation


def tree_of(speculation: Speculation) -> StaticTree | DynamicTree | None:
    """The tree that the recipe configures; None: chains only."""
    if speculation.choices is not None:
        return StaticTree(speculation.choices)
    grown = speculation.dynamic_tree
    return None if grown is None else DynamicTree(grown.depth, grown.top_k, grown.total)


def record_of(
    speculation: Speculation, *, taps: Sequence[int] = (), drafter: Mapping[str, Any] | None = None
) -> SpeculationRecord | None:
    """The record that the engine gets; None: nothing is drafted.

    Args:
        taps: i of ``hidden_states_i`` that an EAGLE-3 head joins.
        drafter: facts of the draft for people.

    Raises:
        ForgeError: ``TF-BLD-120`` a method that trtforge's own runtime has not, or no length.
    """
    if speculation.method == "none":
        return None
    tree = tree_of(speculation)
    longest = speculation.max_draft_len or (tree.depth if tree is not None else None)
    if speculation.method not in METHODS or longest is None:
        raise ForgeError(
            "TF-BLD-120",
            "speculation.max_draft_len is missing"
            if longest is None
            else f"the runtime of this target has no speculation by {speculation.method}",
            asked=f"speculation.method: {speculation.method}",
            numbers={"methods": list(METHODS)},
            why="The engine records how far it drafts, and by which of the runtime's drafters.",
            remedies=["speculation.max_draft_len: 4"]
            if longest is None
            else [f"speculation.method: {name}" for name in METHODS],
        )
    sizes = speculation.ngram if speculation.method == "ngram" or speculation.ngram_on_top else None
    schedule = speculation.draft_len_schedule
    return SpeculationRecord(
        speculation.method,
        longest,
        tree,
        None if sizes is None else NGramSizes(sizes.max_matching_ngram_size, sizes.min_matching_ngram_size),
        tuple(taps),
        DraftPolicy(
            speculation.adaptive,
            speculation.max_concurrency,
            None if schedule is None else tuple(sorted(schedule.items())),
            speculation.acceptance_rate_threshold,
            speculation.acceptance_rate_window_size,
        ),
        DRAFT_DIR if speculation.method in DRAFTED_METHODS else None,
        drafter or {},
    )


def engine_record(speculation: Speculation, graph_dir: Path) -> SpeculationRecord | None:
    """:func:`record_of` with what the graphs in ``graph_dir`` and in its sub-folder ``draft`` say.

    Raises:
        ForgeError: ``TF-GRF-015`` a graph is missing; as :func:`record_of`.
    """
    if speculation.method not in DRAFTED_METHODS:
        return record_of(speculation)
    draft = GraphInfo.read(graph_dir / DRAFT_DIR)
    model = {
        "kind": "model",
        "architecture": draft.hf_architecture,
        "layers": draft.num_layers,
        "hidden_size": draft.hidden_size,
        "quant_format": draft.quant_format,
    }
    taps = GraphInfo.read(graph_dir).hidden_states if speculation.method == "eagle3" else ()
    return record_of(speculation, taps=taps, drafter=draft.drafter or model)
