"""Findings in the forms that other tools read: SARIF 2.1.0 and GitHub workflow commands.

Secrets are masked, because both forms end up in logs and on web pages.

Sources: SARIF 2.1.0 (https://docs.oasis-open.org/sarif/sarif/v2.1.0/), what code scanning reads of it
(https://docs.github.com/en/code-security/code-scanning/integrating-with-code-scanning/sarif-support-for-code-scanning)
and workflow commands
(https://docs.github.com/en/actions/writing-workflows/choosing-what-your-workflow-does/workflow-commands-for-github-actions).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtforge.ground.redaction import redact, redact_value
from trtforge.rules.rule import Breach, Finding, Place

Found = Finding[Breach]

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
SARIF_VERSION = "2.1.0"
_COMMANDS: dict[str, str] = {"error": "error", "warning": "warning", "note": "notice"}
_URL = re.compile(r"https?://[^\s)]+")


def sarif(findings: Sequence[Found], *, tool: str = "trtforge", version: str | None = None) -> dict[str, Any]:
    """The findings as one SARIF 2.1.0 document with one run.

    Files below the working directory are written relative to it, under GitHub's base id ``%SRCROOT%``; a waived
    finding is kept and marked as suppressed.
    """
    codes = sorted({item.code for item in findings})
    rules = [_rule(code, [item for item in findings if item.code == code]) for code in codes]
    driver: dict[str, Any] = {"name": tool, "rules": rules}
    if version:
        driver["semanticVersion"] = version
    document: dict[str, Any] = {
        "$schema": SARIF_SCHEMA,
        "version": SARIF_VERSION,
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(item, codes.index(item.code)) for item in findings],
            }
        ],
    }
    shown: dict[str, Any] = redact_value(document)
    return shown


def sarif_text(findings: Sequence[Found], *, version: str | None = None) -> str:
    """:func:`sarif` as text with a newline at its end."""
    return json.dumps(sarif(findings, version=version), indent=2, ensure_ascii=False) + "\n"


def github(findings: Iterable[Found]) -> str:
    """The findings as GitHub workflow commands, one a line; a waived finding becomes a notice."""
    return "".join(_command(item) + "\n" for item in findings)


def _rule(code: str, found: Sequence[Found]) -> dict[str, Any]:
    first = found[0]
    title = first.title or first.headline
    why = first.why or title
    link = _URL.search(first.source or "")
    worst = "error" if any(item.severity == "error" for item in found) else first.severity
    rule: dict[str, Any] = {
        "id": code,
        "shortDescription": {"text": title},
        "fullDescription": {"text": why},
        "help": {"text": why + (f" Source: {first.source}" if first.source else "")},
        "defaultConfiguration": {"level": worst},
    }
    if link:
        rule["helpUri"] = link.group(0)
    return rule


def _result(item: Found, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": index,
        "level": item.severity,
        "message": {"text": _sentence(item)},
    }
    if item.place is not None:
        result["locations"] = [{"physicalLocation": _location(item.place)}]
    if item.waived is not None:
        result["suppressions"] = [{"kind": "external", "justification": item.waived}]
    return result


def _location(place: Place) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": _artifact(place.file)}
    if place.line is not None:
        location["region"] = {"startLine": max(place.line, 1)}
        if place.column is not None:
            location["region"]["startColumn"] = max(place.column, 1)
    return location


def _artifact(file: str) -> dict[str, str]:
    path = _relative(file)
    name = os.fsencode(path)  # a name that is no UTF-8 is a URI all the same
    if Path(path).is_absolute():
        return {"uri": "file://" + quote(name)}
    # quote() also hides a colon, which in the first part of a relative reference would read as a scheme
    return {"uri": quote(name), "uriBaseId": "%SRCROOT%"}


def _relative(file: str) -> str:
    """``file`` relative to the working directory when it lies below it."""
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def _sentence(item: Found) -> str:
    ways_out = item.breach.ways_out
    return item.headline + (f". What would work: {ways_out}" if ways_out else "")


def _command(item: Found) -> str:
    waived = item.waived is not None
    properties: list[tuple[str, str]] = []
    if item.place is not None:
        properties.append(("file", _relative(item.place.file)))
        if item.place.line is not None:
            properties.append(("line", str(max(item.place.line, 1))))
            if item.place.column is not None:
                properties.append(("col", str(max(item.place.column, 1))))
    properties.append(("title", f"{item.code} {item.title}".strip()))
    text = _sentence(item) + (f" (waived: {item.waived})" if waived else "")
    listed = ",".join(f"{key}={_property(redact(value))}" for key, value in properties)
    return f"::{'notice' if waived else _COMMANDS[item.severity]} {listed}::{_data(redact(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
