"""The doctor's verdicts follow from what it finds, and what loads counts, not what pip says."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.preflight import H100
from tests.support.preflight import SMALL as MACHINE
from trtforge.examination import doctor, engines, host, safety
from trtforge.examination.items import ALL, Item
from trtforge.ground.errors import EnvironmentLacks
from trtforge.stack.probe import Loaded
from trtforge.tables import Component, stack_table
from trtforge.tritonserver.server_launch import closing

TABLE = stack_table()


def server() -> tuple[str | None, str]:
    return "2.51.0", "a test"


def loads(version: str | None, pip: str | None = None) -> Callable[[Component], Loaded]:
    return lambda component: Loaded(version, f"/lib/{component.name}.so" if version else "", pip)


@pytest.fixture(autouse=True)
def nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No subprocess: a machine without engines, whatever this one has."""
    for name, item in (
        ("drivers", Item("NVIDIA driver", "missing", "", ("tensorrt", "trtllm-engine"), ALL[1:], "install it")),
        ("cuda", Item("CUDA runtime", "missing", "", ("tensorrt",), (), "install it")),
        ("tensorrt", Item("TensorRT", "missing", "", ("tensorrt", "trtllm-engine"), ("tensorrt",), "install it")),
        ("tensorrt_plugins", Item("TensorRT plugins", "missing", "", ("tensorrt",), ("tensorrt",), "build them")),
        ("tensorrt_llm", Item("TensorRT-LLM", "missing", "", ("trtllm-engine",), ALL[3:], "install it")),
    ):
        monkeypatch.setattr(engines, f"real_{name}", getattr(engines, name), raising=False)
        answer = [item] if name == "drivers" else item
        monkeypatch.setattr(engines, name, lambda *arguments, answer=answer: answer)
    monkeypatch.setattr(safety, "_ASKED", {})
    monkeypatch.setattr(safety, "_processes", lambda: iter(()))


def real(name: str) -> Any:
    return getattr(engines, f"real_{name}")


def found(diagnosis: doctor.Diagnosis, name: str) -> Item:
    return next(item for item in diagnosis.items if item.name == name)


def test_a_target_is_ready_exactly_when_nothing_it_needs_is_missing() -> None:
    diagnosis = doctor.examine(MACHINE, server, ports=())
    for verdict in diagnosis.verdicts:
        missing = [item for item in diagnosis.items if item.status == "missing"]
        assert list(verdict.lacks_to_build) == [i.name for i in missing if verdict.target in i.builds]
        assert list(verdict.lacks_to_run) == [i.name for i in missing if verdict.target in i.runs]
        assert verdict.ready == (not verdict.lacks)
        assert verdict.install or not verdict.lacks
    for item in diagnosis.items:
        assert item.status == "ok" or item.remedy, f"{item.name} names no remedy"


def test_every_target_of_the_stack_table_has_a_verdict() -> None:
    verdicts = {verdict.target: verdict for verdict in doctor.examine(MACHINE, server, ports=()).verdicts}
    assert set(verdicts) == set(ALL)
    assert verdicts["trtllm-engine"].container == TABLE.newest("trtllm-engine").container


@pytest.mark.parametrize(
    ("builds", "runs", "words"),
    [((), (), "ready"), ((), ("t",), "can build but not run"), (("t",), ("t",), "cannot build")],
)
def test_the_three_verdicts(builds: tuple[str, ...], runs: tuple[str, ...], words: str) -> None:
    verdict = doctor.verdict("t", [Item("piece", "missing", "", builds, runs, "install piece")], TABLE)
    assert verdict.words == words
    assert verdict.to_json()["install"] == (["install piece"] if words != "ready" else [])


def test_a_target_whose_build_is_finished_elsewhere_says_so() -> None:
    pieces = [Item("TensorRT-LLM", "missing", "", (target := "trtllm-engine",), (target,), "install it")]
    assert doctor.verdict(target, pieces, TABLE).words == "can prepare but not compile"
    assert doctor.verdict(target, [], TABLE).words == "ready"


def test_readiness_is_that_of_the_target_that_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = doctor.examine(MACHINE, server, ports=())
    assert diagnosis.ready
    monkeypatch.setattr(host, "host_library_path", lambda: None)
    assert not doctor.examine(MACHINE, server, ports=()).ready


def test_a_missing_compiler_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None)
    monkeypatch.setattr(host, "host_library_path", lambda: None)
    diagnosis = doctor.examine(MACHINE, server, ports=())
    assert not diagnosis.ready
    assert "g++" in diagnosis.packages
    assert found(diagnosis, "g++").package == "g++"


def test_a_missing_libpython_comes_from_the_launcher() -> None:
    def lacking() -> tuple[str | None, str]:
        raise EnvironmentLacks("TF-ENV-022", "no shared libpython", remedies=["apt-get install libpython3.11"])

    diagnosis = doctor.examine(MACHINE, lacking, ports=())
    assert found(diagnosis, "Triton server").package == "libpython3.11"
    assert "libpython3.11" in diagnosis.packages
    assert not diagnosis.ready


@pytest.mark.parametrize(
    ("version", "status"), [("1.26.4", "ok"), ("2.1.0", "missing"), ("1.24.0", "missing"), ("absent", "missing")]
)
def test_the_numpy_rule(monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    before = host.tool_versions
    monkeypatch.setattr(
        host, "tool_versions", lambda names: {**before(names), **({"numpy": version} if "numpy" in names else {})}
    )
    assert found(doctor.examine(MACHINE, server, ports=()), "numpy").status == status


@pytest.mark.parametrize(
    ("version", "status"), [("2.13.1+cpu", "ok"), ("2.12.0", "warning"), ("2.14.0", "warning"), ("absent", "missing")]
)
def test_versions_beside_the_stack(monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    before = host.tool_versions
    monkeypatch.setattr(
        host, "tool_versions", lambda names: {**before(names), **({"torch": version} if "torch" in names else {})}
    )
    assert found(doctor.examine(MACHINE, server, ports=()), "torch").status == status


def test_a_taken_port_is_a_warning_with_the_options() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        item = found(doctor.examine(MACHINE, server, ports=(port,)), f"port {port}")
    assert item.status == "warning"
    assert "--http-port" in str(item.remedy)


def test_small_machines_are_warned_about() -> None:
    small = replace(MACHINE, memory_total=2 << 30, disk_free=1 << 30)
    diagnosis = doctor.examine(small, server, ports=())
    assert found(diagnosis, "memory").status == found(diagnosis, "disk").status == "warning"


class TestEngines:
    def test_a_tensorrt_that_pip_lists_and_the_loader_does_not_find_is_missing(self) -> None:
        item = real("tensorrt")(TABLE, loads(None, pip="10.14.1"))
        assert item.status == "missing"
        assert "pip says 10.14.1, but libnvinfer does not load" in item.detail

    def test_what_loads_beside_what_pip_says(self) -> None:
        item = real("tensorrt")(TABLE, loads("10.14.1.48", pip="10.13.3.9"))
        assert item.status == "ok"
        assert "trtllm-1.2.1" in item.detail
        assert "pip says 10.13.3.9" in item.detail

    def test_a_tensorrt_of_no_stack(self) -> None:
        item = real("tensorrt")(TABLE, loads("9.3.0"))
        assert item.status == "warning"
        assert "10.14" in str(item.remedy)

    @pytest.mark.parametrize(
        ("version", "gpus", "status", "words"),
        [
            (None, (), "missing", "there is no NVIDIA driver"),
            ("575.57.08", (), "missing", "no GPU is visible"),
            ("600.10.01", (H100,), "ok", "sm_90"),
        ],
    )
    def test_drivers(self, version: str | None, gpus: Any, status: str, words: str) -> None:
        here = replace(MACHINE, gpus=gpus, no_gpus="" if version else "there is no NVIDIA driver")
        item = real("drivers")(here, TABLE, loads(version))[0]
        assert item.status == status
        assert words in item.detail

    def test_a_driver_that_is_too_old_is_missing_for_the_targets_that_need_more(self) -> None:
        items = real("drivers")(replace(MACHINE, gpus=(H100,)), TABLE, loads("470.82.01"))
        assert items[0].status == "ok"
        lacking = {target for item in items[1:] for target in item.runs}
        needing = {t for t in ALL if (row := TABLE.newest(t)) and row.version_of("driver")} - {"torch"}
        assert lacking == needing
        assert all(item.status == "missing" and item.remedy for item in items[1:])
        assert len(real("drivers")(replace(MACHINE, gpus=(H100,)), TABLE, loads("600.10.01"))) == 1

    @pytest.mark.parametrize(
        ("version", "pip", "status"),
        [("1.2.1", "1.2.1", "ok"), ("1.3.0rc20", None, "ok"), ("0.20.0", None, "warning"), (None, "1.2.1", "missing")],
    )
    def test_tensorrt_llm(self, version: str | None, pip: str | None, status: str) -> None:
        assert real("tensorrt_llm")(TABLE, loads(version, pip)).status == status

    def test_the_backend_of_the_container(self, tmp_path: Path) -> None:
        assert engines.triton_backend(tmp_path).status == "ok"
        assert engines.triton_backend(tmp_path / "no").status == "missing"

    def test_cuda_says_where_it_lies(self) -> None:
        assert "13.0" in real("cuda")(loads("13.0")).detail
        assert real("cuda")(loads(None)).status == "missing"

    @pytest.mark.parametrize(
        ("programs", "status"), [((), "warning"), (("docker",), "warning"), (("podman", "nvidia-ctk"), "ok")]
    )
    def test_containers(self, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], status: str) -> None:
        monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
        assert engines.container_runtime().status == status


@pytest.mark.parametrize("target", ["trtllm-engine", "trtllm-llmapi"])
def test_targets_of_a_container_are_told_to_take_it_whole(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """A wheel of TensorRT or TensorRT-LLM would be another release than the one that the container serves with."""
    for name in ("tensorrt", "tensorrt_llm"):
        monkeypatch.setattr(engines, name, lambda table, name=name: real(name)(table, ask=loads(None)))
    verdicts = {verdict.target: verdict for verdict in doctor.examine(MACHINE, server, ports=()).verdicts}
    row = TABLE.newest(target)
    assert row is not None and row.container is not None
    assert verdicts[target].install == ("install it", f"docker pull {row.container}")
    assert not any("pip install" in remedy for remedy in verdicts[target].install)
    wheel = TABLE.newest("tensorrt").version_of("TensorRT")
    assert any(f"'tensorrt=={wheel}" in remedy for remedy in verdicts["tensorrt"].install)


def test_only_the_driver_missing_needs_no_container() -> None:
    driver = Item("NVIDIA driver", "missing", "", (), ("trtllm-engine",), "install it")
    assert doctor.verdict("trtllm-engine", [driver], TABLE).install == ("install it",)


def test_the_holes_of_what_loads_are_said_and_forbid_nothing() -> None:
    diagnosis = doctor.examine(MACHINE, server, ports=())
    item = found(diagnosis, "holes of tritonserver")
    assert item.status == "warning"
    assert item.detail.startswith("2.51.0: ") and "CVE-2025-23310" in item.detail
    assert item.remedy is not None and "26.07" in item.remedy
    assert not item.builds and not item.runs
    sound = doctor.examine(MACHINE, lambda: ("2.75.0", "a test"), ports=())
    assert [item.name for item in sound.items if item.name.startswith("holes of tritonserver")] == []


def test_libraries_that_load_are_asked_for_their_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"TensorRT": Component(name="TensorRT", version=""), "TensorRT-LLM": Component(name="L", version="")}
    monkeypatch.setattr(safety, "_ASKED", asked)
    names = {item.name: item.detail for item in safety.holes(None, loads("1.2.1"))}
    assert "CVE-2026-24233" in names["holes of TensorRT-LLM"]
    assert "holes of TensorRT" in names
    assert safety.holes(None, loads(None)) == []


def test_running_servers_say_what_they_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ["/opt/tritonserver/bin/tritonserver", "--model-repository=/m"]
    processes = [(7, start), (8, [*start, *closing("f00")]), (9, ["vim", "tritonserver"]), (10, [])]
    monkeypatch.setattr(safety, "_processes", lambda: iter(processes))
    items = {item.name: item for item in safety.running_servers()}
    assert sorted(items) == ["server 7", "server 8"]
    assert items["server 8"].status == "ok"
    assert "f00" not in items["server 8"].detail
    opened = items["server 7"]
    assert opened.status == "warning" and "shared-memory" in opened.detail and "gRPC" in opened.detail
    assert opened.remedy is not None and "--http-restricted-api=" in opened.remedy
    assert not opened.runs and not opened.builds
