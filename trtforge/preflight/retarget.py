"""What moving a recipe to another target, layout or method takes, as one remedy.

The key alone would leave others that the new target refuses or does not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from trtforge.models.shape import fits, quantized_linears
from trtforge.preflight.remedies import line
from trtforge.targets import TARGETS, Target, names

if TYPE_CHECKING:
    from trtforge.preflight.engine import Facts

#: draft lengths to begin with: the nodes of the tree that servers draft by themselves; else a short draft
DRAFT_LENGTHS = {"eagle": 63, "medusa": 63}
#: architectures that a remedy offers at most
_MOST_HOSTS = 3


def to_target(facts: Facts, target: str, *, layout: str | None = None, method: str | None = None) -> str:
    """The lines that move the recipe to ``target``: a layout that serves it, ranks, method and stack that it has, and
    without the keys that it does not read. ``layout`` and ``method`` say which of several."""
    recipe = facts.recipe
    layout, method = layout or recipe.triton.layout, method or recipe.speculation.method
    meant = TARGETS[target]
    if meant.layouts and layout not in meant.layouts:
        layout = meant.layouts[0]
    parts = []
    if target != recipe.build.target:
        parts.append(f"build.target: {target}")
    if layout != recipe.triton.layout:
        parts.append(f"triton.layout: {layout}")
    parallel = recipe.build.parallel
    if meant.one_rank and parallel.tp * parallel.pp * parallel.ep > 1:
        parts.append("build.parallel: {tp: 1, pp: 1, ep: 1}")
    row = facts.features.method(target, method)
    if method != "none" and (row is None or row.support != "yes"):
        method = "none"
    parts += _method(facts, target, method)
    stack = facts.stacks.row(recipe.stack) if recipe.stack else None
    if stack is not None and target not in stack.targets:
        parts.append("remove stack")
    if not meant.needs_gpu and recipe.build.architectures:
        parts.append("remove build.architectures")
    parts += [f"remove {key}" for key in _without_effect(facts, target, layout, method)]
    return " with ".join(parts)


def to_targets(facts: Facts, where: Callable[[Target], bool], *, method: str | None = None) -> list[str]:
    """:func:`to_target` for every target of which ``where`` holds."""
    return [to_target(facts, name, method=method) for name in names(where)]


def to_layout(facts: Facts, layout: str) -> str:
    """The lines that give the recipe another layout of the same target."""
    gone = _without_effect(facts, facts.recipe.build.target, layout, facts.recipe.speculation.method)
    return " with ".join([f"triton.layout: {layout}", *(f"remove {key}" for key in gone)])


def to_method(facts: Facts, method: str) -> str:
    """The lines that let the recipe speculate by another method, or by none."""
    recipe = facts.recipe
    gone = _without_effect(facts, recipe.build.target, recipe.triton.layout, method)
    return " with ".join([*_method(facts, recipe.build.target, method), *(f"remove {key}" for key in gone)])


def without_speculation(facts: Facts) -> str:
    """The lines that take speculation away."""
    return to_method(facts, "none")


def _method(facts: Facts, target: str, method: str) -> list[str]:
    """The method's own lines: its name, and a draft length where it needs one and has none of its own."""
    speculation = facts.recipe.speculation
    parts = [f"speculation.method: {method}"] if method != speculation.method else []
    if method == "none":
        return parts
    if method == "lookahead":
        written = parts and facts.is_written(("speculation", "max_draft_len"))
        return [*parts, "remove speculation.max_draft_len"] if written else parts
    least = DRAFT_LENGTHS.get(method, 1) if TARGETS[target].trtllm_build and not speculation.choices else 1
    tree = speculation.dynamic_tree if method == "eagle3" else None
    if (speculation.max_draft_len or (tree.depth if tree is not None else 0)) < least:
        parts.append(f"speculation.max_draft_len: {DRAFT_LENGTHS.get(method, 4)}")
    return parts


def to_format(facts: Facts, name: str) -> str:
    """The lines that quantize to another format, with a group size that it, its kernel and the model's widths have."""
    recipe, row = facts.recipe, facts.formats.get(name)
    parts = [f"quantize.format: {name}", *(["remove quantize.mixed"] if recipe.quantize.mixed else [])]
    if row is None:
        return " with ".join(parts)
    group, sizes = recipe.quantize.group_size, group_sizes(facts, name)
    if facts.model is not None:
        linears = quantized_linears(facts.model, recipe.quantize.unquantized)
        sizes = tuple(size for size in sizes if fits(linears, recipe.build.parallel.tp, size)) or sizes
    used = group or row.default_group_size
    if group is not None and (not sizes or row.default_group_size in sizes) and group not in sizes:
        parts.append("remove quantize.group_size")
    elif sizes and used not in sizes:
        parts.append(f"quantize.group_size: {max(sizes)}")
    return " with ".join(parts)


def group_sizes(facts: Facts, name: str) -> tuple[int, ...]:
    """The group sizes of a format that the target has a kernel for."""
    row, kernel = facts.formats.get(name), facts.kernels.row(name, facts.recipe.build.target)
    sizes = row.group_sizes if row is not None else ()
    return tuple(size for size in sizes if kernel is None or kernel.groups is None or size in kernel.groups)


def k_multiple(facts: Facts, name: str) -> int:
    """What a rank's K of a format is a multiple of, for its groups and for the target's kernel alike."""
    row, kernel = facts.formats.get(name), facts.kernels.row(name, facts.recipe.build.target)
    group = facts.recipe.quantize.group_size or (row.default_group_size if row is not None else None)
    return math.lcm(group or 1, kernel.k if kernel is not None else 1)


def mlp_multiple(facts: Facts, name: str) -> int:
    """What a rank's share of the MLP is a multiple of: down takes it as K, gate and up as N."""
    kernel = facts.kernels.row(name, facts.recipe.build.target)
    return math.lcm(k_multiple(facts, name), kernel.n if kernel is not None else 1)


def padded_mlp(facts: Facts, name: str) -> int:
    """The least width of the MLP, not below its own, that a format's groups and tiles fill on every rank."""
    whole = mlp_multiple(facts, name) * facts.recipe.build.parallel.tp
    return -(-facts.require_model().ffn // whole) * whole


def to_beams(facts: Facts, beams: int) -> str:
    """The lines that build the engine for a number of beams; more than one are not streamed."""
    parts = [f"build.trtllm.max_beam_width: {beams}"]
    if beams > 1 and facts.recipe.triton.decoupled:
        parts.append("triton.decoupled: false")
    return " with ".join(parts)


def streaming(facts: Facts) -> str:
    """The lines that turn streaming on, of accumulated tokens where the layout can."""
    parts = ["triton.decoupled: true"]
    if facts.recipe.layout.chain and not facts.recipe.triton.accumulate_tokens:
        parts.append("triton.accumulate_tokens: true")
    return " with ".join(parts)


def methods(facts: Facts, names: Sequence[str]) -> list[str]:
    """The lines of each method that the target has and whose draft, if it needs one, the recipe names."""
    rows = [facts.features.method(facts.recipe.build.target, name) for name in names]
    usable = [row for row in rows if row is not None and row.support == "yes"]
    drafted = facts.recipe.speculation.draft is not None
    return [to_method(facts, row.method) for row in usable if drafted or row.draft == "none"]


def _without_effect(facts: Facts, target: str, layout: str, method: str) -> Iterator[str]:
    for row in (*facts.features.effects, *facts.features.refusals, *facts.features.serving):
        if facts.is_written(row.key.split(".")):
            chosen = ((target, row.targets), (layout, row.layouts), (method, row.methods))
            if any(readers and name not in readers for name, readers in chosen):
                yield row.key


def for_architectures(facts: Facts, wrong: str, hosts: Sequence[str]) -> list[str]:
    """Lines that put one of ``hosts`` in the place of the architecture ``wrong``; none when the recipe names none."""
    build = facts.recipe.build
    if not build.architectures:
        return []
    known = [name for name in hosts if (row := facts.architectures.row(name)) and build.target in row.targets]
    found = []
    for host in known[:_MOST_HOSTS]:
        kept = [] if facts.target.built_for == "this-gpu" else [name for name in build.architectures if name != wrong]
        found.append(line("build.architectures", list(dict.fromkeys([*kept, host]))))
    return found
