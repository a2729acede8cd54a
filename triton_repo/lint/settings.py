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
from trtforge.ground.names import nearest
from trtforge.ground.rows import safe_loader


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

    loader = safe_loader()
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


def has_anchors(text: str) -> bool:
    """Whether a YAML text that parses names values to repeat them elsewhere."""
    import yaml

    return "&" in text and any(isinstance(token, yaml.AnchorToken) for token in yaml.scan(text, Loader=safe_loader()))


class Lines:
    """The lines of a YAML or JSON text's keys, by their path; a merged or unknown one has the nearest above it."""

    def __init__(self, text: str) -> None:
        import yaml

        self._lines: dict[tuple[str, ...], int] = {}
        try:
            root = yaml.compose(text.replace("\t", " "), Loader=safe_loader())  # JSON may be indented by tabs
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
        section: the section that it stands in, dotted; empty for the top.
        name: the argument that it is or should be, dotted.
        path: where it stands.
        alone: whether it is the only key of its mapping.
        odd: whether YAML reads it as something else than a text (``true``, ``1``).
    """

    section: str
    key: str
    name: str
    value: Any
    path: tuple[str, ...]
    alone: bool
    odd: bool = False


def entries(
    document: Mapping[Any, Any], table: Arguments, section: str = "", path: tuple[str, ...] = ()
) -> Iterator[Entry]:
    """Every key that is an argument of ``LLM()`` or should be one; keys inside free mappings are not."""
    known = table.known[section]
    for raw, value in document.items():
        key = str(raw)
        if not section and key in table.wrapper:
            continue
        name = f"{section}.{key}" if section else key
        if key not in known:
            name = _meant(key, section, table) or _section_like(key, section, value, table) or name
        entry = Entry(section, key, name, value, (*path, key), len(document) == 1, not isinstance(raw, str))
        yield entry
        if not isinstance(value, dict):
            continue
        if name in table.known:
            yield from entries(value, table, name, entry.path)
        elif key not in known and wraps(entry, table):
            yield from entries(value, table, "", entry.path)


def placed(document: Mapping[Any, Any], table: Arguments) -> dict[str, Entry]:
    """Argument (dotted) → its key, the one in its right place first, wherever it stands."""
    found: dict[str, Entry] = {}
    for entry in entries(document, table):
        if entry.name not in found or ".".join(entry.path) == entry.name:
            found[entry.name] = entry
    return found


def _meant(key: str, section: str, table: Arguments) -> str | None:
    """The argument that a key should be which its section does not have: by its old name, or of another section."""
    gone = table.removed.get(section, {}).get(key)
    if gone is not None:
        return gone.to
    places = homes(key, section, table)
    return key if key in places else places[0] if len(places) == 1 else None


def _section_like(key: str, section: str, value: Any, table: Arguments) -> str | None:
    """The section of ``section`` that a misspelt key opens: what stands below it is judged with it."""
    near = nearest(key, table.known[section], cutoff=0.85) if isinstance(value, dict) else None
    name = f"{section}.{near}" if section else near
    return name if name in table.known else None


def homes(key: str, section: str, table: Arguments) -> list[str]:
    """The full names of the arguments that are called ``key`` in other sections; the top first."""
    found = [f"{other}.{key}" if other else key for other, names in table.known.items() if key in names]
    return [] if key in table.known[section] else found


def wraps(entry: Entry, table: Arguments) -> bool:
    """Whether a key that is no argument holds arguments of the top: at least half of what is below it."""
    if entry.section or entry.name in table.known or not isinstance(entry.value, dict) or not entry.value:
        return False
    top = {*table.known[""], *table.wrapper, *table.removed[""]}
    return sum(str(key) in top for key in entry.value) * 2 >= len(entry.value)
