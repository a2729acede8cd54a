"""Host op library: fast CPU kernels behind a C ABI, loaded through ctypes.

``load()`` opens ``libtrtforge_host.so`` once per process and returns a :class:`~plugins.host.library.HostLibrary`.
Nothing here imports torch until a tensor is handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plugins.host.library import HostLibrary


def load() -> HostLibrary:
    """Open the host library (once per process).

    Raises:
        EnvironmentLacks: TF-OPS-001 (not built or not found), TF-OPS-002 (cannot be loaded),
            TF-OPS-003 (another ABI version), TF-OPS-004 (``TRTFORGE_HOST_ISA`` asks for what this CPU lacks).
    """
    from plugins.host.library import load_library

    return load_library()
