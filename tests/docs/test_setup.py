"""``make setup`` installs what pyproject.toml names."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.requirements import main, name_of, pinned, requirements
from tests.support.sources import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_is_every_requirement_of_the_project_and_its_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    [whole] = extras["all"]
    names = whole.removeprefix("trtforge[").removesuffix("]").split(",")
    listed = requirements("all", "dev")
    groups = (project["dependencies"], extras["dev"], *(extras[name] for name in names))
    assert set(listed) == {line for group in groups for line in group}
    assert len(listed) == len(set(listed)) > 30
    assert requirements("report") == [*project["dependencies"], *extras["report"]]


def test_the_pins_hold_all_that_is_asked_for_and_what_that_needs() -> None:
    """So ``make setup`` resolves nothing: every requirement is pinned once, and all that those need in turn."""
    pins = pinned("all", "harness", "dev")
    names = {name_of(pin) for pin in pins}
    assert len(pins) == len(names) > 100 and all(pin.count("==") == 1 for pin in pins)
    assert names >= {name_of(line) for line in requirements("all", "harness", "dev")}
    assert not names & {"cmake", "trtforge"}
    for name in sorted(names):
        if name == "nvidia-pytriton":  # only the server that its wheel carries is used
            continue
        try:
            lines = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            pytest.fail(f"{name} is pinned and not installed here: make setup")
        for line in lines:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert name_of(needed.name) in names | {"setuptools"}, f"{name} needs {line}"


def test_the_makefile_compiles_every_package() -> None:
    [line] = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PACKAGES := ")]
    assert set(line.split()[2:]) == {*PACKAGES, "benchmarks"}


def test_without_words_the_list_is_what_every_install_needs(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    assert capsys.readouterr().out.split("\n")[:-1] == requirements()
