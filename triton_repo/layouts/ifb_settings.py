"""Parameters of ``tensorrt_llm`` from a recipe and an engine, and the refusals where the two do not fit.

The engine decides what can be switched on; a recipe that asks for more is refused here with what would work,
because TensorRT-LLM ignores some of it in silence (guided decoding without its file) and fails at load with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_repo.parameters import load_parameters
from trtforge.ground.errors import ForgeError
from trtforge.models.kv_window import PARAMETER, KvWindows, parse_windows
from trtforge.recipe.schema import Recipe
from trtforge.targets import TARGETS

#: recipe's speculation method → the engine's mode and the decoding mode; drafts from outside have none of their own
_SPECULATION = {
    "draft_target": ("draft_tokens_external", ""),
    "medusa": ("medusa", "medusa"),
    "eagle": ("eagle", "eagle"),
    "lookahead": ("lookahead_decoding", "lookahead"),
}


def parameters(
    recipe: Recipe, engine: Mapping[str, Any], engine_reference: str, draft: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The values that differ from the defaults; ``triton.parameters`` of the recipe win.

    Args:
        draft: the facts of the engine that drafts, for ``draft_target``.

    Raises:
        ForgeError: TF-TRI-064 naming everything that does not fit.
    """
    both = _shared_pool(engine, draft)
    faults = [*_faults(recipe, both), *_draft_faults(recipe, engine, draft)]
    if faults:
        raise ForgeError(
            "TF-TRI-064",
            f"the recipe asks for {len(faults)} thing{'s' if len(faults) > 1 else ''} that the engine cannot do",
            asked="; ".join(asked for asked, _, _ in faults),
            why="; ".join(why for _, why, _ in faults),
            remedies=[remedy for _, _, remedy in faults],
        )
    settings = recipe.build.trtllm
    values = {
        "gpt_model_path": engine_reference,
        "max_beam_width": str(engine["max_beam_width"]),
        "batch_scheduler_policy": settings.scheduler_policy,
        "enable_kv_cache_reuse": _flag(settings.kv_reuse),
        "enable_chunked_context": _flag(settings.chunked_context and engine.get("paged_context_attention", True)),
        "exclude_input_in_output": "true",
        **_kv_cache(recipe, both),
        **_decoding(recipe, engine),
        **_devices(recipe, engine),
    }
    if settings.host_kv_memory is not None:
        values["kv_cache_host_memory_bytes"] = str(int(settings.host_kv_memory))
    if settings.lora is not None:
        values["lora_cache_optimal_adapter_size"] = str(settings.lora.max_rank)
        values["lora_cache_max_adapter_size"] = str(settings.lora.max_rank)
    if settings.guided_decoding != "none":
        values["guided_decoding_backend"] = settings.guided_decoding
        values["xgrammar_tokenizer_info_path"] = f"{engine_reference}/{engine['xgrammar_tokenizer_info']}"
    return {**values, **recipe.triton.parameters}


def draft_parameters(
    recipe: Recipe, engine: Mapping[str, Any], draft: Mapping[str, Any], draft_reference: str
) -> dict[str, str]:
    """Of the model that drafts: one GPU, beside the target, and a KV pool of as many tokens as the target's."""
    settings = recipe.build.trtllm
    return {
        "gpt_model_path": draft_reference,
        "max_beam_width": "1",
        "batch_scheduler_policy": settings.scheduler_policy,
        "enable_kv_cache_reuse": _flag(settings.kv_reuse),
        "enable_chunked_context": _flag(settings.chunked_context and draft.get("paged_context_attention", True)),
        "exclude_input_in_output": "true",
        "decoding_mode": "top_k_top_p",
        **_kv_cache(recipe, _shared_pool(engine, draft)),
        **({PARAMETER: str(draft[PARAMETER])} if draft.get(PARAMETER) else {}),
        **({"gpu_device_ids": "0"} if recipe.triton.launch == "orchestrator" else {}),
    }


def _shared_pool(engine: Mapping[str, Any], draft: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The engine's facts with what a token takes in both: ``build.kv_cache.memory`` is for the two together."""
    each = engine.get("kv_bytes_per_token")
    if draft is None or not each:
        return engine
    own = draft.get("kv_bytes_per_token")
    return {**engine, "kv_bytes_per_token": int(each) + int(own) if own else None}


def _kv_cache(recipe: Recipe, engine: Mapping[str, Any]) -> dict[str, str]:
    cache = recipe.build.kv_cache
    if cache.free_fraction is not None:
        return {"kv_cache_free_gpu_mem_fraction": f"{cache.free_fraction:g}"}
    if cache.memory is None:
        return {}
    block = int(engine["tokens_per_block"])
    blocks = int(cache.memory) // (int(engine["kv_bytes_per_token"]) * block)
    return {"max_tokens_in_paged_kv_cache": str(blocks * block)}


def _decoding(recipe: Recipe, engine: Mapping[str, Any]) -> dict[str, str]:
    wanted = recipe.speculation
    if wanted.method not in _SPECULATION:
        return {"decoding_mode": "beam_search" if engine["max_beam_width"] > 1 else "top_k_top_p"}
    values = {"decoding_mode": mode} if (mode := _SPECULATION[wanted.method][1]) else {}
    if wanted.method == "lookahead":
        sizes = wanted.lookahead
        values["lookahead_window_size"] = str(sizes.window)
        values["lookahead_ngram_size"] = str(sizes.ngram)
        values["lookahead_verification_set_size"] = str(sizes.verification)
    elif wanted.choices is not None and wanted.method in ("medusa", "eagle"):
        values[f"{wanted.method}_choices"] = ", ".join(
            "{" + ", ".join(str(rank) for rank in path) + "}" for path in wanted.choices
        )
    return values


def _devices(recipe: Recipe, engine: Mapping[str, Any]) -> dict[str, str]:
    if recipe.triton.launch != "orchestrator":
        return {}
    return {"gpu_device_ids": ",".join(str(number) for number in range(engine["tp"] * engine["pp"]))}


def _faults(recipe: Recipe, engine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(asked, why, remedy) of everything that the engine cannot do."""
    settings, faults = recipe.build.trtllm, []
    paged = engine.get("paged_context_attention", True)
    if settings.kv_reuse and not paged:
        faults.append(
            (
                "build.trtllm.kv_reuse: true",
                "reused KV blocks are read by paged context attention, and the engine was built without",
                "build.trtllm.paged_context_attention: true, and build again",
            )
        )
    parallel = recipe.build.parallel
    if (parallel.tp, parallel.pp) != (engine["tp"], engine["pp"]):
        faults.append(
            (
                f"build.parallel: tp {parallel.tp}, pp {parallel.pp}",
                f"the engine has tp {engine['tp']}, pp {engine['pp']}",
                f"build.parallel: {{tp: {engine['tp']}, pp: {engine['pp']}}}",
            )
        )
    if recipe.build.kv_cache.memory is not None:
        faults += _memory_faults(recipe, engine)
    faults += _token_faults(recipe, engine)
    faults += _speculation_faults(recipe, engine)
    if settings.lora is not None and "max_lora_rank" in engine and engine["max_lora_rank"] < settings.lora.max_rank:
        faults.append(
            (
                f"build.trtllm.lora.max_rank: {settings.lora.max_rank}",
                f"the engine takes adapters up to rank {engine['max_lora_rank']}",
                "build the engine with the recipe's LoRA section",
            )
        )
    if settings.guided_decoding != "none" and not engine.get("xgrammar_tokenizer_info"):
        faults.append(
            (
                f"build.trtllm.guided_decoding: {settings.guided_decoding}",
                "the C++ backend reads the tokenizer from xgrammar_tokenizer_info.json; without that file guided "
                "decoding is off and nothing says so",
                "put xgrammar_tokenizer_info.json (examples/generate_xgrammar_tokenizer_info.py) into the engine",
            )
        )
    return faults


def _windows(recipe: Recipe, engine: Mapping[str, Any]) -> KvWindows:
    """What the layers' caches keep; windows that repeat over the layers stand for all of them."""
    given = parse_windows(recipe.triton.parameters.get(PARAMETER, "")) or (0,)
    windows = tuple(value if value < engine["max_seq_len"] else 0 for value in given)
    return KvWindows(windows, engine["max_input_len"], bool(engine.get("paged_context_attention")))


def _memory_faults(recipe: Recipe, engine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    memory = int(recipe.build.kv_cache.memory or 0)
    each = engine.get("kv_bytes_per_token")
    asked = f"build.kv_cache.memory: {memory} bytes"
    if not each:
        why = "this version takes the KV cache in tokens, and the engine does not say how many bytes a token takes"
        return [(asked, why, "build.kv_cache: {free_fraction: 90%}")]
    windows = _windows(recipe, engine)
    kept: int = windows.layer_tokens(engine["max_seq_len"], engine["tokens_per_block"], engine["max_num_tokens"])
    need = -(-int(each) * kept // len(windows.windows))
    if memory < need:
        why = f"one request of max_seq_len {engine['max_seq_len']} takes {need} bytes a rank"
        return [(asked, why, f"build.kv_cache.memory: {-(-need // 2**20)}MiB")]
    return []


def _token_faults(recipe: Recipe, engine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """``max_tokens_in_paged_kv_cache`` set by hand: less than one request keeps is less than one request takes."""
    names = ("max_tokens_in_paged_kv_cache", PARAMETER)
    rows = load_parameters("inflight_batcher_llm").of_model("tensorrt_llm")
    given = {name: recipe.triton.parameters.get(name, "") for name in names}
    tokens = given["max_tokens_in_paged_kv_cache"]
    if not tokens or any(rows[name].fault(value) is not None for name, value in given.items()):
        return []  # a value that cannot be read is refused by its kind
    block, beams = int(engine["tokens_per_block"]), int(engine["max_beam_width"])
    widest = _windows(recipe, engine).widest()
    keeps: int = widest.layer_tokens(engine["max_seq_len"], block, engine["max_num_tokens"])
    need = keeps * beams
    if int(tokens) >= need:
        return []
    each = f" for each of {beams} beams" if beams > 1 else ""
    why = f"one request keeps up to {keeps} tokens{each}, in blocks of {block}"
    return [(f"max_tokens_in_paged_kv_cache: {tokens}", why, f'max_tokens_in_paged_kv_cache: "{need}"')]


def _speculation_faults(recipe: Recipe, engine: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    method, built = recipe.speculation.method, engine.get("speculation") or "none"
    asked = f"speculation.method: {method}"
    if method in _SPECULATION and built != _SPECULATION[method][0]:
        return [(asked, f"the engine was built for {built}", "build the engine with the recipe's speculation section")]
    if method in ("ngram", "eagle3"):
        drafts = next(target for target in TARGETS.values() if target.llm_api)
        instead = f"build.target: {drafts.name}, triton.layout: {drafts.layouts[0]}"
        return [(asked, "our models of this layout do not draft", instead)]
    return []


def _draft_faults(
    recipe: Recipe, engine: Mapping[str, Any], draft: Mapping[str, Any] | None
) -> list[tuple[str, str, str]]:
    """What two engines must agree on, and the memory that they share."""
    if recipe.speculation.method != "draft_target":
        return []
    asked, cache = "speculation.method: draft_target", recipe.build.kv_cache
    if draft is None:
        why = "there is no draft engine beside the target's (draft/trtllm)"
        return [(asked, why, "compile it: sh ENGINE/draft/build.sh")]
    faults = []
    if draft["vocab_size"] != engine["vocab_size"]:
        why = f"the draft has {draft['vocab_size']} tokens, the target {engine['vocab_size']}"
        faults.append((asked, why, "a draft model of the target's vocabulary"))
    if (draft["tp"], draft["pp"]) != (1, 1):
        why = f"the draft engine has tp {draft['tp']}, pp {draft['pp']}, and runs on one GPU here"
        faults.append((asked, why, "a draft engine of one rank"))
    if not recipe.build.trtllm.kv_reuse:
        why = "every round would compute the whole text anew: both engines find it again in their KV cache"
        faults.append((asked, why, "build.trtllm.kv_reuse: true"))
    if cache.memory is None and cache.free_fraction is None:
        why = "the engine that is loaded first would take 90 % of the memory, and leave the other none"
        faults.append((asked, why, "build.kv_cache: {memory: 8GiB} for both, or {free_fraction: 0.4}"))
    return faults


def _flag(value: bool) -> str:
    return "true" if value else "false"
