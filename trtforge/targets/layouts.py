"""Layouts of a Triton repository, one object each; the set of layouts is this registry, and no other file lists them.

The object holds the facts; ``triton_repo/layouts/NAME.py`` writes the repository. What depends on a layout asks its
object: nothing compares names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

#: what a layout serves: an engine directory of trtforge as a whole, a compiled engine, or a Hugging Face checkpoint
Served = Literal["artifact", "compiled", "checkpoint"]


@dataclass(frozen=True)
class Question:
    """How clients ask the layout: the model that answers, and its inputs for the answer's length and for a stream."""

    model: str
    tokens: str
    stream: str


@dataclass(frozen=True)
class Layout:
    """One layout.

    Args:
        serves: what lies in the folder that a repository of the layout refers to.
        question: how clients ask it over HTTP; None where the bundle says it with the model's own name.
        own_runtime: its one model, whose name is free, runs trtforge's runtime in one process; TensorRT-LLM's ranks,
            parameters and fixed names are the others'.
        chain: tokenizing, engine and detokenizing are Triton models of their own, and ``triton.launch`` says how the
            engine's ranks are started.
    """

    name: str
    serves: Served
    question: Question | None = None
    own_runtime: bool = False
    chain: bool = False

    def asked_model(self, name: str) -> str:
        """The model that clients ask in a deployment of this name."""
        return name if self.question is None else self.question.model


NATIVE = Layout("native", "artifact", own_runtime=True)
INFLIGHT_BATCHER = Layout(
    "inflight_batcher_llm", "compiled", Question("tensorrt_llm_bls", "max_tokens", "stream"), chain=True
)
LLM_API = Layout("llmapi", "checkpoint", Question("tensorrt_llm", "sampling_param_max_tokens", "streaming"))

#: by name, in the order in which they are offered
LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in (NATIVE, INFLIGHT_BATCHER, LLM_API)}

if TYPE_CHECKING:
    LayoutName = str
else:
    LayoutName = Literal[tuple(LAYOUTS)]
