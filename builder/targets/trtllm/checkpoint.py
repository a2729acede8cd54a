"""From a quantized Hugging Face checkpoint to TensorRT-LLM's: ``config.json`` and ``rank<N>.safetensors``.

Policy: tensors are written one after the other from memory maps, so memory does not grow with the model. A
rank's file gets its name when it is complete; a conversion that was killed keeps the ranks that are. The
embedding and the output head are split over the vocabulary (rows of zeros fill it up to a multiple of the
ranks); a tied head is written out, since TensorRT shares equal tables itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from builder.targets.trtllm.ranks import Rank, all_ranks, layers_of
from builder.targets.trtllm.source import Checkpoint
from builder.targets.trtllm.tensors import Requantized, Tensor, rank_tensors
from trtforge.formats.base import INPUT_FACTORS
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.models.record import Model
from trtforge.tables.decoders import decoders
from trtforge.targets import names

CONFIG_FILE = "config.json"
LOGITS_DTYPE = "float32"
#: ranks that a suggestion may name
_SIZES = (1, 2, 4, 8, 16, 32)
_LINEARS = {
    "attention.qkv": "self_attn.q_proj",
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
_FUSED = {
    "attention.qkv": "self_attn.qkv_proj",
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_up_proj",
    "mlp.proj": "mlp.down_proj",
}


class Drafting(Protocol):
    """What drafts inside the engine, beside the model: Medusa's heads or EAGLE's drafter."""

    @property
    def excluded(self) -> str:
        """The modules of it that stay unquantized, as a pattern of TensorRT-LLM's."""

    def config(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """What it adds to the model's config.json."""

    def tensors(self, rank: Rank, target: Checkpoint) -> Iterator[Tensor]:
        """Its tensors of a rank."""


def convert_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    tp: int = 1,
    pp: int = 1,
    drafting: Drafting | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write TensorRT-LLM's checkpoint of ``checkpoint`` into ``out``; ranks that are there complete are kept.

    Args:
        drafting: what the checkpoint holds beside the model, to draft with.

    Returns:
        ``ranks``, ``bytes``, and ``requantized``: the linears whose FP8 weights were rounded again under a
        common scale, the number of weights and the largest relative change of a normal value; and the layers whose
        keys and values lose scales of their own.

    Raises:
        ForgeError: ``TF-BLD-030`` … ``TF-BLD-035``: a format, a rope, a tensor, a fusion, a split or an
            exclusion that TensorRT-LLM's checkpoint cannot hold.
    """
    out = Path(out)
    progress = progress or SilentProgress()
    source = Checkpoint.open(checkpoint)
    check_split(source, tp, pp)
    config = trtllm_config(source, tp, pp)
    requantized = Requantized()
    plans = [(rank, rank_tensors(source, rank, requantized)) for rank in all_ranks(tp, pp)]
    if drafting is not None:
        config |= drafting.config(config)
        config["quantization"]["exclude_modules"] += [drafting.excluded]
        plans = [(rank, [*tensors, *drafting.tensors(rank, source)]) for rank, tensors in plans]
    total = sum(tensor.nbytes for _, tensors in plans for tensor in tensors)
    progress.start("converting for TensorRT-LLM", float(total))
    out.mkdir(parents=True, exist_ok=True)
    for rank, tensors in plans:
        _write_rank(out / f"rank{rank.number}.safetensors", tensors, progress)
    partial = out / f"{CONFIG_FILE}.partial"
    partial.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(out / CONFIG_FILE)
    return {
        "ranks": tp * pp,
        "bytes": total,
        "requantized": {
            "linears": len(requantized.linears),
            "weights": requantized.weights,
            "largest_relative_change": requantized.largest,
            "kv_layers": len(requantized.kv_layers),
        },
    }


def _write_rank(path: Path, tensors: list[Tensor], progress: Progress) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    if path.is_file() and path.stat().st_size == len(head) + offset and _begins_with(path, head):
        progress.advance(float(offset))
        return
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(head)
        for tensor in tensors:
            before = file.tell()
            for piece in tensor.pieces():
                file.write(piece.tobytes())
                progress.advance(float(piece.nbytes))
            assert file.tell() - before == tensor.nbytes, tensor.name
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _begins_with(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(head)) == head


def trtllm_config(source: Checkpoint, tp: int, pp: int) -> dict[str, Any]:
    """``config.json`` of the checkpoint, as ``PretrainedConfig.from_dict`` of TensorRT-LLM 1.2 takes it.

    Sources: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/llama/config.py, and what the rows
    of ``trtforge/tables/decoders.yaml`` name for other classes.

    Raises:
        ForgeError: ``TF-BLD-035`` exclusions that differ between the stages of a pipeline; ``TF-BLD-070`` a bias that
            TensorRT-LLM's class has no place for; ``TF-BLD-124`` it has no such class.
    """
    config = source.config
    form = decoders()[config.architecture].trtllm
    source.require_class(form.engine, "TensorRT-LLM's engine builder", names(lambda target: target.from_graph))
    if config.o_bias and not form.o_bias:
        raise ForgeError(
            "TF-BLD-070",
            f"TensorRT-LLM's {config.architecture} has no bias on the output projection of its attention",
            asked="config.json: attention_bias",
            why="The bias would be left out, and every answer would be another one.",
            remedies=[f"build.target: {other}" for other in names(lambda target: target.runs_here)],
        )
    base, scaling = _rope(config.rope)
    return {
        "architecture": config.architecture,
        "dtype": config.dtype,
        "logits_dtype": LOGITS_DTYPE,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_size": config.head_size,
        "hidden_act": "silu",
        "norm_epsilon": config.norm_eps,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": base,
        "rotary_scaling": scaling,
        "attn_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "use_parallel_embedding": True,
        "embedding_sharding_dim": 0,
        **_rotation(config),
        **_factors(config),
        **form.config,
        "mapping": {"world_size": tp * pp, "tp_size": tp, "pp_size": pp},
        "quantization": {
            "quant_algo": source.algorithm,
            "kv_cache_quant_algo": source.kv_algorithm,
            "group_size": source.group or 128,
            "has_zero_point": False,
            "pre_quant_scale": INPUT_FACTORS in source.row.tensors,
            "exclude_modules": _excluded(source, pp),
        },
    }


def _rope(rope: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling; the type under both of its names, since readers differ in which they look for."""
    kind = str(rope["rope_type"])
    if kind == "default":
        return float(rope["rope_theta"]), None
    leave_out = ("rope_theta", "rope_type", "max_position_embeddings")
    rest = {key: value for key, value in rope.items() if key not in leave_out and value is not None}
    return float(rope["rope_theta"]), {**rest, "type": kind, "rope_type": kind}


def _rotation(config: Model) -> dict[str, Any]:
    """Keys of classes that rotate a part of each head, or by LongRoPE, whose lists TensorRT-LLM chooses of itself.

    Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/phi3/config.py
    """
    keys: dict[str, Any] = {}
    if decoders()[config.architecture].partial_rotary:
        keys["rotary_pct"] = (config.rotary_size or config.head_size) / config.head_size
    if config.rope["rope_type"] == "longrope":
        keys |= {
            "position_embedding_type": "long_rope",
            "rotary_scaling": None,
            "original_max_position_embeddings": config.rope["original_max_position_embeddings"],
            "longrope_scaling_short_factors": config.rope["short_factor"],
            "longrope_scaling_long_factors": config.rope["long_factor"],
        }
    return keys


def _factors(config: Model) -> dict[str, Any]:
    """What a class multiplies by; TensorRT-LLM's attention divides by the root of the head size besides.

    Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/llama/config.py
    """
    if decoders()[config.architecture].factors is None:
        return {}
    return {
        "embedding_multiplier": config.factors.embedding,
        "attention_multiplier": config.score_factor * config.head_size**0.5,
        "residual_multiplier": config.factors.residual,
        "output_multiplier_scale": config.factors.logits,
    }


def _excluded(source: Checkpoint, pp: int) -> list[str]:
    """Modules that are not quantized, by TensorRT-LLM's names (a rank counts its layers from 0)."""
    head = [] if source.quantized("lm_head") else ["lm_head"]
    if source.algorithm is None:
        return head
    stages = []
    for stage in range(pp):
        layers = layers_of(source.config.layers, pp, stage)
        stages.append(
            [
                f"transformer.layers.{local}.{own}"
                for local, layer in enumerate(layers)
                for own, theirs in (_FUSED if source.config.fused else _LINEARS).items()
                if not source.quantized(f"model.layers.{layer}.{theirs}")
            ]
        )
    if any(set(stage) != set(stages[0]) for stage in stages):
        raise ForgeError(
            "TF-BLD-035",
            "The stages of the pipeline exclude different layers from quantization",
            asked=f"build.parallel.pp: {pp}, quantize.exclude",
            numbers={"excluded_by_stage": [len(stage) for stage in stages]},
            why="All ranks read one config.json, in which a layer is named by its place in its own stage.",
            remedies=["build.parallel.pp: 1", "exclude the same linears of every layer, or none"],
        )
    return [*head, *stages[0]]


def check_split(source: Checkpoint, tp: int, pp: int) -> None:
    """Refuse a split that leaves a part of a head, a block or a byte.

    Raises:
        ForgeError: ``TF-BLD-034``, with the sizes that work.
    """
    faults = _split_faults(source, tp)
    if pp > source.config.layers:
        faults.append(f"{source.config.layers} layers over {pp} stages")
    if not faults:
        return
    works = [size for size in _SIZES if not _split_faults(source, size)]
    smaller = [size for size in source.row.group_sizes if source.group is not None and size < source.group]
    raise ForgeError(
        "TF-BLD-034",
        f"The model does not divide over tp {tp} x pp {pp}: {'; '.join(faults)}",
        asked=f"build.parallel: {{tp: {tp}, pp: {pp}}}",
        numbers={"tp_that_work": works, "largest_pp": source.config.layers},
        why="Each rank holds whole heads, whole blocks of scales and the same number of rows.",
        remedies=[
            *(f"build.parallel.tp: {size}" for size in works),
            *([f"quantize.group_size: {max(smaller)}"] if smaller else []),
        ],
    )


def _split_faults(source: Checkpoint, tp: int) -> list[str]:
    config, faults = source.config, []
    if config.heads % tp:
        faults.append(f"{config.heads} heads over {tp}")
    if config.kv_heads % tp and tp % config.kv_heads:
        faults.append(f"{config.kv_heads} KV heads over {tp}")
    if config.ffn % tp:
        faults.append(f"{config.ffn} MLP rows over {tp}")
    if faults or not source.row.group_sizes:
        return faults
    group = source.group or 16
    inputs = {
        "attention.dense": config.heads * config.head_size // tp,
        "mlp.proj": config.ffn // tp,
    }
    faults += [f"{name}: {width} inputs a rank in blocks of {group}" for name, width in inputs.items() if width % group]
    if source.row.rows_a_byte > 1 and (config.ffn // tp) % source.row.rows_a_byte:
        faults.append(f"mlp: {config.ffn // tp} rows a rank, two to a byte")
    return faults
