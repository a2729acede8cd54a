"""The table of known holes in ``docs/security.md``, from ``trtforge/tables/advisories.yaml``.

``python scripts/advisories.py`` rewrites it; ``--check`` exits 1 when it is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trtforge.tables.advisories import Bulletin, advisory_table

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "security.md"
BEGIN = "<!-- holes: written by `python scripts/advisories.py` -->"
END = "<!-- end of holes -->"
EASED = {"stack": "larger stack", "restrictions": "closed APIs"}


def render() -> str:
    """One row for the holes of a bulletin that the same release is the first without."""
    table = advisory_table()
    lines = ["| Product | Before | Holes (CVSS) | In | Eased by a start | Bulletin |", "|---|---|---|---|---|---|"]
    for bulletin in reversed(table.bulletins):
        lines += [_row(bulletin, before) for before in sorted({hole.before for hole in bulletin.holes}, reverse=True)]
    server = ", ".join(f"{row.month} = {row.server}" for row in table.releases if row.month >= "24.10")
    return "\n".join([f"As of {table.as_of}. Triton is counted by NVIDIA's containers ({server}).", "", *lines])


def _row(bulletin: Bulletin, before: str) -> str:
    holes = [hole for hole in bulletin.holes if hole.before == before]
    named = ", ".join(f"{hole.id} ({hole.score:g}, {hole.what})" for hole in holes)
    parts = ", ".join(dict.fromkeys(hole.part for hole in holes if hole.part)) or "–"
    eased = ", ".join(f"{EASED[kind]}: {hole.id}" for hole in holes if (kind := hole.eased)) or "–"
    return f"| {bulletin.product} | {before} | {named} | {parts} | {eased} | [{bulletin.number}]({bulletin.url}) |"


def main(arguments: list[str]) -> int:
    """0, or 1 when ``--check`` finds the document out of date."""
    text = DOCUMENT.read_text(encoding="utf-8")
    new = f"{text.split(BEGIN)[0]}{BEGIN}\n\n{render()}\n\n{END}{text.split(END)[1]}"
    if "--check" in arguments:
        if new != text:
            print(f"{DOCUMENT.name} is out of date: python scripts/advisories.py")
        return int(new != text)
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
