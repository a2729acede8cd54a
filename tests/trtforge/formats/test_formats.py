"""A format is a module and its row: nothing else names it, and what it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import ROOT, python_files
from trtforge.formats import Format, format_of_algorithm, formats
from trtforge.formats.table import FormatRow, load_formats

#: files outside a format's module, tests, documents and tables that may name it
BAR = 5
ROWS = [row for row in load_formats().formats if row.weight is not None]
QUANTIZING = [format for format in formats() if format.row.weight is not None]


def _strings(path: Path) -> Iterator[str]:
    """The strings of a module that are no documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


@cache
def _all_strings() -> dict[str, list[str]]:
    return {name: list(_strings(path)) for name, path in python_files()}


def _naming(row: FormatRow) -> list[str]:
    """The modules, the format's own left out, that name it or an algorithm of it."""
    word = re.compile(rf"(?<![\w-]){re.escape(row.name)}(?![\w-])")
    algorithms = {row.algorithm, *(variant.algorithm for variant in row.variants)}
    own = f"trtforge/formats/{row.name}.py"
    return [
        name
        for name, strings in _all_strings().items()
        if name != own and any(word.search(text) or text in algorithms for text in strings)
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_few_modules_name_a_format(row: FormatRow) -> None:
    assert len(_naming(row)) <= BAR, _naming(row)


def test_the_count_sees_a_name() -> None:
    """The recipe's schema lists the KV modes, two of which are called as formats are."""
    seen = {row.name for row in ROWS if "trtforge/recipe/schema.py" in _naming(row)}
    assert seen == {"fp8", "nvfp4"}


def test_every_row_has_a_module_and_every_module_a_row() -> None:
    folder = ROOT / "trtforge" / "formats"
    modules = {path.stem for path in folder.glob("*.py") if "class Method(Format)" in path.read_text(encoding="utf-8")}
    assert modules == {row.name for row in load_formats().formats}


@pytest.mark.parametrize("format", formats(), ids=lambda format: format.name)
def test_a_format_says_all_that_the_chain_asks(format: Format) -> None:
    for asked in ("holds", "take", "emit", "read", "shard"):
        assert getattr(type(format), asked) is not getattr(Format, asked), asked
    assert format_of_algorithm(format.row.algorithm) is format


@pytest.mark.parametrize("format", QUANTIZING, ids=lambda format: format.name)
def test_the_executor_has_what_a_format_names(format: Format) -> None:
    from runtime.executors.kernels import TorchKernels
    from runtime.executors.linears import KERNELS

    assert format.kind and [other for other in formats() if other.kind == format.kind] == [format]
    assert set(format.kernels) <= set(KERNELS)
    assert (format.input_kernel is None) == (format.row.activation is None)
    assert format.input_kernel is None or hasattr(TorchKernels, format.input_kernel)
    for asked in ("match_weight", "write_codes"):
        assert getattr(type(format), asked) is not getattr(Format, asked), asked


def test_no_two_formats_hold_a_linear() -> None:
    """Whatever is stored: the first that holds a linear is the only one."""
    from trtforge.ground.safetensors_header import TensorInfo

    types = ("BF16", "F16", "F32", "U8", "I8", "F8_E4M3", "F4")
    for weight in types:
        for scale in (None, *types):
            for leaves in ((), ("input_scale",), ("weight_scale_2", "input_scale")):
                beside = {leaf: TensorInfo("w", "F32", (), 0, 4) for leaf in leaves}
                if scale is not None:
                    beside["weight_scale"] = TensorInfo("w", scale, (8, 2), 0, 0)
                stored = TensorInfo("w", weight, (8, 32), 0, 0)
                assert sum(format.holds(stored, beside) for format in formats()) <= 1, (weight, scale, leaves)
