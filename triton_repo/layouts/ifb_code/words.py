"""Words and rows of tokens as TensorRT-LLM takes them; plain functions over numpy.

Source of the formats: https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
(``stop_words_list`` and ``bad_words_list`` of shape [2, n], ``embedding_bias`` of one value a vocabulary entry).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Encode = Callable[[str], list[int]]


def variants(word: str, encode: Encode) -> list[list[int]]:
    """Tokens of ``word`` as a text may contain it: at its start and after a space.

    A word's tokens depend on what stands before it, so one spelling would miss the others. The text-level
    matching of BLS finds what is still missed.
    """
    found: list[list[int]] = []
    for text in (word, f" {word}"):
        ids = encode(text)
        if ids and ids not in found:
            found.append(ids)
    return found


def word_list(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Words as int32 [B, 2, n]: row 0 their tokens one after the other, row 1 where each word ends.

    Rows are filled with 0 and -1 up to the longest (n ≥ 1); empty words are left out.

    Args:
        rows: for each request its words, each a list of tokens.
    """
    flat = [[token for word in words for token in word] for words in rows]
    width = max([1, *(len(tokens) for tokens in flat)])
    result = np.zeros((len(rows), 2, width), dtype=np.int32)
    result[:, 1, :] = -1
    for index, (words, tokens) in enumerate(zip(rows, flat, strict=True)):
        ends = np.cumsum([len(word) for word in words if word])
        result[index, 0, : len(tokens)] = tokens
        result[index, 1, : len(ends)] = ends
    return result


def embedding_bias(
    words: Sequence[Sequence[str]], weights: Sequence[Sequence[float]], encode: Encode, vocab_size: int
) -> np.ndarray:
    """Bias of every vocabulary entry, float32 [B, V]: each token of a word gets the word's weight.

    Args:
        words, weights: for each request its words and a weight each.
        vocab_size: V, of the engine (a tokenizer may know fewer entries).

    Raises:
        ValueError: words and weights of a request differ in number, or a token is beyond the vocabulary.
    """
    result = np.zeros((len(words), vocab_size), dtype=np.float32)
    for row, (row_words, row_weights) in enumerate(zip(words, weights, strict=True)):
        if len(row_words) != len(row_weights):
            raise ValueError(f"{len(row_words)} embedding_bias_words and {len(row_weights)} embedding_bias_weights")
        for word, weight in zip(row_words, row_weights, strict=True):
            ids = encode(word)
            if any(token >= vocab_size for token in ids):
                raise ValueError(f"the word {word!r} has a token beyond the engine's {vocab_size} entries")
            result[row, ids] += weight
    return result


def padded(rows: Sequence[Sequence[int]], fill: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tokens as int32 [B, longest], filled with ``fill[row]``, and their lengths as int32 [B, 1]."""
    width = max((len(row) for row in rows), default=0)
    result = np.empty((len(rows), width), dtype=np.int32)
    for index, row in enumerate(rows):
        result[index, : len(row)] = row
        result[index, len(row) :] = fill[index]
    return result, np.array([[len(row)] for row in rows], dtype=np.int32).reshape(len(rows), 1)


def extra_ids(tokens: np.ndarray, ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """uint64 [B, T]: the request's extra id where a token is virtual (beyond the vocabulary), else 0."""
    return np.where(tokens >= vocab_size, ids.reshape(-1, 1), 0).astype(np.uint64)
