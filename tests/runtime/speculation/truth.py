"""What drafts and cache rows must be, computed over whole sequences and without any cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from plugins import reference_trees
from plugins.trees import StaticTree, TreeShape, new_state
from runtime.speculation.draft import Draft
from runtime.speculation.draft_rows import DraftRows
from runtime.speculation.reference import Eagle3Reference, rotated, rotation
from tests.runtime.speculation.driver import Driver, tap_of
from tests.runtime.speculation.paged_head import PagedHead


def taps_of(tokens: np.ndarray, count: int, width: int) -> Tensor:
    """States of the first ``count`` positions."""
    return torch.stack([tap_of(tokens[: p + 1], width) for p in range(count)])


def chain_of(reference: Eagle3Reference, tokens: np.ndarray, count: int, width: int) -> list[int]:
    """Tokens drafted behind ``tokens``, whose last is the root."""
    states = taps_of(tokens, len(tokens) - 1, width)
    return reference.draft(torch.from_numpy(tokens[1:].copy()), states, count).tolist()


def confidence_of(reference: Eagle3Reference, tokens: np.ndarray, drafted: Sequence[int], width: int) -> list[float]:
    """The head's probability of each of ``drafted`` behind the ones before."""
    ids = {int(target): draft for draft, target in enumerate(reference.targets)}
    found = []
    for i, token in enumerate(drafted):
        logits = _logits_behind(reference, tokens, list(drafted[:i]), taps_of(tokens, len(tokens) - 1, width))
        found.append(float(logits.softmax(-1)[ids[token]]))
    return found


def tree_of(
    reference: Eagle3Reference,
    tokens: np.ndarray,
    taps: Tensor,
    shape: TreeShape,
    static: StaticTree | None,
    levels: int,
) -> Draft:
    """The tree behind ``tokens`` (taps of all but the last) after so many levels; each node by its whole path."""
    state, offsets = new_state(shape, 1), (reference.targets - torch.arange(len(reference.targets))).int()
    root = torch.tensor([int(tokens[-1])], dtype=torch.int32)
    logits = _logits_behind(reference, tokens, [], taps)[None, None]
    for level in range(levels):
        if level:
            rows = []
            for candidate in state.frontier[0].tolist():
                path: list[int] = []
                while candidate >= 0:
                    path.insert(0, int(state.candidate_tokens[0, candidate]))
                    candidate = int(state.candidate_parents[0, candidate])
                rows.append(_logits_behind(reference, tokens, path, taps))
            logits = torch.stack(rows)[None]
        tree = reference_trees.eagle_tree_build(
            logits, root, state, shape, level, draft_to_target=offsets, static=static
        )
    count = int(tree.counts[0])
    return Draft(tree.tokens[0, 1:count].long().numpy(), "eagle3", tree.parents[0, 1:count].numpy())


def _logits_behind(reference: Eagle3Reference, tokens: np.ndarray, path: list[int], taps: Tensor) -> Tensor:
    read, states = torch.from_numpy(tokens[1:].copy()), reference.join(taps)
    logits, fed = reference.step(read, states)
    for token in path:
        read, states = torch.cat([read, torch.tensor([token])]), torch.cat([states, fed[-1:]])
        logits, fed = reference.step(read, states)
    return logits[-1]


def keys_of(reference: Eagle3Reference, tokens: np.ndarray, width: int) -> Tensor:
    """Keys of the rows of the first layer [T - 1, K, E]; each hangs on its own state and token only."""
    states, name = reference.join(taps_of(tokens, len(tokens) - 1, width)), "layers.0.self_attn"
    embedding = reference.tensors["embed_tokens.weight"][torch.from_numpy(tokens[1:].copy())]
    read = torch.cat(
        [
            reference._norm("layers.0.input_layernorm", embedding),
            reference._norm("layers.0.hidden_norm", states),
        ],
        dim=-1,
    )
    keys = reference._linear(f"{name}.k_proj", read).view(len(states), -1, reference.head.head_size)
    cos, sin = rotation(reference.head.rope, reference.head.head_size, torch.arange(len(states)))
    return rotated(keys, cos, sin)


class RowCheck:
    """Compares every row that the books call true with a fresh computation."""

    def __init__(self, head: PagedHead) -> None:
        self.head, self.size = head, head.block_size
        self._known: dict[bytes, Tensor] = {}

    def keys(self, tokens: np.ndarray) -> Tensor:
        found = self._known.get(tokens.tobytes())
        if found is None:
            found = keys_of(self.head.reference, tokens, self.head.tap_width)
            self._known[tokens.tobytes()] = found
        return found

    def all(self, rows: DraftRows, driver: Driver, contents: dict[bytes, np.ndarray]) -> int:
        """Rows checked: those of every sequence that holds blocks, and those of every block that can be found."""
        pool = driver.pool
        checked = 0
        for sequence, track in rows.tracks.items():
            if not sequence.blocks or track.preemptions != sequence.preemptions:
                continue
            assert track.rows <= sequence.computed
            for p in range(track.rows):
                block = sequence.blocks[p // self.size]
                # a shared block's last row may hang on the next token of another sequence
                shared = sequence in driver.split or pool.digest(block) is not None
                if p % self.size < self.size - 1 or not shared:
                    self._row(block, p, sequence.tokens[: sequence.length])
                    checked += 1
        for digest, tokens in contents.items():
            for number in pool.lookup([digest]):
                for slot in range(min(rows.true_rows[number], self.size - 1)):
                    self._row(number, len(tokens) - self.size + slot, tokens)
                    checked += 1
        return checked

    def _row(self, block: int, position: int, tokens: np.ndarray) -> None:
        wanted = self.keys(tokens[: position + 2])[position]
        found = self.head.keys["layers.0.self_attn"][block, position % self.size]
        assert torch.allclose(found, wanted, atol=1e-5), f"position {position} in block {block} is not true"
