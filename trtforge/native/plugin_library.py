"""The TensorRT plugin library (``libtrtforge_tensorrt.so``) as a file that can be asked about itself.

Policy: the library is asked, never its name believed: version, contract hash and kernels come from its own C
functions. Asking needs neither TensorRT nor a GPU, because the library leaves no symbol of either undefined. Nothing
here imports torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.hashing import hash_file
from trtforge.ground.shared_object import open_library
from trtforge.native.cache import cache_folder
from trtforge.targets import DEFAULT

LIBRARY = "libtrtforge_tensorrt.so"
VARIABLE = "TRTFORGE_TENSORRT_PLUGINS"
BUILD = "trtforge plugins build --tensorrt-include DIR (the folder with NvInfer.h)"
#: what the plugins themselves refuse, as TensorRT's log carries it: code and what it is about
PLUGIN_CODES = (
    ("TF-OPS-203", "a field of a plugin is unknown, repeated, missing, of another type or out of range"),
    ("TF-OPS-204", "a plugin's tensors have another count, type or shape than its fields say"),
)
_SAID = re.compile(r"(TF-OPS-\d{3}): (.*)")


@dataclass(frozen=True)
class PluginLibrary:
    """What a plugin library says about itself.

    Attributes:
        path: the file.
        version: trtforge's version.
        abi: hash of what engines keep of the plugins (fields, tensors, aliases); 16 hexadecimal digits.
        contract: the text that ``abi`` hashes.
        tensorrt: version of the TensorRT headers that it was compiled with.
        kernels: ABI, source hash, architectures, compiler and backend of its kernels.
        checked: a checked build, which looks at every index on the device and cannot be captured in a CUDA graph.
        sha256: of the file.
    """

    path: Path
    version: str
    abi: str
    contract: str
    tensorrt: str
    kernels: dict[str, Any]
    checked: bool
    sha256: str

    def stamp(self) -> dict[str, Any]:
        """What an engine records of the library that it was built with."""
        return {
            "version": self.version,
            "abi": self.abi,
            "tensorrt_headers": self.tensorrt,
            "kernels": self.kernels.get("source_hash"),
            "architectures": self.kernels.get("architectures"),
            "sha256": self.sha256,
        }

    def require_kernels(self, architecture: str) -> None:
        """Refuse a GPU that the library holds no machine code for.

        Raises:
            EnvironmentLacks: ``TF-OPS-205``.
        """
        codes = [part.removesuffix("-real") for part in str(self.kernels.get("architectures") or "").split(",") if part]
        if codes and not any(runs_on(code, architecture) for code in codes):
            raise EnvironmentLacks(
                "TF-OPS-205",
                f"{self.path.name} holds no kernels for {architecture}",
                asked=str(self.path),
                numbers={"architecture": architecture, "kernels": [f"sm_{code}" for code in codes]},
                why="It has machine code alone, which runs on later GPUs of one major version and on no others.",
                remedies=[BUILD, f"build.target: {DEFAULT.name} runs the same graph without it"],
            )


def runs_on(code: str, architecture: str) -> bool:
    """Whether machine code for ``100`` runs on ``sm_103``: same major version, same or later minor one.

    Code with an "a" (``90a``) runs on its own compute capability only. Source: NVIDIA's Blackwell Compatibility Guide,
    "Application Compatibility on Blackwell Architecture".
    """
    own, gpu = code.rstrip("af"), architecture.removeprefix("sm_")
    if not own.isdecimal() or not gpu.isdecimal():
        return False
    return own == gpu if code.endswith("a") else own[:-1] == gpu[:-1] and own[-1] <= gpu[-1]


def find_plugin_library() -> Path | None:
    """Where the library lies: what ``TRTFORGE_TENSORRT_PLUGINS`` names, else the newest build in the plugin cache."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    builds = [path for path in cache_folder().glob("tensorrt-*/report.json") if (path.parent / LIBRARY).is_file()]
    newest = max(builds, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else newest.parent / LIBRARY


def plugin_library(path: Path | None = None) -> PluginLibrary:
    """Open and ask the library at ``path``; default: where :func:`find_plugin_library` finds it.

    Raises:
        EnvironmentLacks: ``TF-OPS-201`` there is none.
        ForgeError: ``TF-OPS-202`` the file is no plugin library of trtforge.
    """
    found = path or find_plugin_library()
    if found is None or not found.is_file():
        raise EnvironmentLacks(
            "TF-OPS-201",
            "TensorRT's plugin library has not been built" if found is None else f"There is no {found}",
            asked=str(found or LIBRARY),
            why="Engines of target tensorrt keep their KV cache through trtforge's plugins.",
            remedies=[BUILD, f"set {VARIABLE} to the file"],
        )
    try:
        handle = open_library(found.resolve())
        return PluginLibrary(
            path=found.resolve(),
            version=_text(handle, "trtforge_plugin_version"),
            abi=_text(handle, "trtforge_plugin_abi"),
            contract=_text(handle, "trtforge_plugin_contract"),
            tensorrt=_text(handle, "trtforge_plugin_tensorrt"),
            kernels=dict(json.loads(_text(handle, "trtforge_plugin_kernels"))),
            checked=bool(handle.trtforge_plugin_checked()),
            sha256=hash_file(found),
        )
    except (OSError, AttributeError, ValueError) as error:
        raise ForgeError(
            "TF-OPS-202",
            f"{found} is no plugin library of trtforge: {error}",
            asked=str(found),
            why="It must load and answer trtforge's questions before TensorRT is given it.",
            remedies=[BUILD, f"set {VARIABLE} to another file"],
        ) from error


def said_by_plugins(messages: Iterable[str]) -> tuple[str, str] | None:
    """Code and sentence of the first refusal of a plugin among TensorRT's messages."""
    found = (match for message in messages if (match := _SAID.search(message)))
    match = next(found, None)
    return None if match is None else (match[1], match[2].strip())


def device_capability(library: PluginLibrary) -> str | None:
    """``sm_90`` of the CUDA device that this process would use; None without one."""
    answer = int(open_library(library.path).trtforge_plugin_device_capability())
    return f"sm_{answer}" if answer > 0 else None


def _text(handle: ctypes.CDLL, name: str) -> str:
    function = getattr(handle, name)
    function.restype = ctypes.c_char_p
    return bytes(function()).decode()
