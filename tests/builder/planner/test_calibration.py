"""Calibrations: written, read back, and refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.planner.calibration import calibrate, read_calibration
from tests.support.refusals import refusal


def test_medians_and_spans_round_trip(tmp_path: Path) -> None:
    samples = [("linear_fp8", 1.0, 1.1), ("linear_fp8", 2.0, 2.6), ("linear_fp8", 1.0, 1.2), ("pointwise", 2.0, 1.0)]
    made = calibrate("h200", "kernels timed by hand", samples)
    row = made.ratios["linear_fp8"]
    assert (row.ratio, row.low, row.high, row.samples) == (pytest.approx(1.2), 1.1, 1.3, 3)
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(made.to_json()), encoding="utf-8")
    assert read_calibration(path, "h200") == made


def test_another_gpus_ratios_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "h100.json"
    path.write_text(json.dumps(calibrate("h100-sxm", "x", []).to_json()), encoding="utf-8")
    assert refusal(read_calibration, path, "h200").code == "TF-PLN-053"


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        {"version": 2, "gpu": "h200", "source": "x", "ratios": {}},
        {"version": 1, "gpu": "h200", "ratios": {}},
        {"version": 1, "gpu": "h200", "source": "x", "ratios": {"linears": {"ratio": 1.0}}},
        {"version": 1, "gpu": "h200", "source": "x", "ratios": {"pointwise": {"ratio": -1.0}}},
        {"version": 1, "gpu": "h200", "source": "x", "ratios": {"pointwise": {"ratio": "much"}}},
        {"version": 1, "gpu": "h200", "source": "x", "ratios": {"pointwise": {"ratio": 1.0, "low": 1.5}}},
        {"version": 1, "gpu": "h200", "source": "x", "ratios": {"pointwise": 1.0}},
        {"version": 1, "gpu": "h200", "source": "x", "ratios": {"pointwise": {"ratio": float("nan")}}},
    ],
)
def test_files_that_are_no_calibration(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "c.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    assert refusal(read_calibration, path, "h200").code == "TF-PLN-052"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert refusal(read_calibration, tmp_path / "absent.json", "h200").code == "TF-PLN-052"


@pytest.mark.parametrize("name", ["h100", "H100-SXM", "h100_sxm", "NVIDIA-h100"])
def test_an_alias_of_the_gpu_is_the_gpu(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"version": 1, "gpu": name, "source": "t", "ratios": {}}), encoding="utf-8")
    assert read_calibration(path, "h100-sxm").gpu == "h100-sxm"
    assert refusal(read_calibration, path, "h200").code == "TF-PLN-053"
