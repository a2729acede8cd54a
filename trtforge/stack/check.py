"""A row of the stack table against what is loaded here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from trtforge.ground.errors import ForgeError
from trtforge.stack.probe import Loaded, probe
from trtforge.tables import Component, StackRow, StackTable, stack_table
from trtforge.tables.advisories import Known, known_holes
from trtforge.targets import DEFAULT

Verdict = Literal["ok", "differs", "absent", "not asked"]


@dataclass(frozen=True)
class PieceCheck:
    """One piece: what the row says, what loads, what pip says, and the findings of the two comparisons."""

    component: Component
    loaded: Loaded
    verdict: Verdict
    findings: tuple[tuple[str, str], ...]

    @property
    def holes(self) -> list[Known]:
        """Known holes of what loads here; of the release that the row names where nothing does."""
        return known_holes(self.component.name, self.loaded.version or self.loaded.pip or self.component.version)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.component.name,
            "wanted": self.component.version,
            "loaded": self.loaded.version,
            "where": self.loaded.where,
            "pip": self.loaded.pip,
            "verdict": self.verdict,
            "findings": [{"code": code, "message": message} for code, message in self.findings],
            "holes": [known.to_json() for known in self.holes],
        }


@dataclass(frozen=True)
class StackCheck:
    """Every piece of a row."""

    row: StackRow
    pieces: tuple[PieceCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether everything that could be asked is there and fits, and pip says nothing else."""
        return not any(piece.findings for piece in self.pieces)

    def to_json(self) -> dict[str, Any]:
        return {"stack": self.row.name, "ok": self.ok, "pieces": [piece.to_json() for piece in self.pieces]}


def fits(rule: str, version: str) -> bool:
    """Whether a version is what a row says: inside a PEP 440 rule, or the same release as far as both are told."""
    try:
        found = Version(version)
        if rule[:1] in "<>=!~":
            return SpecifierSet(rule).contains(found, prereleases=True)
        wanted = Version(rule)
    except (InvalidVersion, InvalidSpecifier):
        return rule == version
    told = min(len(wanted.release), len(found.release))
    same = wanted.release[:told] == found.release[:told]
    return same and (wanted.pre is None or wanted.pre == found.pre)


def is_container_release(version: str) -> bool:
    """Whether a version of Triton is a month of NVIDIA's containers (``25.12``), not a server's own (``2.51.0``)."""
    return re.fullmatch(r"[2-9][0-9]\.(0[1-9]|1[0-2])", version) is not None


def _server_wanted(wanted: str, found: str) -> str:
    """What is asked, in words where the two count differently: a server itself (2.51.0), a container its month."""
    if is_container_release(wanted) == is_container_release(found):
        return wanted
    return f"the server of NVIDIA's container {wanted}" if is_container_release(wanted) else f"server version {wanted}"


def check_piece(component: Component, loaded: Loaded) -> PieceCheck:
    """``TF-STK-001`` another version loads, ``TF-STK-002`` none does, ``TF-STK-003`` pip and the loader disagree."""
    findings: list[tuple[str, str]] = []
    name, wanted = component.name, component.version
    if component.probe is None:
        verdict: Verdict = "not asked"
        if loaded.pip is not None and not fits(wanted, loaded.pip):
            findings.append(("TF-STK-001", f"{name} {loaded.pip} is installed, the stack needs {wanted}"))
            verdict = "differs"
    elif loaded.version is None:
        verdict = "absent"
        beside = f", although pip lists {loaded.pip}" if loaded.pip else ""
        reason = f" ({loaded.where})" if loaded.where else ""
        findings.append(("TF-STK-002", f"{name} does not load{beside}{reason}; the stack needs {wanted}"))
    else:
        verdict = "ok" if fits(wanted, loaded.version) else "differs"
        if verdict == "differs":
            place = f" from {loaded.where}" if loaded.where else ""
            if component.probe == "tritonserver":
                wanted = _server_wanted(wanted, loaded.version)
            findings.append(("TF-STK-001", f"{name} {loaded.version} loads{place}, the stack needs {wanted}"))
        if loaded.pip is not None and not fits(loaded.pip, loaded.version):
            message = f"pip says {name} {loaded.pip}, but {loaded.version} loads from {loaded.where}"
            findings.append(("TF-STK-003", message))
    return PieceCheck(component, loaded, verdict, tuple(findings))


def check_stack(name: str | None = None, find_server: Callable[[], tuple[str | None, str]] | None = None) -> StackCheck:
    """Ask this machine for every piece of a row.

    Args:
        name: a row; default: the newest of the torch target.
        find_server: see :func:`trtforge.stack.probe.probe`.

    Raises:
        ForgeError: ``TF-STK-010`` there is no row of that name.
    """
    table = stack_table()
    row = table.row(name) if name else table.newest(DEFAULT.name)
    if row is None:
        raise unknown_stack(str(name), table)
    pieces = tuple(check_piece(component, probe(component, find_server)) for component in row.components)
    return StackCheck(row, pieces)


def unknown_stack(name: str, table: StackTable) -> ForgeError:
    """``TF-STK-010``: there is no row of that name."""
    known = [row.name for row in table.rows]
    return ForgeError(
        "TF-STK-010",
        f"There is no stack {name}",
        asked=name,
        numbers={"known": known},
        why="A stack is a row of the stack table.",
        remedies=["trtforge stack list", *(f"trtforge stack check {other}" for other in known)],
    )
