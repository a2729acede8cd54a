"""The registry of rules: what a rule is, and how its findings get their file and line."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triton_repo.lint.remedies import Remedies, Remedy, alternatives, said
from triton_repo.lint.repository import Model, Repository

Severity = Literal["error", "warning", "note"]

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


def thread(name: str) -> str:
    """The address of an issue thread: ``TB#61``, ``TS#8592``, ``TL#2820``."""
    repository, number = name.split("#")
    owners = {
        "TB": "triton-inference-server/tensorrtllm_backend",
        "TS": "triton-inference-server/server",
        "TL": "NVIDIA/TensorRT-LLM",
    }
    return f"https://github.com/{owners[repository]}/issues/{number}"


#: findings of one rule in one model that are listed; a file with more is wrong as a whole
MAX_HITS = 100


@dataclass(frozen=True)
class Hit:
    """One place where a rule does not hold."""

    message: str
    remedies: tuple[Remedy, ...]
    model: str
    path: Path
    line: int | None = None
    column: int | None = None
    severity: Severity | None = None

    @property
    def remedy(self) -> str:
        """What would work, in words."""
        return said(self.remedies)


@dataclass(frozen=True)
class Rule:
    """A rule with its public identity.

    ``severity`` is the usual one; a hit may be milder or graver, and says so.
    """

    code: str
    severity: Severity
    title: str
    why: str
    source: str
    module: str
    check: Callable[[Repository], Iterable[Hit]]


@dataclass(frozen=True)
class Finding:
    """One fault: where, what, why, and what would work, in words and as edits (any of ``remedies`` is enough)."""

    code: str
    severity: Severity
    model: str
    path: str
    message: str
    remedy: str
    line: int | None = None
    column: int | None = None
    title: str = ""
    why: str = ""
    source: str = ""
    remedies: tuple[Remedy, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as one JSON-able object."""
        return {**self.__dict__, "remedies": [remedy.to_json() for remedy in self.remedies]}


RULES: list[Rule] = []


def rule(
    code: str, severity: Severity, title: str, *, why: str, source: str
) -> Callable[[Callable[[Repository], Iterable[Hit]]], Callable[[Repository], Iterable[Hit]]]:
    """Register a check of the whole repository."""

    def register(check: Callable[[Repository], Iterable[Hit]]) -> Callable[[Repository], Iterable[Hit]]:
        if any(known.code == code for known in RULES):
            raise ValueError(f"rule {code} is registered twice")
        module = check.__module__.rsplit(".", 1)[-1]
        RULES.append(Rule(code, severity, title, why, source, module, check))
        return check

    return register


def each_model(
    check: Callable[[Model, Repository], Iterable[Hit]],
) -> Callable[[Repository], Iterable[Hit]]:
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
    return Hit(message, filled, model.name, model.path, line, column, severity)


def hit_file(
    model: Model,
    path: Path,
    message: str,
    remedies: Remedies,
    line: int | None = None,
    severity: Severity | None = None,
) -> Hit:
    """A hit at a file or folder of the model."""
    return Hit(message, alternatives(remedies), model.name, path, line, None, severity)


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message, cut when there are many."""
    known = sorted(names)
    return ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "")
