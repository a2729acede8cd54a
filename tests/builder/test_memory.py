"""The memory plan: worked numbers, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.graphs.info import GraphInfo
from builder.memory import MemoryPlan, activation_bytes
from builder.memory import plan_memory as planned
from trtforge.ground.errors import ForgeError
from trtforge.models.kv import kv_bytes_per_token
from trtforge.recipe.schema import KvCache, Limits


def graph(layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, head_size: int, vocab: int) -> GraphInfo:
    return GraphInfo(
        architecture="llama",
        hf_architecture="LlamaForCausalLM",
        mode="paged",
        dtype="bfloat16",
        vocab_size=vocab,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        max_position_embeddings=131_072,
        sliding_window=0,
        kv_cache={"format": "bfloat16", "block_size": 32, "scales": "none"},
        quant_format="none",
        group_size=None,
        linears=(),
        ops={},
    )


LLAMA_70B = graph(80, 8192, 28672, 64, 8, 128, 128256)
SMOL = graph(30, 576, 1536, 9, 3, 64, 49152)


def plan_memory(info: GraphInfo, limits: Limits, cache: KvCache, form: str, **sizes: int) -> MemoryPlan:
    """The plan of the graph with pools of ``form``."""
    return planned(replace(info, kv_cache={**info.kv_cache, "format": form}), limits, cache, **sizes)


def test_bytes_per_token_of_known_models() -> None:
    assert kv_bytes_per_token(LLAMA_70B.kv, "float16") == 327_680
    assert kv_bytes_per_token(LLAMA_70B.kv, "fp8") == 163_840
    assert kv_bytes_per_token(SMOL.kv, "bfloat16") == 23_040
    # A request of 131,072 tokens: 42.9 GB.
    assert kv_bytes_per_token(LLAMA_70B.kv, "float16") * 131_072 == pytest.approx(42.9e9, rel=2e-3)


def test_activations_are_float32_rows_and_logits() -> None:
    limits = Limits(max_batch_size=2, max_num_tokens=10)
    assert activation_bytes(SMOL, limits) == 4 * (10 * (2 * 576 + 3 * 1536) + 2 * 49152)


def test_a_pool_from_memory() -> None:
    plan = plan_memory(SMOL, Limits(), KvCache(memory="256MiB"), "fp8", weights_bytes=10**8)
    assert plan.bytes_per_block == 32 * 11_520 and plan.num_blocks == 2**28 // plan.bytes_per_block
    assert plan.tokens_in_pool == plan.num_blocks * 32 and plan.sized_by == "memory"
    assert plan.longest_requests_in_pool == plan.num_blocks // 64
    assert plan.to_json()["total_bytes"] == 10**8 + plan.activation_bytes + plan.kv_pool_bytes


def test_a_pool_from_a_share_of_free_memory() -> None:
    cache = KvCache(free_fraction=0.5)
    plan = plan_memory(SMOL, Limits(), cache, "bfloat16", weights_bytes=2**28, free_bytes=2**32)
    assert plan.sized_by == "free_fraction"
    assert plan.total_bytes <= 2**31 < plan.total_bytes + plan.bytes_per_block
    # Small fluctuations of the free memory do not change the plan.
    again = plan_memory(SMOL, Limits(), cache, "bfloat16", weights_bytes=2**28, free_bytes=2**32 + 2**20)
    assert again == plan


def test_the_default_pool_holds_a_full_batch_up_to_a_limit() -> None:
    small = plan_memory(SMOL, Limits(max_batch_size=2), KvCache(), "fp8", weights_bytes=0)
    assert small.longest_requests_in_pool == 2 and small.sized_by == "default"
    large = plan_memory(SMOL, Limits(max_batch_size=512), KvCache(), "bfloat16", weights_bytes=0)
    assert 2**30 - large.bytes_per_block < large.kv_pool_bytes <= 2**30
    long = plan_memory(LLAMA_70B, Limits(max_seq_len=131072), KvCache(), "float16", weights_bytes=0)
    assert long.longest_requests_in_pool == 1


def test_a_pool_below_one_request_is_refused_with_what_fits() -> None:
    with pytest.raises(ForgeError) as caught:
        plan_memory(SMOL, Limits(max_seq_len=8192), KvCache(memory="64MiB"), "bfloat16", weights_bytes=0)
    error = caught.value
    assert error.code == "TF-BLD-010"
    fits, needed = error.numbers["max_seq_len_that_fits"], error.numbers["bytes_needed"]
    plan_memory(SMOL, Limits(max_seq_len=fits), KvCache(memory="64MiB"), "bfloat16", weights_bytes=0)
    plan_memory(SMOL, Limits(max_seq_len=8192), KvCache(memory=needed), "bfloat16", weights_bytes=0)
    assert f"max_seq_len to at most {fits}" in " ".join(error.remedies)


def test_a_pool_below_one_block_names_only_what_helps() -> None:
    with pytest.raises(ForgeError) as caught:
        plan_memory(SMOL, Limits(), KvCache(memory="1kB"), "bfloat16", weights_bytes=0)
    assert not any("max_seq_len" in remedy for remedy in caught.value.remedies)


def test_no_room_beside_the_weights() -> None:
    with pytest.raises(ForgeError, match="TF-BLD-011"):
        plan_memory(SMOL, Limits(), KvCache(free_fraction=0.5), "fp8", weights_bytes=2**30, free_bytes=2**30)


@given(
    st.integers(1, 2**34),
    st.integers(2, 65536),
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from(["float32", "bfloat16", "fp8"]),
)
def test_a_plan_holds_one_request_or_is_refused(memory: int, longest: int, block: int, fmt: str) -> None:
    limits, cache = Limits(max_seq_len=longest), KvCache(memory=memory, block_size=block)
    needed = -(-longest // block) * block * kv_bytes_per_token(SMOL.kv, fmt)
    try:
        plan = plan_memory(SMOL, limits, cache, fmt, weights_bytes=0)
    except ForgeError as error:
        assert error.code == "TF-BLD-010" and memory < needed
    else:
        assert plan.tokens_in_pool >= longest and plan.kv_pool_bytes <= memory >= needed
