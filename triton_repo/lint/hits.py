"""Rules on a repository: what they say, and how it gets its file and line."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triton_repo.lint.remedies import Remedies, Remedy, alternatives, said
from triton_repo.lint.repository import Model, Repository
from trtforge.rules import rule as rule_engine
from trtforge.rules.registry import Registry
from trtforge.rules.rule import Breach, Severity, reason

TRITON_CONFIG = (
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html"
)
TRITON_REPOSITORY = (
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_repository.html"
)
TRITON_ENSEMBLE = (
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ensemble_models.html"
)
TRITON_BATCHER = "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html"
TRITON_CORE = "https://github.com/triton-inference-server/core/blob/main/src/model_config_utils.cc"
TRITON_PYTHON = "https://github.com/triton-inference-server/python_backend"
TRTLLM_PARAMETERS = "https://github.com/triton-inference-server/tensorrtllm_backend/blob/v0.19.0/docs/model_config.md"
TRTLLM_LLMAPI = "https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/llmapi.md"
VLLM_BACKEND = "https://github.com/triton-inference-server/vllm_backend"


#: findings of one rule in one model that are listed; a file with more is wrong as a whole
MAX_HITS = 100


@dataclass(frozen=True)
class Hit(Breach):
    """One place where a rule does not hold: in which model, file and line, and what would work."""

    remedies: tuple[Remedy, ...]
    model: str
    path: Path
    line: int | None = None
    column: int | None = None

    @property
    def ways_out(self) -> str:
        """What would work, in words."""
        return said(self.remedies)


Check = Callable[[Repository], Iterable[Hit]]


@dataclass(frozen=True)
class Rule(rule_engine.Rule[Repository, Hit]):
    """A rule on a repository; ``last``: it speaks of what the other rules came upon, and is asked after them."""

    last: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class Finding(rule_engine.Finding[Hit]):
    """One fault of a repository (any of ``remedies`` is enough)."""

    @property
    def model(self) -> str:
        return self.breach.model

    @property
    def path(self) -> str:
        return str(self.breach.path)

    @property
    def line(self) -> int | None:
        return self.breach.line

    @property
    def column(self) -> int | None:
        return self.breach.column

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        return self.breach.remedies

    @property
    def remedy(self) -> str:
        """What would work, in words."""
        return self.breach.ways_out

    @property
    def headline(self) -> str:
        return (f"{self.model}: " if self.model else "") + self.message

    def to_json(self) -> dict[str, Any]:
        """The finding as one JSON-able object."""
        names = ("code", "severity", "model", "path", "message", "remedy", "line", "column", "title", "why", "source")
        return {name: getattr(self, name) for name in names} | {"remedies": [way.to_json() for way in self.remedies]}


RULES: Registry[Rule] = Registry("triton_repo.lint.checks", codes=r"TF-TRI-\d{3}")


def rule(code: str, severity: Severity, title: str, source: str, *, last: bool = False) -> Callable[[Check], Check]:
    """Register a check of the whole repository; its docstring says why a breach cannot work."""

    def register(check: Check) -> Check:
        RULES.declare(Rule(code, severity, title, reason(check), source, check=check, last=last))
        return check

    return register


def each_model(check: Callable[[Model, Repository], Iterable[Hit]]) -> Check:
    """A check of one model with a readable configuration, applied to all of them."""

    def all_models(repository: Repository) -> Iterable[Hit]:
        for model in repository.models.values():
            if model.readable:
                yield from itertools.islice(check(model, repository), MAX_HITS)

    return functools.wraps(check)(all_models)


def hit(model: Model, message: str, remedies: Remedies, *path: str | int, severity: Severity | None = None) -> Hit:
    """A hit at a statement of the model's configuration; remedies may leave their place open, which is this one."""
    line, column = model.config.line(*path) if model.config is not None else (None, None)
    filled = tuple(remedy.at(model.path, path) for remedy in alternatives(remedies))
    return Hit(message, filled, model.name, model.path, line, column, severity=severity)


def hit_node(model: Model, offset: int, message: str, remedies: Remedies) -> Hit:
    """A hit at a character of the model's configuration."""
    assert model.config is not None
    line, column = model.config.text.position(offset)
    return hit_file(model, model.path, message, remedies, line, column=column)


def hit_file(
    model: Model,
    path: Path,
    message: str,
    remedies: Remedies,
    line: int | None = None,
    severity: Severity | None = None,
    column: int | None = None,
) -> Hit:
    """A hit at a file or folder of the model."""
    return Hit(message, alternatives(remedies), model.name, path, line, column, severity=severity)


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message, cut when there are many."""
    known = sorted(names)
    return ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "")
