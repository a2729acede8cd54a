"""A missed gate is answered with what helps that gate."""

from __future__ import annotations

import pytest

from trtforge.pipeline.gate_remedies import REMEDIES, gate_remedies
from trtforge.recipe.schema import Recipe

PLAIN = Recipe.model_validate({"name": "x", "model": {"source": "/m"}})
CACHED = Recipe.model_validate(
    {"name": "x", "model": {"source": "/m"}, "quantize": {"format": "fp8", "kv_cache": "fp8"}}
)


@pytest.mark.parametrize("name", REMEDIES)
def test_every_gate_has_a_way_out(name: str) -> None:
    assert gate_remedies([name], PLAIN) == list(REMEDIES[name])


def test_a_gate_speaks_of_its_own_key_only() -> None:
    keys = {
        "generation_sanity": "evals.generation.gate",
        "perplexity_increase": "evals.perplexity.gate",
        "engine_kl": "evals.engine_parity.gate",
        "top1_agreement": "evals.engine_parity.gate",
    }
    for name, key in keys.items():
        text = " ".join(gate_remedies([name], PLAIN))
        assert key in text
        assert not [other for other in set(keys.values()) - {key} if other in text]


def test_a_gate_on_a_bound_says_how_to_narrow_it() -> None:
    assert any("evals.engine_parity.prompts" in way for way in gate_remedies(["graph_top1_agreement"], PLAIN))
    assert any("evals.perplexity.tokens" in way for way in gate_remedies(["perplexity_increase"], PLAIN))


def test_names_with_a_level_or_a_check_are_known_and_nothing_is_said_twice() -> None:
    assert gate_remedies(["ttft_p99@1"], PLAIN) == gate_remedies(["itl_p99@4", "ttft_p99@1"], PLAIN)
    assert gate_remedies(["smoke: http", "smoke: grpc"], PLAIN) == list(REMEDIES["smoke"])
    assert gate_remedies(["unheard of"], PLAIN) == []


@pytest.mark.parametrize("name", REMEDIES)
def test_a_quantized_cache_is_named_first_where_it_can_be_the_cause(name: str) -> None:
    plain, cached = gate_remedies([f"{name}@1"], PLAIN), gate_remedies([f"{name}@1"], CACHED)
    ends = ("top1_agreement", "_kl", "_sanity", "_answers", "_top1", "task_suite", "custom", "_needles", "_increase")
    of_the_cache = name.endswith(ends)
    assert cached[-len(plain) :] == plain and not any("kv_cache" in way for way in plain)
    assert [way.startswith("quantize.kv_cache: none") for way in cached[: -len(plain)]] == [True] * of_the_cache
