"""Tensors under other names than config.json promises: which prefix is missing or too much, and what that means."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_EMBEDDING = "embed_tokens.weight"
_HEAD = "lm_head.weight"
_BODY = "model."


@dataclass(frozen=True)
class Renaming:
    """How the tensors' names differ: ``wrong`` stands where ``right`` belongs.

    ``others``: how many tensors are not the language model's; ``missing``: what is not there under any name.
    """

    wrong: str
    right: str
    others: int
    missing: tuple[str, ...]

    @property
    def message(self) -> str:
        """What was found, in a clause."""
        if not self.wrong:
            return f"every tensor's name lacks the prefix {self.right!r}: these are the weights of the body alone"
        left = self.right or "nothing"
        text = f"the tensors' names begin with {self.wrong!r} where {left!r} is wanted"
        return text + (f", beside {self.others} of other parts" if self.others else "")

    @property
    def remedies(self) -> list[str]:
        """What gives the tensors the names that are wanted."""
        if self.wrong.startswith("base_model.model."):
            return ["merge the adapter and unload PEFT's wrapper (merge_and_unload), then save_pretrained the result"]
        if not self.wrong:
            ways = [
                "AutoModelForCausalLM.from_pretrained(dir).save_pretrained(new_dir) writes the whole model's names",
                f"rename the tensors: put {self.right!r} before each name",
            ]
            if _HEAD in self.missing:
                ways.insert(0, "the publisher's whole model: the output projection (lm_head) is not in these weights")
            return ways
        ways = [f"rename the tensors: {self.wrong!r} at the beginning becomes {self.right!r}"]
        if self.others:
            ways[0] += f", and leave the {self.others} of other parts out"
        if "language_model." in self.wrong:
            ways.append("the publisher's text-only checkpoint, if there is one: this one is a multimodal model")
        return ways


def renaming(names: Collection[str], expected: Collection[str]) -> Renaming | None:
    """The prefix that explains why ``names`` are not the ``expected`` ones; None when no prefix does."""
    embedding = [name for name in names if name.endswith(_EMBEDDING)]
    if len(embedding) != 1 or embedding[0] in expected:
        return None
    before = embedding[0].removesuffix(_EMBEDDING)
    whole = f".{before}".endswith(f".{_BODY}")  # language_model. is another prefix, not this one
    wrong, right = (before.removesuffix(_BODY), "") if whole else (before, _BODY)
    own = {_renamed(name, wrong, right): name for name in names if name.startswith(wrong)}
    missing = tuple(name for name in expected if name not in own and name not in names)
    if len(missing) > 1 or (missing and missing != (_HEAD,)):
        return None
    return Renaming(
        wrong, right, len([name for name in names if name not in own.values() and name not in expected]), missing
    )


def _renamed(name: str, wrong: str, right: str) -> str:
    rest = name.removeprefix(wrong)
    return rest if rest == _HEAD else right + rest
