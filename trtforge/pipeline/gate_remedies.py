"""What helps when a gate is missed: said for the gate that was, not for its stage."""

from __future__ import annotations

from collections.abc import Iterable

from trtforge.recipe.schema import Recipe

_QUANTIZE_LESS = "quantize less: another quantize.format, more names in quantize.exclude, more calibration samples"
_KERNELS = "look at the kernels: trtforge engine info"
_AGREEMENT = (
    "raise evals.engine_parity.prompts where the figure would pass and only its interval is too wide",
    _KERNELS,
    "lower evals.engine_parity.gate.min_top1_agreement when the figures are acceptable",
)
_TASKS = (
    _QUANTIZE_LESS,
    "raise evals.suite.samples where the figure would pass and only its interval is too wide",
    "read samples/tasks.jsonl in the artifact; raise evals.suite.gate.max_drop when what is lost is acceptable",
    "where the baseline is right on none: other evals.suite.tasks, or evals.suite.gate: null",
)
_OWN_TASKS = (
    _QUANTIZE_LESS,
    "more items where the figure would pass and only its interval is too wide",
    "read samples/tasks.jsonl in the artifact; raise gate.max_drop of the task in evals.custom",
    "where the baseline is right on none: easier items, or gate: null of the task in evals.custom",
)
_NEEDLES = (
    _QUANTIZE_LESS,
    "raise evals.long_context.samples where the figure would pass and only its interval is too wide",
    "where the baseline finds none: shorter evals.long_context.lengths, or evals.long_context.gate.max_drop: null",
)
_LONG = (
    _QUANTIZE_LESS,
    "raise evals.long_context.gate.max_increase when the figures are acceptable",
)
_DIVERGENCE = (_KERNELS, "evals.engine_parity.gate: null measures without a verdict")
_LATENCY = (
    "relax bench.slo, or lower build.limits.max_batch_size for shorter steps",
    "measure on a machine that does nothing else",
)
#: a gate's name, up to its first "@" or ":" -> what helps
REMEDIES: dict[str, tuple[str, ...]] = {
    "audit": ("the gate's detail names the tensors; quantize them less, or exclude them",),
    "perplexity_increase": (
        _QUANTIZE_LESS,
        "raise evals.perplexity.tokens where the figure would pass and only its interval is too wide",
        "raise evals.perplexity.gate.max_increase when the figures are acceptable",
    ),
    "generation_sanity": (
        _QUANTIZE_LESS,
        "read generation.json in the artifact; lower evals.generation.gate.min_sane when the answers are acceptable",
        "where the baseline answers none sanely: more evals.generation.prompts or other max_tokens",
        "evals.generation.gate: null answers the prompts without a verdict",
    ),
    "baseline_kl": (
        _QUANTIZE_LESS,
        "raise evals.perplexity.tokens where the figure would pass and only its interval is too wide",
        "raise evals.perplexity.gate.max_kl when the figures are acceptable",
    ),
    "baseline_top1": (
        _QUANTIZE_LESS,
        "raise evals.perplexity.tokens where the figure would pass and only its interval is too wide",
        "lower evals.perplexity.gate.min_top1_agreement when the figures are acceptable",
    ),
    "task_suite": _TASKS,
    "engine_task_suite": (
        "where task_suite passed the fault is the engine's: read parity.json in the artifact",
        *_TASKS,
    ),
    "custom": _OWN_TASKS,
    "long_context_needles": _NEEDLES,
    "long_context_increase": _LONG,
    "engine_long_context_needles": (
        "where long_context_needles passed the fault is the engine's: read parity.json in the artifact",
        *_NEEDLES,
    ),
    "engine_long_context_increase": (
        "where long_context_increase passed the fault is the engine's: read parity.json in the artifact",
        *_LONG,
    ),
    "engine_custom": ("where the quantized model passed the fault is the engine's", *_OWN_TASKS),
    "top1_agreement": _AGREEMENT,
    "graph_top1_agreement": _AGREEMENT,
    "engine_answers": (
        "the gate's detail says which answer leaves the quantized model's, where and by how much",
        _KERNELS,
        "trtforge run RECIPE --force build",
    ),
    "engine_sanity": (
        "where generation_sanity passed the fault is the engine's: read parity.json in the artifact",
        _KERNELS,
        "lower evals.generation.gate.min_sane when the answers are acceptable",
    ),
    "deployed_weights": (
        "parity.json or the build's summary names the linears; run the recipe again from quantize",
        _KERNELS,
    ),
    "engine_kl": _DIVERGENCE,
    "graph_kl": _DIVERGENCE,
    "speculation_greedy": (
        "speculation.json and speculation-speed.json in the artifact list every difference with its margin",
        "speculation.method: none serves the same engine without drafts",
        "raise evals.speculation.gate.max_differing when the differences are acceptable",
    ),
    "speculation_distribution": (
        "read speculation.json in the artifact: where base_p_value is as small, the engine misses without drafts too",
        "more evals.speculation.prompts or max_tokens where nothing was drafted",
        "speculation.method: none serves the same engine without drafts",
    ),
    "speculation_accepted_length": (
        "a drafter that was trained on answers of this model: trtforge speculate train",
        "read speculation.json in the artifact: acceptance by class and position",
        "lower evals.speculation.gate.min_accepted_length when the figures are acceptable",
    ),
    "speculation_speedup": (
        "speculation.adaptive: true drafts only where measured costs say that it pays",
        "speculation.max_concurrency, or a smaller speculation.max_draft_len",
        "measure on a machine that does nothing else",
        "lower evals.speculation.gate.min_speedup when the figures are acceptable",
    ),
    "smoke": ("read tritonserver.log in the artifact",),
    "failed_requests": ("read tritonserver.log in the artifact", "lower bench.concurrency"),
    "ttft_p99": _LATENCY,
    "itl_p99": _LATENCY,
    "min_goodput": (
        "read bench.json in the artifact: the levels say which requests were late, and whether the sender was",
        "a longer bench.arrivals.budget, or rates about the limit, where it was not decided",
        "lower bench.slo.min_goodput, or relax its limits; more replicas share the requests",
    ),
}


#: the gates that a quantized KV cache can miss: of the quantized model, and of the engine that rounds like it
_OF_THE_CACHE = (
    "perplexity_increase",
    "baseline_kl",
    "baseline_top1",
    "generation_sanity",
    "task_suite",
    "engine_task_suite",
    "custom",
    "engine_custom",
    "long_context_needles",
    "long_context_increase",
    "engine_long_context_needles",
    "engine_long_context_increase",
    "top1_agreement",
    "graph_top1_agreement",
    "engine_answers",
    "engine_sanity",
    "engine_kl",
    "graph_kl",
)


def gate_remedies(names: Iterable[str], recipe: Recipe) -> list[str]:
    """The ways out for the gates of these names, each once; what the recipe quantizes decides what it can leave out."""
    found: dict[str, None] = {}
    for name in names:
        gate = name.partition("@")[0].partition(":")[0]
        if gate in _OF_THE_CACHE and recipe.quantize.kv_cache != "none":
            found[f"quantize.kv_cache: none (not {recipe.quantize.kv_cache}; the cache takes twice the memory)"] = None
        found.update(dict.fromkeys(REMEDIES.get(gate, ())))
    return list(found)
