"""The keys of ``model.yaml`` and ``model.json`` with their lines, and which argument of ``LLM()`` each one is.

A section that stands in the wrong place is read as the section that it is, and so are all arguments below one foreign
key: what they hold is judged too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_repo.lint.llm_arguments import Arguments, aliases_grow
from triton_repo.lint.repository import Model


def file_of(model: Model, name: str) -> tuple[Path, str] | None:
    """Path and text of ``model.yaml`` or ``model.json`` of the first version that has it and can be read."""
    for version in model.versions:
        if version.names is not None and name in version.names:
            path = version.folder / name
            text = model.read(path)
            return (path, text) if text is not None else None
    return None


def parsed(text: str) -> tuple[Any, int, str | None]:
    """(document, line, problem) of a YAML text; aliases may not make a small file a large document."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=loader)):
            problem = aliases_grow(yaml.compose(text, Loader=loader))
            if problem is not None:
                return None, 1, problem
        return yaml.load(text, Loader=loader), 1, None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it does not parse"
        return None, (mark.line + 1) if mark is not None else 1, str(problem)
    except (RecursionError, ValueError) as error:
        return None, 1, str(error) or "it is nested too deeply"


class Lines:
    """The lines of a YAML or JSON text's keys, by their path; a merged or unknown one has the nearest above it."""

    def __init__(self, text: str) -> None:
        import yaml

        self._lines: dict[tuple[str, ...], int] = {}
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            root = yaml.compose(text, Loader=loader)
        except (yaml.YAMLError, RecursionError, ValueError):  # JSON that is no YAML
            return
        todo: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
        while todo:
            node, path = todo.pop()
            if not isinstance(node, yaml.MappingNode):
                continue
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    inner = (*path, key.value)
                    self._lines[inner] = key.start_mark.line + 1
                    todo.append((value, inner))

    def of(self, *path: str) -> int:
        """The line of a key, from 1."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._lines:
                return self._lines[path[:length]]
        return 1


@dataclass(frozen=True)
class Entry:
    """One key.

    Attributes:
        section: the section that it is judged as, dotted; empty for the top.
        path: where it stands.
        alone: whether it is the only key of its mapping.
    """

    section: str
    key: str
    value: Any
    path: tuple[str, ...]
    alone: bool

    @property
    def name(self) -> str:
        """The key's full name, dotted."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def home(self) -> tuple[str, ...]:
        """Where a key of this name belongs."""
        return tuple(self.name.split("."))


def entries(
    document: Mapping[Any, Any], table: Arguments, section: str = "", path: tuple[str, ...] = ()
) -> Iterator[Entry]:
    """Every key that is an argument of ``LLM()`` or should be one; keys inside free mappings are not."""
    known = table.known[section]
    for raw, value in document.items():
        key = str(raw)
        if not section and key in table.wrapper:
            continue
        entry = Entry(section, key, value, (*path, key), len(document) == 1)
        yield entry
        if not isinstance(value, dict):
            continue
        inner = section_of(entry, table) if key in known else None
        if key not in known:
            place = homes(key, section, table)
            inner = place[0] if len(place) == 1 and place[0] in table.known else "" if wraps(entry, table) else None
        if inner is not None:
            yield from entries(value, table, inner, entry.path)


def section_of(entry: Entry, table: Arguments) -> str | None:
    """The section that a known key opens; None for one whose value is free."""
    return entry.name if entry.name in table.known else None


def homes(key: str, section: str, table: Arguments) -> list[str]:
    """The full names of the arguments that are called ``key`` in other sections; the top first."""
    found = [f"{other}.{key}" if other else key for other, names in table.known.items() if key in names]
    return [] if key in table.known[section] else found


def wraps(entry: Entry, table: Arguments) -> bool:
    """Whether a key that is no argument holds arguments of the top: at least half of what is below it."""
    if entry.section or not isinstance(entry.value, dict) or not entry.value:
        return False
    top = {*table.known[""], *table.wrapper, *table.removed[""]}
    return sum(str(key) in top for key in entry.value) * 2 >= len(entry.value)
