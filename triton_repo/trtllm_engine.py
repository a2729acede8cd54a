"""A TensorRT-LLM engine directory in the few plain facts that a model repository needs.

Read from the engine's ``config.json``, as ``trtllm-build`` 1.2 writes it (``pretrained_config``, ``build_config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.formats.table import kv_modes_by
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.models.kv import KvSizes, fullest_stage, kv_bytes_per_token

#: facts that every description has
REQUIRED = (
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "max_input_len",
    "max_beam_width",
    "tokens_per_block",
    "vocab_size",
    "logits_dtype",
    "dtype",
    "tp",
    "pp",
)
#: what ``examples/generate_xgrammar_tokenizer_info.py`` of TensorRT-LLM writes
XGRAMMAR_FILE = "xgrammar_tokenizer_info.json"


def describe_engine(engine_dir: Path) -> dict[str, Any]:
    """The facts of an engine directory.

    Returns:
        The :data:`REQUIRED` keys, and ``speculation`` (TensorRT-LLM's mode, lower case, or ``none``),
        ``max_draft_len``, ``paged_context_attention``, ``gather_context_logits``, ``gather_generation_logits``,
        ``max_lora_rank`` (0: no LoRA), ``kv_bytes_per_token`` (one rank), ``version``,
        ``xgrammar_tokenizer_info`` (file name, None without it).

    Raises:
        ForgeError: TF-TRI-063.
    """
    path = engine_dir / "config.json"
    try:
        document = read_json_file(path)
        model, build = document["pretrained_config"], document["build_config"]
        plugins = build.get("plugin_config") or {}
        mapping = model.get("mapping") or {}
        tp, pp = _count(mapping, "tp_size", 1), _count(mapping, "pp_size", 1)
        description = {
            **{name: _count(build, name) for name in ("max_batch_size", "max_num_tokens", "max_seq_len")},
            "max_input_len": _count(build, "max_input_len"),
            "max_beam_width": _count(build, "max_beam_width", 1),
            "tokens_per_block": _count(plugins, "tokens_per_block", 32),
            "vocab_size": _count(model, "vocab_size"),
            "logits_dtype": str(model.get("logits_dtype", "float32")),
            "dtype": str(model["dtype"]),
            "tp": tp,
            "pp": pp,
            "speculation": _speculation(build.get("speculative_decoding_mode")),
            "max_draft_len": int(build.get("max_draft_len") or 0),
            "paged_context_attention": bool(plugins.get("use_paged_context_fmha", False)),
            "gather_context_logits": bool(build.get("gather_context_logits", False)),
            "gather_generation_logits": bool(build.get("gather_generation_logits", False)),
            "max_lora_rank": _lora_rank(build, plugins),
            "kv_bytes_per_token": _kv_bytes(model, tp, pp),
            "version": str(document.get("version", "")),
            "xgrammar_tokenizer_info": XGRAMMAR_FILE if (engine_dir / XGRAMMAR_FILE).is_file() else None,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise ForgeError(
            "TF-TRI-063",
            "this is no engine of TensorRT-LLM",
            asked=str(path),
            why=f"{type(error).__name__}: {error}",
            remedies=["name the folder that trtllm-build wrote", "build it again: trtforge run RECIPE --force build"],
        ) from None
    return description


def _count(section: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A number of things: whole, 1 or more, and within the 32 bits that TensorRT-LLM keeps it in."""
    value = section[name] if default is None else section.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise ValueError(f"{name} is {str(value)[:40]}, which counts nothing")
    return value


def require_facts(engine: Mapping[str, Any]) -> None:
    """Raise TF-TRI-063 naming every fact that a description lacks."""
    missing = [name for name in REQUIRED if name not in engine]
    if missing:
        raise ForgeError(
            "TF-TRI-063",
            "this is no engine of TensorRT-LLM",
            asked=", ".join(sorted(engine)),
            why=f"its description lacks {', '.join(missing)}",
            remedies=["describe it with triton_repo.trtllm_engine.describe_engine"],
        )


def _speculation(mode: Any) -> str:
    """``draft_tokens_external``, ``medusa``, ``eagle``, ``lookahead_decoding`` … or ``none``.

    The mode is stored by name or as the number of an ``IntFlag`` (``tensorrt_llm/models/modeling_utils.py``).
    """
    numbers = {1: "none", 2: "draft_tokens_external", 4: "medusa", 8: "lookahead_decoding"}
    numbers |= {16: "explicit_draft_tokens", 32: "eagle"}
    if mode is None:
        return "none"
    return numbers.get(mode, str(mode)) if isinstance(mode, int) else str(mode).lower()


def _lora_rank(build: Mapping[str, Any], plugins: Mapping[str, Any]) -> int:
    if not plugins.get("lora_plugin"):
        return 0
    return int((build.get("lora_config") or {}).get("max_lora_rank", 64))


def _kv_bytes(model: Mapping[str, Any], tp: int, pp: int) -> int | None:
    """Keys and values of one token on one rank; None where the configuration does not say enough."""
    heads = model.get("num_key_value_heads") or model.get("num_attention_heads")
    layers = model.get("num_hidden_layers")
    beside = model.get("eagle_net_config") or {}
    if isinstance(layers, int) and beside:  # EAGLE's layers lie in the same pool
        layers += _count(beside, "num_hidden_layers")
    size = model.get("head_size")
    if size is None and model.get("hidden_size") and model.get("num_attention_heads"):
        size = model["hidden_size"] // model["num_attention_heads"]
    if (
        not (isinstance(heads, int) and isinstance(layers, int) and isinstance(size, int))
        or min(heads, layers, size) < 1
    ):
        return None
    algorithm = (model.get("quantization") or {}).get("kv_cache_quant_algo")
    mode = kv_modes_by("algorithm").get(algorithm or "")
    form = mode.pool if mode and mode.pool else "float32" if model["dtype"] == "float32" else "bfloat16"
    return kv_bytes_per_token(KvSizes(layers, heads, size), form, tp=tp, layers=fullest_stage(layers, pp))
