"""At which tokens a model ends: what its own files say."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.tokenizer import EngineTokenizer


def end_ids(folder: Path, tokenizer: EngineTokenizer) -> list[int]:
    """``eos_token_id`` of ``generation_config.json`` (one or several), else the tokenizer's end of sequence.

    Chat models end at another token than their base model; only the generation configuration names both.
    """
    path = folder / "generation_config.json"
    named = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    if isinstance(named, int):
        return [named]
    if named:
        return [int(token) for token in named]
    text = tokenizer.special_tokens.get("eos_token")
    token = None if text is None else tokenizer.backend.token_to_id(text)
    return [] if token is None else [token]
