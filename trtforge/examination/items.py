"""What can be looked at on a machine, and which target needs it to build or to run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trtforge.targets import names

Status = Literal["ok", "missing", "warning"]
#: targets that run on any machine
ANYWHERE = names(lambda target: not target.needs_gpu)
#: targets that trtforge's own runtime runs
OWN = names(lambda target: target.runs_here)
#: targets whose checkpoint is quantized and evaluated by trtforge itself: all of them
ALL = names()
#: targets whose graph trtforge writes
GRAPHS = names(lambda target: target.from_graph)
#: targets that are compiled ahead of time, on a processor
AHEAD = names(lambda target: target.built_for == "named-gpus")
#: targets whose engines call trtforge's TensorRT plugins
PLUGINS = names(lambda target: target.cuda_plugins)


@dataclass(frozen=True)
class Item:
    """One thing that was looked at.

    ``builds`` and ``runs`` name the targets that need it to build or to run; both empty: information only.
    """

    name: str
    status: Status
    detail: str
    builds: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    remedy: str | None = None
    package: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The item as one JSON-able object."""
        return {
            "name": self.name,
            "status": self.status,
            "detail": self.detail,
            "needed_to_build": list(self.builds),
            "needed_to_run": list(self.runs),
            "remedy": self.remedy,
            "debian_package": self.package,
        }
