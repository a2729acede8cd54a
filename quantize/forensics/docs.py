"""The table of rules in ``docs/audit.md``: ``python -m quantize.forensics.docs docs/audit.md`` rewrites it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quantize.forensics.hits import RULES, Rule
from trtforge.rules.tables import Section, link, rule_table

BEGIN = "<!-- rules: written by `python -m quantize.forensics.docs docs/audit.md` -->"
END = "<!-- end of rules -->"
_COLUMNS: dict[str, Callable[[Rule], str]] = {
    "Code": lambda rule: rule.code,
    "Severity": lambda rule: rule.severity,
    "What": lambda rule: rule.title,
    "Why": lambda rule: rule.why,
    "Reported": lambda rule: ", ".join(link(one) for one in (rule.source, *rule.cases) if one),
}


def render() -> str:
    """The rules as one Markdown table a section, in the order of the sections."""
    sections: dict[Section, list[Rule]] = {}
    for rule in RULES.rules.values():
        sections.setdefault(RULES.load()[rule.module].SECTION, []).append(rule)
    return "\n".join(
        f"### {section.title}\n\n{rule_table(_COLUMNS, sections[section])}" for section in sorted(sections)
    )


def update(document: Path) -> None:
    """Rewrite the generated part of ``document``."""
    text = document.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(f"{head}{BEGIN}\n\n{render()}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    import sys

    update(Path(sys.argv[1]))
