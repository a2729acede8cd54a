"""The recipes that ship, by their names: ``smollm2-135m-fp8`` stands for ``configs/smollm2-135m-fp8.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest
from trtforge.ground.own_packages import root

SUFFIXES = (".yaml", ".yml")


def shipped_folder() -> Path:
    """Where they lie."""
    return Path(root(), "configs")


def shipped() -> Mapping[str, Path]:
    """Name → file, in the order of the names."""
    return dict(sorted((path.stem, path) for path in shipped_folder().glob("*.yaml")))


def is_shipped(text: str) -> bool:
    """Whether ``text`` names a recipe that ships, and nothing that lies in the working directory."""
    return text in shipped() and not Path(text).exists()


def names_recipe(text: str) -> bool:
    """Whether an argument means a recipe: a file by its suffix, or a recipe that ships."""
    return text.endswith(SUFFIXES) or is_shipped(text)


def recipe_file(path: Path, folder: Path = Path()) -> Path:
    """The file that RECIPE or ``extends`` means: a recipe that ships, where it is a bare name and no file.

    A relative path counts from ``folder``.

    Raises:
        ForgeError: ``TF-RCP-001`` it is a bare name, and neither a file nor a recipe that ships.
    """
    name = str(path)
    # what has a folder or a suffix is a path, whether or not a file lies there
    if len(path.parts) != 1 or path.suffix in SUFFIXES or name in ("", ".", "..") or (folder / path).exists():
        return folder / path
    known = shipped()
    if name in known:
        return known[name]
    near = nearest(name, list(known))
    raise ForgeError(
        "TF-RCP-001",
        f"{name} is neither a file nor the name of a recipe that ships",
        asked=name,
        numbers={"recipes that ship": list(known)},
        why="A recipe is a YAML file of yours, or one that trtforge brings along, by its name.",
        remedies=[f"did you mean {near}?"] if near else ["name the recipe's YAML file, or one of those that ship"],
    )
