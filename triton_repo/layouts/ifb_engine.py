"""What a repository must know of a TensorRT-LLM engine, from what was asked: it can be written before the engine is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.models.kv_window import PARAMETER
from trtforge.recipe.schema import Recipe


def with_window(recipe: Recipe, engine: Mapping[str, Any]) -> Recipe:
    """The recipe with the model's sliding window as a parameter: an engine of 1.2 does not know it by itself.

    One value where every layer slides, else one a layer.
    """
    value = window_parameter(engine)
    if value is None or PARAMETER in recipe.triton.parameters:
        return recipe
    triton = recipe.triton.model_copy(update={"parameters": {**recipe.triton.parameters, PARAMETER: value}})
    return recipe.model_copy(update={"triton": triton})


def window_parameter(engine: Mapping[str, Any]) -> str | None:
    """The layers' sliding windows as a parameter of the server; None where no request reaches one."""
    window = engine["sliding_window"]
    if not window or window >= engine["limits"]["max_seq_len"]:
        return None
    if full := engine.get("full_attention_layers"):
        longest = engine["limits"]["max_seq_len"]
        return ",".join(str(longest if layer in full else window) for layer in range(engine["num_layers"]))
    return str(window)


def engine_facts(engine: Mapping[str, Any]) -> dict[str, Any]:
    """What a repository must know of an engine, as :func:`triton_repo.trtllm_engine.describe_engine` would say it
    once the engine is compiled; taken from what was asked, so that a repository can be written before."""
    settings, parallel = engine["settings"], engine["parallel"]
    return {
        **engine["limits"],
        "tokens_per_block": settings["tokens_per_block"],
        "vocab_size": engine["vocab_size"],
        "logits_dtype": engine["logits_dtype"],
        "dtype": engine["dtype"],
        "tp": parallel["tp"],
        "pp": parallel["pp"],
        "speculation": settings["speculative_decoding_mode"] or "none",
        "max_draft_len": settings["max_draft_len"] or 0,
        "paged_context_attention": settings["use_paged_context_fmha"],
        "gather_context_logits": settings["gather_context_logits"],
        "gather_generation_logits": settings["gather_generation_logits"],
        "max_lora_rank": settings["max_lora_rank"] or 0,
        "kv_bytes_per_token": engine["kv_bytes_per_token"],
        "version": engine["tensorrt_llm"],
    }
