"""The table of rules in ``docs/lint.md``: ``python -m triton_repo.lint.docs docs/lint.md`` rewrites it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from triton_repo.lint.hits import RULES, Rule
from trtforge.rules.tables import link, rewrite, rule_sections

BEGIN = "<!-- rules: written by `python -m triton_repo.lint.docs docs/lint.md` -->"
END = "<!-- end of rules -->"
_COLUMNS: dict[str, Callable[[Rule], str]] = {
    "Code": lambda rule: rule.code,
    "Severity": lambda rule: rule.severity,
    "What": lambda rule: rule.title,
    "Why": lambda rule: rule.why,
    "Source": lambda rule: link(rule.source),
}


def render() -> str:
    """The rules as one Markdown table a section, in the order of the sections."""
    return rule_sections(_COLUMNS, RULES)


if __name__ == "__main__":
    import sys

    rewrite(Path(sys.argv[1]), BEGIN, render(), END)
