"""Arguments of TensorRT-LLM's ``LLM()`` from a recipe, for ``model.yaml`` and for ``trtllm-serve``.

Names: https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm_args.py and
https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html. A quantized checkpoint carries its
format with it (``hf_quant_config.json``), so nothing is said about it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from triton_repo.layouts.llmapi_speculation import speculative_config
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Recipe
from trtforge.tables import stack_table
from trtforge.targets import served_by

_EXTRA_FILE = "extra-llm-api-options.yaml"


def llm_arguments(
    recipe: Recipe,
    model: str,
    *,
    draft: str | None = None,
    taps: Sequence[int] | None = None,
    adapters: Sequence[str] = (),
) -> dict[str, Any]:
    """The keyword arguments of ``LLM()``.

    Args:
        model: the checkpoint's folder.
        draft: the draft model's folder (``draft_target``, ``eagle3``).
        taps: layers whose outputs an EAGLE-3 drafter reads, 0-based; None leaves them to TensorRT-LLM.
        adapters: folders of adapters that are loaded at start.

    Raises:
        ForgeError: TF-TRI-065 for a speculation that this TensorRT-LLM does not run, TF-TRI-066 for
            parallelism that cannot be.
    """
    settings, limits, parallel = recipe.build.trtllm, recipe.build.limits, recipe.build.parallel
    if parallel.tp % parallel.ep:
        raise ForgeError(
            "TF-TRI-066",
            "expert-parallel ranks divide the tensor-parallel ones",
            asked=f"build.parallel: tp {parallel.tp}, ep {parallel.ep}",
            numbers={"tp": parallel.tp, "ep": parallel.ep},
            remedies=[f"ep: {ep}" for ep in range(parallel.tp, 0, -1) if parallel.tp % ep == 0],
        )
    arguments: dict[str, Any] = {
        "model": model,
        "backend": "pytorch",
        "tensor_parallel_size": parallel.tp,
        "pipeline_parallel_size": parallel.pp,
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": limits.max_seq_len,
        "max_beam_width": settings.max_beam_width,
        "enable_chunked_prefill": settings.chunked_context,
        "gather_generation_logits": settings.gather_generation_logits,
        "kv_cache_config": _kv_cache(recipe),
        "scheduler_config": {"capacity_scheduler_policy": settings.scheduler_policy.upper()},
    }
    if parallel.ep > 1:
        arguments["moe_expert_parallel_size"] = parallel.ep
    if limits.max_input_len is not None:
        arguments["max_input_len"] = limits.max_input_len
    if settings.guided_decoding != "none":
        arguments["guided_decoding_backend"] = settings.guided_decoding
    speculation = speculative_config(recipe, llm_version(recipe), draft=draft, taps=taps)
    if speculation is not None:
        arguments["speculative_config"] = speculation
    if settings.lora is not None:
        arguments["lora_config"] = {
            "max_lora_rank": settings.lora.max_rank,
            "lora_target_modules": list(settings.lora.target_modules),
            "lora_dir": list(adapters),
        }
    return arguments


@dataclass(frozen=True)
class ServeOptions:
    """``trtllm-serve`` with the same settings: the command and the file that it names."""

    command: tuple[str, ...]
    file_name: str
    file_text: str


def serve_options(
    recipe: Recipe,
    model: str,
    *,
    draft: str | None = None,
    taps: Sequence[int] | None = None,
    adapters: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
) -> ServeOptions:
    """The command line of ``trtllm-serve`` and the YAML of its further options; arguments as for ``LLM()``."""
    import yaml

    rest = llm_arguments(recipe, model, draft=draft, taps=taps, adapters=adapters)
    options = {
        "--host": host,
        "--port": port,
        "--backend": rest.pop("backend"),
        "--tp_size": rest.pop("tensor_parallel_size"),
        "--pp_size": rest.pop("pipeline_parallel_size"),
        "--ep_size": rest.pop("moe_expert_parallel_size", None),
        "--max_batch_size": rest.pop("max_batch_size"),
        "--max_num_tokens": rest.pop("max_num_tokens"),
        "--max_seq_len": rest.pop("max_seq_len"),
        "--max_beam_width": rest.pop("max_beam_width"),
        "--extra_llm_api_options": _EXTRA_FILE,
    }
    command = ["trtllm-serve", str(rest.pop("model"))]
    for option, value in options.items():
        if value is not None:
            command += [option, str(value)]
    return ServeOptions(tuple(command), _EXTRA_FILE, yaml.safe_dump(rest, sort_keys=True))


def _kv_cache(recipe: Recipe) -> dict[str, Any]:
    cache, settings = recipe.build.kv_cache, recipe.build.trtllm
    config: dict[str, Any] = {
        "enable_block_reuse": settings.kv_reuse,
        "tokens_per_block": cache.block_size,
        "dtype": "auto",
    }
    if cache.memory is not None:
        config["max_gpu_total_bytes"] = int(cache.memory)
    if cache.free_fraction is not None:
        config["free_gpu_memory_fraction"] = float(cache.free_fraction)
    if settings.host_kv_memory is not None:
        config["host_cache_size"] = int(settings.host_kv_memory)
    return config


def llm_version(recipe: Recipe) -> Version:
    """The TensorRT-LLM of the recipe's stack; that of the newest one where the recipe's has none."""
    table = stack_table()
    newest = table.newest(served_by("llmapi")[0])
    rows = [table.row(recipe.stack) if recipe.stack else None, newest]
    found = next((version for row in rows if row is not None and (version := row.version_of("TensorRT-LLM"))), None)
    assert found is not None
    return Version(found)
