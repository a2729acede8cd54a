"""K3 for target tensorrt-rtx: what its compiler refuses, said before it is asked.

Which formats and dtypes an architecture has is the table's (TF-K3-002, -008, -012); here is what the graph of RTX
engines has no form for, whatever the architecture. Both were held against the compiler of 1.7.1.116 by building a
small model in every combination.
"""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import kv_format
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import to_targets
from trtforge.rules.sources import RTX_SUPPORT
from trtforge.targets.rtx import RTX

#: configuration keys that count experts
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")


def _is_rtx(facts: Facts) -> bool:
    return facts.target.runtime == "rtx"


@rule("TF-K3-020", "a quantized KV cache in an RTX engine", waivable=False)
def rtx_kv_cache(facts: Facts) -> Iterator[Violation]:
    """RTX engines keep keys and values in linear caches of the graph's own 16-bit type, which have no scales."""
    mode = kv_format(facts)
    if _is_rtx(facts) and mode != "none":
        stored = mode != facts.recipe.quantize.kv_cache
        yield Violation(
            f"the KV cache is {mode}, which RTX engines do not have",
            f"quantize.kv_cache: {facts.recipe.quantize.kv_cache}, build.target: {RTX.name}",
            {"kv_cache": mode, "works": ["none"]},
            [
                *(by_hand("give a checkpoint without KV-cache scales") if stored else ["quantize.kv_cache: none"]),
                *to_targets(facts, lambda target: target.cuda_plugins),
            ],
        )


@rule("TF-K3-021", "float32 in an RTX engine for Turing", RTX_SUPPORT)
def rtx_float32_on_turing(facts: Facts) -> Iterator[Violation]:
    """The compiler of TensorRT for RTX multiplies no float32 matrices on sm_75."""
    architectures = facts.recipe.build.architectures
    if _is_rtx(facts) and facts.recipe.model.dtype == "float32" and "sm_75" in architectures:
        others = [name for name in architectures if name != "sm_75"]
        yield Violation(
            "float32 does not compile for sm_75",
            f"model.dtype: float32, build.architectures: {list(architectures)}",
            {"works_on_sm_75": ["float16"]},
            ["model.dtype: float16", *([line("build.architectures", others)] if others else [])],
        )


@rule("TF-K3-022", "an RTX engine for no architecture", waivable=False)
def rtx_architectures(facts: Facts) -> Iterator[Violation]:
    """An RTX engine is compiled on the CPU, for GPUs that need not be there: the recipe has to name them."""
    if _is_rtx(facts) and not facts.recipe.build.architectures:
        dtype, weights = facts.recipe.model.dtype, facts.recipe.quantize.format
        rows = [row for row in facts.architectures.rows if RTX.name in row.targets]
        fitting = [row for row in rows if row.dtypes.get(dtype) == "yes" and row.support(weights, RTX.name) == "yes"]
        hosts = [row.name for row in fitting or rows]
        here = [name for name in facts.target_architectures if name in hosts]
        yield Violation(
            "build.architectures is empty",
            "build.architectures: []",
            {"architectures_of_target": hosts},
            [f"build.architectures: [{name}]" for name in here or hosts],
        )


@rule("TF-K3-023", "a mixture of experts in an RTX engine", RTX_SUPPORT, needs=("files",), waivable=False)
def rtx_experts(facts: Facts) -> Iterator[Violation]:
    """TensorRT for RTX has no kernels for the layers of experts: its builder fails on them."""
    if not _is_rtx(facts) or facts.files is None:
        return
    config = facts.files.config
    found = {key: config[key] for key in EXPERT_KEYS if isinstance(config.get(key), int) and config[key] > 1}
    if found:
        yield Violation(
            f"the model has {next(iter(found.values()))} experts, which RTX engines cannot run",
            f"model.source: {facts.recipe.model.source}, build.target: {RTX.name}",
            dict(found),
            [*to_targets(facts, lambda target: target.llm_api), *by_hand("a dense model")],
        )
