"""engine.json of any target: the union of the targets' records, told apart by ``target``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trtforge.targets import TARGETS
from trtforge.targets.record import EngineRecord

#: faults that a message names
_MOST = 8


def record_of(engine: Mapping[str, Any]) -> EngineRecord:
    """The contents of an engine.json as the record of its target.

    Raises:
        ValueError: a part is missing or of another kind; says which.
    """
    target = engine.get("target")
    if not isinstance(target, str) or target not in TARGETS:
        raise ValueError(f"target is {str(target)[:80]!r}, none of {', '.join(TARGETS)}")
    try:
        return TARGETS[target].record.model_validate(dict(engine))
    except ValidationError as error:
        faults = [_words(item) for item in error.errors(include_url=False, include_input=False, include_context=False)]
        more = f" and {len(faults) - _MOST} more" if len(faults) > _MOST else ""
        raise ValueError(f"{', '.join(faults[:_MOST])}{more}") from None


def _words(fault: Any) -> str:
    """``kv_cache.num_blocks: input should be …`` of one of pydantic's errors."""
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg'][0].lower()}{fault['msg'][1:]}"
