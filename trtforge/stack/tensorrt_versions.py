"""Which releases of TensorRT the target tensorrt is written for."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

#: first version that is supported, and the first that is not
OLDEST, NEXT = Version("10.14"), Version("12")


def is_supported(version: str) -> bool:
    """Whether a TensorRT version ("10.16.1.11") is one that the target is written for."""
    try:
        return OLDEST <= Version(version) < NEXT
    except InvalidVersion:
        return False


def supported_range() -> str:
    return f"{OLDEST} to {NEXT.major - 1}.x"
