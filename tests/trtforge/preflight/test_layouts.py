"""What a rule says of streaming and of parameters depends on the layout: each has its own choices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.preflight import codes, only
from tests.trtforge.preflight.settings import API, ENGINE, GPU, RTX, merged, parameters, triton
from trtforge.recipe.schema_serving import Serving

SLO: dict[str, Any] = {"bench": {"slo": {"ttft_p99": "2s", "itl_p99": "200ms"}}}
STREAMING = {"TF-K14-001", "TF-K14-002", "TF-K14-003"}
SERVED_BY_NATIVE: dict[str, dict[str, Any]] = {"torch": {}, "tensorrt": GPU, "tensorrt-rtx": RTX}


@pytest.mark.parametrize("target", SERVED_BY_NATIVE)
def test_native_takes_the_choice_of_streams(target: str) -> None:
    base = SERVED_BY_NATIVE[target]
    assert "TF-K14-002" in codes(merged(base, triton(decoupled=False), SLO))
    found = codes(merged(base, triton(decoupled=False, accumulate_tokens=False)))
    assert not found & STREAMING
    assert "TF-K9-010" in found, "it has no BLS model"
    assert "TF-K9-010" not in codes(merged(base, triton(decoupled=False, client_names=True)))


@pytest.mark.parametrize("base", [ENGINE, API], ids=["inflight_batcher_llm", "llmapi"])
def test_names_of_clients_are_a_choice_of_native_alone(base: dict[str, Any]) -> None:
    assert "TF-K9-010" in codes(merged(base, triton(client_names=True)))


@pytest.mark.parametrize("target", SERVED_BY_NATIVE)
def test_serving_is_for_the_runtime_of_ours(target: str) -> None:
    assert "TF-K13-011" not in codes(merged(SERVED_BY_NATIVE[target], {"serving": {"max_waiting": 8}}))


def test_a_queue_holds_the_load_test() -> None:
    limits = {"build": {"limits": {"max_batch_size": 4}}, "bench": {"concurrency": [1, 10]}}
    assert "TF-K9-019" in codes(merged(limits, {"serving": {"max_waiting": 5}}))
    assert "TF-K9-019" not in codes(merged(limits, {"serving": {"max_waiting": 6}}))


@pytest.mark.parametrize("base", [ENGINE, API], ids=["inflight_batcher_llm", "llmapi"])
def test_serving_is_refused_where_nothing_reads_it(base: dict[str, Any]) -> None:
    """A limit that is not kept would change what is served."""
    assert "TF-K13-011" not in codes(base)
    values: dict[str, Any] = {"queue_timeout": "1s", "aging": "1s", "default_timeout": "1s", "salt": "a"}
    values |= {"prefix_cache": False, "coalesce": True, "cleanse": True, "request_log": "stderr"}
    for name in Serving.model_fields:
        finding = only("TF-K13-011", merged(base, {"serving": {name: values.get(name, 2)}}))
        assert f"serving.{name}" in finding.message


def test_native_has_no_parameter_that_sets_streaming_twice() -> None:
    found = codes(merged(parameters(decoupled="true", decoupled_mode="true"), triton(decoupled=False)))
    assert not found & STREAMING
    assert "TF-K9-010" in found


@pytest.mark.parametrize("base", [ENGINE, API], ids=["inflight_batcher_llm", "llmapi"])
def test_the_layouts_of_tensorrt_llm_take_the_choice(base: dict[str, Any]) -> None:
    assert "TF-K14-002" in codes(merged(base, triton(decoupled=False), SLO))
    assert "TF-K14-002" not in codes(merged(base, SLO))
    for name in ("decoupled", "decoupled_mode"):
        found = codes(merged(base, parameters(**{name: "true"})))
        assert found & {"TF-K14-003", "TF-K1-002"} == {"TF-K14-003"}, "one fault, one finding"


def test_only_the_in_flight_layout_accumulates() -> None:
    asked = triton(accumulate_tokens=False)
    assert "TF-K14-001" in codes(merged(ENGINE, asked))
    assert not codes(merged(API, asked)) & STREAMING


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (API, "gpu_devices"),
        (API, "kv_cache_config.free_gpu_memory_fraction"),  # a key of model.yaml, and no parameter
        (ENGINE, "max_batch_size"),  # a field of config.pbtxt, and no parameter
        (ENGINE, "enable_chunked_contexts"),
    ],
)
def test_what_the_repository_would_refuse_is_refused_first(base: dict[str, Any], name: str) -> None:
    finding = only("TF-K1-002", merged(base, parameters(**{name: "1"})))
    assert finding.severity == "error"


def test_a_parameter_that_ended_is_refused_as_the_repository_refuses_it() -> None:
    finding = only("TF-K23-005", merged(ENGINE, parameters(enable_trt_overlap="true")))
    assert (finding.severity, finding.waivable) == ("error", False)
