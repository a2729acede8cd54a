"""Which decoders trtforge takes, and what their config.json leaves unsaid: rows of ``decoders.yaml``.

Intake, the graph and the converters read the same rows, so that a class is added in one place. What a row says is
the class's own rule in transformers; config.json is given as a plain map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from trtforge.ground.rows import Row, read_table
from trtforge.tables import DAY, LINK, Source, refuse_repeats

FULL, SLIDING = "full_attention", "sliding_attention"


def truth(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """A yes or no of a configuration; null is no, as in transformers.

    Raises:
        ValueError: it is neither; a text such as "false" would count as yes.
    """
    value = config.get(key, default)
    if value is not None and value not in (True, False):
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return bool(value)


class GgufForm(Row):
    """How llama.cpp's files hold a class: ``general.architecture``, and whether rows of q and k are interleaved."""

    architecture: str
    interleaved: bool


class TrtllmForm(Row):
    """What TensorRT-LLM 1.2 has for a class: whether its engines and its LLM API know it, keys of a checkpoint's
    config.json, and whether its model takes a bias on the output projection, and its PyTorch model the sliding window
    of config.json. ``drafter`` is the class of what drafts beside it inside an engine; None: nothing does."""

    drafter: str | None = None
    engine: bool = True
    llm_api: bool = True
    config: dict[str, Any] = Field(default_factory=dict)
    o_bias: bool = True
    window: bool = True


class NopeRule(Row):
    """Layers without rotary embedding: config.json's list of 1 (rotates) and 0 by layer, or else one layer in so many.

    ``every`` is the class's own interval where config.json has neither key.
    """

    layers: str
    interval: str
    every: int = Field(gt=0)


class FactorKeys(Row):
    """Keys of config.json with the numbers that a class multiplies its embeddings, its scores (in place of one over
    the root of the head size) and the results of attention and MLP by, and divides its logits by."""

    embedding: str
    attention: str
    residual: str
    logits: str


@dataclass(frozen=True)
class Factors:
    """What embeddings, results of attention and MLP, and logits are multiplied by, and what the scores are (None: one
    over the root of the head size)."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None


class Decoder(Row):
    """One Hugging Face class. A bias is always there (true), never (false), or by a key of config.json (its name)."""

    architecture: str
    model_type: str
    family: str = Field(description="The graph module that writes it")
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool | Literal["width"] = Field(
        False,
        description="RMS norms of q and k before the rotary embedding: over each head (true), over all of them (width)",
    )
    norms: Literal["pre", "post"] = Field(
        "pre", description="Whether a norm is in front of attention and MLP or behind"
    )
    norm_eps: float = Field(1e-6, description="The class's rms_norm_eps")
    fused: bool = Field(False, description="q, k and v are one linear (qkv_proj), gate and up another (gate_up_proj)")
    tied: bool = Field(False, description="The class's tie_word_embeddings")
    rope_theta: float = Field(10000.0, description="The class's base of the rotary embedding")
    rope_types: tuple[str, ...] = Field(
        ("default", "linear", "llama3", "yarn"), description="Scalings of the rotary embedding that the class has"
    )
    rope_names: dict[str, str] = Field(default_factory=dict, description="Other names of rope types in its config.json")
    partial_rotary: bool = Field(False, description="partial_rotary_factor of each head is rotated, the rest is not")
    nope: NopeRule | None = Field(None, description="Layers that rotate nothing")
    factors: FactorKeys | None = None
    outlier_keys: tuple[Source, ...] = Field(
        (), description="Who reports that its keys have outliers which 8 bits do not bear"
    )
    window: Literal["never", "always", "switched"]
    default_window: int | None = Field(None, description="The class's sliding_window where config.json has no key")
    head_dim: int | None = Field(None, description="The class's head_dim; null: hidden_size / num_attention_heads")
    max_positions: int = Field(description="The class's max_position_embeddings")
    refused: dict[str, str] = Field(default_factory=dict, description="Keys whose meaning is not implemented: what")
    gguf: GgufForm | None = None
    trtllm: TrtllmForm = TrtllmForm()
    serves: str
    source: str = Field(pattern=LINK)

    def bias(self, part: Literal["qkv", "o", "mlp"], config: Mapping[str, Any]) -> bool:
        """Whether the linears of ``part`` have biases.

        Raises:
            ValueError: the key that says so holds no truth value.
        """
        rule: bool | str = getattr(self, f"{part}_bias")
        return truth(config, rule, False) if isinstance(rule, str) else rule

    def read_factors(self, config: Mapping[str, Any]) -> Factors:
        """The numbers that the class multiplies by.

        Raises:
            ValueError: one is no positive number; says which.
        """
        if self.factors is None:
            return Factors()
        found = {}
        for part, key in self.factors.model_dump().items():
            value = config.get(key, 1.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(f"{key} must be a positive number, not {value!r}")
            found[part] = float(value)
        return Factors(found["embedding"], found["residual"], 1.0 / found["logits"], found["attention"])

    def rotates(self, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
        """Which of ``layers`` layers rotate queries and keys.

        Raises:
            ValueError: the keys are no such list or interval; says which.
        """
        if self.nope is None:
            return (True,) * layers
        given, interval = config.get(self.nope.layers), config.get(self.nope.interval, self.nope.every)
        if given is not None:
            if not isinstance(given, list) or len(given) < layers or any(value not in (0, 1) for value in given):
                raise ValueError(f"{self.nope.layers} must be 0 or 1 for each of {layers} layers")
            return tuple(bool(value) for value in given[:layers])
        if isinstance(interval, bool) or not isinstance(interval, int) or interval <= 0:
            raise ValueError(f"{self.nope.interval} must be a number of layers, not {interval!r}")
        return tuple((layer + 1) % interval != 0 for layer in range(layers))

    def rotary_size(self, config: Mapping[str, Any], head_size: int) -> int:
        """How many values of a head are rotated, the first ones.

        Raises:
            ValueError: the class has no such factor, or it is none of an even number of values.
        """
        given = [config.get("partial_rotary_factor")]
        for section in (config.get("rope_scaling"), config.get("rope_parameters")):
            given.append(section.get("partial_rotary_factor") if isinstance(section, Mapping) else None)
        factor = next((value for value in given[::-1] if value is not None), 1.0)
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor <= 1:
            raise ValueError(f"partial_rotary_factor must be a number over 0 up to 1, not {factor!r}")
        if factor != 1 and not self.partial_rotary:
            raise ValueError(f"partial_rotary_factor is {factor}, and {self.architecture} rotates whole heads")
        size = int(head_size * factor)
        if size < 2 or size % 2:
            raise ValueError(f"partial_rotary_factor {factor} of heads of {head_size} is no even number of values")
        return size

    def refusal(self, config: Mapping[str, Any]) -> str | None:
        """Why a configuration cannot be computed, or None."""
        found = next((key for key in self.refused if config.get(key)), None)
        return None if found is None else f"{found} asks for {self.refused[found]}, which is not implemented"

    def layer_windows(self, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
        """The sliding window of each of ``layers`` layers, 0 where a layer sees everything.

        ``switched``: nothing slides unless ``use_sliding_window``; then the layers do that ``layer_types`` names, or
        without it those that rotate nothing, or in a class where all rotate those from ``max_window_layers`` on.

        Raises:
            ValueError: the keys are no such rule, or contradict each other; says which.
        """
        given = config.get("layer_types")
        if given is not None:
            good = isinstance(given, list) and len(given) == layers and set(map(str, given)) <= {FULL, SLIDING}
            if not good:
                raise ValueError(f"layer_types must name {FULL} or {SLIDING} for each of {layers} layers")
        window = config.get("sliding_window", self.default_window)
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window <= 0):
            raise ValueError(f"sliding_window must be a positive integer, not {window!r}")
        if self.window == "never" or (self.window == "switched" and not truth(config, "use_sliding_window", False)):
            window = None
        if window is None:
            if given is not None and SLIDING in given:
                raise ValueError(f"layer_types names {SLIDING}, and no sliding window is switched on")
            return (0,) * layers
        if self.window == "always":
            if given is not None and FULL in given:
                raise ValueError(f"layer_types names {FULL}, and {self.architecture} slides in every layer")
            return (window,) * layers
        if given is None and self.nope is not None:
            return tuple(0 if rotates else window for rotates in self.rotates(config, layers))
        if given is None:
            first = config.get("max_window_layers", 28)
            if isinstance(first, bool) or not isinstance(first, int) or first < 0:
                raise ValueError(f"max_window_layers must be a number of layers, not {first!r}")
            return tuple(0 if layer < first else window for layer in range(layers))
        return tuple(window if kind == SLIDING else 0 for kind in given)


class CountedType(Row):
    """A ``model_type`` that no row has and the planner counts; see the table's head for the fields."""

    experts: bool = False
    qkv_bias: bool = False
    o_bias: bool = True
    qk_norm: bool = False
    norms: Literal[2, 4] = 2
    tied: bool = False
    switched: bool = False
    window: int | None = None
    head_dim: int | None = None
    full_every: int | None = Field(None, ge=2)


class UncountedTypes(Row):
    """Types whose layers are something else, and keys that only their configs have; ``why`` ends a sentence."""

    why: str
    types: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


class DecoderTable(Row):
    """Every class, with the sources that hold for all of them."""

    as_of: str = Field(pattern=DAY)
    sources: tuple[Source, ...] = Field(min_length=1)
    counted: dict[str, CountedType]
    uncounted: tuple[UncountedTypes, ...]
    rows: tuple[Decoder, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> DecoderTable:
        classes = [row.architecture for row in self.rows]
        files = [row.gguf.architecture for row in self.rows if row.gguf]
        refuse_repeats(classes, "names of decoders repeat")
        refuse_repeats(files, "names of decoders repeat")
        other = [kind for row in self.uncounted for kind in row.types]
        types = [*self.counted, *(row.model_type for row in self.rows), *other]
        repeated = sorted({kind for kind in types if types.count(kind) > 1})
        if repeated:
            raise ValueError(f"types stand in more than one place: {', '.join(repeated)}")
        return self


@cache
def decoder_table() -> DecoderTable:
    return read_table(Path(__file__).with_name("decoders.yaml"), DecoderTable)


@cache
def known_types() -> tuple[str, ...]:
    """Every ``model_type`` that a row has or the planner counts, sorted."""
    table = decoder_table()
    return tuple(sorted({*table.counted, *(row.model_type for row in table.rows)}))


@cache
def decoders() -> dict[str, Decoder]:
    """The rows by class name, in the table's order."""
    return {row.architecture: row for row in decoder_table().rows}


def gguf_decoders() -> dict[str, Decoder]:
    """The rows that a GGUF file can hold, by llama.cpp's name (it stores Mistral's models as llama, too)."""
    return {row.gguf.architecture: row for row in decoders().values() if row.gguf}
