"""K10, K12, K13: parameters of the served model that cannot go with the engine that the recipe builds."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.retarget import methods
from trtforge.preflight.rules.limits import unread_keys
from trtforge.preflight.rules.memory import windows_of
from trtforge.rules.sources import ENGINE_PARAMETERS, thread

#: modes of ``decoding_mode`` that draft, and the method that builds their engine; ReDrafter is no method here
_DRAFTING_MODES = {"medusa": "medusa", "eagle": "eagle", "lookahead": "lookahead", "redrafter": None}


@rule("TF-K10-010", "a KV pool too small for one request", thread("TB#168"), needs=("model",))
def pool_tokens_hold_request(facts: Facts) -> Iterator[Violation]:
    """The pool must be able to carry one sequence to its end; the server refuses to start otherwise, or requests wait
    for ever."""
    recipe = facts.recipe
    text = recipe.triton.parameters.get("max_tokens_in_paged_kv_cache")
    if not recipe.layout.chain or text is None or not (text.isascii() and text.isdecimal()):
        return
    build = recipe.build
    block, beams = build.kv_cache.block_size, build.trtllm.max_beam_width
    # a parameter in tokens bounds the pool of each window: the layers that keep most decide
    limits, most = build.limits, windows_of(facts).widest()
    needed = most.layer_tokens(limits.max_seq_len, block, limits.max_num_tokens) * beams
    tokens = int(text)
    if tokens < needed:
        largest = most.longest(tokens // beams, block, limits.max_num_tokens, limits.max_seq_len)
        yield Violation(
            f"the pool holds {tokens} tokens, one request of max_seq_len {limits.max_seq_len} with {beams} "
            f"beam{'' if beams == 1 else 's'} takes {needed}",
            facts.asked("triton.parameters.max_tokens_in_paged_kv_cache", "build.limits.max_seq_len"),
            {"pool_tokens": tokens, "needed_tokens": needed, "block_size": block, "beams": beams},
            [
                f'triton.parameters.max_tokens_in_paged_kv_cache: "{needed}"',
                *([f"build.limits.max_seq_len: {largest}"] if largest else []),
                "remove triton.parameters.max_tokens_in_paged_kv_cache",
            ],
        )


@rule("TF-K12-020", "a decoding mode of another engine", ENGINE_PARAMETERS)
def mode_fits_engine(facts: Facts) -> Iterator[Violation]:
    """A drafting mode needs an engine that was built with its heads or buffers; another one stops the server at start
    or is never used."""
    recipe = facts.recipe
    mode, method = recipe.triton.parameters.get("decoding_mode"), recipe.speculation.method
    if not recipe.layout.chain or not mode:
        return
    drafts = mode in _DRAFTING_MODES
    wanted = _DRAFTING_MODES.get(mode)
    built = method in _DRAFTING_MODES.values()
    if (drafts and wanted != method) or (not drafts and built):
        yield Violation(
            f"decoding_mode {mode} with an engine of speculation.method {method}",
            facts.asked("triton.parameters.decoding_mode", "speculation.method"),
            {"decoding_mode": mode, "method": method},
            [
                "remove triton.parameters.decoding_mode",
                *([f"triton.parameters.decoding_mode: {method}"] if built else []),
                *methods(facts, [wanted] if wanted else []),
            ],
        )


@rule(
    "TF-K13-007",
    "a share for cross attention in a decoder",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/main/cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp",
    waivable=False,
)
def no_cross_attention(facts: Facts) -> Iterator[Violation]:
    """Only encoder-decoder models have cross attention; for a decoder the server stops at start with an assertion."""
    value = facts.recipe.triton.parameters.get("cross_kv_cache_fraction")
    if value and facts.recipe.layout.chain:
        yield Violation(
            f"cross_kv_cache_fraction {value}: every model that trtforge builds is a decoder",
            f"triton.parameters.cross_kv_cache_fraction: {value}",
            {"cross_kv_cache_fraction": value},
            ["remove triton.parameters.cross_kv_cache_fraction"],
        )


@rule("TF-K13-011", "a serving key that the layout cannot honour", ENGINE_PARAMETERS, waivable=False)
def serving_is_honoured(facts: Facts) -> Iterator[Violation]:
    """A queue, a limit or a cache that is not kept as the recipe says changes what clients get."""
    yield from unread_keys(facts, facts.features.serving)
