"""K9: numbers that the stages, the files that are written, or the server have no room for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.rules.sources import MODEL_CONFIG_PROTO

_INT32, _INT64, _UINT64 = 2**31 - 1, 2**63 - 1, 2**64 - 1

#: recipe keys with the largest value of the field that they end up in: 32-bit integers of TensorRT-LLM
#: (``SizeType32``) and of Triton's config.pbtxt, 64-bit ones for bytes and for the queue delay
LARGEST = {
    "build.limits.max_batch_size": _INT32,
    "build.limits.max_num_tokens": _INT32,
    "build.limits.max_seq_len": _INT32,
    "build.limits.max_input_len": _INT32,
    "build.kv_cache.block_size": _INT32,
    "build.kv_cache.memory": _INT64,
    "build.parallel.tp": _INT32,
    "build.parallel.pp": _INT32,
    "build.parallel.ep": _INT32,
    "build.trtllm.max_beam_width": _INT32,
    "build.trtllm.host_kv_memory": _INT64,
    "build.trtllm.workers": _INT32,
    "speculation.max_draft_len": _INT32,
    "speculation.heads": _INT32,
    "speculation.lookahead.window": _INT32,
    "speculation.lookahead.ngram": _INT32,
    "speculation.lookahead.verification": _INT32,
    "triton.preprocessing_instances": _INT32,
    "triton.postprocessing_instances": _INT32,
    "triton.queue_delay_us": _UINT64,
}


def _value(recipe: Any, key: str) -> Any:
    for part in key.split("."):
        recipe = getattr(recipe, part)
    return recipe


@rule("TF-K9-015", "perplexity windows that leave no context", waivable=False)
def windows_leave_context(facts: Facts) -> Iterator[Violation]:
    """A window scores tokens that it has seen the ones before of, so it is longer than what it scores."""
    perplexity = facts.recipe.evals.perplexity
    window, stride = perplexity.window, perplexity.stride
    if window >= 2 and stride < window:
        return
    longest = facts.model.usable_positions if facts.model is not None else 2 * stride
    wide = min(max(2, 2 * stride), max(2, longest))
    yield Violation(
        f"perplexity windows of {window} tokens score {stride} each",
        facts.asked("evals.perplexity.window", "evals.perplexity.stride"),
        {"window": window, "stride": stride},
        [
            *([f"evals.perplexity.stride: {window // 2}"] if window >= 2 else []),
            f"evals.perplexity: {{window: {wide}, stride: {wide // 2}}}",
        ],
    )


@rule("TF-K9-016", "a number beyond its field", MODEL_CONFIG_PROTO, waivable=False)
def numbers_fit(facts: Facts) -> Iterator[Violation]:
    """Engine, config.pbtxt and runtime hold it in a field of fixed width; the build or the repository would fail."""
    for key, most in LARGEST.items():
        value = _value(facts.recipe, key)
        if value is not None and value > most:
            yield Violation(
                f"{key} {value} is over {most}, the most that its field holds",
                f"{key}: {value}",
                {"value": value, "most": most},
                [f"remove {key}", *by_hand(f"at most {most} in {key}")],
            )
