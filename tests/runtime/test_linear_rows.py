"""Of every format: a row of a batch is the row alone, bit for bit, and the packed weights are the stored ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.executors.host_kernels import open_library
from runtime.executors.linears import Capability, PackedLinear, detect, pack
from runtime.executors.onnx_graph import Constant
from runtime.executors.program import Slot, linear
from runtime.executors.row_order import ROW_PADDING
from runtime.executors.torch_executor import TorchExecutor
from runtime.executors.weight_check import TOLERANCE, check_weights
from runtime.executors.weights import LinearSource
from tests.runtime.executor_support import tiny_engine
from trtforge.formats.elements import unpack_int4

KINDS = ("float32", "bfloat16", "float16", "fp8", "fp8_rowwise", "int8", "nvfp4", "int4")
FLOAT32 = Capability()
MACHINES = [FLOAT32, detect()] if detect().bf16 else [FLOAT32]


def constant(name: str, dtype: str, shape: tuple[int, int], data: torch.Tensor) -> Constant:
    return Constant(name, dtype, shape, data)


def source(kind: str, n: int, k: int, group: int, seed: int, bias: bool) -> tuple[LinearSource, torch.Tensor]:
    """A random linear as it is stored, and the float64 weights that it means."""
    generator = torch.Generator().manual_seed(seed)
    made = LinearSource(kind, (n, k), kind, torch.empty(0), bias=torch.randn(n, generator=generator) if bias else None)
    if kind in ("float32", "bfloat16", "float16"):
        made.weight = (torch.randn(n, k, generator=generator) * 0.02).to(getattr(torch, kind))
        return made, made.weight.double()
    if kind == "fp8":
        made.weight, made.scale = (torch.randn(n, k, generator=generator) * 80).to(torch.float8_e4m3fn), 3.1e-4
        return made, made.weight.double() * made.scale
    if kind in ("fp8_rowwise", "int8"):
        dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
        made.weight = constant("w", "", (n, k), (torch.randn(n, k, generator=generator) * 40).to(dtype))
        made.scale = torch.rand(n, generator=generator) * 1e-3 + 1e-4
        return made, made.weight.data.double() * made.scale.double()[:, None]
    bytes_NK = torch.randint(0, 256, (n, k // 2), generator=generator, dtype=torch.uint8)
    made.group = 16 if kind == "nvfp4" else group
    if kind == "nvfp4":
        made.weight, made.scale = constant("w", "FLOAT4E2M1", (n, k), bytes_NK), 2.7e-3
        made.block_scales = (torch.rand(n, k // 16, generator=generator) * 9 + 1).to(torch.float8_e4m3fn).float()
    else:
        made.weight = constant("w", "INT4", (n, k), bytes_NK)
        made.block_scales = torch.rand(n, k // group, generator=generator) * 0.01 + 1e-3
    codes = torch.empty(n, k)
    made.write_codes(codes)
    if kind == "int4":  # the product of integer and scale is rounded in no kernel of ours
        integers = unpack_int4(made.weight.data, (n, k), signed=True).double().view(n, -1, group)
        return made, (integers * made.block_scales.double()[..., None]).view(n, k)
    return made, codes.double() * made.scale


def run(packed: PackedLinear, x: torch.Tensor) -> torch.Tensor:
    """The linear as a program runs it: a row buffer in, a fresh tensor out."""
    rows = len(x)
    buffer, out = Slot(torch.zeros(rows + ROW_PADDING, x.shape[1], dtype=x.dtype)), Slot()
    buffer.t[:rows] = x
    linear(packed, buffer, out, x.dtype)(rows)
    return out.t[:rows].clone()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    machine=st.sampled_from(MACHINES),
    n=st.integers(1, 20).map(lambda i: 8 * i),
    groups=st.integers(1, 5),
    group=st.sampled_from((16, 32, 64, 128)),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_row_of_a_batch_is_the_row_alone(
    kind: str, machine: Capability, n: int, groups: int, group: int, bias: bool, seed: int
) -> None:
    stored, meaning = source(kind, n, groups * group, group, seed, bias)
    dtype = torch.bfloat16 if machine.bf16 else torch.float32
    packed = pack([stored], machine, dtype, library=open_library())
    assert packed.kernel.row_invariant
    x = torch.randn(40, groups * group, generator=torch.Generator().manual_seed(seed)).to(dtype)
    whole = run(packed, x)
    for rows in (1, 2, 3, 5, 7, 16, 17, 31):
        assert torch.equal(run(packed, x[:rows]), whole[:rows]), rows
    assert torch.equal(torch.cat([run(packed, row[None]) for row in x[20:28]]), whole[20:28])
    want = x.double() @ meaning.T + (0 if stored.bias is None else stored.bias.double())
    bound = (2e-5 if dtype == torch.float32 else 1e-2) * want.abs().max()
    assert (whole.double() - want).abs().max() <= bound
    found = check_weights([packed])
    assert found.weights == meaning.numel()
    # float16 rounds what lies below its normal range; nothing else may change
    assert found.changed == 0 or (kind in ("bfloat16", "float16") and found.largest <= TOLERANCE)


@pytest.mark.skipif(open_library() is None, reason="the host op library is not built")
@pytest.mark.parametrize(("n", "k", "group"), [(1152, 896, 128), (896, 4864, 128), (960, 576, 64)])
def test_int4_of_qwen2_and_smollm2(n: int, k: int, group: int) -> None:
    """Shapes at which the kernel for few rows and the one for many multiplied other weights."""
    stored, meaning = source("int4", n, k, group, 5, bias=True)
    for machine in MACHINES:
        dtype = torch.bfloat16 if machine.bf16 else torch.float32
        packed = pack([stored], machine, dtype, library=open_library())
        x = torch.randn(24, k, generator=torch.Generator().manual_seed(1)).to(dtype)
        whole = run(packed, x)
        assert all(torch.equal(run(packed, x[:rows]), whole[:rows]) for rows in (1, 3, 4, 5, 16, 17))
        want = x.double() @ meaning.T + stored.bias.double()
        if dtype == torch.bfloat16:
            # no further off than rounding the exact result once
            assert ((whole.double() - want).abs() <= 2.0**-8 * want.abs() + 1e-4).all()
        assert check_weights([packed]).changed == 0


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.label or "float32")
def test_a_scaled_linears_bias_is_added_as_it_is(machine: Capability) -> None:
    """In the kernel it would be divided by the scale and rounded to the kernel's type: 107 became 106.8."""
    weight = torch.zeros(16, 64).to(torch.float8_e4m3fn)
    bias = torch.linspace(-107.0, 107.0, 16).bfloat16().float()
    packed = pack(
        [LinearSource("q_proj", (16, 64), "fp8", weight, scale=3.07e-4, bias=bias)],
        machine,
        torch.bfloat16 if machine.bf16 else torch.float32,
    )
    got = run(packed, torch.randn(5, 64).to(torch.bfloat16 if machine.bf16 else torch.float32))
    assert torch.equal(got.float(), bias.expand(5, 16))


def test_without_the_library_int4_weights_are_rounded_to_float16_and_counted() -> None:
    stored, _ = source("int4", 64, 128, 32, 3, bias=False)
    found = check_weights([pack([stored], FLOAT32, torch.float32)])
    assert found.weights == 64 * 128 and 0 < found.changed <= found.weights
    assert 0 < found.largest <= TOLERANCE
    assert found.linears["int4"]["changed"] == found.changed and found.linears["int4"]["kernel"] == "fbgemm_fp16"


def test_a_kernel_that_holds_other_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, _ = source("fp8", 32, 64, 0, 4, bias=False)
    packed = pack([stored], FLOAT32, torch.float32)
    held = packed.kernel.weights()
    held[3, 5] = held.abs().max() * 1.5 - held[3, 5]
    monkeypatch.setattr(packed.kernel, "weights", lambda: held)
    found = check_weights([packed])
    assert (found.changed, list(found.linears)) == (1, ["fp8"]) and found.largest > 0.1
    held[3, 5] = float("nan")
    assert check_weights([packed]).largest == float("inf")


@pytest.mark.parametrize("fmt", ["none", "fp8", "nvfp4", "int4_awq"])
def test_an_engines_weights_are_the_checkpoints(tmp_path: Path, fmt: str) -> None:
    executor = TorchExecutor(tiny_engine(tmp_path, fmt, bias=True)[0])
    found = executor.check_weights()
    assert found.weights == sum(row["shape"][0] * row["shape"][1] for row in executor.describe()["linears"])
    assert found.changed == 0, found.linears


def test_an_evaluated_weight_is_evaluated_again_for_the_check() -> None:
    weight = torch.randn(32, 64).bfloat16()
    stored = LinearSource("l", (32, 64), "bfloat16", weight.clone(), again=weight.clone)
    packed = pack([stored], FLOAT32, torch.float32)
    stored.release()
    assert isinstance(stored.weight, torch.Tensor) and stored.weight.numel() == 0
    found = check_weights([packed])
    assert found.weights == 32 * 64 and found.largest <= TOLERANCE
    assert stored.weight.numel() == 0, "and let go of again"
