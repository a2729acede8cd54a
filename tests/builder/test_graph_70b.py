"""The graph of a large model: little memory, whatever the weights weigh."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from builder.graphs.build import build_graph


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "graph_70b.py"
    spec = importlib.util.spec_from_file_location("graph_70b", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_layers_of_it(tmp_path: Path, bench: ModuleType) -> None:
    weights = bench.write_sparse_checkpoint(tmp_path, layers=2)
    info = build_graph(tmp_path, tmp_path)
    assert info.num_layers == 2 and len(info.linears) == 15
    assert weights > 7e9
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir()) < 2**20


@pytest.mark.slow
def test_all_of_it_within_a_gigabyte(tmp_path: Path, bench: ModuleType) -> None:
    assert bench.write_sparse_checkpoint(tmp_path) == pytest.approx(141.1e9, rel=1e-3)
    figures = bench.measure(tmp_path)
    assert figures["linears"] == 80 * 7 + 1
    assert figures["peak_rss_bytes"] < bench.LIMIT_BYTES
