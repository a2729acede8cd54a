"""Panics of libraries in Rust, as refusals.

PyO3 raises them as ``PanicException``, which is no ``Exception``: it would pass every handler that keeps one request's
or one file's fault from ending the process. The class cannot be imported; its name is all there is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def panics_as(refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Raise ``refusal(why)`` for a panic inside; everything else passes."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise refusal(f"{error}"[:300]) from None
