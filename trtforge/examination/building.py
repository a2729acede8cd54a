"""What a build of one target misses on this machine, asked before hours are spent on the stages that come first.

Only what ends a build for certain is named: an engine of TensorRT-LLM, for one, is left uncompiled where TensorRT-LLM
is not installed, and that is a result.
"""

from __future__ import annotations

from dataclasses import replace

from trtforge.examination import engines, host
from trtforge.examination.items import AHEAD, GRAPHS, Item
from trtforge.machine.gpus import Gpu
from trtforge.machine.software import tool_versions
from trtforge.preflight.surroundings import Lack
from trtforge.tables import stack_table
from trtforge.targets import TARGETS


def missing_to_build(target: str, gpus: tuple[Gpu, ...], stack: str | None = None) -> tuple[Lack, ...]:
    """What ``target``'s build lacks here; empty when it can be built.

    Args:
        stack: the row whose TensorRT is to be installed; default: the target's newest.
    """
    items = _graph_packages() if target in GRAPHS else []
    if TARGETS[target].cuda_plugins:
        items += [_tensorrt(target, stack), engines.tensorrt_plugins(gpus)]
        if not gpus:
            items.append(
                Item("GPU", "missing", "none is visible", (target,), remedy="build on the machine that serves")
            )
    if target in AHEAD:
        items += [engines.tensorrt_rtx(), host.program("g++", "g++", "compiles the heap of the build", (target,))]
    return tuple(Lack(item.name, item.detail, item.remedy) for item in items if item.status == "missing")


def _tensorrt(target: str, stack: str | None) -> Item:
    """TensorRT, with the version that the stack builds with as the remedy."""
    table = stack_table()
    row = (table.row(stack) if stack else None) or table.newest(target)
    wanted = row.version_of("TensorRT") if row is not None else None
    item = engines.tensorrt(table)
    if wanted is None:
        return item
    return replace(item, remedy=f"pip install 'tensorrt=={wanted}{'.*' if wanted.count('.') < 3 else ''}'")


def _graph_packages() -> list[Item]:
    found = tool_versions(["onnx"])
    return [
        Item(name, "missing", "not installed", GRAPHS, remedy="pip install 'trtforge[build]'")
        for name, version in found.items()
        if version == "absent"
    ]
