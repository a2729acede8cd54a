"""Where trtforge's packages lie, and that nobody else's are imported by their names.

``builder``, ``evals``, ``runtime`` and the others have plain names, which a user's own modules and other distributions
have too. So a wheel keeps them below ``trtforge`` (``trtforge/_packages``), where they are in nobody's way, and a
process that has imported ``trtforge`` looks for these names there before it looks anywhere else. In a checkout they lie
beside ``trtforge``.

Policy: every process of ours imports ``trtforge`` before it imports one of them; ``trtforge/__init__.py`` calls
:func:`claim`. Only the standard library is imported here, and only what the interpreter has loaded anyway: this runs
before a command can catch Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NAMES = frozenset({"builder", "evals", "launcher", "plugins", "quantize", "runtime", "triton_repo"})
FOLDER = "_packages"
#: this folder's parent: the package ``trtforge``
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
#: names of ours that others had taken when ``trtforge`` was imported, and where those lie
_taken: dict[str, str] = {}


def in_wheel() -> bool:
    """Whether this trtforge was installed from a wheel, and is neither a checkout nor an editable install of one."""
    return os.path.isdir(os.path.join(_HOME, FOLDER))  # noqa: PTH112, PTH118


def root() -> str:
    """The folder that holds the packages, ``configs`` and ``CMakeLists.txt``: in the wheel, or the checkout itself."""
    return os.path.join(_HOME, FOLDER) if in_wheel() else os.path.dirname(_HOME)  # noqa: PTH118, PTH120


def claim() -> None:
    """From now on the names are ours in this process; those that another module has already are refused when asked for.

    Such a module is left to those who hold it, but not found by its name any more: a process has one module a name, and
    ours must not run with somebody else's.
    """
    if not any(isinstance(finder, _OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnPackages())
    for name in NAMES & set(sys.modules):
        place = _place(sys.modules[name])
        if not _is_ours(name, place):
            del sys.modules[name]
            _taken[name] = place


def python_path(others: str | None) -> str:
    """``PYTHONPATH`` for a process of ours: ``trtforge`` is found where it was here, before what ``others`` hold."""
    return os.pathsep.join(filter(None, (os.path.dirname(_HOME), others)))  # noqa: PTH120


class _OwnPackages:
    """The first of the finders: it knows our top-level names only; what is below them Python finds by itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where one of our packages lies; None for every other name.

        Raises:
            EnvironmentLacks: ``TF-ENV-032`` one of the names was another module's before.
            ModuleNotFoundError: the installation has lost the package.
        """
        if fullname not in NAMES:
            return None
        if _taken:
            raise _refusal()
        spec = PathFinder.find_spec(fullname, [root()])
        if spec is None:
            raise ModuleNotFoundError(f"trtforge has lost its package {fullname}: {root()} holds none", name=fullname)
        return spec


def _refusal() -> Exception:
    from trtforge.ground.errors import EnvironmentLacks

    name, place = sorted(_taken.items())[0]
    return EnvironmentLacks(
        "TF-ENV-032",
        f"another module called {name} was imported before trtforge: {place}",
        asked=f"import {name}",
        numbers={"foreign": dict(sorted(_taken.items())), "trtforge's": root()},
        why=f"trtforge has a package of that name, and a process has one module of a name. Its names are "
        f"{', '.join(sorted(NAMES))}.",
        remedies=[
            f"rename {place}, or import trtforge in a process of its own",
            f"keep sitecustomize and .pth files from importing {name}, where one of them does",
        ],
    )


def _place(module: ModuleType) -> str:
    """The file of a module, or the first folder of one that has no file."""
    file = getattr(module, "__file__", None)
    return str(file or next(iter(getattr(module, "__path__", ())), "a module without a file"))


def _is_ours(name: str, place: str) -> bool:
    ours = os.path.join(root(), name, "")  # noqa: PTH118
    return os.path.realpath(place).startswith(os.path.join(os.path.realpath(ours), ""))  # noqa: PTH118
