"""Every target by name. A new one is a module of this package with a ``Target``, and a line here."""

from __future__ import annotations

from scripts.fuzz.audits import AUDITS
from scripts.fuzz.checkpoints import CONFIGS, GGUF, SAFETENSORS
from scripts.fuzz.engines import ENGINES
from scripts.fuzz.harness import Target
from scripts.fuzz.openai_api import OPENAI
from scripts.fuzz.published import BUNDLES, STORE
from scripts.fuzz.recipes import RECIPES
from scripts.fuzz.repositories import REPOSITORIES
from scripts.fuzz.requests import REQUESTS
from scripts.fuzz.templates import TEMPLATES

_ALL = (RECIPES, TEMPLATES, CONFIGS, SAFETENSORS, GGUF, AUDITS, ENGINES, REPOSITORIES, REQUESTS, OPENAI, BUNDLES, STORE)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
