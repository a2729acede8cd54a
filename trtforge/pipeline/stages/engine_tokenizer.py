"""Where an engine's directory has its tokenizer, whatever target built it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.tokenizer import EngineTokenizer

#: below the engine's directory
_TOKENIZERS = (".", "checkpoint", "trtllm")


def tokenizer_in(engine: Path) -> EngineTokenizer:
    """The tokenizer in an engine's directory; raises TF-RUN-090 where there is none."""
    from runtime.tokenizer import EngineTokenizer

    folders = [engine / name for name in _TOKENIZERS]
    return EngineTokenizer.load(next((f for f in folders if (f / "tokenizer.json").is_file()), folders[0]))
