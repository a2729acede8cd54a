"""Why an answer ended, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Mapping

#: the runtime's reason → OpenAI's, which has none for a deadline and for a withdrawal
_REASONS: Mapping[str, str] = {"stop": "stop", "length": "length", "timeout": "length", "cancelled": "stop"}


def reasons(finish: str) -> dict[str, str]:
    """``finish_reason`` of a choice, and ``stop_reason`` beside it where OpenAI's word says less than is known.

    An answer whose deadline passed was cut, so it is ``length``; ``stop_reason`` says ``timeout``.
    """
    found = {"finish_reason": _REASONS.get(finish, "stop")}
    return found if found["finish_reason"] == finish else {**found, "stop_reason": finish}
