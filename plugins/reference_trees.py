"""Plain PyTorch references of the speculation ops: EagleTreeBuild, EagleAccept and PagedKVMove (docs/ops.md)."""

from __future__ import annotations

import numpy as np
import torch

from plugins.trees import Acceptance, DraftTree, StaticTree, TreeShape, TreeState

PHILOX_DOMAIN = 0x54464741


def eagle_tree_build(
    draft_logits: torch.Tensor,
    root_tokens: torch.Tensor,
    state: TreeState,
    shape: TreeShape,
    level: int,
    *,
    draft_to_target: torch.Tensor | None = None,
    static: StaticTree | None = None,
) -> DraftTree:
    """One level: children of the frontier [B, R, V], the next frontier, and the tree of the best nodes so far."""
    requests = draft_logits.shape[0]
    trees = []
    for b in range(requests):
        _children(draft_logits[b].float(), state, shape, level, b, draft_to_target)
        chosen = _dynamic(state, shape, level, b) if static is None else _static(state, shape, level, b, static)
        trees.append(_tree(chosen, state, shape, b, int(root_tokens[b])))
    return DraftTree(*(torch.stack(parts) for parts in zip(*trees, strict=True)))


def _children(
    logits: torch.Tensor, state: TreeState, shape: TreeShape, level: int, b: int, draft_to_target: torch.Tensor | None
) -> None:
    for row in range(1 if level == 0 else shape.expand):
        parent = -1 if level == 0 else int(state.frontier[b, row])
        first = shape.offset(level) + row * shape.top_k
        for i in range(shape.top_k):
            state.candidate_tokens[b, first + i] = 0
            state.candidate_parents[b, first + i] = parent
            state.candidate_scores[b, first + i] = float("-inf")
        if level > 0 and parent < 0:
            continue
        values = torch.where(logits[row].isfinite(), logits[row], torch.tensor(float("-inf")))
        order = torch.sort(values, descending=True, stable=True).indices[: shape.top_k]
        scores = values.double() - torch.logsumexp(values.double(), 0)
        above = torch.tensor(0.0) if parent < 0 else state.candidate_scores[b, parent]
        for i, token in enumerate(order.tolist()):
            moved = token + (0 if draft_to_target is None else int(draft_to_target[token]))
            state.candidate_tokens[b, first + i] = moved
            if values[token] > float("-inf"):
                state.candidate_scores[b, first + i] = above + scores[token].float()


def _best(scores: torch.Tensor, begin: int, end: int, count: int) -> list[int]:
    """Candidates [begin, end) with a score, best first; of equal scores the lower index."""
    order = sorted(range(begin, end), key=lambda i: (-float(scores[i]), i))
    return [i for i in order if scores[i] > float("-inf")][:count]


def _dynamic(state: TreeState, shape: TreeShape, level: int, b: int) -> list[int]:
    scores = state.candidate_scores[b]
    begin, end = shape.offset(level), shape.offset(level + 1)
    frontier = _best(scores, begin, end, shape.expand)
    state.frontier[b] = torch.tensor(frontier + [-1] * (shape.expand - len(frontier)), dtype=torch.int32)
    return sorted(_best(scores, 0, end, shape.total - 1))


def _static(state: TreeState, shape: TreeShape, level: int, b: int, static: StaticTree) -> list[int]:
    parents, ranks = static.parents.tolist(), static.ranks.tolist()
    depths = [0] * len(parents)
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    inner = [node for node in range(len(parents)) if node in parents]
    slots = {node: [n for n in inner if depths[n] == depths[node]].index(node) for node in inner}
    chosen, frontier = [], [-1] * shape.expand
    for node in range(1, len(parents)):
        if depths[node] > level + 1:
            continue
        candidate = shape.offset(depths[node] - 1) + slots[parents[node]] * shape.top_k + ranks[node]
        chosen.append(candidate)
        if depths[node] == level + 1 and node in slots:
            frontier[slots[node]] = candidate
    state.frontier[b] = torch.tensor(frontier, dtype=torch.int32)
    return chosen


def _tree(chosen: list[int], state: TreeState, shape: TreeShape, b: int, root: int) -> tuple[torch.Tensor, ...]:
    node_of = {candidate: node for node, candidate in enumerate(chosen, 1)}
    tokens, parents, depths, scores = [root], [-1], [0], [0.0]
    mask = torch.eye(shape.total, dtype=torch.uint8)
    for node, candidate in enumerate(chosen, 1):
        above = int(state.candidate_parents[b, candidate])
        parent = 0 if above < 0 else node_of[above]
        tokens.append(int(state.candidate_tokens[b, candidate]))
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(float(state.candidate_scores[b, candidate]))
        mask[node] |= mask[parent]
    unused = shape.total - len(tokens)
    return (
        torch.tensor(tokens + [0] * unused, dtype=torch.int32),
        torch.tensor(parents + [-1] * unused, dtype=torch.int32),
        torch.tensor(depths + [0] * unused, dtype=torch.int32),
        torch.tensor(scores + [0.0] * unused),
        mask,
        torch.tensor(len(tokens), dtype=torch.int32),
    )


def philox(seed: int, position: int, blocks: np.ndarray) -> np.ndarray:
    """Philox4x32-10 words [n, 4] of counters (block, position, 0, domain)."""
    mask = np.uint64(0xFFFFFFFF)
    c = [
        blocks.astype(np.uint64),
        np.full(len(blocks), position & 0xFFFFFFFF, np.uint64),
        np.zeros(len(blocks), np.uint64),
        np.full(len(blocks), PHILOX_DOMAIN, np.uint64),
    ]
    low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        shift = np.uint64(32)
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(low), p1 & mask, (p0 >> shift) ^ c[3] ^ np.uint64(high), p0 & mask]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1)


def gumbel_noise(seed: int, position: int, vocabulary: int) -> torch.Tensor:
    """-log(-log(u)) of every token at a position, float32 [V]."""
    words = philox(seed, position, np.arange(-(-vocabulary // 4))).reshape(-1)[:vocabulary]
    uniform = ((words >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return -torch.log(-torch.log(torch.from_numpy(uniform)))


def choose_token(logits: torch.Tensor, temperature: float, seed: int, position: int) -> int:
    """The first maximum of the logits, or of logits / temperature plus the position's noise; NaN never wins."""
    values = logits.float()
    if temperature > 0:
        values = values / torch.tensor(temperature) + gumbel_noise(seed, position, len(values))
    return int(torch.where(values.isnan(), torch.tensor(float("-inf")), values).argmax())


def eagle_accept(
    target_logits: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    counts: torch.Tensor,
    *,
    temperatures: torch.Tensor | None = None,
    seeds: torch.Tensor | None = None,
    root_positions: torch.Tensor | None = None,
) -> Acceptance:
    """Walk each tree [B, G] from its root along the target's own choices; logits are [B*G, V]."""
    requests, total = tokens.shape
    path = torch.full((requests, total), -1, dtype=torch.int32)
    emitted = torch.full((requests, total), -1, dtype=torch.int32)
    lengths, bonus = torch.zeros(requests, dtype=torch.int32), torch.zeros(requests, dtype=torch.int32)
    for b in range(requests):
        temperature = 0.0 if temperatures is None else float(temperatures[b])
        seed = int(seeds[b]) if seeds is not None else 0
        root = int(root_positions[b]) if root_positions is not None else 0
        node: int | None = 0
        length = 0
        while node is not None:
            token = choose_token(target_logits[b * total + node], temperature, seed, root + length + 1)
            path[b, length], emitted[b, length] = node, token
            length += 1
            below = range(node + 1, int(counts[b]))
            node = next((i for i in below if parents[b, i] == node and tokens[b, i] == token), None)
        lengths[b], bonus[b] = length, token
    return Acceptance(path, lengths, emitted, bonus)


def paged_kv_move(
    pools: list[torch.Tensor],
    block_table: torch.Tensor,
    base_positions: torch.Tensor,
    path: torch.Tensor,
    lengths: torch.Tensor,
) -> None:
    """Move row base + path[i] of every pool [N, 2, K, S, E] to row base + i; all are read before any is written."""
    for pool in pools:
        slots = int(pool.shape[3])
        raw = pool.view(torch.uint8)
        moves = []
        for b, length in enumerate(lengths.tolist()):
            for i, node in enumerate(path[b, :length].tolist()):
                source, target = int(base_positions[b]) + node, int(base_positions[b]) + i
                if source != target:
                    row = raw[int(block_table[b, source // slots]), :, :, source % slots].clone()
                    moves.append((int(block_table[b, target // slots]), target % slots, row))
        for block, slot, row in moves:
            raw[block, :, :, slot] = row
