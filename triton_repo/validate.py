"""Checks a repository as a unit before a server sees it.

Triton reports static faults only in its log, waits for ever on a version folder without ``model.py``,
and accepts some configurations that cannot work; these rules find them first. Findings carry stable
codes; ``error`` findings make the repository unusable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triton_repo.configs import read_config
from triton_repo.layouts.native import read_engine
from trtforge.errors import ForgeError

LIMITS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len")


@dataclass(frozen=True)
class Finding:
    """One fault: where, what, why, and what would work."""

    code: str
    severity: str  # error | warning
    model: str
    path: str
    message: str
    remedy: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def validate_repository(repository: Path, engine_dir: Path | None = None) -> list[Finding]:
    """Findings of a repository; empty when it can be served.

    Args:
        repository: the model repository.
        engine_dir: engine that a ``native`` model will serve, where its own relative reference does not
            reach it yet (before a bundle is put together).
    """
    models = sorted(p for p in repository.iterdir() if p.is_dir()) if repository.is_dir() else []
    if not models:
        return [Finding("TF-TRI-020", "error", "", str(repository), "the repository holds no model", "emit it again")]
    findings: list[Finding] = []
    for model in models:
        findings += _check_model(model, engine_dir)
    return findings


def require_valid(repository: Path, engine_dir: Path | None = None) -> None:
    """Raise TF-TRI-021 naming every error finding."""
    errors = [f for f in validate_repository(repository, engine_dir) if f.severity == "error"]
    if errors:
        raise ForgeError(
            "TF-TRI-021",
            f"the model repository has {len(errors)} fault{'s' if len(errors) > 1 else ''}",
            asked=str(repository),
            why="; ".join(f"{f.code} {f.path}: {f.message}" for f in errors),
            remedies=sorted({f.remedy for f in errors}),
        )


def _check_model(model: Path, engine_dir: Path | None) -> Iterator[Finding]:
    path = model / "config.pbtxt"

    def error(code: str, message: str, remedy: str, where: Path = path) -> Finding:
        return Finding(code, "error", model.name, str(where), message, remedy)

    if not path.is_file():
        yield error("TF-TRI-022", "config.pbtxt is missing", "emit the repository again")
        return
    try:
        config = read_config(path)
    except ForgeError as fault:
        yield error(fault.code, fault.why or fault.message, "correct the file or emit the repository again")
        return
    if config.name and config.name != model.name:
        yield error(
            "TF-TRI-023",
            f"the configuration is named {config.name!r} and its folder {model.name!r}",
            f"name: {model.name!r}",
        )
    yield from _check_tensors(config, error)
    if config.platform != "ensemble":
        yield from _check_versions(config, model, error)
    for group in config.instance_group:
        if group.count < 1:
            yield error("TF-TRI-026", "an instance group has count 0: the model would have no instance", "count: 1")
    if "engine_dir" in config.parameters:
        yield from _check_engine(config, model, engine_dir, error)


def _check_tensors(config: Any, error: Any) -> Iterator[Finding]:
    for kind, tensors in (("input", config.input), ("output", config.output)):
        if not tensors and config.platform != "ensemble":
            yield error("TF-TRI-024", f"the model has no {kind}", f"add its {kind}s")
        names = [tensor.name for tensor in tensors]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield error("TF-TRI-024", f"{kind} {name!r} is declared twice", f"keep one {kind} {name!r}")
        for tensor in tensors:
            if tensor.data_type == 0:
                yield error("TF-TRI-024", f"{kind} {tensor.name!r} has no data type", "set data_type")
            if any(dim == 0 or dim < -1 for dim in tensor.dims) or not (tensor.dims or tensor.HasField("reshape")):
                yield error("TF-TRI-024", f"{kind} {tensor.name!r} has dims {list(tensor.dims)}", "dims of -1 or ≥ 1")


def _check_versions(config: Any, model: Path, error: Any) -> Iterator[Finding]:
    versions = [p for p in model.iterdir() if p.is_dir() and p.name.isdigit() and int(p.name) > 0]
    if not versions:
        yield error("TF-TRI-025", "no version folder", "a folder 1/ with the model", model)
    if config.backend == "python":
        for version in versions:
            code = version / (config.default_model_filename or "model.py")
            if not code.is_file():
                yield error(
                    "TF-TRI-025", "the version folder has no model.py: Triton would wait for ever", "put it back", code
                )


def _check_engine(config: Any, model: Path, engine_dir: Path | None, error: Any) -> Iterator[Finding]:
    reference = config.parameters["engine_dir"].string_value
    if "${" in reference or not reference:
        yield error("TF-TRI-027", f"engine_dir is {reference!r}: not filled in", "engine_dir: ../../engine")
        return
    folder = engine_dir if engine_dir is not None else (model / reference).resolve()
    try:
        engine = read_engine(folder)
    except ForgeError as fault:
        yield error("TF-TRI-027", f"engine_dir {reference!r}: {fault.why}", "put the engine there")
        return
    for name in LIMITS:
        stated = config.parameters[name].string_value if name in config.parameters else "missing"
        if stated != str(engine["limits"][name]):
            yield error(
                "TF-TRI-028",
                f"{name} is {stated} here and {engine['limits'][name]} in the engine",
                f"{name}: {engine['limits'][name]}",
            )
    if not config.model_transaction_policy.decoupled:
        yield error(
            "TF-TRI-029", "the model streams and is not decoupled", "model_transaction_policy { decoupled: true }"
        )
