"""Audit of a quantized checkpoint of any tool: applies the rules of :mod:`quantize.forensics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantize.forensics.checkpoint import Checkpoint, Expected
from quantize.forensics.files import Files
from quantize.forensics.hits import RULES, Finding, Rule
from quantize.forensics.layouts import own_format, weight_parts
from quantize.forensics.rules.records import kv_name
from trtforge.ground.errors import ForgeError
from trtforge.rules.rule import SEVERITIES, Place
from trtforge.rules.waivers import justification, require_known

__all__ = ["AuditReport", "Expected", "audit_checkpoint", "audit_files", "checkpoint_folder"]


@dataclass
class AuditReport:
    """Attributes:
    checkpoint: what the user called it.
    tool: whose form it has; quant_format and kv_cache by this package's names where it has them.
    findings: the errors first.
    table: rows of (kind, tensors, bytes): what the checkpoint holds.
    skipped: codes of the rules that need weights, where there are none.
    read: bytes of scales that were read, of how many; tensors that were sampled or left out.
    """

    quant_format: str | None
    kv_cache: str | None
    checkpoint: str = ""
    tool: str = ""
    algorithm: str | None = None
    findings: list[Finding] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)
    skipped: tuple[str, ...] = ()
    rules: int = 0
    read: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """No error counts."""
        return not any(finding.blocks for finding in self.findings)

    def count(self, severity: str) -> int:
        """How many findings of a severity count."""
        return sum(finding.severity == severity and finding.waived is None for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "tool": self.tool,
            "algorithm": self.algorithm,
            "format": self.quant_format,
            "kv_cache": self.kv_cache,
            "rules": self.rules,
            "skipped": list(self.skipped),
            "read": dict(self.read),
            "findings": [finding.to_json() for finding in self.findings],
            "table": self.table,
        }


def audit_checkpoint(
    directory: Path, expected: Expected | None = None, *, base: Path | None = None, full: bool = True
) -> AuditReport:
    """Audit a checkpoint directory of any tool.

    Args:
        directory: safetensors, ``config.json``, the tool's record, tokenizer.
        expected: what the recipe asked for; without it the checkpoint is only held against its own records.
        base: the unquantized checkpoint that it was made of; without it rope, generation settings and tokenizer are
            held against nothing.
        full: read every scale, whatever they weigh.

    Raises:
        ForgeError: ``TF-AUD-001`` no such folder, ``TF-AUD-002`` no checkpoint in it.
    """
    files = Files(checkpoint_folder(Path(directory)))
    return audit_files(files, expected, base=None if base is None else Files(checkpoint_folder(Path(base))), full=full)


def checkpoint_folder(directory: Path) -> Path:
    """The folder that a user names by itself or by its config.json; ``TF-AUD-001`` for anything else."""
    if directory.is_file() and directory.name == "config.json":
        directory = directory.parent
    if not directory.is_dir():
        raise ForgeError(
            "TF-AUD-001",
            f"{directory} is no folder",
            asked=str(directory),
            remedies=["name the folder that holds config.json", "name a model of the Hub: hf:ORG/NAME[@REVISION]"],
        )
    return directory


def audit_files(
    files: Files,
    expected: Expected | None = None,
    *,
    base: Files | None = None,
    full: bool = False,
    waived: Mapping[str, str] | None = None,
) -> AuditReport:
    """Apply every rule to a checkpoint's files.

    Args:
        waived: code → justification of what shall not count.

    Raises:
        ForgeError: ``TF-AUD-002`` when there is no config.json, ``TF-RCP-014`` a waiver that is none.
    """
    require_known(waived or {}, RULES.rules, kind="audit")
    checkpoint = Checkpoint(files, expected=expected, base=base, full=full)
    if not files.json("config.json"):
        raise ForgeError(
            "TF-AUD-002",
            f"{files.shown} holds no config.json that can be read",
            asked=files.shown,
            numbers={"files": ", ".join(files.names[:8])},
            remedies=["name the folder that holds config.json"],
        )
    rules = [rule for rule in RULES.rules.values() if not (checkpoint.bare and rule.weights)]
    checkpoint.prepare()
    findings = [finding for rule in rules for finding in _apply(rule, checkpoint, waived or {})]
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), finding.code))
    record = checkpoint.record
    algorithm = record.algorithm if record is not None else None
    row = own_format(algorithm)
    mine = record is None or record.tool == "modelopt"
    return AuditReport(
        quant_format=row.name if row is not None and mine else None,
        kv_cache=kv_name(checkpoint),
        checkpoint=files.shown,
        tool=record.tool if record is not None else "",
        algorithm=algorithm,
        findings=findings,
        table=_table(checkpoint),
        skipped=tuple(code for code, rule in RULES.rules.items() if checkpoint.bare and rule.weights),
        rules=len(rules),
        read=vars(checkpoint.read),
    )


def _apply(rule: Rule, checkpoint: Checkpoint, waived: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(
            rule,
            hit,
            waived=justification(waived, rule),
            place=Place(checkpoint.files.place(hit.file) if hit.file else checkpoint.shown),
        )
        for hit in rule.check(checkpoint)
    ]


def _table(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    kinds: dict[str, list[int]] = {}
    stored = set(checkpoint.quantized)
    for module, parts in checkpoint.parts.items():
        for leaf, info in parts.items():
            if leaf in weight_parts():
                kind = f"{'quantized' if module in stored else 'unquantized'} weights ({info.dtype})"
            else:
                kind = leaf
            row = kinds.setdefault(kind, [0, 0])
            row[0] += 1
            row[1] += info.nbytes
    rows = [{"kind": kind, "tensors": count, "bytes": size} for kind, (count, size) in sorted(kinds.items())]
    tensors, size = (sum(row[column] for row in kinds.values()) for column in (0, 1))
    return [*rows, {"kind": "total", "tensors": tensors, "bytes": size}]
