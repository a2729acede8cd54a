"""The executor computes the checkpoint: interpreter, lowered program and transformers, every format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.executors.linears import Capability, detect
from runtime.executors.torch_executor import TorchExecutor
from tests.runtime.executor_support import PROMPTS, blocks_of, make_batch, reference, run_ragged, run_whole, tiny_engine

FORMATS = ["none", "fp8", "nvfp4", "int4_awq"]
#: float32 activations, as on a processor without bfloat16 units
FLOAT32 = Capability()
needs_bfloat16_units = pytest.mark.skipif(not detect().bf16, reason="this processor has no bfloat16 units")


def relative(got: torch.Tensor, want: np.ndarray | torch.Tensor) -> np.ndarray:
    wanted = np.asarray(want)
    error: np.ndarray = np.abs(got.numpy() - wanted) / np.abs(wanted).max()
    return error


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("host", [True, False])
def test_lowered_program_against_transformers(tmp_path: Path, fmt: str, host: bool) -> None:
    engine, quantizer = tiny_engine(tmp_path, fmt, kv="float32")
    executor = TorchExecutor(engine, host_library=host, capability=FLOAT32)
    assert not executor.describe()["program"]["interpreted"].keys() - {"Cast"}
    for got, want in zip(run_ragged(executor), reference(engine, quantizer), strict=True):
        error = relative(got, want)
        # a value that two float32 computations round to different codes moves logits a little
        assert error.max() < (2e-2 if fmt in ("fp8", "nvfp4") else 2e-3) and np.median(error) < 1e-3


@needs_bfloat16_units
@pytest.mark.parametrize(
    ("fmt", "largest", "middle"),
    [("none", 3e-2, 5e-3), ("int4_awq", 3e-2, 5e-3), ("fp8", 0.2, 2e-2), ("nvfp4", 0.5, 6e-2)],
)
def test_bfloat16_activations_against_transformers(tmp_path: Path, fmt: str, largest: float, middle: float) -> None:
    """Rounding of the activations is the only difference; low-precision activations amplify it."""
    engine, quantizer = tiny_engine(tmp_path, fmt, kv="float32")
    executor = TorchExecutor(engine)
    assert executor.activation_dtype == torch.bfloat16
    for got, want in zip(run_ragged(executor), reference(engine, quantizer), strict=True):
        error = relative(got, want)
        assert error.max() < largest
        assert np.median(error) < middle


@pytest.mark.parametrize("fmt", FORMATS)
def test_interpreter_against_transformers(tmp_path: Path, fmt: str) -> None:
    engine, quantizer = tiny_engine(tmp_path, fmt, dtype="float32", kv="float32")
    for host in (True, False):
        executor = TorchExecutor(engine, lowered=False, host_library=host)
        for got, want in zip(run_ragged(executor), reference(engine, quantizer), strict=True):
            error = relative(got, want)
            assert error.max() < 2e-2 and np.median(error) < 1e-5


@pytest.mark.parametrize("fmt", FORMATS)
def test_interpreter_in_the_graphs_own_type(tmp_path: Path, fmt: str) -> None:
    engine, quantizer = tiny_engine(tmp_path, fmt)
    executor = TorchExecutor(engine, lowered=False)
    for got, want in zip(run_whole(executor), reference(engine, quantizer), strict=True):
        # four-bit activations amplify the type's rounding
        assert np.median(relative(got, want)) < (6e-2 if fmt == "nvfp4" else 2e-2)


def test_float32_engines_keep_float32(tmp_path: Path) -> None:
    engine, quantizer = tiny_engine(tmp_path, dtype="float32", kv="float32")
    executor = TorchExecutor(engine)
    for got, want in zip(run_ragged(executor), reference(engine, quantizer), strict=True):
        assert relative(got, want).max() < 1e-5


MODELS: dict[str, dict[str, Any]] = {
    "biases, untied head, wide heads": {"bias": True, "tie": False, "head_size": 80, "heads": 2, "kv_heads": 1},
    "biases, fp8": {"fmt": "fp8", "bias": True},
    "float16": {"dtype": "float16"},
    "float16, fp8": {"fmt": "fp8", "dtype": "float16"},
}


@pytest.mark.parametrize("name", MODELS)
def test_model_variants(tmp_path: Path, name: str) -> None:
    engine, quantizer = tiny_engine(tmp_path, kv="float32", **MODELS[name])
    executor = TorchExecutor(engine, capability=FLOAT32)
    for got, want in zip(run_ragged(executor), reference(engine, quantizer), strict=True):
        error = relative(got, want)
        # few rows of INT4 run in bfloat16; an FP8 value that rounds to another code moves the logits after it a little
        assert error.max() < 4e-2 and np.median(error) < (1e-2 if "int4" in name else 1e-5)


@pytest.mark.parametrize("kv", ["bfloat16", "float16", "fp8"])
def test_pool_formats(tmp_path: Path, kv: str) -> None:
    """The pool's rounding is the only difference: host library and torch agree far below it."""
    engine, quantizer = tiny_engine(tmp_path, kv=kv, kv_fp8=kv == "fp8")
    host = TorchExecutor(engine, capability=FLOAT32)
    torch_only = TorchExecutor(engine, host_library=False, capability=FLOAT32)
    bound = {"bfloat16": 2e-2, "float16": 4e-3, "fp8": 1e-1}[kv]
    for a, b, want in zip(run_ragged(host), run_ragged(torch_only), reference(engine, quantizer), strict=True):
        assert relative(a, want).max() < bound
        assert np.median(relative(a, b)) < bound / 20


@pytest.mark.parametrize("fmt", [*FORMATS, "none, norms of heads"])
def test_rows_do_not_depend_on_their_neighbours(tmp_path: Path, fmt: str) -> None:
    """Bit for bit: alone, chunked, and beside other requests."""
    fmt, _, norms = fmt.partition(", ")
    engine, _ = tiny_engine(tmp_path, fmt, **({"architecture": "Qwen3ForCausalLM"} if norms else {}))
    executor = TorchExecutor(engine)
    assert executor.row_invariant
    for whole, ragged in zip(run_whole(executor), run_ragged(executor), strict=True):
        assert torch.equal(whole, ragged)
    many = make_batch([(p, 0, blocks_of(i)) for i, p in enumerate(PROMPTS)])
    assert torch.equal(executor.execute(many), torch.cat(run_whole(executor)))


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_plan_at_build_time_names_the_kernels_that_run(tmp_path: Path, fmt: str) -> None:
    """engine.json and the executor agree on every linear, so that ``engine info`` tells the truth."""
    engine, _ = tiny_engine(tmp_path, fmt)
    executor = TorchExecutor(engine)
    executed = {row["name"]: row for row in executor.describe()["linears"]}
    for plan in executor.info.raw["linears"]:
        row = executed.pop(plan["name"])
        assert row["kernel"] == plan["kernel"] and row["native"] == plan["native"], plan["name"]
        assert row["stored"] == plan["stored"].removesuffix("_awq") and row["shape"] == plan["shape"]
    assert not executed


def test_logit_rows_and_empty_requests_for_them(tmp_path: Path) -> None:
    engine, _ = tiny_engine(tmp_path)
    executor = TorchExecutor(engine)
    prompt = PROMPTS[1]
    everything = executor.execute(make_batch([(prompt, 0, blocks_of(0))])).clone()
    some = executor.execute(make_batch([(prompt, 0, blocks_of(1))], logits=[36, 0, 7])).clone()
    assert torch.equal(some, everything[[36, 0, 7]])
    assert executor.execute(make_batch([(prompt, 0, blocks_of(2))], logits=[])).shape == (0, 512)


def test_copied_blocks_hold_the_same_context(tmp_path: Path) -> None:
    engine, _ = tiny_engine(tmp_path, "fp8", kv_fp8=True)
    executor = TorchExecutor(engine)
    prompt = PROMPTS[1]
    executor.execute(make_batch([(prompt[:36], 0, [4, 9, 2])]))
    want = executor.execute(make_batch([(prompt[36:], 36, [4, 9, 2])])).clone()
    executor.execute(make_batch([(prompt[:36], 0, [4, 9, 2])]))
    step = make_batch([(prompt[36:], 36, [4, 9, 7])], copies=[(2, 7)])
    assert torch.equal(executor.execute(step), want)
    executor.copy_blocks([(4, 11), (11, 12)])
    assert torch.equal(executor.execute(make_batch([(prompt[36:], 36, [12, 9, 7])])), want)


def test_hidden_states_outputs(tmp_path: Path) -> None:
    """An extra output keeps its value although the residual stream is summed in place elsewhere."""
    engine, _ = tiny_engine(tmp_path, graph={"hidden_states": [0, 1]}, dtype="float32", kv="float32")
    fast, slow = TorchExecutor(engine), TorchExecutor(engine, lowered=False)
    step = make_batch([(PROMPTS[0], 0, blocks_of(0))])
    fast.execute(step)
    slow.execute(step)
    rows = len(PROMPTS[0])
    for name in ("hidden_states_0", "hidden_states_1"):
        assert torch.allclose(fast.hidden_states(name, rows), slow.hidden_states(name, rows), atol=1e-4)


@pytest.mark.parametrize("lowered", [True, False])
@pytest.mark.parametrize("host_library", [True, False])
def test_a_graph_with_a_mask_prefills(tmp_path: Path, lowered: bool, host_library: bool) -> None:
    """Steps without a tree bring one column, which means plain causality to every kernel that attends."""
    masked, _ = tiny_engine(tmp_path / "masked", graph={"tree_mask": True})
    plain, _ = tiny_engine(tmp_path / "plain")
    options = {"lowered": lowered, "host_library": host_library}
    steps = [
        make_batch([(range(3, 60), 0, blocks_of(0))]),
        make_batch([([7], 57, blocks_of(0)), ([9, 8], 0, blocks_of(1))]),
    ]
    executors = [TorchExecutor(engine, **options) for engine in (masked, plain)]
    for step in steps:
        mine, theirs = (executor.execute(step).clone() for executor in executors)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_tree_mask_replaces_causality(tmp_path: Path) -> None:
    engine, _ = tiny_engine(tmp_path, graph={"tree_mask": True})
    executor = TorchExecutor(engine)
    prompt, (first, second) = PROMPTS[0], (PROMPTS[2][0], PROMPTS[2][1])
    blocks = blocks_of(0)
    executor.execute(make_batch([(prompt, 0, blocks)]))
    alone = executor.execute(make_batch([([second], len(prompt), blocks)])).clone()
    executor.execute(make_batch([(prompt, 0, blocks)]))
    step = make_batch([([first, second], len(prompt), blocks)])
    # two alternatives for one position: neither sees the other
    siblings = type(step)(
        step.input_ids,
        np.full(2, len(prompt)),
        step.query_start,
        step.sequence_lengths,
        step.block_table,
        step.logit_indices,
        tree_mask=np.eye(2, dtype=np.uint8),
    )
    assert torch.allclose(executor.execute(siblings)[1], alone[0], atol=1e-5)
