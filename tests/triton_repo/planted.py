"""Every planted fault: those of all ``plants_*.py`` that lie here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.triton_repo.plants import Plant

_FILES = sorted(Path(__file__).parent.glob("plants_*.py"))
PLANTS: list[Plant] = [
    plant
    for file in _FILES
    for value in vars(import_module(f"{__package__}.{file.stem}")).values()
    if isinstance(value, list)
    for plant in value
    if isinstance(plant, Plant)
]
