"""A recipe in many formats: each one quantized and evaluated, and what tells them apart on the same tokens.

Policy: a format is a variant of the recipe that differs in ``quantize.format`` and ``quantize.group_size`` alone, run
by the pipeline up to ``evaluate``: what an earlier run made is found again, and a run that was stopped goes on where it
was. The gates are left out of the variants and judged on what was measured, so that a missed one ends nothing and
another limit repeats nothing. A format that cannot be had is a row with its refusal, never a gap.

Perplexities are compared in pairs: two formats see the same tokens, so their difference has an interval that is much
narrower than that of either figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trtforge.formats.mixing import named_format
from trtforge.formats.table import FormatRow, first_choice, format_row, quantizing_formats
from trtforge.ground.errors import ForgeError, GateFailed
from trtforge.ground.safetensors_header import read_headers
from trtforge.pipeline.stages.common import rounded
from trtforge.pipeline.stages.scoring import load_scores

if TYPE_CHECKING:
    from evals.statistics import Interval
    from trtforge.pipeline.result import RunResult
    from trtforge.recipe.load import LoadedRecipe
    from trtforge.store.artifact import GateResult

Status = Literal["measured", "refused", "failed"]
#: the last stage of a variant
LAST = "evaluate"


@dataclass(frozen=True)
class Variant:
    """A format, and a group size where one was asked for."""

    format: str
    group: int | None = None

    @property
    def name(self) -> str:
        return self.format if self.group is None else f"{self.format}:{self.group}"

    @property
    def overrides(self) -> list[str]:
        """What the recipe is changed by."""
        group = "null" if self.group is None else str(self.group)
        return [f"quantize.format={self.format}", f"quantize.group_size={group}", "quantize.mixed=null"]


def ungated(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe without the gates of :data:`LAST`: none ends a variant's run."""
    evals = loaded.recipe.evals
    changed: dict[str, Any] = {
        name: getattr(evals, name).model_copy(update={"gate": None}) for name in ("perplexity", "generation", "suite")
    }
    changed["custom"] = tuple(one.model_copy(update={"gate": None}) for one in evals.custom)
    recipe = loaded.recipe.model_copy(update={"evals": evals.model_copy(update=changed)})
    return replace(loaded, recipe=recipe, resolved=recipe.model_dump(mode="json"))


@dataclass
class MatrixRow:
    """What became of a variant.

    Attributes:
        bytes: of all tensors of the checkpoint.
        perplexity, increase: with their intervals; the increase is over the unquantized checkpoint, in pairs of tokens.
        gates: the recipe's gates on what was measured; none where the recipe has none.
        refusal: code, message and remedies of what did not go.
        worse: perplexity over that of the row before it, minus one, in pairs of tokens; None for the first.
    """

    variant: Variant
    status: Status
    bytes: int = 0
    perplexity: Mapping[str, float] | None = None
    increase: Interval | None = None
    gates: Sequence[GateResult] = ()
    refusal: Mapping[str, Any] | None = None
    emulated: Sequence[str] = ()
    worse: Interval | None = None
    scores: Any = field(default=None, repr=False)

    @property
    def passed(self) -> bool | None:
        """Whether every gate passed; None without a gate."""
        return all(gate.passed for gate in self.gates) if self.gates else None

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.variant.format,
            "group_size": self.variant.group,
            "status": self.status,
            "bytes": self.bytes or None,
            "perplexity": self.perplexity,
            "increase": None if self.increase is None else rounded(self.increase.to_json()),
            "over_the_row_before": None if self.worse is None else rounded(self.worse.to_json()),
            "passed": self.passed,
            "gates": [rounded(asdict(gate)) for gate in self.gates],
            "emulated": list(self.emulated),
            "refusal": self.refusal,
        }


def parse_variants(text: str | None) -> list[Variant]:
    """``fp8,int4_awq:64`` as variants; None: every format of the table.

    Raises:
        ForgeError: ``TF-QNT-001``, ``TF-QNT-009`` as :func:`trtforge.formats.table.format_row`; ``TF-QNT-050`` a group
            size that is no number, or no format at all.
    """
    if text is None:
        return [Variant(name) for name in quantizing_formats()]
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        row, group = named_format(part)
        found.append(Variant(row.name, group))
    if not found:
        raise ForgeError(
            "TF-QNT-050",
            f"--formats {text!r} names no format",
            asked=text,
            why="A table of no format says nothing.",
            remedies=[f"--formats {first_choice()}", "leave --formats out for all of trtforge formats"],
        )
    return list(dict.fromkeys(found))


def fitting_group(row: FormatRow, widths: Sequence[int]) -> int | None:
    """The format's own group size where it divides every width, else the largest of its sizes that does; None: none."""
    sizes = [size for size in row.group_sizes if all(width % size == 0 for width in widths)]
    if row.default_group_size is None or row.default_group_size in sizes or not sizes:
        return None
    return max(sizes)


def with_groups(variants: Sequence[Variant], checkpoint: Path, exclude: Sequence[str]) -> list[Variant]:
    """The variants with group sizes that the checkpoint's linears have, where none was asked for."""
    from quantize.plan import ALWAYS_EXCLUDED, linear_shapes, read_config
    from trtforge.models.shape import matches

    shapes = linear_shapes(read_headers(checkpoint), read_config(checkpoint))
    patterns = (*exclude, *ALWAYS_EXCLUDED)
    widths = [k for name, (_, k) in shapes.items() if not any(matches(name, pattern) for pattern in patterns)]
    return [
        variant if variant.group else Variant(variant.format, fitting_group(format_row(variant.format), widths))
        for variant in variants
    ]


def measure(
    variants: Sequence[Variant],
    run: Callable[[Variant], RunResult],
    judged: Callable[[Path, Path], Sequence[GateResult]],
    finished: Callable[[MatrixRow], None],
) -> list[MatrixRow]:
    """Run every variant, and order what was measured from the best to the worst; the rest follows as it came.

    Args:
        run: runs a variant up to :data:`LAST`, or raises what it refuses.
        judged: the recipe's gates, by the artifacts of the baseline and of the variant.
        finished: told each row when it is there.
    """
    rows = []
    for variant in variants:
        rows.append(_row(variant, run, judged))
        finished(rows[-1])
    measured = sorted((row for row in rows if row.increase is not None), key=_value)
    for better, row in itertools.pairwise(measured):
        row.worse = paired(better, row)
    return measured + [row for row in rows if row.increase is None]


def paired(one: MatrixRow, other: MatrixRow) -> Interval:
    """How much larger the perplexity of ``other`` is, relative to ``one``'s, in pairs of tokens."""
    from evals.statistics import paired_increase

    return paired_increase(one.scores, other.scores)


def pairs(rows: Sequence[MatrixRow]) -> list[dict[str, Any]]:
    """Every pair of measured rows: the format, the better one that it is compared with, and the interval."""
    measured = [row for row in rows if row.increase is not None]
    return [
        {"format": worse.variant.name, "over": better.variant.name, **rounded(paired(better, worse).to_json())}
        for index, better in enumerate(measured)
        for worse in measured[index + 1 :]
    ]


def _value(row: MatrixRow) -> float:
    assert row.increase is not None
    return row.increase.value


def _row(
    variant: Variant, run: Callable[[Variant], RunResult], judged: Callable[[Path, Path], Sequence[GateResult]]
) -> MatrixRow:
    from evals.statistics import paired_increase

    try:
        result = run(variant)
    except ForgeError as error:
        refusal = {"code": error.code, "message": error.message, "remedies": list(error.remedies)}
        return MatrixRow(variant, "failed" if isinstance(error, GateFailed) else "refused", refusal=refusal)
    quantized, evaluated, baseline = (result.artifact(stage) for stage in ("quantize", LAST, "baseline"))
    scores = load_scores(evaluated.path)
    increase = paired_increase(load_scores(baseline.path), scores)
    return MatrixRow(
        variant,
        "measured",
        bytes=sum(info.nbytes for info in read_headers(quantized.path).values()),
        perplexity=evaluated.summary["perplexity"],
        increase=increase,
        gates=judged(baseline.path, evaluated.path),
        emulated=quantized.summary.get("emulated", ()),
        scores=scores,
    )
