"""Every rule once against what breaks it and once against what does not, with the numbers that its remedies rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.preflight import codes, report
from tests.trtforge.preflight.cases import CASES
from tests.trtforge.preflight.folder_cases import FOLDER_CASES
from trtforge.preflight import all_rules


def test_every_rule_has_its_cases() -> None:
    assert set(CASES) | set(FOLDER_CASES) == set(all_rules())


def require_well_formed(code: str, findings: Any) -> None:
    rule = all_rules()[code]
    found = [finding for finding in findings if finding.code == code]
    assert found, "the rule must find it"
    for finding in found:
        assert finding.severity == rule.severity
        assert finding.message and not finding.message.endswith(".")
        assert finding.asked
        assert finding.remedies and all(finding.remedies), "a finding names what would work"
        assert finding.why.endswith(".")
        assert finding.source is None or finding.source.startswith("https://")
        assert finding.to_json()["code"] == code


@pytest.mark.parametrize("code", CASES)
def test_the_rule_finds_it(code: str) -> None:
    settings, facts = CASES[code][0]
    require_well_formed(code, report(settings, **facts).findings)


@pytest.mark.parametrize("code", CASES)
def test_the_rule_lets_it_pass(code: str) -> None:
    settings, facts = CASES[code][1]
    assert code not in codes(settings, **facts)


@pytest.mark.parametrize("code", FOLDER_CASES)
def test_the_rule_finds_it_in_the_folder(code: str, tmp_path: Path) -> None:
    write, settings, facts = FOLDER_CASES[code][0]
    write(tmp_path)
    require_well_formed(code, report(settings, directory=tmp_path, **facts).findings)


@pytest.mark.parametrize("code", FOLDER_CASES)
def test_the_rule_lets_the_folder_pass(code: str, tmp_path: Path) -> None:
    write, settings, facts = FOLDER_CASES[code][1]
    write(tmp_path)
    assert code not in codes(settings, directory=tmp_path, **facts)


def test_the_default_recipe_has_no_findings() -> None:
    assert report({}).findings == ()
