"""Reads the rotation out of a config.json of transformers 4 or 5, all parameters written out.

The trap: where config.json gives no base, the base is the default of the code that trained the drafter (10000), never
the target's. Sources: transformers' modeling_rope_utils.py; SpecForge's and ModelOpt's readers (see ``dialects``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.drafting.description import Rope
from trtforge.drafting.findings import DraftFinding

DEFAULT_THETA = 10000.0
#: float32's largest number
_LARGEST = (2 - 2**-23) * 2.0**127
#: parameters that divide, or whose logarithm is taken
_POSITIVE = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
)
#: the parameters of each type that all readers know, with what transformers takes where one is missing
PARAMETERS: dict[str, dict[str, Any]] = {
    "linear": {"factor": None},
    "dynamic": {"factor": None},
    "llama3": {
        "factor": None,
        "low_freq_factor": None,
        "high_freq_factor": None,
        "original_max_position_embeddings": None,
    },
    "yarn": {
        "factor": None,
        "original_max_position_embeddings": None,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
    },
}


def read_rope(config: Mapping[str, Any]) -> tuple[Rope, list[DraftFinding]]:
    """The rotation that a (flat) config.json describes, and what is wrong with it."""
    sections = [value for key in ("rope_parameters", "rope_scaling") if isinstance(value := config.get(key), Mapping)]
    bases = [value for value in (config.get("rope_theta"), *(row.get("rope_theta") for row in sections)) if value]
    numbers = [number for value in bases if (number := _number(value)) is not None and number > 0]
    if len(numbers) != len(bases):
        shown = [value if _number(value) is not None else str(value)[:40] for value in bases]
        return Rope(DEFAULT_THETA), [
            DraftFinding(
                "TF-DRF-015",
                f"the rotation's base is {shown[0]!r}, no positive number that float32 holds",
                numbers={"bases": shown},
                remedies=["rope_theta as the drafter was trained"],
            )
        ]

    if len(set(numbers)) > 1:
        return Rope(numbers[0]), [
            DraftFinding(
                "TF-DRF-015",
                f"config.json gives two bases of the rotation: {numbers[0]:g} and {numbers[-1]:g}",
                numbers={"bases": numbers},
                why="transformers 4 and SGLang read rope_theta, transformers 5 and SpecForge rope_parameters.",
                remedies=["the base that the drafter was trained with at both places"],
            )
        ]
    theta = numbers[0] if numbers else DEFAULT_THETA
    scaling = next((row for row in sections if _kind(row) not in (None, "default")), None)
    if scaling is None:
        return Rope(theta, {}, bool(numbers)), []
    kind = _kind(scaling)
    known = PARAMETERS.get(str(kind))
    positions = config.get("max_position_embeddings")
    values = {name: scaling.get(name, default) for name, default in (known or {}).items()}
    if "original_max_position_embeddings" in values and values["original_max_position_embeddings"] is None:
        values["original_max_position_embeddings"] = positions
    for name in ("mscale", "mscale_all_dim", "beta_fast", "beta_slow"):
        if name in values and values[name] is None:
            values[name] = (known or {})[name]
    bad = [name for name, value in values.items() if (number := _number(value)) is None or number < 0]
    bad += [name for name, value in values.items() if name in _POSITIVE and value == 0]
    if not bad and kind == "llama3" and not values["low_freq_factor"] < values["high_freq_factor"]:
        bad = ["low_freq_factor below high_freq_factor"]
    others = set(scaling) - set(values) - {"type", "rope_type", "rope_theta", "truncate", "attention_factor"}
    others |= {name for name in ("attention_factor",) if scaling.get(name) is not None}
    others |= {"truncate"} if scaling.get("truncate") is False else set()
    if known is None or bad or others:
        what = f"without a fitting number for {', '.join(bad)}" if bad else f"with {', '.join(sorted(others))}"
        return Rope(theta, dict(scaling), bool(numbers)), [
            DraftFinding(
                "TF-DRF-015",
                f"the rotation's scaling {kind!r} {'is not one that all readers know' if known is None else what}",
                numbers={"rope_scaling": dict(scaling)},
                why="Each reader has its own default for what is missing; with another rotation acceptance falls with "
                "every position.",
                remedies=[f"one of {', '.join(PARAMETERS)} with its parameters, as the drafter was trained"],
            )
        ]
    return Rope(theta, {"rope_type": str(kind), **values}, bool(numbers)), []


def _number(value: Any) -> float | None:
    """The number that ``value`` is, where float32 holds it, which rotations are computed in."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return float(value)


def _kind(section: Mapping[str, Any]) -> str | None:
    kind = section.get("rope_type", section.get("type"))
    return kind if isinstance(kind, str) else None
