"""K21: LoRA adapters against the engine that serves them: rank, type, modules, base."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.ground.names import nearest
from trtforge.models.shape import linears
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.sources import SourceFiles
from trtforge.rules.sources import thread

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: linear of a Llama-like model → what TensorRT-LLM calls it (https://nvidia.github.io/TensorRT-LLM/advanced/lora.html)
MODULES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_dense",
    "qkv_proj": "attn_qkv",
    "gate_proj": "mlp_h_to_4h",
    "up_proj": "mlp_gate",
    "down_proj": "mlp_4h_to_h",
}
KNOWN_MODULES = (*MODULES.values(), "mlp_gate_up", "moe_h_to_4h", "moe_4h_to_h", "moe_gate", "moe_router", "mlp_router")
_LORA = "https://nvidia.github.io/TensorRT-LLM/advanced/lora.html"


def _asked(facts: Facts, name: str) -> str:
    lora = facts.recipe.build.trtllm.lora
    return f"build.trtllm.lora.adapters.{name}: {lora.adapters.get(name, '') if lora is not None else ''}"


def _rank(files: SourceFiles) -> int | None:
    """The largest rank: of the stored matrices, else of adapter_config.json."""
    stored = [info.shape[0] for name, info in files.tensors.items() if name.endswith("lora_A.weight") and info.shape]
    declared = files.adapter.get("r")
    return max(stored, default=declared if isinstance(declared, int) else None)


def _modules(files: SourceFiles) -> set[str]:
    """The kinds of linears that the adapter changes."""
    stored = {
        name.rsplit(".", 3)[-3] for name in files.tensors if name.endswith("lora_A.weight") and name.count(".") > 2
    }
    listed = files.adapter.get("target_modules")
    return stored or {str(item).rsplit(".", 1)[-1] for item in listed} if isinstance(listed, list) else stored


@rule("TF-K21-002", "an adapter that cannot be looked into", thread("TB#750"), needs=("adapters",))
def adapters_are_there(facts: Facts) -> Iterator[Violation]:
    """A missing adapter, or one whose weights are pickle files, is found out at the first request that names it."""
    for name, place in (facts.adapters or {}).items():
        key = f"build.trtllm.lora.adapters.{name}"
        if place.problem:
            yield Violation(
                place.problem,
                _asked(facts, name),
                {},
                by_hand(*(text.replace("model.source", key) for text in place.remedies or [f"correct {key}"])),
            )
            continue
        files = facts.adapter_files.get(name)
        if files is None:
            continue
        if not files.adapter:
            found = files.kind.title if files.kind is not None else "a whole model" if files.config else ""
            yield Violation(
                f"adapter {name} has no adapter_config.json" + (f": the folder is {found}" if found else ""),
                _asked(facts, name),
                {"folder": str(files.folder)},
                by_hand("name the folder that PEFT's save_pretrained wrote"),
            )
        elif files.weights_error is not None and not files.pointers:
            yield Violation(
                f"adapter {name} cannot be read: {files.weights_error.message}",
                _asked(facts, name),
                {"refusal": files.weights_error.code},
                by_hand("save it with safe_serialization=True (adapter_model.safetensors)"),
            )


@rule(
    "TF-K21-003",
    "an adapter of a larger rank than the engine takes",
    thread("TL#1903"),
    needs=("adapters",),
    waivable=False,
)
def ranks_fit(facts: Facts) -> Iterator[Violation]:
    """max_rank sizes the plugin's workspace; a larger adapter is refused at its first request."""
    lora = facts.recipe.build.trtllm.lora
    ranks = {name: _rank(files) for name, files in facts.adapter_files.items()}
    for name, rank in ranks.items():
        if lora is not None and rank is not None and rank > lora.max_rank:
            largest = max(value for value in ranks.values() if value is not None)
            yield Violation(
                f"adapter {name} has rank {rank}, build.trtllm.lora.max_rank is {lora.max_rank}",
                f"build.trtllm.lora.max_rank: {lora.max_rank}, {_asked(facts, name)}",
                {"rank": rank, "max_rank": lora.max_rank, "ranks": ranks},
                [f"build.trtllm.lora.max_rank: {largest}"],
            )


@rule("TF-K21-004", "an adapter of another type than the engine's", thread("TB#791"), needs=("adapters",))
def types_agree(facts: Facts) -> Iterator[Violation]:
    """The plugin reads the adapter's bytes in its own type: without an error the answers are the base model's, or
    noise."""
    if not facts.target.trtllm_build:
        return
    dtype = facts.recipe.model.dtype
    for name, files in facts.adapter_files.items():
        stored = {_DTYPES.get(info.dtype, info.dtype) for key, info in files.tensors.items() if ".lora_" in key}
        if stored and stored != {dtype}:
            yield Violation(
                f"adapter {name} is stored in {', '.join(sorted(stored))}, the engine is {dtype}",
                f"model.dtype: {dtype}, {_asked(facts, name)}",
                {"adapter": sorted(stored), "engine": dtype},
                [
                    *by_hand(f"convert the adapter to {dtype} (hf_lora_convert.py --storage-type {dtype})"),
                    *(f"model.dtype: {other}" for other in sorted(stored) if other in _DTYPES.values()),
                ],
            )


@rule("TF-K21-005", "modules that the engine does not adapt", _LORA)
def modules_fit(facts: Facts) -> Iterator[Violation]:
    """Weights for a module outside target_modules are dropped or refused: the adapter works by half."""
    lora = facts.recipe.build.trtllm.lora
    if lora is None:
        return
    for module in lora.target_modules:
        if module not in KNOWN_MODULES:
            near = MODULES.get(module) or nearest(module, list(KNOWN_MODULES))
            mended = [near if item == module else item for item in lora.target_modules]
            yield Violation(
                f"build.trtllm.lora.target_modules: {module} is no module of TensorRT-LLM",
                facts.asked("build.trtllm.lora.target_modules"),
                {"known": list(KNOWN_MODULES)},
                [line("build.trtllm.lora.target_modules", mended)]
                if near
                else by_hand(f"one of {', '.join(KNOWN_MODULES)}"),
            )
    for name, files in facts.adapter_files.items():
        kinds = _modules(files)
        wanted = sorted({MODULES[kind] for kind in kinds if kind in MODULES} - set(lora.target_modules))
        foreign = sorted(kind for kind in kinds if kind not in MODULES)
        if wanted:
            yield Violation(
                f"adapter {name} changes {', '.join(wanted)}, which the engine does not adapt",
                f"build.trtllm.lora.target_modules: {list(lora.target_modules)}, {_asked(facts, name)}",
                {"adapter": wanted, "target_modules": list(lora.target_modules)},
                [line("build.trtllm.lora.target_modules", sorted({*lora.target_modules, *wanted}))],
            )
        if foreign:
            yield Violation(
                f"adapter {name} changes {', '.join(foreign)}, which no LoRA plugin adapts",
                _asked(facts, name),
                {"modules": foreign, "known": sorted(MODULES)},
                by_hand("train the adapter without these modules", "merge it into the checkpoint"),
            )


@rule("TF-K21-006", "an adapter of another base model", thread("TL#2022"), needs=("model", "adapters"), waivable=False)
def bases_agree(facts: Facts) -> Iterator[Violation]:
    """Its matrices have the widths of the model that it was trained on."""
    shapes = {linear.kind: linear for linear in linears(facts.require_model())}
    for name, files in facts.adapter_files.items():
        for key, info in files.tensors.items():
            parts = key.rsplit(".", 3)
            if len(parts) < 4 or parts[-3] not in shapes or len(info.shape) != 2:
                continue
            linear, kind = shapes[parts[-3]], parts[-2]
            found = info.shape[1] if kind == "lora_A" else info.shape[0] if kind == "lora_B" else None
            wanted = linear.columns if kind == "lora_A" else linear.rows
            if found is not None and found != wanted:
                base = files.adapter.get("base_model_name_or_path")
                yield Violation(
                    f"adapter {name} was trained on a model whose {parts[-3]} has {found} where this one has {wanted}",
                    _asked(facts, name),
                    {"module": parts[-3], "adapter": found, "model": wanted, "base_model": base},
                    by_hand(
                        f"an adapter of {facts.recipe.model.source}",
                        *([f"the base that it names: {base}"] if base else []),
                    ),
                )
                break


@rule("TF-K21-007", "an adapter with parts that engines drop", thread("TL#2022"), needs=("adapters",))
def adapters_are_plain(facts: Facts) -> Iterator[Violation]:
    """Only the two low-rank matrices reach the engine: trained copies of modules, biases and magnitudes (DoRA) are left
    behind without an error."""
    if facts.recipe.build.trtllm.lora is None:
        return
    for name, files in facts.adapter_files.items():
        config = files.adapter
        parts = [
            *(["modules_to_save"] if config.get("modules_to_save") else []),
            *(["use_dora"] if config.get("use_dora") else []),
            *([f"bias: {config['bias']}"] if config.get("bias") not in (None, "none") else []),
            *(["rank_pattern"] if config.get("rank_pattern") else []),
        ]
        if parts:
            yield Violation(
                f"adapter {name} has {', '.join(parts)}",
                _asked(facts, name),
                {"parts": parts},
                by_hand(
                    "merge the adapter into the checkpoint (PEFT's merge_and_unload)", "train a plain LoRA adapter"
                ),
            )


@rule("TF-K21-008", "adapters built in, and none named", _LORA, severity="warning")
def adapters_are_named(facts: Facts) -> Iterator[Violation]:
    """The plugin costs time in every step and memory for its cache."""
    lora = facts.recipe.build.trtllm.lora
    if lora is not None and not lora.adapters:
        yield Violation(
            "build.trtllm.lora names no adapters",
            "build.trtllm.lora.adapters: {}",
            {"max_rank": lora.max_rank},
            ["build.trtllm.lora: null", *by_hand("name the adapters in build.trtllm.lora.adapters: {name: source}")],
        )
