"""The checkpoint's tensors while a graph is written: what is there, what was used, what a linear is stored as.

Policy: a tensor of the checkpoint is either used by the graph or accounted for with a reason; anything
left over means that the graph is not the model, and the build stops with the names (``TF-GRF-006``).
Weights are never read here; scales are (a few bytes each), where equal values let nodes be shared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.formats import formats
from trtforge.formats.base import LinearTensors, Repacking
from trtforge.formats.mixing import MIXED
from trtforge.formats.table import UNQUANTIZED, formats_by_algorithm, one_of, quantizing_formats
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.safetensors_header import TensorInfo, read_headers

#: tensors that carry nothing the graph needs, with the reason that graph.json records
DERIVED = ((re.compile(r"(^|\.)rotary_emb\.inv_freq$"), "computed from config.json"),)


@dataclass(frozen=True)
class QuantConfig:
    """``hf_quant_config.json`` in short; ``algorithm`` and ``kv_cache`` are None when absent."""

    algorithm: str | None = None
    kv_cache: str | None = None


def read_quant_config(directory: Path) -> QuantConfig:
    """What ModelOpt's ``hf_quant_config.json`` says; empty without the file.

    Raises:
        ForgeError: ``TF-GRF-016`` the file cannot be read, ``TF-GRF-007`` its algorithm has no graph.
    """
    section: Mapping[str, Any] = {}
    path = directory / "hf_quant_config.json"
    if path.is_file():
        try:
            section = read_json_file(path)["quantization"] or {}
            section.get("quant_algo")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForgeError(
                "TF-GRF-016",
                f"{path.name} cannot be read: {error!r}",
                asked=str(path),
                why="It must be JSON with a section named quantization, as ModelOpt writes it.",
                remedies=["Export the quantized checkpoint again"],
            ) from error
    algorithm = section.get("quant_algo") or None
    if algorithm is not None and algorithm not in (MIXED, *formats_by_algorithm()):
        raise ForgeError(
            "TF-GRF-007",
            f"The graph cannot express the quantization algorithm {algorithm}",
            asked=str(algorithm),
            numbers={"supported": sorted((MIXED, *formats_by_algorithm()))},
            why=f"The graph writes linears in these formats: {', '.join(quantizing_formats())}.",
            remedies=[f"Quantize with format {one_of(quantizing_formats())}"],
        )
    return QuantConfig(
        algorithm=algorithm,
        kv_cache=section.get("kv_cache_quant_algo") or None,
    )


class CheckpointTensors:
    """Headers of a checkpoint with a ledger of what the graph used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.headers = read_headers(directory)
        self.quant = read_quant_config(directory)
        self._beside: dict[str, dict[str, TensorInfo]] = {}
        for name, info in self.headers.items():
            module, _, leaf = name.rpartition(".")
            self._beside.setdefault(module, {})[leaf] = info
        nested = sorted({info.file for info in self.headers.values() if "/" in info.file})
        if nested:
            raise ForgeError(
                "TF-GRF-018",
                f"{nested[0]} lies in a subfolder of the checkpoint",
                asked=str(directory),
                numbers={"files": nested[:8]},
                why="The graph and the files it points into lie side by side.",
                remedies=["Move the weight files beside config.json and correct the index"],
            )
        self.accounted: dict[str, str] = {}
        self._used: set[str] = set()

    @property
    def weight_only(self) -> bool:
        """Whether linears may be without activation scales: the record says so, or says nothing of each linear."""
        row = formats_by_algorithm().get(self.quant.algorithm or "")
        return self.quant.algorithm in (None, MIXED) or (row is not None and row.weight_only)

    def __contains__(self, name: str) -> bool:
        return name in self.headers

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> TensorInfo:
        """The tensor ``name``, marked as used.

        Raises:
            ForgeError: ``TF-GRF-004`` it is missing, ``TF-GRF-005`` it has another shape.
        """
        info = self.headers.get(name)
        if info is None:
            raise ForgeError(
                "TF-GRF-004",
                f"The checkpoint has no tensor {name}",
                asked=name,
                numbers={"tensors": len(self.headers)},
                why="config.json describes a model with this tensor.",
                remedies=[
                    "Fetch all shards of the checkpoint",
                    "Compare config.json with the weights: one is of another model",
                ],
            )
        if shape is not None and info.shape != shape:
            raise ForgeError(
                "TF-GRF-005",
                f"{name} has shape {list(info.shape)}, config.json asks for {list(shape)}",
                asked=name,
                numbers={"stored": list(info.shape), "expected": list(shape)},
                why="config.json and the weights describe different models.",
                remedies=["Use config.json and weights of one revision"],
            )
        self._used.add(name)
        return info

    def repackings(self) -> dict[str, tuple[TensorInfo, Repacking]]:
        """The weights that are laid out anew for ONNX, by name."""
        found = {}
        for module, parts in self._beside.items():
            stored = parts.get("weight")
            format = next((format for format in formats() if stored is not None and format.holds(stored, parts)), None)
            repacking = format.repacking(stored) if format is not None and stored is not None else None
            if repacking is not None and stored is not None:
                found[f"{module}.weight"] = (stored, repacking)
        return found

    def account(self, name: str, reason: str) -> None:
        """Record why a tensor of the checkpoint is not part of the graph."""
        self.accounted[name] = reason

    def read(self, name: str) -> bytes:
        """The bytes of a small tensor (scales)."""
        info = self.headers[name]
        with (self.directory / info.file).open("rb") as file:
            file.seek(info.offset)
            return file.read(info.nbytes)

    def finish(self, formats: frozenset[str]) -> None:
        """Check that nothing is left over and that the linears have the format that the checkpoint declares.

        Args:
            formats: quantized formats among the linears written.

        Raises:
            ForgeError: ``TF-GRF-006`` with the names of the tensors that the graph did not use;
                ``TF-GRF-017`` declared and stored format differ.
        """
        row = formats_by_algorithm().get(self.quant.algorithm or "")
        declared = None if row is None else row.layout
        if declared is not None and formats != {declared}:
            raise ForgeError(
                "TF-GRF-017",
                f"{self.quant.algorithm} is declared, the linears are {', '.join(sorted(formats)) or 'unquantized'}",
                asked=self.quant.algorithm,
                numbers={"declared": declared, "stored": sorted(formats)},
                why="A build from it would silently serve another precision than the one asked for.",
                remedies=[
                    "Export the quantized checkpoint again",
                    "Remove hf_quant_config.json if it is of another model",
                ],
            )
        for name in self.headers:
            for pattern, reason in DERIVED:
                if name not in self._used and pattern.search(name):
                    self.account(name, reason)
        left = sorted(set(self.headers) - self._used - set(self.accounted))
        if left:
            raise ForgeError(
                "TF-GRF-006",
                f"{len(left)} of {len(self.headers)} tensors have no place in the graph: {', '.join(left[:4])}"
                + (", …" if len(left) > 4 else ""),
                numbers={"unused": left[:64], "count": len(left)},
                why="A graph that leaves weights out computes another model than the checkpoint's.",
                remedies=[
                    "Check num_hidden_layers, attention_bias, mlp_bias and tie_word_embeddings in config.json",
                    "Remove tensors that belong to another model (adapters, draft heads) from the checkpoint",
                ],
            )

    def linear(
        self, name: str, shape: tuple[int, int], *, bias: bool = False, weight: str | None = None
    ) -> LinearTensors:
        """Find out how the linear ``name`` [N, K] is stored, and mark its tensors as used.

        Args:
            weight: name of the weight when it is not ``name.weight`` (tied embeddings).

        Raises:
            ForgeError: ``TF-GRF-007`` a representation the graph cannot express, ``TF-GRF-008`` blocks
                that do not divide K, ``TF-GRF-013`` activation scales are missing; and as :meth:`take`.
        """
        weight = weight or f"{name}.weight"
        stored = self.take(weight)
        bias_name = f"{name}.bias" if bias else None
        if bias_name:
            self.take(bias_name, (shape[0],))
        beside = self._beside.get(name, {})
        for format in formats():
            if format.holds(stored, beside):
                return format.take(self, LinearTensors(name, shape, UNQUANTIZED, weight, bias=bias_name))
        raise self._unsupported(name, stored, beside.get("weight_scale"))

    def _unsupported(self, name: str, stored: TensorInfo, scale: TensorInfo | None) -> ForgeError:
        return ForgeError(
            "TF-GRF-007",
            f"{name} is stored in a way that the graph cannot express",
            asked=name,
            numbers={
                "weight": f"{stored.dtype} {list(stored.shape)}",
                "weight_scale": None if scale is None else f"{scale.dtype} {list(scale.shape)}",
                "beside it": sorted(n for n in self.headers if n.startswith(f"{name}."))[:8],
            },
            why=f"The graph writes linears in bf16, fp16, fp32 and the formats {', '.join(quantizing_formats())}.",
            remedies=[f"Quantize with format {one_of(quantizing_formats())}"],
        )

    def scalar(self, name: str) -> str:
        """Take a tensor that must be one float32 value; its name."""
        info = self.take(name)
        if info.elements != 1 or info.dtype != "F32":
            raise ForgeError(
                "TF-GRF-007",
                f"{name} is {info.dtype} {list(info.shape)}, not one float32 value",
                asked=name,
                numbers={"elements": info.elements},
                why="A scale of the whole tensor is one float32 value; per-channel scales are another format.",
                remedies=[f"Quantize with format {one_of(quantizing_formats())}"],
            )
        return name

    def uncalibrated(self, name: str, what: str) -> ForgeError:
        """The refusal of a linear with weights of the algorithm ``what`` and no activation scale."""
        return ForgeError(
            "TF-GRF-013",
            f"{name} has {what} weights and no activation scale",
            asked=name,
            numbers={"quant_algo": self.quant.algorithm},
            why="The checkpoint was exported without a calibration pass, or for dynamic activation scales.",
            remedies=["Quantize again with calibration text"],
        )

    def divides(self, name: str, columns: int, group: int) -> None:
        """Refuse blocks that do not divide the linear's columns."""
        if group < 1 or columns % group:
            raise ForgeError(
                "TF-GRF-008",
                f"{name} has {columns} inputs, no multiple of the block length {group}",
                asked=name,
                numbers={"inputs": columns, "block": group},
                why="Block scales cover whole blocks along the inputs.",
                remedies=["Quantize with a group_size that divides every linear's inputs"],
            )
