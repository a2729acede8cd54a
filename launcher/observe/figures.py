"""What is watched, as PromQL, by the layout whose server tells it; None: the layout's servers do not tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trtforge.targets.layouts import INFLIGHT_BATCHER, LLM_API, NATIVE, Layout


@dataclass(frozen=True)
class Figures:
    """Expressions of a layout.

    Attributes:
        ttft, itl: buckets of the first token's time and of the time between tokens (seconds), summed by ``le``.
        waiting, running: requests.
        kv: share of the KV cache in use, 0 to 1.
        hits: share of prompt tokens found in the cache.
        preemptions: a second.
        errors: share of requests that failed.
        wasted: share of computed tokens that no answer got.
        tokens: generated a second.
        path: of the page that has them.
    """

    ttft: str | None = None
    itl: str | None = None
    waiting: str | None = None
    running: str | None = None
    kv: str | None = None
    hits: str | None = None
    preemptions: str | None = None
    errors: str | None = None
    wasted: str | None = None
    tokens: str | None = None
    path: str = "/metrics"


def figures_of(layout: Layout, model: str) -> Figures:
    """The layout's expressions for one model."""
    return _MAKERS[layout.name](f'model="{model}"')


def _rate(name: str, labels: str) -> str:
    return f"sum(rate({name}{{{labels}}}[5m]))"


def _share(part: str, whole: str) -> str:
    """No number where nothing came, which no bound is exceeded by."""
    return f"{part} / {whole}"


def _native(labels: str) -> Figures:
    finished = _rate("trtforge_request_success_total", labels)
    computed = f"({_rate('trtforge_iteration_tokens_sum', labels)})"
    return Figures(
        ttft=f"sum by (le) (rate(trtforge_time_to_first_token_seconds_bucket{{{labels}}}[5m]))",
        itl=f"sum by (le) (rate(trtforge_inter_token_latency_seconds_bucket{{{labels}}}[5m]))",
        waiting=f"sum(trtforge_num_requests_waiting{{{labels}}})",
        running=f"sum(trtforge_num_requests_running{{{labels}}})",
        kv=f"max(trtforge_kv_cache_usage_perc{{{labels}}})",
        hits=_share(
            _rate("trtforge_prefix_cache_hits_total", labels), _rate("trtforge_prefix_cache_queries_total", labels)
        ),
        preemptions=_rate("trtforge_num_preemptions_total", labels),
        errors=_share(_rate("trtforge_request_success_total", f'{labels},finished_reason="error"'), finished),
        wasted=_share(_rate("trtforge_wasted_tokens_total", labels), computed),
        tokens=_rate("trtforge_generation_tokens_total", labels),
    )


def _failed(labels: str) -> str:
    failed, fine = _rate("nv_inference_request_failure", labels), _rate("nv_inference_request_success", labels)
    return _share(failed, f"({failed} + {fine})")


def _inflight(labels: str) -> Figures:
    engine = 'model="tensorrt_llm"'
    return Figures(
        waiting=f'sum(nv_trt_llm_request_metrics{{{engine},request_type="waiting"}})',
        running=f'sum(nv_trt_llm_request_metrics{{{engine},request_type="scheduled"}})',
        kv=f'max(nv_trt_llm_kv_cache_block_metrics{{{engine},kv_cache_block_type="fraction"}})',
        errors=_failed(labels),
    )


def _llmapi(labels: str) -> Figures:
    # trtllm-serve's page has one model, under the name that the server was given
    done, failed = "sum(rate(trtllm_request_success_total[5m]))", "sum(rate(trtllm_request_error_total[5m]))"
    return Figures(
        ttft="sum by (le) (rate(trtllm_time_to_first_token_seconds_bucket[5m]))",
        itl="sum by (le) (rate(trtllm_time_per_output_token_seconds_bucket[5m]))",
        waiting="sum(trtllm_num_requests_waiting)",
        running="sum(trtllm_num_requests_running)",
        kv="max(trtllm_kv_cache_utilization)",
        hits="avg(trtllm_kv_cache_hit_rate)",
        errors=_share(failed, f"({done} + {failed})"),
        tokens="sum(rate(trtllm_generation_tokens_total[5m]))",
        path="/prometheus/metrics",
    )


_MAKERS: Mapping[str, Callable[[str], Figures]] = {
    NATIVE.name: _native,
    INFLIGHT_BATCHER.name: _inflight,
    LLM_API.name: _llmapi,
}
