"""KV cache under sliding windows: the arithmetic, and that preflight, planner and repository agree on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.planner.capacity import capacity
from builder.planner.facts import served_limits
from builder.planner.hardware import gpu
from builder.planner.memory import plan_memory
from builder.planner.model import from_config
from builder.planner.types import ParallelPlan, Precision
from builder.planner.weights import groups_from_facts
from builder.planner.workload import fixed
from tests.builder.planner.models import bare
from tests.support.preflight import BIG, codes, only
from tests.trtforge.preflight.settings import API, ENGINE, GPU, LLAMA_8B, WINDOW, build, merged, parameters, trtllm
from trtforge.models.kv import kv_bytes_per_token
from trtforge.models.kv_window import KvWindows, parse_windows
from trtforge.models.record import Model
from trtforge.recipe.kv_windows import kv_windows
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe

MISTRAL: dict[str, Any] = {"model": WINDOW, "machine": BIG}
#: 2 x 32 layers x 8 heads x 128 x 2 bytes
TOKEN = 131_072
LIMITS = build(limits={"max_seq_len": 32_768, "max_num_tokens": 2048})
PLAIN = trtllm(paged_context_attention=False, chunked_context=False)


def recipe(*parts: dict[str, Any]) -> Recipe:
    return recipe_from_mapping(merged({"name": "x", "model": {"source": "s"}}, *parts)).recipe


class TestWindows:
    def test_a_window_keeps_itself_and_one_block(self) -> None:
        windows = KvWindows((64, 0))
        assert windows.layer_tokens(64, 32, 2048) == 64 + 64
        assert windows.layer_tokens(1000, 32, 2048) == 96 + 1024

    def test_a_chunk_of_the_prompt_stays_beside_the_window(self) -> None:
        """With paged context attention, and no longer than the prompt goes beyond the window."""
        assert KvWindows((64,), 900, paged=True).layer_tokens(1000, 32, 256) == 64 + 256 + 32
        assert KvWindows((64,), 100, paged=True).layer_tokens(1000, 32, 256) == 128 + 32
        assert KvWindows((64,), 900, paged=False).layer_tokens(1000, 32, 256) == 96

    @given(
        st.lists(st.integers(0, 300), min_size=1, max_size=6),
        st.integers(0, 2000),
        st.sampled_from([16, 32, 64]),
        st.integers(1, 700),
        st.booleans(),
        st.integers(1, 3000),
    )
    def test_the_longest_request_fits_and_a_longer_does_not(
        self, windows: list[int], pool: int, block: int, step: int, paged: bool, most: int
    ) -> None:
        kept, pool = KvWindows(tuple(windows), most, paged), pool // block * block
        longest = kept.longest(pool, block, step, most)
        assert 0 <= longest <= most
        assert not longest or kept.layer_tokens(longest, block, step) <= pool * len(windows)
        if longest < most:
            assert kept.layer_tokens(longest + 1, block, step) > pool * len(windows)

    @given(st.lists(st.integers(0, 500), min_size=1, max_size=5), st.lists(st.integers(0, 3000), min_size=1))
    def test_arrays_are_counted_like_numbers(self, windows: list[int], lengths: list[int]) -> None:
        kept = KvWindows(tuple(windows), 700, paged=True)
        expected = [kept.layer_tokens(length, 32, 128) for length in lengths]
        assert kept.layer_tokens(np.asarray(lengths, dtype=np.float64), 32, 128).tolist() == expected

    @pytest.mark.parametrize(
        ("text", "values"),
        [("", []), ("64", [64]), ("64, 128", [64, 128]), ("0", []), ("64,", []), ("x", []), ("9" * 30, [])],
    )
    def test_what_is_no_list_names_no_window(self, text: str, values: list[int]) -> None:
        assert list(parse_windows(text)) == values


class TestOfARecipe:
    def test_the_parameter_wins_over_the_models_window(self) -> None:
        assert kv_windows(recipe(ENGINE, LIMITS), windowed(4)).windows == (4096,) * 4
        asked = recipe(ENGINE, LIMITS, parameters(max_attention_window_size="1024,2048"))
        assert kv_windows(asked, windowed(3)).windows == (1024, 2048, 1024)
        some = replace(windowed(4), windows=(0, 4096, 4096, 4096))
        assert kv_windows(recipe(ENGINE, LIMITS), some).windows == (0, 4096, 4096, 4096)
        assert kv_windows(recipe(ENGINE, LIMITS), replace(some, windows=())).windows == (0,) * 4

    def test_a_window_that_no_request_leaves_is_none(self) -> None:
        assert kv_windows(recipe(ENGINE, build(limits={"max_seq_len": 4096})), windowed(2)).windows == (0, 0)

    @pytest.mark.parametrize("base", [{}, GPU, API], ids=["torch", "tensorrt", "trtllm-llmapi"])
    def test_the_other_runtimes_keep_everything(self, base: dict[str, Any]) -> None:
        assert kv_windows(recipe(base, LIMITS), windowed(2)).windows == (0, 0)


def windowed(layers: int) -> Model:
    """A Mistral of so many layers."""
    return replace(WINDOW, layers=layers, windows=(4096,) * layers)


class TestPreflight:
    def test_the_pool_holds_one_request_of_a_window(self) -> None:
        asked = merged(ENGINE, LIMITS, PLAIN)
        least = (4096 + 32) * TOKEN
        assert "TF-K10-001" not in codes(merged(asked, build(kv_cache={"memory": f"{least}B"})), **MISTRAL)
        finding = only("TF-K10-001", merged(asked, build(kv_cache={"memory": f"{least - 1}B"})), **MISTRAL)
        assert finding.numbers["least_bytes"] == least and finding.numbers["kept_tokens"] == 4128
        assert "build.limits.max_seq_len: 4096" in finding.remedies

    def test_the_chunk_of_a_prompt_counts(self) -> None:
        asked = merged(ENGINE, LIMITS, build(kv_cache={"memory": "1MiB"}))
        assert only("TF-K10-001", asked, **MISTRAL).numbers["least_bytes"] == (4096 + 2048 + 32) * TOKEN

    @pytest.mark.parametrize("base", [GPU, API], ids=["tensorrt", "trtllm-llmapi"])
    def test_runtimes_that_keep_everything_need_it(self, base: dict[str, Any]) -> None:
        asked = merged(base, LIMITS, build(kv_cache={"memory": f"{32_768 * TOKEN - 1}B"}))
        assert only("TF-K10-001", asked, **MISTRAL).numbers["least_bytes"] == 32_768 * TOKEN

    def test_a_parameter_makes_the_window_of_a_model_without(self) -> None:
        whole = merged(ENGINE, PLAIN, build(limits={"max_seq_len": 8192}, kv_cache={"memory": "512MiB"}))
        facts = {"model": LLAMA_8B, "machine": BIG}
        assert "TF-K10-001" in codes(whole, **facts)
        assert "TF-K10-001" not in codes(merged(whole, parameters(max_attention_window_size="2048")), **facts)

    def test_only_the_layers_that_have_the_window_are_bound_by_it(self) -> None:
        asked = merged(ENGINE, LIMITS, PLAIN, build(kv_cache={"memory": "1MiB"}))
        half = only("TF-K10-001", asked, model=replace(WINDOW, windows=(4096,) * 16 + (0,) * 16), machine=BIG)
        assert half.numbers["least_bytes"] == (4128 + 32_768) // 2 * TOKEN

    def test_tokens_of_the_pool_are_those_of_the_widest_window(self) -> None:
        asked = merged(ENGINE, LIMITS, PLAIN)
        enough = merged(asked, parameters(max_tokens_in_paged_kv_cache="4128"))
        assert "TF-K10-010" not in codes(enough, **MISTRAL)
        finding = only("TF-K10-010", merged(asked, parameters(max_tokens_in_paged_kv_cache="4127")), **MISTRAL)
        assert finding.numbers["needed_tokens"] == 4128
        wider = merged(enough, parameters(max_attention_window_size="1024,8192"))
        assert only("TF-K10-010", wider, **MISTRAL).numbers["needed_tokens"] == 8192 + 32


@pytest.mark.parametrize("base", [ENGINE, API], ids=["trtllm-engine", "trtllm-llmapi"])
@pytest.mark.parametrize("window", [None, 64, 200])
def test_planner_and_preflight_hold_the_same_request(base: dict[str, Any], window: int | None) -> None:
    """The least pool that preflight lets pass is the least that the planner puts one longest request into."""
    model = from_config(bare(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=window))
    shape = replace(model, eos_token_ids=(2,))
    asked = merged(base, {"model": {"dtype": "bfloat16"}}, build(limits={"max_seq_len": 1024, "max_num_tokens": 256}))
    finding = only("TF-K10-001", merged(asked, build(kv_cache={"memory": "1KiB"})), model=shape, machine=BIG)
    least = finding.numbers["least_bytes"]
    assert finding.numbers["bytes_per_token"] == kv_bytes_per_token(model.kv, "bfloat16")
    for pool, requests in ((least, 1), (least - 1, 0)):
        serving = served_limits(recipe(asked, build(kv_cache={"memory": f"{pool}B"})), model)
        plans = plan_memory(model, groups_from_facts(model), Precision(), ParallelPlan(), serving, gpu("h200"))
        assert capacity(model, plans, fixed(1023, 1), serving).guaranteed == requests
