"""Groups of linears, one of them quantized in an otherwise unquantized model, and which to spare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quantize.plan import plan_quantization, read_config
from quantize.sensitivity import LinearGroup, PartlyQuantized, least_exclusions, linear_groups
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.schema import Calibration, Quantize


def _planned(folder: Path, **section: Any) -> Any:
    checkpoint = write_tiny_llama(folder / "model", layers=2)
    calibration = Calibration(samples=2, sequence_length=64)
    quantize = Quantize(calibration=calibration, **section)
    config, headers = read_config(checkpoint), read_headers(checkpoint)
    return checkpoint, config, headers, quantize, plan_quantization(config, headers, quantize)


def test_what_fuses_is_one_group_and_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    *_, headers, _, plan = _planned(tmp_path, format="fp8")
    groups = linear_groups(plan, headers)
    assert [group.name for group in groups[:4]] == [
        "model.layers.0.mlp.down_proj",
        "model.layers.0.mlp.gate_proj+up_proj",
        "model.layers.0.self_attn.o_proj",
        "model.layers.0.self_attn.q_proj+k_proj+v_proj",
    ]
    assert sorted(module for group in groups for module in group.modules) == sorted(plan.quantized)
    down = next(group for group in groups if group.name.endswith("0.mlp.down_proj"))
    assert down.saved == 64 * 128 * (2 - 1) - 2 * 4  # a byte a weight, and two float32 scales


def test_a_recipe_without_weights_to_quantize_is_refused(tmp_path: Path) -> None:
    *_, headers, _, plan = _planned(tmp_path, format="none", kv_cache="fp8")
    with pytest.raises(ForgeError) as error:
        linear_groups(plan, headers)
    assert error.value.code == "TF-QNT-016"


def test_a_group_changes_the_model_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    import torch

    checkpoint, config, headers, quantize, plan = _planned(tmp_path, format="int4_awq", group_size=32)
    model = PartlyQuantized(checkpoint, config, plan, quantize, tmp_path, SilentProgress())
    groups = linear_groups(plan, headers)
    ids = torch.arange(3, 40)
    plain = model.logits(ids)
    alone = model.logits(ids, groups[0].modules)
    everything = model.logits(ids, [module for group in groups for module in group.modules])
    assert torch.equal(model.logits(ids), plain)
    assert 0 < float((alone - plain).square().mean()) < float((everything - plain).square().mean())
    whole = model._calibrated(ids.view(1, -1), use_cache=False).logits[0].detach().float()
    torch.testing.assert_close(everything, whole, rtol=1e-4, atol=1e-4)


def test_two_models_are_refused_before_the_first_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from quantize import loading, ptq
    from trtforge.machine.memory import Memory

    checkpoint, config, _, quantize, plan = _planned(tmp_path, format="fp8")
    monkeypatch.setattr(loading, "memory", lambda: Memory(total=2**34, available=0))
    monkeypatch.setattr(loading, "_loaded", lambda: 0)
    monkeypatch.setattr(ptq, "load_model", lambda *_: pytest.fail("a model was loaded"))
    model = PartlyQuantized(checkpoint, config, plan, quantize, tmp_path, SilentProgress())
    with pytest.raises(ForgeError) as error:
        model.logits(torch.arange(9))
    assert error.value.code == "TF-QNT-012"


GROUPS = tuple(LinearGroup(name, (name,), saved) for name, saved in (("a", 10), ("b", 10), ("c", 40), ("d", 1)))
KL = {"a": 0.5, "b": 0.1, "c": 0.4, "d": 0.0}


class TestLeastExclusions:
    def _spared(self, bound: float) -> list[str]:
        asked: list[int] = []

        def together(rest: Any) -> float:
            asked.append(len(rest))
            return sum(KL[group.name] for group in rest)

        found = [group.name for group in least_exclusions(GROUPS, KL, bound, together)]
        assert len(asked) <= 3
        return found

    def test_the_worst_a_byte_go_first(self) -> None:
        assert self._spared(1.0) == []
        assert self._spared(0.5) == ["a"]
        assert self._spared(0.05) == ["a", "b", "c"]

    def test_nothing_is_left_where_nothing_meets_the_bound(self) -> None:
        groups = GROUPS[:2]
        assert least_exclusions(groups, KL, 1e-9, lambda rest: 1.0 if rest else 0.0) == list(groups)
