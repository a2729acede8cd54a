"""Generation tasks: items with one right answer, what a model wrote for each, and two models compared on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from evals.gates import at_most
from evals.samples import Samples
from evals.scorers import KINDS, Scorer, is_right
from evals.statistics import Interval, McNemar, mcnemar
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_json
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema_evals import Evals, SuiteGate
from trtforge.store.artifact import GateResult

#: the generated tasks together, and the figure that names tasks which only one of two models answered
SUITE, NOT_COMPARED = "suite", "not_compared"
#: items that a model is given at once; a batched engine fills its steps with them
BATCH = 8


@dataclass(frozen=True)
class Item:
    """One question of a task.

    Attributes:
        task: the task's name.
        prompt: text that the model continues, or with ``chat`` the user's message.
        answer: what ``scorer`` holds the model's text against.
        max_tokens: tokens that the answer may have.
        chat: put through the model's chat template where it has one.
        one_line: the answer ends with its line.
    """

    task: str
    prompt: str
    answer: str
    scorer: Scorer
    max_tokens: int
    chat: bool = False
    one_line: bool = True

    def to_json(self) -> dict[str, Any]:
        """The item as :meth:`of_json` reads it."""
        return {**asdict(self), "scorer": self.scorer.to_json()}

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Item:
        """The item of a sample; raises KeyError, TypeError or ValueError for a record that holds none."""
        scorer = record["scorer"]
        if scorer["kind"] not in KINDS:
            raise ValueError(f"{scorer['kind']!r} is no scorer")
        return cls(
            str(record["task"]),
            str(record["prompt"]),
            str(record["answer"]),
            Scorer(scorer["kind"], float(scorer["tolerance"]), bool(scorer["ignore_case"])),
            int(record["max_tokens"]),
            bool(record["chat"]),
            bool(record["one_line"]),
        )

    @property
    def name(self) -> str:
        """What the item is, as a short hash: the same text is the same item in any order."""
        parts = [self.prompt, self.answer, self.scorer.to_json(), self.max_tokens, self.chat, self.one_line]
        return f"{self.task}-{hash_json(parts)[:20]}"


@dataclass(frozen=True)
class Answered:
    """What a model wrote for an item, and whether it is right."""

    name: str
    task: str
    text: str
    right: bool


AnswerFn = Callable[[Sequence[Item]], Sequence[str]]


def answer_items(
    answer: AnswerFn,
    items: Sequence[Item],
    *,
    samples: Samples | None = None,
    progress: Progress | None = None,
    batch: Callable[[], int] | None = None,
) -> list[Answered]:
    """Let a model write every item's answer and score it.

    Args:
        answer: texts for items, in their order; greedy.
        samples: answers that are there already, and where new ones are kept.
        batch: how many items the model is given at once, asked where it is given any; None: :data:`BATCH`.
    """
    report = progress or SilentProgress()
    report.start(f"tasks: {len(items)} items", total=len(items))
    names = [item.name for item in items]
    records: dict[str, Mapping[str, Any]] = {}
    open_: list[tuple[str, Item]] = []
    for name, item in zip(names, items, strict=True):
        known = samples.get(name) if samples is not None else None
        if known is None:
            open_.append((name, item))
        else:
            records[name] = known
            report.advance()
    size = batch() if batch is not None and open_ else BATCH
    for at in range(0, len(open_), size):
        some = open_[at : at + size]
        for (name, item), text in zip(some, answer([item for _, item in some]), strict=True):
            shown = text.split("\n", 1)[0] if item.one_line else text
            record = {
                **item.to_json(),
                "text": shown,
                "right": is_right(item.scorer, item.answer, shown),
            }
            records[name] = record if samples is None else samples.add(name, record)
            report.advance()
    if samples is not None:
        samples.finish(names)
    return [_answered(name, records[name]) for name in names]


def _answered(name: str, record: Mapping[str, Any]) -> Answered:
    return Answered(name, str(record["task"]), str(record["text"]), bool(record["right"]))


def answered_of(samples: Iterable[Mapping[str, Any]]) -> list[Answered]:
    """Answers from the samples of an artifact; raises KeyError for one that lacks a part."""
    return [_answered(str(record["id"]), record) for record in samples]


@dataclass(frozen=True)
class TaskComparison:
    """Two models on the same items: all of them together, and task by task."""

    overall: McNemar
    tasks: Mapping[str, McNemar]

    def to_json(self) -> dict[str, Any]:
        return {"overall": self.overall.to_json(), "tasks": {name: one.to_json() for name, one in self.tasks.items()}}


def compare_tasks(baseline: Sequence[Answered], candidate: Sequence[Answered]) -> TaskComparison:
    """Pair the answers by item.

    Raises:
        ForgeError: TF-EVL-013 when the two did not answer the same items.
    """
    before, after = ({answered.name: answered for answered in side} for side in (baseline, candidate))
    if before.keys() != after.keys() or not before:
        raise ForgeError(
            "TF-EVL-013",
            "baseline and candidate did not answer the same items",
            numbers={"baseline": len(before), "candidate": len(after), "shared": len(before.keys() & after.keys())},
            why="McNemar's test needs both verdicts on every item",
            remedies=["answer both with the same evals.suite and evals.custom"],
        )
    names: dict[str, list[str]] = {}
    for name, answered in before.items():
        names.setdefault(answered.task, []).append(name)

    def pair(chosen: Iterable[str]) -> McNemar:
        some = list(chosen)
        return mcnemar([before[name].right for name in some], [after[name].right for name in some])

    return TaskComparison(pair(before), {task: pair(some) for task, some in names.items()})


def judge_answers(
    baseline: Sequence[Answered], candidate: Sequence[Answered], asked: Evals, prefix: str = ""
) -> tuple[dict[str, Any], list[GateResult]]:
    """Figures and gates of the suite, and of each of the user's own tasks by its own.

    Args:
        asked: the recipe's section.
        prefix: stands before the gates' names.

    Returns:
        figures and gates. A task that one side did not answer at all stands in ``not_compared`` with the reason, and
        its gate is missed.

    Raises:
        ForgeError: TF-EVL-013 the two answered a task, but not the same items of it.
    """
    figures: dict[str, Any] = {}
    gates: list[GateResult] = []
    own = {one.name: one.gate for one in asked.custom}
    sides = baseline, candidate
    suite = [[answer for answer in side if answer.task not in own] for side in sides]
    found = _paired(SUITE, suite, figures, gates, f"{prefix}task_suite", asked.suite.gate)
    if found is not None:
        figures["suite"] = found.to_json()
    for name, gate in own.items():
        answers = [[answer for answer in side if answer.task == name] for side in sides]
        found = _paired(name, answers, figures, gates, f"{prefix}custom:{name}", gate)
        if found is not None:
            figures.setdefault("custom", {})[name] = found.overall.to_json()
    return figures, gates


def _paired(
    task: str,
    sides: Sequence[Sequence[Answered]],
    figures: dict[str, Any],
    gates: list[GateResult],
    name: str,
    gate: SuiteGate | None,
) -> TaskComparison | None:
    """Both sides of a task compared, and its gate judged; a task that one side never answered is named instead."""
    before, after = sides
    if before and after:
        found = compare_tasks(before, after)
        if gate is not None:
            gates.append(drop_gate(name, found.overall, gate.max_drop))
        return found
    if before or after:
        why = f"the {'candidate' if before else 'baseline'} did not answer it"
        figures.setdefault(NOT_COMPARED, {})[task] = why
        if gate is not None:
            gates.append(GateResult(name, False, 1.0, gate.max_drop, f"{name}: {why}, there is no pair to judge"))
    return None


def drop_gate(name: str, found: McNemar, max_drop: float) -> GateResult:
    """At most ``max_drop`` of the items may be lost, net of those gained; the interval's worse bound counts.

    Missed where the baseline is right on no item, unless anything may be lost: no candidate could lose anything.
    """
    change = found.change
    drop = Interval(-change.value + 0.0, -change.high, -change.low, change.confidence)
    right = found.baseline_right / found.items, found.candidate_right / found.items
    gate = at_most(name, drop, max_drop, pair=right)
    beside = f"; {found.lost} answers lost and {found.gained} gained of {found.items}, McNemar p = {found.p_value:.3g}"
    if not found.baseline_right and max_drop < 1:
        beside += "; the baseline is right on none: nothing could be lost, so nothing is shown"
        return replace(gate, passed=False, detail=gate.detail + beside)
    if right[0] <= max_drop:
        beside += f"; the baseline is right on {found.baseline_right} only: losing all of them would pass"
    return replace(gate, detail=gate.detail + beside)
