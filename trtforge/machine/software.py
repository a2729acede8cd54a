"""Python, the C library and installed distributions: what extension modules and wheels go by."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterable


def python_version() -> str:
    """``3.11``: the part of the version that extension modules depend on."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def libc() -> str:
    """``glibc 2.36``: the C library of this Python; empty where it does not say (musl)."""
    return " ".join(platform.libc_ver()).strip()


def tool_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Installed versions by distribution name, from metadata (nothing is imported); ``absent`` when not installed."""
    versions = {}
    for name in distributions:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
