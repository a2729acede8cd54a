"""The document is what rules and tables say; table rows are well formed and name what exists."""

from __future__ import annotations

from pathlib import Path

from tests.support.preflight import choices
from trtforge.formats.table import load_formats
from trtforge.preflight import all_rules, docs
from trtforge.preflight.features import FEATURES
from trtforge.recipe.keys import find_key
from trtforge.recipe.schema import Build, Speculation, Triton
from trtforge.tables import architecture_table
from trtforge.tables.features import feature_table, kernel_table

TARGETS = set(choices(Build, "target"))
ARCHITECTURES = {row.name for row in architecture_table().rows}


def test_the_document_is_current() -> None:
    written = (Path(__file__).parents[3] / "docs" / "preflight.md").read_text(encoding="utf-8")
    assert written == docs.render(), "run: python -m trtforge.preflight.docs docs/preflight.md"


def test_every_kind_has_rules_and_every_rule_a_kind() -> None:
    assert {rule.kind for rule in all_rules().values()} == set(docs.KINDS)
    text = docs.render()
    for code in all_rules():
        assert f"| `{code}` |" in text


def test_feature_rows_name_features_targets_and_kinds_that_exist() -> None:
    table = feature_table()
    for need in table.needs:
        assert {need.feature, need.needs} <= set(FEATURES)
        assert set(need.targets) <= TARGETS
        assert need.kind in docs.KINDS
        assert need.why.endswith(".")
    for pair in table.combinations:
        assert set(pair.features) <= set(FEATURES)
        assert set(pair.targets) <= TARGETS
        assert pair.kind in docs.KINDS
        assert pair.why.endswith(".")


def test_every_row_of_the_feature_table_is_read_by_a_rule() -> None:
    """A row's kind and support decide which rule reads it; a row that none reads would be no rule."""
    table = feature_table()
    assert {row.kind for row in table.needs} <= {"K12", "K13"}
    assert {(row.kind, row.support == "no") for row in table.combinations} <= {
        ("K12", True),
        ("K13", True),
        ("K13", False),
        ("K21", False),
        ("K24", True),
        ("K24", False),
    }


def test_methods_name_methods_and_replacements_that_the_target_has() -> None:
    table = feature_table()
    methods = set(choices(Speculation, "method"))
    for row in table.methods:
        assert row.target in TARGETS
        assert row.method in methods
        if row.support == "no":
            instead = table.method(row.target, str(row.instead))
            assert instead is not None and instead.support == "yes"
    assert set(table.drafting_layouts) <= set(choices(Triton, "layout"))
    assert {name for names in table.drafting_layouts.values() for name in names} <= methods


def test_effects_name_keys_and_readers_that_exist() -> None:
    layouts, methods = set(choices(Triton, "layout")), set(choices(Speculation, "method"))
    for row in (*feature_table().effects, *feature_table().refusals):
        assert find_key(tuple(row.key.split("."))) is not None, row.key
        assert set(row.targets) <= TARGETS
        assert set(row.layouts) <= layouts
        assert set(row.methods) <= methods
        assert row.targets or row.layouts or row.methods
        assert not row.why.endswith(".")


def test_kernels_are_of_formats_and_architectures_that_exist() -> None:
    formats = {row.name: row for row in load_formats().formats}
    for row in kernel_table().rows:
        assert row.format in formats
        assert set(row.groups or ()) <= set(formats[row.format].group_sizes)
        assert set(row.architectures) <= ARCHITECTURES
        assert set(row.targets) <= TARGETS
        for name in row.architectures:
            architecture = architecture_table().row(name)
            assert architecture is not None
            assert architecture.formats[row.format] == "yes"


def test_architectures_state_everything() -> None:
    rows = architecture_table().rows
    for attribute in ("formats", "kv_cache", "dtypes"):
        assert len({frozenset(getattr(row, attribute)) for row in rows}) == 1
    for row in rows:
        assert set(row.targets) <= TARGETS
        assert "torch" in row.targets
        assert set(row.by_target) <= TARGETS


def test_the_executables_formats_agree_with_the_format_table() -> None:
    """What the format table calls native has a kernel by the architecture table, where that states the format."""
    stated = {name for row in architecture_table().rows for name in row.formats}
    assert {"none", "fp8", "fp8_rowwise", "nvfp4", "int4_awq", "w4a8_awq"} <= stated
    for format_row in load_formats().formats:
        for name in format_row.native:
            architecture = architecture_table().row(name)
            assert architecture is not None
            wanted = "yes" if format_row.name in stated else None
            assert architecture.formats.get(format_row.name) == wanted, (format_row.name, name)
