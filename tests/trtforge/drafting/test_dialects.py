"""Ours computes what each dialect's oracle computes, before and after every conversion, and nothing is lost."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from runtime.speculation.reference import Eagle3Reference
from tests.trtforge.drafting import (
    oracle_modelopt,
    oracle_specforge,
    oracle_speculators,
    oracle_tensorrt_llm,
)
from tests.trtforge.drafting.checkpoints import TARGET_LAYERS, VOCAB, WIDTH, Spec, specs, write
from trtforge.drafting.conversion import convert
from trtforge.drafting.inspection import inspect_folder
from trtforge.ground.errors import ForgeError

ORACLES = {
    "specforge": oracle_specforge.run,
    "speculators": oracle_speculators.run,
    "modelopt": oracle_modelopt.run,
    "tensorrt-llm": oracle_tensorrt_llm.run,
}
#: what each dialect has a place for, as its loader's source says
PLACES = {
    "specforge": {"fc_norm", "norm_output", "embed_tokens", "target_hidden_size"},
    "speculators": {
        *("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "qk_norm", "embed_tokens"),
        *("layers", "tap_count", "attention_bias", "mlp_bias"),
    },
    "modelopt": {"layers", "tap_count", "attention_bias", "mlp_bias"},
    "tensorrt-llm": {
        *("fc_norm", "norm_output", "norm_before_fc", "target_hidden_size", "layers", "tap_count"),
        *("attention_bias", "mlp_bias", "fc_bias"),
    },
}
SPECS = specs()
STEPS, LENGTH, CLOSE = 3, 7, 1e-5


def given(spec: Spec) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The target's states [n + 1, T, Ht], tokens, embedding and output head."""
    made = torch.Generator().manual_seed(spec.seed)
    hidden = torch.randn(TARGET_LAYERS + 1, LENGTH, spec.target_width, generator=made)
    tokens = torch.randint(VOCAB, (LENGTH,), generator=made)
    tables = [torch.randn(VOCAB, WIDTH, generator=made) for _ in range(2)]
    return hidden, tokens, tables[0], tables[1]


def agrees(folder: Path, expected: tuple[list[torch.Tensor], list[int]], spec: Spec) -> None:
    """Whether the reference computes ``expected`` of a folder."""
    hidden, tokens, embedding, lm_head = given(spec)
    ours = Eagle3Reference.open(folder, embedding=embedding, lm_head=lm_head)
    layers = ours.head.taps or ours.head.default_taps(TARGET_LAYERS)
    taps = torch.cat([hidden[layer + 1] for layer in layers], dim=-1)
    states = ours.join(taps)
    for wanted, token in zip(*expected, strict=True):
        logits, fed = ours.step(tokens, states)
        assert (logits[-1] - wanted).abs().max() <= CLOSE
        assert int(ours.targets[logits[-1].argmax()]) == token
        tokens, states = torch.cat([tokens, torch.tensor([token])]), torch.cat([states, fed[-1:]])
    assert ours.draft(given(spec)[1], taps, STEPS).tolist() == expected[1]


def test_the_grid_covers_what_it_names() -> None:
    assert len(SPECS) >= 40
    for name in (
        "fc_norm",
        "norm_output",
        "norm_before_fc",
        "norm_before_residual",
        "qk_norm",
        "own_embedding",
        "bias",
    ):
        assert any(getattr(spec, name) for spec in SPECS), name
    assert {(spec.scaling or {}).get("rope_type") for spec in SPECS} == {None, "llama3", "yarn", "linear"}
    assert any(not spec.own_head for spec in SPECS) and any(spec.taps is None for spec in SPECS)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_ours_computes_what_the_oracle_computes_before_and_after_conversions(spec: Spec, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", spec)
    hidden, tokens, embedding, lm_head = given(spec)
    expected = ORACLES[spec.dialect](folder, hidden, tokens, STEPS, embedding, lm_head)
    agrees(folder, expected, spec)
    for to, places in PLACES.items():
        lacks = spec.parts - places
        if to == "tensorrt-llm" and spec.target_width != WIDTH:
            lacks -= {"embed_tokens"}
        needs_target = to in ("specforge", "speculators") and not spec.own_head
        out = tmp_path / to
        if lacks or needs_target:
            with pytest.raises(ForgeError) as refused:
                convert(folder, to, out)
            by_name = {"embed_tokens", "norm_output"}
            code = "TF-DRF-016" if lacks - by_name else "TF-DRF-020" if lacks else "TF-DRF-026"
            assert refused.value.code == code, refused.value
            assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", to))] == []
            continue
        convert(folder, to, out)
        converted = ORACLES[to](out, hidden, tokens, STEPS, embedding, lm_head)
        assert converted[1] == expected[1]
        for one, other in zip(converted[0], expected[0], strict=True):
            assert (one - other).abs().max() <= CLOSE
        agrees(out, expected, spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_round_trips_are_bit_identical(spec: Spec, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", spec)
    before, tensors = inspect_folder(folder), load_file(folder / "model.safetensors")
    chains = 0
    for path in itertools.permutations([name for name in PLACES if name != spec.dialect], 2):
        if any(spec.parts - PLACES[name] for name in path) or not spec.own_head:
            continue
        chains += 1
        here = folder
        for number, to in enumerate([*path, spec.dialect]):
            there = tmp_path / f"{'-'.join(path)}-{number}"
            convert(here, to, there)
            here = there
        after = load_file(here / "model.safetensors")
        assert after.keys() == tensors.keys()
        for name, value in tensors.items():
            assert after[name].dtype == value.dtype and after[name].numpy().tobytes() == value.numpy().tobytes(), name
        found = inspect_folder(here)
        assert found.head == before.head and found.dialect == before.dialect
        assert found.stored_taps == before.stored_taps
    if not spec.parts and spec.own_head:
        assert chains == 6
