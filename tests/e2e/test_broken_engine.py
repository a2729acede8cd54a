"""An engine that is right while it reads and loops while it writes does not pass parity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runtime.executors.base import StepBatch
from runtime.executors.torch_executor import TorchExecutor
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.ground.errors import GateFailed
from trtforge.pipeline.catalogue import default_pipeline
from trtforge.recipe.load import load_recipe
from trtforge.store.store import Store

pytestmark = pytest.mark.e2e


def test_a_looping_engine_fails_on_its_own_answers_and_other_weights_on_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(write_tiny_recipe(tmp_path, format="none", kv_cache="none"))
    store = Store(tmp_path / "store", durable=False)
    default_pipeline(store).run(recipe, "parity", capture_output=True)  # as it is, every gate passes
    execute = TorchExecutor.execute

    def looping(self: TorchExecutor, batch: StepBatch) -> torch.Tensor:
        """Steps of one token a request, which teacher forcing never makes, say the same token for ever."""
        logits = execute(self, batch).clone()
        if batch.num_tokens == batch.num_requests and int(batch.positions[0]) > 0:
            logits[:, 9] = logits.max() + 5
        return logits

    monkeypatch.setattr(TorchExecutor, "execute", looping)
    with pytest.raises(GateFailed) as failed:
        default_pipeline(store).run(recipe, "parity", ["parity"], capture_output=True)
    text = str(failed.value.to_json())
    assert "engine_answers" in text and "logits below" in text
    assert "top1_agreement" not in failed.value.numbers and "deployed_weights" not in failed.value.numbers

    monkeypatch.undo()
    weights = TorchExecutor.check_weights

    def rounded(self: TorchExecutor):
        for packed in self._lowered.linears[:1]:
            held = packed.kernel.weights() * 1.01
            packed.kernel.weights = lambda held=held: held
        return weights(self)

    monkeypatch.setattr(TorchExecutor, "check_weights", rounded)
    with pytest.raises(GateFailed) as failed:
        default_pipeline(store).run(recipe, "parity", ["parity"], capture_output=True)
    assert "weights are not the stored ones" in str(failed.value.to_json())
