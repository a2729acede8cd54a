"""Parameters of the layouts as data: what each means, what it may be, what it needs, and where that is written.

``triton_repo/tables/*.yaml`` hold the rows; the emitter takes defaults from them and checks values against them,
``trtforge triton explain`` and ``docs/triton.md`` print them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import Row, read_table
from trtforge.targets.layouts import LAYOUTS

_FOLDER = Path(__file__).parent / "tables"
BEGIN = "<!-- parameters: written by `python -m triton_repo.parameters docs/triton.md` -->"
END = "<!-- end of parameters -->"
Kind = Literal["integer", "integers", "fraction", "share", "boolean", "choice", "path", "devices", "choices", "text"]

_DEVICES = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*(;[0-9]{1,4}(,[0-9]{1,4})*)*")
_CHOICES = re.compile(r"\{[0-9]+(, ?[0-9]+)*\}(, ?\{[0-9]+(, ?[0-9]+)*\})*")
#: TensorRT-LLM reads whole numbers as 64 bits with a sign
_INT_MAX = 2**63 - 1
_PLACEHOLDER = re.compile(r"\$\{[^}]*\}")


class Parameter(Row):
    """One parameter.

    Attributes:
        place: ``parameter`` (a ``string_value``), ``field`` (of config.pbtxt itself) or ``yaml`` (of model.yaml).
        kind: a ``share`` is a fraction that must not be zero.
        default: what holds when the value is empty or missing; empty: nothing is set.
        models: models of the repository that have it.
        template: the name that NVIDIA's template tool uses, where it is another.
        recipe: the recipe's key that sets it.
        emitted: False for a parameter of older versions that is explained and not written.
    """

    name: str
    place: Literal["parameter", "field", "yaml"] = "parameter"
    kind: Kind
    values: tuple[str, ...] = ()
    minimum: int | None = None
    default: str = ""
    required: bool = False
    meaning: str
    needs: tuple[str, ...] = ()
    models: tuple[str, ...] = ("tensorrt_llm",)
    template: str | None = None
    recipe: str | None = None
    source: str
    until: str | None = None
    emitted: bool = True

    def fault(self, value: str) -> str | None:
        """Why ``value`` cannot be this parameter, or None. An empty value means "not set"."""
        if _PLACEHOLDER.search(value):
            return f"{value!r} is a placeholder that nothing filled in"
        if value == "":
            return "a value is needed" if self.required else None
        if self.kind in ("integer", "integers"):
            parts = value.split(",") if self.kind == "integers" else [value]
            if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
                return f"{value!r} is no whole number" if self.kind == "integer" else f"{value!r} is no list of numbers"
            if any(len(part.strip().lstrip("0")) > 19 or int(part) > _INT_MAX for part in parts):
                return f"{value[:30]} is over {_INT_MAX}, the most that 64 bits hold"
            low = min(int(part) for part in parts)
            return f"{value} is under {self.minimum}" if self.minimum is not None and low < self.minimum else None
        if self.kind in ("fraction", "share"):
            try:
                share = float(value)
            except ValueError:
                return f"{value!r} is no number"
            if self.kind == "share" and share == 0:
                return f"{value} leaves nothing"
            return None if 0 <= share <= 1 else f"{value} is not between 0 and 1"
        if self.kind == "boolean":
            return None if value in ("true", "false") else f"{value!r} is neither true nor false"
        if self.kind == "choice":
            return None if value in self.values else f"{value!r} is none of {', '.join(self.values)}"
        if self.kind == "devices":
            return None if _DEVICES.fullmatch(value) else f"{value!r} is no list like 0,1 or 0,1;2,3"
        if self.kind == "choices":
            return None if _CHOICES.fullmatch(value) else f"{value!r} is no list of paths like {{0}}, {{0, 1}}"
        return None

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.kind == "choice":
            return ", ".join(self.values)
        words = {
            "integer": "a whole number",
            "integers": "whole numbers, comma between",
            "fraction": "0 to 1",
            "share": "over 0, up to 1",
            "boolean": "true, false",
            "path": "a path",
            "devices": "numbers like 0,1 or 0,1;2,3",
            "choices": "paths like {0}, {0, 1}",
            "text": "text",
        }[self.kind]
        return words if self.minimum is None else f"{words}, at least {self.minimum}"


class Table(Row):
    """The parameters of one layout and the TensorRT-LLM versions that read them (trtforge's own for native)."""

    layout: str
    as_of: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    since: str
    until: str | None
    sources: dict[str, str]
    rows: tuple[Parameter, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        for row in self.rows:
            if row.source not in self.sources:
                raise ValueError(f"{row.name}: source {row.source} is not listed")
            if row.default and row.fault(row.default) is not None:
                raise ValueError(f"{row.name}: default {row.fault(row.default)}")
        keys = [(row.name, row.place, model) for row in self.rows for model in row.models]
        if len(set(keys)) != len(keys):
            raise ValueError("a parameter is listed twice")
        return self

    def of_model(self, model: str) -> dict[str, Parameter]:
        """The parameters (``string_value``) that are written for ``model``, by name."""
        return {row.name: row for row in self.rows if row.place == "parameter" and model in row.models and row.emitted}


@cache
def load_parameters(layout: str) -> Table:
    """The table of a layout (cached)."""
    return read_table(_FOLDER / f"{layout}.yaml", Table)


def explain(name: str | None = None) -> list[dict[str, Any]]:
    """Every row that ``name`` means in any layout, as JSON-able mappings; all rows without a name.

    A parameter is found by its own name, by NVIDIA's template name, or by the last part of a dotted name.

    Raises:
        ForgeError: TF-TRI-060 with the nearest name.
    """
    from trtforge.ground.names import nearest

    tables = [load_parameters(layout) for layout in LAYOUTS]
    rows = [(table, row) for table in tables for row in table.rows]
    if name is None:
        return [_described(table, row, rows) for table, row in rows]
    found = [(table, row) for table, row in rows if name in _names(row)]
    if not found:
        near = nearest(name, sorted({known for _, row in rows for known in _names(row)}))
        raise ForgeError(
            "TF-TRI-060",
            f"no layout has a parameter {name}",
            asked=name,
            numbers={"parameters": len({row.name for _, row in rows})},
            remedies=[f"trtforge triton explain {near}"] if near else ["trtforge triton explain"],
        )
    return [_described(table, row, rows) for table, row in found]


def _names(row: Parameter) -> set[str]:
    plain = row.name.split(" ")[0]
    return {plain, plain.rsplit(".", 1)[-1]} | ({row.template} if row.template else set())


def _described(table: Table, row: Parameter, rows: list[tuple[Table, Parameter]]) -> dict[str, Any]:
    until = row.until or table.until
    elsewhere = [
        f"{other.name} ({home.layout})"
        for home, other in rows
        if row.recipe and other.recipe == row.recipe and home.layout != table.layout
    ]
    return {
        "name": row.name,
        "layout": table.layout,
        "models": list(row.models),
        "place": row.place,
        "meaning": row.meaning,
        "values": row.allowed,
        "default": row.default,
        "required": row.required,
        "needs": list(row.needs),
        "recipe": row.recipe,
        "elsewhere": elsewhere,
        "template": row.template,
        "versions": f"{table.since} to {until}" if until else f"since {table.since}",
        "source": table.sources[row.source],
    }


def checked(layout: str, model: str, values: dict[str, str]) -> dict[str, str]:
    """All parameters of ``model``: ``values`` over the defaults, every one checked.

    Raises:
        ForgeError: TF-TRI-061 for a name that the model has not, TF-TRI-062 naming every value that cannot be.
    """
    from trtforge.ground.names import nearest

    rows = load_parameters(layout).of_model(model)
    unknown = sorted(values.keys() - rows.keys())
    if unknown:
        near = [nearest(name, list(rows)) for name in unknown]
        raise ForgeError(
            "TF-TRI-061",
            f"{model} has no parameter {', '.join(unknown)}",
            asked=", ".join(f"{name}: {values[name]}" for name in unknown),
            why=f"TensorRT-LLM reads none of that name from {model}/config.pbtxt",
            remedies=[*(f"{name}" for name in near if name), "trtforge triton explain"],
        )
    result = {name: values.get(name, row.default) for name, row in rows.items()}
    faults = {name: fault for name, row in rows.items() if (fault := row.fault(result[name])) is not None}
    if faults:
        raise ForgeError(
            "TF-TRI-062",
            f"{len(faults)} parameter{'s' if len(faults) > 1 else ''} of {model} cannot be set so",
            asked=", ".join(f"{name}: {result[name]}" for name in faults),
            why="; ".join(f"{name}: {fault}" for name, fault in faults.items()),
            remedies=[f"{name}: {rows[name].allowed}" for name in faults],
        )
    return result


def render() -> str:
    """The parameters of all layouts as Markdown tables."""
    parts = []
    for layout, facts in LAYOUTS.items():
        table = load_parameters(layout)
        versions = f"{table.since} to {table.until}" if table.until else f"since {table.since}"
        owner = "trtforge" if facts.own_runtime else "TensorRT-LLM"
        parts.append(f"### `{layout}` ({owner} {versions})\n")
        parts.append("| Parameter | Where | Values | Default | Meaning | Needs |\n|---|---|---|---|---|---|")
        for row in table.rows:
            where = f"{', '.join(row.models)}, {row.place}" if facts.chain else row.place
            default = "required" if row.required else f"`{row.default}`" if row.default else "–"
            cells = [f"`{row.name}`", where, row.allowed, default, row.meaning, "; ".join(row.needs)]
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    import sys

    from trtforge.rules.tables import rewrite

    rewrite(Path(sys.argv[1]), BEGIN, render(), END)
