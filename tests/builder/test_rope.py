"""Inverse frequencies and attention factors against transformers' own functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.graphs.rope import inverse_frequencies
from trtforge.ground.errors import ForgeError
from trtforge.models.config import rope_section
from trtforge.tables.decoders import decoders


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a Llama's config.json."""
    return rope_section(config, decoders()["LlamaForCausalLM"])


def reference(rope: dict[str, Any], head_size: int, positions: int) -> tuple[np.ndarray, float]:
    """transformers' frequencies for a Llama of that head size."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head_size * 2,
        num_attention_heads=2,
        head_dim=head_size,
        max_position_embeddings=positions,
        rope_parameters=dict(rope),
    )
    module = LlamaRotaryEmbedding(config)
    return module.inv_freq.numpy(), float(module.attention_scaling)


def compare(rope: dict[str, Any], head_size: int, positions: int = 4096) -> None:
    want, factor = reference(rope, head_size, positions)
    got, got_factor = inverse_frequencies(
        rope_parameters({"rope_parameters": rope, "max_position_embeddings": positions}), head_size
    )
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=5e-6)
    assert got_factor == pytest.approx(factor, rel=1e-12)


thetas = st.sampled_from([1e4, 5e5, 1e6])
sizes = st.sampled_from([64, 80, 96, 128, 256])
factors = st.floats(1.0, 64.0)


@settings(max_examples=20, deadline=None)
@given(theta=thetas, size=sizes, factor=factors)
def test_default_and_linear(theta: float, size: int, factor: float) -> None:
    compare({"rope_type": "default", "rope_theta": theta}, size)
    compare({"rope_type": "linear", "rope_theta": theta, "factor": factor}, size)


@settings(max_examples=20, deadline=None)
@given(theta=thetas, size=sizes, factor=factors, low=st.floats(0.5, 2), spread=st.floats(1, 8))
def test_llama3(theta: float, size: int, factor: float, low: float, spread: float) -> None:
    compare(
        {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + spread,
            "original_max_position_embeddings": 8192,
        },
        size,
        131072,
    )


@settings(max_examples=20, deadline=None)
@given(
    theta=thetas,
    size=sizes,
    factor=factors,
    extra=st.sampled_from(
        [
            {},
            {"attention_factor": 1.25},
            {"beta_fast": 16, "beta_slow": 2},
            {"truncate": False},
            {"mscale": 0.7, "mscale_all_dim": 1.1},
        ]
    ),
)
def test_yarn(theta: float, size: int, factor: float, extra: dict[str, Any]) -> None:
    rope = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": 4096}
    compare(rope | extra, size, 32768)


def test_the_old_spelling_means_the_same() -> None:
    new = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}, "max_position_embeddings": 64}
    for key in ("type", "rope_type"):
        old = {"rope_scaling": {key: "linear", "factor": 4.0}, "rope_theta": 5e5, "max_position_embeddings": 64}
        assert rope_parameters(old) == rope_parameters(new)
    assert rope_parameters({"rope_scaling": {"type": "yarn", "factor": 2.0}, "max_position_embeddings": 64}) == {
        "rope_type": "yarn",
        "factor": 2.0,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
    }
    assert rope_parameters({})["rope_type"] == "default"
    assert rope_parameters({"rope_scaling": None})["rope_theta"] == 10000.0


def test_of_two_sections_the_one_decides_that_transformers_takes() -> None:
    from transformers import LlamaConfig

    written: dict[str, Any] = {
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5},
        "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
    }
    assert rope_parameters(written)["factor"] == LlamaConfig(**written).rope_parameters["factor"] == 2.0


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic"),
        ({"rope_type": "longrope"}, "longrope"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "yarn", "factor": -1.0, "original_max_position_embeddings": 64}, "factor"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor"),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "high_freq_factor",
        ),
        ({"rope_type": "linear", "factor": 10**400}, "factor"),
        ({"rope_type": "linear", "factor": float("inf")}, "factor"),
        ({"rope_type": "default", "rope_theta": 1e300}, "rope_theta"),
    ],
)
def test_unknown_types_and_missing_keys_are_refused(rope: dict[str, Any], named: str) -> None:
    with pytest.raises(ForgeError) as caught:
        inverse_frequencies(rope_parameters({"rope_parameters": rope}), 64)
    assert caught.value.code == "TF-GRF-003"
    assert named in caught.value.message
    assert caught.value.remedies
