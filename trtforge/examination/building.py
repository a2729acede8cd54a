"""What a build of one target misses on this machine, asked before hours are spent on the stages that come first.

Only what ends a build for certain is named: an engine of TensorRT-LLM, for one, is left uncompiled where TensorRT-LLM
is not installed, and that is a result.
"""

from __future__ import annotations

from trtforge.examination import engines
from trtforge.examination.items import GRAPHS, Item
from trtforge.preflight.machine import Gpu, Lack
from trtforge.store.machine import tool_versions
from trtforge.tables import stack_table


def missing_to_build(target: str, gpus: tuple[Gpu, ...]) -> tuple[Lack, ...]:
    """What ``target``'s build lacks here; empty when it can be built."""
    items = _graph_packages() if target in GRAPHS else []
    if target == "tensorrt":
        items += [engines.tensorrt(stack_table()), engines.tensorrt_plugins()]
        if not gpus:
            items.append(
                Item("GPU", "missing", "none is visible", (target,), remedy="build on the machine that serves")
            )
    if target == "tensorrt-rtx":
        items.append(engines.tensorrt_rtx())
    return tuple(Lack(item.name, item.detail, item.remedy) for item in items if item.status == "missing")


def _graph_packages() -> list[Item]:
    found = tool_versions(["onnx"])
    return [
        Item(name, "missing", "not installed", GRAPHS, remedy="pip install 'trtforge[build]'")
        for name, version in found.items()
        if version == "absent"
    ]
