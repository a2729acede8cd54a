"""The offline suite on the demo model: sixteen bits do what four coarse ones cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evals.suite import suite_items
from evals.tasks import Answered, answer_items, compare_tasks
from tests.support.demo_model import run_demo_model
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stages.subject import LazyReference
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
RECIPE = Path(__file__).resolve().parents[2] / "configs" / "smollm2-135m.yaml"
#: of each task; the suite's first items are the same for any number
ITEMS = 6


def answers(reference: LazyReference) -> list[Answered]:
    return answer_items(reference.subject().write, suite_items(ITEMS))


def test_four_coarse_bits_are_told_from_sixteen(tmp_path: Path) -> None:
    run = run_demo_model(Store(tmp_path / "store", durable=False), load_recipe(RECIPE), "intake")
    reference = LazyReference(run.artifact("intake").path, SilentProgress())
    sixteen = answers(reference)
    for name, module in reference.model.model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            weight = module.weight.data
            step = weight.abs().amax() / 7  # one scale for a whole matrix
            weight.copy_((weight / step).round().clamp(-8, 7) * step)
    found = compare_tasks(sixteen, answers(reference)).overall
    assert found.baseline_right >= found.items // 2
    assert found.p_value < 0.01 and found.change.high < -0.2
