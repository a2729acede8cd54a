"""The SARIF and GitHub writers: structure that the two readers insist on, escaping, waivers, secrets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from trtforge.rules.output import github, sarif, sarif_text
from trtforge.rules.rule import Finding, Identity, Place, Severity, Told

Found = Finding[Told]


def found(
    code: str,
    severity: Severity,
    message: str,
    place: Place | None = None,
    *,
    remedy: str = "",
    title: str = "",
    waived: str | None = None,
) -> Found:
    """A finding of a rule without a reason of its own."""
    told = Told(message, (remedy,) if remedy else ())
    return Finding(Identity(code, severity, title), told, waived, place)


FULL = Finding(
    Identity(
        "TF-TRI-104",
        "error",
        "placeholder left in",
        "The server reads a number there.",
        "https://github.com/triton-inference-server/tensorrtllm_backend/issues/61",
    ),
    Told("max_batch_size is `${bs}`", ("max_batch_size: 8",)),
    place=Place("repo/m/config.pbtxt", 3, 17),
)


def _result(item: Found) -> dict:
    return sarif([item])["runs"][0]["results"][0]


def test_a_full_record_is_a_complete_sarif_result():
    document = sarif([FULL], version="0.1.0")
    assert document["version"] == "2.1.0" and document["$schema"].endswith("sarif-schema-2.1.0.json")
    run = document["runs"][0]
    rule = run["tool"]["driver"]["rules"][0]
    assert rule["id"] == "TF-TRI-104" and rule["helpUri"].endswith("/issues/61")
    assert rule["defaultConfiguration"] == {"level": "error"}
    result = run["results"][0]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    physical = result["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "repo/m/config.pbtxt", "uriBaseId": "%SRCROOT%"}
    assert physical["region"] == {"startLine": 3, "startColumn": 17}
    assert "max_batch_size: 8" in result["message"]["text"]


def test_no_findings_is_still_a_document():
    run = sarif([])["runs"][0]
    assert run["results"] == [] and run["tool"]["driver"]["rules"] == []
    assert github([]) == ""


def test_a_finding_without_a_file_has_no_location():
    assert "locations" not in _result(found("TF-K4-001", "warning", "x"))
    assert github([found("TF-K4-001", "warning", "x")]) == "::warning title=TF-K4-001::x\n"


def test_a_name_that_is_no_utf_8_is_a_uri():
    for file, uri in (("repo/bad\udcff/config.pbtxt", "repo/bad%FF/config.pbtxt"), ("/bad\udcff", "file:///bad%FF")):
        location = _result(found("A", "error", "x", Place(file)))["locations"][0]["physicalLocation"]
        assert location["artifactLocation"]["uri"] == uri


def test_lines_and_columns_start_at_one():
    region = _result(found("A", "error", "x", Place("a", 0, 0)))["locations"][0]["physicalLocation"]
    assert region["region"] == {"startLine": 1, "startColumn": 1}


def test_a_waived_finding_is_suppressed_and_becomes_a_notice():
    item = found("A", "error", "x", waived="known, see ADR 7")
    assert _result(item)["suppressions"][0]["justification"] == "known, see ADR 7"
    assert github([item]).startswith("::notice ") and "waived: known" in github([item])


def test_paths_below_the_working_directory_are_relative_and_others_are_uris(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    below = _result(found("A", "error", "x", Place(str(tmp_path / "a b" / "c#d.pbtxt"), 1)))
    artifact = below["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "a%20b/c%23d.pbtxt", "uriBaseId": "%SRCROOT%"}
    other = _result(found("A", "error", "x", Place("/elsewhere/c.pbtxt")))
    assert other["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "file:///elsewhere/c.pbtxt"}


def test_github_commands_escape_what_would_end_them():
    item = found("A", "warning", "50% a\nb", Place("x,y:z", 2), title="t: u")
    assert github([item]) == "::warning file=x%2Cy%3Az,line=2,title=A t%3A u::50%25 a%0Ab\n"


def test_a_rule_takes_its_worst_level():
    document = sarif([found("A", "warning", "x"), found("A", "error", "y"), found("B", "note", "z")])
    levels = {r["id"]: r["defaultConfiguration"]["level"] for r in document["runs"][0]["tool"]["driver"]["rules"]}
    assert levels == {"A": "error", "B": "note"}


def test_secrets_are_masked_in_both_forms():
    item = found("A", "error", "token is hf_abcdefghijklmnop", remedy="unset hf_abcdefghijklmnop")
    for text in (sarif_text([item]), github([item])):
        assert "hf_abcdefghijklmnop" not in text and "***" in text


_TEXT = st.text(max_size=40)


@given(
    st.lists(
        st.builds(
            found,
            code=st.sampled_from(["A-1", "B-2", "C-3"]),
            severity=st.sampled_from(["error", "warning", "note"]),
            message=_TEXT,
            place=st.none() | st.builds(Place, st.text(min_size=1, max_size=20), st.none() | st.integers(-3, 10**6)),
            remedy=_TEXT,
            title=_TEXT,
        ),
        max_size=6,
    )
)
def test_any_records_give_one_command_each_and_a_consistent_document(items):
    lines = github(items).split("\n")
    assert lines.pop() == "" and len(lines) == len(items)
    assert all(re.match(r"::(error|warning|notice) ", line) for line in lines)
    document = json.loads(sarif_text(items))
    run = document["runs"][0]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(ids)) == len(ids)
    for item, result in zip(items, run["results"], strict=True):
        assert ids[result["ruleIndex"]] == item.code and result["level"] == item.severity
        if item.place is not None:
            artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
            assert re.fullmatch(r"[A-Za-z0-9/._~%:-]*", artifact["uri"])
            if not Path(item.place.file).is_absolute():
                assert unquote(artifact["uri"]) == Path(item.place.file).as_posix()
