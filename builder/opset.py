"""The ONNX operators of the ``trtforge`` domain, version 2, as registered schemas.

Policy: a graph that carries our operators passes ``onnx.checker`` and strict shape inference like any
other graph, so the schemas state every type constraint and the inference functions refuse shapes that
contradict each other. Importing this module registers nothing; :func:`register` does, once a process,
and whoever reads or writes such a graph through ``onnx`` calls it first.

Two operators:

``PagedAttention``
    Causal attention over a paged KV pool. The keys and values of the step's tokens are written into
    the pool first; the pool comes back as an output that aliases the input. Since version 2 a tree mask of one
    column stands for plain causality; graphs of version 1 are read as well.
``DynamicBlockQuantize``
    Quantizes activations to NVFP4 (E2M1 values, one E4M3 scale for 16 values, one float32 scale for
    the tensor) and de-quantizes them again. Block scales depend on the data, which QuantizeLinear
    cannot express.

``docs/graph.md`` holds the contract in words. Shape letters: T tokens, B requests, H heads, K kv
heads, E head size, N pool blocks, S slots in a block, M blocks a request, W columns of a tree mask.
"""

from __future__ import annotations

import atexit
import functools
from typing import Any

import onnx
from onnx import TensorProto, defs

from trtforge.formats.pools import pools
from trtforge.native.ops import OPS_VERSION
from trtforge.native.ops import PAGED_ATTENTION as PAGED_ATTENTION_OP
from trtforge.native.ops import Attribute as OpAttribute

DOMAIN = "trtforge"
VERSION = OPS_VERSION
PAGED_ATTENTION = "PagedAttention"
DYNAMIC_BLOCK_QUANTIZE = "DynamicBlockQuantize"
#: versions of the domain in which each operator took its meaning; the last one is written
SINCE = {PAGED_ATTENTION: (1, 2), DYNAMIC_BLOCK_QUANTIZE: (1,)}

_FLOATS = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]

_PAGED_ATTENTION_DOC = """\
Request b owns the packed tokens query_start[b] .. query_start[b+1]-1; they stand at the positions
sequence_lengths[b]-q_len .. sequence_lengths[b]-1 of its context. Their keys and values are written to slot p % S of
pool block block_table[b, p / S] for each position p; then each query attends to the positions up to its own
(with sliding_window w > 0: the last w of them). Scores are scaled by `scale` (0: 1/sqrt(head_size)), with soft_cap
c > 0 capped as c * tanh(x / c). An FP8 pool stores saturate_e4m3(x / scale) and reads value * scale. Column j of
tree_mask's row says whether that query sees the request's j-th new token, instead of causality among the new tokens;
a mask of one column stands for causality (since version 2).
Accumulation is float32. kv_pool_out aliases kv_pool; dimension 1 holds keys (0) and values (1)."""

_DYNAMIC_BLOCK_QUANTIZE_DOC = """\
Along the last axis, for each block of `block_size` values with largest magnitude m:
s = e4m3(min(m / 6 / input_scale, 448)) * input_scale, y = e2m1(x / s) * s (a zero s counts as 1), rounded to nearest
even. input_scale is the tensor's calibrated largest magnitude / (6 * 448)."""


def _attribute(name: str, kind: str, doc: str, default: Any = None) -> Any:
    if default is None:
        return defs.OpSchema.Attribute(name, getattr(defs.OpSchema.AttrType, kind), doc, required=True)
    return defs.OpSchema.Attribute(name, onnx.helper.make_attribute(name, default), doc)


def _op_attribute(attribute: OpAttribute) -> Any:
    """An attribute of an op as the operator's."""
    real = attribute.kind == "float32"
    standard = attribute.standard if attribute.standard is None else (float if real else int)(attribute.standard)
    return _attribute(attribute.name, "FLOAT" if real else "INT", attribute.doc, standard)


def _parameter(name: str, type_str: str, doc: str, *, optional: bool = False) -> Any:
    options = defs.OpSchema.FormalParameterOption
    return defs.OpSchema.FormalParameter(
        name, type_str, doc, param_option=options.Optional if optional else options.Single
    )


def _paged_attention_schema(since: int) -> Any:
    schema = defs.OpSchema(
        PAGED_ATTENTION,
        DOMAIN,
        since,
        _PAGED_ATTENTION_DOC,
        inputs=[
            _parameter("query", "T", "[T, H*E]"),
            _parameter("key", "T", "[T, K*E]"),
            _parameter("value", "T", "[T, K*E]"),
            _parameter("kv_pool", "P", "[N, 2, K, S, E]"),
            _parameter("query_start", "tensor(int32)", "[B+1]"),
            _parameter("sequence_lengths", "tensor(int32)", "[B], this step's tokens included"),
            _parameter("block_table", "tensor(int32)", "[B, M], unused entries -1"),
            _parameter("k_scale", "tensor(float)", "scalar, FP8 pools only; absent: 1", optional=True),
            _parameter("v_scale", "tensor(float)", "scalar, FP8 pools only; absent: 1", optional=True),
            _parameter("tree_mask", "M", "[T, W], W at least the longest query, or 1", optional=True),
        ],
        outputs=[
            _parameter("attention", "T", "[T, H*E]"),
            _parameter("kv_pool_out", "P", "[N, 2, K, S, E], aliases kv_pool"),
        ],
        type_constraints=[
            ("T", _FLOATS, "Activations."),
            ("P", [*_FLOATS, "tensor(float8e4m3fn)"], "Pool: as the activations or wider than none, or FP8 E4M3."),
            ("M", ["tensor(bool)", "tensor(uint8)"], "Visibility among new tokens."),
        ],
        attributes=[_op_attribute(attribute) for attribute in PAGED_ATTENTION_OP.plugin_attributes],
    )
    schema.set_type_and_shape_inference_function(_infer_paged_attention)
    return schema


def _dynamic_block_quantize_schema(since: int) -> Any:
    schema = defs.OpSchema(
        DYNAMIC_BLOCK_QUANTIZE,
        DOMAIN,
        since,
        _DYNAMIC_BLOCK_QUANTIZE_DOC,
        inputs=[
            _parameter("x", "T", "[..., K], K a multiple of block_size"),
            _parameter("input_scale", "tensor(float)", "scalar"),
        ],
        outputs=[_parameter("y", "T", "as x, every value one that NVFP4 can hold")],
        type_constraints=[("T", _FLOATS, "Activations.")],
        attributes=[_attribute("block_size", "INT", "values that share a scale", 16)],
    )
    schema.set_type_and_shape_inference_function(_infer_dynamic_block_quantize)
    return schema


def _dims(context: Any, index: int) -> list[Any] | None:
    """Dimensions of an input (an int, a name, or None for unknown), or None when the rank is unknown."""
    if index >= context.get_num_inputs() or not context.has_input(index):
        return None
    kind = context.get_input_type(index)
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    return [d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in kind.tensor_type.shape.dim]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise onnx.shape_inference.InferenceError(f"[ShapeInferenceError] {message}")


def _int_attribute(context: Any, name: str) -> int:
    attribute = context.get_attribute(name)
    _require(attribute is not None, f"attribute {name} is missing")
    return int(attribute.i)


def _expect(context: Any, index: int, name: str, expected: list[int | None]) -> None:
    dims = _dims(context, index)
    if dims is None:
        return
    agrees = len(dims) == len(expected) and all(
        want is None or not isinstance(have, int) or have == want for have, want in zip(dims, expected, strict=True)
    )
    _require(agrees, f"{name} has shape {dims}, expected {['?' if e is None else e for e in expected]}")


def _infer_paged_attention(context: Any) -> None:
    """Check the inputs' shapes against the attributes; outputs are typed as query and kv_pool."""
    heads, kv_heads = _int_attribute(context, "num_heads"), _int_attribute(context, "num_kv_heads")
    size = _int_attribute(context, "head_size")
    _require(heads > 0 and kv_heads > 0 and heads % kv_heads == 0, f"{heads} heads over {kv_heads} kv heads")
    _require(64 <= size <= 256, f"head_size {size} is outside 64..256")
    _expect(context, 0, "query", [None, heads * size])
    _expect(context, 1, "key", [None, kv_heads * size])
    _expect(context, 2, "value", [None, kv_heads * size])
    _expect(context, 3, "kv_pool", [None, 2, kv_heads, None, size])
    _expect(context, 4, "query_start", [None])
    _expect(context, 5, "sequence_lengths", [None])
    _expect(context, 6, "block_table", [None, None])
    _expect(context, 7, "k_scale", [])
    _expect(context, 8, "v_scale", [])
    _expect(context, 9, "tree_mask", [None, None])
    context.set_output_type(0, context.get_input_type(0))
    if context.get_num_outputs() > 1:
        context.set_output_type(1, context.get_input_type(3))


def _infer_dynamic_block_quantize(context: Any) -> None:
    attribute = context.get_attribute("block_size")
    block = int(attribute.i) if attribute is not None else 16
    dims = _dims(context, 0)
    if dims is not None:
        _require(len(dims) >= 1, "x is a scalar")
        _require(not isinstance(dims[-1], int) or dims[-1] % block == 0, f"{dims[-1]} is no multiple of {block}")
    _expect(context, 1, "input_scale", [])
    context.set_output_type(0, context.get_input_type(0))


@functools.cache
def register() -> None:
    """Make the operators known to ``onnx`` in this process (more calls do nothing)."""
    makers = {PAGED_ATTENTION: _paged_attention_schema, DYNAMIC_BLOCK_QUANTIZE: _dynamic_block_quantize_schema}
    for name, versions in SINCE.items():
        for since in versions:
            if not _registered(name, since):
                defs.register_schema(makers[name](since))
    # The registry outlives the interpreter and would then release our Python functions: a crash at exit.
    atexit.register(_deregister)


def _registered(name: str, since: int) -> bool:
    """Whether this very version is there: ``defs.has`` also finds an earlier one."""
    return defs.has(name, since, DOMAIN) and defs.get_schema(name, since, DOMAIN).since_version == since


def _deregister() -> None:
    for name, versions in SINCE.items():
        for since in versions:
            if _registered(name, since):
                defs.deregister_schema(name, since, DOMAIN)


#: element types of a KV pool, by the format's name in graph.json
POOL_TYPES = {name: TensorProto.DataType.Value(pool.onnx) for name, pool in pools().items()}
