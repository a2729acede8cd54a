"""The tokenizer is loaded once and must fit its model before anything is built on it.

Policy: checked are that it loads, that ordinary text survives encoding and decoding, that every token id has a row in
the embedding, and that the end tokens exist. A model whose end token is missing never stops by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_bytes_file
from trtforge.ground.panics import panics_as

#: letters, digits, punctuation and a character outside ASCII: what every tokenizer must give back
SAMPLE = "The quick brown fox jumps over 13 lazy dogs; café costs 4.50."


def _unfit(what: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-023",
        f"the tokenizer does not fit the model: {what}",
        asked="tokenizer.json",
        numbers=numbers,
        why="Tokenizer and weights come from different models or revisions, or a file is damaged.",
        remedies=["download tokenizer.json, config.json and the weights of one revision again"],
    )


def load(path: Path) -> Any:
    """The ``tokenizers.Tokenizer`` in ``path``.

    Raises:
        ForgeError: ``TF-SRC-023`` when it does not load, ``TF-SRC-027`` without the package.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EnvironmentLacks(
            "TF-SRC-027", "checking a tokenizer needs the package tokenizers", remedies=["pip install tokenizers"]
        ) from None
    try:
        with panics_as(_unfit):
            return Tokenizer.from_buffer(read_bytes_file(path, MAX_TOKENIZER_BYTES))
    except (ForgeError, OSError):
        raise
    except Exception as error:  # the library raises plain Exception for a file that it cannot read
        raise _unfit(f"it does not load ({error})") from None


def check_tokenizer(path: Path, *, vocab: int, eos_token_ids: Sequence[int]) -> None:
    """Load ``tokenizer.json`` and hold it against the model; ``TF-SRC-023`` when they do not fit.

    Args:
        path: tokenizer.json.
        vocab: rows of the embedding.
        eos_token_ids: ids at which generation ends.
    """
    tokenizer = load(path)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest < 0:
        raise _unfit("its vocabulary is empty")
    if largest >= vocab:
        raise _unfit("it has tokens without a row in the embedding", largest_id=largest, embedding_rows=vocab)
    absent = [token for token in eos_token_ids if tokenizer.id_to_token(token) is None]
    if absent:
        raise _unfit("the end tokens of the model are not in it", absent=absent)
    if not eos_token_ids:
        raise ForgeError(
            "TF-SRC-023",
            "the model names no end token",
            asked="config.json and generation_config.json: eos_token_id",
            why="Without an end token every answer runs to its length limit.",
            remedies=["set eos_token_id in generation_config.json of the checkpoint"],
        )
    with panics_as(_unfit):
        back = tokenizer.decode(tokenizer.encode(SAMPLE, add_special_tokens=False).ids)
    if _letters(back) != _letters(SAMPLE):
        raise _unfit("text does not survive encoding and decoding", sample=SAMPLE, came_back=back)


def check_template(template: str) -> None:
    """``TF-SRC-033`` when a chat template does not compile; without jinja2 here, serving finds out."""
    from trtforge.templates.chat_template import can_render, syntax_error

    problem = syntax_error(template) if can_render() else None
    if problem is not None:
        raise ForgeError(
            "TF-SRC-033",
            f"the chat template does not compile: {problem.rstrip('.')}",
            asked="chat_template",
            why="Every chat request would fail, after everything has been built.",
            remedies=[
                "download the tokenizer's files again from the model's publisher",
                "correct chat_template.jinja (or chat_template in tokenizer_config.json) in a copy of the checkpoint",
            ],
        )


def _letters(text: str) -> str:
    """``text`` without spaces and case: decoders differ in spaces, and uncased vocabularies exist."""
    return "".join(text.split()).casefold()
