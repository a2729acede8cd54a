"""Engines that cannot be run are refused with a code; odd graphs and weights still run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from plugins.host import abi
from runtime.executors import linears
from runtime.executors.base import Executor, StepBatch, StepProfile
from runtime.executors.engine_dir import EngineInfo, read_engine
from runtime.executors.host_kernels import open_library
from runtime.executors.linears import (
    Capability,
    OnednnBf16,
    OnednnF32,
    TorchLinear,
    detect,
    pack,
)
from runtime.executors.onnx_graph import load_graph
from runtime.executors.row_order import ROW_PADDING, RowOrder, cancelling, fbgemm_rows, least_rows, row_order
from runtime.executors.torch_executor import TorchExecutor
from runtime.executors.weights import LinearSource
from tests.runtime.executor_support import PROMPTS, blocks_of, make_batch, run_whole, tiny_engine
from tests.support.refusals import refusal
from trtforge.machine.processor import Processor
from trtforge.native import host_library
from trtforge.targets.record import ServedRecord


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_engine(tmp_path_factory.mktemp("tiny"))[0]


@pytest.fixture
def broken(engine: Path, tmp_path: Path) -> Path:
    """A copy of the engine to damage."""
    return Path(shutil.copytree(engine, tmp_path / "broken"))


def edit_json(directory: Path, **changes: Any) -> None:
    path = directory / "engine.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_graph(directory: Path, change: Callable[[Any], None]) -> None:
    path = directory / "model.onnx"
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())


def initializer(model: Any, name: str = "model.norm.weight") -> Any:
    return next(t for t in model.graph.initializer if t.name == name)


def external(tensor: Any, **entries: str) -> None:
    for entry in tensor.external_data:
        entry.value = entries.get(entry.key, entry.value)


def test_the_protocol_is_met(engine: Path) -> None:
    executor = TorchExecutor(engine)
    assert isinstance(executor, Executor)
    assert executor.eos_token_ids == (2,) and executor.vocab_size == 512 and executor.block_size == 16
    assert executor.limits.max_input_len == 255
    report = json.loads(json.dumps(executor.describe()))
    assert {row["name"] for row in report["linears"]} >= {"lm_head", "model.layers.1.mlp.down_proj"}
    assert report["program"]["interpreted"].keys() <= {"Cast"} and report["program"]["copies"] == 0


NGRAM_RECORD = {
    "version": 1,
    "method": "ngram",
    "max_draft_len": 4,
    "ngram": {"max_matching_ngram_size": 4, "min_matching_ngram_size": 1},
}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": 2}, "TF-RUN-002"),
        ({"target": "tensorrt"}, "TF-RUN-002"),
        ({"host_abi": 7}, "TF-RUN-003"),
        ({"ops_version": 3}, "TF-RUN-003"),
        ({"limits": {}}, "TF-RUN-001"),
        ({"vocab_size": "many"}, "TF-RUN-001"),
        ({"speculation": {**NGRAM_RECORD, "max_draft_len": 10**9}}, "TF-RUN-001"),
        ({"speculation": {**NGRAM_RECORD, "policy": {"draft_len_schedule": 5}}}, "TF-RUN-001"),
        ({"dtype": "int8"}, "TF-RUN-001"),
        ({"vocab_size": 511}, "TF-RUN-013"),
        ({"kv_cache": {"format": "fp8", "block_size": 16, "num_blocks": 4, "bytes_per_block": 64}}, "TF-RUN-013"),
        ({"kv_cache": {"format": "bfloat16", "block_size": 32, "num_blocks": 4, "bytes_per_block": 64}}, "TF-RUN-013"),
        ({"kv_cache": {"format": "int3", "block_size": 16, "num_blocks": 4, "bytes_per_block": 64}}, "TF-RUN-001"),
    ],
)
def test_engine_json_that_cannot_be_served(broken: Path, changes: dict[str, Any], code: str) -> None:
    edit_json(broken, **changes)
    assert refusal(TorchExecutor, broken).code == code


def test_an_engine_of_an_older_abi_of_the_same_ops_is_served(broken: Path) -> None:
    edit_json(broken, host_abi=3)
    TorchExecutor(broken)


def test_a_draft_that_just_fills_a_step_is_served(broken: Path) -> None:
    most = read_engine(broken).limits.max_num_tokens - 1
    edit_json(broken, speculation={**NGRAM_RECORD, "max_draft_len": most})
    found = read_engine(broken).speculation
    assert found is not None and found.max_draft_len == most
    edit_json(broken, speculation={**NGRAM_RECORD, "max_draft_len": most + 1})
    assert refusal(read_engine, broken).code == "TF-RUN-001"


def test_no_engine(tmp_path: Path, broken: Path) -> None:
    assert refusal(TorchExecutor, tmp_path / "nothing").code == "TF-RUN-001"
    (broken / "engine.json").write_text("[1]")
    assert refusal(TorchExecutor, broken).code == "TF-RUN-001"


def test_damaged_graph(broken: Path) -> None:
    (broken / "model.onnx").write_bytes(b"\x08\x0a not a model")
    assert refusal(TorchExecutor, broken).code == "TF-RUN-004"
    (broken / "model.onnx").unlink()
    assert refusal(TorchExecutor, broken).code == "TF-RUN-004"


def test_truncated_and_missing_weights(broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4000])
    error = refusal(TorchExecutor, broken)
    assert error.code == "TF-RUN-005" and error.numbers["needed_bytes"] > error.numbers["file_bytes"]
    weights.unlink()
    assert refusal(TorchExecutor, broken).code == "TF-RUN-005"


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({"location": "../model.safetensors"}, "TF-RUN-005"),
        ({"location": "/etc/passwd"}, "TF-RUN-005"),
        ({"length": "7"}, "TF-RUN-009"),
        ({"offset": "-8"}, "TF-RUN-009"),
        ({"offset": "many"}, "TF-RUN-009"),
    ],
)
def test_initializers_that_would_read_wrong_memory(broken: Path, entries: dict[str, str], code: str) -> None:
    edit_graph(broken, lambda model: external(initializer(model), **entries))
    assert refusal(TorchExecutor, broken).code == code


def _rename_input(model: Any) -> None:
    model.graph.node[3].input[0] = "nobody makes this"


def _make_twice(model: Any) -> None:
    model.graph.node.append(model.graph.node[-1])


def _reverse(model: Any) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


def _lose_the_output(model: Any) -> None:
    model.graph.output[0].name = "gone"


def _below_zero(model: Any) -> None:
    initializer(model).dims[:] = [-1, -4]


def _no_such_type(model: Any) -> None:
    initializer(model).data_type = 99


def _lose_a_weight(model: Any) -> None:
    model.graph.initializer.remove(initializer(model, "model.layers.0.self_attn.v_proj.weight"))


def _constant_of_nothing(model: Any) -> None:
    model.graph.node.insert(0, onnx.NodeProto(op_type="Constant"))


@pytest.mark.parametrize(
    "change",
    [
        _rename_input, _make_twice, _reverse, _lose_the_output, _below_zero, _no_such_type, _lose_a_weight,
        _constant_of_nothing,
    ],
)  # fmt: skip
def test_a_graph_whose_parts_do_not_fit_together(broken: Path, change: Callable[[Any], None]) -> None:
    edit_graph(broken, change)
    error = refusal(TorchExecutor, broken)
    assert error.code in ("TF-RUN-014", "TF-RUN-009", "TF-RUN-007") and error.remedies
    if change in (_rename_input, _make_twice, _reverse, _lose_the_output, _lose_a_weight):
        assert error.code == "TF-RUN-014"


def test_operator_sets_and_operators(broken: Path, engine: Path) -> None:
    def old(model: Any) -> None:
        model.opset_import[0].version = 13

    edit_graph(broken, old)
    assert refusal(TorchExecutor, broken).code == "TF-RUN-006"
    shutil.copy(engine / "model.onnx", broken / "model.onnx")

    def unknown(model: Any) -> None:
        next(n for n in model.graph.node if n.op_type == "Swish").op_type = "Shrink"

    edit_graph(broken, unknown)
    error = refusal(TorchExecutor, broken)
    assert error.code == "TF-RUN-007" and error.numbers["nodes"] == {"Shrink": 1}
    assert refusal(lambda: TorchExecutor(broken, lowered=False)).code == "TF-RUN-007"


def test_interface_of_the_graph(broken: Path) -> None:
    edit_graph(broken, lambda model: model.graph.output.remove(model.graph.output[0]))
    assert refusal(TorchExecutor, broken).code == "TF-RUN-013"


def test_pools_and_devices(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(lambda: TorchExecutor(engine, num_blocks=0)).code == "TF-RUN-010"
    assert refusal(lambda: TorchExecutor(engine, num_blocks=1 << 44)).code == "TF-RUN-010"
    assert TorchExecutor(engine, num_blocks=3).num_blocks == 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    error = refusal(lambda: TorchExecutor(engine, device="cuda"))
    assert error.code == "TF-RUN-011" and error.exit_code == 3


def test_host_library_that_is_named_but_unusable(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "lib.so"
    bad.write_bytes(b"no library")
    monkeypatch.setenv("TRTFORGE_HOST_LIBRARY", str(bad))
    error = refusal(TorchExecutor, engine)
    assert error.code == "TF-OPS-002" and error.exit_code == 3
    monkeypatch.setenv("TRTFORGE_HOST_LIBRARY", str(tmp_path / "missing.so"))
    assert refusal(TorchExecutor, engine).code == "TF-OPS-001"


def test_without_a_host_library_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRTFORGE_HOST_LIBRARY", raising=False)
    monkeypatch.setattr(host_library, "HOST_LIBRARY", "nowhere.so")
    assert open_library() is None
    monkeypatch.undo()
    monkeypatch.setattr(abi, "ABI_VERSION", 999)
    assert refusal(open_library).code == "TF-OPS-003"


def broken_steps() -> dict[str, StepBatch]:
    good = make_batch([(PROMPTS[0], 0, blocks_of(0))])

    def changed(**fields: Any) -> StepBatch:
        names = ("input_ids", "positions", "query_start", "sequence_lengths", "block_table", "logit_indices")
        values = {name: getattr(good, name) for name in names} | fields
        return StepBatch(**values)

    return {
        "token outside the vocabulary": changed(input_ids=good.input_ids + 512),
        "too many tokens": make_batch([([5] * 129, 0, list(range(9)))]),
        "too many requests": make_batch([([5], 0, [i]) for i in range(9)]),
        "context too long": changed(sequence_lengths=np.array([257], dtype=np.int32)),
        "position too far": changed(positions=good.positions + 256),
        "lengths disagree": changed(positions=good.positions[1:]),
        "query_start": changed(query_start=np.array([0, 3], dtype=np.int32)),
        "logit row": changed(logit_indices=np.array([19])),
        "tree mask": changed(tree_mask=np.ones((19, 19), dtype=np.uint8)),
        "block copies": changed(block_copies=[(0, 1 << 20)]),
    }


@pytest.mark.parametrize("name", broken_steps())
def test_steps_over_the_limits(engine: Path, name: str) -> None:
    executor = TorchExecutor(engine)
    with pytest.raises(ValueError):
        executor.execute(broken_steps()[name])
    assert len(run_whole(executor)) == 3


def test_patterns_that_do_not_match_are_interpreted(broken: Path, engine: Path) -> None:
    """Without its fast form a part of the graph runs by definition, with the same result."""
    float32 = Capability()
    want = run_whole(TorchExecutor(engine, capability=float32))

    def spoil(model: Any) -> None:
        nodes = model.graph.node
        for node in list(nodes):
            if node.op_type == "Swish":
                product = next(n for n in nodes if node.output[0] in n.input)
                silu = f"{node.output[0]}/silu"
                inner = onnx.helper.make_node("Mul", [node.output[0], node.input[0]], [silu], name=silu)
                product.input[list(product.input).index(node.output[0])] = silu
                nodes.insert(list(nodes).index(product), inner)
                node.op_type = "Sigmoid"
                del node.attribute[:]
            if node.op_type == "RotaryEmbedding" and "layers.1" in node.name and "query" in node.name:
                index = list(nodes).index(node)
                nodes.insert(index, onnx.helper.make_node("Neg", ["minus"], ["again"], name="again"))
                nodes.insert(index, onnx.helper.make_node("Neg", [node.input[0]], ["minus"], name="minus"))
                nodes[index + 2].input[0] = "again"

    edit_graph(broken, spoil)
    executor = TorchExecutor(broken, capability=float32)
    report = executor.describe()["program"]
    assert report["operations"]["silu_mul"] == 2, "x * sigmoid(x) * y is the same pattern"
    assert {"Neg", "RotaryEmbedding"} <= report["interpreted"].keys()
    for got, expected in zip(run_whole(executor), want, strict=True):
        assert torch.allclose(got, expected, atol=2e-2, rtol=1e-2)


def test_profiles_name_the_parts(engine: Path) -> None:
    executor = TorchExecutor(engine)
    executor.profile = StepProfile()
    run_whole(executor)
    assert executor.profile.steps == 3 and {"linears", "attention", "norms"} <= executor.profile.seconds.keys()


def test_external_data_is_mapped_not_read(engine: Path) -> None:
    graph = load_graph(engine / "model.onnx")
    assert graph.maps and graph.constants["model.embed_tokens.weight"].file == "model.safetensors"


# -- linears ---------------------------------------------------------------------------------------------------

CPU = Capability()


def dense(weight: torch.Tensor, **fields: Any) -> LinearSource:
    kind = str(weight.dtype).removeprefix("torch.")
    return LinearSource("layer", (weight.shape[0], weight.shape[1]), kind, weight, **fields)


def product(sources: list[LinearSource], x: torch.Tensor, capability: Capability = CPU, **options: Any) -> torch.Tensor:
    packed = pack(sources, capability, torch.float32, **options)
    padded = torch.zeros(packed.kernel.rows(len(x)), x.shape[1])
    padded[: len(x)] = x
    y = packed.kernel(padded, len(x))[: len(x)]
    y = y if packed.out_scale is None else y * packed.out_scale
    return y if packed.bias is None else y + packed.bias


@pytest.mark.parametrize("factor", [1.0, 1e-7, 1e7, 1e30])
def test_weights_outside_float16s_range(factor: float) -> None:
    weight = (torch.randn(32, 64) * factor).bfloat16()
    x = torch.randn(5, 64)
    got, want = product([dense(weight)], x), x.double() @ weight.double().T
    assert ((got - want).abs().max() / want.abs().max()).item() < 1e-6


def test_weights_that_float16_cannot_hold_stay_wide() -> None:
    weight = torch.randn(32, 64).bfloat16()
    weight[0, 0] = float("inf")
    packed = pack([dense(weight)], CPU, torch.float32)
    assert isinstance(packed.kernel, OnednnF32 | TorchLinear) and packed.notes


def test_biases_and_unequal_scales() -> None:
    x, sources, wanted = torch.randn(4, 64), [], []
    for scale, bias in ((0.5, torch.randn(16)), (0.25, None)):
        weight = (torch.randn(16, 64) * 8).to(torch.float8_e4m3fn)
        sources.append(LinearSource("l", (16, 64), "fp8", weight, scale=scale, bias=bias))
        wanted.append(x @ (weight.float() * scale).T + (0 if bias is None else bias))
    want = torch.cat(wanted, dim=1)
    assert torch.allclose(product(sources, x), want, atol=1e-4)


def test_transposed_weights() -> None:
    weight = torch.randn(64, 32).bfloat16()
    source = LinearSource("l", (32, 64), "bfloat16", weight, transposed=True)
    x = torch.randn(4, 64)
    assert torch.allclose(product([source], x), x @ weight.float(), atol=1e-4)


def test_without_fbgemm() -> None:
    weight = torch.randn(32, 64).bfloat16()
    x = torch.randn(4, 64)
    got = product([dense(weight)], x, Capability(fbgemm=False))
    assert torch.allclose(got, x @ weight.float().T, atol=1e-4)


@pytest.mark.skipif(not detect().fbgemm, reason="this torch build has no FBGEMM")
def test_padded_rows_sum_in_one_order() -> None:
    """For row counts over two panels, every row equals the same row computed among six."""
    weight = torch.randn(48, 192)
    x = torch.randn(300, 192)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    call = torch.ops.quantized.linear_dynamic_fp16
    want = torch.cat([call(x[i : i + 6], packed) for i in range(0, 300, 6)])
    for rows in [*range(1, 130), 152, 199, 241, 242, 250]:
        assert rows <= fbgemm_rows(rows) <= rows + 8
        assert torch.equal(call(x[: fbgemm_rows(rows)], packed)[:rows], want[:rows]), rows


@pytest.mark.skipif(not detect().bf16, reason="this processor has no bfloat16 units")
@pytest.mark.parametrize(("n", "k"), [(576, 1536), (96, 64), (576, 577), (3072, 576), (128, 4096)])
def test_bfloat16_rows_sum_in_one_order(n: int, k: int) -> None:
    """Sums that cancel, so that the order shows in what is left of them."""
    x, weight = cancelling(300, n, k, torch.Generator().manual_seed(n))
    kernel = OnednnBf16(weight, None)
    assert kernel.row_invariant
    want = torch.cat([kernel(x[i : i + 50], 50) for i in range(0, 300, 50)])
    assert want.any()
    for rows in [*range(1, 70), 100, 119, 200, 250, 300]:
        assert rows <= kernel.rows(rows) <= max(rows, ROW_PADDING)
        assert torch.equal(kernel(x, rows)[:rows], want[:rows]), rows


@pytest.mark.parametrize("least", [1, 2, 5])
def test_more_rows_than_have_a_common_order_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """As AMX has it; each piece has as many rows as the order asks for."""
    monkeypatch.setattr(linears, "onednn_row_order", lambda n, k, threads: RowOrder(least, 8))
    weight = torch.randn(24, 40)
    kernel = OnednnBf16(weight, None)
    taken: list[int] = []
    product = kernel._product
    monkeypatch.setattr(kernel, "_product", lambda x: taken.append(len(x)) or product(x))
    x = torch.randn(60, 40).bfloat16()
    for rows in range(1, 60):
        taken.clear()
        got = kernel(x, rows)
        assert len(got) >= rows and all(least <= count <= 8 for count in taken)
        assert torch.allclose(got[:rows].float(), x[:rows].float() @ weight.bfloat16().float().T, atol=0.1, rtol=2e-2)


def test_an_order_of_small_counts_is_found() -> None:
    reference = torch.arange(60.0).reshape(60, 1)

    def product(differing: set[int]) -> Callable[[int], torch.Tensor]:
        return lambda rows: reference[:rows] + (1.0 if rows in differing else 0.0)

    counts = range(1, 61)
    assert row_order(product(set()), counts, 32) == RowOrder(1)
    assert row_order(product({1, 2}), counts, 32) == RowOrder(3)
    assert row_order(product(set(range(33, 61))), counts, 32) == RowOrder(1, 32)
    assert row_order(product({1, *range(33, 48)}), counts, 32) == RowOrder(2, 32)
    assert row_order(product({25, 40}), counts, 32) is None


def test_the_least_rows_are_those_after_the_last_difference() -> None:
    reference = torch.arange(20.0).reshape(20, 1)

    def product(differing: set[int]) -> Callable[[int], torch.Tensor]:
        return lambda rows: reference[:rows] + (1.0 if rows in differing else 0.0)

    counts = range(1, 21)
    assert least_rows(product(set()), counts) == 1
    assert least_rows(product({1, 2}), counts) == 3
    assert least_rows(product({1, 5}), counts) == 6
    assert least_rows(product({17}), counts) is None, "more than a step may be padded by"
    assert least_rows(product({19}), counts) is None


@pytest.mark.skipif(not detect().bf16, reason="this processor has no bfloat16 units")
@pytest.mark.parametrize(("kind", "kernel"), [("fp8", "fbgemm_fp16"), ("bfloat16", "onednn_bf16")])
def test_quantized_activations_get_a_kernel_of_one_order(
    monkeypatch: pytest.MonkeyPatch, kind: str, kernel: str
) -> None:
    """Where oneDNN has none, as may be on other processors."""
    monkeypatch.setattr(linears, "onednn_row_order", lambda n, k, threads: None)
    weight = torch.randn(32, 64).to(torch.float8_e4m3fn if kind == "fp8" else torch.bfloat16)
    source = LinearSource("l", (32, 64), kind, weight, scale=0.5 if kind == "fp8" else 1.0)
    packed = pack([source], Capability(bf16=True), torch.bfloat16)
    assert packed.kernel.name == kernel
    assert packed.kernel.row_invariant is (kernel == "fbgemm_fp16")
    x = torch.randn(9, 64).bfloat16()
    got = packed.kernel(torch.cat((x, torch.zeros(16, 64).bfloat16())), 9)[:9].float() * (packed.out_scale or 1.0)
    want = x.float() @ (weight.float() * source.scale).T
    assert torch.allclose(got, want, atol=5e-2, rtol=2e-2)
    assert bool(packed.notes) is (kind == "fp8")


@pytest.mark.parametrize(
    ("isa", "bf16"),
    [
        (("avx2",), False),
        (("avx2", "avx512f"), False),
        (("avx2", "avx512f", "avx512_bf16"), detect().bf16),
        ((), False),
    ],
)
def test_the_processor_decides(monkeypatch: pytest.MonkeyPatch, isa: tuple[str, ...], bf16: bool) -> None:
    """As the table of the build's plan has it; oneDNN alone would say bfloat16 for any AVX-512."""
    monkeypatch.setattr(linears, "processor", lambda: Processor("", frozenset(isa)))
    assert detect().bf16 == bf16


@pytest.mark.skipif(not detect().bf16, reason="this processor has no bfloat16 units")
def test_bfloat16_units(engine: Path) -> None:
    executor = TorchExecutor(engine)
    assert executor.activation_dtype == torch.bfloat16
    assert executor.describe()["linears"][0]["kernel"] == "onednn_bf16"


def test_bfloat16_activations_in_the_program(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program for processors with bfloat16 units, with a linear that every processor has."""
    want = run_whole(TorchExecutor(engine))
    monkeypatch.setattr(
        linears, "OnednnBf16", lambda codes, bias, exact: TorchLinear(codes, bias, torch.bfloat16, "cpu")
    )
    executor = TorchExecutor(engine, capability=Capability(bf16=True))
    assert executor.activation_dtype == torch.bfloat16
    for got, expected in zip(run_whole(executor), want, strict=True):
        assert (got - expected).abs().median() < 2e-2 * expected.abs().max()


def test_what_an_engine_states_stands_once(engine: Path) -> None:
    """The record says it; beside it stands only what is worked out from it."""
    info = read_engine(engine)
    named = {item.name for item in fields(EngineInfo)} & set(ServedRecord.model_fields)
    assert named == {"limits"} and info.limits.max_input_len == info.record.limits.max_seq_len - 1
    assert info.record.model_dump(exclude_unset=True) == info.raw
