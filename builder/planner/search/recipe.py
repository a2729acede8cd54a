"""The recommended point as a recipe: what the plan decides is written, everything else stays as it was.

Policy: the recipe keeps its own lines (its bases merged in), so it still names the same model, corpora and gates. It
is written only when preflight finds nothing that blocks it; paths that are relative to the recipe keep their meaning.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.planner.hardware import Gpu
from builder.planner.search.choose import describe
from builder.planner.search.points import Point
from builder.planner.types import Serving, Workload, bad_input
from trtforge.recipe.load import LoadedRecipe, file_specs
from trtforge.recipe.sources import is_fetched
from trtforge.targets import DEFAULT, TARGETS


def recommended(
    written: Mapping[str, Any],
    point: Point,
    gpu: Gpu,
    serving: Serving,
    workload: Workload,
    *,
    pool_bytes: int | None = None,
) -> dict[str, Any]:
    """``written`` (a recipe's own keys) with the point's choices.

    The pool is a share of the free memory where the recipe had none or an absolute size that was made for another
    machine: the plan's requests need what this GPU has. ``pool_bytes`` writes an absolute one, where models share the
    GPU. Architectures are the planned GPU's, so that checks judge the plan and not the machine it was written for.
    """
    data = copy.deepcopy(dict(written))
    precision, parallel, spoken = point.precision, point.parallel, point.speculating
    plain = precision.weights == precision.base
    quantize = _section(data, "quantize")
    if data.get("quantize") or not plain or precision.kv != precision.base:
        quantize["format"] = "none" if plain else precision.weights
        quantize["kv_cache"] = "none" if precision.kv == precision.base else _kv_mode(quantize, precision.kv)
        if not precision.mixed:
            quantize.pop("mixed", None)
        if precision.group_size and not plain:
            quantize["group_size"] = precision.group_size
        else:
            quantize.pop("group_size", None)
    build = _section(data, "build")
    build["parallel"] = {"tp": parallel.tp, "pp": parallel.pp, "ep": parallel.ep}
    limits = _section(build, "limits")
    limits["max_batch_size"] = point.batch
    limits["max_num_tokens"] = max(point.max_num_tokens, point.batch * spoken.verified_tokens)
    limits["max_seq_len"] = max(serving.max_seq_len, workload.longest)
    cache = _section(build, "kv_cache")
    for key in ("memory", "free_fraction"):
        cache.pop(key, None)
    if pool_bytes is not None:
        cache["memory"] = f"{pool_bytes // 2**20}MiB"
    else:
        cache["free_fraction"] = serving.free_fraction
    build["architectures"] = [gpu.arch]
    if workload.shared_prefix and TARGETS[build.get("target", DEFAULT.name)].tensorrt_llm:
        # the point's figures count with it; the runtime of the other targets always has a prefix cache
        _section(build, "trtllm")["kv_reuse"] = True
    _speculate(data, point)
    concurrency = [level for level in _bench_levels(data) if level <= point.batch] or [point.batch]
    if "concurrency" in data.get("bench", {}) or max(_bench_levels({})) > point.batch:
        _section(data, "bench")["concurrency"] = concurrency
    return {key: value for key, value in data.items() if value != {}}


def _section(data: dict[str, Any], key: str) -> dict[str, Any]:
    found = data.setdefault(key, {})
    if found is None:
        found = data[key] = {}
    result: dict[str, Any] = found
    return result


def _kv_mode(quantize: Mapping[str, Any], kv: str) -> str:
    """The recipe's own mode where it is one of the format (``fp8_cast`` is FP8 too)."""
    mode = str(quantize.get("kv_cache", ""))
    return mode if mode.startswith(kv) else kv


def _speculate(data: dict[str, Any], point: Point) -> None:
    spoken = point.speculating
    if spoken.method == "none":
        if "speculation" in data:
            data["speculation"] = {"method": "none"}
        return
    section = _section(data, "speculation")
    if section.get("method") != spoken.method:
        section.clear()
    section["method"] = spoken.method
    if not spoken.choices:
        section["max_draft_len"] = spoken.draft_length


def _bench_levels(data: Mapping[str, Any]) -> Sequence[int]:
    levels: Sequence[int] = (data.get("bench") or {}).get("concurrency") or (1, 4, 16)
    return levels


def relocated(data: Mapping[str, Any], loaded: LoadedRecipe, target: Path) -> dict[str, Any]:
    """``data``, made of a loaded recipe, for another folder: a model below the recipe's is named from ``target``'s.

    Raises:
        ForgeError: ``TF-PLN-059`` it reads files beside the recipe, which must stay in its folder.
    """
    moved = copy.deepcopy(dict(data))
    folder = loaded.directory
    if target.resolve() == folder.resolve():
        return moved
    if beside := file_specs(loaded.recipe):
        raise bad_input(
            "TF-PLN-059",
            f"the recipe reads files of its own folder ({', '.join(beside)}); -o names another one",
            asked=f"-o into {target}",
            why="A recipe and what it reads form one unit; out of its folder it would not find them.",
            remedies=[f"-o FILE in {folder}", "copy the files and the recipe together"],
        )
    for section in ("model.source", "speculation.draft"):
        top, key = section.split(".")
        value = (moved.get(top) or {}).get(key)
        if isinstance(value, str) and not is_fetched(value) and not Path(value).is_absolute():
            place = (folder / value).resolve()
            inside = place.is_relative_to(target.resolve())
            moved[top][key] = os.fspath(place.relative_to(target.resolve())) if inside else os.fspath(place)
    return moved


def recipe_text(data: Mapping[str, Any], point: Point, gpu: Gpu, count: int, workload: Workload) -> str:
    """The recipe as YAML, with what it was planned for above it."""
    low, typical, high = point.output
    speed = f"{typical:,.0f} output tokens/s ({min(low, high):,.0f} to {max(low, high):,.0f})"
    head = [
        f"Recommended by `trtforge plan --search` for {count} x {gpu.title}.",
        f"{describe(point)}; max_num_tokens {point.max_num_tokens}.",
        f"Load: {workload.mean_isl:,.0f} prompt and {workload.mean_osl:,.0f} answer tokens a request.",
        f"Planned, not measured: {speed}, {point.itl[1] * 1e3:.1f} ms between tokens",
        f"(99th percentile {point.gap[1] * 1e3:.1f} ms), {point.first[1] * 1e3:.0f} ms to the first.",
    ]
    return headed(data, head)


def headed(data: Mapping[str, Any], head: Sequence[str]) -> str:
    """A recipe as YAML with lines of comment above it."""
    import yaml

    body = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=120)
    return "\n".join([*(f"# {text}" for text in head), body])
