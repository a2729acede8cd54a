"""The target's states over its own text, computed once and kept: what offline training reads instead of the target.

One file a part: ``tokens`` int32 [N], ``lengths`` and ``prompt_lengths`` int32 [n], ``kinds`` int32 [n] (places in
:data:`KINDS`), ``greedy`` bool [n], ``taps`` [N, 3·H] and ``last`` [N, H] in the checkpoint's dtype; ``last`` is behind
the final norm. Read in slices, so that memory holds a batch and not the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantize.quiet import quiet
from quantize.speculative.conversations import Conversation, parts, read_part
from quantize.speculative.rollout import Batch
from trtforge.ground.progress import Progress

#: classes of prompts by their number in a file
KINDS = ("chat", "code", "copy", "open", "self")
#: tokens of a forward pass; answers of one length lie together, so that little is padded
_PASS_TOKENS = 4096
#: answers shorter than this teach nothing: nothing is drafted in them
LEAST_ANSWER = 4


class StateWriter:
    """The target as a maker of states.

    Args:
        checkpoint: the target's folder.
        taps: layers whose outputs are kept, 0-based.
    """

    def __init__(self, checkpoint: Path, taps: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM

        with quiet():
            self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="auto").eval()
        self._taps, self._got = tuple(taps), dict[int, Tensor]()
        inner = self._model.get_decoder() if hasattr(self._model, "get_decoder") else self._model.model
        self._inner: Any = inner
        for layer in self._taps:
            inner.layers[layer].register_forward_hook(self._keeper(layer))

    def _keeper(self, layer: int) -> Any:
        def keep(_: Any, __: Any, output: Any) -> None:
            self._got[layer] = output if isinstance(output, Tensor) else output[0]

        return keep

    @torch.inference_mode()
    def states(self, texts: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
        """Taps [S, 3·H] and normed last states [S, H] of each text."""
        longest = max(map(len, texts))
        tokens = torch.zeros(len(texts), longest, dtype=torch.long)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
        # what is padded stands behind a text's end, where a causal model never looks
        last = self._inner(input_ids=tokens, use_cache=False).last_hidden_state
        taps = torch.cat([self._got[layer] for layer in self._taps], -1)
        return [(taps[row, : len(text)].clone(), last[row, : len(text)].clone()) for row, text in enumerate(texts)]

    def write(self, conversations: Sequence[Conversation], path: Path, progress: Progress) -> int:
        """Write the states of conversations; the file appears complete. Returns the number of tokens."""
        from safetensors.torch import save_file

        rows = sorted(conversations, key=lambda row: len(row.tokens))
        taps, last = [], []
        for group in grouped([len(row.tokens) for row in rows], _PASS_TOKENS):
            texts = [rows[place].tokens for place in group]
            for tapped, normed in self.states(texts):
                taps.append(tapped)
                last.append(normed)
            progress.advance(sum(map(len, texts)))
        tensors = {
            "tokens": torch.tensor([token for row in rows for token in row.tokens], dtype=torch.int32),
            "lengths": torch.tensor([len(row.tokens) for row in rows], dtype=torch.int32),
            "prompt_lengths": torch.tensor([len(row.prompt) for row in rows], dtype=torch.int32),
            "kinds": torch.tensor([KINDS.index(row.kind) for row in rows], dtype=torch.int32),
            "greedy": torch.tensor([row.greedy for row in rows], dtype=torch.bool),
            "taps": torch.cat(taps),
            "last": torch.cat(last),
        }
        draft = path.with_suffix(".tmp")
        save_file(tensors, draft)
        draft.replace(path)
        return int(tensors["tokens"].numel())


def write_states(text: Path, checkpoint: Path, taps: Sequence[int], out: Path, progress: Progress) -> int:
    """States of every part in ``text`` that has none in ``out`` yet; the number of tokens."""
    todo = [part for part in parts(text) if not (out / f"{part.stem}.safetensors").exists()]
    if not todo:
        return 0
    loaded = {part: [row for row in read_part(part) if len(row.answer) >= LEAST_ANSWER] for part in todo}
    progress.start("loading the target")
    writer = StateWriter(checkpoint, taps)
    progress.start("states of the target", float(sum(len(row.tokens) for rows in loaded.values() for row in rows)))
    return sum(writer.write(rows, out / f"{part.stem}.safetensors", progress) for part, rows in loaded.items())


def grouped(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Places of ascending ``lengths`` in groups that hold at most ``tokens`` when padded; a longer text is one."""
    groups: list[list[int]] = []
    for place, length in enumerate(lengths):
        if not groups or (len(groups[-1]) + 1) * length > tokens:
            groups.append([])
        groups[-1].append(place)
    return groups


@dataclass(frozen=True)
class Text:
    """One conversation in a file of states: tokens ``begin:begin + length``, the first ``prompt`` the prompt's."""

    file: int
    begin: int
    length: int
    prompt: int
    kind: str
    greedy: bool


class States:
    """The files of a folder, read in slices."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._files = [safe_open(path, framework="pt") for path in sorted(folder.glob("part-*.safetensors"))]
        self._tokens = [file.get_tensor("tokens").long() for file in self._files]
        self.texts: list[Text] = []
        for number, file in enumerate(self._files):
            begin = 0
            columns = [file.get_tensor(name).tolist() for name in ("lengths", "prompt_lengths", "kinds", "greedy")]
            for length, prompt, kind, greedy in zip(*columns, strict=True):
                self.texts.append(Text(number, begin, length, prompt, KINDS[kind], greedy))
                begin += length

    def tokens(self, text: Text) -> Tensor:
        """int64 [S]."""
        return self._tokens[text.file][text.begin : text.begin + text.length]

    def counts(self, vocabulary: int) -> Tensor:
        """int64 [V], how often each token was written in answers."""
        total = torch.zeros(vocabulary, dtype=torch.long)
        for text in self.texts:
            total += torch.bincount(self.tokens(text)[text.prompt :], minlength=vocabulary)
        return total

    def spread(self, every: int = 16) -> Tensor:
        """float32 [3·H], root mean square of each channel of the taps over the answers of every so many texts."""
        total, seen = torch.zeros(()), 0
        for text in self.texts[::every]:
            taps = self._slice("taps", text)[text.prompt :].double()
            total, seen = total + taps.square().sum(0), seen + len(taps)
        return (total / max(1, seen)).sqrt().float()

    def batch(self, texts: Sequence[Text], allowed: Tensor) -> Batch:
        """The texts padded to the longest; counted are positions that predict an ``allowed`` token of the answer."""
        longest = max(text.length for text in texts)
        first = self._slice("taps", texts[0]), self._slice("last", texts[0])
        tokens = torch.zeros(len(texts), longest, dtype=torch.long)
        taps, last = (part.new_zeros(len(texts), longest, part.shape[1]) for part in first)
        counted = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            own = self.tokens(text)
            tokens[row, : text.length] = own
            taps[row, : text.length] = self._slice("taps", text)
            last[row, : text.length] = self._slice("last", text)
            counted[row, text.prompt : text.length - 1] = allowed[own[text.prompt + 1 :]]
        return Batch(tokens, taps, last, counted)

    def _slice(self, name: str, text: Text) -> Tensor:
        found: Tensor = self._files[text.file].get_slice(name)[text.begin : text.begin + text.length]
        return found
