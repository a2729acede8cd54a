"""TensorRT-LLM's checkpoint: de-sharded and de-quantized it is the model again; splits that cannot be are refused."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.targets.trtllm.checkpoint import convert_checkpoint, trtllm_config
from builder.targets.trtllm.ranks import all_ranks, kv_heads_of, layers_of
from builder.targets.trtllm.source import Checkpoint
from tests.builder.quantized_tiny import Quantizer, read_tensors
from tests.builder.targets.trtllm.deshard import deshard, load_file, load_ranks
from tests.support.tiny import write_tiny_llama
from trtforge.ground.e4m3 import decode, rescale_table
from trtforge.ground.errors import ForgeError

FORMATS = ("none", "fp8", "int4_awq", "nvfp4")
SHAPE = {"width": 128, "heads": 8, "kv_heads": 4, "ffn": 256, "vocab": 515, "layers": 3}


def make(directory: Path, fmt: str, *, kv: bool = True, **options: object) -> Quantizer:
    """A tiny checkpoint in ``fmt``, with an FP8 KV cache where that and ``kv`` say so; NVFP4 with shared scales."""
    write_tiny_llama(directory, **{**SHAPE, **options})
    quantizer = Quantizer(directory, fmt, kv_fp8=kv and fmt != "none")
    if fmt == "nvfp4":
        share_global_scales(directory, quantizer)
    return quantizer


def share_global_scales(directory: Path, quantizer: Quantizer) -> None:
    """Give q, k and v one weight_scale_2, as ModelOpt's export does: another checkpoint with the same bits."""
    from tests.support.tiny import write_safetensors

    names = {"bfloat16": "BF16", "uint8": "U8", "float8_e4m3fn": "F8_E4M3", "float32": "F32"}
    tensors = read_tensors(directory)
    for name in list(tensors):
        if name.endswith((".k_proj.weight_scale_2", ".v_proj.weight_scale_2")):
            shared = name.replace("k_proj", "q_proj").replace("v_proj", "q_proj")
            module = name.removesuffix("_scale_2")
            quantizer.meaning[module] = quantizer.meaning[module] / tensors[name] * tensors[shared]
            tensors[name] = tensors[shared]
    write_safetensors(directory / "model.safetensors", {k: (names[str(v.dtype)], v) for k, v in tensors.items()})


def meaning(directory: Path, quantizer: Quantizer) -> dict[str, np.ndarray]:
    """float32 weights that the Hugging Face checkpoint stands for."""
    model = {name: values for name, values in read_tensors(directory).items() if name.endswith("weight")}
    model |= quantizer.meaning
    model.setdefault("lm_head.weight", model["model.embed_tokens.weight"])
    return {name: values.astype(np.float32) for name, values in model.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Quantizer]]:
    folder = tmp_path_factory.mktemp("models")
    return {fmt: (folder / fmt, make(folder / fmt, fmt)) for fmt in FORMATS}


@settings(max_examples=40, deadline=None)
@given(fmt=st.sampled_from(FORMATS), tp=st.sampled_from((1, 2, 4, 8)), pp=st.integers(1, 3))
def test_the_ranks_hold_the_model(models: dict[str, tuple[Path, Quantizer]], fmt: str, tp: int, pp: int) -> None:
    directory, quantizer = models[fmt]
    with tempfile.TemporaryDirectory() as folder:
        summary = convert_checkpoint(directory, Path(folder), tp=tp, pp=pp)
        found = deshard(Path(folder))
    wanted = meaning(directory, quantizer)
    assert set(found) == set(wanted)
    fused = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    for name, values in wanted.items():
        if fmt == "fp8" and name.endswith(fused):
            # one scale for the three: at most one more rounding, half a unit in E4M3's last place
            step = np.maximum(np.abs(values) / 16, np.abs(values).max() / 448 * 2**-7)
            assert (np.abs(found[name] - values) <= step).all(), name
        else:
            np.testing.assert_allclose(found[name], values, rtol=2e-6, atol=0, err_msg=name)
    counted = summary["requantized"]
    assert (counted["weights"] > 0) == (fmt == "fp8")
    assert counted["largest_relative_change"] <= 1 / 16


@settings(max_examples=12, deadline=None)
@given(kv_heads=st.sampled_from((1, 2, 8)), tp=st.sampled_from((1, 2, 4, 8)), fmt=st.sampled_from(("none", "nvfp4")))
def test_shared_single_and_own_kv_heads(kv_heads: int, tp: int, fmt: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        quantizer = make(Path(folder) / "model", fmt, kv_heads=kv_heads, layers=1)
        convert_checkpoint(Path(folder) / "model", Path(folder) / "out", tp=tp)
        found = deshard(Path(folder) / "out")
        for name, values in meaning(Path(folder) / "model", quantizer).items():
            np.testing.assert_allclose(found[name], values, rtol=2e-6, atol=0, err_msg=name)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_configuration_says_what_the_ranks_hold(
    models: dict[str, tuple[Path, Quantizer]], fmt: str, tmp_path: Path
) -> None:
    directory, quantizer = models[fmt]
    convert_checkpoint(directory, tmp_path, tp=2)
    config, ranks = load_ranks(tmp_path)
    algorithm = {"none": None, "fp8": "FP8", "int4_awq": "W4A16_AWQ", "nvfp4": "NVFP4"}[fmt]
    assert config["quantization"]["quant_algo"] == algorithm
    assert config["quantization"]["kv_cache_quant_algo"] == (None if fmt == "none" else "FP8")
    assert config["quantization"]["exclude_modules"] == ["lm_head"]
    assert config["mapping"] == {"world_size": 2, "tp_size": 2, "pp_size": 1}
    for number, tensors in enumerate(ranks):
        for layer in range(3):
            name = f"transformer.layers.{layer}"
            scale = tensors.get(f"{name}.attention.kv_cache_scaling_factor")
            if fmt == "none":
                assert scale is None
                continue
            own = [quantizer.kv_scales[f"model.layers.{layer}.self_attn.{k}_proj.{k}_scale"] for k in "kv"]
            assert scale is not None and scale.tolist() == [np.float32(max(own))]
            if fmt == "int4_awq":
                whole = read_tensors(directory)[f"model.layers.{layer}.self_attn.o_proj.pre_quant_scale"]
                share = np.split(whole, 2)[number]
                assert np.array_equal(tensors[f"{name}.attention.dense.prequant_scaling_factor"], share)
                folded = tensors[f"{name}.attention.qkv.prequant_scaling_factor"].astype(np.float32)
                assert folded.shape == (128,) and (folded == 1).all()
            else:
                source = read_tensors(directory)[f"model.layers.{layer}.mlp.down_proj.input_scale"]
                assert tensors[f"{name}.mlp.proj.activation_scaling_factor"].tolist() == [float(source)]


def test_biases_are_split_with_rows_and_whole_with_columns(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "model", bias=True, **SHAPE)
    convert_checkpoint(source, tmp_path / "out", tp=2)
    config, ranks = load_ranks(tmp_path / "out")
    assert config["attn_bias"] and config["mlp_bias"]
    tensors = {name: values.astype(np.float32) for name, values in read_tensors(source).items()}
    q, k, v = (tensors[f"model.layers.0.self_attn.{x}_proj.bias"] for x in "qkv")
    for number, rank in enumerate(ranks):
        own = np.concatenate([np.split(x, 2)[number] for x in (q, k, v)])
        assert np.array_equal(rank["transformer.layers.0.attention.qkv.bias"].astype(np.float32), own)
        dense = rank["transformer.layers.0.attention.dense.bias"].astype(np.float32)
        assert np.array_equal(dense, tensors["model.layers.0.self_attn.o_proj.bias"])


def test_a_killed_conversion_keeps_complete_ranks_and_ends_with_the_same_bytes(
    models: dict[str, tuple[Path, Quantizer]], tmp_path: Path
) -> None:
    directory, _ = models["fp8"]
    convert_checkpoint(directory, tmp_path / "whole", tp=2, pp=2)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    (tmp_path / "part" / "config.json").unlink()
    (tmp_path / "part" / "rank2.safetensors").rename(tmp_path / "part" / "rank2.safetensors.partial")
    with (tmp_path / "part" / "rank3.safetensors").open("r+b") as file:
        file.truncate(1000)
    kept = (tmp_path / "part" / "rank0.safetensors").stat().st_mtime_ns
    convert_checkpoint(directory, tmp_path / "part", tp=2, pp=2)
    assert (tmp_path / "part" / "rank0.safetensors").stat().st_mtime_ns == kept
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "part" / path.name).read_bytes(), path.name
    assert not list((tmp_path / "part").glob("*.partial"))


def test_rope_scaling_keeps_its_numbers_under_both_names_of_its_type(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 512
    source = write_tiny_llama(tmp_path / "model", rope=rope)
    config = trtllm_config(Checkpoint.open(source), 1, 1)
    assert config["rotary_base"] == 10000.0
    assert config["rotary_scaling"] == {**rope, "type": "llama3"}


@pytest.mark.parametrize(
    ("fmt", "tp", "pp", "works"),
    [("none", 3, 1, [1, 2, 4, 8]), ("none", 16, 1, [1, 2, 4, 8]), ("none", 1, 4, [1, 2, 4, 8])],
)
def test_splits_that_leave_a_part_of_a_head_are_refused_with_those_that_do_not(
    models: dict[str, tuple[Path, Quantizer]], tmp_path: Path, fmt: str, tp: int, pp: int, works: list[int]
) -> None:
    with pytest.raises(ForgeError) as caught:
        convert_checkpoint(models[fmt][0], tmp_path / "out", tp=tp, pp=pp)
    assert caught.value.code == "TF-BLD-034"
    assert caught.value.numbers["tp_that_work"] == works and caught.value.numbers["largest_pp"] == 3
    assert not (tmp_path / "out").exists()


def test_partial_blocks_are_refused(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", width=128, heads=8, kv_heads=8, ffn=192)
    Quantizer(tmp_path / "model", "int4_awq", group=32)
    convert_checkpoint(tmp_path / "model", tmp_path / "two", tp=2)
    with pytest.raises(ForgeError) as caught:
        convert_checkpoint(tmp_path / "model", tmp_path / "four", tp=4)  # 192 / 4 = 48 inputs in blocks of 32
    assert caught.value.code == "TF-BLD-034" and caught.value.numbers["tp_that_work"] == [1, 2]


def edit(directory: Path, change: dict[str, object]) -> None:
    path = directory / "hf_quant_config.json"
    section = json.loads(path.read_text())
    section["quantization"] |= change
    path.write_text(json.dumps(section))


def test_formats_without_a_form_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "model", "fp8")
    for change in ({"quant_algo": "W4A8_AWQ"}, {"quant_algo": None}, {"kv_cache_quant_algo": "NVFP4"}):
        keep = (tmp_path / "model" / "hf_quant_config.json").read_text()
        edit(tmp_path / "model", change)
        with pytest.raises(ForgeError) as caught:
            convert_checkpoint(tmp_path / "model", tmp_path / "out")
        assert caught.value.code == "TF-BLD-030", change
        (tmp_path / "model" / "hf_quant_config.json").write_text(keep)
    (tmp_path / "model" / "hf_quant_config.json").write_text("[]")
    with pytest.raises(ForgeError) as caught:
        convert_checkpoint(tmp_path / "model", tmp_path / "out")
    assert caught.value.code == "TF-BLD-030"


def test_fused_linears_in_different_forms_are_refused(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", **SHAPE)
    Quantizer(tmp_path / "model", "nvfp4")  # every linear has its own global scale
    with pytest.raises(ForgeError) as caught:
        convert_checkpoint(tmp_path / "model", tmp_path / "out")
    assert caught.value.code == "TF-BLD-033"
    assert "weight_scale_2" in caught.value.message and not (tmp_path / "out").exists()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    from tests.support.tiny import write_safetensors

    source = write_tiny_llama(tmp_path / "model", **SHAPE)
    tensors = read_tensors(source)
    del tensors["model.layers.2.mlp.up_proj.weight"]
    write_safetensors(source / "model.safetensors", {name: ("BF16", values) for name, values in tensors.items()})
    with pytest.raises(ForgeError, match=r"model\.layers\.2\.mlp\.up_proj\.weight is missing") as caught:
        convert_checkpoint(source, tmp_path / "out")
    assert caught.value.code == "TF-BLD-032"


@given(layers=st.integers(1, 40), pp=st.integers(1, 9))
def test_stages_partition_the_layers_and_the_first_have_one_more(layers: int, pp: int) -> None:
    stages = [list(layers_of(layers, pp, stage)) for stage in range(pp)]
    assert [layer for stage in stages for layer in stage] == list(range(layers))
    assert [len(stage) for stage in stages] == [len(part) for part in np.array_split(np.arange(layers), pp)]


@given(kv=st.sampled_from((1, 2, 3, 4, 8)), factor=st.sampled_from((1, 2, 4)))
def test_every_rank_has_the_kv_heads_of_its_queries(kv: int, factor: int) -> None:
    tp = kv * factor
    for rank in all_ranks(tp, 1):
        assert list(kv_heads_of(kv, tp, rank.tp_rank)) == [rank.tp_rank // factor]


@given(ratio=st.floats(0.01, 1.0))
def test_rescaling_a_byte_is_the_nearest_byte(ratio: float) -> None:
    table = rescale_table(ratio)
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F]
    values = numbers.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert np.array_equal(decode(numbers), values.astype(np.float32))
    found = table[numbers].view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    every = np.unique(values)
    nearest = np.abs(every[None, :] - (values * ratio)[:, None]).min(axis=1)
    np.testing.assert_allclose(np.abs(found - values * ratio), nearest, rtol=1e-12, atol=1e-15)
    assert table[0x7F] == 0x7F and table[0xFF] == 0xFF


def test_a_ratio_of_one_changes_nothing() -> None:
    assert np.array_equal(rescale_table(1.0), np.arange(256, dtype=np.uint8))


def test_a_tied_head_is_written_out(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "model", tie=True)
    convert_checkpoint(source, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "rank0.safetensors")
    assert np.array_equal(
        tensors["lm_head.weight"].view(np.uint16), tensors["transformer.vocab_embedding.weight"].view(np.uint16)
    )
