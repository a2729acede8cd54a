"""Check an exported checkpoint by its headers and scales alone, without torch and without its weights.

Policy: an export is wrong in silence far more often than loudly, so nothing is taken on trust: every
quantized linear has the tensors of its format with the right types and shapes; scales are finite,
positive and not all one (a missing calibration looks like that; a cast-only cache is exempt by design);
modules are excluded exactly where the recipe and ``hf_quant_config.json`` say so, in both directions;
tied embeddings are stored once; the tokenizer travels along. All findings are collected, none stops the
audit. Reads a few megabytes (scales), whatever the weights weigh.

Codes from 101 on (lower ones are preflight's, before anything is exported): ``TF-K6-…`` excludes and
ties, ``TF-K7-…`` scales and gaps, ``TF-K17-…`` tokenizer; ``TF-QNT-04x`` records that disagree.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantize.plan import LM_HEAD, QuantPlan, is_tied, read_config, read_quantization_record
from trtforge.formats.table import KV_LEAVES, FormatRow, linear_parts, load_formats
from trtforge.ground.e4m3 import decode
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_json_object
from trtforge.ground.safetensors_header import TensorInfo, read_headers

_MAX_LISTED = 8


@dataclass(frozen=True)
class AuditFinding:
    """One fault: a stable code, what is wrong, the tensors or modules concerned, and what would help."""

    code: str
    message: str
    names: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "names": list(self.names),
            "remedies": list(self.remedies),
        }


@dataclass
class AuditReport:
    """Attributes:
    findings: empty when the checkpoint passed.
    table: rows of (kind, tensors, bytes): what the checkpoint holds.
    """

    quant_format: str | None
    kv_cache: str | None
    findings: list[AuditFinding] = field(default_factory=list)
    table: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "format": self.quant_format,
            "kv_cache": self.kv_cache,
            "findings": [finding.to_json() for finding in self.findings],
            "table": self.table,
        }


@dataclass(frozen=True)
class Expected:
    """What a recipe asked for: names from the format table, and the modules by plan (None: not checked)."""

    quant_format: str
    kv_cache: str
    quantized: frozenset[str] | None = None

    @classmethod
    def from_plan(cls, plan: QuantPlan) -> Expected:
        return cls(plan.row.name, plan.kv.name, frozenset(plan.quantized))


class _Checkpoint:
    """Headers by module, and scale values read on demand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = read_config(directory)
        self.headers = read_headers(directory)
        section = read_quantization_record(directory)
        self.has_record = section is not None
        self.section: dict[str, Any] = section or {}
        self.parts: dict[str, dict[str, TensorInfo]] = {}
        for name, info in self.headers.items():
            module, _, leaf = name.rpartition(".")
            self.parts.setdefault(module, {})[leaf] = info

    def values(self, info: TensorInfo) -> np.ndarray:
        """The tensor as float32 (scales only: F32, BF16, F16 or E4M3)."""
        with (self.directory / info.file).open("rb") as file:
            file.seek(info.offset)
            data = file.read(info.nbytes)
        if info.dtype == "F8_E4M3":
            return _E4M3[np.frombuffer(data, np.uint8)]
        if info.dtype == "BF16":
            return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[info.dtype]).astype(np.float32)


#: the value of every E4M3 byte
_E4M3 = decode(np.arange(256, dtype=np.uint8))


def audit_checkpoint(directory: Path, expected: Expected | None = None) -> AuditReport:
    """Audit a checkpoint directory as a quantization stage exports it.

    Args:
        directory: safetensors, ``config.json``, ``hf_quant_config.json``, tokenizer.
        expected: what the recipe asked for; without it the checkpoint is only held against its own records.

    Raises:
        ForgeError: the headers cannot be read (see :mod:`trtforge.ground.safetensors_header`).
    """
    checkpoint = _Checkpoint(Path(directory))
    row = _row_of(checkpoint.section.get("quant_algo"))
    kv = _kv_of(checkpoint)
    report = AuditReport(row.name if row else None, kv)
    report.findings += _check_records(checkpoint, row, kv, expected)
    if row is not None:
        report.findings += _check_linears(checkpoint, row, expected)
        report.findings += _check_scales(checkpoint)
    report.findings += _check_kv(checkpoint, kv)
    report.findings += _check_ties(checkpoint)
    report.findings += _check_tokenizer(checkpoint)
    report.table = _table(checkpoint)
    return report


def _row_of(algorithm: str | None) -> FormatRow | None:
    return next((row for row in load_formats().formats if row.algorithm == algorithm), None)


def _kv_of(checkpoint: _Checkpoint) -> str | None:
    algorithm = checkpoint.section.get("kv_cache_quant_algo")
    if algorithm is None:
        return "none"
    stored = any(leaf in parts for parts in checkpoint.parts.values() for leaf in KV_LEAVES)
    wanted = "calibrated" if stored else "constant"
    modes = [mode for mode in load_formats().kv_modes if mode.algorithm == algorithm]
    return next((mode.name for mode in modes if mode.scales == wanted), modes[0].name if modes else None)


# --- records ------------------------------------------------------------------------------------


def _check_records(
    checkpoint: _Checkpoint, row: FormatRow | None, kv: str | None, expected: Expected | None
) -> Iterator[AuditFinding]:
    section = checkpoint.section
    if row is None:
        yield AuditFinding(
            "TF-QNT-040", f"hf_quant_config.json names the unknown algorithm {section.get('quant_algo')}"
        )
    if kv is None:
        yield AuditFinding("TF-QNT-040", f"unknown KV-cache algorithm {section.get('kv_cache_quant_algo')}")
    embedded = checkpoint.config.get("quantization_config") or {}
    if checkpoint.has_record and embedded.get("quant_algo") != section.get("quant_algo"):
        yield AuditFinding(
            "TF-QNT-041",
            f"config.json says {embedded.get('quant_algo')}, hf_quant_config.json says {section.get('quant_algo')}",
            remedies=("Export the checkpoint again",),
        )
    if expected is None:
        return
    for what, found, asked in (
        ("format", row.name if row else None, expected.quant_format),
        ("KV cache", kv, expected.kv_cache),
    ):
        if found != asked:
            yield AuditFinding("TF-QNT-042", f"the recipe asks for {what} {asked}, the checkpoint holds {found}")


# --- linears ------------------------------------------------------------------------------------


def _is_linear(module: str, parts: Mapping[str, TensorInfo]) -> bool:
    weight = parts.get("weight")
    return weight is not None and len(weight.shape) == 2 and not fnmatch.fnmatchcase(module, "*embed*")


def _quantized_weight(row: FormatRow, parts: Mapping[str, TensorInfo]) -> bool:
    return "weight_scale" in parts or parts["weight"].dtype == row.tensors["weight"].dtype


def _check_linears(checkpoint: _Checkpoint, row: FormatRow, expected: Expected | None) -> Iterator[AuditFinding]:
    if row.weight is None:
        return
    linears = {name: parts for name, parts in checkpoint.parts.items() if _is_linear(name, parts)}
    quantized = {name for name, parts in linears.items() if _quantized_weight(row, parts)}
    if not quantized:
        yield AuditFinding("TF-K7-101", f"no linear is quantized, although the records say {row.name}")
    patterns = tuple(checkpoint.section.get("exclude_modules") or ())
    recorded = {name for name in linears if any(_covers(pattern, name) for pattern in patterns)}
    yield from _listed(
        "TF-K6-101",
        "quantized although hf_quant_config.json excludes them",
        quantized & recorded,
        "Engines would load them as unquantized weights: export again with the same exclude list",
    )
    yield from _listed(
        "TF-K6-102",
        "unquantized although nothing excludes them",
        set(linears) - quantized - recorded,
        "Engines would look for scales that are not there: export again, or exclude them",
    )
    if expected is not None and expected.quantized is not None:
        wanted = expected.quantized
        yield from _listed("TF-K6-103", "quantized against the recipe's exclude list", quantized - wanted)
        yield from _listed("TF-K6-104", "not quantized although the recipe does not exclude them", wanted - quantized)
    group = checkpoint.section.get("group_size") or row.default_group_size
    wrong: dict[str, list[str]] = {}
    for name in sorted(quantized):
        for fault in _faults_of(row, linears[name], group):
            wrong.setdefault(fault, []).append(name)
    for fault, names in wrong.items():
        yield from _listed("TF-K7-102", fault, set(names))


def _covers(pattern: str, module: str) -> bool:
    return fnmatch.fnmatchcase(module, pattern) or module.startswith(f"{pattern}.")


def _faults_of(row: FormatRow, parts: Mapping[str, TensorInfo], group: int | None) -> Iterator[str]:
    """What is wrong with one quantized linear's tensors, as short phrases (the same fault reads the same)."""
    weight = parts["weight"]
    shape = dict(zip(row.tensors["weight"].shape, weight.shape, strict=False))
    rows = shape.get("N") or shape.get("N/2", 0) * 2
    columns = shape.get("K") or shape.get("K/2", 0) * 2
    for leaf, rule in row.tensors.items():
        info = parts.get(leaf)
        if info is None:
            if not rule.optional:
                yield f"{leaf} is missing"
            continue
        if rule.dtype not in ("any", info.dtype):
            yield f"{leaf} is {info.dtype}, {row.name} stores {rule.dtype}"
        wanted = rule.expected_shape(rows, columns, group)
        # a scalar may be stored as one element
        if info.shape != wanted and not (wanted == () and info.shape == (1,)):
            yield f"{leaf} does not have the shape [{', '.join(rule.shape)}] of its weight (group {group})"
    for leaf in sorted(set(parts) - set(row.tensors) - {"bias", *KV_LEAVES}):
        yield f"{leaf} does not belong to {row.name}"


# --- scales -------------------------------------------------------------------------------------


def _check_scales(checkpoint: _Checkpoint) -> Iterator[AuditFinding]:
    scalars: dict[str, list[float]] = {}
    broken: set[str] = set()
    for module, parts in checkpoint.parts.items():
        for leaf, info in parts.items():
            if leaf not in linear_parts():
                continue
            values = checkpoint.values(info)
            if not bool((np.isfinite(values) & (values > 0)).all()):
                broken.add(f"{module}.{leaf}")
            if values.size == 1:
                scalars.setdefault(leaf, []).append(float(values.flat[0]))
    yield from _listed(
        "TF-K7-103", "scales that are not finite and positive", broken, "Check the weights, calibrate again and export"
    )
    for leaf, values_of_all in scalars.items():
        if len(values_of_all) > 1 and all(value == 1.0 for value in values_of_all):
            yield AuditFinding(
                "TF-K7-104",
                f"every {leaf} is exactly 1: calibration did not run",
                remedies=("Quantize again with a calibration corpus",),
            )


def _check_kv(checkpoint: _Checkpoint, kv: str | None) -> Iterator[AuditFinding]:
    scales = {
        f"{module}.{leaf}": parts[leaf]
        for module, parts in checkpoint.parts.items()
        for leaf in KV_LEAVES
        if leaf in parts
    }
    if kv in ("none", None) or not scales:
        if kv == "none":
            yield from _listed("TF-K7-105", "KV scales although no KV format is recorded", set(scales))
        return
    layers = int(checkpoint.config["num_hidden_layers"])
    wanted = {f"model.layers.{layer}.self_attn.{leaf[0]}_proj.{leaf}" for layer in range(layers) for leaf in KV_LEAVES}
    yield from _listed("TF-K7-106", "KV scales are missing", wanted - set(scales), "Calibrate and export again")
    values = {name: float(checkpoint.values(info).flat[0]) for name, info in scales.items()}
    yield from _listed(
        "TF-K7-107",
        "KV scales that are not finite and positive",
        {name for name, value in values.items() if not (np.isfinite(value) and value > 0)},
    )
    if values and all(value == 1.0 for value in values.values()):
        yield AuditFinding(
            "TF-K7-108",
            "every KV scale is exactly 1: the cache was not calibrated",
            remedies=("Calibrate and export again", "quantize.kv_cache: fp8_cast, if scales of 1 are meant"),
        )


# --- ties, tokenizer, counts --------------------------------------------------------------------


def _check_ties(checkpoint: _Checkpoint) -> Iterator[AuditFinding]:
    head = [name for name in checkpoint.headers if name.startswith(f"{LM_HEAD}.")]
    if is_tied(checkpoint.config):
        yield from _listed(
            "TF-K6-105",
            "stored although the head is tied to the embedding",
            set(head),
            "Exclude lm_head and export again",
        )
    elif f"{LM_HEAD}.weight" not in checkpoint.headers:
        yield AuditFinding("TF-K6-106", "lm_head.weight is missing and the embeddings are not tied")
    if not any(fnmatch.fnmatchcase(name, "*embed*.weight") for name in checkpoint.headers):
        yield AuditFinding("TF-K6-107", "the embedding's weight is missing")


def _check_tokenizer(checkpoint: _Checkpoint) -> Iterator[AuditFinding]:
    path = checkpoint.directory / "tokenizer.json"
    try:
        valid = isinstance(read_json_object(path, MAX_TOKENIZER_BYTES).get("model"), dict)
    except (OSError, ValueError):
        valid = False
    if not valid:
        yield AuditFinding(
            "TF-K17-101",
            "tokenizer.json is missing or unreadable",
            (str(path.name),),
            ("Copy the source checkpoint's tokenizer files beside the weights",),
        )


def _listed(code: str, message: str, names: set[str] | frozenset[str], *remedies: str) -> Iterator[AuditFinding]:
    if names:
        ordered = sorted(names)
        more = f" (and {len(ordered) - _MAX_LISTED} more)" if len(ordered) > _MAX_LISTED else ""
        yield AuditFinding(code, f"{len(ordered)}: {message}{more}", tuple(ordered[:_MAX_LISTED]), remedies)


def _table(checkpoint: _Checkpoint) -> list[dict[str, Any]]:
    kinds: dict[str, list[int]] = {}
    for name, info in checkpoint.headers.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight":
            quantized = "weight_scale" in checkpoint.parts[module]
            kind = f"{'quantized' if quantized else 'unquantized'} weights ({info.dtype})"
        else:
            kind = leaf
        row = kinds.setdefault(kind, [0, 0])
        row[0] += 1
        row[1] += info.nbytes
    rows = [{"kind": kind, "tensors": count, "bytes": size} for kind, (count, size) in sorted(kinds.items())]
    tensors, size = (sum(column) for column in zip(*kinds.values(), strict=True))
    return [*rows, {"kind": "total", "tensors": tensors, "bytes": size}]
