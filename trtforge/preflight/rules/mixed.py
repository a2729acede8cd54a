"""K3: several formats in one checkpoint: what has to agree, and what a target holds side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trtforge.formats.mixing import (
    assign,
    format_text,
    load_mixing,
    named_format,
    not_mixed_on,
    sized_format,
    torn_products,
)
from trtforge.formats.table import UNQUANTIZED, FormatRow, first_choice, resolve_group_size
from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest
from trtforge.models.shape import linears, matches
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import Remedy, by_hand, line
from trtforge.preflight.retarget import to_target
from trtforge.preflight.rules.groups import group_allowed, group_divides
from trtforge.preflight.rules.kernels import group_has_kernel, tiles_filled
from trtforge.preflight.rules.precision import format_on_architecture, format_on_target
from trtforge.recipe.schema import Quantize

_Sized = tuple[FormatRow, int | None]

_ALONE = "remove quantize.mixed"
_LAYERS = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/model_config.py"
_GROUP = "https://github.com/NVIDIA/Model-Optimizer/blob/main/modelopt/torch/quantization/algorithms.py"


def _formats(facts: Facts) -> tuple[_Sized, dict[str, _Sized]] | None:
    """The recipe's own format, and the others as ``mixed`` writes them; None without others, or where one is none."""
    quantize, own = facts.recipe.quantize, facts.formats.get(facts.recipe.quantize.format)
    if not quantize.mixed or own is None:
        return None
    try:
        others = {text: sized_format(text) for text in quantize.mixed}
        return (own, resolve_group_size(own, quantize.group_size)), others
    except ForgeError:
        return None  # TF-K3-024 names it, TF-K4-002 the recipe's own group size


@rule("TF-K3-024", "a name in quantize.mixed that is no format", needs=("format",), waivable=False)
def mixed_formats(facts: Facts) -> Iterator[Violation]:
    """Without a row of the format table nothing says how to quantize, export or run those linears."""
    for text in facts.recipe.quantize.mixed:
        try:
            sized_format(text)
        except ForgeError as error:
            # a name that is none can be any that is mixed; a group size is its format's to say
            named = text.partition(":")[0] in facts.formats
            works = error.remedies if named else [f"in quantize.mixed {name}" for name in load_mixing().one_pass]
            yield Violation(
                f"quantize.mixed: {text or repr(text)}: {error.message}",
                f"quantize.mixed.{text}",
                dict(error.numbers),
                [
                    *by_hand(*(way.replace("quantize.group_size: ", "in quantize.mixed a group of ") for way in works)),
                    _ALONE,
                ],
                why=error.why,
            )


@rule("TF-K3-025", "formats that do not lie side by side", _LAYERS, needs=("format",), waivable=False)
def mixed_on_target(facts: Facts) -> Iterator[Violation]:
    """One calibration pass has to serve all of them, and one engine has to hold all of them."""
    found, target = _formats(facts), facts.recipe.build.target
    if found is None:
        return
    own, others = found
    each = dict.fromkeys((row.name, group) for row, group in (own, *others.values()))
    if len(each) < 2:
        return
    names = list(dict.fromkeys(name for name, _ in each))
    asked = f"quantize.format: {names[0]}, quantize.mixed: {{{', '.join(facts.recipe.quantize.mixed)}}}"
    known = load_mixing().one_pass
    if searched := [name for name in names if name not in known]:
        yield Violation(
            f"{', '.join(searched)} cannot be mixed with other formats",
            asked,
            {"can_be_mixed": list(known)},
            [_ALONE],
            why="ModelOpt runs one calibration over a model; a search for factors or a compensation of errors would "
            "change the other formats' linears too.",
        )
        return
    strangers, why = not_mixed_on(target, names)
    if strangers:
        works = [name for name, row in load_mixing().targets.items() if not set(names) - set(row.formats)]
        yield Violation(
            f"target {target} does not hold {', '.join(strangers)} beside other formats",
            f"{asked}, build.target: {target}",
            {"targets_of_these": works, "formats_of_target": list(load_mixing().targets[target].formats)},
            [_ALONE, *(to_target(facts, name) for name in works)],
            why=why,
        )


@rule("TF-K3-026", "one product in several formats", _GROUP, needs=("format", "model"), waivable=False)
def products_agree(facts: Facts) -> Iterator[Violation]:
    """Query, key and value, gate and up, or the experts of a layer are one product: it has one kernel, and the export
    gives linears with one input common scales."""
    quantize, model, found = facts.recipe.quantize, facts.require_model(), _formats(facts)
    if found is None:
        return
    own, others = found
    names = [name for linear in linears(model) for name in linear.names]
    try:
        assigned, _ = assign(quantize.mixed, names, quantize.unquantized)
    except ForgeError as error:
        yield Violation(
            error.message, error.asked or "quantize.mixed", {}, [_ALONE, *by_hand(*error.remedies)], why=error.why
        )
        return
    formats = {
        name: UNQUANTIZED
        if any(matches(name, pattern) for pattern in quantize.unquantized)
        else format_text(*(others[assigned[name]] if name in assigned else own))
        for name in names
    }
    torn = torn_products(formats)
    if torn:
        where, parts = next(iter(torn.items()))
        yield Violation(
            f"{where} are to have several formats" + (f", and {len(torn) - 1} more products" if len(torn) > 1 else ""),
            f"quantize.format: {quantize.format}, quantize.mixed: {{{', '.join(quantize.mixed)}}}",
            {"products": len(torn), "formats": parts},
            _whole(quantize, torn, own, others),
        )


def _whole(
    quantize: Quantize, torn: dict[str, dict[str, str]], own: _Sized, others: dict[str, _Sized]
) -> list[str | Remedy]:
    """Each torn product as a whole in the format of ``mixed`` that a part of it has; or none of them."""
    written = {format_text(*other): text for text, other in others.items()}
    added: dict[str, list[str]] = {}
    for parts in torn.values():
        texts = set(parts.values()) - {format_text(*own)}
        if len(texts) != 1 or UNQUANTIZED in texts:
            return [_ALONE, *by_hand("patterns of quantize.mixed and quantize.exclude that take in whole products")]
        added.setdefault(written[texts.pop()], []).extend(parts)
    mended = {text: [*patterns, *added.get(text, [])] for text, patterns in quantize.mixed.items()}
    return [line("quantize.mixed", mended), _ALONE]


@rule("TF-K3-027", "a pattern of quantize.mixed that matches nothing", severity="warning", needs=("format", "model"))
def mixed_matches(facts: Facts) -> Iterator[Violation]:
    """A misspelt name leaves the linear in the recipe's own format, against what it says."""
    quantize, known = facts.recipe.quantize, linears(facts.require_model())
    names = [name for linear in known for name in linear.names]
    free = [name for name in names if not any(matches(name, pattern) for pattern in quantize.unquantized)]
    for text, patterns in quantize.mixed.items():
        for pattern in patterns:
            if any(matches(name, pattern) for name in free):
                continue
            near = nearest(pattern.strip("*."), [linear.kind for linear in known])
            mended = [near if item == pattern else item for item in patterns]
            yield Violation(
                f"quantize.mixed: {text}: {pattern} matches no linear that is quantized",
                f"quantize.mixed.{text}: {pattern}",
                {"kinds": [linear.kind for linear in known], "example": names[0]},
                [
                    *([line("quantize.mixed", {text: mended})] if near and near != pattern else []),
                    *by_hand("a kind such as o_proj, or a path such as model.layers.0.*"),
                ],
            )


@rule("TF-K3-028", "a format of quantize.mixed that its linears or the architecture do not bear", needs=("format",))
def each_format_fits(facts: Facts) -> Iterator[Violation]:
    """What the recipe's own format is held against holds for every other one: kernels, groups and whole tiles."""
    for text in facts.recipe.quantize.mixed if _formats(facts) is not None else ():
        view = _alone(facts, text)
        checks = [format_on_target, format_on_architecture, group_allowed, group_has_kernel]
        if facts.model is not None:
            checks += [group_divides, tiles_filled]
        for check in checks:
            for found in check(view):
                yield Violation(
                    f"quantize.mixed: {text}: {found.message}",
                    f"quantize.mixed.{text}",
                    found.numbers,
                    [_ALONE, *by_hand(f"{first_choice()} or the recipe's own format for these linears")],
                    why=found.why,
                    source=found.source,
                )


def _alone(facts: Facts, text: str) -> Facts:
    """The facts of a recipe in which the linears of one format of ``mixed`` are all that is quantized."""
    quantize = facts.recipe.quantize
    row, group = named_format(text)
    kept = quantize.unquantized
    if facts.model is not None:
        names = [name for linear in linears(facts.model) for name in linear.names]
        own = [name for name in names if any(matches(name, pattern) for pattern in quantize.mixed[text])]
        kept = (*kept, *sorted(set(names) - set(own)))
    changes: dict[str, Any] = {"format": row.name, "group_size": group, "mixed": {}, "exclude": kept, "scope": "all"}
    recipe = facts.recipe.model_copy(update={"quantize": quantize.model_copy(update=changes)})
    return replace(facts, recipe=recipe)
