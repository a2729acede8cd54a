"""Applies all rules to a repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_repo.lint.hits import RULES, Finding, Rule
from triton_repo.lint.launch_files import launch_files_near
from triton_repo.lint.repository import read_repository
from trtforge.rules.rule import SEVERITIES, Place


@dataclass(frozen=True)
class Report:
    """What lint found in a repository."""

    repository: Path
    models: int
    findings: tuple[Finding, ...]

    def count(self, severity: str) -> int:
        """How many findings are of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Whether a server can be expected to load it."""
        return self.count("error") == 0


def all_rules() -> list[Rule]:
    """Every rule, by code."""
    return list(RULES.rules.values())


def lint_repository(
    folder: Path, engine_dir: Path | None = None, *, launch_files: Sequence[Path] = (), near: bool = False
) -> Report:
    """Apply every rule.

    Args:
        folder: the model repository.
        engine_dir: engine that a ``native`` model will serve, where its own reference does not reach it yet.
        launch_files: scripts and manifests that start a server on it.
        near: without those, look at the ones that lie near the repository.

    Raises:
        ForgeError: TF-TRI-100 when there is no such folder or it cannot be listed.
    """
    repository = read_repository(folder, engine_dir)
    repository.named_launch_files = tuple(launch_files)
    repository.launch_files = tuple(launch_files) or (tuple(launch_files_near(folder)) if near else ())
    rules = sorted(all_rules(), key=lambda rule: rule.last)
    findings = [
        Finding(rule, hit, place=Place(str(hit.path), hit.line, hit.column))
        for rule in rules
        for hit in rule.check(repository)
    ]
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.path, f.line or 0, f.code))
    return Report(folder, len(repository.models), tuple(dict.fromkeys(findings)))
