"""Findings in the forms that other tools read: SARIF 2.1.0 and GitHub workflow commands.

Every check of this product (preflight, lint) turns its findings into :class:`Annotation` records, and the two
writers here know nothing else. Secrets are masked, because both forms end up in logs and on web pages.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from trtforge.ground.redaction import redact, redact_value

Severity = Literal["error", "warning", "note"]

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
SARIF_VERSION = "2.1.0"
_COMMANDS: dict[str, str] = {"error": "error", "warning": "warning", "note": "notice"}
_URL = re.compile(r"https?://[^\s)]+")


@dataclass(frozen=True)
class Annotation:
    """One finding, whatever found it.

    Args:
        code: the rule's stable code, such as ``TF-TRI-104``.
        severity: ``error``, ``warning`` or ``note``.
        message: what is wrong here, with the numbers; one or two sentences.
        file: the file, as the user would open it (relative to the working directory or absolute); None when
            the finding has no file.
        line: line in ``file``, from 1; None when the whole file is meant.
        column: column in ``line``, from 1.
        help: what would work here; empty when there is nothing to say.
        source: where the rule comes from (a URL or a document's name).
        title: the rule's title, the same for all findings of ``code``.
        why: why it cannot work, the same for all findings of ``code``.
        waived: the justification of a finding that the user has waived; None for one that counts.
    """

    code: str
    severity: Severity
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    help: str = ""
    source: str = ""
    title: str = ""
    why: str = ""
    waived: str | None = None


def sarif(annotations: Sequence[Annotation], *, tool: str = "trtforge", version: str | None = None) -> dict[str, Any]:
    """The findings as one SARIF 2.1.0 document with one run.

    Files below the working directory are written relative to it, under GitHub's base id ``%SRCROOT%``; a waived
    finding is kept and marked as suppressed.
    """
    codes = sorted({item.code for item in annotations})
    rules = [_rule(code, [item for item in annotations if item.code == code]) for code in codes]
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
                "results": [_result(item, codes.index(item.code)) for item in annotations],
            }
        ],
    }
    shown: dict[str, Any] = redact_value(document)
    return shown


def sarif_text(annotations: Sequence[Annotation], *, version: str | None = None) -> str:
    """:func:`sarif` as text with a newline at its end."""
    return json.dumps(sarif(annotations, version=version), indent=2, ensure_ascii=False) + "\n"


def github(annotations: Iterable[Annotation]) -> str:
    """The findings as GitHub workflow commands, one a line; a waived finding becomes a notice."""
    return "".join(_command(item) + "\n" for item in annotations)


def _rule(code: str, found: Sequence[Annotation]) -> dict[str, Any]:
    first = found[0]
    title = first.title or first.message
    why = first.why or title
    link = _URL.search(first.source)
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


def _result(item: Annotation, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": index,
        "level": item.severity,
        "message": {"text": _sentence(item)},
    }
    if item.file is not None:
        location: dict[str, Any] = {"artifactLocation": _artifact(item.file)}
        if item.line is not None:
            region = {"startLine": max(item.line, 1)}
            if item.column is not None:
                region["startColumn"] = max(item.column, 1)
            location["region"] = region
        result["locations"] = [{"physicalLocation": location}]
    if item.waived is not None:
        result["suppressions"] = [{"kind": "external", "justification": item.waived}]
    return result


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


def _sentence(item: Annotation) -> str:
    return item.message + (f". What would work: {item.help}" if item.help else "")


def _command(item: Annotation) -> str:
    waived = item.waived is not None
    properties: list[tuple[str, str]] = []
    if item.file is not None:
        properties.append(("file", _relative(item.file)))
        if item.line is not None:
            properties.append(("line", str(max(item.line, 1))))
            if item.column is not None:
                properties.append(("col", str(max(item.column, 1))))
    properties.append(("title", f"{item.code} {item.title}".strip()))
    text = _sentence(item) + (f" (waived: {item.waived})" if waived else "")
    listed = ",".join(f"{key}={_property(redact(value))}" for key, value in properties)
    return f"::{'notice' if waived else _COMMANDS[item.severity]} {listed}::{_data(redact(text))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
