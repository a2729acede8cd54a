"""Which decoders trtforge takes, and what their config.json leaves unsaid: rows of ``decoders.yaml``.

Intake, the graph and the converters read the same rows, so that a class is added in one place. What a row says is
the class's own rule in transformers; config.json is given as a plain map.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from trtforge.tables import Source, _Row

FULL, SLIDING = "full_attention", "sliding_attention"


class GgufForm(_Row):
    """How llama.cpp's files hold a class: ``general.architecture``, and whether rows of q and k are interleaved."""

    architecture: str
    interleaved: bool


class TrtllmForm(_Row):
    """What TensorRT-LLM has for a class: keys of a checkpoint's config.json for 1.2, and whether its model takes a bias
    on the output projection, and its PyTorch model the sliding window of config.json."""

    config: dict[str, Any] = Field(default_factory=dict)
    o_bias: bool = True
    window: bool = True


class Decoder(_Row):
    """One Hugging Face class. A bias is always there (true), never (false), or by a key of config.json (its name)."""

    architecture: str
    model_type: str
    family: str = Field(description="The graph module that writes it")
    qkv_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: bool = Field(False, description="RMS norms over each head of q and k, before the rotary embedding")
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
    source: str = Field(pattern=r"^https://\S+$")

    def bias(self, part: Literal["qkv", "o", "mlp"], config: Mapping[str, Any]) -> bool:
        """Whether the linears of ``part`` have biases."""
        rule: bool | str = getattr(self, f"{part}_bias")
        return bool(config.get(rule, False)) if isinstance(rule, str) else rule

    def refusal(self, config: Mapping[str, Any]) -> str | None:
        """Why a configuration cannot be computed, or None."""
        found = next((key for key in self.refused if config.get(key)), None)
        return None if found is None else f"{found} asks for {self.refused[found]}, which is not implemented"

    def layer_windows(self, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
        """The sliding window of each of ``layers`` layers, 0 where a layer sees everything.

        ``switched`` is Qwen's rule: nothing slides unless ``use_sliding_window``; then the layers do that
        ``layer_types`` names, or without it those from ``max_window_layers`` on.

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
        if self.window == "never" or (self.window == "switched" and not config.get("use_sliding_window", False)):
            window = None
        if window is None:
            if given is not None and SLIDING in given:
                raise ValueError(f"layer_types names {SLIDING}, and no sliding window is switched on")
            return (0,) * layers
        if self.window == "always":
            if given is not None and FULL in given:
                raise ValueError(f"layer_types names {FULL}, and {self.architecture} slides in every layer")
            return (window,) * layers
        if given is None:
            first = config.get("max_window_layers", 28)
            if isinstance(first, bool) or not isinstance(first, int) or first < 0:
                raise ValueError(f"max_window_layers must be a number of layers, not {first!r}")
            return tuple(0 if layer < first else window for layer in range(layers))
        return tuple(window if kind == SLIDING else 0 for kind in given)


class CountedType(_Row):
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


class UncountedTypes(_Row):
    """Types whose layers are something else, and keys that only their configs have; ``why`` ends a sentence."""

    why: str
    types: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()


class DecoderTable(_Row):
    """Every class, with the sources that hold for all of them."""

    as_of: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    sources: tuple[Source, ...] = Field(min_length=1)
    counted: dict[str, CountedType]
    uncounted: tuple[UncountedTypes, ...]
    rows: tuple[Decoder, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> DecoderTable:
        classes = [row.architecture for row in self.rows]
        files = [row.gguf.architecture for row in self.rows if row.gguf]
        if len(set(classes)) != len(classes) or len(set(files)) != len(files):
            raise ValueError("names of decoders repeat")
        other = [kind for row in self.uncounted for kind in row.types]
        types = [*self.counted, *(row.model_type for row in self.rows), *other]
        repeated = sorted({kind for kind in types if types.count(kind) > 1})
        if repeated:
            raise ValueError(f"types stand in more than one place: {', '.join(repeated)}")
        return self


@cache
def decoder_table() -> DecoderTable:
    """The table."""
    import yaml

    text = Path(__file__).with_name("decoders.yaml").read_text(encoding="utf-8")
    return DecoderTable.model_validate(yaml.safe_load(text))


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
