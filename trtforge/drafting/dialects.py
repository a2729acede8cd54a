"""The dialects in which EAGLE-3 drafters are written: one row each, and nothing about a dialect elsewhere.

Sources: https://github.com/sgl-project/SpecForge/blob/main/specforge/modeling/draft/llama3_eagle.py,
https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/models/llama_eagle3.py,
https://github.com/SafeAILab/EAGLE/blob/main/eagle/model/cnets.py,
https://github.com/vllm-project/speculators/blob/main/src/speculators/models/eagle3/core.py and config.py,
https://github.com/NVIDIA/Model-Optimizer/blob/main/modelopt/torch/export/plugins/hf_spec_export.py,
https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/models/modeling_speculative.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtforge.drafting.description import Eagle3


@dataclass(frozen=True)
class Dialect:
    """Attributes:
    name: what ``--to`` calls it.
    title: whose it is.
    architectures: what config.json may say; the first is written.
    shift: what is added to a tap's number (:data:`~trtforge.drafting.description.NUMBERING`) to write it.
    numbering: that number in words.
    expresses: the parts of an :class:`Eagle3` that it has; a part that is in none of its rows it has not.
    needs_head: whether ``lm_head`` must be stored.
    has_t2d: whether ``t2d`` stands beside ``d2t``.
    map_dtype: type of ``d2t`` when it is written.
    nested: whether the layer's sizes lie in ``transformer_layer_config``.
    """

    name: str
    title: str
    architectures: tuple[str, ...]
    shift: int
    numbering: str
    expresses: frozenset[str]
    needs_head: bool
    has_t2d: bool
    map_dtype: str
    nested: bool = False


OUTPUTS = "output of layer k, 0-based"
SPECFORGE = Dialect(
    "specforge",
    "SpecForge, SGLang, SafeAILab",
    ("LlamaForCausalLMEagle3",),
    0,
    OUTPUTS,
    frozenset({"fc_norm", "norm_output", "embed_tokens", "target_hidden_size"}),
    needs_head=True,
    has_t2d=True,
    map_dtype="I64",
)
SPECULATORS = Dialect(
    "speculators",
    "speculators (vLLM)",
    ("Eagle3Speculator", "Eagle3DraftModel"),
    1,
    "id j: output of layer j − 1, which is the input of layer j",
    frozenset(
        {
            *("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual", "qk_norm", "embed_tokens"),
            *("layers", "tap_count", "attention_bias", "mlp_bias"),
        }
    ),
    needs_head=True,
    has_t2d=True,
    map_dtype="I64",
    nested=True,
)
MODELOPT = Dialect(
    "modelopt",
    "ModelOpt (nvidia/*)",
    ("LlamaForCausalLMEagle3",),
    0,
    OUTPUTS,
    frozenset({"layers", "tap_count", "attention_bias", "mlp_bias"}),
    needs_head=False,
    has_t2d=False,
    map_dtype="I64",
)
TENSORRT_LLM = Dialect(
    "tensorrt-llm",
    "TensorRT-LLM's loader",
    ("EAGLE3LlamaForCausalLM", "Eagle3DeepSeekV3ForCausalLM"),
    0,
    OUTPUTS,
    frozenset(
        {
            *("fc_norm", "norm_output", "norm_before_fc", "target_hidden_size", "layers", "tap_count"),
            *("attention_bias", "mlp_bias", "fc_bias"),
        }
    ),
    needs_head=False,
    has_t2d=False,
    map_dtype="I32",
)
DIALECTS = {row.name: row for row in (SPECFORGE, SPECULATORS, MODELOPT, TENSORRT_LLM)}
#: keys of eagle_config that ModelOpt's exporter alone writes
_MODELOPT_KEYS = ("use_input_layernorm_in_first_layer", "use_last_layernorm", "use_mtp_layernorm")
#: parts of a head that cannot be left out without another result, in the words of a refusal
STRUCTURAL = {
    "norm_before_residual": "the residual that is taken after hidden_norm",
    "norm_before_fc": "the norm over all taps before fc (input_norm)",
    "fc_norm": "the norm of each tap (fc_norm)",
    "qk_norm": "the norms of queries and keys",
    "layers": "more than one layer",
    "tap_count": "another number of taps than three",
    "target_hidden_size": "a target of another width than its own",
    "attention_bias": "biases of q, k and v",
    "mlp_bias": "biases of the MLP",
    "fc_bias": "a bias of fc",
}


def names_of(config: Mapping[str, Any]) -> list[str]:
    """The architectures that config.json names."""
    given = config.get("architectures")
    return [str(item) for item in given] if isinstance(given, list) else []


def dialect_of(config: Mapping[str, Any], names: Iterable[str]) -> Dialect:
    """The dialect that an EAGLE-3 folder is written in, by config.json, else by the names of its tensors."""
    architectures = names_of(config)
    if "speculators_model_type" in config or "transformer_layer_config" in config:
        return SPECULATORS
    if any(item in SPECULATORS.architectures for item in architectures):
        return SPECULATORS
    if any(item in TENSORRT_LLM.architectures for item in architectures):
        return TENSORRT_LLM
    eagle = config.get("eagle_config")
    if isinstance(eagle, Mapping) and any(key in eagle for key in _MODELOPT_KEYS):
        return MODELOPT
    plain = [name.removeprefix("model.") for name in names]
    return MODELOPT if any(name.startswith("layers.") for name in plain) else SPECFORGE


def parts_of(head: Eagle3) -> set[str]:
    """The parts of :data:`STRUCTURAL` that a head has."""
    found = {name for name in STRUCTURAL if isinstance(getattr(head, name), bool) and getattr(head, name)}
    if head.layers != 1:
        found.add("layers")
    if head.tap_count != 3:
        found.add("tap_count")
    if head.target_hidden_size != head.hidden_size:
        found.add("target_hidden_size")
    return found


_LAYER = re.compile(r"(?:midlayer|layers)\.(\d+)\.(.+)")


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Canonical name → stored name: ``layers.N.…``, with ``input_layernorm`` before the attention of later layers.

    SpecForge calls the only layer ``midlayer``, TensorRT-LLM the norm of a later layer ``hidden_norm``.
    """
    stored = list(names)
    result: dict[str, str] = {}
    for name in stored:
        plain = name.removeprefix("model.")
        match = _LAYER.fullmatch(plain)
        if match is None and plain.startswith("midlayer."):
            plain = f"layers.0.{plain.removeprefix('midlayer.')}"
        elif match is not None:
            plain = f"layers.{match[1]}.{match[2]}"
            if match[1] != "0" and match[2] == "hidden_norm.weight":
                plain = f"layers.{match[1]}.input_layernorm.weight"
        # two names for one tensor: the second keeps its own and is named as one without a place
        result[name if plain in result else plain] = name
    return result


def written_name(canonical: str, dialect: Dialect, layers: int) -> str:
    """The name that ``dialect`` gives a tensor of a head of so many layers."""
    match = _LAYER.fullmatch(canonical)
    if match is None:
        return canonical
    layer, rest = match[1], match[2]
    if dialect is SPECFORGE or (dialect is TENSORRT_LLM and layers == 1):
        return f"midlayer.{rest}"
    if dialect is TENSORRT_LLM and layer != "0" and rest == "input_layernorm.weight":
        return f"layers.{layer}.hidden_norm.weight"
    return canonical
