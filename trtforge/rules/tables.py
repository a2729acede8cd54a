"""Tables of rules for the documents, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trtforge.rules.registry import Registry
from trtforge.rules.rule import Rule

RuleT = TypeVar("RuleT", bound=Rule[Any, Any])
_THREAD = re.compile(r"https://github\.com/([^/]+)/([^/]+)/(?:issues|pull)/(\d+)")


@dataclass(frozen=True, order=True)
class Section:
    """Where a rule stands in its document: ``place`` orders the sections, ``title`` is the heading.

    Modules may share one.
    """

    place: int
    title: str


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One table, with a newline at its end."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def rule_table(columns: Mapping[str, Callable[[RuleT], str]], rules: Iterable[RuleT]) -> str:
    """One row a rule; ``columns`` maps a heading to what stands below it."""
    return table(list(columns), [[cell(rule) for cell in columns.values()] for rule in rules])


def rule_sections(columns: Mapping[str, Callable[[RuleT], str]], registry: Registry[RuleT]) -> str:
    """One table a section, in the order of the sections; a module says as ``SECTION`` which its rules belong to."""
    sections: dict[Section, list[RuleT]] = {}
    for rule in registry.rules.values():
        sections.setdefault(registry.load()[rule.module].SECTION, []).append(rule)
    return "\n".join(f"### {section.title}\n\n{rule_table(columns, sections[section])}" for section in sorted(sections))


def rewrite(document: Path, begin: str, text: str, end: str) -> None:
    """Put ``text`` between the two marks of a document."""
    old = document.read_text(encoding="utf-8")
    document.write_text(f"{old.split(begin)[0]}{begin}\n\n{text}\n{end}{old.split(end)[1]}", encoding="utf-8")


def link(source: str | None) -> str:
    """A short text for a long address: an issue by its number, a page by its repository or host."""
    if not source:
        return ""
    thread = _THREAD.fullmatch(source)
    if thread is not None:
        return f"[{thread[2]}#{thread[3]}]({source})"
    host, *path = source.removeprefix("https://").split("/")
    return f"[{path[1] if host == 'github.com' else host.removeprefix('www.')}]({source})"
