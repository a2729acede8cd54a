"""Layer errors: the definition, and a change that is found where it was made."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from evals.layers import layer_errors, to_json
from tests.support.refusals import refusal


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x + self.mlp(self.norm(x)),)


class Model(torch.nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(16, 8)
        self.layers = torch.nn.ModuleList(Block() for _ in range(layers))

    def forward(self, ids: torch.Tensor, **_: Any) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)[0]
        return x


IDS = torch.arange(12)


def test_a_change_is_found_in_its_layer_and_after_it() -> None:
    base, other = Model(), Model()
    with torch.no_grad():
        other.layers[2].mlp[0].weight += 0.5
    found = {error.name: error for error in layer_errors(base, other, IDS)}
    assert list(found) == [name for i in range(4) for name in (f"layers.{i}.mlp", f"layers.{i}")]
    assert found["layers.1"].snr_db is None and found["layers.1"].cosine == 1
    assert found["layers.2"].snr_db is not None and found["layers.3"].cosine < 1
    assert to_json(list(found.values()))["worst"][0] == "layers.2.mlp"


def test_signal_over_error_is_in_decibels() -> None:
    base = Model(1)
    other = copy.deepcopy(base)
    base.layers[0].register_forward_hook(lambda *_: (torch.ones(1, 12, 8),))
    other.layers[0].register_forward_hook(lambda *_: (torch.full((1, 12, 8), 1.1),))
    found = layer_errors(base, other, IDS)[-1]
    assert found.snr_db == pytest.approx(20.0, abs=1e-4) and found.cosine == pytest.approx(1.0)


def test_models_of_other_depth_are_no_pair() -> None:
    assert refusal(layer_errors, Model(2), Model(3), IDS).code == "TF-EVL-023"
    assert refusal(layer_errors, torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), IDS).code == "TF-EVL-023"
