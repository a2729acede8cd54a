"""Checks on refusals: their code, and that they tell the user what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trtforge.ground.errors import ForgeError


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> ForgeError:
    """The :class:`ForgeError` that the call raises, which must name at least one way out."""
    with pytest.raises(ForgeError) as caught:
        call(*arguments, **named)
    error = caught.value
    assert error.remedies and all(error.remedies), f"{error.code} names no way out"
    assert error.message[-1] != ".", "a message is a clause, not a paragraph"
    error.to_json()
    return error
