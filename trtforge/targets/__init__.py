"""Engine targets, one object and one folder each; the set of targets is this registry, and no other file lists them.

The object holds the facts (:class:`~trtforge.targets.base.Target`); ``builder/targets/FOLDER`` builds and describes
the engines. What depends on a target asks its object: nothing compares names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from trtforge.targets.base import NotRun, Target
from trtforge.targets.rtx import RTX
from trtforge.targets.tensorrt import TENSORRT
from trtforge.targets.torch import TORCH
from trtforge.targets.trtllm_engine import TRTLLM_ENGINE
from trtforge.targets.trtllm_llmapi import TRTLLM_LLMAPI

__all__ = ["DEFAULT", "TARGETS", "NotRun", "Target", "TargetName", "names", "served_by"]

#: by name, in the order in which they are offered
TARGETS: Mapping[str, Target] = {target.name: target for target in (TORCH, TENSORRT, RTX, TRTLLM_ENGINE, TRTLLM_LLMAPI)}
#: the target of a recipe that names none: it runs on any machine
DEFAULT = TORCH

if TYPE_CHECKING:
    TargetName = str
else:
    TargetName = Literal[tuple(TARGETS)]


def names(where: Callable[[Target], bool] = lambda target: True) -> tuple[str, ...]:
    """The names of the targets of which ``where`` holds."""
    return tuple(target.name for target in TARGETS.values() if where(target))


def served_by(layout: str) -> tuple[str, ...]:
    """The names of the targets whose engines a layout of Triton's repository serves."""
    return names(lambda target: layout in target.layouts)
