"""Known holes of what loads here, and servers that run here and leave dangerous APIs open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psutil

from trtforge.examination.items import Item
from trtforge.machine.software import tool_versions
from trtforge.stack.probe import Loaded, probe
from trtforge.tables import Component
from trtforge.tables.advisories import SERVER, fixed_in, known_holes, summary
from trtforge.tritonserver.launch_lines import of_command, weaknesses

#: product of the bulletins -> how a piece is asked for its version
_ASKED = {
    "TensorRT": Component(name="TensorRT", version="", probe="tensorrt"),
    "TensorRT-LLM": Component(name="TensorRT-LLM", version="", probe="tensorrt_llm"),
}
_MODELOPT = "nvidia-modelopt"
#: process id, and the command
Process = tuple[int, Sequence[str]]


def holes(server_version: str | None, ask: Callable[[Component], Loaded] = probe) -> list[Item]:
    """An item for each piece that loads here and has known holes; they forbid nothing."""
    versions = {SERVER: server_version, _MODELOPT: tool_versions([_MODELOPT])[_MODELOPT]}
    versions |= {product: ask(component).version for product, component in _ASKED.items()}
    items = []
    for product, version in versions.items():
        known = known_holes(product, version)
        if known:
            remedy = f"{product} {fixed_in(known)} or later; trtforge stack check lists them"
            items.append(Item(f"holes of {product}", "warning", f"{version}: {summary(known)}", remedy=remedy))
    return items


def _processes() -> Iterator[Process]:
    for process in psutil.process_iter(["pid", "cmdline"]):
        yield process.info["pid"], process.info["cmdline"] or ()


def running_servers() -> list[Item]:
    """The Triton servers that run here, whoever started them, and what each leaves open to clients."""
    items = []
    for number, command in _processes():
        launch = of_command(command)
        if launch is None:
            continue
        found = weaknesses(launch, written=False)
        name = f"server {number}"
        if not found:
            items.append(Item(name, "ok", "its dangerous APIs are closed to clients"))
            continue
        detail = "; ".join(weakness.what for weakness in found)
        items.append(Item(name, "warning", detail, remedy=" ".join(weakness.remedy for weakness in found)))
    return items
