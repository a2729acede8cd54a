"""Mixtures that ``check`` sees as the quantizer does: a group size makes another format, and what is none is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.preflight import report


def _codes(*target: str, **quantize: Any) -> list[str]:
    found = report({"quantize": quantize, "build": {"target": "".join(target) or "torch"}}).findings
    return [item.code for item in found if item.code.startswith(("TF-K3-024", "TF-K3-025", "TF-K3-026", "TF-K3-028"))]


@pytest.mark.parametrize("text", ["int4_wo:7", "fp8:16", "int4_wo:x", "fp9"])
def test_a_name_or_group_size_that_is_none_is_one_finding(text: str) -> None:
    asked: dict[str, Any] = {"format": "nvfp4", "mixed": {text: ["down_proj"]}}
    assert _codes(**asked) == ["TF-K3-024"]
    (finding,) = [item for item in report({"quantize": asked}).findings if item.code == "TF-K3-024"]
    ways = " ".join(finding.remedies)
    assert "mixed none" not in ways and "awq" not in ways, "neither can be mixed"
    assert "quantize.group_size" not in ways, "that is the recipe's own format's"


@pytest.mark.parametrize(
    "own", [{"format": "fp9"}, {"format": "int4_wo", "group_size": 7}, {"format": "nvfp4_svdquant"}]
)
def test_what_is_wrong_with_the_recipe_s_own_format_is_said_of_it_alone(own: dict[str, Any]) -> None:
    assert _codes(**own, mixed={"fp8": ["down_proj"]}) == []


def test_two_group_sizes_are_two_formats() -> None:
    sizes: dict[str, Any] = {"format": "int4_wo", "mixed": {"int4_wo:32": ["down_proj"]}, "group_size": 64}
    assert _codes(**sizes) == []
    assert _codes("trtllm-engine", **sizes) == ["TF-K3-025"]
    assert _codes(format="int4_awq", group_size=64, mixed={"int4_awq:32": ["down_proj"]}) == ["TF-K3-025"]


def test_the_recipe_s_own_format_and_group_size_is_no_other_format() -> None:
    for group in (64, None):
        text = "int4_wo:64" if group else "int4_wo"
        for target in ("torch", "trtllm-engine"):
            asked: dict[str, Any] = {
                "format": "int4_wo",
                "group_size": group,
                "exclude": ["lm_head", "o_proj", "self_attn"],
            }
            found = _codes(target, **asked, mixed={text: ["gate_proj"]})
            assert not {"TF-K3-025", "TF-K3-026"} & set(found), found
    torn: dict[str, Any] = {"format": "int4_wo", "group_size": 64, "mixed": {"int4_wo:32": ["q_proj"]}}
    assert _codes(**torn) == ["TF-K3-026"]
