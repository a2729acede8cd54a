"""The torch target's engine directory, the kernel table, and what the registry refuses."""

from __future__ import annotations

import hashlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from builder.graphs.build import build_graph
from builder.speculation import record_of
from builder.targets import describe, engine_info, read_engine, target_module
from builder.targets.torch import target as torch_target
from builder.targets.torch.kernels import CAPABILITIES, choose, table, weight_bytes
from runtime.executors.engine_dir import read_engine as runtime_engine
from tests.builder.quantized_tiny import Quantizer
from tests.support.engines import build_engine
from tests.support.tiny import write_tiny_llama
from trtforge.drafting.record import read_speculation
from trtforge.formats import formats
from trtforge.ground.errors import ForgeError
from trtforge.machine.memory import memory
from trtforge.recipe.schema import Build, KvCache, Limits, Parallel, Speculation
from trtforge.targets import TARGETS
from trtforge.targets.torch import Choice

STORED = ("bfloat16", "float16", "float32", *(format.name for format in formats() if format.row.weight is not None))
SMALL = Build(limits=Limits(max_seq_len=512), kv_cache=KvCache(memory="4MiB"))


def graph(directory: Path, fmt: str = "none", **options: Any) -> Path:
    Quantizer(write_tiny_llama(directory), fmt)
    build_graph(directory, directory, **options)
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_engine_json(tmp_path: Path) -> None:
    result = build_engine(graph(tmp_path / "g", "fp8"), tmp_path / "e", name="tiny", build=SMALL)
    engine = json.loads((tmp_path / "e" / "engine.json").read_text())
    assert engine == result == read_engine(tmp_path / "e")
    assert engine["target"] == "torch" and engine["version"] == 1 and engine["ops_version"] == 2
    assert engine["limits"] == {
        "max_batch_size": 32,
        "max_num_tokens": 2048,
        "max_seq_len": 512,
        "max_input_len": 511,
    }
    # 2 layers x (keys, values) x 2 kv heads x 32 slots x 64 values x 2 bytes
    assert engine["kv_cache"]["bytes_per_block"] == 2 * 2 * 2 * 32 * 64 * 2
    assert engine["kv_cache"]["num_blocks"] == 2**22 // engine["kv_cache"]["bytes_per_block"]
    assert engine["eos_token_ids"] == [2] and engine["bos_token_id"] == 1 and engine["vocab_size"] == 512
    stored = {linear["name"]: linear["stored"] for linear in engine["linears"]}
    assert stored["lm_head"] == "bfloat16" and stored["model.layers.1.mlp.down_proj"] == "fp8"
    for name, digest in engine["sha256"].items():
        assert hashlib.sha256((tmp_path / "e" / name).read_bytes()).hexdigest() == digest
    assert set(engine["sha256"]) == {path.name for path in (tmp_path / "e").iterdir()} - {"engine.json"}


def test_an_engine_says_what_it_drafts_by_and_how_far(tmp_path: Path) -> None:
    record = record_of(Speculation(method="ngram", max_draft_len=6))
    source = graph(tmp_path / "g")
    build_engine(source, tmp_path / "e", name="tiny", build=SMALL, speculation=record)
    assert read_speculation(read_engine(tmp_path / "e")) == record
    info = runtime_engine(tmp_path / "e")
    assert info.speculation == record
    build_engine(source, tmp_path / "plain", name="tiny", build=SMALL)
    assert "speculation" not in read_engine(tmp_path / "plain")
    assert runtime_engine(tmp_path / "plain").speculation is None


@pytest.mark.parametrize("fmt", ["none", "fp8", "nvfp4", "int4_awq"])
def test_a_rebuild_gives_the_same_bytes(tmp_path: Path, fmt: str) -> None:
    source = graph(tmp_path / "g", fmt)
    for out in ("a", "b", "a"):
        build_engine(source, tmp_path / out, name="tiny", build=SMALL)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_info_decides_for_the_machine_that_asks(tmp_path: Path) -> None:
    source = graph(tmp_path / "g", "int4_awq")
    torch_target.build_engine(source, tmp_path / "e", name="tiny", build=SMALL, capability="avx2")
    here = engine_info(tmp_path / "e", "avx2")
    assert here["planned_for"] == here["machine"] == "avx2"
    int4 = next(row for row in here["execution"] if row["stored"] == "int4_awq")
    assert int4 == {
        "stored": "int4_awq",
        "executed": "int4 weights",
        "kernel": "host_int4",
        "native": True,
        "rounds": None,
        "linears": 14,
        "weights": 2 * (64 * 256 * 2 + 128 * 64 * 2 + 3 * 64 * 128),
    }
    head = next(row for row in here["execution"] if row["stored"] == "bfloat16")
    assert head["rounds"] == "to float16 below 2^-14"
    wide = engine_info(tmp_path / "e", "amx")
    assert {row["rounds"] for row in wide["execution"]} == {None}
    assert {row["kernel"] for row in wide["execution"]} == {"host_int4", "onednn_bf16"}
    plain = engine_info(tmp_path / "e", "plain")
    assert {row["kernel"]: row["native"] for row in plain["execution"]} == {"onednn_f32": False, "host_int4": True}
    assert "sha256" not in here and len(here["linears"]) == 15


def test_an_engine_whose_rows_name_a_kernel_that_is_no_more_runs_as_todays_do(tmp_path: Path) -> None:
    source = graph(tmp_path / "g", "int4_awq")
    engine = torch_target.build_engine(source, tmp_path / "e", name="tiny", build=SMALL, capability="avx2")
    now = engine_info(tmp_path / "e", "avx2")
    older = {"stored": "int4_awq", "capability": ["avx2"], "kernel": "int4pack", "native": True, "max_rows": 4,
             "above": "fbgemm_fp16", "executed": "int4 weights up to 4 rows, float16 above"}  # fmt: skip
    engine["kernel_choices"].insert(0, older)
    (tmp_path / "e" / "engine.json").write_text(json.dumps(engine))
    assert engine_info(tmp_path / "e", "avx2")["execution"] == now["execution"]


def test_info_names_files_that_are_gone(tmp_path: Path) -> None:
    build_engine(graph(tmp_path / "g"), tmp_path / "e", name="tiny", build=SMALL)
    whole = engine_info(tmp_path / "e")
    assert whole["missing"] == [] and not describe(whole).broken
    (tmp_path / "e" / "model.safetensors").unlink()
    described = describe(engine_info(tmp_path / "e"))
    assert described.broken and described.verdicts[0] == "files of the engine are gone: model.safetensors"


def test_special_tokens_of_several_ends(tmp_path: Path) -> None:
    source = graph(tmp_path / "g")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7], "bos_token_id": None}))
    engine = build_engine(source, tmp_path / "e", name="tiny", build=SMALL)
    assert engine["eos_token_ids"] == [2, 7] and engine["bos_token_id"] == 1
    (source / "generation_config.json").unlink()
    (source / "config.json").write_text("{}")
    engine = build_engine(source, tmp_path / "f", name="tiny", build=SMALL)
    assert engine["eos_token_ids"] == [] and engine["bos_token_id"] is None


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (Build(limits=Limits(max_seq_len=4096)), "TF-BLD-012"),
        (Build(limits=Limits(max_seq_len=64, max_input_len=64)), "TF-BLD-013"),
        (Build(limits=Limits(max_seq_len=64, max_num_tokens=8)), "TF-BLD-013"),
        (Build(limits=Limits(max_seq_len=64), parallel=Parallel(tp=2)), "TF-BLD-014"),
        (Build(limits=Limits(max_seq_len=64), kv_cache=KvCache(block_size=64)), "TF-BLD-015"),
        (Build(limits=Limits(max_seq_len=512), kv_cache=KvCache(memory="16KiB")), "TF-BLD-010"),
    ],
)
def test_refusals(tmp_path: Path, build: Build, code: str) -> None:
    source = graph(tmp_path / "g")
    with pytest.raises(ForgeError) as caught:
        build_engine(source, tmp_path / "e", name="tiny", build=build)
    assert caught.value.code == code
    assert caught.value.why and caught.value.remedies and caught.value.exit_code == 2
    assert not (tmp_path / "e").exists()


def test_a_native_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForgeError, match="TF-BLD-016"):
        build_engine(graph(tmp_path / "g", mode="native"), tmp_path / "e", name="tiny", build=SMALL)


def test_directories_that_are_no_graph_or_engine(tmp_path: Path) -> None:
    with pytest.raises(ForgeError, match="TF-GRF-015"):
        build_engine(tmp_path, tmp_path / "e", name="x", build=Build())
    for text in ("", "{}", '{"version": 1, "target": "tensorrt"}'):
        (tmp_path / "engine.json").write_text(text)
        with pytest.raises(ForgeError, match="TF-BLD-020"):
            engine_info(tmp_path)


def test_a_pool_from_free_memory_of_this_machine(tmp_path: Path) -> None:
    build = Build(limits=Limits(max_seq_len=64), kv_cache=KvCache(free_fraction=0.001))
    if memory().available * 0.001 < 12 * 2**20:
        build = Build(limits=Limits(max_seq_len=64), kv_cache=KvCache(free_fraction=0.01))
    engine = build_engine(graph(tmp_path / "g"), tmp_path / "e", name="tiny", build=build)
    assert engine["memory_plan"]["sized_by"] == "free_fraction"


# Registry, table and machine


def test_every_target_offers_the_interface() -> None:
    with pytest.raises(ForgeError, match="TF-BLD-001"):
        target_module("onnxruntime")
    for name in TARGETS:
        assert callable(target_module(name).build_engine) and callable(target_module(name, "info").engine_info)


def test_the_table_is_well_formed_and_complete() -> None:
    kernels, rows = table()
    for row in rows:
        assert row.stored in STORED and row.kernel in kernels and row.executed
        assert set(row.capability) <= {*CAPABILITIES, "any"}
        assert not row.model_extra and not row.requires.model_extra
        assert Choice.model_validate_json(json.dumps(row.model_dump(exclude_unset=True))) == row
    for kernel in kernels.values():
        assert kernel.bytes_per_weight > 0 and kernel.operators
    # Whatever the format, the processor and the shape: something runs.
    for stored, capability, shape, group in product(STORED, CAPABILITIES, ((16, 64), (17, 96)), (None, 16, 64, 48)):
        row = choose(stored, capability, shape, group)
        assert weight_bytes(row, shape, group) > 0
    assert {row.kernel for row in rows} == set(kernels)


def test_int4_falls_back_when_the_kernel_does_not_take_the_shape() -> None:
    assert choose("int4_awq", "avx2", (3070, 576), 64).kernel == "host_int4"
    assert choose("int4_awq", "avx2", (3072, 576), 12).kernel == "fbgemm_fp16"
    assert choose("int4_awq", "plain", (3072, 576), 12).kernel == "onednn_f32"


def test_fp8_is_native_where_the_device_multiplies_it() -> None:
    assert choose("fp8", "cuda_fp8", (64, 64), None).kernel == "scaled_mm"
    assert choose("fp8", "cuda_fp8", (60, 64), None).kernel == "torch_linear"
    assert not choose("fp8", "cuda", (64, 64), None).native


def test_weight_bytes_count_the_scales() -> None:
    row = choose("int4_awq", "avx2", (64, 64), 32)
    assert weight_bytes(row, (64, 64), 32) == 64 * 64 // 2 + 4 * 64 * 2
    assert weight_bytes(choose("fp8", "amx", (64, 64), None), (64, 64), None) == 64 * 64 * 2


def test_the_kernels_are_the_executors() -> None:
    """The plan and the executor call a kernel by one name."""
    folder = Path(__file__).parents[4] / "runtime" / "executors"
    source = "".join((folder / name).read_text() for name in ("linears.py", "int4_linear.py"))
    for name in table()[0]:
        assert name.removesuffix("_f32") in source


def test_the_abi_stamp_is_the_headers() -> None:
    header = Path(__file__).parents[4] / "plugins" / "include" / "trtforge" / "op_args.h"
    assert f"#define TRTFORGE_HOST_ABI {torch_target.key_facts()['host_abi']}\n" in header.read_text()
