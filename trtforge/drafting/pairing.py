"""Holds a drafter against its target: widths, vocabularies, tokenizers, taps, sizes, and what the two share.

Of the target only config.json, headers and tokenizer.json are read, and sixteen rows of each embedding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import Dialect
from trtforge.drafting.findings import DraftFinding
from trtforge.drafting.rope import read_rope
from trtforge.drafting.statements import tokenizer_text, tokenizers_differ
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_object
from trtforge.ground.safetensors_header import TensorInfo, read_headers, weight_files

#: embeddings of one vocabulary agree in sign and size; those of a random table have no angle in common
_ROWS, _LEAST_COSINE = 16, 0.2
_OWN = "the drafter that was trained for this very target"
_HEAD_NAMES = ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight")
_EMBEDDING_NAMES = (
    "model.embed_tokens.weight",
    "embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
)


@dataclass(frozen=True)
class Target:
    """A target's folder: its configuration, and its headers where the weights are here."""

    folder: Path
    config: Mapping[str, Any]
    headers: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, folder: Path) -> Target:
        """Read config.json and, where there are weights, their headers.

        Raises:
            ForgeError: ``TF-DRF-001`` no config.json; as :func:`~trtforge.ground.safetensors_header.read_headers`.
        """
        try:
            config = read_json_object(folder / "config.json")
        except (OSError, ValueError) as error:
            raise ForgeError(
                "TF-DRF-001",
                f"{folder.name} holds no config.json that can be read",
                asked=f"--target {folder}",
                why=str(error),
                remedies=["--target DIR of a Hugging Face checkpoint: config.json, tokenizer.json, safetensors"],
            ) from None
        return cls(folder, config, read_headers(folder) if weight_files(folder) else {})

    @cached_property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of config.json."""
        inner = self.config.get("text_config") or self.config.get("llm_config")
        return inner if isinstance(inner, Mapping) else self.config

    def size(self, name: str) -> int | None:
        value = self.text.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def embedding(self) -> TensorInfo | None:
        return next((self.headers[name] for name in _EMBEDDING_NAMES if name in self.headers), None)

    @property
    def head(self) -> TensorInfo | None:
        """The output head; the embedding where it is tied to that."""
        own = next((self.headers[name] for name in _HEAD_NAMES if name in self.headers), None)
        return own or self.embedding


def pair_findings(
    folder: Path,
    dialect: Dialect,
    head: Eagle3,
    headers: Mapping[str, TensorInfo],
    target: Target,
    stored_taps: tuple[int, ...] | None,
) -> list[DraftFinding]:
    """What is wrong between an EAGLE-3 drafter and a target. ``headers`` are under canonical names."""
    found = size_findings(
        folder, {"hidden_size": head.target_hidden_size, "vocab_size": head.vocab_size}, headers, target
    )
    layers = target.size("num_hidden_layers")
    if layers is not None:
        found += _tap_findings(dialect, head, layers, stored_taps)
    theirs, _ = read_rope(target.text)
    if not head.rope.explicit and theirs.theta != head.rope.theta:
        found.append(
            DraftFinding(
                "TF-DRF-014",
                f"config.json gives no base of the rotation, so it is {head.rope.theta:g}; the target's is "
                f"{theirs.theta:g}",
                severity="warning",
                numbers={"drafter": head.rope.theta, "target": theirs.theta},
                why="The default is what the drafter was trained with; taken from the target, acceptance falls with "
                "every position. A conversion writes the base out.",
                remedies=[f"rope_theta: {head.rope.theta:g} in the drafter's config.json"],
            )
        )
    own, shared = headers.get("embed_tokens.weight"), target.embedding
    if own is not None and shared is not None and own.shape == shared.shape:
        found += _embedding_findings(folder, own, target.folder, shared)
    if head.own_head and head.draft_vocab_size == head.vocab_size:
        found.append(
            DraftFinding(
                "TF-DRF-017",
                "the drafter's lm_head has the shape of the target's",
                severity="warning",
                numbers={"shape": [head.draft_vocab_size, head.hidden_size]},
                why="Releases of vLLM put the target's head in its place (vllm#28549); acceptance is then that of "
                "another head.",
                remedies=["a vLLM that keeps it, and a look at the accepted length"],
            )
        )
    return [*found, *_rotation_findings(target)]


def size_findings(
    folder: Path, sizes: Mapping[str, int | None], headers: Mapping[str, TensorInfo], target: Target
) -> list[DraftFinding]:
    """What any drafter shares with its target: ``sizes`` as config.json names them, tokenizer, and its own size."""
    found: list[DraftFinding] = []
    width, wanted = sizes.get("hidden_size"), target.size("hidden_size")
    if width is not None and wanted is not None and width != wanted:
        found.append(
            DraftFinding(
                "TF-DRF-019",
                f"the drafter reads states of width {width}, the target has {wanted}",
                numbers={"drafter": width, "target": wanted},
                why="fc multiplies the target's states; states of another width cannot be read (vllm#18906).",
                remedies=[_OWN],
            )
        )
    vocab, given = sizes.get("vocab_size"), target.size("vocab_size")
    if vocab is not None and given is not None and vocab != given:
        found.append(
            DraftFinding(
                "TF-DRF-021",
                f"the drafter is for a vocabulary of {vocab} tokens, the target has {given}",
                numbers={"drafter": vocab, "target": given},
                why="A drafted id is an id of the target.",
                remedies=[_OWN],
            )
        )
    found += _tokenizer_findings(folder, target.folder)
    mine, theirs = (sum(info.elements for info in rows.values()) for rows in (headers, target.headers))
    if target.headers and mine >= theirs:
        found.append(
            DraftFinding(
                "TF-DRF-023",
                f"the drafter has {mine:,} parameters, its target {theirs:,}",
                numbers={"drafter": mine, "target": theirs},
                why="Several tokens are drafted one after another for a verification; a drafter must cost a fraction.",
                remedies=["a smaller drafter", "the target and the drafter the other way round"],
            )
        )
    return found


def _tap_findings(dialect: Dialect, head: Eagle3, layers: int, stored: tuple[int, ...] | None) -> list[DraftFinding]:
    taps = head.taps if head.taps is not None else head.default_taps(layers)
    if any(not 0 <= tap < layers for tap in taps) or len(set(taps)) != head.tap_count:
        return [
            DraftFinding(
                "TF-DRF-011",
                f"the drafter taps layers {', '.join(map(str, taps))} (0-based outputs); the target has {layers} "
                f"layers, and fc reads {head.tap_count} taps",
                numbers={"taps": list(taps), "layers": layers, "fc_taps": head.tap_count},
                why=f"{dialect.title} numbers taps as: {dialect.numbering}.",
                remedies=[_OWN],
            )
        ]
    defaults = head.default_taps(layers)
    other = tuple(tap + 1 - dialect.shift for tap in defaults)
    if stored is None or stored != other or len(set(defaults)) != 3:
        return []
    return [
        DraftFinding(
            "TF-DRF-012",
            f"the taps {list(stored)} are the usual ones of the other numbering; in that of {dialect.title} they would "
            f"be {[tap + dialect.shift for tap in defaults]}",
            severity="warning",
            numbers={"taps": list(stored), "usual": [tap + dialect.shift for tap in defaults]},
            why="speculators' id j is the output of layer j − 1, everywhere else id k is that of layer k. A head that "
            "was copied from one into the other reads the layer beside, and acceptance falls.",
            remedies=["a look at the publisher's training configuration; correct the ids where they were copied"],
        )
    ]


def _tokenizer_findings(folder: Path, target: Path) -> list[DraftFinding]:
    differ = tokenizers_differ(folder, target)
    if differ is None:
        return []
    hashes = [hashlib.sha256(tokenizer_text(place) or b"").hexdigest()[:16] for place in (folder, target)]
    return [
        DraftFinding(
            "TF-DRF-022",
            f"the drafter's tokenizer is another one: {differ}",
            numbers={"drafter_sha256": hashes[0], "target_sha256": hashes[1]},
            why="The drafter continues the target's token ids; under another tokenizer they are other words.",
            remedies=[_OWN],
        )
    ]


def _embedding_findings(folder: Path, own: TensorInfo, other: Path, shared: TensorInfo) -> list[DraftFinding]:
    import numpy as np

    one, two = _rows(folder, own), _rows(other, shared)
    if one is None or two is None:
        return []
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    cosines = (one * two).sum(axis=1) / np.where(lengths == 0, 1, lengths)
    mean = float(cosines.mean())
    if np.isfinite(mean) and mean >= _LEAST_COSINE:
        return []
    return [
        DraftFinding(
            "TF-DRF-013",
            f"the drafter's embed_tokens has nothing in common with the target's: the mean cosine is {mean:.2f}",
            numbers={"mean_cosine": mean if np.isfinite(mean) else None, "rows": int(cosines.size)},
            why="Exports hold an embedding that was never loaded, as it was initialised (TorchSpec#38); drafting with "
            "it accepts next to nothing.",
            remedies=[
                "--allow-loss embed_tokens: the target's embedding is used",
                "the publisher's export without the embedding",
            ],
        )
    ]


def same_rows(folder: Path, own: TensorInfo, other: Path, shared: TensorInfo) -> bool:
    """Whether the sampled rows of two tables of one shape and type are equal."""
    import numpy as np

    one, two = _rows(folder, own), _rows(other, shared)
    return one is not None and two is not None and bool(np.array_equal(one, two))


def _rows(folder: Path, info: TensorInfo) -> Any:
    """Rows of a float table, evenly spread, as float32 [rows, width]; None for other types."""
    import numpy as np

    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
    if info.dtype not in kinds or len(info.shape) != 2 or not all(info.shape):
        return None
    table = np.memmap(folder / info.file, kinds[info.dtype], "r", info.offset, info.shape)
    # odd numbers of rows: padding and special tokens at both ends are all alike
    rows = np.array(table[np.linspace(0, info.shape[0] - 1, _ROWS + 2, dtype=np.int64)[1:-1]])
    return (rows.astype(np.uint32) << 16).view(np.float32) if info.dtype == "BF16" else rows.astype(np.float32)


def _rotation_findings(target: Target) -> list[DraftFinding]:
    given = target.config.get("quantization_config")
    described = str(given).lower() if isinstance(given, Mapping) else ""
    found = next((name for name in ("quarot", "spinquant", "rotat", "hadamard") if name in described), None)
    if found is None:
        return []
    return [
        DraftFinding(
            "TF-DRF-028",
            f"the target's weights are rotated ({found} in quantization_config)",
            severity="warning",
            numbers={"found": found},
            why="A rotated model's states are rotated; an fc that was trained on the plain ones reads noise (accepted "
            "length 3.09 → 1.07, vllm-ascend#7038).",
            remedies=["a drafter whose fc is rotated with the target", "the target without rotation"],
        )
    ]
