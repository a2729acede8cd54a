"""Rules on ``speculative_config`` of the LLM API: lengths, trees and thresholds that it refuses or passes over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triton_repo.lint.checks.llmapi import each_document
from triton_repo.lint.hits import Hit, Severity, hit_file, rule
from triton_repo.lint.llm_arguments import load_arguments
from triton_repo.lint.remedies import Remedy, key, no_key, person, together
from triton_repo.lint.repository import Model
from triton_repo.lint.settings import Lines, placed
from trtforge.rules.tables import Section

SECTION = Section(120, "The LLM API: speculation")

_SOURCE = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm_args.py"
#: types whose configuration is refused without a draft length
_LENGTHS = ("Eagle", "Eagle3", "NGram", "Draft_Target", "DraftTarget", "SA")

#: what says the size of a dynamic tree
_SIZES = ("dynamic_tree_max_topK", "max_total_draft_tokens")


class _Section:
    """``speculative_config`` as it stands in a document, and where."""

    def __init__(self, model: Model, path: Path, text: str, place: tuple[str, ...], values: Mapping[str, Any]) -> None:
        self.model, self.path, self.place, self.values = model, path, place, values
        self._lines = Lines(text)

    def number(self, name: str) -> int | None:
        """A whole number; None where there is none, or a value of another kind."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def put(self, name: str, value: Any) -> Remedy:
        return key(self.path, value, *self.place, name)

    def without(self, name: str) -> Remedy:
        return no_key(self.path, *self.place, name)

    def hit(self, name: str, message: str, *ways: Remedy, severity: Severity | None = None) -> Hit:
        return hit_file(self.model, self.path, message, ways, self._lines.of(*self.place, name), severity)


def without_key(path: Path, place: Sequence[str | int], name: str, values: Mapping[str, Any]) -> Remedy:
    """Take a key of the section at ``place`` out, a dynamic tree with its sizes."""
    names = [name, *(size for size in _SIZES if size in values)] if name == "use_dynamic_tree" else [name]
    return together(*(no_key(path, *place, item) for item in names))


def _section(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> _Section | None:
    entry = placed(document, load_arguments()).get("speculative_config")
    if entry is None or not isinstance(entry.value, dict):
        return None
    return _Section(model, path, text, tuple(entry.path), entry.value)


@rule("TF-TRI-265", "error", "lengths of speculative_config that LLM() refuses", _SOURCE)
@each_document
def draft_lengths(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """It checks that a draft has a length, and that lengths by batch begin with the longest one."""
    found = _section(model, path, text, document)
    if found is None:
        return
    kind, longest = found.values.get("decoding_type"), found.number("max_draft_len")
    if kind in _LENGTHS and found.values.get("max_draft_len") in (None, 0):
        yield found.hit("decoding_type", f"{kind} without max_draft_len", found.put("max_draft_len", 3))
    schedule = found.values.get("draft_len_schedule")
    if schedule is not None and found.values.get("max_concurrency") is not None:
        yield found.hit(
            "max_concurrency",
            "max_concurrency and draft_len_schedule: a schedule drafts nothing above its last batch by itself",
            found.without("max_concurrency"),
            found.without("draft_len_schedule"),
        )
    rows = _rows(schedule)
    if not rows:
        return
    wrong = [f"{batch}: {length}" for batch, length in rows.items() if batch < 1 or length < 0]
    over = [f"{batch}: {length}" for batch, length in rows.items() if longest is not None and length > longest]
    first = rows[min(rows)]
    if wrong:
        message = f"draft_len_schedule has {', '.join(wrong)}; batches begin at 1, lengths at 0"
        yield found.hit("draft_len_schedule", message, found.without("draft_len_schedule"))
    elif over:
        message = f"draft_len_schedule has {', '.join(over)}, max_draft_len is {longest}"
        yield found.hit("draft_len_schedule", message, _raised(found, rows, max(rows.values())))
    elif longest is not None and first != longest:
        message = f"the least batch of draft_len_schedule drafts {first} tokens, max_draft_len is {longest}"
        ways = [found.put("max_draft_len", first)] if first else []
        yield found.hit("draft_len_schedule", message, *ways, found.put("draft_len_schedule", _begun(rows, longest)))


def _rows(schedule: Any) -> dict[int, int]:
    """Batches and lengths of a schedule; empty where it is none of whole numbers."""
    if not isinstance(schedule, dict):
        return {}
    try:
        rows = {int(batch): length for batch, length in schedule.items()}
    except (TypeError, ValueError):
        return {}
    return rows if all(isinstance(length, int) and not isinstance(length, bool) for length in rows.values()) else {}


def _raised(found: _Section, rows: Mapping[int, int], longest: int) -> Remedy:
    """A longest draft that holds all lengths, where the first one is it."""
    if rows[min(rows)] == longest:
        return found.put("max_draft_len", longest)
    return person(f"max_draft_len: {longest}, and as the first length of draft_len_schedule")


def _begun(rows: Mapping[int, int], longest: int) -> dict[str, int]:
    return {str(batch): length for batch, length in sorted({**rows, min(rows): longest}.items())}


@rule("TF-TRI-266", "error", "a draft tree of speculative_config that LLM() refuses", _SOURCE)
@each_document
def draft_trees(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """A dynamic tree is given by its width, and keeps so many nodes a level at most; a static one lists each node."""
    found = _section(model, path, text, document)
    if found is None:
        return
    dynamic, choices = found.values.get("use_dynamic_tree") is True, found.values.get("eagle_choices")
    width, depth, total = (
        found.number(name) for name in ("dynamic_tree_max_topK", "max_draft_len", "max_total_draft_tokens")
    )
    if dynamic and choices is not None:
        message = "eagle_choices and use_dynamic_tree: a tree is static or dynamic"
        static = without_key(path, found.place, "use_dynamic_tree", found.values)
        yield found.hit("eagle_choices", message, found.without("eagle_choices"), static)
    elif dynamic and (width is None or width < 1):
        message = "use_dynamic_tree without dynamic_tree_max_topK"
        yield found.hit("use_dynamic_tree", message, found.put("dynamic_tree_max_topK", 4))
    elif dynamic and width is not None and depth and total is not None and not depth <= total <= width * depth:
        message = f"max_total_draft_tokens {total} is not from max_draft_len {depth} to topK × length, {width * depth}"
        yield found.hit("max_total_draft_tokens", message, found.put("max_total_draft_tokens", width * depth))
    elif not dynamic and width is not None:
        yield found.hit(
            "dynamic_tree_max_topK",
            "dynamic_tree_max_topK without use_dynamic_tree: newer releases draft a chain, older ones a tree",
            found.put("use_dynamic_tree", True),
            found.without("dynamic_tree_max_topK"),
            severity="warning",
        )
    if isinstance(choices, list) and all(isinstance(path_, list) for path_ in choices):
        nodes = {tuple(node) for node in choices}
        missing = sorted(node for node in nodes if len(node) > 1 and node[:-1] not in nodes)
        if missing:
            message = f"eagle_choices has {list(missing[0])} and not {list(missing[0][:-1])}, which it goes through"
            yield found.hit("eagle_choices", message, person(f"add {list(missing[0][:-1])}"))


@rule(
    "TF-TRI-267",
    "warning",
    "a threshold of speculative_config that nothing measures",
    "https://github.com/NVIDIA/TensorRT-LLM/pull/12905",
)
@each_document
def acceptance_threshold(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """Without a window no acceptance is measured, and drafting is never turned off."""
    found = _section(model, path, text, document)
    if found is None:
        return
    for name, window in (
        ("acceptance_rate_threshold", "acceptance_rate_window_size"),
        ("acceptance_length_threshold", "acceptance_window"),
    ):
        if found.values.get(name) is not None and not found.values.get(window):
            yield found.hit(
                name, f"{name} without {window}: nothing is measured", found.put(window, 100), found.without(name)
            )
