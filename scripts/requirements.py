"""Prints what trtforge and its extras need, one requirement a line, without trtforge itself (standard library only).

pip installs what a project needs only together with the project; with this list ``make setup`` downloads and unpacks
while the host library is compiled.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_OWN = re.compile(r"trtforge\[(.*)\]")


def requirements(*extras: str) -> list[str]:
    """The requirements of the project and of some of its extras, each once, extras of extras followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, None] = dict.fromkeys(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = _OWN.fullmatch(line)
            found |= dict.fromkeys(requirements(*own[1].split(",")) if own else [line])
    return list(found)


if __name__ == "__main__":
    print("\n".join(requirements(*sys.argv[1:])))
