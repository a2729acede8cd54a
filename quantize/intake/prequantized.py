"""Checkpoints that arrive quantized: which formats go on as they are, which are refused by name.

Policy: a checkpoint that ModelOpt exported (``hf_quant_config.json``, or ``quantization_config`` with
``quant_method: modelopt``) is taken as it is when its format is one that the graph builder writes. Of other tools'
(:mod:`quantize.intake.foreign`) those are converted that lose nothing by it. Anything else is refused with its name:
loading it as if it were plain weights drops the scales without an error. All of them are audited when they are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtforge.formats.table import KV_LEAVES, formats_by_algorithm, kv_modes_by, linear_parts
from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class Prequantized:
    """A recognised quantized checkpoint: format rows of its weights and of its KV cache."""

    format: str
    kv_cache: str | None


def is_quantization_tensor(name: str) -> bool:
    """Whether ``name`` is a scale that ModelOpt stores beside a weight or for the KV cache."""
    return name.rpartition(".")[2] in {*linear_parts(), *KV_LEAVES, "output_scale"} and "." in name


def recognize(config: dict[str, Any], quant_config: dict[str, Any] | None) -> Prequantized | None:
    """The format of a quantized checkpoint, ``None`` for plain weights; ``TF-SRC-024`` for any other format.

    Args:
        config: config.json.
        quant_config: hf_quant_config.json when there is one.
    """
    embedded = config.get("quantization_config")
    section: Any = None
    if quant_config is not None:
        section = quant_config.get("quantization", quant_config)
    elif embedded is not None:
        method = embedded.get("quant_method") if isinstance(embedded, dict) else None
        if method != "modelopt":
            raise refused(str(method or "an unnamed method"))
        section = embedded.get("quantization", embedded)
    if section is None:
        return None
    if not isinstance(section, dict):
        raise refused("an unreadable description")
    algorithm = section.get("quant_algo")
    cache = section.get("kv_cache_quant_algo") or scheme_cache(section)
    if algorithm is None and cache is None:
        return None
    if not isinstance(algorithm, str) or algorithm not in formats_by_algorithm():
        raise refused(f"ModelOpt {algorithm}")
    caches = kv_modes_by("algorithm")
    if cache is not None and (not isinstance(cache, str) or cache not in caches):
        raise refused(f"ModelOpt {algorithm} with a {cache} cache")
    return Prequantized(formats_by_algorithm()[algorithm].name, caches[cache].name if cache else None)


def scheme_cache(section: dict[str, Any]) -> str | None:
    """The cache format in ``quantization_config``, where it is a scheme (bits and type) instead of a name."""
    scheme = section.get("kv_cache_scheme")
    if not isinstance(scheme, dict):
        return None
    named = f"{scheme.get('type')}{scheme.get('num_bits')}"
    mode = kv_modes_by("scheme").get(named)
    return named if mode is None else mode.algorithm


def refused(name: str) -> ForgeError:
    """``TF-SRC-024`` for a quantized form of that name."""
    return ForgeError(
        "TF-SRC-024",
        f"the checkpoint is already quantized in a format that is not supported: {name}",
        asked=name,
        numbers={"supported": sorted(f"ModelOpt {key}" for key in formats_by_algorithm())},
        why="Read as plain weights its scales would be dropped, and the model would load and answer nonsense.",
        remedies=[
            "start from the unquantized checkpoint and set quantize.format",
            f"use a ModelOpt export in one of {', '.join(sorted(formats_by_algorithm()))}",
            "use a compressed-tensors, AutoAWQ or GPTQ checkpoint of four-bit integers that are symmetric and in order",
        ],
    )
