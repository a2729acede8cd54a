"""What every manifest says of the machine that made the artifact."""

from __future__ import annotations

from typing import Any

from trtforge.machine.record import this_machine
from trtforge.native.host_library import host_library_hash


def machine_stamps() -> dict[str, Any]:
    """The machine's part of a manifest."""
    here = this_machine()
    return {
        "arch": here.arch,
        "system": here.system,
        "python": here.python,
        "isa": list(here.processor.isa),
        "plugin_library_sha256": host_library_hash(),
        "gpu_architectures": list(here.architectures),
    }
