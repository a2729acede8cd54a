"""Says which system packages are missing before anything is installed (standard library only).

Run by ``make`` with the interpreter that the environment will be made from. Prints one line a
missing package, the package's name first, and exits 3; prints nothing and exits 0 when all is there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


def _shared_libpython() -> bool:
    """Whether Triton's Python stub will find the interpreter's shared library."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR") or "", str(Path(sys.base_prefix) / "lib")]
    if any((Path(folder) / name).is_file() for folder in folders if folder):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def missing_packages() -> list[tuple[str, str]]:
    """Pairs of (Debian package, what it is needed for) that this machine lacks."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    lacking = []
    if sys.version_info[:2] not in ((3, 11), (3, 12)):
        lacking.append(("python3.11", f"trtforge runs on Python 3.11 or 3.12; this is {version} ({sys.executable})"))
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        lacking.append((f"python{version}-venv", "creates the virtual environment"))
    if not _shared_libpython():
        lacking.append((f"libpython{version}", "Triton's Python backend loads the shared interpreter library"))
    if shutil.which("g++") is None:
        lacking.append(("g++", "compiles the host op library"))
    if shutil.which("make") is None:
        lacking.append(("make", "runs the project's commands"))
    return lacking


def main() -> int:
    """Print what is missing; 0 when nothing is."""
    lacking = missing_packages()
    for package, reason in lacking:
        print(f"{package}: missing ({reason})")
    if lacking:
        print("On Debian or Ubuntu: apt-get install " + " ".join(package for package, _ in lacking))
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
