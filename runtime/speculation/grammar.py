"""Drafts of guided requests: what the grammar forbids is cut before anybody verifies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runtime.speculation.draft import Draft

if TYPE_CHECKING:
    from runtime.sampling.guided import GuidedState


def permitted(draft: Draft, guided: GuidedState) -> Draft | None:
    """The part of a draft that the grammar lets pass; None: nothing of it.

    A tree loses the nodes whose way from the root the grammar forbids, and those behind them.
    """
    tokens = draft.tokens.tolist()
    if draft.parents is None:
        return draft.cut(guided.admits(tokens))
    ways: dict[int, list[int]] = {0: []}
    numbers = {0: 0}
    kept = []
    for node, (token, parent) in enumerate(zip(tokens, draft.parents.tolist(), strict=True), 1):
        if parent not in ways:
            continue
        way = [*ways[parent], token]
        if guided.admits(way) == len(way):
            ways[node] = way
            numbers[node] = len(numbers)
            kept.append(node - 1)
    if not kept:
        return None
    if len(kept) == len(tokens):
        return draft
    parents = np.array([numbers[int(draft.parents[at])] for at in kept], dtype=np.int32)
    confidence = None if draft.confidence is None else draft.confidence[kept]
    return Draft(draft.tokens[kept], draft.source, parents, confidence)
