"""The number in a file that says how the rest of it is to be read.

JSON's ``true`` and ``1.0`` equal 1 in Python. Neither is a version: something else wrote what stands beside it.
"""

from __future__ import annotations

from pydantic import BeforeValidator


def is_version(value: object, *known: int) -> bool:
    """Whether ``value`` is a whole number and one of ``known``."""
    return type(value) is int and value in known


def _whole(value: object) -> object:
    if type(value) is not int:
        raise ValueError("a version is a whole number")
    return value


#: of a ``Literal`` of versions in a record
WHOLE = BeforeValidator(_whole)
