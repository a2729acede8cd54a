"""The llmapi layout as files: names, model.yaml, options of trtllm-serve, refusals; its request logic as functions."""

from datetime import timedelta

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from triton_repo.configs import print_config, read_config
from triton_repo.layouts import llmapi
from triton_repo.layouts.llmapi_code import request as code
from triton_repo.layouts.llmapi_settings import llm_arguments, serve_options
from triton_repo.lint.llm_arguments import load_arguments
from triton_repo.parameters import load_parameters
from triton_repo.validate import validate_repository
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Recipe

_INPUTS = """
text_input image_url streaming sampling_param_best_of sampling_param_temperature sampling_param_top_k
sampling_param_top_p sampling_param_frequency_penalty sampling_param_presence_penalty sampling_param_max_tokens
sampling_param_stop sampling_param_seed sampling_param_exclude_input_from_output
sampling_param_return_perf_metrics return_finish_reason return_stop_reason return_cumulative_logprob stop lora_id
lora_name lora_path lora_ckpt_source
"""
_OUTPUTS = """
text_output finish_reason stop_reason cumulative_logprob kv_cache_reused_block kv_cache_missed_block
kv_cache_alloc_new_blocks kv_cache_alloc_total_blocks kv_cache_hit_rate arrival_time_ns first_scheduled_time_ns
first_token_time_ns last_token_time_ns acceptance_rate total_accepted_draft_tokens total_draft_tokens
"""


def recipe(triton=None, build=None, **sections):
    document = {
        "name": "x",
        "model": {"source": "/m"},
        "build": {"target": "trtllm-llmapi", **(build or {})},
        "triton": {"layout": "llmapi", **(triton or {})},
        **sections,
    }
    return Recipe.model_validate(document)


def emitted(tmp_path, asked=None, **options):
    summary = llmapi.emit(asked or recipe(), tmp_path / "repository", **options)
    folder = tmp_path / "repository" / "tensorrt_llm"
    document = yaml.safe_load((folder / "1" / "model.yaml").read_text())
    return read_config(folder / "config.pbtxt"), document, summary


def test_tensors_are_those_of_nvidia_s_model_a_salt_and_a_count_of_tokens(tmp_path):
    config, _, _ = emitted(tmp_path)
    assert [tensor.name for tensor in config.input] == [*_INPUTS.split(), "cache_salt"]
    assert [tensor.name for tensor in config.output] == [*_OUTPUTS.split(), "num_output_tokens"]
    assert all(tensor.optional for tensor in config.input), "what is missing is refused by name, not by Triton's count"
    assert (config.backend, config.max_batch_size, config.instance_group[0].count) == ("python", 0, 1)
    assert print_config(config) == (tmp_path / "repository/tensorrt_llm/config.pbtxt").read_text()
    assert [f for f in validate_repository(tmp_path / "repository") if f.severity == "error"] == []


@pytest.mark.parametrize("decoupled", [True, False])
def test_both_files_say_the_same(tmp_path, decoupled):
    config, document, _ = emitted(tmp_path, recipe({"decoupled": decoupled}))
    assert config.model_transaction_policy.decoupled == decoupled
    assert document["triton_config"]["decoupled"] == decoupled
    assert document["triton_config"]["max_batch_size"] == config.max_batch_size == 0


def test_the_recipe_becomes_arguments_of_llm(tmp_path):
    asked = recipe(
        build={
            "limits": {"max_batch_size": 16, "max_num_tokens": 4096, "max_seq_len": 8192, "max_input_len": 8000},
            "kv_cache": {"memory": "2GiB", "block_size": 64},
            "parallel": {"tp": 4, "pp": 1, "ep": 2},
            "trtllm": {
                "kv_reuse": True,
                "scheduler_policy": "max_utilization",
                "guided_decoding": "xgrammar",
                "host_kv_memory": "1GiB",
                "lora": {"max_rank": 16, "target_modules": ["attn_q"]},
            },
        },
        speculation={"method": "eagle3", "draft": "/d", "max_draft_len": 3},
    )
    _, document, summary = emitted(
        tmp_path, asked, draft_reference="../../draft", adapters_reference="../../adapters", adapters=("../../a",)
    )
    triton = document.pop("triton_config")
    assert triton["lora_directory"] == "../../adapters"
    assert document == summary["arguments"]
    assert document == {
        "model": "../../checkpoint",
        "backend": "pytorch",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": 2,
        "max_batch_size": 16,
        "max_num_tokens": 4096,
        "max_seq_len": 8192,
        "max_input_len": 8000,
        "max_beam_width": 1,
        "enable_chunked_prefill": True,
        "gather_generation_logits": False,
        "guided_decoding_backend": "xgrammar",
        "kv_cache_config": {
            "enable_block_reuse": True,
            "tokens_per_block": 64,
            "dtype": "auto",
            "max_gpu_total_bytes": 2 * 2**30,
            "host_cache_size": 2**30,
        },
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "speculative_config": {
            "decoding_type": "Eagle3",
            "max_draft_len": 3,
            "speculative_model": "../../draft",
        },
        "lora_config": {"max_lora_rank": 16, "lora_target_modules": ["attn_q"], "lora_dir": ["../../a"]},
    }


def test_eagle_has_its_older_name_in_the_older_stack():
    asked = recipe(speculation={"method": "eagle3", "draft": "/d"}, stack="trtllm-1.2.1")
    older = {"decoding_type": "Eagle", "max_draft_len": 4, "speculative_model_dir": "d"}
    assert llm_arguments(asked, "m", draft="d")["speculative_config"] == older
    ngram = llm_arguments(recipe(speculation={"method": "ngram"}), "m")["speculative_config"]
    assert ngram == {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 8}


@pytest.mark.parametrize(
    ("stack", "kind", "key"),
    [("trtllm-1.3", "Draft_Target", "speculative_model"), ("trtllm-1.2.1", "DraftTarget", "speculative_model_dir")],
)
def test_a_draft_model_is_named_as_the_stack_names_it(stack, kind, key):
    asked = recipe(speculation={"method": "draft_target", "draft": "/d", "max_draft_len": 3}, stack=stack)
    config = llm_arguments(asked, "m", draft="d")["speculative_config"]
    assert config == {"decoding_type": kind, "max_draft_len": 3, key: "d"}


def test_what_is_written_is_known_to_lint():
    asked = recipe(speculation={"method": "eagle3", "draft": "/d"})
    table = load_arguments()
    arguments = llm_arguments(asked, "m", draft="d")
    assert set(arguments) <= set(table.known[""])
    for section in ("kv_cache_config", "scheduler_config", "speculative_config"):
        assert set(arguments[section]) <= set(table.known[section])
    rows = [row.name.split(" ")[0].split(".") for row in load_parameters("llmapi").rows if row.place == "yaml"]
    for first, *rest in rows:
        assert first in (*table.known[""], *table.wrapper)
        if rest and first in table.known:
            assert rest[0] in table.known[first]


def test_serve_options_hold_the_same_settings():
    asked = recipe(build={"parallel": {"tp": 2}, "kv_cache": {"free_fraction": "80%"}})
    options = serve_options(asked, "checkpoint", port=9000)
    words = list(options.command)
    assert words[:2] == ["trtllm-serve", "checkpoint"]
    assert words[words.index("--tp_size") + 1] == "2"
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--extra_llm_api_options") + 1] == options.file_name
    assert "--ep_size" not in words
    rest = yaml.safe_load(options.file_text)
    arguments = llm_arguments(asked, "checkpoint")
    assert rest.items() <= arguments.items()
    named = {"model", "backend", "tensor_parallel_size", "pipeline_parallel_size"}
    assert arguments.keys() - rest.keys() - named == {
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "max_beam_width",
    }
    assert rest["kv_cache_config"]["free_gpu_memory_fraction"] == 0.8


REFUSED = [
    ("TF-TRI-061", {"triton": {"parameters": {"gpu_devices": "0"}}}),
    ("TF-TRI-062", {"triton": {"parameters": {"gpu_device_ids": "${gpu_device_ids}"}}}),
    ("TF-TRI-065", {"speculation": {"method": "medusa"}}),
    ("TF-TRI-065", {"speculation": {"method": "ngram"}, "build": {"parallel": {"pp": 2}}}),
    ("TF-TRI-065", {"speculation": {"method": "draft_target"}}),
    ("TF-TRI-066", {"build": {"parallel": {"tp": 4, "ep": 3}}}),
    ("TF-TRI-067", {"triton": {"parameters": {"gpu_device_ids": "0;1"}}, "build": {"parallel": {"tp": 2}}}),
    ("TF-TRI-067", {"triton": {"parameters": {"gpu_device_ids": "0,1;1,2"}}, "build": {"parallel": {"tp": 2}}}),
]


@pytest.mark.parametrize(("code", "sections"), REFUSED)
def test_what_cannot_work_is_refused_and_nothing_is_written(tmp_path, code, sections):
    with pytest.raises(ForgeError) as caught:
        llmapi.emit(recipe(**sections), tmp_path / "repository")
    assert caught.value.code == code
    assert caught.value.remedies
    assert list(tmp_path.iterdir()) == []


def test_instances_have_devices_of_their_own(tmp_path):
    asked = recipe({"parameters": {"gpu_device_ids": "0,1;2,3"}}, {"parallel": {"tp": 2}})
    config, _, _ = emitted(tmp_path, asked)
    assert config.instance_group[0].count == 2
    assert code.instance_devices("0,1;2,3", "tensorrt_llm_0_1") == "2,3"
    assert code.instance_devices("", "tensorrt_llm_0") is None
    with pytest.raises(ValueError, match="TF-TRI-083"):
        code.instance_devices("0,1", "tensorrt_llm_1")


@given(st.text(alphabet="ab🙂é", max_size=12), st.data())
def test_pieces_joined_are_the_text_and_hold_no_half_character(text, data):
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    shown = ""
    for end in ends:
        half = data.draw(st.booleans()) and end < len(text)
        piece = code.piece(shown, text[:end] + ("\ufffd" if half else ""), finished=False)
        assert "\ufffd" not in piece
        shown += piece
    assert shown + code.piece(shown, text, finished=True) == text


def test_only_what_was_sent_is_passed_on():
    one = np.array([0.5], dtype=np.float32)
    assert code.sampling({}) == {}
    given = {
        "sampling_param_temperature": one,
        "sampling_param_seed": np.array([7], dtype=np.uint64),
        "sampling_param_stop": np.array([b"", b"end"], dtype=np.object_),
        "return_cumulative_logprob": np.array([True]),
    }
    assert code.sampling(given) == {"temperature": 0.5, "seed": 7, "stop": ["end"], "logprobs": 1}
    with pytest.raises(code.Refused, match="TF-TRI-080"):
        code.sampling({"sampling_param_top_k": np.array([1, 2], dtype=np.int32)})


def guided_tensors(**values):
    return {f"guided_decoding_{name}": np.array([text.encode()], dtype=np.object_) for name, text in values.items()}


@pytest.mark.parametrize(
    ("values", "given"),
    [
        ({}, None),
        ({"guide_type": "json"}, {"json_object": True}),
        ({"guide_type": "json_schema", "guide": "{}"}, {"json": "{}"}),
        ({"guide_type": "regex", "guide": "[ab]+"}, {"regex": "[ab]+"}),
        ({"guide_type": "ebnf_grammar", "guide": "root ::= x"}, {"grammar": "root ::= x"}),
        ({"guide_type": "regexp", "guide": "x"}, "one of json, json_schema"),
        ({"guide": "x"}, "guide_type is None"),
        ({"guide_type": "regex"}, "needs guided_decoding_guide"),
        ({"guide_type": "json", "guide": "{}"}, "takes no guided_decoding_guide"),
    ],
)
def test_a_guide_becomes_the_arguments_of_guided_decoding(values, given):
    if isinstance(given, str):
        with pytest.raises(code.Refused, match=f"TF-TRI-091.*{given}"):
            code.guide(guided_tensors(**values))
    else:
        assert code.guide(guided_tensors(**values)) == given


def test_a_recipe_with_guided_decoding_gets_tensors_to_ask_for_it(tmp_path):
    config, document, _ = emitted(tmp_path, recipe(build={"trtllm": {"guided_decoding": "xgrammar"}}))
    names = [tensor.name for tensor in config.input]
    assert names == [*_INPUTS.split(), "cache_salt", "guided_decoding_guide_type", "guided_decoding_guide"]
    assert document["guided_decoding_backend"] == "xgrammar"
    assert validate_repository(tmp_path / "repository") == []


def test_a_recipe_with_beams_gets_a_tensor_to_ask_for_them(tmp_path):
    config, document, _ = emitted(tmp_path, recipe(build={"trtllm": {"max_beam_width": 4}}))
    assert [tensor.name for tensor in config.input] == [
        *_INPUTS.split(),
        "cache_salt",
        "sampling_param_use_beam_search",
    ]
    assert document["max_beam_width"] == 4 and validate_repository(tmp_path / "repository") == []
    asked = {
        "sampling_param_use_beam_search": np.array([True]),
        "sampling_param_best_of": np.array([4], dtype=np.int32),
    }
    assert code.sampling(asked) == {"use_beam_search": True, "best_of": 4}


def adapter_tensors(path):
    return {
        "lora_id": np.array([3], dtype=np.uint64),
        "lora_name": np.array([b"fr"], dtype=np.object_),
        "lora_path": np.array([path.encode()], dtype=np.object_),
    }


def test_an_adapter_lies_in_the_server_s_folder(tmp_path):
    (tmp_path / "adapters" / "fr").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    folder = tmp_path / "adapters"
    assert code.adapter({}, folder) is None
    found = code.adapter(adapter_tensors("fr"), folder)
    assert found == {
        "lora_name": "fr",
        "lora_int_id": 3,
        "lora_path": str(folder / "fr"),
        "lora_ckpt_source": "hf",
    }
    for path in ("../secret", str(tmp_path / "secret"), "nothing"):
        with pytest.raises(code.Refused, match="TF-TRI-082"):
            code.adapter(adapter_tensors(path), folder)
    with pytest.raises(code.Refused, match="TF-TRI-082"):
        code.adapter(adapter_tensors("fr"), None)
    incomplete = adapter_tensors("fr")
    del incomplete["lora_name"]
    with pytest.raises(code.Refused, match="TF-TRI-081"):
        code.adapter(incomplete, folder)


def test_times_become_nanoseconds():
    assert code._nanoseconds(timedelta(days=1, microseconds=3)) == 86_400_000_003_000
