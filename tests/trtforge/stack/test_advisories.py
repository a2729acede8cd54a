"""The table of known holes: what a release has, by Triton's two counts."""

from __future__ import annotations

import pytest

from trtforge.tables import stack_table
from trtforge.tables.advisories import advisory_table, fixed_in, known_holes, month_of, summary
from trtforge.tritonserver.server_launch import BODY_OPTION, body_limit, limits_bodies


def ids(product: str, version: str | None) -> set[str]:
    return {known.hole.id for known in known_holes(product, version)}


def test_months_and_server_versions_are_one_release() -> None:
    assert [month_of(v) for v in ("2.51.0", "24.10", "24.10-py3", "2.51.0.post1")] == ["24.10"] * 4
    assert month_of("25.12-trtllm-python-py3") == "25.12"
    assert month_of("2.59.1") == "25.07"
    assert month_of("2.99.0") == advisory_table().releases[-1].month
    assert month_of("1.9.0") == "0"
    for row in advisory_table().releases:
        assert month_of(row.server) == row.month == month_of(row.month)


def test_the_server_of_the_wheel_has_the_holes_of_august_2025_and_a_current_one_has_not() -> None:
    august = {f"CVE-2025-{number}" for number in (23310, 23311, 23317, 23318, 23319, 23320, 23334)}
    assert august | {"CVE-2025-33202", "CVE-2025-33201", "CVE-2025-23316"} <= ids("tritonserver", "2.51.0")
    assert ids("tritonserver", "2.51.0") == ids("tritonserver", "24.10")
    assert not august & ids("tritonserver", "25.07")
    assert "CVE-2025-33202" in ids("tritonserver", "25.08")
    assert "CVE-2025-33202" not in ids("tritonserver", "25.09")
    assert ids("tritonserver", "26.11") == set()
    assert fixed_in(known_holes("tritonserver", "2.51.0")) == "26.07"


def test_a_hole_that_came_with_a_release_is_not_in_earlier_ones() -> None:
    assert "CVE-2024-53880" in ids("tritonserver", "24.11")
    assert "CVE-2024-53880" not in ids("tritonserver", "24.10") | ids("tritonserver", "24.12")


def test_libraries_are_counted_by_their_own_versions() -> None:
    assert "CVE-2025-23254" in ids("TensorRT-LLM", "0.18.1")
    assert "CVE-2025-23254" not in ids("TensorRT-LLM", "0.18.2")
    assert "CVE-2026-47472" in ids("TensorRT-LLM", "1.3.0rc16")
    assert "CVE-2026-47472" not in ids("TensorRT-LLM", "1.3.0rc17")
    assert ids("TensorRT", "10.14.1.48") > ids("TensorRT", "10.16.1.11")
    assert ids("TensorRT", "11.4.0") == set()


@pytest.mark.parametrize("version", [None, "", "unknown", ">=2,<3", "nightly"])
def test_what_is_no_version_has_no_verdict(version: str | None) -> None:
    assert known_holes("tritonserver", version) == []
    assert known_holes("TensorRT", version) == []
    assert summary([]) == ""


def test_the_worst_come_first_and_are_counted() -> None:
    known = known_holes("tritonserver", "2.51.0")
    assert [item.hole.score for item in known] == sorted((item.hole.score for item in known), reverse=True)
    assert summary(known, shown=1) == f"{len(known)} known holes, the worst CVE-2025-23310 (9.8); fixed from 26.07 on"


def test_every_server_that_a_stack_names_is_in_the_table() -> None:
    table = advisory_table()
    known = {row.month for row in table.releases} | {row.server for row in table.releases}
    assert {row.triton for row in stack_table().rows if row.triton} <= known


@pytest.mark.parametrize(
    ("version", "limits"),
    [
        *((version, False) for version in ("2.51.0", "2.58.0", "25.05", None, "unknown")),
        *((version, True) for version in ("2.59.0", "25.06", "25.12", "2.75.0")),
    ],
)
def test_bodies_are_limited_where_the_server_can(version: str | None, limits: bool) -> None:
    assert limits_bodies(version) is limits
    assert [word.split("=")[0] for word in body_limit(version)] == [BODY_OPTION] * limits
