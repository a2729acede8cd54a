"""Applies all rules to a repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# the modules of rules register themselves
from triton_repo.lint import (  # noqa: F401
    rules_backend,
    rules_batching,
    rules_chain,
    rules_completion,
    rules_config,
    rules_engine,
    rules_ensemble,
    rules_files,
    rules_launch,
    rules_llm_arguments,
    rules_llm_speculation,
    rules_llmapi,
    rules_model_files,
    rules_native,
    rules_parameters,
    rules_python,
    rules_python_devices,
    rules_served,
    rules_settings,
    rules_vllm,
)
from triton_repo.lint.repository import read_repository
from triton_repo.lint.rules import RULES, Finding, Hit, Rule
from trtforge.ground.annotations import Annotation

#: these name what the other rules could not read, so they are asked last
_READING = frozenset({"TF-TRI-106", "TF-TRI-107"})
_ORDER = {"error": 0, "warning": 1, "note": 2}


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

    def annotations(self) -> list[Annotation]:
        """The findings for the SARIF and GitHub writers."""
        return [
            Annotation(
                code=finding.code,
                severity=finding.severity,
                message=(f"{finding.model}: " if finding.model else "") + finding.message,
                file=finding.path,
                line=finding.line,
                column=finding.column,
                help=finding.remedy,
                source=finding.source,
                title=finding.title,
                why=finding.why,
            )
            for finding in self.findings
        ]


def all_rules() -> list[Rule]:
    """Every rule, by code."""
    return sorted(RULES, key=lambda rule: rule.code)


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
    found_near = rules_launch.launch_files_near(folder) if near and not launch_files else []
    repository.launch_files = tuple(launch_files) or tuple(found_near)
    rules = sorted(all_rules(), key=lambda rule: rule.code in _READING)
    found = [(rule, hit) for rule in rules for hit in rule.check(repository)]
    findings = [_finding(rule, hit) for rule, hit in found]
    findings.sort(key=lambda f: (_ORDER[f.severity], f.path, f.line or 0, f.code))
    return Report(folder, len(repository.models), tuple(dict.fromkeys(findings)))


def _finding(rule: Rule, hit: Hit) -> Finding:
    return Finding(
        rule.code,
        hit.severity or rule.severity,
        hit.model,
        str(hit.path),
        hit.message,
        hit.remedy,
        hit.line,
        hit.column,
        rule.title,
        rule.why,
        rule.source,
        hit.remedies,
    )
