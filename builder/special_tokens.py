"""The tokens at which a model starts and ends, as its checkpoint's own files say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_object


def special_tokens(directory: Path) -> dict[str, Any]:
    """End and start tokens; generation_config.json wins over config.json, as in transformers' generate.

    Returns:
        ``eos_token_ids`` (a list of ids) and ``bos_token_id`` (an id or None).

    Raises:
        ForgeError: ``TF-BLD-110`` a file is no JSON object, or names something else than ids.
    """
    found: dict[str, Any] = {}
    for file in ("config.json", "generation_config.json"):
        path = directory / file
        if not path.exists():
            continue
        try:
            raw = read_json_object(path)
        except (OSError, ValueError) as error:
            raise _refuse(path, str(error)) from error
        for key in ("eos_token_id", "bos_token_id"):
            value = raw.get(key)
            if value is not None:
                several = value if key == "eos_token_id" and isinstance(value, list) else [value]
                if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in several):
                    raise _refuse(path, f"{key} is {str(value)[:60]}")
                found[key] = value
    ends = found.get("eos_token_id", [])
    return {"eos_token_ids": [ends] if isinstance(ends, int) else list(ends), "bos_token_id": found.get("bos_token_id")}


def _refuse(path: Path, reason: str) -> ForgeError:
    return ForgeError(
        "TF-BLD-110",
        f"{path.name} does not say at which tokens the model starts and ends: {reason}",
        asked=str(path),
        why="An engine that never ends its answers, or begins them wrongly, is of no use.",
        remedies=["correct eos_token_id and bos_token_id: an id, or for the end a list of ids", "remove them"],
    )
