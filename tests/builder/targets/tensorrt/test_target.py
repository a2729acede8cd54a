"""The target's directory, its process and its refusals, with the recorded bindings in the worker."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from builder.targets import engine_info, read_engine
from builder.targets.tensorrt import machine, target
from builder.targets.tensorrt.lowering import lower
from tests.support.engines import build_engine
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.processes import event_of
from trtforge.ground.progress import SilentProgress
from trtforge.machine.gpus import gpu_architectures
from trtforge.native.plugin_library import PluginLibrary, plugin_library, said_by_plugins
from trtforge.recipe.schema import Build, KvCache, Limits
from trtforge.targets.tensorrt import TensorRt

Graphs = Callable[..., Path]
LIMITS = Limits(max_batch_size=8, max_num_tokens=64, max_seq_len=256)
BUILD = Build(target="tensorrt", limits=LIMITS, kv_cache=KvCache(memory="4MiB"))
PLUGINS = PluginLibrary(Path("/plugins.so"), "1", "0123456789abcdef", "", "10.14.1", {"source_hash": "s"}, False, "f")


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.steps: list[tuple[str, float | None]] = []
        self.done = 0.0
        self.notes: list[str] = []

    def start(self, description: str, total: float | None = None) -> None:
        self.steps.append((description, total))
        self.done = 0.0

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_engine_directory(gpu_machine: Any, graphs: Graphs, tmp_path: Path) -> None:
    progress = Recorder()
    engine = build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD, progress=progress)
    assert engine == read_engine(tmp_path / "e")
    stamp = engine["tensorrt"]
    assert stamp["gpu_architecture"] == "sm_90" and stamp["plugins"]["abi"] == PLUGINS.abi
    assert stamp["version"] in json.loads(os.environ["FAKE_TENSORRT"])["version"]
    assert not stamp["aliased_io"] and stamp["pool_copy_bytes"] == 0 and stamp["profiles"] == ["decode", "mixed"]
    assert stamp["decode_buckets"] == [1, 2, 4, 8]
    # 8 rows that pad a step need 8 slots of their own: one block of 32
    assert stamp["sizes"]["blocks"] == engine["kv_cache"]["num_blocks"] + 1
    assert engine["kv_cache"]["num_blocks"] == 2**22 // engine["kv_cache"]["bytes_per_block"]
    names = {path.name for path in (tmp_path / "e").iterdir()}
    assert {"engine.json", "engine.plan", "build.log", "tokenizer.json", "config.json"} <= names
    assert not [name for name in names if name.endswith((".safetensors", ".onnx"))], "the plan holds the weights"
    assert set(engine["sha256"]) == names - {"engine.json", "build.log"}
    assert ("TensorRT: Building Engine", 4.0) in progress.steps
    log = (tmp_path / "e" / "build.log").read_text()
    assert "TensorRT prints to standard output" in log


def test_timings_are_kept_between_builds(gpu_machine: Any, graphs: Graphs, tmp_path: Path) -> None:
    for out in ("a", "b"):
        build_engine(graphs(), tmp_path / out, name="tiny", build=BUILD)
    (cache,) = (tmp_path / "cache" / "trtforge" / "tensorrt").iterdir()
    assert cache.read_bytes() == b"++" and "sm_90" in cache.name


def test_a_stripped_plan_keeps_its_weights_beside_it(gpu_machine: Any, graphs: Graphs, tmp_path: Path) -> None:
    build = BUILD.model_copy(update={"tensorrt": TensorRt(strip_weights=True)})
    engine = build_engine(graphs(), tmp_path / "e", name="tiny", build=build)
    assert engine["tensorrt"]["options"]["strip_weights"]
    names = set(engine["sha256"])
    assert "network.onnx" in names and any(name.endswith(".safetensors") for name in names)


@pytest.mark.parametrize(
    ("mode", "aliased", "copies", "noted"),
    [
        ("works", False, False, None),
        ("declared is rejected", False, False, None),
        ("declared copies", False, False, None),
        ("undeclared copies", True, False, "declared"),
        ("undeclared copies, declared copies", False, True, "copies no less"),
        ("undeclared copies, declared is rejected", False, True, "TF-BLD-108"),
        ("does not load", False, None, None),
    ],
)
def test_pools_in_place_however_tensorrt_reads_an_alias(
    gpu_machine: Any, graphs: Graphs, tmp_path: Path, mode: str, aliased: bool, copies: bool | None, noted: str | None
) -> None:
    """Nothing is declared unless that spares copies, and what is declared goes with the preview feature."""
    gpu_machine(mode)
    progress = Recorder()
    engine = build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD, progress=progress)
    stamp = engine["tensorrt"]
    assert stamp["aliased_io"] is aliased
    assert (tmp_path / "e" / "engine.plan").read_bytes() == (b"declared" if aliased else b"undeclared")
    assert stamp["pool_copy_bytes"] == (None if copies is None else copies * 100 * (stamp["sizes"]["blocks"] - 1))
    assert any(noted in note for note in progress.notes) if noted else not progress.notes
    assert not list((tmp_path / "e").glob("engine.plan.*"))


def test_an_alias_that_the_builder_was_not_told_of_fails_the_build(
    gpu_machine: Any, graphs: Graphs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Error 4: what a plan of plugins that declare and a builder that does not allow it would end with."""
    monkeypatch.setattr(target, "lower", lambda graph, missing, aliased=False: lower(graph, missing, aliased=True))
    with pytest.raises(ForgeError, match=r"TF-BLD-108.*not enabled"):
        build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD)


def test_the_kept_network_is_the_kept_plans(gpu_machine: Any, graphs: Graphs, tmp_path: Path) -> None:
    """A stripped plan is refitted from the network beside it, so both must declare the same."""
    build = BUILD.model_copy(update={"tensorrt": TensorRt(strip_weights=True)})
    for mode, aliased in (("undeclared copies", 1), ("undeclared copies, declared copies", 0)):
        gpu_machine(mode)
        build_engine(graphs(), tmp_path / mode, name="tiny", build=build)
        model = onnx.load(tmp_path / mode / "network.onnx", load_external_data=False)
        fields = [{a.name: a.i for a in node.attribute} for node in model.graph.node if node.domain == "trtforge"]
        assert [found["aliased"] for found in fields if "aliased" in found] == [aliased, aliased]


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("parser refuses", "TF-BLD-107", "Swish /model/act: no importer"),
        ("plugin refuses", "TF-OPS-203", "field 'x' is unknown"),
        ("builder fails", "TF-BLD-108", "no implementation"),
        ("killed", "TF-BLD-109", "SIGKILL"),
        ("killed by a signal without a name", "TF-BLD-109", "signal 35"),
    ],
)
def test_builds_that_fail(gpu_machine: Any, graphs: Graphs, tmp_path: Path, mode: str, code: str, words: str) -> None:
    gpu_machine(mode)
    with pytest.raises(ForgeError) as caught:
        build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD)
    assert caught.value.code == code and words in caught.value.message
    assert caught.value.remedies and caught.value.why and caught.value.exit_code == 2
    assert not (tmp_path / "e" / "engine.json").exists(), "no directory that a later run takes for an engine"


def test_an_interrupt_ends_the_worker(gpu_machine: Any, graphs: Graphs, tmp_path: Path) -> None:
    gpu_machine("hangs")
    began: list[int] = []

    class Interrupting(Recorder):
        def advance(self, amount: float = 1.0) -> None:
            super().advance(amount)
            if self.done >= 4 and self.steps[-1][0] == "TensorRT: Building Engine":
                raise KeyboardInterrupt

    before = set(threading.enumerate())
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD, progress=Interrupting())
    assert time.monotonic() - start < 60 and set(threading.enumerate()) == before and not began
    assert not (tmp_path / "e" / "engine.json").exists()


def test_info_says_what_this_machine_lacks(gpu_machine: Any, graphs: Graphs, tmp_path: Path) -> None:
    build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD)
    info = engine_info(tmp_path / "e")
    assert "sha256" not in info and any("needs TensorRT" in text for text in info["findings"])


# --- Refusals before TensorRT -------------------------------------------------------------------------------


def test_a_machine_without_tensorrt(graphs: Graphs, tmp_path: Path) -> None:
    if machine.tensorrt_version(None) is not None:
        pytest.skip("TensorRT is installed here")
    with pytest.raises(EnvironmentLacks) as caught:
        build_engine(graphs(), tmp_path / "e", name="tiny", build=BUILD)
    error = caught.value
    assert error.code == "TF-BLD-100" and error.exit_code == 3
    assert any(text.startswith("pip install 'tensorrt==11.4") for text in error.remedies)
    assert any("nvcr.io/nvidia/" in text and "TensorRT 10.14.1.48" in text for text in error.remedies)
    assert not (tmp_path / "e").exists()


def test_the_stack_names_what_to_install() -> None:
    with pytest.raises(EnvironmentLacks) as caught:
        machine.require(None, (), "trt-10.16")
    assert caught.value.numbers["needed"] == "10.16.1.11"
    assert "pip install 'tensorrt==10.16.1.11'" in caught.value.remedies
    assert not any("nvcr.io" in text for text in caught.value.remedies), "no container of the table has 10.16"


def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_loads", lambda name: True)
    monkeypatch.setattr(machine, "gpu_architectures", lambda: ())
    with pytest.raises(EnvironmentLacks) as caught:
        machine.require("11.4.0.106", (), None)
    assert caught.value.code == "TF-BLD-101" and caught.value.exit_code == 3


def test_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_loads", lambda name: True)
    monkeypatch.setattr(machine, "gpu_architectures", lambda: ("sm_90",))
    monkeypatch.setattr(machine, "plugin_library", lambda: PLUGINS)
    monkeypatch.setattr(machine, "device_capability", lambda library: "sm_90")
    assert machine.require("11.4.0.106", ("sm_90",), None).architecture == "sm_90"
    monkeypatch.setattr(
        machine, "plugin_library", lambda: dataclasses.replace(PLUGINS, kernels={"architectures": "80"})
    )
    with pytest.raises(EnvironmentLacks, match=r"TF-OPS-205.*no kernels for sm_90"):
        machine.require("11.4.0.106", ("sm_90",), None)
    with pytest.raises(ForgeError) as caught:
        machine.require("11.4.0.106", ("sm_80",), None)
    assert caught.value.code == "TF-BLD-103" and "build.architectures: [sm_90]" in caught.value.remedies


@pytest.mark.parametrize(
    ("installed", "stack", "fits"),
    [
        ("11.4.0.106", None, True),
        ("10.14.1.48.post1", None, True),
        ("10.13.3.9", None, False),
        ("12.0.0", None, False),
        ("11.4.0.106", "trt-11.4", True),
        ("11.4.0.106", "trt-10.16", False),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, installed: str, stack: str | None, fits: bool) -> None:
    monkeypatch.setattr(machine, "installed", lambda name: installed)
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    if fits:
        assert machine.tensorrt_version(stack) == installed
        return
    with pytest.raises(ForgeError) as caught:
        machine.tensorrt_version(stack)
    assert caught.value.code == "TF-BLD-102" and caught.value.remedies[0].startswith("pip install 'tensorrt==")


def test_graphs_without_kernels(graphs: Graphs, tmp_path: Path) -> None:
    with pytest.raises(ForgeError, match="TF-BLD-104"):
        build_engine(graphs(mode="native"), tmp_path / "e", name="tiny", build=BUILD)


def test_a_plugin_library_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match="TF-OPS-201"):
        plugin_library(tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(ForgeError, match="TF-OPS-202"):
        plugin_library(tmp_path / "text.so")


def test_what_plugins_say() -> None:
    assert said_by_plugins(["x", "[E] TF-OPS-204: PagedAttention: bad "]) == ("TF-OPS-204", "PagedAttention: bad")
    assert said_by_plugins(["nothing"]) is None


def test_spec_round_trip(graphs: Graphs, tmp_path: Path) -> None:
    from builder.targets.tensorrt.profiles import Sizes
    from builder.targets.tensorrt.session import Spec

    sizes = Sizes.of(LIMITS, block_size=32, num_blocks=9)
    spec = target.make_spec(graphs(), tmp_path, lower(graphs(), frozenset()), sizes, BUILD, Path("/p"), Path("/t"))
    spec.write(tmp_path / "spec.json")
    assert json.loads(json.dumps(dataclasses.asdict(Spec.read(tmp_path / "spec.json")))) == json.loads(
        json.dumps(dataclasses.asdict(spec))
    )


def test_lines_that_are_no_events() -> None:
    assert event_of("plain text") is None
    assert event_of('{"phase": 1}') is None
    assert event_of('{"event": "done"}') == {"event": "done"}


def test_this_machine_is_asked_without_importing_tensorrt() -> None:
    facts = target.key_facts()
    assert set(facts) == {"tensorrt", "gpu", "plugins"} and facts["gpu"] == list(gpu_architectures())
