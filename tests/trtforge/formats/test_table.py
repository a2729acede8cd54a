"""The format table and the refusals that need nothing but it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from trtforge.formats.table import (
    check_group_size,
    format_row,
    kv_mode,
    load_formats,
    modelopt_config,
    resolve_group_size,
)
from trtforge.ground.errors import EnvironmentLacks, ForgeError

TABLE = load_formats()


@pytest.mark.parametrize("row", TABLE.formats, ids=lambda row: row.name)
def test_rows_are_well_formed(row) -> None:
    assert row.title
    assert row.summary.endswith(".")
    assert all(source.startswith("https://") for source in row.sources)
    assert all(name.startswith("sm_") for name in row.native)
    for entry in row.modelopt:
        SpecifierSet(entry.versions)
    for rule in row.tensors.values():
        assert rule.expected_shape(256, 512, row.default_group_size) is not None


def test_needed_formats_and_modes_are_there() -> None:
    assert {"none", "fp8", "nvfp4", "int4_awq"} <= {row.name for row in TABLE.formats}
    assert {"none", "fp8", "fp8_cast", "nvfp4", "int8"} == {mode.name for mode in TABLE.kv_modes}


def test_tensor_shapes_follow_the_packing() -> None:
    int4 = format_row("int4_awq").tensors
    assert int4["weight"].expected_shape(256, 512, 64) == (128, 512)
    assert int4["weight_scale"].expected_shape(256, 512, 64) == (256, 8)
    nvfp4 = format_row("nvfp4").tensors
    assert nvfp4["weight"].expected_shape(256, 512, 16) == (256, 256)
    assert nvfp4["weight_scale_2"].expected_shape(256, 512, 16) == ()


@pytest.mark.parametrize("row", [*TABLE.formats, *TABLE.kv_modes], ids=lambda row: row.title)
def test_every_configuration_exists_in_the_pinned_modelopt(row) -> None:
    if row.modelopt:
        entry = modelopt_config(row, "0.47.0")
        assert (entry.config or entry.preset) is not None


def test_unknown_format_names_the_nearest() -> None:
    with pytest.raises(ForgeError) as caught:
        format_row("nvfp")
    assert caught.value.code == "TF-QNT-001"
    assert caught.value.remedies[0] == "quantize.format: nvfp4"
    assert "int4_awq" in caught.value.numbers["known"]


def test_unknown_kv_mode_names_the_nearest() -> None:
    with pytest.raises(ForgeError) as caught:
        kv_mode("fp8cast")
    assert caught.value.code == "TF-QNT-002"
    assert "quantize.kv_cache: fp8_cast" in caught.value.remedies


@pytest.mark.parametrize("name", ["nvfp4", "int8"])
def test_kv_modes_that_nothing_can_read_are_refused(name: str) -> None:
    with pytest.raises(ForgeError) as caught:
        kv_mode(name)
    assert caught.value.code == "TF-QNT-003"
    assert caught.value.why
    assert "quantize.kv_cache: fp8" in caught.value.remedies


def test_modelopt_version_outside_the_table() -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        modelopt_config(format_row("fp8"), "0.11.0")
    assert caught.value.code == "TF-QNT-010"
    assert caught.value.numbers["installed"] == "0.11.0"


def test_group_size_defaults_and_refusals() -> None:
    assert resolve_group_size(format_row("int4_awq"), None) == 128
    assert resolve_group_size(format_row("int4_awq"), 64) == 64
    assert resolve_group_size(format_row("fp8"), None) is None
    for name, size in (("fp8", 64), ("int4_awq", 48), ("nvfp4", 32)):
        with pytest.raises(ForgeError) as caught:
            resolve_group_size(format_row(name), size)
        assert caught.value.code == "TF-QNT-004"


def test_group_that_does_not_divide_offers_those_that_do() -> None:
    with pytest.raises(ForgeError) as caught:
        check_group_size(format_row("int4_awq"), 128, {"a.q_proj": 576, "a.down_proj": 1536})
    error = caught.value
    assert error.code == "TF-K4-001"
    assert error.numbers["widths"] == [576]
    assert error.numbers["remainders"] == {"576": 64}
    assert error.numbers["works"] == [32, 64]
    assert error.remedies[0] == "quantize.group_size: 64"


def test_no_group_works_leaves_another_format() -> None:
    with pytest.raises(ForgeError) as caught:
        check_group_size(format_row("int4_awq"), 64, {"odd": 100})
    assert caught.value.numbers["works"] == []
    assert "fp8" in caught.value.remedies[0]


@given(st.lists(st.integers(1, 64).map(lambda n: n * 16), min_size=1, max_size=6))
def test_offered_group_sizes_always_work(widths: list[int]) -> None:
    row = format_row("int4_awq")
    columns = {f"m{i}": width for i, width in enumerate(widths)}
    for size in row.group_sizes:
        try:
            check_group_size(row, size, columns)
        except ForgeError as error:
            assert any(width % size for width in widths)
            for works in error.numbers["works"]:
                check_group_size(row, works, columns)
        else:
            assert all(width % size == 0 for width in widths)
