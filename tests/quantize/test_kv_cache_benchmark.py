"""``benchmarks/kv_cache.py`` rounds what it says: its figures stand in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.kv_cache import Cache, Way, attach, key_biases, rotated, ways
from quantize.reference import load_reference_model
from tests.support.tiny import write_tiny_llama
from trtforge.formats.elements import E4M3_MAX, fake_quant_e4m3


def test_the_offset_is_what_a_bias_adds_to_the_rotated_keys(tmp_path: Path) -> None:
    model = load_reference_model(write_tiny_llama(tmp_path / "m", architecture="Qwen2ForCausalLM")).model
    seen: list[torch.Tensor] = []

    class Watch(Cache):
        def keep(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(key if layer == 0 else torch.zeros(()))
            return key, value

    attach(model, Watch())
    biases = key_biases(model)
    offsets = rotated(model, biases, 9)
    ids = torch.arange(3, 12)[None]
    with torch.inference_mode():
        model(ids, use_cache=False)
        model.model.layers[0].self_attn.k_proj.bias.zero_()
        model(ids, use_cache=False)
    with_bias, without = seen[0], seen[len(biases)]
    torch.testing.assert_close(with_bias - without, offsets[0][None], atol=1e-5, rtol=1e-5)


def test_each_way_rounds_its_part_with_its_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    key, value = (torch.randn(1, 2, 5, 8, generator=generator) * torch.tensor([1.0, 50.0])[:, None, None] for _ in "kv")
    cache = Cache(gathers=True)
    cache.keep(0, key, value)
    cache.gathers = False
    cache.offsets = {0: torch.full((2, 5, 8), 64.0)}

    def kept(way: Way | None) -> tuple[torch.Tensor, torch.Tensor]:
        cache.way = way
        return cache.keep(0, key, value)

    assert all(torch.equal(a, b) for a, b in zip(kept(None), (key, value), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(kept(Way("", spared=frozenset({0}))), (key, value), strict=True))
    layer, values = kept(Way("")), kept(Way("", keys=False))
    assert torch.equal(layer[0], fake_quant_e4m3(key, float(key.abs().max()) / E4M3_MAX))
    assert torch.equal(values[0], key) and torch.equal(values[1], layer[1]) and not torch.equal(values[1], value)
    head = kept(Way("", "head", values=False))
    for index in range(2):
        scale = float(key[:, index].abs().max()) / E4M3_MAX
        assert torch.equal(head[0][:, index], fake_quant_e4m3(key[:, index], scale))
    assert torch.equal(head[1], value)
    assert torch.equal(kept(Way("", None))[0], fake_quant_e4m3(key, 1.0))
    shifted = kept(Way("", less_bias=True))[0]
    assert torch.equal(shifted, fake_quant_e4m3(key - 64, float(key.abs().max()) / E4M3_MAX) + 64)


def test_layers_are_spared_by_their_largest_bias() -> None:
    biases = {0: torch.tensor([[1.0, -9.0]]), 1: torch.tensor([[2.0, 2.0]]), 2: torch.tensor([[5.0, 0.0]])}
    assert [way.spared for way in ways(biases) if way.spared] == [{0, 2}]
    more = {**biases, 3: 2 * biases[0]}  # 18: the only one that is large
    assert [way.spared for way in ways(more) if way.spared] == [{3}, {0, 3}, {0, 1, 2, 3}]
    assert not [way for way in ways({}) if way.spared or way.less_bias]
