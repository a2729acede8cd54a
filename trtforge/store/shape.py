"""What ``manifest.json`` and the records of runs must look like before anything in them is believed.

Policy: a manifest may come from anywhere, with a COMPLETE that fits it. Whoever reads one can rely on every field that
the store writes being there and of its kind; names are paths that stay below the directory. Fields that this version
does not know stay in place.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trtforge.ground.versions import WHOLE
from trtforge.tables import Component

#: places of one file's manifest that are named in a refusal
_TOLD = 3


def _name(value: str) -> str:
    parts = value.split("/")
    if value.startswith("/") or any(part in ("", ".", "..") for part in parts) or not is_name(value):
        raise ValueError("is no path below the directory")
    return value


def is_name(value: str) -> bool:
    """Whether a file's name can be written down in a manifest: UTF-8 without NUL."""
    return "\0" not in value and not any(0xD800 <= ord(letter) <= 0xDFFF for letter in value)


def _figure(value: float | str) -> float | str:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("is no JSON number")
    return value


Name = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_name)]
Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
Figure = Annotated[float | int | Literal["inf", "-inf", "nan"], AfterValidator(_figure)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True, defer_build=True)


class _File(_Part):
    path: Name
    size: int = Field(ge=0, lt=2**63)
    sha256: Digest
    measured: bool = False


class _Link(_Part):
    path: Name
    target: str = Field(min_length=1, max_length=4096)


class _Input(_Part):
    stage: str
    key: Digest
    content_hash: Digest
    measured_hash: Digest
    manifest_sha256: Digest


class _Gate(_Part):
    name: str
    passed: bool
    measured: Figure
    limit: Figure
    detail: str
    bound: Figure | None = None
    baseline: Figure | None = None
    candidate: Figure | None = None
    low: Figure | None = None
    high: Figure | None = None


class _Machine(_Part):
    arch: str | None = None
    python: str | None = None
    isa: list[str] = []
    plugin_library_sha256: str | None = None
    gpu_architectures: list[str] = []


class _Stamps(_Part):
    target: str | None = None
    compiled: bool = True
    stack: str | None = None
    serves_with: list[Annotated[Component, Field(strict=False)]] | None = None
    isa: list[str] = []
    gpu_architectures: list[str] = []
    plugin_abi: str | None = None
    host_abi: int | None = None
    ops_version: int | None = None
    triton: str | None = None
    numpy: str | None = None
    python: str | None = None
    tokenizer_sha256: str | None = None


class _Ingredients(_Part):
    code_version: str = ""
    section: dict[str, Any] = {}
    inputs: dict[str, str] = {}
    tools: dict[str, str] = {}
    host: dict[str, Any] = {}


class _Manifest(_Part):
    stage: str = Field(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\z")
    key: Digest
    content_hash: Digest
    measured_hash: Digest
    ingredients: _Ingredients
    inputs: dict[str, _Input]
    tools: dict[str, str]
    summary: dict[str, Any]
    measurements: dict[str, Any]
    gates: list[_Gate]
    gates_passed: bool
    created: str
    seconds: float
    machine: _Machine
    stamps: _Stamps
    files: list[_File]
    links: list[_Link]
    directories: list[Name]


class _StageRecord(_Part):
    key: str
    status: str
    ingredients: _Ingredients


class _RunRecord(_Part):
    version: Annotated[Literal[1], WHOLE]
    name: str
    recipe: str
    updated: str
    status: str
    log: str
    stages: dict[str, _StageRecord]


def record_fault(value: Any) -> str | None:
    """A sentence when ``value`` is no record of a run; ``None`` when it is one."""
    return _fault(_RunRecord, value)


def manifest_fault(manifest: Any) -> str | None:
    """A sentence that names what of a manifest is missing, of another kind or contradicts the rest; else ``None``."""
    if said := _fault(_Manifest, manifest):
        return said
    names = [*(e["path"] for e in manifest["files"]), *(e["path"] for e in manifest["links"]), *manifest["directories"]]
    if len(set(names)) != len(names):
        return "a path is listed twice"
    taken = set(names)
    for name in names:
        above = next((str(p) for p in PurePosixPath(name).parents if str(p) in taken), None)
        if above is not None:
            return f"{above} is listed, and {name} below it"
    if manifest["gates_passed"] != all(gate["passed"] for gate in manifest["gates"]):
        return "gates_passed is not what its gates say"
    return None


def _fault(model: type[BaseModel], value: Any) -> str | None:
    try:
        model.model_validate(value)
    except ValidationError as error:
        said = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors(include_url=False)[:_TOLD]]
        more = error.error_count() - len(said)
        return _plain("; ".join(said) + (f"; and {more} more" if more else ""))
    return None


def _plain(text: str) -> str:
    """Text that any console takes: keys of a foreign file stand in it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
