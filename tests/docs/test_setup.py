"""``make setup`` installs what pyproject.toml names."""

from __future__ import annotations

import tomllib
from pathlib import Path

from scripts.requirements import requirements

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
