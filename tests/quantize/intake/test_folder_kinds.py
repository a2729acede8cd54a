"""Folders of other kinds than a Hugging Face checkpoint are called by their names, tensors by their prefix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantize.intake import inspect_source
from quantize.intake.model_config import require_architecture
from tests.support.tiny import write_safetensors, write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.models.folder_kind import KINDS

_COMMAND = re.compile(r"trtforge ((?:[a-z]+ ?)+)")

TRTLLM = {
    "producer": {"name": "modelopt", "version": "0.39.0"},
    "architecture": "LlamaForCausalLM",
    "dtype": "float16",
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
}


def refusal(folder: Path) -> ForgeError:
    with pytest.raises(ForgeError) as refused:
        inspect_source(str(folder), folder.parent)
    return refused.value


def write(folder: Path, *names: str, **values: Any) -> Path:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x")
    for name, value in values.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


FOLDERS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "trtllm-checkpoint": (("rank0.safetensors",), {"config": TRTLLM}),
    "trtllm-engine": (("rank0.engine",), {"config": {"version": "1.2.1", "build_config": {}, "pretrained_config": {}}}),
    "engine": (("model.plan",), {"engine": {}, "config": {}}),
    "repository": (("config.pbtxt",), {}),
    "adapter": (("adapter_model.safetensors",), {"adapter_config": {"peft_type": "LORA"}}),
    "diffusers": ((), {"model_index": {"_class_name": "FluxPipeline"}}),
    "mlx": (
        ("model.safetensors",),
        {
            "config": {
                "architectures": ["LlamaForCausalLM"],
                "quantization": {"group_size": 64, "bits": 4},
                "quantization_config": {"group_size": 64, "bits": 4},
            }
        },
    ),
    "gguf": (("llama-q4_k_m.gguf",), {}),
    "onnx": (("model.onnx", "model.onnx_data"), {"config": {"architectures": ["LlamaForCausalLM"]}}),
    "openvino": (("openvino_model.xml", "openvino_model.bin"), {"config": {"architectures": ["LlamaForCausalLM"]}}),
    "nemo": (("llama.nemo",), {}),
    "hub-cache": (("snapshots", "refs", "blobs"), {}),
    "training": ((".metadata", "__0_0.distcp"), {}),
    "consolidated": (("consolidated.safetensors", "tekken.json"), {"params": {"dim": 4096}}),
}


def test_every_kind_has_its_folder() -> None:
    assert set(FOLDERS) == {kind.name for kind in KINDS}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_another_kind_is_called_by_its_name(kind: str, tmp_path: Path) -> None:
    names, values = FOLDERS[kind]
    error = refusal(write(tmp_path / "model", *names, **values))
    assert (error.code, error.numbers["kind"]) == ("TF-SRC-028", kind)
    title = next(item.title for item in KINDS if item.name == kind)
    assert title in error.message
    assert error.remedies


@pytest.mark.parametrize(
    "names",
    [
        ("latest", "global_step10", "zero_to_fp32.py"),
        ("latest_checkpointed_iteration.txt", "iter_0000100"),
        ("context", "weights"),
        ("__0_0.distcp", "__1_0.distcp"),
    ],
)
def test_checkpoints_of_training_runs_are_called_so(names: tuple[str, ...], tmp_path: Path) -> None:
    error = refusal(write(tmp_path / "model", *names))
    assert (error.code, error.numbers["kind"]) == ("TF-SRC-028", "training") and "save_pretrained" in error.remedies[0]


def test_checkpoints_below_the_folder_are_named(tmp_path: Path) -> None:
    for step in ("checkpoint-100", "checkpoint-200"):
        write_tiny_llama(tmp_path / "run" / step, layers=1)
    assert refusal(tmp_path / "run").remedies == [
        f"name the folder that holds config.json: {tmp_path / 'run' / step}"
        for step in ("checkpoint-200", "checkpoint-100")
    ]
    entry = tmp_path / "models--org--name"
    (entry / "refs").mkdir(parents=True)
    write_tiny_llama(entry / "snapshots" / "abc", layers=1)
    error = refusal(entry)
    assert "Hugging Face cache" in error.message and str(entry / "snapshots" / "abc") in error.remedies[0]


def test_remedies_name_commands_that_exist() -> None:
    from trtforge.cli.app import invoke

    for words in {
        tuple(found[1].split()) for kind in KINDS for way in kind.remedies if (found := _COMMAND.search(way))
    }:
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(invoke([*words, "--help"]))
        assert ended.value.code == 0, words


@pytest.mark.parametrize(("stated", "stored"), [(1, 3), (3, 1), (2, 3)])
def test_a_model_with_layers_more_or_less_than_stated_is_told_the_number(
    stated: int, stored: int, tmp_path: Path
) -> None:
    folder = write_tiny_llama(tmp_path / "model", layers=stored)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": stated}))
    error = refusal(folder)
    assert error.code == "TF-SRC-022" and error.remedies[0].startswith(
        f"set num_hidden_layers: {stored} in config.json"
    )
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": stored}))
    inspect_source(str(folder), tmp_path)


def test_a_repository_holds_its_models_one_folder_deeper(tmp_path: Path) -> None:
    (tmp_path / "repository" / "llama").mkdir(parents=True)
    (tmp_path / "repository" / "llama" / "config.pbtxt").write_text('backend: "python"')
    assert "a Triton model repository" in refusal(tmp_path / "repository").message


def test_the_config_of_a_trtllm_checkpoint_alone_is_known_too() -> None:
    with pytest.raises(ForgeError, match="TensorRT-LLM checkpoint"):
        require_architecture(TRTLLM)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_a_checkpoint_of_hugging_face_is_none_of_them(architecture: str, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", architecture=architecture)
    assert inspect_source("model", tmp_path) is not None


def renamed(folder: Path, rename: Callable[[str], str | None]) -> Path:
    """The checkpoint with other names of tensors; None leaves one out."""
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    import numpy as np

    tensors = {}
    for name, entry in header.items():
        new = rename(name)
        if name == "__metadata__" or new is None:
            continue
        begin, end = entry["data_offsets"]
        data = np.frombuffer(raw[8 + length + begin : 8 + length + end], dtype=np.uint16).reshape(entry["shape"])
        tensors[new] = (entry["dtype"], data)
    write_safetensors(file, tensors)
    return folder


def test_the_body_alone_is_called_so(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", architecture="Qwen3ForCausalLM")
    error = refusal(renamed(folder, lambda name: name.removeprefix("model.")))
    assert error.code == "TF-SRC-022"
    assert "lacks the prefix 'model.'" in error.message
    assert "the body alone" in error.message
    assert not any("download" in text for text in error.remedies)
    assert any("AutoModelForCausalLM" in text for text in error.remedies)


def test_the_body_of_an_untied_model_lacks_its_head(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", tie=False)
    error = refusal(renamed(folder, lambda name: None if name == "lm_head.weight" else name.removeprefix("model.")))
    assert "lm_head" in error.remedies[0]


@pytest.mark.parametrize(
    ("rename", "wrong"),
    [
        (lambda name: f"language_model.{name}", "'language_model.'"),
        (lambda name: name.replace("model.", "model.language_model.", 1), "'model.language_model.'"),
        (lambda name: f"base_model.model.{name}", "'base_model.model.'"),
        (lambda name: f"module.{name}", "'module.'"),
        (lambda name: f"_orig_mod.{name}", "'_orig_mod.'"),
    ],
)
def test_a_prefix_too_many_is_named(rename: Callable[[str], str], wrong: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", tie=False)
    error = refusal(renamed(folder, rename))
    assert wrong in error.message
    assert "becomes" in error.remedies[0] or "merge" in error.remedies[0]
    assert not any("download config.json" in text for text in error.remedies)


def test_tensors_that_no_prefix_explains_stay_a_mismatch(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    error = refusal(renamed(folder, lambda name: name.replace("layers.0", "layers.7")))
    assert "missing" in error.message
    assert error.remedies == ["download config.json and weights of one revision again"]


@pytest.mark.parametrize("tie", [True, False])
def test_an_embedding_with_a_row_more_is_offered_its_vocabulary(tie: bool, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", vocab=1025, tie=tie)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1024}))
    error = refusal(folder)
    assert error.code == "TF-SRC-022"
    assert error.remedies[0] == "set vocab_size: 1025 in config.json, the rows that the embedding has"
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 1025}))
    assert inspect_source("model", tmp_path) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"block_configs": [{"attention": {"n_heads_in_group": 8}}], "intermediate_size": None},
        {"intermediate_size": [64, 128]},
        {"num_key_value_heads": [2, 1]},
        {"num_key_value_heads_per_layer": [2, 1]},
    ],
)
def test_layers_that_differ_are_called_so(change: dict[str, Any], tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    error = refusal(folder)
    assert error.code == "TF-SRC-021"
    assert "layers differ" in error.message
    assert "NAS" in error.message
    assert not any("download" in text for text in error.remedies)


def test_tekken_alone(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", architecture="MistralForCausalLM")
    (folder / "tokenizer.json").unlink()
    (folder / "tekken.json").write_text("{}")
    error = refusal(folder)
    assert error.code == "TF-SRC-008"
    assert "only tekken.json" in error.message
    assert "convert_tekken_tokenizer" in error.remedies[0]
    assert not any("AutoTokenizer" in text for text in error.remedies)


def test_a_template_of_a_processor_travels(tmp_path: Path) -> None:
    from quantize.intake import fetch_checkpoint

    folder = write_tiny_llama(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    template = config.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps({"chat_template": template}))
    fetch_checkpoint("model", tmp_path / "out", base_dir=tmp_path)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == template
