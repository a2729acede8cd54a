"""K8: quality that is lost without anybody noticing, because nothing measured it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from evals.power import PROMPT_TOKENS, agreement_in_reach, drop_in_reach, items_for_drop, positions_for_agreement
from trtforge.formats.table import first_choice
from trtforge.ground.errors import ForgeError
from trtforge.models.shape import LARGE_KEY_BIAS, outlier_keys
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import kv_asked, kv_format, other_kv
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import to_format
from trtforge.rules.sources import MODELOPT_BENCHMARK, thread

if TYPE_CHECKING:
    from trtforge.recipe.schema_evals import Custom, LongContextGate, SuiteGate

#: a gate's key -> the gate that a first recipe has
_DEFAULTS = {
    "evals.perplexity.gate": "{max_increase: 5%}",
    "evals.generation.gate": "{min_sane: 50%}",
    "evals.engine_parity.gate": "{min_top1_agreement: 99%}",
}


def _quantized(facts: Facts) -> bool:
    return facts.recipe.quantize.format != "none" or facts.recipe.quantize.kv_cache != "none"


@rule("TF-K8-001", "a quantized model without a quality gate", thread("TL#2822"), severity="warning")
def quality_is_gated(facts: Facts) -> Iterator[Violation]:
    """A quantized model can load, answer fluently and have lost what it knew; without a gate nothing stops it."""
    evals = facts.recipe.evals
    if not _quantized(facts):
        return
    gates: dict[str, object] = {
        "evals.perplexity.gate": evals.perplexity.gate,
        "evals.generation.gate": evals.generation.gate,
    }
    if not facts.target.tensorrt_llm:  # the pipeline has no runner for their engines
        gates["evals.engine_parity.gate"] = evals.engine_parity.gate
    for key, gate in gates.items():
        if gate is None:
            yield Violation(
                f"{key} is taken away while the model is quantized",
                f"{key}: null",
                {"format": facts.recipe.quantize.format, "kv_cache": facts.recipe.quantize.kv_cache},
                [f"{key}: {_DEFAULTS[key]}"],
            )


@rule(
    "TF-K8-002",
    "a gate that lets anything pass",
    "https://github.com/casper-hansen/AutoAWQ/issues/475",
    severity="warning",
)
def gates_mean_something(facts: Facts) -> Iterator[Violation]:
    """Perplexity that doubles, or an engine that disagrees on every other token, is another model."""
    perplexity, parity = facts.recipe.evals.perplexity.gate, facts.recipe.evals.engine_parity.gate
    if not _quantized(facts):
        return
    if perplexity is not None and perplexity.max_increase > 1:
        yield Violation(
            f"the perplexity gate allows an increase of {perplexity.max_increase:.0%}",
            f"evals.perplexity.gate.max_increase: {perplexity.max_increase:g}",
            {"max_increase": perplexity.max_increase},
            ["evals.perplexity.gate.max_increase: 5%"],
        )
    sane = facts.recipe.evals.generation.gate
    if sane is not None and sane.min_sane == 0:
        yield Violation(
            "the generation gate lets every answer be rubbish",
            "evals.generation.gate.min_sane: 0",
            {"min_sane": 0},
            ["evals.generation.gate.min_sane: 50%"],
        )
    drops: dict[str, SuiteGate | LongContextGate | None] = {
        "evals.suite.gate": facts.recipe.evals.suite.gate if facts.recipe.evals.suite.samples else None
    }
    long = facts.recipe.evals.long_context
    drops["evals.long_context.gate"] = long.gate if long.lengths else None
    drops |= {f"evals.custom[{at}].gate": one.gate for at, one in enumerate(facts.recipe.evals.custom)}
    for key, drop in drops.items():
        if drop is not None and drop.max_drop is not None and drop.max_drop >= 1:
            yield Violation(
                f"{key} allows every right answer to be lost",
                f"{key}: {{max_drop: {drop.max_drop:g}}}",
                {"max_drop": drop.max_drop},
                by_hand(f"{key}: {{max_drop: 10%}}"),
            )
    if parity is not None and parity.min_top1_agreement < 0.5:
        yield Violation(
            f"the parity gate allows an agreement of {parity.min_top1_agreement:.0%}",
            f"evals.engine_parity.gate.min_top1_agreement: {parity.min_top1_agreement:g}",
            {"min_top1_agreement": parity.min_top1_agreement},
            ["evals.engine_parity.gate.min_top1_agreement: 99%"],
        )


@rule(
    "TF-K8-003",
    "stretched positions that no measurement reaches",
    thread("TL#1830"),
    severity="warning",
    needs=("model",),
)
def long_context_is_measured(facts: Facts) -> Iterator[Violation]:
    """Rope scaling is where quantized models break first: short prompts stay fine while long ones turn to garbage."""
    model, recipe = facts.require_model(), facts.recipe
    kind = model.rope.get("rope_type") or model.rope.get("type") or "default"
    original = model.rope.get("original_max_position_embeddings")
    served, window = recipe.build.limits.max_seq_len, recipe.evals.perplexity.window
    if kind not in ("yarn", "linear") or not isinstance(original, int) or not _quantized(facts):
        return
    if served > original >= window:
        reach = model.usable_positions
        wanted = min(served, reach)
        yield Violation(
            f"requests reach {served} positions over {kind} scaling, the windows that are scored end at {window}",
            f"evals.perplexity.window: {window}, build.limits.max_seq_len: {served}",
            {"original_positions": original, "max_seq_len": served, "window": window, "rope": kind},
            [
                f"evals.perplexity: {{window: {wanted}, stride: {wanted // 2}, tokens: {2 * wanted}}}",
                f"build.limits.max_seq_len: {original}",
            ],
        )


@rule(
    "TF-K8-004", "a 4-bit model of little redundancy", MODELOPT_BENCHMARK, severity="warning", needs=("model", "format")
)
def four_bits_of_small_models(facts: Facts) -> Iterator[Violation]:
    """Models below about 4 billion parameters lose several points to 4-bit weights; larger ones hardly one."""
    row, model = facts.format, facts.require_model()
    gate = facts.recipe.evals.perplexity.gate
    if row is None or row.weight is None or row.weight.bits > 4 or model.parameters >= 4_000_000_000:
        return
    if gate is None:
        yield Violation(
            f"{row.name} on {model.parameters / 1e9:.2f} billion parameters without a perplexity gate",
            f"quantize.format: {row.name}, evals.perplexity.gate: null",
            {"parameters": model.parameters, "bits": row.weight.bits},
            ["evals.perplexity.gate: {max_increase: 10%}", to_format(facts, first_choice())],
        )


@rule(
    "TF-K8-005",
    "a quantized KV cache for keys with outliers",
    "https://github.com/verl-project/verl/pull/4435",
    severity="warning",
    needs=("model",),
)
def outlier_keys_stay_exact(facts: Facts) -> Iterator[Violation]:
    """E4M3 keeps three bits of a key's mantissa: where a bias makes some elements large, their rounding errors are as
    large as the other elements are, and attention looks elsewhere. Finer scales leave these errors as they are."""
    cache, outliers = kv_format(facts), outlier_keys(facts.require_model())
    if cache == "none" or outliers is None:
        return
    yield Violation(
        f"{outliers}, and the KV cache is {cache}",
        kv_asked(facts),
        {"key_bias": outliers.key_bias, "large": LARGE_KEY_BIAS, "kv_cache": cache},
        other_kv(facts),
        source=outliers.source,
    )


@rule(
    "TF-K8-006",
    "a gate that its sample can never decide",
    "https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval",
    severity="warning",
)
def samples_can_decide(facts: Facts) -> Iterator[Violation]:
    """A gate is held against the worse end of an interval. Of a small sample that end misses the limit even when every
    item is perfect: the run would fail whatever the model does."""
    evals, limits = facts.recipe.evals, facts.recipe.build.limits
    parity, top1 = evals.engine_parity.gate, evals.perplexity.gate
    if parity is not None and not facts.target.tensorrt_llm:
        longest = max(1, min(PROMPT_TOKENS, limits.max_input_len or limits.max_seq_len - 1))
        yield from _agreement(
            "evals.engine_parity.gate.min_top1_agreement",
            parity.min_top1_agreement,
            evals.engine_parity.prompts * longest,
            lambda positions: f"evals.engine_parity.prompts: {-(-positions // longest)}",
        )
    if top1 is not None and top1.min_top1_agreement is not None:
        yield from _agreement(
            "evals.perplexity.gate.min_top1_agreement",
            top1.min_top1_agreement,
            evals.perplexity.tokens - 1,
            lambda positions: f"evals.perplexity.tokens: {positions + 1}",
        )
    suite = evals.suite
    if suite.samples and suite.gate is not None:
        kinds = len(suite.tasks)
        yield from _drop(
            "evals.suite.gate",
            suite.gate.max_drop,
            suite.samples * kinds,
            lambda needed: f"evals.suite.samples: {-(-needed // kinds)}",
        )
    long = evals.long_context
    if long.lengths and long.gate is not None and long.gate.max_drop is not None:
        places = len(long.lengths) * len(long.depths)
        yield from _drop(
            "evals.long_context.gate",
            long.gate.max_drop,
            places * long.samples,
            lambda needed: f"evals.long_context.samples: {-(-needed // places)}",
        )
    for position, one in enumerate(evals.custom):
        items = _own_items(facts, one)
        if one.gate is not None and not isinstance(items, ForgeError):

            def more(needed: int, path: str = one.path) -> str:
                return f"{needed} items in {path}"

            key = f"evals.custom[{position}].gate"
            yield from _drop(key, one.gate.max_drop, items, more, listed=True)


@rule("TF-K8-007", "items of your own that cannot be read", waivable=False)
def own_items_are_read(facts: Facts) -> Iterator[Violation]:
    """A missing file, a line that is no item or an answer that its scorer cannot use would end the run after the model
    was quantized."""
    for position, one in enumerate(facts.recipe.evals.custom):
        error = _own_items(facts, one)
        if isinstance(error, ForgeError):
            yield Violation(
                f"evals.custom[{one.name}]: {error.message}" + (f" ({error.why.rstrip('.')})" if error.why else ""),
                f"evals.custom[{position}].path: {one.path}",
                {"scorer": one.scorer, "code": error.code},
                by_hand(*error.remedies),
            )


def _own_items(facts: Facts, one: Custom) -> int | ForgeError:
    """How many items a task of the recipe's own has, or why they cannot be read."""
    from evals.custom import custom_items

    def read() -> int | ForgeError:
        try:
            return len(custom_items(one, facts.directory))
        except ForgeError as error:
            return error

    return facts.beside.once(f"items of {one!r}", read)


def _drop(
    key: str, limit: float, items: int, more: Callable[[int], str], *, listed: bool = False
) -> Iterator[Violation]:
    needed = items_for_drop(limit)
    if needed is not None and items >= needed:
        return
    in_reach = drop_in_reach(items)
    ways = [*([more(needed)] if needed else []), f"{key}: {{max_drop: {math.ceil(1000 * in_reach) / 10:g}%}}"]
    yield Violation(
        f"{items} items exclude a drop of {in_reach:.1%} at best, the gate asks for {limit:.1%}",
        f"{key}: {{max_drop: {limit:g}}}",
        {"items": items, "needed": needed or "no number", "max_drop": limit},
        by_hand(*ways) if listed else ways,  # no line of a recipe reaches into a list
    )


def _agreement(key: str, limit: float, positions: int, more: Callable[[int], str]) -> Iterator[Violation]:
    needed = positions_for_agreement(limit)
    if needed is not None and positions >= needed:
        return
    in_reach = agreement_in_reach(positions)
    yield Violation(
        f"{positions} positions prove {in_reach:.2%} at best, the gate asks for {limit:.2%}",
        f"{key}: {limit:g}",
        {"positions": positions, "needed": needed or "no number", "limit": limit},
        [*([more(needed)] if needed else []), f"{key}: {math.floor(1000 * in_reach) / 10:g}%"],
    )
