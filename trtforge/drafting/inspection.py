"""``trtforge draft inspect``: what a drafter's folder is, by its headers, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.drafting.consumers import CONSUMERS, missing_for
from trtforge.drafting.description import NUMBERING, Eagle3
from trtforge.drafting.dialects import Dialect
from trtforge.drafting.findings import DraftFinding
from trtforge.drafting.kinds import EAGLE, EAGLE3, MODEL, Kind, kind_of
from trtforge.drafting.pairing import Target, pair_findings, size_findings
from trtforge.drafting.reading import read_eagle3
from trtforge.drafting.rope import read_rope
from trtforge.drafting.statements import statement_findings
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_object
from trtforge.ground.safetensors_header import TensorInfo, read_headers


@dataclass(frozen=True)
class Inspection:
    """A drafter's folder as it was found.

    Attributes:
        head, dialect, names, stored_taps: of an EAGLE-3 drafter (see :class:`~trtforge.drafting.reading.Reading`).
    """

    folder: Path
    kind: Kind
    config: Mapping[str, Any]
    headers: Mapping[str, TensorInfo]
    findings: tuple[DraftFinding, ...]
    head: Eagle3 | None = None
    dialect: Dialect | None = None
    names: Mapping[str, str] | None = None
    stored_taps: tuple[int, ...] | None = None
    target: Target | None = None

    @property
    def errors(self) -> list[DraftFinding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    def tensor(self, canonical: str) -> TensorInfo | None:
        """The header of a tensor under its canonical name."""
        stored = (self.names or {}).get(canonical)
        return self.headers[stored] if stored is not None else None

    def to_json(self) -> dict[str, Any]:
        """The inspection as one JSON-able object."""
        document: dict[str, Any] = {
            "kind": self.kind.name,
            "title": self.kind.title,
            "dialect": self.dialect.name if self.dialect is not None else None,
            "architectures": self.config.get("architectures"),
            "tensors": len(self.headers),
            "bytes": sum(info.nbytes for info in self.headers.values()),
            "types": sorted({info.dtype for info in self.headers.values()}),
        }
        document |= self._head() if self.head is not None and self.dialect is not None else self._plain()
        return {**document, "findings": [finding.to_json() for finding in self.findings]}

    def _plain(self) -> dict[str, Any]:
        nested = self.config.get("transformer_layer_config")
        flat = {**self.config, **(nested if isinstance(nested, Mapping) else {})}
        names = ("hidden_size", "num_hidden_layers", "vocab_size", "draft_vocab_size", "block_size", "mask_token_id")
        return {
            "sizes": {name: flat[name] for name in names if name in flat},
            "rope": read_rope(flat)[0].to_json(),
            "embedding": "own" if any("embed_tokens" in name for name in self.headers) else "target's",
            "head": "own" if any("lm_head" in name for name in self.headers) else "target's",
        }

    def _head(self) -> dict[str, Any]:
        head, dialect, names = self.head, self.dialect, self.names or {}
        assert head is not None and dialect is not None
        layers = self.target.size("num_hidden_layers") if self.target is not None else None
        taps = head.taps if head.taps is not None or layers is None else head.default_taps(layers)
        return {
            "layers": head.layers,
            "sizes": {
                "hidden_size": head.hidden_size,
                "target_hidden_size": head.target_hidden_size,
                "intermediate_size": head.intermediate_size,
                "heads": head.heads,
                "kv_heads": head.kv_heads,
                "head_size": head.head_size,
            },
            "taps": {
                "numbering": NUMBERING,
                "layers": list(taps) if taps is not None else None,
                "count": head.tap_count,
                "written": list(self.stored_taps) if self.stored_taps is not None else None,
                "written_numbering": dialect.numbering,
                "defaults": head.taps is None,
            },
            "vocabulary": {
                "target": head.vocab_size,
                "draft": head.draft_vocab_size,
                "d2t": _described(self.tensor("d2t")),
                "t2d": _described(self.tensor("t2d")),
            },
            "rope": head.rope.to_json(),
            "norms": {
                "eps": head.eps,
                "fc_norm": head.fc_norm,
                "norm_output": head.norm_output,
                "norm_before_fc": head.norm_before_fc,
                "norm_before_residual": head.norm_before_residual,
                "qk_norm": head.qk_norm,
            },
            "biases": {"attention": head.attention_bias, "mlp": head.mlp_bias, "fc": head.fc_bias},
            "embedding": "own" if head.own_embedding else "target's",
            "head": "own" if head.own_head else "target's",
            "consumers": {row.name: missing_for(row, head, dialect, names) for row in CONSUMERS},
        }


def inspect_folder(folder: Path, target: Path | None = None) -> Inspection:
    """Read a drafter's folder, and hold it against its target's when that is given.

    Raises:
        ForgeError: ``TF-DRF-001`` nothing here is a drafter; as
            :func:`~trtforge.ground.safetensors_header.read_headers`.
    """
    try:
        config = read_json_object(folder / "config.json")
    except (OSError, ValueError) as error:
        raise _no_drafter(folder, f"config.json cannot be read: {error}") from None
    headers = read_headers(folder)
    return inspect_headers(folder, config, headers, Target.open(target) if target is not None else None)


def inspect_headers(
    folder: Path, config: Mapping[str, Any], headers: Mapping[str, TensorInfo], target: Target | None = None
) -> Inspection:
    """As :func:`inspect_folder`, of what was read already."""
    kind = kind_of(config, headers)
    if kind is None:
        raise _no_drafter(folder, "neither config.json nor a tensor's name is one of a drafter that is known")
    if kind is not EAGLE3:
        findings: list[DraftFinding] = []
        if target is not None:
            width = config.get("hidden_size") if kind is EAGLE else None
            sizes = {"hidden_size": width, "vocab_size": config.get("vocab_size") if kind in (EAGLE, MODEL) else None}
            findings = size_findings(folder, sizes, headers, target)
        return Inspection(folder, kind, config, headers, tuple(findings), target=target)
    reading = read_eagle3(folder, config, headers)
    findings = list(reading.findings)
    if reading.head is not None and target is not None:
        tensors = {name: headers[stored] for name, stored in reading.names.items()}
        findings += statement_findings(folder, config, target.folder, target.config)
        findings += pair_findings(folder, reading.dialect, reading.head, tensors, target, reading.stored_taps)
    return Inspection(
        folder,
        kind,
        config,
        headers,
        tuple(findings),
        reading.head,
        reading.dialect,
        reading.names,
        reading.stored_taps,
        target,
    )


def _described(info: TensorInfo | None) -> str | None:
    return f"{info.dtype} {list(info.shape)}" if info is not None else None


def _no_drafter(folder: Path, why: str) -> ForgeError:
    return ForgeError(
        "TF-DRF-001",
        f"{folder.name} holds no drafter",
        asked=str(folder),
        why=why,
        remedies=["the folder of a drafter: config.json and its safetensors"],
    )
