"""The figures of the rules on shapes are those of the graph builder and of the plugins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from builder.graphs.config import HEAD_SIZES, read_config
from builder.targets.tensorrt.plugin_fields import FIELDS
from builder.targets.trtllm.ranks import layers_of
from tests.support.preflight import SMOL, codes, only
from tests.support.public_models import CONFIGS
from tests.trtforge.preflight.settings import API, ENGINE, GPU, RTX, build, merged
from trtforge.ground.errors import ForgeError
from trtforge.models.kv import stage_layers
from trtforge.preflight.rules import shapes
from trtforge.targets import TARGETS
from trtforge.targets.tensorrt import TENSORRT
from trtforge.targets.torch import TORCH

LLAMA = CONFIGS["HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_head_sizes_are_those_of_graph_and_plugin() -> None:
    field = FIELDS["PagedAttention"]["head_size"]
    assert shapes.HEAD_SIZES == HEAD_SIZES == (field.minimum, field.maximum)
    # the host library checks what the plugin does, and the torch engine's attention is its
    assert TENSORRT.head_multiple == TORCH.head_multiple == field.multiple


@pytest.mark.parametrize("settings", [{}, GPU, RTX, ENGINE], ids=["torch", "tensorrt", "rtx", "trtllm-engine"])
@pytest.mark.parametrize("size", [32, 62, 64, 80, 100, 128, 256, 258])
def test_check_refuses_the_heads_that_the_graph_refuses(settings: dict, size: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "head_dim": size}))
    try:
        read_config(tmp_path)
        written = True
    except ForgeError as error:
        assert error.code == "TF-GRF-009"
        written = False
    found = "TF-K5-006" in codes(settings, model=replace(SMOL, head_size=size))
    assert found == (not written or (settings in ({}, GPU) and size % 8 != 0))


@pytest.mark.parametrize(("size", "taken"), [(100, False), (88, True)])
def test_a_target_is_offered_where_its_attention_takes_the_heads(size: int, taken: bool) -> None:
    found = only("TF-K5-007", ENGINE, model=replace(SMOL, head_size=size))
    assert any("build.target: torch" in text for text in found.remedies) is taken


def test_tensorrt_llm_itself_takes_other_heads() -> None:
    assert "TF-K5-006" not in codes(API, model=replace(SMOL, head_size=32))


def test_a_waiver_of_the_context_does_not_reach_the_build() -> None:
    waived = {"waive": {"TF-K9-001": "a test"}}
    over = build(limits={"max_seq_len": SMOL.max_positions + 1})
    assert "TF-K9-014" in codes(merged(over, waived))
    assert "TF-K9-014" not in codes(over), "one finding for one fault"


@pytest.mark.parametrize(("layers", "pp"), [(30, 2), (30, 4), (7, 3), (5, 5)])
def test_stages_are_the_converter_s(layers: int, pp: int) -> None:
    assert stage_layers(layers, pp) == [layers_of(layers, pp, rank) for rank in range(pp)]


@pytest.mark.parametrize("target", ["torch", "tensorrt", "tensorrt-rtx"])
def test_targets_of_one_device_are_those_whose_builder_refuses_more(target: str) -> None:
    settings = build(target=target, architectures=["sm_89"], parallel={"tp": 3})
    assert ("TF-K16-001" in codes(settings)) and TARGETS[target].one_rank
