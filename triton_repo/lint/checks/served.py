"""Rules on what a model of the LLM API or of vLLM is to serve: the folder it loads, and what requests can ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triton_repo.folder_kind import folder_kind
from triton_repo.lint.checks.llmapi import each_document
from triton_repo.lint.hits import Hit, each_model, hit_file, rule
from triton_repo.lint.llm_arguments import load_arguments
from triton_repo.lint.remedies import no_key, person
from triton_repo.lint.repository import Model, Repository
from triton_repo.lint.roles import is_vllm
from triton_repo.lint.settings import Lines, file_of, placed
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(150, "The LLM API and vLLM: what is served")

#: kinds of folders that each loads
_LLMAPI = ("a Hugging Face checkpoint",)
_VLLM = (*_LLMAPI, "a checkpoint in its maker's own format", "a GGUF file in a folder")


@rule(
    "TF-TRI-253",
    "error",
    "the folder that is named as the model is no checkpoint that can be loaded",
    thread("TL#10739"),
)
@each_document
def llmapi_folder(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """The PyTorch backend and vLLM load Hugging Face checkpoints. A TensorRT-LLM checkpoint (architecture,
    rank0.safetensors) is what trtllm-build reads, and an engine is what it writes."""
    arguments = placed(document, load_arguments())
    for name in ("model", "speculative_config.speculative_model", "speculative_config.speculative_model_dir"):
        if name in arguments:
            yield from _folder(model, path, text, arguments[name].path, arguments[name].value, _LLMAPI)


@rule(
    "TF-TRI-254",
    "error",
    "the folder that model.json names as the model is no checkpoint that can be loaded",
    "https://docs.vllm.ai/en/stable/models/supported_models/",
)
@each_model
def vllm_folder(model: Model, repository: Repository) -> Iterator[Hit]:
    """vLLM loads checkpoints of Hugging Face or of Mistral, and GGUF files; a TensorRT-LLM checkpoint or engine is
    neither."""
    found = file_of(model, "model.json") if is_vllm(model) else None
    if found is None:
        return
    try:
        document = json.loads(found[1])
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict):
        yield from _folder(model, *found, ("model",), document.get("model"), _VLLM)


def _folder(
    model: Model, path: Path, text: str, place: tuple[str, ...], value: object, loads: tuple[str, ...]
) -> Iterator[Hit]:
    """The folder, when it can be reached from here; a name on the hub cannot."""
    folder = model.here(value) if isinstance(value, str) and value.strip() else None
    if folder is None or not folder.is_dir():
        return
    kind = folder_kind(folder)
    if kind is None or kind in loads:
        return
    ways = {
        "a TensorRT-LLM checkpoint": "the Hugging Face checkpoint that it was made from; this one is built into an "
        "engine by trtllm-build up to 1.2.1 (layout inflight_batcher_llm)",
        "a TensorRT-LLM engine": "the Hugging Face checkpoint that it was built from; an engine is served by "
        "the layout inflight_batcher_llm up to 1.2.1",
        "a LoRA adapter": "the model that it adapts; the adapter goes into lora_config",
    }
    message = f"{'.'.join(place)}: {value} is {kind}"
    remedy = person(ways.get(kind, "the folder of a Hugging Face checkpoint, with its config.json"))
    yield hit_file(model, path, message, remedy, Lines(text).of(*place))


#: setting of model.yaml → (part of an input's or output's name that asks for it, what is missing without it)
_ASKED = {
    "guided_decoding_backend": ("guided_decoding", "no request can carry a grammar"),
    "lora_config": ("lora", "no request can name an adapter"),
    "logits_post_processors": ("logits_post_processor", "no request can name one"),
    "max_beam_width": ("beam", "no request can ask for beams"),
    "gather_generation_logits": ("generation_logits", "no response can carry them"),
}


@rule(
    "TF-TRI-255", "warning", "a setting that no request can ask for", "https://github.com/NVIDIA/TensorRT/issues/4855"
)
@each_document
def unasked(model: Model, path: Path, text: str, document: Mapping[str, Any]) -> Iterator[Hit]:
    """The model's tensors are all that a client can send and get. NVIDIA's llmapi layout has none for guided decoding:
    the backend is loaded, takes memory and time, and is never used."""
    names = [row.name for row in (*model.message.input, *model.message.output)]
    if not names or not (model.knows("input") and model.knows("output")):
        return
    arguments = placed(document, load_arguments())
    for setting, (part, without) in _ASKED.items():
        place = arguments[setting].path if setting in arguments else (setting,)
        value = arguments[setting].value if setting in arguments else document.get(setting)
        if (
            not value
            or (value is not True and value == 1)
            or any(part in name for name in names)
            or part in (model.code or "")
        ):
            continue
        message = f"{setting} is set and the model has no tensor of {part}: {without}"
        remedies = [
            no_key(path, *place),
            person("tensors for it in config.pbtxt and model.py; trtforge triton emit writes them"),
            person("trtllm-serve, whose requests can"),
        ]
        yield hit_file(model, path, message, remedies, Lines(text).of(*place))
