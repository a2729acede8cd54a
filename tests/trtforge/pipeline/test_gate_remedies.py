"""A missed gate is answered with what helps that gate."""

from __future__ import annotations

import pytest

from trtforge.pipeline.gate_remedies import REMEDIES, gate_remedies


@pytest.mark.parametrize("name", REMEDIES)
def test_every_gate_has_a_way_out(name: str) -> None:
    assert gate_remedies([name]) == list(REMEDIES[name])


def test_a_gate_speaks_of_its_own_key_only() -> None:
    keys = {
        "generation_sanity": "evals.generation.gate",
        "perplexity_increase": "evals.perplexity.gate",
        "engine_kl": "evals.engine_parity.gate",
        "top1_agreement": "evals.engine_parity.gate",
    }
    for name, key in keys.items():
        text = " ".join(gate_remedies([name]))
        assert key in text
        assert not [other for other in set(keys.values()) - {key} if other in text]


def test_a_gate_on_a_bound_says_how_to_narrow_it() -> None:
    assert any("evals.engine_parity.prompts" in way for way in gate_remedies(["graph_top1_agreement"]))
    assert any("evals.perplexity.tokens" in way for way in gate_remedies(["perplexity_increase"]))


def test_names_with_a_level_or_a_check_are_known_and_nothing_is_said_twice() -> None:
    assert gate_remedies(["ttft_p99@1"]) == gate_remedies(["itl_p99@4", "ttft_p99@1"])
    assert gate_remedies(["smoke: http", "smoke: grpc"]) == list(REMEDIES["smoke"])
    assert gate_remedies(["unheard of"]) == []
