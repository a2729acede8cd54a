"""Tokens of KV cache that a request takes where layers look back over a sliding window only.

Only TensorRT-LLM's C++ runtime gives back blocks that left the window, and it is told the
windows by ``max_attention_window_size``: the recipe's parameter, else the model's own window, which the repository
writes there. Our own runtime keeps every block of a request, and so does ``LLM()`` without
``kv_cache_config.max_attention_window``, which no layout writes.

A layer with a window keeps the window, with paged context attention also the chunk of the prompt that is computed,
and one block beside, because a new block is taken before the oldest is given back. Source:
``getRemainingBlocksToCompletion``, ``calculateTemporaryAttentionWindow`` and ``kSWAExtraBlock`` in
https://github.com/NVIDIA/TensorRT-LLM/tree/main/cpp/tensorrt_llm/batch_manager (kvCacheManager.cpp) and
https://github.com/NVIDIA/TensorRT-LLM/tree/main/cpp/include/tensorrt_llm/batch_manager (kvCacheManager.h)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: the parameter of ``tensorrt_llm`` that names the windows: one value, or several that repeat over the layers
PARAMETER = "max_attention_window_size"
#: the largest number that TensorRT-LLM reads
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class KvWindows:
    """``windows`` holds each layer's window in tokens, 0 where the whole context stays.

    ``longest_prompt`` is the engine's max_input_len; ``paged`` whether prompts are computed over the paged cache.
    """

    windows: tuple[int, ...]
    longest_prompt: int = 0
    paged: bool = False

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(window, layers that have it), smallest first."""
        return tuple(sorted(Counter(self.windows).items()))

    def layer_tokens(self, tokens: Any, block: int, step_tokens: int) -> Any:
        """Tokens of whole blocks that a request of ``tokens`` tokens takes, summed over the layers.

        Args:
            tokens: a number or a numpy array of them.
            block: tokens a block.
            step_tokens: max_num_tokens, which bounds the chunk of a prompt.
        """
        whole = -(-tokens // block) * block
        total = 0 * whole
        for window, layers in self.spans:
            total = total + layers * (_smaller(whole, self._most(window, block, step_tokens)) if window else whole)
        return total

    def widest(self) -> KvWindows:
        """The same of one layer alone, of those that keep most."""
        window = 0 if 0 in self.windows else max(self.windows)
        return KvWindows((window,), self.longest_prompt, self.paged)

    def longest(self, pool_tokens: int, block: int, step_tokens: int, most: int) -> int:
        """The longest request, ``most`` tokens at the most, that a pool of ``pool_tokens`` tokens a layer holds."""
        room = pool_tokens * len(self.windows)
        if self.layer_tokens(most, block, step_tokens) <= room:
            return most
        low, high = 0, -(-most // block)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.layer_tokens(middle * block, block, step_tokens) <= room
            low, high = (middle, high) if fits else (low, middle)
        return low * block

    def _most(self, window: int, block: int, step_tokens: int) -> int:
        """Tokens of the blocks of a layer with ``window``, however long the request is."""
        chunk = max(min(step_tokens, self.longest_prompt - window), 0) if self.paged else 0
        return -(-(window + chunk) // block) * block + block


def _smaller(value: Any, bound: int) -> Any:
    """min(value, bound), of a number or of each of an array."""
    return value - (value > bound) * (value - bound)


def parse_windows(text: str) -> Sequence[int]:
    """The windows of a parameter's text; none when it is empty or no list of whole numbers from 1 on."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 19 for part in parts):
        return ()
    values = [int(part) for part in parts]
    return values if all(1 <= value <= _LARGEST for value in values) else ()
