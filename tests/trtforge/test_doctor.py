"""The doctor's verdicts follow from what it finds."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace

import pytest

from trtforge import doctor
from trtforge.errors import EnvironmentLacks
from trtforge.preflight import Machine

MACHINE = Machine(memory_total=24 << 30, memory_available=20 << 30, disk_free=100 << 30, offline=False, cores=2)


def server() -> str:
    return "2.51.0 from a test"


def item(diagnosis: doctor.Diagnosis, name: str) -> doctor.Item:
    return next(item for item in diagnosis.items if item.name == name)


def test_a_target_is_ready_exactly_when_nothing_it_needs_is_missing() -> None:
    diagnosis = doctor.examine(MACHINE, server, ports=())
    for verdict in diagnosis.verdicts:
        missing = [i.name for i in diagnosis.items if i.status == "missing" and verdict.target in i.needed_by]
        assert list(verdict.lacks) == missing
        assert verdict.ready == (verdict.target == "torch" and not missing)
    for found in diagnosis.items:
        assert found.status == "ok" or found.remedy, f"{found.name} names no remedy"


def test_a_missing_compiler_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, *rest: None)
    monkeypatch.setattr(doctor, "host_library_path", lambda: None)
    diagnosis = doctor.examine(MACHINE, server, ports=())
    assert not diagnosis.ready
    assert "g++" in diagnosis.packages
    assert item(diagnosis, "g++").package == "g++"


def test_a_missing_libpython_comes_from_the_launcher() -> None:
    def lacking() -> str:
        raise EnvironmentLacks("TF-ENV-022", "no shared libpython", remedies=["apt-get install libpython3.11"])

    diagnosis = doctor.examine(MACHINE, lacking, ports=())
    assert item(diagnosis, "Triton server").package == "libpython3.11"
    assert "libpython3.11" in diagnosis.packages
    assert not diagnosis.ready


@pytest.mark.parametrize(
    ("version", "status"), [("1.26.4", "ok"), ("2.1.0", "missing"), ("1.24.0", "missing"), ("absent", "missing")]
)
def test_the_numpy_rule(monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    real = doctor.tool_versions
    monkeypatch.setattr(
        doctor, "tool_versions", lambda names: {**real(names), **({"numpy": version} if "numpy" in names else {})}
    )
    assert item(doctor.examine(MACHINE, server, ports=()), "numpy").status == status


@pytest.mark.parametrize(
    ("version", "status"), [("2.13.1+cpu", "ok"), ("2.12.0", "warning"), ("2.14.0", "warning"), ("absent", "missing")]
)
def test_versions_beside_the_stack(monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    real = doctor.tool_versions
    monkeypatch.setattr(
        doctor, "tool_versions", lambda names: {**real(names), **({"torch": version} if "torch" in names else {})}
    )
    assert item(doctor.examine(MACHINE, server, ports=()), "torch").status == status


def test_a_taken_port_is_a_warning_with_the_options() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        found = item(doctor.examine(MACHINE, server, ports=(port,)), f"port {port}")
    assert found.status == "warning"
    assert "--http-port" in str(found.remedy)


def test_small_machines_are_warned_about() -> None:
    small = replace(MACHINE, memory_total=2 << 30, disk_free=1 << 30)
    diagnosis = doctor.examine(small, server, ports=())
    assert item(diagnosis, "memory").status == item(diagnosis, "disk").status == "warning"
