"""What kind of folder somebody names where a Hugging Face checkpoint is wanted: judged by names and config.json.

Policy: a folder of another kind is called by its name with the way to what is wanted; "no architecture" or "24 tensors
missing" would send the reader to the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_NAMES = 10_000
_RANK = re.compile(r"rank\d+\.(safetensors|engine)")


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder that is no Hugging Face checkpoint: its name, what to do, and what tells it."""

    name: str
    title: str
    remedies: tuple[str, ...]
    is_one: Callable[[Collection[str], Mapping[str, Any]], bool]


def _any(*endings: str) -> Callable[[Collection[str]], bool]:
    return lambda names: any(name.endswith(endings) for name in names)


def _is_trtllm_engine(names: Collection[str], config: Mapping[str, Any]) -> bool:
    return "build_config" in config or any((found := _RANK.fullmatch(name)) and found[1] == "engine" for name in names)


def _is_trtllm_checkpoint(names: Collection[str], config: Mapping[str, Any]) -> bool:
    stated = isinstance(config.get("architecture"), str) and "architectures" not in config
    return stated or any((found := _RANK.fullmatch(name)) and found[1] == "safetensors" for name in names)


def _is_mlx(names: Collection[str], config: Mapping[str, Any]) -> bool:
    given, other = config.get("quantization"), config.get("quantization_config")
    packed = isinstance(given, Mapping) and {"group_size", "bits"} <= given.keys()
    return packed and not (isinstance(other, Mapping) and "quant_method" in other)


def _is_training(names: Collection[str], config: Mapping[str, Any]) -> bool:
    """Shards of FSDP (torch.distributed.checkpoint), ZeRO's partitions, Megatron's iterations, NeMo 2's two halves."""
    if _any(".safetensors", ".bin")(names):
        return False
    steps = any(re.fullmatch(r"(global_step|iter_)\d+", name) for name in names)
    return _any(".distcp")(names) or steps or "latest_checkpointed_iteration.txt" in names or set(names) >= _NEMO_2


_NEMO_2 = {"weights", "context"}
_UNCONVERTED = "name the Hugging Face checkpoint that it was made from"
#: in the order in which they are asked; the first that fits decides
KINDS = (
    FolderKind(
        "trtllm-engine",
        "a TensorRT-LLM engine",
        (_UNCONVERTED, "trtforge triton emit FOLDER OUT --layout inflight_batcher_llm serves an engine that is built"),
        _is_trtllm_engine,
    ),
    FolderKind(
        "trtllm-checkpoint",
        "a TensorRT-LLM checkpoint",
        (
            f"{_UNCONVERTED} (--model_dir of convert_checkpoint.py or quantize.py)",
            "trtllm-build --checkpoint_dir compiles it as it is; the PyTorch backend and the LLM API do not read it",
        ),
        _is_trtllm_checkpoint,
    ),
    FolderKind(
        "engine",
        "an engine directory of trtforge",
        (f"{_UNCONVERTED} (its engine.json says which)", "trtforge engine info FOLDER shows it"),
        lambda names, config: "engine.json" in names,
    ),
    FolderKind(
        "repository",
        "a Triton model repository",
        (_UNCONVERTED, "trtforge triton lint FOLDER looks at it"),
        lambda names, config: "config.pbtxt" in names,
    ),
    FolderKind(
        "adapter",
        "a LoRA adapter",
        (
            "merge the adapter into its base model first (peft: merge_and_unload) and save the result",
            "name its base as model.source and the adapter in build.trtllm.lora.adapters",
        ),
        lambda names, config: (
            "adapter_config.json" in names
            and not any(name.startswith(("model", "pytorch_model")) and name != "model_card.md" for name in names)
        ),
    ),
    FolderKind(
        "diffusers",
        "a diffusers pipeline",
        ("name the checkpoint of a language model; pictures are not generated here",),
        lambda names, config: "model_index.json" in names,
    ),
    FolderKind(
        "mlx",
        "an MLX checkpoint",
        (f"{_UNCONVERTED}: MLX packs its weights in a form of its own",),
        _is_mlx,
    ),
    FolderKind(
        "gguf",
        "a folder of GGUF files",
        ("name the .gguf file itself",),
        lambda names, config: (
            not config and _any(".gguf")(names) and not _any(".safetensors")(names) and "config.json" not in names
        ),
    ),
    FolderKind(
        "onnx",
        "an ONNX export",
        (f"{_UNCONVERTED}: the graph is written here, from its weights",),
        lambda names, config: _any(".onnx")(names) and not _any(".safetensors", ".bin", ".pth", ".pt")(names),
    ),
    FolderKind(
        "openvino",
        "an OpenVINO export",
        (_UNCONVERTED,),
        lambda names, config: "openvino_model.xml" in names and not _any(".safetensors")(names),
    ),
    FolderKind(
        "nemo",
        "a NeMo checkpoint",
        ("export it with NeMo's converter to Hugging Face form, and name that folder",),
        lambda names, config: _any(".nemo")(names) or {"model_config.yaml", "model_weights"} <= set(names),
    ),
    FolderKind(
        "hub-cache",
        "an entry of the Hugging Face cache",
        ("name the folder of one revision: snapshots/REVISION in it", "model.source: hf:ORG/NAME"),
        lambda names, config: {"snapshots", "refs"} <= set(names) and "config.json" not in names,
    ),
    FolderKind(
        "training",
        "a checkpoint of a training run",
        (
            "save the model in Hugging Face form on the machine that trained it (save_pretrained, or the exporter of "
            "DeepSpeed, FSDP, Megatron or NeMo), and name that folder",
        ),
        _is_training,
    ),
    FolderKind(
        "consolidated",
        "a checkpoint in its publisher's own form",
        (
            "name the publisher's Hugging Face form of the model (config.json and model.safetensors)",
            "transformers has converters: convert_llama_weights_to_hf.py, convert_mistral_weights_to_hf.py",
        ),
        lambda names, config: "params.json" in names and "config.json" not in names,
    ),
)


def kind_of(folder: Path, config: Mapping[str, Any]) -> FolderKind | None:
    """The kind of ``folder`` with this config.json (empty: none); None for a Hugging Face checkpoint, or unknown."""
    names: set[str] = set()
    try:
        for path in folder.iterdir():
            names.add(path.name)
            if path.is_dir() and (path / "config.pbtxt").is_file():
                names.add("config.pbtxt")  # a repository holds its models one folder deeper
            if len(names) >= _MOST_NAMES:
                break
    except OSError:
        return None
    return next((kind for kind in KINDS if kind.is_one(names, config)), None)


def kind_by_config(config: Mapping[str, Any]) -> FolderKind | None:
    """The kind that config.json alone shows, None when it shows none."""
    return next((kind for kind in KINDS if kind.is_one((), config)), None)
