"""The tree ops beside the logits: the host's own library stands in for the device's, which has the same face."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plugins.host.library import load_library
from plugins.reference_trees import eagle_tree_build
from plugins.trees import TreeShape, new_state, static_tree
from runtime.speculation import device_ops


@pytest.mark.parametrize("fixed", [False, True])
def test_state_and_tree_travel_and_logits_stay(fixed: bool) -> None:
    shape, static = (static_tree([(0,), (1,), (0, 0)])) if fixed else (TreeShape(3, 3, 2, 8), None)
    made = torch.Generator().manual_seed(2)
    offsets = torch.from_numpy(np.arange(20, dtype=np.int32))
    roots = torch.tensor([5, 9], dtype=torch.int32)
    mine, theirs = new_state(shape, 2), new_state(shape, 2)
    for level in range(shape.levels):
        logits = torch.randn(2, 1 if level == 0 else shape.expand, 20, generator=made)
        options = {"draft_to_target": offsets, "static": static}
        got = device_ops.tree_build(load_library(), logits, roots, mine, shape, level, **options)
        want = eagle_tree_build(logits, roots, theirs, shape, level, **options)
        for name in ("tokens", "parents", "depths", "mask", "counts"):
            assert torch.equal(getattr(got, name), getattr(want, name)), name
        assert torch.equal(mine.frontier, theirs.frontier)
        assert torch.equal(mine.candidate_tokens, theirs.candidate_tokens)


def test_a_machine_without_the_library_has_no_device_ops(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    device_ops.cuda_ops.cache_clear()
    monkeypatch.setenv("TRTFORGE_CUDA_LIBRARY", f"{tmp_path}/none.so")
    assert device_ops.cuda_ops() is None
    device_ops.cuda_ops.cache_clear()
