"""One description of the ops' arguments: what C, ctypes, the plugins, the graph and the documents make of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from builder import opset
from builder.targets.tensorrt import plugin_fields
from plugins.checked import checked
from plugins.host.library import HostLibrary
from plugins.structs import CudaCall, arguments, structure
from trtforge.ground.errors import ForgeError
from trtforge.native import ops

ROOT = Path(__file__).parents[2]
STRUCTS = {f"trtforge_{op.name}_args": structure(op) for op in ops.OPS} | {"trtforge_cuda_call": CudaCall}


def test_what_is_written_from_the_tables_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/op_tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ctypes_and_the_compiler_lay_the_structs_out_alike(tmp_path: Path) -> None:
    """Offset and size of every field, as g++ sees the header."""
    lines = [
        f'std::printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof({name}::{field}));'
        for name, kind in STRUCTS.items()
        for field, *_ in kind._fields_
    ]
    lines += [f'std::printf("{name} 0 %zu\\n", sizeof({name}));' for name in STRUCTS]
    includes = '#include "trtforge/op_args.h"\n#include <cstddef>\n#include <cstdio>\n'
    (tmp_path / "layout.cpp").write_text(includes + "int main() {\n" + "\n".join(lines) + "\n}\n")
    program = tmp_path / "layout"
    subprocess.run(["g++", "-I", ROOT / "plugins/include", tmp_path / "layout.cpp", "-o", program], check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [
        f"{name}.{field} {getattr(kind, field).offset} {getattr(kind, field).size}"
        for name, kind in STRUCTS.items()
        for field, *_ in kind._fields_
    ]
    assert found == ours + [f"{name} 0 {ctypes.sizeof(kind)}" for name, kind in STRUCTS.items()]


@pytest.mark.parametrize("op", ops.OPS, ids=lambda op: op.name)
def test_a_struct_of_another_layout_is_refused(host: HostLibrary, op: ops.Op) -> None:
    args = arguments(op)
    args.struct_size += 8
    with pytest.raises(ForgeError, match="TF-OPS-003"):
        host.run_op(op, args)


def test_the_raw_call_and_the_checked_call_fill_the_same_struct(host: HostLibrary) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 96, generator=generator)[:, :64], torch.rand(64, generator=generator)
    checked_out, raw_out = torch.empty(5, 64), torch.empty(5, 64)
    host.rms_norm(x, weight, checked_out, eps=1e-5)
    raw = host.raw_op(ops.RMS_NORM)
    values = (x.data_ptr(), 0, weight.data_ptr(), raw_out.data_ptr(), 96, 0, 64, 5, 64, 0, 0, 1e-5, 0.0)
    assert raw(*values) == 0 and torch.equal(raw_out, checked_out)
    given = {"x": x, "weight": weight, "out": raw_out}
    args = checked(ops.RMS_NORM, given, eps=1e-5, weight_offset=0.0)
    assert [getattr(args, name) or 0 for name, _ in ops.RMS_NORM.fields] == pytest.approx(list(values))
    assert raw(*values[:7], -1, *values[8:]) != 0 and "rows is -1" in host.last_error()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weight": torch.zeros(63)}, r"weight must be float32 \[64\], contiguous"),
        ({"weight": torch.zeros(128)[::2]}, "weight must be"),
        ({"x": torch.zeros(64, 5).t()}, "x must be .* even rows of unit columns"),
        ({"x": torch.zeros(5, 64, dtype=torch.float64)}, r"x must be float32 or bfloat16 or float16 \[T, D\]"),
        ({"out": torch.zeros(5, 64, dtype=torch.float16)}, r"out must be float32 \[5, 64\]"),
        ({"out": torch.zeros(5, 64, device="meta")}, "on cpu"),
    ],
)
def test_tensors_are_held_against_the_table(change: dict[str, torch.Tensor], says: str) -> None:
    given = {"x": torch.zeros(5, 64), "weight": torch.zeros(64), "out": torch.zeros(5, 64)} | change
    with pytest.raises(ForgeError, match=f"TF-OPS-005: .*{says}"):
        checked(ops.RMS_NORM, given, eps=1e-5)


def test_graph_and_plugins_read_the_same_attributes() -> None:
    wanted = {a.name: a for a in ops.PAGED_ATTENTION.plugin_attributes}
    opset.register()
    schema = opset.defs.get_schema(opset.PAGED_ATTENTION, opset.VERSION, opset.DOMAIN)
    assert {name: attribute.required for name, attribute in schema.attributes.items()} == {
        name: a.standard is None for name, a in wanted.items()
    }
    fields = plugin_fields.FIELDS["PagedAttention"]
    assert set(fields) == {*wanted, *ops.PAGED_ATTENTION.flags}
    assert {(f.minimum, f.maximum, f.multiple) for n, f in fields.items() if n == "head_size"} == {(64, 256, 8)}
