"""Every target by name. A new one is a module of this package with a ``Target``, and a line here."""

from __future__ import annotations

from scripts.fuzz.harness import Target
from scripts.fuzz.recipes import RECIPES
from scripts.fuzz.templates import TEMPLATES

TARGETS: dict[str, Target] = {target.name: target for target in (RECIPES, TEMPLATES)}
