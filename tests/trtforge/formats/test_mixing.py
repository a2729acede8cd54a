"""Which formats go together, which linears must agree, and how a recipe's patterns are resolved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trtforge.formats.mixing import (
    assign,
    format_text,
    load_mixing,
    mixable,
    mixable_on,
    named_format,
    not_mixed_on,
    product_of,
    sized_format,
    torn_products,
)
from trtforge.formats.table import format_row
from trtforge.ground.errors import ForgeError
from trtforge.targets import TARGETS

LAYER = "model.layers.1"
LINEARS = [
    *(f"{LAYER}.self_attn.{part}_proj" for part in "qkvo"),
    *(f"{LAYER}.mlp.{part}_proj" for part in ("gate", "up", "down")),
    "lm_head",
]


def _code(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(ForgeError) as error:
        call(*args)
    assert error.value.remedies
    return error.value.code


def test_every_target_has_a_row() -> None:
    assert set(load_mixing().targets) == set(TARGETS)


def test_a_format_of_the_table_is_refused_nowhere_else() -> None:
    """What a target mixes is no format that its own row says it does not take."""
    for target, row in load_mixing().targets.items():
        assert not [name for name in row.formats if target in format_row(name).not_on]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (f"{LAYER}.self_attn.q_proj", f"{LAYER}.self_attn.v_proj", True),
        (f"{LAYER}.self_attn.q_proj", "model.layers.2.self_attn.q_proj", False),
        (f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj", True),
        (f"{LAYER}.mlp.experts.0.gate_proj", f"{LAYER}.mlp.experts.7.down_proj", True),
        (f"{LAYER}.block_sparse_moe.experts.0.w1", f"{LAYER}.block_sparse_moe.experts.3.w2", True),
        (f"{LAYER}.mlp.shared_expert.gate_proj", f"{LAYER}.mlp.experts.0.gate_proj", False),
    ],
)
def test_products(one: str, other: str, same: bool) -> None:
    assert (product_of(one) == product_of(other)) is same


def test_a_linear_by_itself_is_no_product() -> None:
    assert product_of(f"{LAYER}.mlp.down_proj") is None and product_of("lm_head") is None


def test_names_with_and_without_a_group() -> None:
    assert named_format("int4_wo:64")[1] == 64 and named_format("int4_wo")[1] is None
    assert (
        format_text(*sized_format("int4_wo:128")) == "int4_wo"
        and format_text(*sized_format("int4_wo:64"))[-3:] == ":64"
    )
    assert _code(named_format, "fp8:x") == "TF-QNT-050"
    assert _code(sized_format, "fp8:16") == "TF-QNT-004"
    assert _code(named_format, "fp9") == "TF-QNT-001"


def test_searched_formats_are_not_mixed() -> None:
    mixable(["fp8", "nvfp4"], "x")
    assert _code(mixable, ["fp8", "int4_awq"], "x") == "TF-QNT-017"


def test_targets_name_what_would_work() -> None:
    mixable_on("trtllm-llmapi", ["nvfp4", "fp8"], "x")
    with pytest.raises(ForgeError) as error:
        mixable_on("trtllm-engine", ["nvfp4", "fp8"], "x")
    assert error.value.code == "TF-QNT-017" and "build.target: trtllm-llmapi" in error.value.remedies
    assert not_mixed_on("trtllm-llmapi", ["fp8", "int8_wo"])[0] == ["int8_wo"]


def test_patterns_take_in_what_exclude_would() -> None:
    found, idle = assign({"fp8": ["layers.1.mlp", "o_proj", "nothing"]}, LINEARS, ["up_proj"])
    assert sorted(name.rpartition(".")[2] for name in found) == ["down_proj", "gate_proj", "o_proj"]
    assert set(found.values()) == {"fp8"} and idle == ["nothing"]


def test_a_linear_has_one_format() -> None:
    assert _code(assign, {"fp8": ["mlp"], "int8_wo": ["down_proj"]}, LINEARS, []) == "TF-QNT-019"


def test_torn_products_are_named_with_their_parts() -> None:
    formats = dict.fromkeys(LINEARS, "nvfp4") | {f"{LAYER}.self_attn.k_proj": "fp8", f"{LAYER}.mlp.down_proj": "fp8"}
    torn = torn_products(formats)
    assert list(torn) == [f"query, key and value of {LAYER}.self_attn"]
    assert torn[f"query, key and value of {LAYER}.self_attn"][f"{LAYER}.self_attn.k_proj"] == "fp8"
