"""Every op's arguments, said once.

From these tables come the C structs (``plugins/include/trtforge/op_args.h``), their ctypes twins
(:mod:`plugins.structs`), the checks of tensors before their memory is handed over (:mod:`plugins.checked`), the fields
and tensors of the TensorRT plugins (``plugins/tensorrt/op_tables.inc``), the attributes of the ONNX operator, and the
tables of ``docs/ops.md`` and ``docs/plugins.md``. ``python scripts/op_tables.py`` writes what is a file.

A struct holds, in this order: its own size, a pointer a tensor, the row strides, sizes of 64 bits, sizes of 32 bits,
the numbers of dtypes, attributes. What changes here changes the layout, so ``ABI_VERSION`` rises with it.

Shape letters: T tokens in a step, B requests, H heads, K kv heads, E head size, N pool blocks, S slots in a block, M
blocks a request, W width of a tree mask, D width of a row, F feed-forward width, V vocabulary, L rows of logits, G
nodes of a draft tree (its root included), C candidates of a tree, X nodes expanded at a level, R rows of draft logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

#: versions of the op contracts (domain trtforge) that are run: version 2 gave a tree mask of one column a meaning, and
#: took none away; graphs are written for the last
OPS_VERSIONS: Final = (1, 2)
OPS_VERSION: Final = OPS_VERSIONS[-1]
ABI_VERSION: Final = 4
#: versions that differ from this one in how arguments are handed over only: engines stamped with them run
SAME_OPS: Final = (3, ABI_VERSION)
CUDA_ABI_VERSION: Final = 2

#: numbers of dtypes in the structs
DTYPES: Final = {"float32": 0, "bfloat16": 1, "float16": 2, "float8_e4m3fn": 3}
#: what may stand for a dtype letter: A and W are activations and weights, P a KV pool (bytes hold E4M3 bits)
FLOATS: Final = ("float32", "bfloat16", "float16")
LETTERS: Final = {"A": FLOATS, "W": FLOATS, "P": (*FLOATS, "float8_e4m3fn", "uint8")}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A pointer.

    Args:
        dtype: a type's name, ``byte`` (bool or uint8), ``words`` (four bytes), or a letter of ``LETTERS``, whose number
            is a field of the struct.
        shape: sizes, letters and products of them; of a tensor whose ``rows`` may be strided the last axis is
            contiguous and the others lie evenly apart. Others are contiguous.
        optional: what null means; "" where it must be given.
        flag: the plugin's field that says whether it is given.
        list_of: the size field that counts the tensors of a list (an array of pointers on the host).
    """

    name: str
    dtype: str
    shape: str
    doc: str = ""
    use: Literal["in", "out", "state"] = "in"
    rows: bool = False
    optional: str = ""
    flag: str = ""
    list_of: str = ""

    @property
    def axes(self) -> list[str]:
        return [axis.strip() for axis in self.shape.strip("[]").split(",") if axis.strip()]


@dataclass(frozen=True, slots=True)
class Size:
    """A dimension: the shape letter that it is the value of ("" for none)."""

    name: str
    letter: str = ""
    wide: bool = False
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A number that is no dimension of a tensor, or that must be known before there are tensors.

    Args:
        kind: int32 or float32.
        standard: value when it is left out; None where it must be given.
        minimum, maximum: bounds, inclusive, of the plugin's field. Without a maximum it is no field of the plugin.
        multiple: an integer is a multiple of this.
        letter: shape letter that it is the value of.
    """

    name: str
    kind: Literal["int32", "float32"] = "int32"
    standard: float | None = None
    minimum: float = 0
    maximum: float | None = None
    multiple: int = 1
    letter: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Plugin:
    """How TensorRT sees an op, where that is not what the struct says.

    Args:
        inputs: lines of the contract for inputs that only the plugin has, behind the required ones.
        renamed: outputs whose name there is another.
        outputs_first: outputs stand in front of what is updated in place.
        sizes: sizes of the struct that are fields.
    """

    version: str = "1"
    inputs: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    outputs_first: bool = False
    sizes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An op: C function ``trtforge_<name>`` with one argument, ``struct trtforge_<name>_args``."""

    name: str
    title: str
    tensors: tuple[Tensor, ...]
    sizes: tuple[Size, ...] = ()
    dtypes: dict[str, str] = field(default_factory=dict)
    attributes: tuple[Attribute, ...] = ()
    plugin: Plugin | None = None

    @property
    def standards(self) -> dict[str, float]:
        """By name what attributes are when they are left out, where that is not zero."""
        return {item.name: item.standard for item in self.attributes if item.standard}

    @property
    def plugin_attributes(self) -> tuple[Attribute, ...]:
        """The fields of the plugin that are numbers, in its order."""
        more = self.plugin.sizes if self.plugin else ()
        return tuple(a for a in self.attributes if a.maximum is not None) + more

    @property
    def flags(self) -> tuple[str, ...]:
        """The fields of the plugin that say which optional inputs are given and whether outputs alias inputs."""
        written = ("aliased",) if any(t.use == "state" for t in self.tensors) else ()
        known = (*(self.plugin.inputs if self.plugin else ()), *(t.flag for t in self.tensors))
        named = (text.partition(" if ")[2] or (text if text.startswith("has_") else "") for text in known)
        return (*dict.fromkeys(name for name in named if name), *written)

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Names and kinds of the struct's fields behind its size: pointer, int64, int32 or float32."""
        strides = [(f"{t.name}_stride", "int64") for t in self.tensors if t.rows]
        wide = [(s.name, "int64") for s in self.sizes if s.wide]
        narrow = [(s.name, "int32") for s in self.sizes if not s.wide]
        numbers = [(name, "int32") for name in self.dtypes.values()]
        return (
            *((t.name, "pointer") for t in self.tensors), *strides, *wide, *narrow, *numbers,
            *((a.name, a.kind) for a in self.attributes),
        )  # fmt: skip


_TREE: Final = 64
_LIMIT: Final = 2**31 - 1
_HEADS: Final = (
    Attribute("num_heads", minimum=1, maximum=1024, letter="H", doc="H, a multiple of K"),
    Attribute("num_kv_heads", minimum=1, maximum=1024, letter="K", doc="K"),
    Attribute("head_size", minimum=64, maximum=256, multiple=8, letter="E", doc="E, a multiple of 8"),
)
_EPS: Final = Attribute("eps", "float32", doc=">= 0")

PAGED_ATTENTION: Final = Op(
    "paged_attention",
    "PagedAttention",
    (
        Tensor("query", "A", "[T, H*E]", rows=True, doc="a slice of a packed qkv will do"),
        Tensor("key", "A", "[T, K*E]", rows=True),
        Tensor("value", "A", "[T, K*E]", rows=True),
        Tensor("kv_pool", "P", "[N, 2, K, S, E]", use="state", doc="second axis: 0 keys, 1 values"),
        Tensor("output", "A", "[T, H*E]", use="out", rows=True, doc="may be query; must not overlap key or value"),
        Tensor("query_start", "int32", "[B+1]", doc="starts at 0, never decreases, ends at T"),
        Tensor("sequence_lengths", "int32", "[B]", doc="context length, this step's tokens included"),
        Tensor("block_table", "int32", "[B, M]", rows=True,
               doc="pool block of positions S·i … S·i+S−1; entries that are not needed may be anything (−1)"),
        Tensor("tree_mask", "byte", "[T, W]", rows=True, optional="plain causality", flag="has_tree_mask",
               doc="W at least the most new tokens of a request, or 1: plain causality"),
        Tensor("sinks", "float32", "[H]", optional="none", flag="has_sinks",
               doc="an extra logit in each head's softmax denominator"),
    ),
    (
        Size("num_tokens", "T", wide=True), Size("num_requests", "B"), Size("max_blocks", "M"),
        Size("num_blocks", "N"), Size("block_size", "S", doc="16, 32, 64 or 128"), Size("tree_mask_width", "W"),
    ),
    {"A": "activation_dtype", "P": "pool_dtype"},
    (
        *_HEADS,
        Attribute("scale", "float32", 0, 0, 1e6, doc="factor on q·k; > 0 (a plugin's and a graph's 0: 1/sqrt(E))"),
        Attribute("sliding_window", "int32", 0, 0, _LIMIT, doc="positions that a query sees, its own included; 0: all"),
        Attribute("soft_cap", "float32", 0, 0, 1e6, doc="cap of the scores; 0: none"),
        Attribute("k_scale", "float32", 1, doc="FP8 pools: stored = e4m3(x / scale); 1 for the others"),
        Attribute("v_scale", "float32", 1, doc="as k_scale"),
    ),
    Plugin(
        "2",
        ("longest_query int32 [Q] of which the shape is read", "k_scale float32 [] if has_scales",
         "v_scale float32 [] if has_scales"),
        {"output": "attention"},
        outputs_first=True,
    ),
)  # fmt: skip

EAGLE_TREE_BUILD: Final = Op(
    "eagle_tree_build",
    "EagleTreeBuild",
    (
        Tensor("draft_logits", "A", "[B, R, V]", rows=True,
               doc="R = 1 at level 0, X after it; row r belongs to `frontier[b, r]`"),
        Tensor("root_tokens", "int32", "[B]", doc="the last accepted token: node 0"),
        Tensor("draft_to_target", "int32", "[V]", optional="ids are the target's", flag="has_draft_to_target",
               doc="added to a draft token's id (EAGLE-3's `d2t`)"),
        Tensor("static_parents", "int32", "[G]", optional="a dynamic tree", flag="has_static_tree",
               doc="a fixed tree: each node's parent"),
        Tensor("static_ranks", "int32", "[G]", optional="a dynamic tree", flag="has_static_tree",
               doc="which of its parent's children a node is"),
        Tensor("candidate_tokens", "int32", "[B, C]", use="state"),
        Tensor("candidate_parents", "int32", "[B, C]", use="state", doc="a candidate, −1 the root"),
        Tensor("candidate_scores", "float32", "[B, C]", use="state"),
        Tensor("frontier", "int32", "[B, X]", use="state", doc="the candidates that the next level expands, −1 none"),
        Tensor("tokens", "int32", "[B, G]", use="out"),
        Tensor("parents", "int32", "[B, G]", use="out", doc="−1 for the root and for unused nodes"),
        Tensor("depths", "int32", "[B, G]", use="out"),
        Tensor("scores", "float32", "[B, G]", use="out"),
        Tensor("mask", "byte", "[B, G, G]", use="out", doc="ancestor or self: PagedAttention's tree mask"),
        Tensor("counts", "int32", "[B]", use="out", doc="nodes in use"),
    ),
    (Size("requests", "B"), Size("vocabulary", "V")),
    {"A": "logits_dtype"},
    (
        Attribute("top_k", minimum=1, maximum=16, doc="children drawn from each expanded node"),
        Attribute("expand", minimum=1, maximum=16, letter="X", doc="X"),
        Attribute("levels", minimum=1, maximum=16, doc="depth of the tree"),
        Attribute("total", minimum=2, maximum=_TREE, letter="G", doc="G"),
        Attribute("level", minimum=0, maximum=15, doc="of this call, below levels"),
    ),
    Plugin(),
)  # fmt: skip

EAGLE_ACCEPT: Final = Op(
    "eagle_accept",
    "EagleAccept",
    (
        Tensor("target_logits", "A", "[B*G, V]", rows=True, doc="one row a node"),
        Tensor("tokens", "int32", "[B, G]", doc="as EagleTreeBuild gives them"),
        Tensor("parents", "int32", "[B, G]", doc="before their children"),
        Tensor("counts", "int32", "[B]", doc="1 to G"),
        Tensor("temperatures", "float32", "[B]", optional="all greedy", flag="has_sampling", doc="0 is greedy"),
        Tensor("seeds", "int64", "[B]", optional="no sampling", flag="has_sampling"),
        Tensor("root_positions", "int32", "[B]", optional="no sampling", flag="has_sampling",
               doc="position of the root token in its sequence"),
        Tensor("path", "int32", "[B, G]", use="out", doc="the accepted nodes from node 0 on, then −1"),
        Tensor("lengths", "int32", "[B]", use="out", doc="nodes on the path: 1 to G"),
        Tensor("emitted", "int32", "[B, G]", use="out",
               doc="the tokens of path[1:] and then the bonus token (so `lengths` tokens), then −1"),
        Tensor("bonus", "int32", "[B]", use="out"),
    ),
    (Size("requests", "B"), Size("vocabulary", "V")),
    {"A": "logits_dtype"},
    (Attribute("total", minimum=1, maximum=_TREE, letter="G", doc="G"),),
    Plugin(),
)  # fmt: skip

KV_MOVE: Final = Op(
    "kv_move",
    "PagedKVMove",
    (
        Tensor("block_table", "int32", "[B, M]", rows=True),
        Tensor("base_positions", "int32", "[B]", doc="position of tree node 0"),
        Tensor("path", "int32", "[B, G]", doc="as EagleAccept gives it: rising along a row"),
        Tensor("lengths", "int32", "[B]", doc="nodes on the path; 0 skips the request"),
        Tensor("pools", "P", "[N, 2, K, S, E]", use="state", list_of="num_pools",
               doc="one a layer, of one shape and type"),
    ),
    (
        Size("num_pools"), Size("num_blocks", "N"), Size("requests", "B"), Size("max_blocks", "M"),
        Size("path_width", "G"), Size("block_size", "S", doc="16, 32, 64 or 128"),
    ),
    {"P": "pool_dtype"},
    _HEADS[1:],
    Plugin(sizes=(Attribute("num_pools", minimum=1, maximum=512),)),
)  # fmt: skip

RMS_NORM: Final = Op(
    "rms_norm",
    "residual += x when there is one (rounded to its type), then out = rms(that) · (weight + weight_offset)",
    (
        Tensor("x", "A", "[T, D]", rows=True),
        Tensor("residual", "A", "[T, D]", use="state", rows=True, optional="x itself is normed"),
        Tensor("weight", "W", "[D]"),
        Tensor("out", "A", "[T, D]", use="out", rows=True, doc="may be x"),
    ),
    (Size("rows", "T", wide=True), Size("width", "D", wide=True)),
    {"A": "dtype", "W": "weight_dtype"},
    (_EPS, Attribute("weight_offset", "float32", 0)),
)

ROPE: Final = Op(
    "rope",
    "half-rotation RoPE in place",
    (
        Tensor("query", "A", "[T, H*E]", use="state", rows=True),
        Tensor("key", "A", "[T, K*E]", use="state", rows=True),
        Tensor("cosine", "float32", "[T, rotary/2]"),
        Tensor("sine", "float32", "[T, rotary/2]"),
    ),
    (Size("tokens", "T", wide=True), Size("rotary", "rotary", doc="the part of a head that is rotated, even")),
    {"A": "dtype"},
    _HEADS,
)

SILU_MUL: Final = Op(
    "silu_mul",
    "out[t, f] = silu(x[t, f]) · x[t, F + f]",
    (
        Tensor("x", "A", "[T, 2*F]", rows=True, doc="gate | up"),
        Tensor("out", "A", "[T, F]", use="out", rows=True),
    ),
    (Size("rows", "T", wide=True), Size("width", "F", wide=True)),
    {"A": "dtype"},
)

FP8_FAKE_QUANT: Final = Op(
    "fp8_fake_quant",
    "out = e4m3(x / scale), saturating, times scale when dequantize",
    (Tensor("x", "A", "[D]"), Tensor("out", "A", "[D]", use="out", doc="may be x")),
    (Size("count", "D", wide=True),),
    {"A": "dtype"},
    (Attribute("dequantize", "int32", 1), Attribute("scale", "float32")),
)

NVFP4_FAKE_QUANT: Final = Op(
    "nvfp4_fake_quant",
    "dynamic NVFP4 fake quantization along rows in blocks of 16; scale is the tensor's amax / (6 · 448)",
    (Tensor("x", "A", "[T, D]", rows=True), Tensor("out", "A", "[T, D]", use="out", rows=True, doc="may be x")),
    (Size("rows", "T", wide=True), Size("width", "D", wide=True)),
    {"A": "dtype"},
    (Attribute("scale", "float32"),),
)

EMBEDDING: Final = Op(
    "embedding",
    "out[t] = table[ids[t]], converted",
    (
        Tensor("table", "W", "[V, D]"),
        Tensor("ids", "int64", "[T]"),
        Tensor("out", "A", "[T, D]", use="out", rows=True),
    ),
    (Size("vocabulary", "V", wide=True), Size("tokens", "T", wide=True), Size("width", "D", wide=True)),
    {"W": "table_dtype", "A": "dtype"},
)

ARGMAX_LOGSUMEXP: Final = Op(
    "argmax_logsumexp",
    "of each row the index of the first maximum, its value, and log Σ exp",
    (
        Tensor("logits", "float32", "[L, V]", rows=True),
        Tensor("index", "int64", "[L]", use="out", optional="not wanted"),
        Tensor("maximum", "float32", "[L]", use="out", optional="not wanted"),
        Tensor("logsumexp", "float32", "[L]", use="out", optional="not wanted"),
    ),
    (Size("rows", "L", wide=True), Size("width", "V", wide=True)),
)

INT4_LINEAR: Final = Op(
    "int4_linear",
    "out = x Wᵀ + bias with W[n, k] = scales[n, k / group] · q[n, k], q in −8 … 7; a row's bits depend on it alone",
    (
        Tensor("x", "A", "[T, inputs]", rows=True),
        Tensor("weights", "words", "[panels, inputs/8, 16]", doc="panels of 16 outputs (int4_kernels.hpp says how)"),
        Tensor("scales", "float32", "[panels, inputs/group, 16]"),
        Tensor("bias", "float32", "[outputs]", optional="none"),
        Tensor("out", "W", "[T, outputs]", use="out", rows=True),
    ),
    (
        Size("rows", "T", wide=True), Size("outputs", "outputs", wide=True), Size("inputs", "inputs", wide=True),
        Size("group", "group", wide=True, doc="a multiple of 8 that divides inputs"),
    ),
    {"A": "x_dtype", "W": "out_dtype"},
)  # fmt: skip

COPY_BLOCKS: Final = Op(
    "copy_blocks",
    "whole pool blocks, pair after pair: destination = source",
    (
        Tensor("kv_pool", "byte", "[bytes]", use="state", doc="N blocks of any type"),
        Tensor("pairs", "int64", "[P, 2]", doc="(source, destination)"),
    ),
    (Size("block_bytes", wide=True), Size("num_blocks", "N", wide=True), Size("count", "P", wide=True)),
)

#: what the host library has
OPS: Final = (
    PAGED_ATTENTION, EAGLE_TREE_BUILD, EAGLE_ACCEPT, KV_MOVE, COPY_BLOCKS, RMS_NORM, ROPE, SILU_MUL, FP8_FAKE_QUANT,
    NVFP4_FAKE_QUANT, EMBEDDING, ARGMAX_LOGSUMEXP, INT4_LINEAR,
)  # fmt: skip
#: what the CUDA library and the TensorRT plugins have, in the order of the plugins' contract
DEVICE_OPS: Final = (PAGED_ATTENTION, EAGLE_TREE_BUILD, EAGLE_ACCEPT, KV_MOVE)

#: Beside an op's arguments what only a GPU needs: ``struct trtforge_cuda_call``.
CUDA_CALL: Final = (
    ("stream", "pointer", "cudaStream_t; null is the default stream"),
    ("workspace", "pointer", "device memory, 256-byte aligned (PagedAttention only)"),
    ("k_scale", "float const*", "null (1), or one float on the device; the op's own k_scale is not read"),
    ("v_scale", "float const*", ""),
    ("status", "int32_t*", "null (indices are trusted), or eight int32 on the device (checked mode)"),
    ("workspace_bytes", "int64", ""),
    ("max_new_tokens", "int32", "0: unknown"),
    ("device", "int32", "ordinal"),
    ("multiprocessors", "int32", "0: ask the device; else plan as if it had so many"),
)
