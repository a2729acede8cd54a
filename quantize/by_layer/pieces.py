"""A checkpoint's model in pieces: its embedding, norm and head; and each decoder layer as a model of its own.

A piece is made by transformers from a configuration with one layer or none, so that conversions of weights, masks and
rotary embeddings are the class's own. Rules that go by a layer's number are told by lists in the configuration; each
piece is held against the layer of the whole model, built without memory for its weights, and refused where it differs.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from quantize.quiet import quiet
from quantize.reference import refuse_misfits
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers

#: rows of a piece's embedding and head where nothing is embedded and no logit is asked for
_STUB_ROWS = 4
_IN_A_LAYER = re.compile(r"^(?P<stack>(?:\w+\.)*layers)\.(?P<index>\d+)\.")
_EMBEDDING, _NORM, _HEAD = "embed_tokens.weight", "norm.weight", "lm_head"
#: attributes of a module that differ without meaning: its place, and whether it trains
_PLACE = ("layer_idx", "training", "config")

Tensors = dict[str, torch.Tensor]


class Pieces:
    """The pieces of one checkpoint.

    Attributes:
        config: of the whole model, as transformers reads it.
        count: decoder layers.
        stack: the list of layers in the tensors' names, such as ``model.layers``.
        headers: the checkpoint's tensors.

    Raises:
        ForgeError: ``TF-QNT-060`` the checkpoint cannot be taken layer by layer.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        dtype: torch.dtype | None = torch.float32,
        config: Any = None,
        device: str = "cpu",
        attention: str | None = None,
        allow_remote_code: bool = False,
    ) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.checkpoint, self.headers = checkpoint, read_headers(checkpoint)
        if any(checkpoint.glob("*.py")) and allow_remote_code:
            raise cannot(
                checkpoint, "its layers are Python code of the checkpoint's own", code="model.allow_remote_code"
            )
        self.config = config or AutoConfig.from_pretrained(checkpoint, local_files_only=True)
        known = AutoModelForCausalLM._model_mapping
        if type(self.config) not in known:
            raise cannot(checkpoint, "transformers has no causal language model of its class")
        self._class: Any = known[type(self.config)]
        self.count = int(self.config.num_hidden_layers)
        inside = [match for match in map(_IN_A_LAYER.match, self.headers) if match]
        stacks = {match["stack"] for match in inside}
        if len(stacks) != 1:
            raise cannot(checkpoint, "its tensors are not in one list of decoder layers", stacks=sorted(stacks))
        self.stack = stacks.pop()
        self._root = self.stack.removesuffix("layers")
        found = {int(match["index"]) for match in inside}
        if found != set(range(self.count)):
            raise cannot(checkpoint, "layers are missing or left over", layers=self.count, found=len(found))
        self._dtype, self._device, self._attention = dtype, device, attention

    # --- tensors --------------------------------------------------------------------------------

    def outer_names(self) -> list[str]:
        """Tensors outside the layers, as the whole model's state has them: embedding, then norm and head."""
        names = [name for name in self.headers if not _IN_A_LAYER.match(name)]
        return sorted(names, key=lambda name: (not name.endswith(_EMBEDDING), name.startswith(_HEAD), name))

    def layer_names(self, index: int) -> list[str]:
        """Tensors of a layer."""
        return [name for name in self.headers if name.startswith(f"{self.stack}.{index}.")]

    def read(self, names: list[str]) -> Tensors:
        """Tensors as they lie in the checkpoint; they go when they are dropped, the file's pages with them."""
        from safetensors import safe_open

        files: dict[str, list[str]] = {}
        for name in names:
            files.setdefault(self.headers[name].file, []).append(name)
        tensors: Tensors = {}
        for file, inside in files.items():
            with safe_open(self.checkpoint / file, "pt") as opened:
                tensors.update({name: opened.get_tensor(name) for name in inside})
        return tensors

    def read_layer(self, index: int) -> Tensors:
        """Tensors of a layer under the names that they have in a piece: those of layer 0."""
        return {self.inside(name, index): tensor for name, tensor in self.read(self.layer_names(index)).items()}

    def inside(self, name: str, index: int) -> str:
        """The name in a piece of what is ``name`` in the checkpoint; what is outside the layer keeps its name."""
        return _moved(name, f"{self.stack}.{index}", f"{self.stack}.0")

    def outside(self, name: str, index: int) -> str:
        """The name in the checkpoint of what a piece calls ``name``."""
        return _moved(name, f"{self.stack}.0", f"{self.stack}.{index}")

    # --- models ---------------------------------------------------------------------------------

    def layer(self, index: int, tensors: Tensors) -> Any:
        """The model of layer ``index`` with these weights (:meth:`read_layer`), de-quantized where they were not.

        Raises:
            ForgeError: ``TF-QNT-060`` the class builds this layer otherwise; ``TF-QNT-031`` tensors do not fit.
        """
        model = self._built(self._config_of([index]), {**tensors, **self._stubs()})
        ours, theirs = model.get_submodule(f"{self.stack}.0"), self.skeleton.get_submodule(f"{self.stack}.{index}")
        if (difference := _difference(ours, theirs)) is not None:
            raise cannot(self.checkpoint, f"layer {index} by itself is another one: {difference}")
        return model

    def outer(self, tensors: Mapping[str, torch.Tensor], head: str = f"{_HEAD}.weight") -> Any:
        """The model without layers; what is not given of embedding, norm and head are stubs of a few rows.

        Args:
            tensors: of :meth:`outer_names`; an embedding may have other rows than the checkpoint's.
            head: the tensor that is the output head's weight.
        """
        tables = {head: None, self.embedding_name: None}
        rest = {name: tensor for name, tensor in tensors.items() if name not in tables}
        model = self._built(self._config_of([]), {**self._stubs(), **rest})
        # put in afterwards: for a table of so many rows transformers would make the other as large
        if head in tensors:
            self._put(model.get_output_embeddings(), "out_features", tensors[head])
        elif self.embedding_name in tensors:
            self._put(model.get_input_embeddings(), "num_embeddings", tensors[self.embedding_name])
        return model

    def embedding(self, ids: torch.Tensor) -> tuple[Any, torch.Tensor]:
        """The model without layers whose embedding has the rows of int64 ``ids`` alone, and ``ids`` by these rows.

        A table of the whole vocabulary is never in memory.
        """
        rows, places = torch.unique(ids, return_inverse=True)
        name = self.embedding_name
        with quiet():
            return self.outer({name: self.read([name])[name][rows]}), places

    def _stubs(self) -> Tensors:
        """What a model has outside its layers where nothing is embedded and no logit is asked for."""
        width = int(self.config.hidden_size)
        stub = torch.zeros(_STUB_ROWS, width)
        return {self.embedding_name: stub, f"{_HEAD}.weight": stub.clone(), self.norm_name: torch.ones(width)}

    def _put(self, module: Any, rows: str, weight: torch.Tensor) -> None:
        module.weight = torch.nn.Parameter(weight.to(self._device, self._dtype), requires_grad=False)
        setattr(module, rows, len(weight))

    @property
    def head_name(self) -> str:
        """The tensor of the output head: the embedding where they are tied."""
        own = f"{_HEAD}.weight"
        return own if own in self.headers else f"{self._root}{_EMBEDDING}"

    @property
    def embedding_name(self) -> str:
        return f"{self._root}{_EMBEDDING}"

    @property
    def norm_name(self) -> str:
        return f"{self._root}{_NORM}"

    @cached_property
    def skeleton(self) -> Any:
        """The whole model, its weights without memory."""
        with torch.device("meta"), quiet():
            return self._class(copy.deepcopy(self.config))

    def _config_of(self, layers: list[int]) -> Any:
        """The configuration of a model of some of the layers, with a vocabulary of a few words."""
        config = copy.deepcopy(self.config)
        for key, value in vars(self.config).items():
            if isinstance(value, (list, tuple)) and len(value) == self.count:
                setattr(config, key, [value[index] for index in layers])
        if hasattr(config, "mlp_only_layers"):  # a list of numbers, and one sparse layer in so many
            dense = [
                index in (self.config.mlp_only_layers or ()) or (index + 1) % self.config.decoder_sparse_step
                for index in layers
            ]
            config.mlp_only_layers, config.decoder_sparse_step = (
                [place for place, is_dense in enumerate(dense) if is_dense],
                1,
            )
        config.num_hidden_layers, config.vocab_size, config.tie_word_embeddings = len(layers), _STUB_ROWS, False
        for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
            setattr(config, key, None)
        return config

    def _built(self, config: Any, tensors: Tensors) -> Any:
        model, info = self._class.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=self._dtype,
            output_loading_info=True,
            **({} if self._attention is None else {"attn_implementation": self._attention}),
        )
        refuse_misfits(self.checkpoint, info)
        return model.eval().to(self._device)


def cannot(checkpoint: Path, reason: str, **numbers: Any) -> ForgeError:
    """The refusal of a checkpoint that has to be loaded whole."""
    return ForgeError(
        "TF-QNT-060",
        f"The model cannot be taken layer by layer: {reason}",
        asked=str(checkpoint),
        numbers=numbers,
        why="Each decoder layer is computed as a model of its own, with the class's own code in transformers.",
        remedies=["model.loading: whole, on a machine with memory for the whole model in float32"],
    )


def _moved(name: str, here: str, there: str) -> str:
    return f"{there}{name[len(here) :]}" if name == here or name.startswith(f"{here}.") else name


def _difference(ours: torch.nn.Module, theirs: torch.nn.Module) -> str | None:
    """What two modules differ in beside their weights' values; None: nothing."""
    left, right = ({name: _facts(module) for name, module in side.named_modules()} for side in (ours, theirs))
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            return f"{name or 'the layer'} is {left.get(name)} and not {right.get(name)}"
    return None


def _facts(module: torch.nn.Module) -> dict[str, Any]:
    plain = (int, float, str, bool, type(None), tuple, list)
    facts = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, plain) and not key.startswith("_") and key not in _PLACE
    }
    shapes = {name: tuple(value.shape) for name, value in module.named_parameters(recurse=False)}
    return {"class": type(module).__name__, **facts, **shapes}


# --- computing with a piece ------------------------------------------------------------------------


@contextlib.contextmanager
def _hooked(
    module: Any, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> Iterator[None]:
    handles = []
    if before is not None:
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    if after is not None:
        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_layer(model: Any, states: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """States [B, S, D] through the layer of a piece; hooks that are on its modules see what the whole model's would."""
    layer, seen = model.base_model.layers[0], {}

    def put(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # some classes scale what they are given as embeddings; the layer gets the states themselves
        return (states, *args[1:]), kwargs

    def take(_: Any, __: Any, output: Any) -> None:
        seen["output"] = output[0] if isinstance(output, tuple) else output

    with _hooked(layer, put, take):
        model.base_model(inputs_embeds=states, **{"use_cache": False, **arguments})
    output: torch.Tensor = seen["output"]
    return output


class _Taken(Exception):
    """Ends a forward pass where all that was wanted is there."""


def run_embedding(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """int64 [B, S] → what the first layer is given, [B, S, D]."""
    seen: dict[str, torch.Tensor] = {}

    def take(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["states"] = args[0]
        raise _Taken

    with _hooked(model.base_model.norm, take), contextlib.suppress(_Taken):
        model.base_model(ids, use_cache=False)
    return seen["states"]


def run_head(model: Any, states: torch.Tensor, last: int = 0) -> torch.Tensor:
    """The last layer's states [B, S, D] → logits [B, S, V]; of the last rows only with ``last``."""

    def put(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (states, *args[1:]), kwargs

    with _hooked(model.base_model.norm, put):
        logits: torch.Tensor = model(inputs_embeds=states, use_cache=False, logits_to_keep=last).logits
    return logits
