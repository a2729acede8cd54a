"""FP8 context attention that nobody asked for: trtllm-build turns it on, so preflight judges it as if written."""

from __future__ import annotations

import pytest

from tests.support.preflight import codes, report
from tests.trtforge.preflight.settings import ENGINE, build, merged, quant, speculation, trtllm

FP8 = merged(ENGINE, quant(format="fp8", kv_cache="fp8"))


def test_implied_fp8_attention_is_held_against_the_architecture() -> None:
    (finding,) = [f for f in report(merged(FP8, build(architectures=["sm_89"]))).findings if f.code == "TF-K3-011"]
    assert "paged_context_attention: true over quantize.kv_cache: fp8" in finding.asked
    assert finding.remedies[0] == "quantize.kv_cache: none"
    assert "TF-K3-011" not in codes(merged(FP8, build(architectures=["sm_89"]), quant(kv_cache="none")))


@pytest.mark.parametrize("architecture", ["sm_90"])
def test_where_it_has_kernels_nothing_is_said(architecture: str) -> None:
    assert not codes(merged(FP8, build(architectures=[architecture]))) & {"TF-K3-011", "TF-K13-004"}


def test_what_a_recipe_writes_against_the_builder_is_refused() -> None:
    written = merged(FP8, trtllm(fp8_context_attention=False))
    assert "TF-K13-004" in codes(written)
    assert "TF-K13-004" not in codes(merged(written, trtllm(paged_context_attention=False, chunked_context=False)))


@pytest.mark.parametrize(
    "drafts",
    [
        {"method": "lookahead"},
        {"method": "medusa", "draft": "draft", "heads": 4, "max_draft_len": 63},
        {"method": "eagle", "draft": "draft", "heads": 4, "max_draft_len": 63},
    ],
)
def test_context_logits_of_engines_that_draft_are_refused_as_trtllm_build_does(drafts: dict[str, object]) -> None:
    asked = merged(ENGINE, quant(format="none"), speculation(**drafts), trtllm(gather_context_logits=True))
    found = [f.message for f in report(asked).findings if f.code == "TF-K12-003"]
    assert any("gather-context-logits" in message for message in found)
    left = report(merged(asked, trtllm(gather_context_logits=False))).findings
    assert not any("gather-context-logits" in finding.message for finding in left)
