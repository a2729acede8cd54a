"""Public reports: the input as it was given, and what lint must say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.edits import carry_out
from tests.triton_repo.corpus import COMPLETING, PYTHON, add
from tests.triton_repo.corpus_llm import LLMAPI_CONFIG, LLMAPI_YAML, VLLM, chain, engine_folder
from tests.triton_repo.corpus_triton import simple_add_sub
from triton_repo.lint.hits import Finding
from triton_repo.lint.run import lint_repository

#: the part of NVIDIA's model.py for the llmapi layout that reads model.yaml
NVIDIA = (
    "import yaml\n\n\nclass TritonPythonModel:\n    @classmethod\n    def auto_complete_config(cls, config):\n"
    '        triton_config = get_model_config("model.yaml", include_keys=["triton_config"])["triton_config"]\n'
    '        config.set_model_transaction_policy(dict(decoupled=bool(triton_config["decoupled"])))\n'
    '        config.set_max_batch_size(int(triton_config["max_batch_size"]))\n        return config\n\n'
    "    def execute(self, requests):\n        return None\n"
)


def llmapi(root: Path, more: str, code: str = COMPLETING, base: str = LLMAPI_YAML, config: str = LLMAPI_CONFIG) -> None:
    add(root, "tensorrt_llm", config, {"1/model.py": code, "1/model.yaml": base + more})


def vllm(root: Path, **settings: object) -> None:
    document = {"model": "facebook/opt-125m", **settings}
    add(root, "vllm_model", VLLM, {"1/model.json": json.dumps(document, indent=4)})


def found(root: Path, *severities: str) -> list[Finding]:
    return [f for f in lint_repository(root).findings if f.severity in (severities or ("error", "warning"))]


def cured(root: Path, finding: Finding) -> list[Finding]:
    """What errors and warnings are left once the first remedy that is an edit is carried out."""
    carry_out(next(remedy for remedy in finding.remedies if remedy.edits))
    return found(root)


def test_a_section_in_the_wrong_section_is_an_error_and_is_moved(tmp_path):
    """https://github.com/ai-dynamo/aiconfigurator/pull/1485"""
    llmapi(tmp_path / "r", "kv_cache_config: {cache_transceiver_config: {backend: default}}\n")
    error, loose = found(tmp_path / "r")
    assert (error.code, error.severity, error.line) == ("TF-TRI-223", "error", 8)
    assert "wrong section" in error.message and "move it to the top" in error.remedy
    assert (loose.code, loose.severity) == ("TF-TRI-225", "warning") and "DEFAULT" in loose.message
    (left,) = cured(tmp_path / "r", error)
    assert left.code == "TF-TRI-225" and cured(tmp_path / "r", left) == []


def test_a_key_around_all_arguments_is_an_error_and_what_is_below_it_is_judged(tmp_path):
    """https://github.com/NVIDIA/TensorRT-LLM/issues/6827"""
    inner = "".join(f"  {line}\n" for line in LLMAPI_YAML.split("\ntriton_config")[0].split("\n"))
    wrapped = f"extra_llm_api_options:\n{inner}  kv_cache_config:\n    free_gpu_memory_fracton: 0.8\n"
    llmapi(tmp_path / "r", wrapped, base="triton_config:\n  max_batch_size: 0\n  decoupled: False\n")
    errors = found(tmp_path / "r", "error")
    assert {(f.code, f.message.split(" ")[0]) for f in errors} == {
        ("TF-TRI-220", "model"),
        ("TF-TRI-223", "extra_llm_api_options"),
        ("TF-TRI-223", "free_gpu_memory_fracton"),
    }
    wrapper = next(f for f in errors if f.message.startswith("extra_llm_api_options"))
    assert [f.message.split(" ")[0] for f in cured(tmp_path / "r", wrapper)] == ["free_gpu_memory_fracton"]


@pytest.mark.parametrize(
    ("line", "value", "allowed", "meant"),
    [
        ("moe_config: {backend: Cutlass}", "'Cutlass'", "CUTLASS, CUTEDSL, TRTLLM", "backend: CUTLASS"),
        ("kv_cache_config: {dtype: fp8_e4m3}", "'fp8_e4m3'", "auto, fp8, nvfp4", "dtype: fp8"),
        ("scheduler_config: {capacity_scheduler_policy: max_utilization}", "'max_utilization'", "MAX_", "MAX_UTILI"),
        ("nvfp4_gemm_config: {allowed_backends: [cutlass, cuda]}", "'cuda'", "cuda_core", "cuda_core"),
        ("load_format: safetensors", "'safetensors'", "dummy", "leave load_format out"),
    ],
)
def test_a_value_that_is_none_of_the_choices_is_an_error_that_names_them(tmp_path, line, value, allowed, meant):
    """https://github.com/NVIDIA/TensorRT-LLM/issues/17612 and its like"""
    llmapi(tmp_path / "r", f"{line}\n")
    (error,) = found(tmp_path / "r")
    assert (error.code, error.severity, error.line) == ("TF-TRI-225", "error", 8)
    assert value in error.message and allowed in error.message and meant in error.remedy
    assert any(remedy.edits for remedy in error.remedies) == (value != "'cuda'")
    if value != "'cuda'":
        assert cured(tmp_path / "r", error) == []


@pytest.mark.parametrize(
    ("line", "said", "meant"),
    [
        ("cuda_graph_config: {batch_sizes: '1, 2,4'}", "'1, 2,4'", "batch_sizes: [1, 2, 4]"),
        ("kv_cache_config: {max_attention_window: 4096}", "4096", "max_attention_window: [4096]"),
        ("lora_config: {lora_target_modules: attn_q}", "'attn_q'", 'lora_target_modules: ["attn_q"]'),
    ],
)
def test_one_value_where_a_list_is_wanted_becomes_one(tmp_path, line, said, meant):
    llmapi(tmp_path / "r", f"{line}\n")
    error = found(tmp_path / "r", "error")[0]
    assert (error.code, error.line) == ("TF-TRI-225", 8) and said in error.message and meant in error.remedy
    cured(tmp_path / "r", error)
    assert found(tmp_path / "r", "error") == []


def test_two_keys_that_say_different_batches_for_graphs(tmp_path):
    llmapi(tmp_path / "r", "cuda_graph_config: {batch_sizes: [1, 2, 4, 8], max_batch_size: 64}\n")
    (error,) = found(tmp_path / "r")
    assert (error.code, error.severity) == ("TF-TRI-263", "error") and "ends at 8" in error.message
    assert cured(tmp_path / "r", error) == []
    llmapi(tmp_path / "fits", "cuda_graph_config: {batch_sizes: [1, 2, 4], max_batch_size: 4}\n")
    assert found(tmp_path / "fits") == []


def test_what_stands_below_a_misspelt_section_is_judged_with_it(tmp_path):
    llmapi(tmp_path / "r", "kv-cache-config:\n  free-gpu-memory-fraction: 0.9\n  dtype: fp8_e4m3\n")
    errors = found(tmp_path / "r")
    assert [(f.code, f.line) for f in errors] == [("TF-TRI-223", 8), ("TF-TRI-223", 9), ("TF-TRI-225", 10)]
    while errors := found(tmp_path / "r"):
        assert len(cured(tmp_path / "r", errors[-1])) < len(errors)
    document = yaml.safe_load((tmp_path / "r/tensorrt_llm/1/model.yaml").read_text())
    assert document["kv_cache_config"] == {"free_gpu_memory_fraction": 0.9, "dtype": "fp8"} and "dtype" not in document


def test_the_names_of_vllms_speculation_become_those_of_llm(tmp_path):
    llmapi(tmp_path / "r", "speculative_config: {method: eagle3, model: /d, num_speculative_tokens: 3}\n")
    for _ in range(5):
        if errors := [f for f in found(tmp_path / "r") if f.code == "TF-TRI-223"] or found(tmp_path / "r"):
            cured(tmp_path / "r", errors[0])
    document = yaml.safe_load((tmp_path / "r/tensorrt_llm/1/model.yaml").read_text())
    assert document["speculative_config"] == {
        "decoding_type": "Eagle3",
        "speculative_model": "/d",
        "max_draft_len": 3,
    }


def test_chunked_context_is_called_prefill_now(tmp_path):
    llmapi(tmp_path / "r", "enable_chunked_context: true\n")
    (error,) = found(tmp_path / "r")
    assert "enable_chunked_prefill: true" in error.remedy and cured(tmp_path / "r", error) == []


def test_values_that_are_read_without_case_are_no_finding(tmp_path):
    llmapi(tmp_path / "r", "load_format: DUMMY\nkv_cache_config: {dtype: FP8}\nmoe_config: {backend: TRTLLM}\n")
    assert found(tmp_path / "r", "error", "warning", "note") == []


@pytest.mark.parametrize(
    ("more", "severity", "word"),
    [
        ("max_draft_len: 1, draft_len_schedule: {1: 1, 16: 1, 32: 0}", "warning", "1.3.0rc15"),
        ("max_draft_len: 3, use_dynamic_tree: true, dynamic_tree_max_topK: 2", "warning", "grammar"),
        ("max_draft_len: 3", None, ""),
    ],
)
def test_guided_decoding_with_speculation_by_release(tmp_path, more, severity, word):
    """https://github.com/NVIDIA/TensorRT-LLM/issues/15022, https://github.com/NVIDIA/TensorRT-LLM/issues/18892"""
    config = LLMAPI_CONFIG.replace('"finish_reason"', '"guided_decoding_unused"')
    drafts = f"{{decoding_type: Eagle3, speculative_model: /d, {more}}}"
    lines = f"guided_decoding_backend: xgrammar\nspeculative_config: {drafts}\n"
    llmapi(tmp_path / "r", lines, config=config)
    findings = [f for f in found(tmp_path / "r") if f.code == "TF-TRI-250"]
    assert [f.severity for f in findings] == ([severity] if severity else [])
    if findings:
        assert word in findings[0].message and "https://github.com/NVIDIA/TensorRT-LLM/issues/1" in findings[0].message
        assert cured(tmp_path / "r", findings[0]) == []


def test_rejection_sampling_with_a_grammar_is_refused_as_llm_does(tmp_path):
    config = LLMAPI_CONFIG.replace('"finish_reason"', '"guided_decoding_unused"')
    lines = (
        "guided_decoding_backend: xgrammar\nspeculative_config: "
        "{decoding_type: PARD, speculative_model: /d, max_draft_len: 2, use_rejection_sampling: true}\n"
    )
    llmapi(tmp_path / "r", lines, config=config)
    (error,) = found(tmp_path / "r")
    assert (error.code, error.severity) == ("TF-TRI-250", "error")


def checkpoint(folder: Path) -> Path:
    """A TensorRT-LLM checkpoint as ModelOpt exports it."""
    folder.mkdir()
    config = {
        "producer": {"name": "modelopt", "version": "0.39.0"},
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "rank0.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize("engine", [False, True])
def test_a_folder_of_another_kind_is_named_as_what_it_is(tmp_path, engine):
    """https://github.com/NVIDIA/TensorRT-LLM/issues/10739, https://github.com/NVIDIA/TensorRT-LLM/issues/6513"""
    folder = engine_folder(tmp_path / "c") if engine else checkpoint(tmp_path / "c")
    llmapi(tmp_path / "r", "", base=LLMAPI_YAML.replace("TinyLlama/TinyLlama-1.1B-Chat-v1.0", str(folder)))
    (error,) = found(tmp_path / "r")
    assert (error.code, error.severity, error.line) == ("TF-TRI-253", "error", 1)
    assert f"is a TensorRT-LLM {'engine' if engine else 'checkpoint'}" in error.message
    assert "Hugging Face checkpoint" in error.remedy
    vllm(tmp_path / "v", model=str(folder))
    assert [f.code for f in found(tmp_path / "v")] == ["TF-TRI-254"]


def test_a_checkpoint_of_hugging_face_is_no_finding_and_one_of_the_other_kind_is_no_engine(tmp_path):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    llmapi(tmp_path / "r", "", base=LLMAPI_YAML.replace("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "../../hf"))
    assert found(tmp_path / "r") == []
    chain(tmp_path / "e", values={"gpt_model_path": str(checkpoint(tmp_path / "c"))})
    (error,) = found(tmp_path / "e", "error")
    assert error.code == "TF-TRI-188" and "it is a TensorRT-LLM checkpoint" in error.message


def test_the_arguments_of_vllm_are_held_against_a_table(tmp_path):
    """https://github.com/vllm-project/vllm/issues/23283"""
    vllm(tmp_path / "r", disable_log_requests=True, gpu_memory_utilisation=0.9, tensor_parallel_size="4")
    errors = found(tmp_path / "r")
    assert [(f.code, f.severity, f.line) for f in errors] == [
        ("TF-TRI-251", "error", 3),
        ("TF-TRI-251", "error", 4),
        ("TF-TRI-252", "error", 5),
    ]
    assert '"enable_log_requests": false' in errors[0].remedy and "0.10.1.1" in errors[0].message
    assert '"gpu_memory_utilization": …' in errors[1].remedy and '"tensor_parallel_size": 4' in errors[2].remedy
    for _ in range(3):
        left = cured(tmp_path / "r", found(tmp_path / "r")[0])
    assert left == []
    document = json.loads((tmp_path / "r/vllm_model/1/model.json").read_text())
    assert document == {
        "model": "facebook/opt-125m",
        "gpu_memory_utilization": 0.9,
        "tensor_parallel_size": 4,
        "enable_log_requests": False,
    }


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("dtype", "fp8", "it takes auto, half"),
        ("dtype", "Float16", "float16"),
        ("tensor_parallel_size", 0, "begins at 1"),
        ("max_num_seqs", -1, "begins at 1"),
    ],
)
def test_a_value_of_the_right_kind_that_vllm_refuses(tmp_path, name, value, said):
    vllm(tmp_path / "r", **{name: value})
    (error,) = found(tmp_path / "r")
    assert (error.code, error.severity, error.line) == ("TF-TRI-252", "error", 3) and said in error.message
    assert cured(tmp_path / "r", error) == []


def test_names_of_a_draft_move_into_one_section_one_by_one(tmp_path):
    vllm(tmp_path / "r", speculative_model="/draft", num_speculative_tokens=5)
    while errors := found(tmp_path / "r"):
        cured(tmp_path / "r", errors[0])
    document = json.loads((tmp_path / "r/vllm_model/1/model.json").read_text())
    assert document["speculative_config"] == {"model": "/draft", "num_speculative_tokens": 5}


def test_a_model_json_that_is_indented_by_tabs_has_its_lines(tmp_path):
    text = json.dumps({"model": "m", "seed": 1, "gpu_memory_utilisation": 0.5}, indent="\t")
    add(tmp_path / "r", "vllm_model", VLLM, {"1/model.json": text})
    (error,) = found(tmp_path / "r")
    assert error.line == 4 and cured(tmp_path / "r", error) == []


def test_values_that_are_repeated_are_for_a_person(tmp_path):
    llmapi(tmp_path / "r", "kv_cache_config: {moe_config: &a {backend: TRTLLM}}\nmoe_confg: *a\n")
    errors = found(tmp_path / "r")
    assert errors and not any(remedy.edits for error in errors for remedy in error.remedies)


def test_a_name_that_went_lately_is_a_warning_and_a_text_for_false_is_an_error(tmp_path):
    vllm(tmp_path / "r", swap_space=4, enforce_eager="false", enable_prefix_caching=1, kv_cache_dtype="fp8")
    assert {(f.code, f.severity) for f in found(tmp_path / "r")} == {("TF-TRI-251", "warning"), ("TF-TRI-252", "error")}


def test_the_backend_is_told_by_what_lies_in_the_version_folder(tmp_path):
    """https://github.com/triton-inference-server/server/issues/8365"""
    config = VLLM.replace('backend: "vllm"\n\n', "")
    add(tmp_path / "r", "vllm_model", config, {"1/model.json": '{"model": "facebook/opt-125m"}'})
    (error,) = found(tmp_path / "r")
    assert (error.code, error.remedy) == ("TF-TRI-125", 'backend: "vllm"')
    assert cured(tmp_path / "r", error) == []
    add(tmp_path / "s", "net", "max_batch_size: 4\n", {"1/network.onnx": ""})
    (error,) = found(tmp_path / "s")
    assert error.remedy == 'backend: "onnxruntime" and default_model_filename: "network.onnx"'
    add(tmp_path / "t", "net", "max_batch_size: 4\n", {"1/notes.txt": ""})
    (error,) = found(tmp_path / "t")
    assert error.remedy.endswith("or another") and not any(remedy.edits for remedy in error.remedies)


@pytest.mark.parametrize(
    ("platform", "wanted"),
    [
        ("tensorrtllm", 'backend: "tensorrtllm" and no platform'),
        ("tensorrt_llm", 'backend: "tensorrtllm" and no platform'),
        ("vllm", 'backend: "vllm" and no platform'),
        ("tensorrt", 'backend: "tensorrt" and no platform'),
        ("onnxruntime_onx", 'platform: "onnxruntime_onnx"'),
    ],
)
def test_a_platform_that_is_a_backend_is_called_one(tmp_path, platform, wanted):
    """``platform: "tensorrtllm"`` of a tutorial page."""
    add(tmp_path / "r", "model", f'platform: "{platform}"\n')
    error = next(f for f in found(tmp_path / "r") if f.code == "TF-TRI-126")
    assert error.remedy == wanted


@pytest.mark.parametrize(
    ("backend", "wanted"),
    [
        ("onnxruntime_onnx", "onnxruntime"),
        ("tensorrt_plan", "tensorrt"),
        ("pytorch_libtorch", "pytorch"),
        ("libtorch", "pytorch"),
        ("torch", "pytorch"),
    ],
)
def test_a_backend_that_is_a_platform_is_called_by_its_own_name(tmp_path, backend, wanted):
    add(tmp_path / "r", "model", f'backend: "{backend}"\n', {"1/model.any": ""})
    error = next(f for f in found(tmp_path / "r") if f.code == "TF-TRI-129")
    assert error.remedy == f'backend: "{wanted}"'


SPREAD = (
    "class TritonPythonModel:\n    def initialize(self, args):\n"
    "        self.model = AutoModelForCausalLM.from_pretrained(\n"
    '            "m", torch_dtype=torch.float16, device_map="auto"\n        )\n\n'
    "    def execute(self, requests):\n        return []\n"
)


@pytest.mark.parametrize(
    ("group", "noted"),
    [
        ("", True),
        ("instance_group [ { kind: KIND_GPU } ]\n", True),
        ("instance_group [ { count: 2 kind: KIND_MODEL } ]\n", True),
        ("instance_group [ { count: 1 kind: KIND_MODEL } ]\n", False),
        ("instance_group [ { count: 1 kind: KIND_CPU } ]\n", False),
        ("instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]\n", False),
    ],
)
def test_a_python_model_over_all_gpus_is_started_once_a_gpu(tmp_path, group, noted):
    """https://github.com/triton-inference-server/server/issues/7169"""
    config = (
        'name: "llm"\nbackend: "python"\nmax_batch_size: 4\n'
        'input [ { name: "prompt" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "answer" data_type: TYPE_STRING dims: [ 1 ] } ]\n' + group
    )
    add(tmp_path / "r", "llm", config, {"1/model.py": SPREAD})
    notes = found(tmp_path / "r", "error", "warning", "note")
    assert [(f.code, f.severity) for f in notes] == ([("TF-TRI-256", "note")] if noted else [])
    if noted:
        assert 'model.py:4 says device_map="auto"' in notes[0].message and "KIND_MODEL" in notes[0].remedy
        cured(tmp_path / "r", notes[0])
        assert found(tmp_path / "r", "error", "warning", "note") == []


@pytest.mark.parametrize(
    ("old", "new", "filled"),
    [
        ("max_queue_size: 0", "max_queue_size: ${max_queue_size}", "max_queue_size: 0"),
        (
            "max_queue_delay_microseconds: 0",
            "max_queue_delay_microseconds: ${max_queue_delay_microseconds}",
            "max_queue_delay_microseconds: 0",
        ),
        ("decoupled: false", "decoupled: ${decoupled_mode}", "decoupled: false"),
        ("max_batch_size: 4", "max_batch_size: ${triton_max_batch_size}", "max_batch_size: 4"),
    ],
)
def test_placeholders_are_filled_as_the_template_tool_and_its_guide_fill_them(tmp_path, old, new, filled):
    """https://github.com/replicate/cog-triton/pull/52: 1 in max_queue_size would refuse all requests but one"""
    chain(tmp_path / "r")
    path = tmp_path / "r/tensorrt_llm/config.pbtxt"
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    (error,) = found(tmp_path / "r")
    assert error.code == "TF-TRI-101" and error.remedy.startswith(filled)
    assert cured(tmp_path / "r", error) == [] and path.read_text() == text


def test_named_logits_processors_of_nvidias_model_yaml_are_no_finding(tmp_path):
    code = COMPLETING + '\n    names = ("logits_post_processors", "sampling_param_logits_post_processor_name")\n'
    lines = "logits_post_processors:\n  ban_bad_words: my_company.processors:BadWordsBanner\n"
    llmapi(tmp_path / "r", lines, code)
    assert found(tmp_path / "r", "error", "warning", "note") == []


@pytest.mark.parametrize(
    ("section", "missing"),
    [
        ("", ["triton_config"]),
        ("triton_config:\n  decoupled: False\n", ["max_batch_size"]),
        ("triton_config:\n  max_batch_size: 0\n", ["decoupled"]),
        ("triton_config: {}\n", ["max_batch_size", "decoupled"]),
        ("triton_config:\n  max_batch_size: 0\n  decoupled: False\n", []),
    ],
)
def test_what_nvidias_model_py_reads_without_a_default_must_be_there(tmp_path, section, missing):
    base = LLMAPI_YAML.split("triton_config")[0]
    llmapi(tmp_path / "r", section, NVIDIA, base)
    errors = found(tmp_path / "r")
    assert [f.code for f in errors] == ["TF-TRI-221"] * len(missing)
    assert all(name in f.message and "without a default" in f.message for name, f in zip(missing, errors, strict=True))
    for _ in missing:
        cured(tmp_path / "r", found(tmp_path / "r")[0])
    assert found(tmp_path / "r") == []


@pytest.mark.parametrize("line", ["guided_decoding_backend: xgrammar", "lora_config: {max_lora_rank: 8}"])
def test_a_setting_that_no_request_can_ask_for_is_a_warning(tmp_path, line):
    """https://github.com/NVIDIA/TensorRT/issues/4855"""
    llmapi(tmp_path / "r", f"{line}\n")
    (warning,) = found(tmp_path / "r")
    assert (warning.code, warning.severity, warning.line) == ("TF-TRI-255", "warning", 8)
    assert cured(tmp_path / "r", warning) == []


def test_unknown_names_in_every_section_are_errors(tmp_path):
    from triton_repo.lint.llm_arguments import load_arguments

    for index, section in enumerate(sorted(filter(None, load_arguments().known))):
        root = tmp_path / str(index)
        text = "xyzzy_plugh: 1"
        for part in reversed(section.split(".")):
            text = f"{part}: {{{text}}}"
        llmapi(root, f"{text}\n")
        errors = [f for f in found(root, "error") if "xyzzy_plugh" in f.message]
        assert [(f.code, f.severity) for f in errors] == [("TF-TRI-223", "error")], section


def test_a_plain_model_keeps_its_platform(tmp_path):
    simple_add_sub(tmp_path / "r")
    assert found(tmp_path / "r") == []
    assert PYTHON  # the stand-in that other tests share


def test_a_negative_batch_size_is_no_preferred_one(tmp_path: Path) -> None:
    """The remedy of one fault must not write the other."""
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: pass\n")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: -8\ndynamic_batching { preferred_batch_size: [ 4 ] }\n'
    )
    report = lint_repository(tmp_path)
    (finding,) = [item for item in report.findings if item.code == "TF-TRI-131"]
    assert "-8]" not in str(finding.to_json()["remedy"])
