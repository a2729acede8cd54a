"""Real RTX engines of a tiny model, compiled on this CPU: every format, the refusals, and the same bytes again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from builder.targets import engine_info, read_engine
from tests.builder.targets.rtx.models import compiles, native_graph, rtx_build
from tests.support.engines import build_engine
from trtforge.ground.errors import ForgeError
from trtforge.tables import architecture_table

pytestmark = compiles
#: format -> (an architecture that has it, one that the compiler refuses it for)
FORMATS = {
    "none": ("sm_80", None),
    "int4_awq": ("sm_80", "sm_75"),
    "fp8": ("sm_89", "sm_80"),
    "nvfp4": ("sm_120", "sm_89"),
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_compiles_and_is_refused_as_the_tables_say(tmp_path: Path, fmt: str) -> None:
    graph = native_graph(tmp_path / "g", fmt)
    works, refused = FORMATS[fmt]
    engine = build_engine(graph, tmp_path / "e", name="tiny", build=rtx_build(works))
    (item,) = engine["engines"]
    assert engine["quant_format"] == fmt and item["bytes"] > 10**6
    table = architecture_table()
    row = table.row(works)
    assert row is not None and "tensorrt-rtx" in row.targets and row.support(fmt, "tensorrt-rtx") == "yes"
    if refused is None:
        return
    row = table.row(refused)
    assert row is not None and row.support(fmt, "tensorrt-rtx") == "no"
    with pytest.raises(ForgeError) as caught:
        build_engine(graph, tmp_path / "r", name="tiny", build=rtx_build(refused))
    assert caught.value.code == "TF-BLD-082" and caught.value.numbers["datatypes"]
    assert not list((tmp_path / "r").glob("*.rtx")) and not (tmp_path / "r" / "engine.json").exists()


#: processes whose heaps, Python objects and environments differ; a colon and a space are in the folders' names
SURROUNDINGS: tuple[dict[str, str], ...] = (
    {},
    {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0", "PYTHONHASHSEED": "7"},
    {"PYTHONMALLOC": "malloc", "A_LONG_VARIABLE": "x" * 5000},
    {"GLIBC_TUNABLES": "glibc.malloc.top_pad=777777:glibc.malloc.arena_max=1", "OMP_NUM_THREADS": "1"},
)


@pytest.mark.parametrize("fmt", FORMATS)
def test_processes_give_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: str) -> None:
    """On the C library's heap these surroundings give two to four different engines of one graph."""
    architecture = FORMATS[fmt][0]
    hashes = set()
    for place, surroundings in zip(("a", "b/c", "d: e", "f"), SURROUNDINGS, strict=True):
        graph = native_graph(tmp_path / place / "g", fmt)
        with monkeypatch.context() as changed:
            for name, value in surroundings.items():
                changed.setenv(name, value)
            engine = build_engine(graph, tmp_path / place / "e", name="tiny", build=rtx_build(architecture))
        hashes.add(engine["engines"][0]["sha256"])
    assert len(hashes) == 1


def test_the_artifact(tmp_path: Path) -> None:
    out = tmp_path / "e"
    built = build_engine(
        native_graph(tmp_path / "g", "int4_awq", dtype="bfloat16"),
        out,
        name="tiny",
        build=rtx_build("sm_80", "sm_86", "sm_80"),
    )
    assert built == read_engine(out) == json.loads((out / "engine.json").read_text())
    assert built["target"] == "tensorrt-rtx" and built["kind"] == "RTX engine"
    assert "never in TensorRT" in built["loads_in"] and built["tensorrt_rtx"] in built["loads_in"]
    assert built["architectures"] == ["sm_80", "sm_86"]
    assert {path.name for path in out.iterdir()} >= {"sm_80.rtx", "sm_86.rtx", "engine.json", "build.log"}
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    for item in built["engines"]:
        data = (out / item["file"]).read_bytes()
        assert len(data) == item["bytes"] and hashlib.sha256(data).hexdigest() == item["sha256"]
    # 2 layers x (keys, values) x 2 kv heads x 64 values x 2 bytes, 256 tokens
    assert built["kv_cache"]["bytes_per_request"] == 2 * 2 * 2 * 64 * 2 * 256
    assert built["inputs"]["key_cache_0"] == ["B", 2, 256, 64] and built["inputs"]["logit_indices"] == ["B"]
    log = (out / "build.log").read_text()
    assert "== sm_80" in log and "== sm_86" in log and "[INFO]" in log

    assert all(item["intact"] for item in engine_info(out)["engines"])
    (out / "sm_86.rtx").write_bytes(b"x")
    assert [item["intact"] for item in engine_info(out)["engines"]] == [True, False]
    (out / "sm_80.rtx").unlink()
    assert [item["intact"] for item in engine_info(out)["engines"]] == [False, False]


def test_float32_compiles_from_ampere_on(tmp_path: Path) -> None:
    graph = native_graph(tmp_path / "g", dtype="float32")
    assert build_engine(graph, tmp_path / "e", name="tiny", build=rtx_build("sm_80"))["dtype"] == "float32"
    with pytest.raises(ForgeError) as caught:
        build_engine(graph, tmp_path / "r", name="tiny", build=rtx_build("sm_75"))
    assert caught.value.code == "TF-BLD-085"


def test_a_sliding_window_and_biases_compile(tmp_path: Path) -> None:
    graph = native_graph(
        tmp_path / "g", architecture="MistralForCausalLM", sliding_window=16, bias=False, tie=False, head_size=80
    )
    engine = build_engine(graph, tmp_path / "e", name="tiny", build=rtx_build("sm_120"))
    assert engine["sliding_window"] == 16


def test_an_architecture_that_the_compiler_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        build_engine(native_graph(tmp_path / "g"), tmp_path / "e", name="tiny", build=rtx_build("sm_90"))
    assert caught.value.code == "TF-BLD-081" and "sm_89" in caught.value.numbers["known"]


def test_weights_that_are_gone(tmp_path: Path) -> None:
    graph = native_graph(tmp_path / "g")
    (graph / "model.safetensors").unlink()
    with pytest.raises(ForgeError) as caught:
        build_engine(graph, tmp_path / "e", name="tiny", build=rtx_build("sm_80"))
    assert caught.value.code == "TF-BLD-084"
    assert not list((tmp_path / "e").glob("*.rtx"))
