"""A model's sizes from config.json: every spelling, and refusals instead of guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.planner.facts import default_workload, model_from_config, model_from_record, served_precision
from builder.planner.model import from_config
from builder.planner.types import ParallelPlan
from builder.planner.weights import groups_from_facts, in_precision, rank_weights
from quantize.intake.model_config import check_config
from tests.builder.planner.models import bare, known, reference
from tests.support.refusals import refusal
from trtforge.ground.errors import ForgeError
from trtforge.models.record import Experts, Latent, Model
from trtforge.recipe.load import recipe_from_mapping


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"vocab_size": True}, "vocab_size"),
        ({"num_key_value_heads": 3}, "key-value"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "active"),
        ({"model_type": "mixtral", "num_local_experts": 0, "num_experts_per_tok": 2}, "n_routed_experts"),
        ({"model_type": "qwen3_moe"}, "n_routed_experts"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"torch_dtype": 16}, "16"),
        ({"quantization_config": 5}, "quantization"),
        ({"quantization_config": "fp8"}, "quantization"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
        ({"intermediate_size": None}, "intermediate_size"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"model_type": "unheard_of", "tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"model_type": "unheard_of", "attention_bias": "false"}, "attention_bias"),
        ({"model_type": "unheard_of", "mlp_bias": "no"}, "mlp_bias"),
        ({"model_type": "unheard_of", "use_sliding_window": "false", "sliding_window": 64}, "use_sliding_window"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, object], word: str) -> None:
    error = refusal(from_config, bare(**changes))
    assert error.code == "TF-PLN-004" and word in error.message


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mamba", "state_size": 16},
        {"model_type": "jamba"},
        {"model_type": "falcon", "multi_query": True},
        {"model_type": "gpt2"},
        {"model_type": "t5"},
        {"model_type": "unheard_of", "hybrid_override_pattern": "M*M*"},
        {"model_type": "unheard_of", "is_encoder_decoder": True},
        {"model_type": "unheard_of", "alibi": True},
        {"layer_types": ["linear_attention", "full_attention"]},
    ],
)
def test_layers_of_another_kind_are_refused(changes: dict[str, Any]) -> None:
    error = refusal(from_config, bare(**changes))
    assert error.code == "TF-PLN-015" and error.remedies and "llama" in error.numbers["known"]


def test_what_is_assumed_is_said() -> None:
    assert from_config(bare()).assumed == ()
    (unknown,) = from_config(bare(model_type="unheard_of", architectures=["FooForCausalLM"])).assumed
    assert "FooForCausalLM" in unknown and "assumes Llama's layers" in unknown
    (dtype,) = from_config(bare(torch_dtype=None)).assumed
    assert "bfloat16" in dtype
    assert from_config(bare(torch_dtype="torch.float16")).dtype == "float16"


LLLG = ["sliding_attention"] * 3 + ["full_attention"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "gemma2", "sliding_window": 64}, (64, 2)),
        ({"model_type": "gemma2"}, (4096, 2)),
        ({"model_type": "gemma2", "sliding_window": None}, (0, 0)),
        ({"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 64}, (64, 10)),
        ({"model_type": "qwen2", "sliding_window": 64}, (0, 0)),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3}, (64, 1)),
        ({"model_type": "mistral", "sliding_window": 64}, (64, 4)),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG", "layer_types": LLLG}, (4096, 3)),
        ({"model_type": "olmo3"}, (4096, 3)),
    ],
)
def test_windows_follow_the_class(changes: dict[str, Any], expected: tuple[int, int]) -> None:
    model = from_config(bare(**changes))
    assert (model.sliding_window, model.window_layers) == expected


@pytest.mark.parametrize("changes", [{"sliding_window": 64}, {"use_sliding_window": True, "sliding_window": 64}])
def test_a_class_of_intakes_table_is_counted_by_its_row(changes: dict[str, Any]) -> None:
    """Llama reads no window, whatever stands in its config.json, and a rule that its row does not have is refused."""
    written = bare(head_dim=32, **changes)
    assert from_config(written).windows == check_config(written).windows == (0,) * 4
    error = refusal(from_config, bare(layer_types=LLLG))
    assert error.code == "TF-PLN-004" and "sliding_attention" in error.message


def test_what_a_config_leaves_out_is_the_classs() -> None:
    """transformers writes what differs from the class's own values only."""
    cohere = bare(model_type="cohere")
    del cohere["tie_word_embeddings"]
    assert from_config(cohere).tied
    glm = from_config(bare(model_type="glm4"))
    assert glm.attention_bias and not glm.o_bias and glm.head_size == 128
    assert not from_config(bare(model_type="glm4", attention_bias=False)).attention_bias


def test_scaling_stretches_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert from_config(bare(max_position_embeddings=32768, rope_scaling=yarn)).usable_positions == 131072
    assert from_config(bare(rope_scaling={"rope_type": "llama3", "factor": 8.0})).usable_positions == 4096


def test_intakes_record_is_stretched_as_the_config_is() -> None:
    """Both ways to a model give the same context to plan with."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    written = bare(head_dim=32, rope_scaling=yarn)
    record, read = model_from_record(check_config(written)).facts, from_config(written)
    assert record.usable_positions == read.usable_positions == 16_384
    recipe = recipe_from_mapping(
        {"name": "r", "model": {"source": "s"}, "build": {"limits": {"max_seq_len": 16_384}}}, Path()
    )
    assert default_workload(recipe.recipe, record).longest == default_workload(recipe.recipe, read).longest == 16_384


def test_unreadable_configurations_are_refused(tmp_path: Path) -> None:
    assert refusal(model_from_config, tmp_path / "absent.json").code == "TF-PLN-004"
    (tmp_path / "config.json").write_text("[1]", encoding="utf-8")
    assert refusal(model_from_config, tmp_path).code == "TF-PLN-004"


def test_quantized_configurations_say_so(tmp_path: Path) -> None:
    assert from_config(bare(quantization_config={"quant_method": "mxfp4"})).prequantized == "mxfp4"
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert from_config(bare(quantization_config=block)).prequantized == "fp8_block"
    (tmp_path / "config.json").write_text(json.dumps(bare()), encoding="utf-8")
    quant = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quant), encoding="utf-8")
    facts = model_from_config(tmp_path).facts
    assert (facts.prequantized, facts.prequantized_kv_cache) == ("nvfp4", "fp8")


@pytest.mark.parametrize(
    ("weights", "format"),
    [
        ({"type": "float", "num_bits": 8, "strategy": "tensor"}, "fp8"),
        ({"type": "float", "num_bits": 8, "strategy": "channel"}, "fp8_rowwise"),
        ({"type": "int", "num_bits": 4}, "int4_awq"),
        ({"type": "float", "num_bits": 4}, "nvfp4"),
    ],
)
def test_compressed_tensors_are_read(weights: dict[str, Any], format: str) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    assert from_config(bare(quantization_config=section)).prequantized == format


@pytest.mark.parametrize(
    "section",
    [
        {"quant_method": "bitsandbytes"},
        {"quant_algo": "W3A3"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 3}}}},
    ],
)
def test_unknown_quantizations_are_refused(section: dict[str, Any]) -> None:
    assert refusal(from_config, bare(quantization_config=section)).code == "TF-PLN-004"


def test_gpt_oss_takes_what_its_card_says() -> None:
    """The model card of gpt-oss-120b: 116.8 billion parameters, a checkpoint of 60.8 GiB."""
    config = {
        **reference()["models"]["openai/gpt-oss-120b"],
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        },
    }
    model = from_config(config)
    recipe = recipe_from_mapping({"name": "oss", "model": {"source": "somewhere"}}).recipe
    groups = in_precision(groups_from_facts(model), served_precision(recipe, model))
    assert model.parameters == pytest.approx(116.8e9, rel=1e-3)
    assert sum(rank_weights(groups, model, ParallelPlan()).values()) / 2**30 == pytest.approx(60.8, rel=2e-3)


def test_sizes_of_mixtures_and_latents() -> None:
    deepseek = known("deepseek-ai/DeepSeek-V3")
    assert deepseek.moe == Experts(256, 8, 2048, 2048, 3) and deepseek.moe_layers == 58
    assert deepseek.mla == Latent(512, 64, 1536, 128, 128) and deepseek.kv.elements(8) == 576
    sparse = from_config(bare(num_experts=8, num_experts_per_tok=2, decoder_sparse_step=2))
    assert sparse.moe == Experts(8, 2, 512, 0, 2)
    assert from_config({**bare(), "text_config": bare(num_hidden_layers=7)}).layers == 7


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)
KEYS = sorted(
    {key for model in reference()["models"].values() for key in model}
    | {"quantization_config", "text_config", "layer_types", "sliding_window", "sliding_window_pattern", "ignore"}
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), ANY_JSON, max_size=4), st.booleans())
def test_any_value_is_taken_or_refused(changes: dict[str, Any], mixture: bool) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2} if mixture else {}
    try:
        model = from_config(bare(**(experts | changes)))
    except ForgeError as error:
        assert error.code in ("TF-PLN-004", "TF-PLN-015") and error.remedies
        return
    assert isinstance(model, Model) and model.parameters > 0
