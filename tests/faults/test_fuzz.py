"""The first cases of every fuzz target: seconds, and the same each time."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from scripts.fuzz.harness import Fault, Target, run_target
from scripts.fuzz.targets import TARGETS
from trtforge.ground.errors import ExitCode, ForgeError


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_first_cases(name: str) -> None:
    target = TARGETS[name]
    tally = run_target(target, cases=target.cases)
    assert tally.kinds() == {}, tally.faults
    assert tally.cases == target.cases
    # mutations that are all refused, or all let through, would test little
    assert tally.ends.total() > tally.ends["fine"] > 0


def _target(attempt: object, **more: object) -> Target:
    return Target("own", "of this test", lambda pristine: attempt, **more)


def test_the_harness_sees_every_kind_of_fault() -> None:
    def attempt(draw: random.Random, folder: Path) -> None:
        kind = int(draw.random() * 1e9) % 7
        if kind == 0:
            raise ValueError("a traceback")
        if kind == 1:
            raise ForgeError("TF-RUN-001", "x", exit_code=ExitCode.INTERNAL)
        if kind == 2:
            raise ForgeError("no code", "x")
        if kind == 3:
            raise Fault("half an artifact")
        if kind == 4:
            while True:
                try:
                    time.sleep(0)
                    sum(range(1000))
                except Exception:
                    pass
        if kind == 5:
            kept = bytearray(48 * 2**20)  # over 32 MB: always mapped anew
            kept[::4096] = b"x" * len(kept[::4096])
        if kind == 6:
            raise ForgeError("TF-RUN-001", "x")

    tally = run_target(_target(attempt, seconds=0.5, megabytes=32), cases=40)
    words = "\n".join(tally.faults.values())
    for expected in (
        "a traceback", "exit code 4", "no code", "half an artifact", "more than 0.5 s", "MB of memory; 32 are"
    ):  # fmt: skip
        assert expected in words
    assert set(tally.ends) == {"TF-RUN-001"}
    assert len(tally.kinds()) < len(tally.faults) and sum(map(len, tally.kinds().values())) == len(tally.faults)
    assert tally.cases == 40


def test_a_case_is_the_same_again() -> None:
    drawn: list[float] = []
    target = _target(lambda draw, folder: drawn.append(draw.random()))
    run_target(target, first=3, cases=2)
    run_target(target, first=4, cases=1)
    assert drawn[1] == drawn[2] != drawn[0]
