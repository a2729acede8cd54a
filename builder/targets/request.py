"""What the pipeline hands to a target's ``stage`` module, and the modules' interface.

``section(asked)`` gives what the artifact depends on beside the recipe's ``build``; ``build(request)`` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from builder.targets.trtllm.settings import LlmSettings
from trtforge.drafting.record import SpeculationRecord
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.recipe.schema import Recipe

#: (recipe, folder of the checkpoint, folder of the draft, layers that it taps) → what a server of it is told
SettingsOf = Callable[[Recipe, str, str | None, tuple[int, ...] | None], LlmSettings]


@dataclass(frozen=True)
class Asked:
    """Attributes:
    recipe: the whole recipe.
    recipe_dir: files that the recipe names lie below it.
    draft: the directory that ``speculation.draft`` names; None when it names none that is here.
    """

    recipe: Recipe
    recipe_dir: Path
    draft: Path | None = None


@dataclass(frozen=True)
class BuildRequest(Asked):
    """Attributes:
    source: the graph's directory or the quantized checkpoint, as the target is made from.
    out: the artifact's folder.
    scratch: a folder that survives a kill.
    speculation: what an engine of the graph drafts by.
    settings_of: what the layout tells a server that loads the artifact; the two must say the same.
    """

    source: Path = field(kw_only=True)
    out: Path = field(kw_only=True)
    scratch: Path = field(kw_only=True)
    speculation: SpeculationRecord | None = field(default=None, kw_only=True)
    settings_of: SettingsOf = field(kw_only=True)
    progress: Progress = field(default_factory=SilentProgress, kw_only=True)
