"""Every row of the decoder table computes what transformers does: both graphs and the executor, in every format.

The paged graph runs in onnx's reference evaluator, the native one in ONNX Runtime, both in chunks of a prompt beside
decode steps of other requests. The executor runs the lowered program, in which nothing is left to the interpreter,
with the host library and with torch alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from builder.graphs.build import build_graph
from runtime.executors.linears import Capability
from runtime.executors.torch_executor import TorchExecutor
from tests.builder import test_native as native
from tests.builder import test_numerics as paged
from tests.families.support import PAIRS, ROWS, VARIANTS, assert_exact, assert_near, checkpoint, quantized
from tests.runtime.executor_support import LIMITS, PROMPTS, run_ragged, run_whole
from tests.support.engines import build_engine
from trtforge.formats import format_named
from trtforge.formats.table import format_row
from trtforge.recipe.schema import Build, KvCache

rows = pytest.mark.parametrize("name", ROWS)
every_variant = pytest.mark.parametrize(("name", "kind"), VARIANTS)
pairs = pytest.mark.parametrize(("name", "fmt"), PAIRS)
hosts = pytest.mark.parametrize("host", [True, False], ids=["host library", "torch"])


def paged_logits(directory: Path) -> list[np.ndarray]:
    info = build_graph(directory, directory, dtype="float32", block_size=16)
    onnx.checker.check_model(directory / "model.onnx")
    return paged.run_ragged(directory, info)


def native_logits(directory: Path) -> list[np.ndarray]:
    info = build_graph(directory, directory, dtype="float32", mode="native")
    domains = {node.domain for node in onnx.load(directory / "model.onnx", load_external_data=False).graph.node}
    assert info.mode == "native" and domains == {""}
    return native.run(directory, info)


def executor(directory: Path, *, dtype: str | None = None, kv: str = "float32", host: bool = True) -> TorchExecutor:
    """The lowered program of a checkpoint's engine with float32 activations."""
    build_graph(directory, directory / "graph", dtype=dtype, kv_cache_format=kv, block_size=16)
    build = Build(limits=LIMITS, kv_cache=KvCache(block_size=16, memory="4MiB"))
    build_engine(directory / "graph", directory / "engine", name="tiny", build=build)
    return TorchExecutor(directory / "engine", host_library=host, capability=Capability())


@every_variant
def test_the_paged_graph(root: Path, tmp_path: Path, name: str, kind: str) -> None:
    model = shutil.copytree(checkpoint(root, name, kind), tmp_path / "model")
    assert_exact(paged_logits(model), model, paged.PROMPTS)


@every_variant
def test_the_native_graph(root: Path, tmp_path: Path, name: str, kind: str) -> None:
    model = shutil.copytree(checkpoint(root, name, kind), tmp_path / "model")
    assert_exact(native_logits(model), model, native.PROMPTS)


@hosts
@every_variant
def test_the_executor(root: Path, tmp_path: Path, name: str, kind: str, host: bool) -> None:
    model = shutil.copytree(checkpoint(root, name, kind), tmp_path / "model")
    program = executor(model, dtype="float32", host=host)
    assert not program.describe()["program"]["interpreted"]
    whole, ragged = run_whole(program), run_ragged(program)
    assert_exact([logits.numpy() for logits in whole], model, PROMPTS)
    assert_exact([logits.numpy() for logits in ragged], model, PROMPTS)


@pairs
def test_the_paged_graph_in_a_format(root: Path, tmp_path: Path, name: str, fmt: str) -> None:
    quantizer = quantized(root, name, fmt, tmp_path / "model")
    assert_near(paged_logits(tmp_path / "model"), tmp_path / "model", paged.PROMPTS, quantizer, fmt)


@pytest.mark.parametrize("fmt", ["fp8", "int4_awq"])
@rows
def test_the_native_graph_in_a_format(root: Path, tmp_path: Path, name: str, fmt: str) -> None:
    # ONNX Runtime has no DequantizeLinear with bfloat16 scales on a CPU, and none of E2M1
    quantizer = quantized(root, name, fmt, tmp_path / "model", scale_type="F32")
    assert_near(native_logits(tmp_path / "model"), tmp_path / "model", native.PROMPTS, quantizer, fmt)


@pairs
def test_the_executor_in_a_format(root: Path, tmp_path: Path, name: str, fmt: str) -> None:
    quantizer = quantized(root, name, fmt, tmp_path / "model")
    program = executor(tmp_path / "model")
    assert not program.describe()["program"]["interpreted"].keys() - {"Cast"}
    assert {row["stored"] for row in program.describe()["linears"]} == {
        format_named(format_row(fmt).layout).kind,
        "bfloat16",
    }
    got = [logits.numpy() for logits in run_ragged(program)]
    assert_near(got, tmp_path / "model", PROMPTS, quantizer, fmt)
