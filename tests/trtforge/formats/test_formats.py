"""A format is a module and its row: nothing else names it, and what it names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.sources import ROOT, python_files
from trtforge.formats import Format, format_named, format_of_algorithm, format_of_row, formats
from trtforge.formats.docs import written
from trtforge.formats.table import FormatRow, RefusedFormat, format_row, load_formats
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import TensorInfo
from trtforge.targets import TARGETS

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
    """The modules, the format's own left out, that name it or its algorithm."""
    word = re.compile(rf"(?<![\w-]){re.escape(row.name)}(?![\w-])")
    # the table's module names what tensor cores run, which is called as two formats are
    own = (f"trtforge/formats/{row.name}.py", "trtforge/formats/table.py")
    return [
        name
        for name, strings in _all_strings().items()
        if name not in own and any(word.search(text) or text == row.algorithm for text in strings)
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
    assert modules == {row.layout for row in load_formats().formats}


@pytest.mark.parametrize("format", formats(), ids=lambda format: format.name)
def test_a_format_says_all_that_the_chain_asks(format: Format) -> None:
    shard = () if "trtllm-engine" in format.row.not_on else ("shard",)
    for asked in ("holds", "take", "emit", "read", *shard):
        assert getattr(type(format), asked) is not getattr(Format, asked), asked
    found = format_of_algorithm(format.row.algorithm)
    assert found is not None and type(found) is type(format) and found.row == format.row


@pytest.mark.parametrize("row", [row for row in ROWS if row.stored_as], ids=lambda row: row.name)
def test_a_row_without_a_module_is_stored_as_its_layout(row: FormatRow) -> None:
    """Type and shape of what both store are the same; what its layout stores beside is left out, or it is optional."""
    layout = format_named(row.layout).row
    assert {
        leaf: rule for leaf, rule in row.tensors.items() if leaf in layout.tensors
    }.items() <= layout.tensors.items()
    assert all(rule.optional for leaf, rule in row.tensors.items() if leaf not in layout.tensors)
    assert row.weight == layout.weight and row.group_sizes == layout.group_sizes
    assert row.activation in (None, layout.activation)
    found = format_of_row(row.name)
    assert type(found) is type(format_named(row.layout)) and found.row is row


@pytest.mark.parametrize("row", load_formats().refused, ids=lambda row: row.name)
def test_what_is_refused_says_who_and_what_instead(row: RefusedFormat) -> None:
    with pytest.raises(ForgeError) as caught:
        format_row(row.name)
    assert caught.value.code == "TF-QNT-009" and row.who in caught.value.message and caught.value.why == row.why
    assert caught.value.remedies == [f"quantize.format: {name}" for name in row.instead]
    assert row.sources and {other.name for other in ROWS} >= set(row.instead)


def test_the_document_has_the_table() -> None:
    text = (ROOT / "docs" / "quantize.md").read_text(encoding="utf-8")
    assert written(text) == text


def test_targets_that_do_not_take_a_format_are_targets() -> None:
    for row in ROWS:
        assert set(row.not_on) < set(TARGETS), row.name
        assert all(why.endswith(".") for why in row.not_on.values())


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
    types = ("BF16", "F16", "F32", "U8", "I8", "F8_E4M3", "F4")
    for weight in types:
        for scale in (None, *types):
            for leaves in ((), ("input_scale",), ("weight_scale_2", "input_scale")):
                beside = {leaf: TensorInfo("w", "F32", (), 0, 4) for leaf in leaves}
                for shape in ((), (1,), (8,), (8, 2)):
                    if scale is not None:
                        beside["weight_scale"] = TensorInfo("w", scale, shape, 0, 0)
                    stored = TensorInfo("w", weight, (8, 32), 0, 0)
                    holding = [format.name for format in formats() if format.holds(stored, beside)]
                    assert len(holding) <= 1, (weight, scale, shape, leaves, holding)
