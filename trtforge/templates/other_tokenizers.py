"""Tokenizers that are no ``tokenizer.json``, and how each becomes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: files of tokenizers that transformers converts when it loads them
_SLOW = ("tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
#: Mistral's own format: without tokenizer_config.json AutoTokenizer does not know what it is
TEKKEN = "tekken.json"


def other_tokenizers(has: Callable[[str], bool]) -> list[str]:
    """The tokenizer files of a folder without tokenizer.json; ``has`` says whether it holds a file of a name."""
    return [name for name in (*_SLOW, TEKKEN) if has(name)]


def tokenizer_remedies(found: Sequence[str]) -> list[str]:
    """What makes a tokenizer.json of the files that were found."""
    again = "download tokenizer.json of the same revision into the folder"
    if list(found) == [TEKKEN]:
        return [
            f"convert {TEKKEN} (pip install mistral-common): transformers.integrations.mistral."
            f"convert_tekken_tokenizer('{TEKKEN}').save_pretrained(dir)",
            "tokenizer.json of the publisher's Hugging Face form of the same model and version, where there is one",
        ]
    if not found:
        return [again]
    return [again, "make it once: transformers.AutoTokenizer.from_pretrained(dir).save_pretrained(dir)"]
