"""Remedies on trial: each is applied to the recipe and the rules run again, before it is printed.

Policy: a remedy stands only if its finding goes with it. What the change brings in turn is named beside it; a remedy
that the recipe has already, that it cannot hold, or that changes nothing is withdrawn. Where several findings block,
one set of changes that clears them all together is looked for, because remedies that are right one by one may undo
each other. Rules about the machine alone are not judged: what the machine lacks depends on facts that are not asked
again. A run over all rules takes about a millisecond, and the number of trials is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trtforge.ground.errors import ForgeError
from trtforge.preflight.remedies import Remedy, changes_of, joined

if TYPE_CHECKING:
    from trtforge.preflight.engine import Facts, Finding, Report

#: runs of all rules that one report may cost
MOST_TRIALS = 120
#: changes that are offered together
_MOST_CHANGES = 8

Pass = Callable[["Facts"], "Report"]


class Trials:
    """Runs the rules over changed recipes, each change once."""

    def __init__(self, facts: Facts, rules: Pass) -> None:
        self._facts, self._rules, self._left = facts, rules, MOST_TRIALS
        self._known: dict[str, Report | None] = {}

    def report(self, *remedies: Remedy) -> Report | None:
        """What the rules say after these changes; None where no recipe can hold them, or when enough was tried."""
        changes = changes_of(remedies)
        key = repr(changes)
        if key not in self._known:
            if self._left == 0:
                return None
            self._left -= 1
            try:
                self._known[key] = self._rules(self._facts.changed(changes))
            except ForgeError:
                self._known[key] = None
        return self._known[key]

    @property
    def exhausted(self) -> bool:
        """Whether no further trial is made."""
        return self._left == 0


def judged(report: Report, facts: Facts, rules: Pass) -> Report:
    """``report`` with every remedy tried: what does not work withdrawn, what remains named, the best one first."""
    if not report.findings:
        return report
    trials = Trials(facts, rules)
    withdrawn: list[tuple[str, str]] = []
    findings = []
    for finding in report.findings:
        ways: list[Remedy] = []
        for way in finding.ways:
            tried = way if way.by_hand else _tried(way, finding, report, trials)
            if tried is None:
                withdrawn.append((finding.code, way.text))
            elif tried.changes not in [other.changes for other in ways] or tried.by_hand:
                ways.append(tried)
        findings.append(finding.with_ways(_ordered(ways)))
    result = replace(report, findings=tuple(findings), withdrawn=tuple(withdrawn))
    return replace(result, together=_together(result, trials))


def _counts(report: Report) -> Counter[str]:
    return Counter(item.code for item in report.findings if item.waived is None and not item.machine_lacks)


def _tried(way: Remedy, finding: Finding, before: Report, trials: Trials) -> Remedy | None:
    """The remedy with what it leaves; None when it does not clear the finding."""
    after = trials.report(way)
    if after is None:
        return way if trials.exhausted else None
    if finding.machine_lacks or finding.code in after.skipped:
        return way  # what it depends on is not known for the changed recipe
    if finding.waived is not None:
        return way
    was, now = _counts(before), _counts(after)
    if now[finding.code] >= was[finding.code]:
        return None
    return replace(way, leaves=tuple((now - was).keys()))


def _ordered(ways: Sequence[Remedy]) -> list[Remedy]:
    """Changes that leave nothing first, else the rule's order; what is done by hand keeps its place."""
    rest = iter(sorted((way for way in ways if not way.by_hand), key=lambda way: bool(way.leaves)))
    return [way if way.by_hand else next(rest) for way in ways]


def _together(report: Report, trials: Trials) -> Remedy | None:
    """One set of changes that clears all that a recipe can change; None where one remedy is enough, or none was found.

    Each step takes the change that leaves the fewest blocking findings, then the fewest findings. What only a person
    can clear stays, and is named among what the changes leave.
    """
    blocking = [item for item in report.findings if item.blocks]
    manual = {item.code for item in blocking if all(way.by_hand for way in item.ways)}
    clean = [way for item in blocking for way in item.ways if way.changes and not way.leaves]
    if not blocking or (len(blocking) - len(manual) == 1 and clean):
        return None
    chosen: list[Remedy] = []
    now = report
    while len(chosen) < _MOST_CHANGES:
        best: tuple[tuple[int, int], Remedy, Report] | None = None
        for finding in now.findings:
            if not finding.blocks:
                continue
            for way in finding.ways:
                after = None if way.by_hand else trials.report(*chosen, way)
                if after is None:
                    continue
                rank = _rank(after)
                if best is None or rank < best[0]:
                    best = (rank, way, after)
        if best is None or best[0] >= _rank(now):
            break
        chosen.append(best[1])
        now = best[2]
    stays = {item.code for item in now.findings if item.blocks}
    if not chosen or not stays <= manual:
        return None
    return replace(joined(chosen), leaves=(*sorted(stays), *(_counts(now) - _counts(report)).keys()))


def _rank(report: Report) -> tuple[int, int]:
    return sum(item.blocks for item in report.findings), sum(_counts(report).values())
