"""What a finding says would work does work: remedies that are recipe lines are applied, and the finding is gone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.support.preflight import report
from tests.trtforge.preflight.cases import CASES
from trtforge.errors import ForgeError
from trtforge.recipe.merge import deep_merge
from trtforge.tables.features import feature_table

_LINE = re.compile(r"^([a-z_]+(?:\.[a-zA-Z_0-9]+)*): ?(.+?)(?: \(.*\)| or more| or less)?$")
_REMOVE = re.compile(r"^remove ([a-z_]+(?:\.[a-zA-Z_0-9]+)+)$")


def change(remedy: str) -> dict[str, Any] | None:
    """The recipe lines of a remedy as settings; None when it is no recipe line."""
    removed = _REMOVE.match(remedy)
    if removed is not None:
        return nested(removed[1], REMOVED)
    result: dict[str, Any] = {}
    for part in remedy.split(" with "):
        line = _LINE.match(part)
        if line is None or line[1].split(".")[0] not in SECTIONS:
            return None
        try:
            value = yaml.safe_load(line[2])
        except yaml.YAMLError:
            return None
        result = deep_merge(result, nested(line[1], value))
    return result


SECTIONS = ("stack", "model", "quantize", "evals", "speculation", "build", "triton", "bench")
REMOVED = object()


def nested(key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: nested(rest, value) if rest else value}


def applied(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` over ``settings``; what is marked as removed goes."""
    result = dict(settings)
    for key, value in changes.items():
        if value is REMOVED:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = applied(result[key], value)
        else:
            result[key] = value
    return result


#: findings whose ways out lie outside the recipe: another machine, another checkpoint, another file
OUTSIDE = {
    "TF-K1-001", "TF-K1-003", "TF-K2-004", "TF-K2-005", "TF-K2-006", "TF-K2-007", "TF-K7-007", "TF-K10-003",
    "TF-K11-001", "TF-K11-002", "TF-K12-004", "TF-K12-011", "TF-K12-019", "TF-K15-002", "TF-K18-001", "TF-K18-002",
    "TF-K18-005", "TF-K19-006", "TF-K19-007",
}  # fmt: skip


@pytest.mark.parametrize("code", [code for code in CASES if code not in OUTSIDE])
def test_a_remedy_that_is_a_recipe_line_cures_the_finding(code: str) -> None:
    settings, facts = CASES[code][0]
    findings = [finding for finding in report(settings, **facts).findings if finding.code == code]
    tried: list[str] = []
    for finding in findings:
        for remedy in finding.remedies:
            changes = change(remedy)
            if changes is None:
                continue
            tried.append(remedy)
            try:
                after = report(applied(settings, changes), **facts).findings
            except ForgeError:
                continue
            left = [item.message for item in after if item.code == code]
            if finding.message not in left:
                return
    pytest.fail(f"none of {tried} cures {[finding.message for finding in findings]}")


def test_a_method_that_is_offered_instead_is_one_that_this_version_writes() -> None:
    table = feature_table()
    for row in table.methods:
        offered = table.method(row.target, row.instead) if row.instead else None
        assert row.instead is None or (offered is not None and offered.support == "yes"), row


def test_no_way_out_of_a_layout_that_does_not_draft_meets_another_refusal_of_the_method() -> None:
    settings, facts = CASES["TF-K12-017"][0]
    (finding,) = [item for item in report(settings, **facts).findings if item.code == "TF-K12-017"]
    assert finding.remedies[0] == "triton.layout: inflight_batcher_llm"
    for remedy in finding.remedies:
        after = report(applied(settings, change(remedy) or {}), **facts).findings
        assert not {"TF-K12-001", "TF-K12-017", "TF-K12-018", "TF-K23-001"} & {item.code for item in after}, remedy
