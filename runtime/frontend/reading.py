"""Values out of a request's tensors, one row at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trtforge.ground.errors import ForgeError


class Rows:
    """The tensors of one client request; row i of each belongs to its i-th prompt.

    Args:
        tensors: arrays by input name, batch axis first; inputs that were not sent are left out.

    Raises:
        ForgeError: ``TF-RUN-101`` when the tensors have different numbers of rows, or none.
    """

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        self.tensors = tensors
        counts = {name: len(array) if array.ndim else 0 for name, array in tensors.items()}
        self.count = max(counts.values(), default=0)
        for name, count in counts.items():
            if count != self.count or not count:
                raise _shape(name, tensors[name], f"{self.count} rows, one a prompt, as the other inputs have")

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def one(self, name: str, row: int, default: Any = None) -> Any:
        """The value of an input that has one a row, as numpy's scalar or bytes; ``default`` when it was not sent.

        Raises:
            ForgeError: ``TF-RUN-101`` when the row holds none or several.
        """
        if name not in self.tensors:
            return default
        flat = self.tensors[name][row].reshape(-1)
        if len(flat) != 1:
            raise _shape(name, self.tensors[name], "exactly one value a row")
        return flat[0]

    def flag(self, name: str, row: int, default: bool = False) -> bool:
        return bool(self.one(name, row, default))

    def many(self, name: str, row: int) -> npt.NDArray[Any]:
        """All values of one row, flat; empty when the input was not sent."""
        return self.tensors[name][row].reshape(-1) if name in self.tensors else np.empty(0)

    def texts(self, name: str, row: int) -> list[str]:
        """The texts of one row; the empty ones that clients send for none are left out."""
        return [word for word in (text(name, value) for value in self.many(name, row)) if word]


def text(name: str, value: Any) -> str:
    """A STRING value.

    Raises:
        ForgeError: ``TF-RUN-102`` when it is not UTF-8.
    """
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode("utf-8")
    except (UnicodeDecodeError, TypeError, ValueError) as error:
        raise ForgeError(
            "TF-RUN-102", f"{name} is not UTF-8 text", why=str(error), remedies=["encode the text as UTF-8"]
        ) from None


def together(present: Mapping[str, bool]) -> bool:
    """Whether inputs that only mean something together were sent: all of them, or none.

    Raises:
        ForgeError: ``TF-RUN-108`` when some were.
    """
    sent = [name for name, given in present.items() if given]
    missing = [name for name in present if name not in sent]
    if sent and missing:
        raise ForgeError(
            "TF-RUN-108",
            f"{', '.join(sent)} came without {', '.join(missing)}",
            asked=", ".join(sent),
            why="one means nothing without the other",
            remedies=[f"send {', '.join(missing)} too", f"leave {', '.join(sent)} out"],
        )
    return bool(sent)


def _shape(name: str, array: npt.NDArray[Any], wanted: str) -> ForgeError:
    return ForgeError(
        "TF-RUN-101",
        f"{name} must hold {wanted}",
        asked=f"{name} of shape {list(array.shape)}",
        numbers={"values": int(array.size)},
        why="each row of a request is one prompt with its own settings",
        remedies=["send one row a prompt, or one request a prompt"],
    )
