"""``speculative_config`` of TensorRT-LLM's ``LLM()`` from a recipe, with the names and shapes of the stack's release.

Source: https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm_args.py (``DecodingBaseConfig`` and its
subclasses); rows by release are in ``trtforge/tables/llm_speculation.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from trtforge.ground.errors import ForgeError
from trtforge.recipe.llm_speculation import draft_length, refused_sizes, speculation_table
from trtforge.recipe.schema import Recipe


def speculative_config(
    recipe: Recipe, version: Version, *, draft: str | None, taps: Sequence[int] | None
) -> dict[str, Any] | None:
    """The configuration; None where nothing is drafted.

    Args:
        version: TensorRT-LLM's.
        draft: the draft model's folder (``draft_target``, ``eagle3``).
        taps: layers whose outputs an EAGLE-3 drafter reads, 0-based; None leaves them to TensorRT-LLM.

    Raises:
        ForgeError: TF-TRI-065 for what this TensorRT-LLM does not run.
    """
    asked = recipe.speculation
    if asked.method == "none":
        return None
    names = speculation_table().named(version)
    _require(recipe, version, names.types, draft)
    config: dict[str, Any] = {"decoding_type": names.types[asked.method], "max_draft_len": draft_length(asked)}
    if asked.method == "ngram":
        config["max_matching_ngram_size"] = asked.ngram.max_matching_ngram_size
    else:
        config[names.draft] = draft
    if asked.method == "eagle3" and taps is not None:
        config["eagle3_layers_to_capture"] = list(taps)
    if asked.dynamic_tree is not None:
        config["use_dynamic_tree"] = True
        config["dynamic_tree_max_topK"] = asked.dynamic_tree.top_k
        config["max_total_draft_tokens"] = asked.dynamic_tree.total
    if asked.ngram_on_top:
        config["sa_config"] = {"threshold": asked.ngram.min_matching_ngram_size}
    if asked.max_concurrency is not None:
        config["max_concurrency"] = asked.max_concurrency
    if asked.draft_len_schedule is not None:
        up_to = dict(sorted(asked.draft_len_schedule.items()))
        config["draft_len_schedule"] = up_to if names.schedule == "up-to" else _from(up_to)
    if asked.acceptance_rate_threshold is not None:
        config["acceptance_rate_threshold"] = float(asked.acceptance_rate_threshold)
        config["acceptance_rate_window_size"] = asked.acceptance_rate_window_size
    return config


def _from(up_to: Mapping[int, int]) -> dict[int, int]:
    """A schedule whose lengths hold from a batch on, of one whose lengths hold up to one: nothing above the last."""
    batches, lengths = list(up_to), list(up_to.values())
    return {1: lengths[0]} | {batch + 1: length for batch, length in zip(batches, [*lengths[1:], 0], strict=True)}


def _require(recipe: Recipe, version: Version, types: Mapping[str, str], draft: str | None) -> None:
    asked = recipe.speculation
    faults, ways = [], ["speculation.method: none"]
    if asked.method not in types:
        faults.append(f"{asked.method} ran on engines of TensorRT-LLM up to 1.2.1; the PyTorch backend does not")
        ways.insert(0, "speculation.method: eagle3, with speculation.draft")
    else:
        lacks = speculation_table().unhonoured(asked, version)
        faults += [f"speculation.{lack.key}: {lack.why}" for lack in lacks]
        ways = [*(f"remove speculation.{lack.key}" for lack in lacks), *ways]
    if recipe.build.parallel.pp > 1:
        faults.append(f"speculation does not run with pipeline parallelism (pp {recipe.build.parallel.pp})")
        ways.append("pp: 1")
    if asked.method in ("draft_target", "eagle3") and draft is None:
        faults.append(f"{asked.method} needs a draft model")
        ways.append("speculation.draft: the draft's folder")
    for size in refused_sizes(asked):
        faults.append(f"speculation.{size.key}: {size.message}")
        ways.insert(0, size.remedy)
    if faults:
        raise ForgeError(
            "TF-TRI-065",
            "this speculation does not run on TensorRT-LLM's PyTorch backend",
            asked=f"speculation.method: {asked.method}",
            numbers={"tensorrt_llm": str(version)},
            why="; ".join(faults),
            remedies=ways,
        )
