"""A version is a whole number: ``true`` and ``1.0``, which equal 1 in Python, are refused wherever one is read."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.graphs.info import GraphInfo
from builder.planner.calibration import read_calibration
from builder.targets.record import read_engine as described_engine
from runtime.executors.engine_dir import read_engine
from tests.support.sources import python_files
from tests.support.synthetic import content_hashes
from trtforge.drafting.record import read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.ground.versions import is_version
from trtforge.store.store import Store
from trtforge.targets.engine_json import record_of


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 2, [1]])
def test_what_is_no_version(value: object) -> None:
    assert is_version(1, 1) and is_version(2, 1, 2)
    assert not is_version(value, 1)


def edited(source: Path, folder: Path, **changes: Any) -> Path:
    """A JSON file with some keys of other values, in another folder."""
    folder.mkdir()
    path = folder / source.name
    path.write_text(json.dumps({**json.loads(source.read_text()), **changes}))
    return path


@pytest.mark.parametrize("value", [True, 1.0], ids=["true", "1.0"])
class TestFiles:
    def test_an_engine(self, tiny_engine: Path, tmp_path: Path, value: object) -> None:
        assert read_engine(tiny_engine).record.name == described_engine(tiny_engine)["name"] == "tiny"
        path = edited(tiny_engine / "engine.json", tmp_path / "engine", version=value)
        with pytest.raises(ForgeError, match="TF-RUN-002"):
            read_engine(path.parent)
        with pytest.raises(ForgeError, match="TF-BLD-020"):
            described_engine(path.parent)
        with pytest.raises(ValueError, match=r"version: .*whole number"):
            record_of(json.loads(path.read_text()))

    def test_the_ops_that_an_engine_was_built_for(self, tiny_engine: Path, tmp_path: Path, value: object) -> None:
        path = edited(tiny_engine / "engine.json", tmp_path / "engine", ops_version=value)
        with pytest.raises(ForgeError, match="TF-RUN-003"):
            read_engine(path.parent)

    def test_a_graph(self, tiny_engine: Path, tmp_path: Path, value: object) -> None:
        path = edited(tiny_engine.parent / "graph" / "graph.json", tmp_path / "graph", version=value)
        with pytest.raises(ForgeError, match="TF-GRF-015"):
            GraphInfo.read(path.parent)

    def test_what_drafts(self, value: object) -> None:
        with pytest.raises(ValueError, match="version"):
            read_speculation({"speculation": {"version": value, "method": "ngram"}})

    def test_a_calibration(self, tmp_path: Path, value: object) -> None:
        path = tmp_path / "calibration.json"
        path.write_text(json.dumps({"version": value, "gpu": "h200", "source": "a test", "ratios": {}}))
        with pytest.raises(ForgeError, match="TF-PLN-052"):
            read_calibration(path, "h200")

    def test_a_store(self, tmp_path: Path, value: object) -> None:
        store = Store(tmp_path / "store")
        assert content_hashes(store) == {}
        record = store.root / "store.json"
        record.chmod(0o644)
        record.write_text(json.dumps({**json.loads(record.read_text()), "version": value}))
        with pytest.raises(ForgeError, match="TF-STO-008"):
            Store(tmp_path / "store")


def test_no_version_is_compared_as_a_number() -> None:
    """Nobody compares a constant named VERSION with what a file says by ``==``: the helper does it."""
    found = []
    known: Callable[[ast.expr], bool] = lambda node: isinstance(node, ast.Name) and node.id.endswith("VERSION")  # noqa: E731
    for name, path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and any(known(side) for side in (node.left, *node.comparators)):
                found.append(f"{name}:{node.lineno}")
    assert found == []
