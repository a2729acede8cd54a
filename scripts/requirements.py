"""Prints what trtforge and its extras need, one requirement a line, without trtforge itself (standard library only).

pip installs what a project needs only together with the project; with this list ``make setup`` downloads and unpacks
while the host library is compiled. ``--pinned K/N`` prints a share of what ``constraints.txt`` pins instead: the K-th
of N, from 0, of everything that the project and those extras come to.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_OWN = re.compile(r"trtforge\[(.*)\]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: pinned for whoever lacks it on his system, and installed by the build alone
_BUILD = {"cmake"}


def _extras() -> dict[str, list[str]]:
    """The requirements by extra; those of every install under the empty name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def requirements(*extras: str) -> list[str]:
    """The requirements of the project and of some of its extras, each once, extras of extras followed."""
    listed = _extras()
    found: dict[str, None] = dict.fromkeys(listed[""])
    for extra in extras:
        for line in listed[extra]:
            own = _OWN.fullmatch(line)
            found |= dict.fromkeys(requirements(*own[1].split(",")) if own else [line])
    return list(found)


def name_of(requirement: str) -> str:
    """The distribution of a requirement, in the form in which names are compared."""
    found = _NAME.match(requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def pinned(*extras: str) -> list[str]:
    """The pins of ``constraints.txt`` without what only other extras, or the build, ask for."""
    asked = {name_of(line) for line in requirements(*extras)}
    others = {name_of(line) for lines in _extras().values() for line in lines} - asked | _BUILD
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return [pin for pin in pins if name_of(pin) not in others]


def main(words: list[str]) -> None:
    if words[:1] == ["--pinned"]:
        share, of = map(int, words[1].split("/"))
        print("\n".join(pinned(*words[2:])[share::of]))
    else:
        print("\n".join(requirements(*words)))


if __name__ == "__main__":
    main(sys.argv[1:])
