"""Every planted fault is found, under its code, in its file and line; and each rule has a fault of its own."""

from __future__ import annotations

import pytest

from tests.triton_repo.planted import PLANTS
from tests.triton_repo.plants import Plant
from triton_repo.lint.run import all_rules, lint_repository


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.code}-{plant.name.replace(' ', '-')}")
def test_a_planted_fault_is_found(tmp_path, plant: Plant):
    root = tmp_path / "repository"
    file, line = plant.plant(root)
    found = [f for f in lint_repository(root).findings if f.code == plant.code]
    assert found, f"{plant.name}: nothing found"
    places = {(f.path, f.line) for f in found}
    if line is None:
        assert str(file) in {path for path, _ in places}
    else:
        assert (str(file), line) in places
    assert all(f.message and f.remedy and f.why and f.source.startswith("https://") for f in found)


def test_there_are_enough_kinds_of_faults():
    assert len(PLANTS) >= 60
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)
    assert len({plant.code for plant in PLANTS}) >= 60


def test_every_rule_has_a_fault_that_shows_it():
    # in test_lint_reading.py, _model_files.py and _completion.py, where the repository is no text edit
    elsewhere = {"TF-TRI-104", "TF-TRI-105", "TF-TRI-106", "TF-TRI-107", "TF-TRI-110", "TF-TRI-181", "TF-TRI-231"}
    elsewhere |= {"TF-TRI-155", "TF-TRI-156", "TF-TRI-158", "TF-TRI-257", "TF-TRI-258"}
    elsewhere |= {"TF-TRI-253", "TF-TRI-254"}  # in test_lint_field_reports.py, with folders beside the repository
    shown = {plant.code for plant in PLANTS} | elsewhere
    # in test_lint_launch.py, whose faults lie beside the repository
    assert {rule.code for rule in all_rules() if rule.module != "launch"} == shown
