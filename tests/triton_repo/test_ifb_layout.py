"""Repositories of the inflight_batcher_llm layout as messages: names, types, values, and what is refused."""

import json
import re
import subprocess
import sys

import pytest

from tests.triton_repo.served import ENGINE
from triton_repo.configs import print_config, read_config
from triton_repo.layouts import inflight_batcher_llm as layout
from triton_repo.trtllm_engine import describe_engine
from triton_repo.validate import validate_repository
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Recipe

_INPUTS = """
input_ids encoder_input_features encoder_output_lengths input_lengths request_output_len num_return_sequences
draft_input_ids decoder_input_ids decoder_input_lengths draft_logits draft_acceptance_threshold end_id pad_id
stop_words_list bad_words_list embedding_bias beam_width temperature runtime_top_k runtime_top_p runtime_top_p_min
runtime_top_p_decay runtime_top_p_reset_ids len_penalty early_stopping repetition_penalty min_tokens
beam_search_diversity_rate presence_penalty frequency_penalty seed return_log_probs return_context_logits
return_generation_logits return_perf_metrics return_num_input_tokens return_num_output_tokens
exclude_input_in_output stop streaming prompt_embedding_table prompt_table_extra_ids prompt_vocab_size
cross_attention_mask mrope_rotary_cos_sin mrope_position_deltas lora_task_id lora_weights lora_config
context_phase_params skip_cross_attn_blocks retention_token_range_starts retention_token_range_ends
retention_token_range_priorities retention_token_range_durations_ms retention_decode_priority
retention_decode_duration_ms guided_decoding_guide_type guided_decoding_guide lookahead_window_size
lookahead_ngram_size lookahead_verification_set_size
"""
INPUTS = _INPUTS.split()
_OUTPUTS = """
output_ids sequence_length cum_log_probs output_log_probs context_logits generation_logits batch_index
sequence_index context_phase_params kv_cache_alloc_new_blocks kv_cache_reused_blocks kv_cache_alloc_total_blocks
arrival_time_ns first_scheduled_time_ns first_token_time_ns last_token_time_ns acceptance_rate
total_accepted_draft_tokens total_draft_tokens num_input_tokens num_output_tokens
"""
OUTPUTS = _OUTPUTS.split()
_PARAMETERS = """
max_beam_width FORCE_CPU_ONLY_INPUT_TENSORS gpt_model_type gpt_model_path encoder_model_path executor_worker_path
tokenizer_dir max_tokens_in_paged_kv_cache max_attention_window_size sink_token_length
kv_cache_free_gpu_mem_fraction cross_kv_cache_fraction kv_cache_host_memory_bytes kv_cache_onboard_blocks
enable_kv_cache_reuse batch_scheduler_policy enable_chunked_context cancellation_check_period_ms
stats_check_period_ms recv_poll_period_ms iter_stats_max_iterations request_stats_max_iterations
exclude_input_in_output normalize_log_probs gpu_device_ids participant_ids num_nodes gpu_weights_percent
lora_cache_optimal_adapter_size lora_cache_max_adapter_size lora_cache_gpu_memory_fraction
lora_cache_host_memory_bytes lora_prefetch_dir decoding_mode lookahead_window_size lookahead_ngram_size
lookahead_verification_set_size medusa_choices eagle_choices speculative_decoding_fast_logits
enable_context_fmha_fp32_acc multi_block_mode cuda_graph_mode cuda_graph_cache_size guided_decoding_backend
xgrammar_tokenizer_info_path
"""
PARAMETERS = _PARAMETERS.split()


def recipe(triton=None, **sections):
    document = {
        "name": "x",
        "model": {"source": "/m"},
        **sections,
        "build": {"target": "trtllm-engine", **sections.get("build", {})},
        "triton": {"layout": "inflight_batcher_llm", **(triton or {})},
    }
    return Recipe.model_validate(document)


def emitted(tmp_path, asked=None, **engine):
    layout.emit(asked or recipe(), {**ENGINE, **engine}, tmp_path / "repository")
    return {name: read_config(tmp_path / "repository" / name / "config.pbtxt") for name in layout.MODELS}


def parameters(config):
    return {key: value.string_value for key, value in config.parameters.items()}


def test_the_engine_s_model_has_all_46_parameters_62_inputs_and_21_outputs(tmp_path):
    assert (len(PARAMETERS), len(INPUTS), len(OUTPUTS)) == (46, 62, 21)
    config = emitted(tmp_path)["tensorrt_llm"]
    assert sorted(config.parameters) == sorted(PARAMETERS)
    assert [tensor.name for tensor in config.input] == INPUTS
    assert [tensor.name for tensor in config.output] == OUTPUTS
    assert config.backend == "tensorrtllm"


def test_types_dims_and_reshapes_are_the_contract_s(tmp_path):
    config = emitted(tmp_path, logits_dtype="float16", dtype="bfloat16")["tensorrt_llm"]
    by_name = {tensor.name: tensor for tensor in config.input}
    assert [name for name, tensor in by_name.items() if not tensor.optional] == ["input_lengths", "request_output_len"]
    scalar = by_name["beam_width"]
    assert list(scalar.dims) == [1]
    assert scalar.HasField("reshape")
    assert list(scalar.reshape.shape) == []
    assert list(by_name["stop_words_list"].dims) == [2, -1]
    assert by_name["stop_words_list"].allow_ragged_batch
    assert not by_name["lora_config"].HasField("reshape")
    types = {tensor.name: tensor.data_type for tensor in (*config.input, *config.output)}
    pb = type(config).DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name
    assert types["draft_logits"] == types["generation_logits"] == pb["TYPE_FP16"].number
    assert types["lora_weights"] == types["prompt_embedding_table"] == pb["TYPE_BF16"].number
    assert types["seed"] == pb["TYPE_UINT64"].number
    assert types["arrival_time_ns"] == pb["TYPE_INT64"].number


@pytest.mark.parametrize("decoupled", [True, False])
def test_one_choice_of_streaming_batch_and_types_in_all_models(tmp_path, decoupled):
    configs = emitted(tmp_path, recipe({"decoupled": decoupled}), logits_dtype="float16")
    assert {config.max_batch_size for config in configs.values()} == {ENGINE["max_batch_size"]}
    flags = {n: configs[n].model_transaction_policy.decoupled for n in ("tensorrt_llm", "tensorrt_llm_bls", "ensemble")}
    assert set(flags.values()) == {decoupled}
    for name in ("tensorrt_llm", "tensorrt_llm_bls", "ensemble"):
        types = {t.data_type for t in configs[name].output if t.name.endswith("_logits")}
        assert len(types) == 1
        assert types == {t.data_type for t in configs["tensorrt_llm"].output if t.name == "context_logits"}


def test_ensemble_maps_only_tensors_that_its_steps_have(tmp_path):
    configs = emitted(tmp_path)
    ensemble = configs["ensemble"]
    made = {tensor.name: tensor for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        member = configs[step.model_name]
        inputs = {tensor.name: tensor for tensor in member.input}
        outputs = {tensor.name: tensor for tensor in member.output}
        for inner, outer in step.input_map.items():
            assert outer in made, f"{step.model_name}.{inner} reads {outer} before it is made"
            assert inputs[inner].data_type == made[outer].data_type, inner
        required = {name for name, tensor in inputs.items() if not tensor.optional}
        assert required <= step.input_map.keys()
        made.update({outer: outputs[inner] for inner, outer in step.output_map.items()})
    for tensor in ensemble.output:
        assert made[tensor.name].data_type == tensor.data_type
        assert list(made[tensor.name].dims) == list(tensor.dims)


def test_clients_find_the_names_of_nvidia_s_ensemble(tmp_path):
    names = {tensor.name for tensor in emitted(tmp_path)["ensemble"].input}
    assert {
        "text_input", "max_tokens", "bad_words", "stop_words", "end_id", "pad_id", "top_k", "top_p", "temperature",
        "length_penalty", "repetition_penalty", "min_tokens", "presence_penalty", "frequency_penalty", "seed",
        "return_log_probs", "return_context_logits", "return_generation_logits", "beam_width", "stream",
        "exclude_input_in_output",
    } <= names  # fmt: skip


def test_the_recipe_reaches_the_parameters(tmp_path):
    asked = recipe(
        {"queue_delay_us": 500, "preprocessing_instances": 3, "accumulate_tokens": False},
        build={
            "kv_cache": {"memory": "2MiB"},
            "trtllm": {"kv_reuse": True, "scheduler_policy": "max_utilization", "host_kv_memory": "1GiB"},
        },
    )
    configs = emitted(tmp_path, asked, max_beam_width=1)
    values = parameters(configs["tensorrt_llm"])
    assert values["max_tokens_in_paged_kv_cache"] == "2048"  # 2 MiB / 1024 bytes a token, whole blocks
    assert values["enable_kv_cache_reuse"] == values["exclude_input_in_output"] == "true"
    assert values["batch_scheduler_policy"] == "max_utilization"
    assert values["kv_cache_host_memory_bytes"] == str(2**30)
    assert values["decoding_mode"] == "top_k_top_p"
    assert configs["tensorrt_llm"].dynamic_batching.max_queue_delay_microseconds == 500
    assert configs["preprocessing"].instance_group[0].count == 3
    assert parameters(configs["tensorrt_llm_bls"])["accumulate_tokens"] == "false"
    assert parameters(configs["preprocessing"])["vocab_size"] == "512"


def test_free_fraction_lora_guided_decoding_and_orchestrator(tmp_path):
    asked = recipe(
        {"launch": "orchestrator"},
        build={
            "kv_cache": {"free_fraction": "85%"},
            "parallel": {"tp": 2},
            "trtllm": {"lora": {"max_rank": 16}, "guided_decoding": "xgrammar"},
        },
    )
    engine = {"tp": 2, "max_lora_rank": 16, "xgrammar_tokenizer_info": "xgrammar_tokenizer_info.json"}
    values = parameters(emitted(tmp_path, asked, **engine)["tensorrt_llm"])
    assert values["kv_cache_free_gpu_mem_fraction"] == "0.85"
    assert values["lora_cache_max_adapter_size"] == values["lora_cache_optimal_adapter_size"] == "16"
    assert values["xgrammar_tokenizer_info_path"] == "engine/xgrammar_tokenizer_info.json"
    assert values["gpu_device_ids"] == "0,1"
    assert values["decoding_mode"] == "beam_search"  # the engine has two beams


SPECULATION = [
    ({"method": "medusa", "choices": [[0], [0, 1]]}, "medusa", {"medusa_choices": "{0}, {0, 1}"}),
    ({"method": "eagle", "choices": [[0], [1]]}, "eagle", {"eagle_choices": "{0}, {1}", "medusa_choices": ""}),
    (
        {"method": "lookahead", "lookahead": {"window": 7, "ngram": 5, "verification": 6}},
        "lookahead_decoding",
        {"lookahead_window_size": "7", "lookahead_ngram_size": "5", "lookahead_verification_set_size": "6"},
    ),
]


@pytest.mark.parametrize(("section", "built", "expected"), SPECULATION)
def test_speculation_becomes_the_decoding_mode(tmp_path, section, built, expected):
    values = parameters(emitted(tmp_path, recipe(speculation=section), speculation=built)["tensorrt_llm"])
    assert values["decoding_mode"] == section["method"]
    assert expected.items() <= values.items()


def test_the_recipe_s_own_parameters_win_and_are_checked(tmp_path):
    values = parameters(emitted(tmp_path, recipe({"parameters": {"cuda_graph_mode": "true"}}))["tensorrt_llm"])
    assert values["cuda_graph_mode"] == "true"


REFUSED = [
    ("TF-TRI-061", {"triton": {"parameters": {"kv_cache_free_gpu_memory_fraction": "0.5"}}}, {}),
    ("TF-TRI-062", {"triton": {"parameters": {"kv_cache_free_gpu_mem_fraction": "90%"}}}, {}),
    ("TF-TRI-062", {"triton": {"parameters": {"max_beam_width": "${max_beam_width}"}}}, {}),
    ("TF-TRI-062", {"triton": {"parameters": {"medusa_choices": "[[0],[0,1]]"}}}, {}),
    ("TF-TRI-062", {"triton": {"parameters": {"gpt_model_path": ""}}}, {}),
    ("TF-TRI-064", {"build": {"trtllm": {"kv_reuse": True}}}, {"paged_context_attention": False}),
    ("TF-TRI-064", {"build": {"parallel": {"tp": 2}}}, {}),
    ("TF-TRI-064", {"build": {"kv_cache": {"memory": "1GiB"}}}, {"kv_bytes_per_token": None}),
    ("TF-TRI-064", {"build": {"kv_cache": {"memory": "100KiB"}}}, {}),
    ("TF-TRI-064", {"speculation": {"method": "medusa"}}, {"speculation": "eagle"}),
    ("TF-TRI-064", {"speculation": {"method": "ngram"}}, {}),
    ("TF-TRI-064", {"speculation": {"method": "draft_target"}}, {"speculation": "draft_tokens_external"}),
    ("TF-TRI-064", {"build": {"trtllm": {"lora": {"max_rank": 64}}}}, {"max_lora_rank": 8}),
    ("TF-TRI-064", {"build": {"trtllm": {"guided_decoding": "xgrammar"}}}, {}),
    ("TF-TRI-063", {}, {"logits_dtype": "int8"}),
]


@pytest.mark.parametrize(("code", "sections", "engine"), REFUSED)
def test_what_cannot_work_is_refused_and_nothing_is_written(tmp_path, code, sections, engine):
    sections = dict(sections)
    asked = recipe(sections.pop("triton", None), **sections)
    with pytest.raises(ForgeError) as caught:
        layout.emit(asked, {**ENGINE, **engine}, tmp_path / "repository")
    assert caught.value.code == code
    assert caught.value.remedies
    assert list(tmp_path.iterdir()) == []


def test_a_description_that_lacks_facts_is_refused(tmp_path):
    with pytest.raises(ForgeError) as caught:
        layout.emit(recipe(), {"max_batch_size": 4}, tmp_path / "repository")
    assert caught.value.code == "TF-TRI-063"
    assert "vocab_size" in (caught.value.why or "")


def test_several_faults_are_told_at_once(tmp_path):
    asked = recipe(build={"parallel": {"tp": 2}, "trtllm": {"guided_decoding": "xgrammar"}})
    with pytest.raises(ForgeError) as caught:
        layout.emit(asked, ENGINE, tmp_path / "repository")
    assert len(caught.value.remedies) == 2


def test_emitted_twice_the_bytes_are_the_same_and_nothing_is_left_open(tmp_path):
    emitted(tmp_path)
    layout.emit(recipe(), ENGINE, tmp_path / "again")
    first = {p.relative_to(tmp_path / "repository"): p for p in (tmp_path / "repository").rglob("*") if p.is_file()}
    for relative, path in first.items():
        assert path.read_bytes() == (tmp_path / "again" / relative).read_bytes()
        if path.suffix == ".pbtxt":
            text = path.read_text()
            assert not re.search(r"\$\{|\$", text)
            assert print_config(read_config(path)) == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "repository"]
    assert [f for f in validate_repository(tmp_path / "repository") if f.severity == "error"] == []
    with pytest.raises(ForgeError) as caught:
        layout.emit(recipe(), ENGINE, tmp_path / "again")
    assert caught.value.code == "TF-TRI-003"


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "repository").mkdir()
    assert emitted(tmp_path)["ensemble"].platform == "ensemble"


SELF_CONTAINED = """
import sys, types
sys.path = [p for p in sys.path if "work" not in p or "site-packages" in p]
blocked = ("runtime", "trtforge", "triton_repo")
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
sys.modules["triton_python_backend_utils"] = types.SimpleNamespace(TRITONSERVER_RESPONSE_COMPLETE_FINAL=1)
sys.path.append(sys.argv[1])
import importlib
print(importlib.import_module("1.model").TritonPythonModel.__name__)
"""


@pytest.mark.parametrize("model", ["preprocessing", "postprocessing", "tensorrt_llm_bls"])
def test_the_models_bring_along_all_that_they_import(tmp_path, model):
    emitted(tmp_path)
    command = [sys.executable, "-c", SELF_CONTAINED, str(tmp_path / "repository" / model)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout == "TritonPythonModel\n", done.stderr


def engine_config(**build):
    return {
        "version": "1.2.1",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "logits_dtype": "float32",
            "vocab_size": 128256,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_size": 128,
            "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        },
        "build_config": {
            "max_input_len": 4095,
            "max_seq_len": 4096,
            "max_batch_size": 64,
            "max_beam_width": 1,
            "max_num_tokens": 8192,
            "plugin_config": {"tokens_per_block": 32, "use_paged_context_fmha": True},
            **build,
        },
    }


def test_an_engine_directory_is_described(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(engine_config(speculative_decoding_mode=4, max_draft_len=63)))
    found = describe_engine(tmp_path)
    assert found["kv_bytes_per_token"] == 2 * 32 * 4 * 128  # 32 layers, 4 of 8 heads a rank, one byte each
    assert (found["tp"], found["pp"], found["vocab_size"]) == (2, 1, 128256)
    assert (found["speculation"], found["max_draft_len"]) == ("medusa", 63)
    assert found["max_lora_rank"] == 0
    named = engine_config(speculative_decoding_mode="EAGLE", lora_config={"max_lora_rank": 32})
    named["build_config"]["plugin_config"]["lora_plugin"] = "auto"
    (tmp_path / "config.json").write_text(json.dumps(named))
    found = describe_engine(tmp_path)
    assert (found["speculation"], found["max_lora_rank"]) == ("eagle", 32)
    named["pretrained_config"]["eagle_net_config"] = {"num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(named))
    assert describe_engine(tmp_path)["kv_bytes_per_token"] == 2 * 33 * 4 * 128  # the drafter's layer, in the same pool


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pretrained_config": {}, "build_config": {}}', '{"version": 1}'])
def test_a_folder_that_is_no_engine_is_refused(tmp_path, text):
    if text:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ForgeError) as caught:
        describe_engine(tmp_path)
    assert caught.value.code == "TF-TRI-063"


def test_code_files_are_the_sources_of_what_is_shipped():
    names = {path.name for path in layout.code_files()}
    assert {"bls_model.py", "preprocessing_model.py", "postprocessing_model.py", "detokenizer.py"} <= names


DRAFTED = {
    "speculation": {"method": "draft_target"},
    "build": {"trtllm": {"kv_reuse": True}, "kv_cache": {"memory": "64MiB"}},
}
TARGET = {**ENGINE, "speculation": "draft_tokens_external", "max_draft_len": 5, "max_beam_width": 1}


def drafted(tmp_path, draft, **sections):
    layout.emit(recipe(**{**DRAFTED, **sections}), TARGET, tmp_path / "r", draft=draft, draft_reference="e/draft")
    return parameters(read_config(tmp_path / "r" / layout.DRAFT_MODEL / "config.pbtxt"))


def test_a_draft_engine_has_its_own_window_and_device(tmp_path):
    triton = {"layout": layout.LAYOUT, "launch": "orchestrator"}
    draft = {**TARGET, "speculation": "none", "max_attention_window_size": "64"}
    values = drafted(tmp_path, draft, triton=triton)
    assert (values["gpt_model_path"], values["max_attention_window_size"]) == ("e/draft", "64")
    assert (values["gpu_device_ids"], values["enable_kv_cache_reuse"]) == ("0", "true")


@pytest.mark.parametrize(
    ("change", "sections", "says"),
    [
        ({"vocab_size": 7}, {}, "the draft has 7 tokens"),
        ({"tp": 2}, {}, "runs on one GPU"),
        ({"kv_bytes_per_token": None}, {}, "does not say how many bytes"),
        ({}, {"build": {"kv_cache": {"memory": "64MiB"}}}, "compute the whole text anew"),
        ({}, {"build": {"trtllm": {"kv_reuse": True}}}, "leave the other none"),
    ],
)
def test_two_engines_that_do_not_go_together_are_refused(tmp_path, change, sections, says):
    with pytest.raises(ForgeError) as caught:
        drafted(tmp_path, {**TARGET, "speculation": "none", **change}, **sections)
    assert caught.value.code == "TF-TRI-064" and says in str(caught.value.why)
    assert not (tmp_path / "r").exists()
