"""``tensorrt``: a TensorRT plan of the plugin graph, built on the GPU that it serves, run by trtforge's own runtime."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from trtforge.ground.section import Section
from trtforge.ground.units import Size
from trtforge.targets.base import Target
from trtforge.targets.record import Count, Part, ServedRecord

#: types of a network's inputs, as ONNX names them
InputType = Literal["FLOAT", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "INT32", "INT64", "BOOL"]
#: letters of their dimensions, as the graph names them
InputSize = Literal["T", "B", "B_plus_1", "M", "L", "Q", "W", "N"]


class TensorRt(Section):
    """What only the tensorrt target has: how TensorRT's builder works and what the plan holds."""

    optimization_level: Annotated[int, Field(ge=0, le=5, strict=True)] = Field(
        3, description="0 builds fastest, 5 tries most kernels"
    )
    workspace: Size | None = Field(None, description="Memory that a kernel may use beside tensors; null: the GPU's")
    weight_streaming: bool = Field(False, description="Weights may stay in host memory and come as they are needed")
    strip_weights: bool = Field(False, description="The plan leaves the weights out; they are put back at load")
    refit: bool = Field(False, description="The plan takes other weights later, which costs some kernels")


class Plugins(Part):
    """The library of plugins that the plan calls, and the release of trtforge that it is of."""

    abi: str
    version: str


class Input(Part):
    """An input of the network."""

    name: str
    type: InputType
    shape: list[InputSize | Count]

    @field_validator("shape")
    @classmethod
    def _has_dimensions(cls, value: list[InputSize | Count]) -> list[InputSize | Count]:
        if not value:
            raise ValueError("an input has one dimension or more")
        return value


class Sizes(Part):
    """Columns of a full block table, blocks for the rows that pad a step, and rows of logits of a step."""

    table: Count
    padding_blocks: Count
    rows: Count


class Options(Part):
    """What the plan was asked to leave out or to stream."""

    strip_weights: bool
    weight_streaming: bool


class Stamp(Part):
    """``tensorrt``: what the plan was built with, what it is and what it takes.

    ``aliased_io``: TensorRT was told that pools are updated in place; ``pool_copy_bytes`` are copied in a step all the
    same, None where the plan does not say; ``decode_buckets`` are batches of decode steps.
    """

    version: str
    gpu_architecture: str
    plugins: Plugins
    plan: str
    plan_bytes: int
    layers: int
    aliased_io: bool
    pool_copy_bytes: int | None = None
    inputs: list[Input]
    outputs: list[str]
    sizes: Sizes
    decode_buckets: list[Count]
    options: Options

    @field_validator("inputs")
    @classmethod
    def _named_once(cls, value: list[Input]) -> list[Input]:
        if len({item.name for item in value}) < len(value):
            raise ValueError("an input is named twice")
        return value


class TensorrtRecord(ServedRecord):
    """engine.json: the stamp beside what every engine of trtforge's own runtime states."""

    target: Literal["tensorrt"]
    tensorrt: Stamp


TENSORRT = Target(
    name="tensorrt",
    folder="tensorrt",
    made_from="graph",
    graph_mode="paged",
    runtime="trtforge",
    needs_gpu=True,
    built_for="this-gpu",
    compiled=True,
    record=TensorrtRecord,
    cuda_plugins=True,
    layouts=("native",),
    head_multiple=8,
)
