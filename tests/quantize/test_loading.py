"""Whole or layer by layer: by the memory that is free, and by what the recipe asks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from quantize import loading
from quantize.loading import choose, require_whole, spilled_bytes
from tests.support.public_models import public
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.ground.safetensors_header import read_headers
from trtforge.machine.memory import Memory
from trtforge.models.loading import LIBRARY_BYTES, Footprint

GIB = 2**30


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m", layers=3, tie=False)


def has(monkeypatch: pytest.MonkeyPatch, available: int) -> None:
    """So much is free, and the libraries are not in memory yet."""
    monkeypatch.setattr(loading, "memory", lambda: Memory(total=64 * GIB, available=available))
    monkeypatch.setattr(loading, "_loaded", lambda: 0)


def test_a_footprint_is_that_of_the_tensors(source: Path) -> None:
    headers = read_headers(source)
    found = Footprint.of_tensors({name: info.shape for name, info in headers.items()})
    layer = sum(info.elements for name, info in headers.items() if ".layers.1." in name)
    outside = sum(info.elements for name, info in headers.items() if ".layers." not in name)
    assert found == Footprint(3 * layer + outside, layer, 512 * 64, 512)


def test_scalars_beside_the_tensors_are_no_table() -> None:
    """Scales of a quantized head, which may come first."""
    shapes = {"lm_head.input_scale": (), "lm_head.weight": (512, 64), "lm_head.weight_scale": ()}
    assert Footprint.of_tensors(shapes) == Footprint(512 * 64 + 2, 0, 512 * 64, 512)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1"])
def test_large_models_fit_layer_by_layer_where_they_were_refused(name: str) -> None:
    """By config.json alone; experts of a layer are counted all."""
    found = Footprint.of_model(public(name))
    assert found.mode("auto", 24 * GIB) == "by_layer" and found.whole_bytes() > 100 * GIB
    assert found.mode("whole", 24 * GIB) is None and found.mode("auto", 4 * GIB) is None
    assert found.mode("auto", 2**40) == "whole" and found.mode("by_layer", 2**40) == "by_layer"


def test_free_memory_decides(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Footprint.of_tensors({name: info.shape for name, info in read_headers(source).items()})
    has(monkeypatch, found.whole_bytes())
    assert choose("auto", source) == "whole" and choose("whole", source) == "whole"
    assert choose("by_layer", source) == "by_layer"
    has(monkeypatch, LIBRARY_BYTES)
    error = refusal(choose, "auto", source)
    assert error.code == "TF-QNT-012" and error.numbers["available_bytes"] == LIBRARY_BYTES


def test_states_lie_on_the_disk_where_layers_are_taken_one_by_one(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, 32 * GIB)
    assert spilled_bytes("auto", source, 4096) == 0
    assert spilled_bytes("by_layer", source, 4096) == 4096 * 64 * 4 * 4
    has(monkeypatch, GIB)
    assert spilled_bytes("auto", source, 4096) > 0


def test_whole_where_only_layers_fit_names_the_way(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Footprint(70 * 10**9, layer=10**9, table=10**9, vocab=128_256)
    monkeypatch.setattr(loading, "_footprint", lambda _: wide)
    has(monkeypatch, 24 * GIB)
    assert choose("auto", source) == "by_layer"
    assert "model.loading: by_layer" in refusal(choose, "whole", source).remedies
    error = refusal(require_whole, source, 2)
    assert error.code == "TF-QNT-012" and not any("by_layer" in remedy for remedy in error.remedies)
    assert error.numbers["whole_bytes"] == wide.whole_bytes(2) and "at once" in error.message
    assert any("advise" in remedy for remedy in error.remedies) and any("mixed" in remedy for remedy in error.remedies)


def test_libraries_that_are_loaded_are_not_needed_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Footprint.of_tensors({name: info.shape for name, info in read_headers(source).items()})
    least = found.whole_bytes() - LIBRARY_BYTES
    monkeypatch.setattr(loading, "memory", lambda: Memory(total=64 * GIB, available=least))
    assert "torch" in sys.modules and choose("auto", source) == "whole"
    monkeypatch.delitem(sys.modules, "torch")
    assert refusal(choose, "auto", source).code == "TF-QNT-012"


def test_memory_of_all_gpus_counts_where_the_model_is_computed_there(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch tells it; no GPU takes part."""
    wide = Footprint(30 * 10**9, layer=10**9, table=10**9, vocab=128_256)
    monkeypatch.setattr(loading, "_footprint", lambda _: wide)
    has(monkeypatch, 200 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (48 * GIB, 80 * GIB))
    for devices, mode in ((1, "by_layer"), (2, "whole")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda devices=devices: devices)
        assert choose("auto", source, on_gpu=True) == mode
    assert choose("auto", source) == "whole", "the reference is computed on the processor"
    require_whole(source, 1)  # two GPUs of 48 GiB hold one in 16 bits and not two
    assert refusal(require_whole, source, 2).numbers["available_bytes"] == 96 * GIB
