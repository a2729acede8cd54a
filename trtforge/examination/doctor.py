"""What this machine has for each engine target, and what to install where something lacks.

Policy: nothing heavy is imported; versions of packages come from metadata, those of engines from the library that
really loads. The Triton server is looked for by the launcher, whose finder is handed in, so that ``doctor`` and
``serve`` cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trtforge.examination import engines, host, safety
from trtforge.examination.items import AHEAD, PLUGINS, Item
from trtforge.preflight.surroundings import Surroundings
from trtforge.tables import StackTable, stack_table
from trtforge.targets import DEFAULT, TARGETS

PORTS = (8000, 8001, 8002)
#: what a machine is expected to do whatever else it has: the target that runs anywhere
DEFAULT_TARGET = DEFAULT.name
#: what no container brings
_OUTSIDE = ("NVIDIA driver", "memory", "disk", "shared memory")
State = Literal["ready", "builds", "lacks"]

__all__ = ["Diagnosis", "Item", "Verdict", "examine"]


@dataclass(frozen=True)
class Verdict:
    """Whether a target can be built and run here, what it lacks for either, and what to do about it."""

    target: str
    lacks_to_build: tuple[str, ...]
    lacks_to_run: tuple[str, ...]
    install: tuple[str, ...] = ()
    container: str | None = None

    @property
    def state(self) -> State:
        """``ready``, ``builds`` (and does not run), or ``lacks`` something that building needs."""
        if self.lacks_to_build:
            return "lacks"
        return "builds" if self.lacks_to_run else "ready"

    @property
    def ready(self) -> bool:
        """Whether the target can be built and run here."""
        return self.state == "ready"

    @property
    def lacks(self) -> tuple[str, ...]:
        """Everything that lacks, each once."""
        return tuple(dict.fromkeys((*self.lacks_to_build, *self.lacks_to_run)))

    @property
    def words(self) -> str:
        """The verdict in words."""
        target = TARGETS.get(self.target)
        if self.state == "lacks" and target is not None and target.trtllm_build:
            return "can prepare but not compile"
        return {"ready": "ready", "builds": "can build but not run", "lacks": "cannot build"}[self.state]

    def to_json(self) -> dict[str, Any]:
        """The verdict as one JSON-able object."""
        return {
            "target": self.target,
            "ready": self.ready,
            "state": self.state,
            "verdict": self.words,
            "lacks_to_build": list(self.lacks_to_build),
            "lacks_to_run": list(self.lacks_to_run),
            "install": list(self.install),
            "container": self.container,
        }


@dataclass(frozen=True)
class Diagnosis:
    """Everything that ``trtforge doctor`` says."""

    items: tuple[Item, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def ready(self) -> bool:
        """Whether the target that needs no GPU can be built and run."""
        return all(verdict.ready for verdict in self.verdicts if verdict.target == DEFAULT_TARGET)

    @property
    def packages(self) -> tuple[str, ...]:
        """Debian packages that are missing for that target."""
        found = [
            item.package
            for item in self.items
            if item.status == "missing" and item.package and DEFAULT_TARGET in (*item.builds, *item.runs)
        ]
        return tuple(dict.fromkeys(found))

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as one JSON-able object."""
        return {
            "ready": self.ready,
            "debian_packages": list(self.packages),
            "targets": [verdict.to_json() for verdict in self.verdicts],
            "items": [item.to_json() for item in self.items],
        }


def examine(
    machine: Surroundings, find_server: Callable[[], tuple[str | None, str]], ports: Sequence[int] = PORTS
) -> Diagnosis:
    """Look at this machine.

    Args:
        machine: memory, disk and GPUs.
        find_server: version and place of the Triton server that would be started; raises ForgeError when none can.
        ports: the ports that ``trtforge serve`` takes by default.
    """
    table = stack_table()
    row = table.newest(DEFAULT_TARGET)
    assert row is not None
    server, server_version = host.server(find_server)
    items = [
        host.python(),
        host.host_library(),
        host.program("g++", "g++", "compiles the host op library and the heap of RTX builds", AHEAD),
        host.program("cmake", "cmake", "configures the build of the native libraries (pip brings its own)"),
        *host.packages(row),
        host.numpy(row),
        server,
        host.shared_memory(),
        *(host.port(port) for port in ports),
        host.memory(machine),
        host.disk(machine),
        host.processor(machine),
        host.program("nvcc", "nvidia-cuda-toolkit", "compiles CUDA kernels", PLUGINS),
        *engines.drivers(machine, table),
        engines.cuda(),
        engines.tensorrt(table),
        engines.tensorrt_plugins(machine.gpus),
        engines.tensorrt_rtx(),
        engines.tensorrt_llm(table),
        engines.triton_backend(),
        engines.container_runtime(),
        *safety.holes(server_version),
        *safety.running_servers(),
    ]
    targets = dict.fromkeys(target for stack in table.rows for target in stack.targets)
    return Diagnosis(tuple(items), tuple(verdict(target, items, table) for target in targets))


def verdict(target: str, items: Sequence[Item], table: StackTable) -> Verdict:
    """What the items mean for one target."""
    missing = [item for item in items if item.status == "missing"]
    lacking = [item for item in missing if target in (*item.builds, *item.runs)]
    row = table.newest(target)
    container = row.container if row is not None and lacking else None
    # wheels of single pieces would not be the releases that the container's own pieces were compiled against
    apart = [item for item in lacking if container is None or item.name in _OUTSIDE or item.name.startswith("driver ")]
    install = [item.remedy for item in apart if item.remedy]
    if container is not None and len(apart) < len(lacking):
        install.append(f"docker pull {container}")
    return Verdict(
        target,
        tuple(item.name for item in missing if target in item.builds),
        tuple(item.name for item in missing if target in item.runs),
        tuple(dict.fromkeys(install)),
        container,
    )
