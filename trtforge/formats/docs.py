"""The format table of ``docs/quantize.md``: ``python -m trtforge.formats.docs docs/quantize.md`` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

from trtforge.formats.table import FormatRow, Representation, load_formats

HEAD = "| Format | Weights | Activations | Group sizes | `quant_algo` | On a CPU |\n|---|---|---|---|---|---|\n"


def _operand(operand: Representation | None) -> str:
    return "the model's dtype" if operand is None else f"{operand.bits} bit {operand.dtype}, {operand.scale}"


def _row(row: FormatRow) -> str:
    groups = ", ".join(map(str, row.group_sizes)) or "–"
    cpu = "exact" if row.cpu.evaluate == row.cpu.quantize == "exact" else "evaluated by emulation"
    if row.cpu.quantize == "emulated":
        cpu = "quantized and evaluated by emulation"
    cells = (f"`{row.name}`", _operand(row.weight), _operand(row.activation), groups, row.algorithm or "–", cpu)
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The table's rows, in the order of the formats."""
    return HEAD + "\n".join(_row(row) for row in load_formats().formats) + "\n"


def written(text: str) -> str:
    """The document with its table as the rows say it."""
    before, rest = text.split(HEAD, 1)
    return before + table() + "\n" + rest.split("\n\n", 1)[1]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
