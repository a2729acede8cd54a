"""The table of ``speculative_config``: which keys of a recipe a release of the LLM API honours, and their names.

What writes the configuration and what refuses a recipe read the same rows, so that neither knows more than the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version
from pydantic import Field, model_validator

from trtforge.ground.rows import Row, read_table
from trtforge.recipe.schema import Speculation

#: draft tokens a step when the recipe does not say
DRAFT_TOKENS = 4
_ASKED = (
    *("choices", "dynamic_tree", "ngram_on_top", "max_concurrency", "draft_len_schedule"),
    *("acceptance_rate_threshold", "acceptance_rate_window_size"),
)
_PATH = Path(__file__).parents[1] / "tables" / "llm_speculation.yaml"
_LINK = r"^https://\S+$"


class _Released(Row):
    since: str | None = None
    until: str | None = None

    def holds(self, version: Version) -> bool:
        """Whether the row is of this release."""
        early = self.since is not None and version < Version(self.since)
        return not early and not (self.until is not None and version >= Version(self.until))


class Names(_Released):
    """What a release calls the methods and the draft's folder, and how it counts the batches of a schedule."""

    types: dict[str, str]
    draft: str
    schedule: Literal["from", "up-to"]
    source: str = Field(pattern=_LINK)


class Key(_Released):
    """A recipe key that a release honours for these methods."""

    key: str
    methods: tuple[str, ...] = Field(min_length=1)
    tree: bool = False
    only: int | None = None


class Lack(Row):
    """Why a recipe key is refused where no release's row has it."""

    key: str
    why: str
    source: str = Field(pattern=_LINK)


class SpeculationTable(Row):
    as_of: str
    names: tuple[Names, ...] = Field(min_length=1)
    keys: tuple[Key, ...]
    lacks: tuple[Lack, ...]

    @model_validator(mode="after")
    def _explained(self) -> SpeculationTable:
        explained = [row.key for row in self.lacks]
        if len(set(explained)) != len(explained) or not {row.key for row in self.keys} <= set(explained):
            raise ValueError("a key of `keys` has no row, or two, in `lacks`")
        return self

    def named(self, version: Version) -> Names:
        """The names of a release."""
        return next(row for row in self.names if row.holds(version))

    def honours(self, key: str, asked: Speculation, version: Version) -> bool:
        """Whether a release honours one of the keys that :func:`keys_asked` gives."""
        if key.startswith("ngram.") and asked.method != "ngram" and not asked.ngram_on_top:
            return False
        value, tree = keys_asked(asked)[key], asked.dynamic_tree is not None
        return any(
            row.key == key
            and row.holds(version)
            and asked.method in row.methods
            and (row.tree or not tree)
            and row.only in (None, value)
            for row in self.keys
        )

    def unhonoured(self, asked: Speculation, version: Version) -> list[Lack]:
        """The keys that the recipe asks for and a release does not honour, each with the reason."""
        lacks = {row.key: row for row in self.lacks}
        return [lacks[key] for key in keys_asked(asked) if not self.honours(key, asked, version)]


def keys_asked(asked: Speculation) -> dict[str, Any]:
    """The keys of the table that ask for something, with their values; n-gram sizes where a recipe writes them."""
    found = {name: value for name in _ASKED if (value := getattr(asked, name))}
    sizes = sorted(asked.ngram.model_fields_set)
    return found | {f"ngram.{name}": getattr(asked.ngram, name) for name in sizes}


@dataclass(frozen=True)
class Size:
    """A size that ``LLM()`` refuses: the key, what is wrong, and the line that would be taken."""

    key: str
    message: str
    remedy: str
    numbers: dict[str, Any]


def draft_length(asked: Speculation) -> int:
    """``max_draft_len``: the recipe's, the depth of its tree, or :data:`DRAFT_TOKENS`."""
    if asked.dynamic_tree is not None:
        return asked.dynamic_tree.depth
    return asked.max_draft_len or DRAFT_TOKENS


def refused_sizes(asked: Speculation) -> list[Size]:
    """The sizes that the validators of ``DecodingBaseConfig`` and ``EagleDecodingConfig`` refuse, in every release."""
    found = []
    tree, schedule = asked.dynamic_tree, asked.draft_len_schedule
    if tree is not None and tree.total > tree.top_k * tree.depth:
        most = tree.top_k * tree.depth
        found.append(
            Size(
                "dynamic_tree",
                f"{tree.total} nodes, LLM() keeps top_k × depth = {most} at most",
                f"speculation.dynamic_tree.total: {most}",
                {"total": tree.total, "most": most},
            )
        )
    if schedule:
        least, length = min(schedule), draft_length(asked)
        if schedule[least] != length:
            found.append(
                Size(
                    "draft_len_schedule",
                    f"its least batch {least} drafts {schedule[least]} tokens, max_draft_len is {length}, and LLM() "
                    "wants them equal",
                    f"speculation.max_draft_len: {schedule[least]}"
                    if schedule[least]
                    else _line(schedule, least, length),
                    {"least_batch": least, "length": schedule[least], "max_draft_len": length},
                )
            )
    return found


def _line(schedule: Mapping[int, int], batch: int, length: int) -> str:
    rows = ", ".join(f"{key}: {value}" for key, value in sorted({**schedule, batch: length}.items()))
    return f"speculation.draft_len_schedule: {{{rows}}}"


@cache
def speculation_table() -> SpeculationTable:
    """The table (cached)."""
    return read_table(_PATH, SpeculationTable)
