"""The meaning of a checkpoint, one decoder layer at a time: what :mod:`quantize.reference` computes, to the bit.

All sequences that are asked for together go through a layer before the next one is read, so a checkpoint is read once
for all of them (:meth:`LayeredReference.prepare`). Generation reads it once a token, for all prompts together.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from quantize import reference as whole
from quantize.by_layer.pieces import Pieces, run_embedding, run_head, run_layer
from quantize.by_layer.states import LayerStates
from quantize.corpora import load_tokenizer
from quantize.quiet import quiet
from trtforge.ground.files import read_json, write_json_atomic
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.models.loading import CACHE_BYTES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    Done = Callable[[list[int]], bool]


@dataclass(frozen=True)
class Change:
    """What is done to a computation: its name, and how hooks are put on a piece of the model."""

    name: str
    hooked: Callable[[Any], contextlib.AbstractContextManager[None]]


PLAIN = Change("plain", lambda _: contextlib.nullcontext())


def rounding(dtype: Literal["bfloat16", "float16"]) -> Change:
    """Every module's result rounded to a type."""
    return Change(f"rounded-{dtype}", lambda model: whole.results_rounded(model, dtype))


@dataclass
class _Prepared:
    """Sequences that have gone through the layers: their digests in order, and the states behind the last layer."""

    digests: list[str]
    states: LayerStates


class LayeredReference:
    """As :class:`quantize.reference.ReferenceModel`, with one layer in memory.

    Attributes:
        tokenizer, quant_format, eos_token_ids, emulated: as there.
        layers: decoder layers.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        emulate_kv: bool = True,
        work: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Open a quantized or unquantized checkpoint directory.

        Args:
            work: a folder of this very checkpoint and work that survives a kill; else a temporary one is made.

        Raises:
            ForgeError: ``TF-QNT-030`` a quantization that has no reader, ``TF-QNT-060`` no layer by layer.
        """
        checkpoint = Path(checkpoint)
        self._formats, self._kv = whole.formats_and_cache(checkpoint)
        if not emulate_kv:
            self._kv = None
        config = whole.reference_config(checkpoint)
        with quiet():
            self._pieces = Pieces(checkpoint, dtype=whole.COMPUTE[dtype], config=config, attention="sdpa")
        self.tokenizer: Tokenizer = load_tokenizer(checkpoint)
        self.quant_format, self.emulated = self._formats.name, self._formats.name != "none"
        self.eos_token_ids = whole.eos_ids(checkpoint)
        self._dtype = whole.COMPUTE[dtype]
        self._temporary = tempfile.TemporaryDirectory(prefix="trtforge-layers-") if work is None else None
        self._work = work if work is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self._report = progress or SilentProgress()
        self._prepared: dict[str, _Prepared] = {}
        self._head: Any = None

    @property
    def layers(self) -> int:
        return self._pieces.count

    # --- logits ---------------------------------------------------------------------------------

    def prepare(self, sequences: Sequence[torch.Tensor], change: Change = PLAIN) -> None:
        """Take sequences, int64 [S] each, through all layers, so that their logits need no layer any more.

        A run that was killed goes on behind the layer that was finished last.
        """
        self._head = None  # its memory is the layers' now
        folder = self._work / change.name
        wanted = [_digest(ids) for ids in sequences]
        kept = read_json(folder / "sequences.json")
        known = dict(zip(wanted, sequences, strict=True))
        chosen = wanted
        if isinstance(kept, list) and {*wanted} <= {*map(_listed, kept)}:
            # an interrupted run asked for more: what of it is scored already is not asked for again
            chosen = [_listed(entry) for entry in kept]
            known |= {entry["digest"]: torch.tensor(entry["ids"], dtype=torch.int64) for entry in kept}
        else:
            listed = [{"digest": digest, "ids": known[digest].tolist()} for digest in wanted]
            folder.mkdir(parents=True, exist_ok=True)
            write_json_atomic(folder / "sequences.json", listed)
        states = self._through([known[digest] for digest in chosen], change, folder / "states")
        self._prepared[change.name] = _Prepared(chosen, states)

    def logits(self, input_ids: torch.Tensor, last: int = 0) -> torch.Tensor:
        """int64 [S] → float32 [S, V]; row i predicts token i + 1. With ``last`` only that many rows, the last ones."""
        return self._logits(input_ids, PLAIN, last)

    def rounded_logits(self, input_ids: torch.Tensor, dtype: Literal["bfloat16", "float16"]) -> torch.Tensor:
        """As :meth:`logits`, every module's result rounded to ``dtype``."""
        return self._logits(input_ids, rounding(dtype))

    def perturbed_logits(self, input_ids: torch.Tensor, relative: float, seed: int) -> torch.Tensor:
        """As :meth:`logits`, every embedding value changed by a factor 1 + relative x N(0, 1)."""
        change = Change(
            f"perturbed-{relative:g}-{seed}", lambda model: whole.embeddings_perturbed(model, relative, seed)
        )
        return self._logits(input_ids, change)

    @torch.inference_mode()
    def _logits(self, input_ids: torch.Tensor, change: Change, last: int = 0) -> torch.Tensor:
        digest, prepared = _digest(input_ids), self._prepared.get(change.name)
        if prepared is None or digest not in prepared.digests:
            self.prepare([input_ids], change)
            prepared = self._prepared[change.name]
        states = prepared.states.read(prepared.digests.index(digest))
        if self._head is None:
            self._head = self._outer([self._pieces.norm_name, self._pieces.head_name])
        with change.hooked(self._head):
            return run_head(self._head, states, last)[0].float()

    @torch.inference_mode()
    def _through(self, sequences: Sequence[torch.Tensor], change: Change, folder: Path) -> LayerStates:
        """The states of the sequences behind the last layer."""
        shapes = [(1, len(ids)) for ids in sequences]
        identity = [str(self._pieces.checkpoint), change.name, [_digest(ids) for ids in sequences]]
        states = LayerStates(folder, identity, shapes, int(self._pieces.config.hidden_size), self._dtype)
        if states.done is None:
            for number, embedded in enumerate(self._embedded(sequences, change)):
                states.write(number, embedded)
            states.commit()
        elif states.done:
            self._report.note(f"goes on behind layer {states.done} of {self.layers}")
        for index in range(states.done or 0, self.layers):
            model = self.layer(index)
            with change.hooked(model):
                for number in range(len(sequences)):
                    states.write(number, run_layer(model, states.read(number)))
            del model  # before the next one is read
            states.commit()
            self._report.note(f"layer {index + 1} of {self.layers}, {len(sequences)} sequences")
        return states

    def _embedded(self, sequences: Sequence[torch.Tensor], change: Change = PLAIN) -> Iterator[torch.Tensor]:
        """What the first layer is given of each sequence, [1, S, D]; only the rows that occur are in memory."""
        model, places = self._pieces.embedding(torch.cat(list(sequences)))
        begin = 0
        for ids in sequences:
            with change.hooked(model):
                yield run_embedding(model, places[begin : begin + len(ids)].view(1, -1))
            begin += len(ids)

    # --- generation -----------------------------------------------------------------------------

    def generate_greedy(self, input_ids: torch.Tensor, max_new: int, done: Done | None = None) -> list[int]:
        """The most likely continuation of int64 [S], as :meth:`quantize.reference.ReferenceModel.generate_greedy`."""
        return self.generate_together([(torch.as_tensor(input_ids), max_new, done)])[0]

    @torch.inference_mode()
    def generate_together(self, asked: Sequence[tuple[torch.Tensor, int, Done | None]]) -> list[list[int]]:
        """Greedy continuations of prompts int64 [S], each with its own most tokens and end.

        The checkpoint is read once a token for as many prompts as have room for their keys and values.
        """
        made: list[list[int]] = []
        some: list[tuple[torch.Tensor, int, Done | None]] = []
        for one in asked:
            if some and self._cache_bytes([*some, one]) > CACHE_BYTES:
                made += self._generated(some)
                some = []
            some.append(one)
        return made + (self._generated(some) if some else [])

    def _cache_bytes(self, asked: Sequence[tuple[torch.Tensor, int, Done | None]]) -> int:
        """Keys and values of all prompts and what is made of them, at most."""
        config = self._pieces.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        tokens = sum(ids.numel() + most for ids, most, _ in asked)
        return int(tokens * self.layers * 2 * heads * size * self._dtype.itemsize)

    def _generated(self, asked: Sequence[tuple[torch.Tensor, int, Done | None]]) -> list[list[int]]:
        from transformers import DynamicCache

        made: list[list[int]] = [[] for _ in asked]
        steps = {number: ids.view(-1) for number, (ids, most, _) in enumerate(asked) if most > 0}
        caches: dict[tuple[int, int], Any] = {}
        while steps:
            self._head = None
            states = dict(zip(steps, self._embedded(list(steps.values())), strict=True))
            for index in range(self.layers):
                model = self.layer(index)
                for number, given in states.items():
                    cache = caches.setdefault((number, index), DynamicCache(config=model.config))
                    states[number] = run_layer(model, given, past_key_values=cache, use_cache=True)
                del model
            head = self._outer([self._pieces.norm_name, self._pieces.head_name])
            following = {}
            for number, given in states.items():
                token = int(run_head(head, given, 1)[0, -1].argmax())
                made[number].append(token)
                _, most, done = asked[number]
                ended = token in self.eos_token_ids or (done is not None and done(made[number]))
                if not ended and len(made[number]) < most:
                    following[number] = torch.tensor([token])
            del head
            steps = following
            self._report.note(f"{max(map(len, made))} tokens of {len(asked)} answers, {len(steps)} go on")
        return made

    def walk(self, ids: torch.Tensor) -> Iterator[tuple[Any, Callable[[], object], Callable[[str], str]]]:
        """The layers in turn over int64 [S]: a layer's model, what computes it, its modules' names in the whole model.

        Each must be computed before the next is asked for.
        """
        self._head = None
        (states,) = self._embedded([ids])
        for index in range(self.layers):
            model, given = self.layer(index), states
            seen: list[torch.Tensor] = []

            @torch.inference_mode()
            def run(model: Any = model, given: torch.Tensor = given, seen: list[torch.Tensor] = seen) -> None:
                seen.append(run_layer(model, given))

            yield model, run, functools.partial(self._pieces.outside, index=index)
            states = seen[-1]
            model.to_empty(device="meta")  # whoever walks may still hold what he was given

    # --- pieces ---------------------------------------------------------------------------------

    def layer(self, index: int) -> Any:
        """The model of one layer, weights de-quantized and hooked as the whole reference's."""
        pieces = self._pieces
        tensors = pieces.read(pieces.layer_names(index))
        weights, inputs, kv_scales = whole.separate(tensors, self._formats)
        with quiet():
            model = pieces.layer(index, {pieces.inside(name, index): tensor for name, tensor in weights.items()})
        whole.hook_inputs(model, {pieces.inside(name, index): one for name, one in inputs.items()})
        if self._kv is not None:
            whole.hook_attention(model, {pieces.inside(n, index): s for n, s in kv_scales.items()}, self._kv)
        return model

    def _outer(self, modules: Sequence[str]) -> Any:
        """The model without layers, with the weights named and their other tensors."""
        stems = tuple(f"{name.removesuffix('weight')}" for name in modules)
        names = [name for name in self._pieces.outer_names() if name.startswith(stems)]
        weights, inputs, _ = whole.separate(self._pieces.read(names), self._formats)
        with quiet():
            model = self._pieces.outer(weights, head=self._pieces.head_name)
        whole.hook_inputs(model, inputs)
        return model


def _digest(ids: torch.Tensor) -> str:
    return hashlib.sha256(ids.to(torch.int64).contiguous().numpy().tobytes()).hexdigest()[:32]


def _listed(entry: Any) -> str:
    return str(entry.get("digest")) if isinstance(entry, dict) else ""
