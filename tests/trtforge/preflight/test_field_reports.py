"""What people ran into, each with the input as it was reported, and its siblings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.preflight import BIG, codes, report
from tests.support.public_models import public
from tests.trtforge.preflight import folders
from tests.trtforge.preflight.settings import API, ENGINE, build, merged, quant, speculation, trtllm
from trtforge.preflight.engine import Finding

LLAMA = public("meta-llama/Llama-3.1-8B-Instruct")
TRTLLM = {"producer": {"name": "modelopt"}, "architecture": "LlamaForCausalLM", "dtype": "float16", "hidden_size": 576}
EAGLE_1, EAGLE_3 = {"fc.weight": folders.zeros(4, 8)}, {"fc.weight": folders.zeros(4, 12), "d2t": folders.zeros(4)}


def found(code: str, settings: dict[str, Any], directory: Path | str = ".", **facts: Any) -> Finding:
    (finding,) = [item for item in report(settings, directory=directory, **facts).findings if item.code == code]
    return finding


def test_heads_of_96_with_fp8_context_attention_on_b200() -> None:
    settings = merged(
        ENGINE,
        quant(format="fp8", kv_cache="fp8"),
        trtllm(fp8_context_attention=True),
        build(architectures=["sm_100"]),
    )
    finding = found("TF-K5-008", settings, model=replace(LLAMA, heads=8, kv_heads=8, head_size=96), machine=BIG)
    assert finding.blocks
    assert finding.numbers["head_size"] == 96
    assert finding.remedies[0].startswith("quantize.kv_cache: none")


def test_the_builder_turns_fp8_context_attention_on_by_itself() -> None:
    settings = merged(ENGINE, quant(format="fp8", kv_cache="fp8"), build(architectures=["sm_103"]))
    model = replace(LLAMA, head_size=96)
    assert "TF-K5-008" in codes(settings, model=model, machine=BIG)
    assert "TF-K5-008" not in codes(merged(settings, build(architectures=["sm_90"])), model=model, machine=BIG)
    assert "TF-K5-008" not in codes(merged(settings, quant(kv_cache="none")), model=model, machine=BIG)


def test_a_trtllm_checkpoint_as_a_draft(tmp_path: Path) -> None:
    folders.write_json(tmp_path / "draft" / "config.json", TRTLLM)
    folders.write_weights(tmp_path / "draft", {"lm_head.weight": folders.zeros(2, 2)}, "rank0.safetensors")
    settings = merged(API, speculation(method="draft_target", draft="draft", max_draft_len=4))
    finding = found("TF-K12-005", settings, tmp_path, model=LLAMA, machine=BIG)
    assert "is a TensorRT-LLM checkpoint" in finding.message


def test_a_model_as_an_adapter_is_called_one(tmp_path: Path) -> None:
    folders.write_model(tmp_path / "adapter")
    finding = found("TF-K21-002", merged(ENGINE, trtllm(lora={"adapters": {"a": "adapter"}})), tmp_path)
    assert finding.message == "adapter a has no adapter_config.json: the folder is a whole model"


@pytest.mark.parametrize(
    ("method", "tensors", "wrong"),
    [
        ("eagle3", EAGLE_1, True),
        ("eagle3", EAGLE_3, False),
        ("eagle3", {"midlayer.self_attn.q_proj.weight": folders.zeros(4, 8)}, False),
        ("eagle3", {"0.linear.weight": folders.zeros(4, 4)}, True),
        ("eagle3", {"medusa_head.0.0.linear.weight": folders.zeros(4, 4)}, True),
        ("eagle3", {"fc.weight": folders.zeros(4, 9)}, False),  # a draft of another width: nothing is known
        ("medusa", EAGLE_1, True),
        ("eagle", {"0.0.linear.weight": folders.zeros(4, 4)}, True),
        ("eagle", EAGLE_1, False),
        ("eagle", EAGLE_3, False),  # TF-K12-024 says it
    ],
)
def test_the_generation_of_a_drafter_is_read_from_its_tensors(
    method: str, tensors: dict[str, Any], wrong: bool, tmp_path: Path
) -> None:
    folders.write_draft(tmp_path / "draft", tensors=tensors)
    target = API if method == "eagle3" else ENGINE
    settings = merged(target, speculation(method=method, draft="draft", max_draft_len=63))
    assert ("TF-K12-026" in codes(settings, directory=tmp_path)) is wrong


def test_an_eagle_1_head_for_eagle_3_is_an_error_with_its_way_out(tmp_path: Path) -> None:
    folders.write_draft(tmp_path / "draft", tensors=EAGLE_1)
    settings = merged(API, speculation(method="eagle3", draft="draft", max_draft_len=63))
    finding = found("TF-K12-026", settings, tmp_path)
    assert finding.blocks
    assert finding.numbers["fc"] == [4, 8]
    assert finding.remedies[0].startswith("build.target: trtllm-engine with triton.layout: inflight_batcher_llm")


PLACES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "tokenizer_config": ({"tokenizer_config.json": {"chat_template": folders.TEMPLATE}}, {}),
    "a list": (
        {
            "tokenizer_config.json": {
                "chat_template": [
                    {"name": "tool_use", "template": "plain"},
                    {"name": "default", "template": folders.TEMPLATE},
                ]
            }
        },
        {},
    ),
    "jinja": ({}, {"chat_template.jinja": folders.TEMPLATE}),
    "json": ({"chat_template.json": {"chat_template": folders.TEMPLATE}}, {}),
    "processor": ({"processor_config.json": {"chat_template": folders.TEMPLATE}}, {}),
    "additional": ({}, {"additional_chat_templates/default.jinja": folders.TEMPLATE}),
    "jinja before the others": (
        {"tokenizer_config.json": {"chat_template": "plain"}},
        {"chat_template.jinja": folders.TEMPLATE},
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_template_is_read_wherever_it_stands(place: str, tmp_path: Path) -> None:
    values, texts = PLACES[place]
    folder = folders.write_model(tmp_path / "Llama-3-8B-Instruct")
    for name, value in values.items():
        folders.write_json(folder / name, value)
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    finding = found("TF-K15-001", {"model": {"source": folder.name}}, tmp_path)
    assert finding.blocks
    assert finding.numbers["place"] == next(iter([*texts, *values]))


def test_named_templates_do_not_render_plain_chats(tmp_path: Path) -> None:
    folder = folders.write_model(tmp_path / "model-instruct")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(folders.TEMPLATE)
    assert not {"TF-K15-001", "TF-K15-003"} & codes({"model": {"source": folder.name}}, directory=tmp_path)


@pytest.mark.parametrize(
    ("name", "end", "code"),
    [
        ("Qwen2.5-0.5B", "<|endoftext|>", "TF-K15-003"),
        ("Qwen3-8B-Base", "<|endoftext|>", "TF-K15-003"),
        ("model", "<|endoftext|>", "TF-K15-003"),
        ("Qwen2.5-0.5B-Instruct", "<|endoftext|>", "TF-K15-001"),
        ("gemma-2-9b-it", "<eos>", "TF-K15-001"),
        ("model", "<|im_end|>", "TF-K15-001"),
    ],
)
def test_a_base_model_with_the_instruct_template_is_a_warning_at_most(
    name: str, end: str, code: str, tmp_path: Path
) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    folders.write_model(
        tmp_path / name,
        tokens={"a": 0, "<|endoftext|>": 2},
        added={"<|endoftext|>": 2, "<|im_end|>": 99},
        tokenizer_config={"chat_template": template, "eos_token": end},
        generation={"eos_token_id": 2},
    )
    result = report({"model": {"source": name}}, directory=tmp_path)
    (finding,) = [item for item in result.findings if item.kind == "K15"]
    assert finding.code == code
    assert finding.blocks is (code == "TF-K15-001")


def test_tekken_alone_is_named_with_a_way_that_works(tmp_path: Path) -> None:
    folder = folders.write_model(tmp_path / "model", tokenizer=False)
    (folder / "tekken.json").write_text("{}")
    finding = found("TF-K17-001", {"model": {"source": "model"}}, tmp_path)
    assert "only tekken.json" in finding.message
    assert "convert_tekken_tokenizer" in finding.remedies[0]
    assert not any("AutoTokenizer" in text for text in finding.remedies)


def test_a_draft_that_is_not_there_is_not_sent_to_a_source_that_is_refused(tmp_path: Path) -> None:
    settings = merged(API, speculation(method="draft_target", draft="draft", max_draft_len=4))
    finding = found("TF-K12-005", settings, tmp_path)
    assert not any("hf:" in text or "model.source" in text for text in finding.remedies)


def test_the_paddings_of_three_rules_about_one_mlp_are_one_width() -> None:
    """An MLP that neither splits over the ranks nor fills groups and tiles."""
    model = replace(LLAMA, ffn=1858)
    settings = merged(ENGINE, quant(format="nvfp4"), build(architectures=["sm_100"], parallel={"tp": 8}))
    result = report(settings, model=model, machine=BIG)
    pads = {text for item in result.findings for text in item.remedies if text.startswith("pad the checkpoint's MLP")}
    assert {item.code for item in result.findings} >= {"TF-K4-001", "TF-K5-004"}
    assert {text.split(" zeros to ")[1].split()[0] for text in pads} == {"2048"}
    assert not {"TF-K4-001", "TF-K4-004", "TF-K5-004"} & codes(settings, model=replace(model, ffn=2048), machine=BIG)


def test_scales_of_a_cache_that_is_not_quantized_are_not_judged(tmp_path: Path) -> None:
    scales = folders.quantized_tensors(k_scale=1.0)
    folders.write_quantized(tmp_path / "model", tensors=scales, kv=None)
    assert not {"TF-K7-001", "TF-K7-002"} & codes({"model": {"source": "model"}}, directory=tmp_path)
