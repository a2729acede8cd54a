"""Directories: what is taken, what is changed on the way, and what their contents are refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.intake import inspect_source, load_info
from quantize.intake.hashing import sha256_file
from tests.quantize.intake.folders import both_refuse, edit, fetch
from tests.support.refusals import refusal
from tests.support.tiny import BOS_ID, EOS_ID, to_bfloat16_bits, write_safetensors, write_tiny_llama
from tests.support.tiny_gguf import read_float32
from trtforge.ground.safetensors_header import read_headers


def test_everything_travels(model: Path, tmp_path: Path) -> None:
    info = fetch("model", tmp_path)
    out = tmp_path / "out"
    assert (out / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    template = json.loads((model / "tokenizer_config.json").read_text())["chat_template"]
    assert (out / "chat_template.jinja").read_text() == template
    assert json.loads((out / "tokenizer_config.json").read_text())["chat_template"] == template
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == EOS_ID
    assert load_info(out) == info
    read = info.model
    assert read.family == "llama"
    assert (read.layers, read.hidden, read.heads, read.kv_heads, read.head_size) == (2, 64, 4, 2, 64)
    assert (read.dtype, read.tied, read.bos_token_id, read.eos_token_ids) == ("bfloat16", True, BOS_ID, (EOS_ID,))
    assert info.model.parameters == sum(tensor.elements for tensor in read_headers(out).values())
    assert {record.name for record in info.files} == {path.name for path in out.iterdir()} - {"checkpoint.json"}
    for record in info.files:
        assert record.sha256 == sha256_file(out / record.name)
        assert record.size == (out / record.name).stat().st_size


def test_inspection_agrees_with_the_fetch(model: Path, tmp_path: Path) -> None:
    inspected = inspect_source("model", tmp_path)
    assert inspected is not None
    same = {"sha256", "files"}
    assert inspected.model_dump(exclude=same) == fetch("model", tmp_path).model_dump(exclude=same)


def test_rerun_is_identical(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", shards=2, tie=False)
    for out in ("one", "two"):
        fetch("model", tmp_path, out, dtype="float32")
    one, two = tmp_path / "one", tmp_path / "two"
    assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in two.iterdir()}


def test_shards_stay_shards(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", shards=3)
    fetch("model", tmp_path)
    for name in ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    assert read_headers(tmp_path / "out").keys() == read_headers(tmp_path / "model").keys()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dtype_is_converted(model: Path, tmp_path: Path, dtype: str) -> None:
    info = fetch("model", tmp_path, dtype=dtype)
    assert info.model.dtype == dtype and info.source_dtype == "bfloat16"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype
    before, after = read_float32(model), read_float32(tmp_path / "out")
    assert before.keys() == after.keys()
    for name in before:
        wanted = before[name].astype(np.float16).astype(np.float32) if dtype == "float16" else before[name]
        assert np.array_equal(after[name], wanted)


def test_values_beyond_the_type_are_refused(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", dtype="float32")
    path = tmp_path / "model" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-4:] = np.float32(70000.0).tobytes()
    path.write_bytes(bytes(raw))
    error = refusal(fetch, "model", tmp_path, dtype="float16")
    assert error.code == "TF-SRC-029" and error.numbers["largest"] == 70000.0
    fetch("model", tmp_path, dtype="bfloat16")


def test_normal_configuration(tmp_path: Path) -> None:
    """The old spelling of rope and type, and absent defaults, come out in the one form."""
    model = write_tiny_llama(tmp_path / "model", heads=2, kv_heads=2, head_size=64, width=128)
    scaling = {"type": "linear", "factor": 4.0}
    edit(
        model / "config.json",
        rope_parameters=...,
        rope_theta=500000.0,
        rope_scaling=scaling,
        head_dim=...,
        num_key_value_heads=...,
        dtype=...,
        torch_dtype="bfloat16",
        _name_or_path="/home/somebody",
        transformers_version="4.1",
    )
    info = fetch("model", tmp_path)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (
        config["rope_parameters"] == {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0} == info.model.rope
    )
    assert config["rope_theta"] == 500000.0 and config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert (config["head_dim"], config["num_key_value_heads"], config["dtype"]) == (64, 2, "bfloat16")
    assert not {"torch_dtype", "_name_or_path", "transformers_version"} & config.keys()


def test_mistral_keeps_its_window(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", architecture="MistralForCausalLM", sliding_window=128)
    model = fetch("model", tmp_path).model
    assert (model.architecture, model.family, model.sliding_window) == (
        "MistralForCausalLM",
        "llama",
        128,
    )


def test_biases_are_expected_when_switched_on(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", bias=True)
    fetch("model", tmp_path)
    edit(model / "config.json", attention_bias=False)
    assert both_refuse(model, tmp_path / "x").code == "TF-SRC-022"


def test_missing_companions_are_made(model: Path, tmp_path: Path) -> None:
    (model / "generation_config.json").unlink()
    (model / "tokenizer_config.json").unlink()
    fetch("model", tmp_path)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


def test_named_chat_templates(model: Path, tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    edit(model / "tokenizer_config.json", chat_template=templates)
    fetch("model", tmp_path)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "D"


def add_tensor(model: Path, name: str, values: np.ndarray) -> None:
    tensors = {key: ("BF16", to_bfloat16_bits(value)) for key, value in read_float32(model).items()}
    tensors[name] = ("BF16", to_bfloat16_bits(values))
    write_safetensors(model / "model.safetensors", tensors)


def test_tied_output_is_stored_once(model: Path, tmp_path: Path) -> None:
    add_tensor(model, "lm_head.weight", read_float32(model)["model.embed_tokens.weight"])
    info = fetch("model", tmp_path)
    assert "lm_head.weight" not in read_headers(tmp_path / "out")
    assert any("lm_head" in note for note in info.notes)


def test_tied_output_that_differs_is_refused(model: Path, tmp_path: Path) -> None:
    add_tensor(model, "lm_head.weight", 2 * read_float32(model)["model.embed_tokens.weight"])
    assert refusal(fetch, "model", tmp_path).code == "TF-SRC-025"


def test_old_buffers_are_left_out(model: Path, tmp_path: Path) -> None:
    add_tensor(model, "model.layers.0.self_attn.rotary_emb.inv_freq", np.ones(32, np.float32))
    info = fetch("model", tmp_path)
    assert "model.layers.0.self_attn.rotary_emb.inv_freq" not in read_headers(tmp_path / "out")
    assert info.notes


def test_untied_without_output_is_refused(model: Path, tmp_path: Path) -> None:
    edit(model / "config.json", tie_word_embeddings=False)
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-022" and "tie_word_embeddings" in error.remedies[0]


def test_foreign_tensor_is_refused(model: Path, tmp_path: Path) -> None:
    add_tensor(model, "model.layers.7.extra.weight", np.ones(3, np.float32))
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-022" and error.numbers["unexpected"] == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "TF-SRC-009"),
        ({"architectures": None, "model_type": "gpt2"}, "TF-SRC-009"),
        ({"architectures": 7}, "TF-SRC-009"),
        ({"num_hidden_layers": 0}, "TF-SRC-021"),
        ({"num_hidden_layers": "2"}, "TF-SRC-021"),
        ({"hidden_size": True}, "TF-SRC-021"),
        ({"num_key_value_heads": 3}, "TF-SRC-021"),
        ({"head_dim": 63}, "TF-SRC-021"),
        ({"hidden_act": "gelu"}, "TF-SRC-021"),
        ({"eos_token_id": -1}, "TF-SRC-021"),
        ({"partial_rotary_factor": 0.5}, "TF-SRC-021"),
        ({"vocab_size": 511}, "TF-SRC-022"),
        ({"intermediate_size": 64}, "TF-SRC-022"),
        ({"num_hidden_layers": 3}, "TF-SRC-022"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "TF-SRC-026"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4}}, "TF-SRC-026"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2", "rope_theta": 1e4}}, "TF-SRC-026"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "TF-SRC-026"),
        ({"rope_parameters": "default"}, "TF-SRC-026"),
        ({"rope_parameters": {"rope_type": [], "rope_theta": 1e4}}, "TF-SRC-026"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}}, "TF-SRC-026"),
        ({"tie_word_embeddings": "false"}, "TF-SRC-021"),
        ({"attention_bias": "false"}, "TF-SRC-021"),
        ({"mlp_bias": []}, "TF-SRC-021"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "TF-SRC-024"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "TF-SRC-024"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}, "TF-SRC-024"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": ["FP8"]}}, "TF-SRC-024"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": ["FP8"]}},
            "TF-SRC-024",
        ),
    ],
)
def test_configuration_refusals(model: Path, tmp_path: Path, changes: dict[str, Any], code: str) -> None:
    edit(model / "generation_config.json", eos_token_id=...)
    edit(model / "config.json", **changes)
    assert both_refuse(model, tmp_path).code == code


def test_the_supported_list_is_named(model: Path, tmp_path: Path) -> None:
    edit(model / "config.json", architectures=["GPT2LMHeadModel"])
    error = both_refuse(model, tmp_path)
    assert "LlamaForCausalLM" in error.remedies[0] and "MistralForCausalLM" in error.remedies[0]


@pytest.mark.parametrize("text", ["{", "[]", "\x00", '"text"'])
def test_broken_json(model: Path, tmp_path: Path, text: str) -> None:
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        good = (model / name).read_text()
        (model / name).write_text(text)
        assert both_refuse(model, tmp_path).code == "TF-SRC-021"
        (model / name).write_text(good)


def test_text_that_is_no_text(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_bytes(b"{{ messages }} \xff")
    assert refusal(fetch, "model", tmp_path).code == "TF-SRC-021"
    (model / "chat_template.jinja").write_text("{{ messages }} é")
    (model / "config.json").write_text((model / "config.json").read_text().replace("10000.0", "NaN"))
    assert both_refuse(model, tmp_path).code == "TF-SRC-021"


def damage_tokenizer(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(model: Path) -> None:
        value = json.loads((model / "tokenizer.json").read_text())
        change(value)
        (model / "tokenizer.json").write_text(json.dumps(value))

    return apply


def over_vocabulary(model: Path) -> None:
    edit(model / "config.json", vocab_size=400)
    tensors = {name: ("BF16", to_bfloat16_bits(value)) for name, value in read_float32(model).items()}
    kind, rows = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = (kind, rows[:400])
    write_safetensors(model / "model.safetensors", tensors)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda model: (model / "tokenizer.json").write_text("{"), id="no JSON"),
        pytest.param(lambda model: (model / "tokenizer.json").write_text("{}"), id="no model"),
        pytest.param(over_vocabulary, id="more tokens than rows"),
        pytest.param(damage_tokenizer(lambda value: value.update(decoder=None)), id="text is lost"),
    ],
)
def test_tokenizer_must_fit(model: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(model)
    assert refusal(fetch, "model", tmp_path).code == "TF-SRC-023"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
@pytest.mark.parametrize("value", ["a", 512, [2, 700], [2, "a"], 1.5, True, -1])
def test_token_ids_of_both_files(model: Path, tmp_path: Path, file: str, key: str, value: Any) -> None:
    edit(model / file, **{key: value})
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-021"
    assert error.asked == file


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages", "{% for m in messages %}{{ m }}", "{% unknown %}"])
@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_chat_template_must_compile(model: Path, tmp_path: Path, template: str, file: str) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    if file.endswith(".jinja"):
        (model / file).write_text(template)
    else:
        edit(model / file, chat_template=template)
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-033"
    assert "line 1" in error.message


def test_template_features_of_transformers_compile(model: Path, tmp_path: Path) -> None:
    text = "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
    (model / "chat_template.jinja").write_text(text)
    fetch("model", tmp_path)


def test_no_end_token_at_all(model: Path, tmp_path: Path) -> None:
    edit(model / "config.json", eos_token_id=...)
    edit(model / "generation_config.json", eos_token_id=...)
    assert refusal(fetch, "model", tmp_path).code == "TF-SRC-023"


def test_generation_config_decides_the_end(model: Path, tmp_path: Path) -> None:
    edit(model / "generation_config.json", eos_token_id=[2, 0])
    assert fetch("model", tmp_path).model.eos_token_ids == (2, 0)


def quantized(model: Path, *, algorithm: str = "FP8", cache: str | None = "FP8") -> None:
    """The linears of ``model`` as a ModelOpt FP8 export has them (weights of zero, scales that no two share)."""
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    for name, values in read_float32(model).items():
        if "_proj" in name:
            tensors[name] = ("F8_E4M3", np.zeros(values.shape, np.uint8))
            base = name.removesuffix(".weight")
            tensors[f"{base}.weight_scale"] = ("F32", np.array(0.001 * len(tensors), np.float32))
            tensors[f"{base}.input_scale"] = ("F32", np.array(0.002 * len(tensors), np.float32))
        else:
            tensors[name] = ("BF16", to_bfloat16_bits(values))
    write_safetensors(model / "model.safetensors", tensors)
    section = {"quant_algo": algorithm, "kv_cache_quant_algo": cache, "exclude_modules": ["lm_head"]}
    (model / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": section}))


def test_quantized_checkpoint_is_recognised(model: Path, tmp_path: Path) -> None:
    quantized(model)
    info = fetch("model", tmp_path, dtype="float32")
    assert (info.model.prequantized, info.model.prequantized_kv_cache, info.model.dtype) == ("fp8", "fp8", "bfloat16")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert (tmp_path / "out" / "hf_quant_config.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(("algorithm", "cache"), [("FP8_PB_WO", None), ("FP8", "INT3"), ("MXFP4", None)])
def test_other_quantized_formats_are_named(model: Path, tmp_path: Path, algorithm: str, cache: str | None) -> None:
    quantized(model, algorithm=algorithm, cache=cache)
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-024" and algorithm in error.message


def test_scales_in_a_plain_checkpoint_are_refused(model: Path, tmp_path: Path) -> None:
    quantized(model)
    (model / "hf_quant_config.json").unlink()
    assert both_refuse(model, tmp_path).code == "TF-SRC-022"


def test_a_tokenizer_whose_rules_backtrack_without_end(model: Path, tmp_path: Path) -> None:
    """The library panics on the sample, with an exception that is none to ``except Exception``."""
    path = model / "tokenizer.json"
    rule = {"type": "Split", "pattern": {"Regex": "([A-Za-z ]+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": rule}))
    assert refusal(fetch, "model", tmp_path).code == "TF-SRC-023"


def test_a_record_of_before_is_read(tmp_path: Path) -> None:
    """What checkpoint.json did not hold once follows from the rest of it and from the class."""
    write_tiny_llama(tmp_path / "model", architecture="Qwen2ForCausalLM", sliding_window=64, max_window_layers=1)
    info, file = fetch("model", tmp_path), tmp_path / "out" / "checkpoint.json"
    written = json.loads(file.read_text())
    assert "model" not in written and written["window_layers"] == 1 and load_info(tmp_path / "out") == info
    for key in ("windows", "o_bias", "norm_eps"):
        del written[key]
    file.write_text(json.dumps(written))
    old = load_info(tmp_path / "out")
    assert old.model.windows == info.model.windows == (0, 64) and old.model.parameters == info.model.parameters
    written |= {"architecture": "LlamaForCausalLM", "attention_bias": True, "window_layers": None}
    file.write_text(json.dumps(written))
    llama = load_info(tmp_path / "out").model
    assert llama.o_bias and llama.windows == (64, 64)
    file.write_text(json.dumps({**written, "unheard": 1}))
    with pytest.raises(ValueError, match="unheard"):
        load_info(tmp_path / "out")
