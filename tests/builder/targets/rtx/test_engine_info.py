"""``trtforge engine info`` on RTX engines, over an artifact whose worker was a stand-in: no compiler is needed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.targets import read_engine
from builder.targets.rtx import compiler, info, target
from tests.builder.targets.rtx.models import native_graph, rtx_build
from tests.support.engines import build_engine
from tests.trtforge.cli.test_commands import cli  # noqa: F401 (a fixture)

#: writes what it was asked for in place of an engine
WORKER = """
import json, sys
request = json.load(sys.stdin)
open(request["engine"], "w").write(request["capability"])
print(json.dumps({"event": "done", "bytes": len(request["capability"]), "layers": 7, "version": "1.7.1.116"}))
"""


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(compiler, "WORKER", worker)
    monkeypatch.setattr(target, "find_spec", lambda name: SimpleNamespace())
    out = tmp_path / "bundle" / "engine"
    build_engine(native_graph(tmp_path / "g", "fp8"), out, name="tiny", build=rtx_build("sm_89", "sm_120"))
    return out


def test_it_says_rtx_engine_and_where_it_loads(cli: Any, artifact: Path) -> None:  # noqa: F811
    shown = cli("engine", "info", str(artifact.parent))
    assert shown.code == 0 and "RTX engines, fp8, float16" in shown.out
    assert "never in TensorRT" in " ".join(shown.out.split())
    document = json.loads(cli("engine", "info", str(artifact), "--json").out)
    assert [e["architecture"] for e in document["engines"]] == ["sm_89", "sm_120"]
    assert [e["layers"] for e in document["engines"]] == [7, 7]
    assert cli("engine", "info", str(artifact), "--quiet").out.strip() == "2 RTX engines, 0 damaged"


def test_a_damaged_engine_is_found(cli: Any, artifact: Path) -> None:  # noqa: F811
    (artifact / "sm_120.rtx").write_text("SM121")
    found = cli("engine", "info", str(artifact), "--quiet")
    assert found.code == 1 and found.out.strip() == "2 RTX engines, 1 damaged"


def test_file_names_of_a_foreign_engine_json_stay_in_the_folder(artifact: Path) -> None:
    engine = read_engine(artifact)
    outside = artifact.parent / "sm_89.rtx"
    outside.write_bytes((artifact / "sm_89.rtx").read_bytes())
    (artifact / "sm_89.rtx").unlink()
    engine["engines"][0]["file"] = "../sm_89.rtx"
    (artifact / "engine.json").write_text(json.dumps(engine))
    found = info.engine_info(artifact, read_engine(artifact))
    assert [e["intact"] for e in found["engines"]] == [False, True]
