"""The self test that ``trtforge plugins test`` runs."""

from __future__ import annotations

import json

import pytest
import torch

from plugins import selftest, selftest_cuda
from plugins.host.library import HostLibrary
from plugins.selftest import POOLS, Check, run_selftest
from trtforge.cli.main import invoke


def test_selftest_passes_and_covers_every_isa(host: HostLibrary) -> None:
    before = host.isa
    checks = run_selftest()
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]
    assert len(checks) == len(host.info()["isas_available"]) * (len(POOLS) + 3)
    assert host.isa == before


def test_a_wrong_result_is_reported_not_raised(host: HostLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(host), "silu_mul", lambda self, x, out=None: x[:, : x.shape[1] // 2])
    monkeypatch.setattr(type(host), "paged_attention", lambda self, *args, **kwargs: 1 / 0)
    monkeypatch.setattr(type(host), "int4_linear", lambda self, x, *packed, outputs, **_: torch.zeros(len(x), outputs))
    failed = [check for check in run_selftest() if not check.passed]
    assert any("silu_mul" in check.detail for check in failed)
    assert any("largest relative difference" in check.detail for check in failed)
    assert any("ZeroDivisionError" in check.detail for check in failed)


def test_the_command_runs_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One self test: what the command prints are its checks, and a failed one is its exit code."""
    monkeypatch.setattr(selftest_cuda, "can_run", lambda: "TF-OPS-007: not here")
    monkeypatch.setattr(
        selftest, "run_selftest", lambda *, progress=None: [Check("a", True, "x"), Check("b", False, "y")]
    )
    assert invoke(["plugins", "test", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in document["checks"]] == ["a", "b"]
    assert document["cuda_skipped"].startswith("TF-OPS-007")
