"""Which features a recipe uses, by the names of the feature table, and how each is written.

A feature is decided from the recipe and, where it lies there, from the model; the table then says which of
them go together on which target and version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import eq
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from trtforge.formats.table import UNQUANTIZED, first_choice, fp8_attention, holds_e4m3, load_formats
from trtforge.preflight.remedies import Remedy, by_hand, joint
from trtforge.preflight.retarget import to_format, to_method, without_speculation

if TYPE_CHECKING:
    from trtforge.preflight.engine import Facts
    from trtforge.tables.features import Combination, Need

#: the remedies of a feature: a line of the recipe, or what makes them from the facts
Ways = str | Callable[["Facts"], Sequence[str | Remedy]]
#: name → (is it used, how the recipe writes it, what takes it away, what turns it on)
Feature = tuple[Callable[["Facts"], bool], Callable[["Facts"], str], Ways, Ways]


def kv_format(facts: Facts) -> str:
    """The KV-cache format that the engine gets: the recipe's, or the one of a quantized checkpoint."""
    return stored_kv(facts) or facts.recipe.quantize.kv_cache


def weight_format(facts: Facts) -> str:
    """The weight format that the engine gets: the recipe's, or the one of a quantized checkpoint."""
    return stored_weights(facts) or facts.recipe.quantize.format


def fp8_context_attention(facts: Facts) -> bool:
    """Whether trtllm-build's engine computes context attention in FP8: asked for, or by the builder's doing (paged
    context attention over an FP8 KV cache has no other kernels)."""
    own = facts.recipe.build.trtllm
    implied = own.paged_context_attention and used(facts, "fp8-weights") and used(facts, "fp8-kv")
    return own.fp8_context_attention or implied


def other_context(facts: Facts) -> Sequence[str | Remedy]:
    """What takes FP8 context attention away: over an FP8 cache TensorRT-LLM turns it on again by itself."""
    off = ["build.trtllm.fp8_context_attention: false"] if facts.recipe.build.trtllm.fp8_context_attention else []
    return [joint(way, *off) for way in other_kv(facts)] if used(facts, "fp8-kv") else off


def context_asked(facts: Facts) -> str:
    """Where FP8 context attention is said: by its key, or by what makes the builder turn it on."""
    if facts.recipe.build.trtllm.fp8_context_attention:
        return "build.trtllm.fp8_context_attention: true"
    return f"build.trtllm.paged_context_attention: true over {written(facts, 'fp8-kv')}"


def _four_bits() -> list[str]:
    """The formats of 4-bit weights whose inputs keep 16 bits."""
    return [row.name for row in load_formats().formats if row.four_bits_for_wide_inputs]


def _valued(section: str, name: str, uses: Callable[[Any], bool], off: str | None, on: str) -> Feature:
    """A key of ``build.SECTION`` that turns the feature on by some of its values; ``off`` None takes the key away."""
    key = f"build.{section}.{name}"

    def value(facts: Facts) -> Any:
        return getattr(getattr(facts.recipe.build, section), name)

    def shown(facts: Facts) -> str:
        found = value(facts)
        return f"{key}: {str(found).lower() if isinstance(found, bool) else found}"

    return lambda facts: uses(value(facts)), shown, f"remove {key}" if off is None else f"{key}: {off}", f"{key}: {on}"


def _flag(name: str) -> Feature:
    return _valued("trtllm", name, bool, "false", "true")


def _ranks(name: str) -> Feature:
    return _valued("parallel", name, lambda ranks: ranks > 1, "1", "2")


def _method(name: str, uses: Callable[[str], bool]) -> Feature:
    """A method of speculation; ``name`` is the one that turns the feature on."""
    return (
        lambda facts: uses(facts.recipe.speculation.method),
        lambda facts: f"speculation.method: {facts.recipe.speculation.method}",
        lambda facts: [without_speculation(facts)],
        lambda facts: [to_method(facts, name)],
    )


def stored_kv(facts: Facts) -> str | None:
    """The KV-cache format that the checkpoint brings and the recipe does not ask for."""
    stored = facts.model.prequantized_kv_cache if facts.model is not None else None
    return stored if facts.recipe.quantize.kv_cache == "none" else None


def stored_weights(facts: Facts) -> str | None:
    """The weight format that the checkpoint brings and the recipe does not ask for."""
    stored = facts.model.prequantized if facts.model is not None else None
    return stored if facts.recipe.quantize.format == "none" else None


def kv_asked(facts: Facts) -> str:
    """Where the KV cache's format is said: in the recipe or in the checkpoint."""
    stored = stored_kv(facts)
    if stored is None:
        return f"quantize.kv_cache: {facts.recipe.quantize.kv_cache}"
    return f"kv_cache_quant_algo: {stored.upper()} in the checkpoint of model.source: {facts.recipe.model.source}"


def weights_asked(facts: Facts) -> str:
    """Where the weights' format is said: in the recipe or in the checkpoint."""
    stored = stored_weights(facts)
    if stored is None:
        return f"quantize.format: {facts.recipe.quantize.format}"
    return f"quant_algo of the checkpoint ({stored}) of model.source: {facts.recipe.model.source}"


def other_kv(facts: Facts, instead: str = "none") -> Sequence[str | Remedy]:
    """What gives the engine another KV cache: the recipe's key, or a change of the checkpoint that decides it."""
    stored = stored_kv(facts)
    if stored is None:
        return [f"quantize.kv_cache: {instead}"]
    return by_hand(
        f"the checkpoint sets its KV cache to {stored}: in a copy set kv_cache_quant_algo to null in "
        "hf_quant_config.json (and quantization_config of config.json), the scales of keys and values are then unused",
        f"a checkpoint that was exported without a {stored} KV cache",
    )


def other_weights(facts: Facts, instead: Sequence[str]) -> Sequence[str | Remedy]:
    """What gives the engine other weights: the recipe's key, or another checkpoint."""
    stored = stored_weights(facts)
    if stored is None:
        return [to_format(facts, name) for name in instead]
    wanted = " or ".join(name for name in instead if name != "none") or "full precision"
    return by_hand(
        f"the checkpoint's own weights are {stored}: one in {wanted}, or the unquantized one as model.source"
    )


def _without_paging(facts: Facts) -> Sequence[str]:
    """Paged context attention goes with what reads the paged cache."""
    flags = ["paged_context_attention", "chunked_context", "kv_reuse"]
    on = [name for name in flags if getattr(facts.recipe.build.trtllm, name)]
    kept = _host_kv(facts) if "kv_reuse" in on else []
    return [" with ".join([*(f"build.trtllm.{name}: false" for name in on), *kept])]


def _without_reuse(facts: Facts) -> Sequence[str]:
    """Blocks in host memory are there to be reused."""
    return [" with ".join(["build.trtllm.kv_reuse: false", *_host_kv(facts)])]


def _host_kv(facts: Facts) -> list[str]:
    return ["remove build.trtllm.host_kv_memory"] if facts.recipe.build.trtllm.host_kv_memory is not None else []


FEATURES: dict[str, Feature] = {
    "kv-reuse": (*_flag("kv_reuse")[:2], _without_reuse, _flag("kv_reuse")[3]),
    "chunked-context": _flag("chunked_context"),
    "paged-context": (*_flag("paged_context_attention")[:2], _without_paging, _flag("paged_context_attention")[3]),
    "fp8-context": _flag("fp8_context_attention"),
    "fp8-context-refused": (
        lambda facts: (
            not facts.recipe.build.trtllm.fp8_context_attention
            and facts.is_written(("build", "trtllm", "fp8_context_attention"))
        ),
        lambda facts: "build.trtllm.fp8_context_attention: false",
        "build.trtllm.fp8_context_attention: true",
        "build.trtllm.fp8_context_attention: false",
    ),
    "gather-context-logits": _flag("gather_context_logits"),
    "gather-generation-logits": _flag("gather_generation_logits"),
    "chunked-context-asked": (
        lambda facts: (
            facts.recipe.build.trtllm.chunked_context and facts.is_written(("build", "trtllm", "chunked_context"))
        ),
        *_flag("chunked_context")[1:],
    ),
    "host-kv": _valued("trtllm", "host_kv_memory", lambda size: size is not None, None, "16GiB"),
    "guided-decoding": _valued("trtllm", "guided_decoding", lambda chosen: chosen != "none", "none", "xgrammar"),
    "beams": _valued("trtllm", "max_beam_width", lambda width: width > 1, "1", "4"),
    "lora": (
        lambda facts: facts.recipe.build.trtllm.lora is not None,
        lambda facts: "build.trtllm.lora: {…}",
        "build.trtllm.lora: null",
        lambda facts: by_hand("name the adapters in build.trtllm.lora"),
    ),
    "fp8-kv": (
        lambda facts: holds_e4m3(kv_format(facts)),
        kv_asked,
        other_kv,
        lambda facts: (
            by_hand("a checkpoint that was exported with a calibrated FP8 KV cache")
            if stored_weights(facts)
            else [f"quantize.kv_cache: {load_formats().first_choice.kv_cache}"]
        ),
    ),
    "int8-kv": (
        lambda facts: kv_format(facts) == "int8",
        kv_asked,
        # 4-bit weights go with an FP8 cache no better
        lambda facts: other_kv(facts, UNQUANTIZED if used(facts, "int4-awq") else load_formats().first_choice.kv_cache),
        "quantize.kv_cache: int8",
    ),
    "fp8-weights": (
        lambda facts: fp8_attention(weight_format(facts)),
        weights_asked,
        lambda facts: other_weights(facts, ["none"]),
        lambda facts: other_weights(facts, [first_choice()]),
    ),
    "int4-awq": (
        lambda facts: weight_format(facts) in _four_bits(),
        weights_asked,
        lambda facts: other_weights(facts, [first_choice()]),
        lambda facts: [f"quantize.format: {_four_bits()[0]}"],
    ),
    "sliding-window": (
        lambda facts: facts.model is not None and facts.model.sliding_window > 0,
        lambda facts: f"model.source: {facts.recipe.model.source}",
        lambda facts: by_hand("a model without a sliding window"),
        lambda facts: by_hand("a model with a sliding window"),
    ),
    "speculation": _method("draft_target", lambda method: method != "none"),
    "dynamic-tree": (
        lambda facts: facts.recipe.speculation.dynamic_tree is not None,
        lambda facts: "speculation.dynamic_tree: {…}",
        lambda facts: [" with ".join([*_chain(facts), "remove speculation.dynamic_tree"])],
        lambda facts: by_hand("depth, top_k and total in speculation.dynamic_tree"),
    ),
    "draft-len-schedule": (
        lambda facts: facts.recipe.speculation.draft_len_schedule is not None,
        lambda facts: "speculation.draft_len_schedule: {…}",
        "remove speculation.draft_len_schedule",
        lambda facts: by_hand("lengths by batch in speculation.draft_len_schedule"),
    ),
    "pipeline-parallel": _ranks("pp"),
    "tensor-parallel": _ranks("tp"),
    "expert-parallel": _ranks("ep"),
    **{
        f"speculation-{name}": _method(name, partial(eq, name))
        for name in ("draft_target", "eagle", "eagle3", "medusa", "lookahead")
    },
}


def _chain(facts: Facts) -> list[str]:
    """A draft length where only the tree has given one."""
    asked = facts.recipe.speculation
    if asked.max_draft_len is not None or asked.dynamic_tree is None:
        return []
    return [f"speculation.max_draft_len: {asked.dynamic_tree.depth}"]


def used(facts: Facts, name: str) -> bool:
    """Whether the recipe uses the feature."""
    return FEATURES[name][0](facts)


def written(facts: Facts, name: str) -> str:
    """How the recipe writes the feature."""
    return FEATURES[name][1](facts)


def without(facts: Facts, name: str) -> Sequence[str | Remedy]:
    """What takes the feature away."""
    return _given(FEATURES[name][2], facts)


def turned_on(facts: Facts, name: str) -> Sequence[str | Remedy]:
    """What turns the feature on."""
    return _given(FEATURES[name][3], facts)


def _given(ways: Ways, facts: Facts) -> Sequence[str | Remedy]:
    return [ways] if isinstance(ways, str) else ways(facts)


def engine_version(facts: Facts) -> Version | None:
    """The version of TensorRT-LLM of the recipe's stack, or None when its row has none."""
    recipe = facts.recipe
    row = facts.stacks.row(recipe.stack) if recipe.stack else facts.stacks.newest(recipe.build.target)
    text = next((item.version for item in row.components if item.name == "TensorRT-LLM"), None) if row else None
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def in_range(facts: Facts, since: str | None, until: str | None) -> bool:
    """Whether a row with these versions holds for the recipe's stack; unknown versions hold."""
    version = engine_version(facts)
    if version is None:
        return True
    return not (since and version < Version(since)) and not (until and version >= Version(until))


def unmet_needs(facts: Facts, kind: str) -> Iterator[Need]:
    """The rows of ``needs`` of one kind that the recipe breaks."""
    for row in facts.features.needs:
        if row.kind != kind or facts.recipe.build.target not in row.targets:
            continue
        if in_range(facts, row.since, row.until) and used(facts, row.feature) and not used(facts, row.needs):
            yield row


def combined(facts: Facts, kind: str, *, refused: bool) -> Iterator[Combination]:
    """The rows of ``combinations`` of one kind that the recipe uses: the refused ones, or the doubtful ones."""
    for row in facts.features.combinations:
        if row.kind != kind or (row.support == "no") is not refused or facts.recipe.build.target not in row.targets:
            continue
        if in_range(facts, row.since, row.until) and all(used(facts, name) for name in row.features):
            yield row
