"""Processor, memory and cores: read in one place, under the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from trtforge.machine import processor as processor_module
from trtforge.machine.memory import memory
from trtforge.machine.processor import CPU_CAPABILITIES, ISA_FLAGS, Processor, cores, processor, quotas
from trtforge.machine.record import machine_facts, this_machine

MIB = 2**20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_capabilities_from_flags(tmp_path: Path) -> None:
    for name, needed in CPU_CAPABILITIES:
        assert Processor("", needed).capability == name
    assert Processor("", frozenset({"avx2"})).capability == "plain"
    write(tmp_path / "cpuinfo", "processor\t: 0\nmodel name : A Fast One (TM)\nflags\t\t: fma avx2 f16c\n")
    found = processor(tmp_path / "cpuinfo")
    assert (found.name, found.capability, found.isa) == ("A Fast One (TM)", "avx2", ("avx2", "f16c", "fma"))


def test_a_processor_that_says_little(tmp_path: Path) -> None:
    write(tmp_path / "arm", "processor\t: 0\nFeatures\t: fp asimd sve bf16\n")
    assert processor(tmp_path / "arm").isa == ("asimd", "sve", "bf16") and processor(tmp_path / "arm").name
    assert processor(tmp_path / "none").flags == frozenset() and processor(tmp_path / "none").name


def test_every_flag_that_a_level_needs_is_recorded() -> None:
    """A flag that the record leaves out would look absent on every machine that a bundle is held against."""
    assert {flag for _, flags in CPU_CAPABILITIES for flag in flags} <= set(ISA_FLAGS)


def v2(tmp_path: Path, group: str = "/a/b") -> tuple[Path, Path]:
    root = tmp_path / "cgroup"
    write(root / "cgroup.controllers", "cpu memory\n")
    write(tmp_path / "self", f"0::{group}\n")
    return root, tmp_path / "self"


def test_memory_under_the_groups_of_version_2(tmp_path: Path) -> None:
    root, groups = v2(tmp_path)
    write(root / "a" / "memory.max", f"{512 * MIB}\n")
    write(root / "a" / "memory.current", f"{400 * MIB}\n")
    write(root / "a" / "memory.stat", f"anon 1\ninactive_file {100 * MIB}\n")
    write(root / "a" / "b" / "memory.max", "max\n")
    write(root / "a" / "b" / "memory.current", f"{400 * MIB}\n")
    found = memory(root, groups)
    assert (found.total, found.available) == (512 * MIB, 212 * MIB)


def test_memory_where_only_the_containers_own_group_is_mounted(tmp_path: Path) -> None:
    root, groups = v2(tmp_path, "/kubepods/pod1/abc")
    write(root / "memory.max", f"{256 * MIB}\n")
    write(root / "memory.current", f"{300 * MIB}\n")
    assert (memory(root, groups).total, memory(root, groups).available) == (256 * MIB, 0)


def test_memory_under_the_groups_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "self", "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n")
    folder = tmp_path / "cgroup" / "memory" / "x"
    write(folder / "memory.limit_in_bytes", f"{512 * MIB}\n")
    write(folder / "memory.usage_in_bytes", f"{500 * MIB}\n")
    write(folder / "memory.stat", f"total_inactive_file {8 * MIB}\n")
    write(folder.parent / "memory.limit_in_bytes", f"{2**63 - 4096}\n")
    found = memory(tmp_path / "cgroup", tmp_path / "self")
    assert (found.total, found.available) == (512 * MIB, 20 * MIB)


def test_memory_without_groups_is_the_machines(tmp_path: Path) -> None:
    assert memory(tmp_path, tmp_path / "none").total == psutil.virtual_memory().total


def test_processors_time_that_groups_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, groups = v2(tmp_path)
    write(root / "a" / "cpu.max", "150000 100000\n")
    write(root / "a" / "b" / "cpu.max", "max 100000\n")
    assert quotas(root, groups) == [1.5]
    write(tmp_path / "old", "3:cpu:/x\n")
    write(root / "cpu" / "x" / "cpu.cfs_quota_us", "50000\n")
    write(root / "cpu" / "x" / "cpu.cfs_period_us", "100000\n")
    write(root / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(root / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert quotas(root, tmp_path / "old") == [0.5]
    monkeypatch.setattr(processor_module.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(processor_module, "quotas", lambda: [2.5, 6.0])
    assert cores() == 3
    monkeypatch.setattr(processor_module, "quotas", lambda: [0.1])
    assert cores() == 1


def test_this_machine() -> None:
    here = this_machine()
    assert 0 < here.memory_available <= here.memory_total and here.cores >= 1
    assert here.arch and here.system and here.python.startswith("3.")
    facts = machine_facts()
    assert facts["capability"] in dict(CPU_CAPABILITIES) and facts["memory"] == here.memory_total
