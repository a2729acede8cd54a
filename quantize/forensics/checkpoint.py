"""A quantized checkpoint as the rules see it: its records, and its tensors by the linear that they belong to.

Nothing here judges. A module is the path of a linear; its parts are its tensors by their last name. Fused experts of
one tensor (``experts.gate_up_proj``, ``…_blocks``, ``…_weight_scale``) are modules too. Names of a TensorRT-LLM
checkpoint's second and later ranks end in ``@rank1``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from quantize.forensics.files import Files
from quantize.forensics.layouts import FACTORS, Layout, all_parts, weight_parts
from quantize.forensics.record import Record, Scheme, read_record
from quantize.forensics.stats import READABLE, Stats, stats
from quantize.plan import QuantPlan
from trtforge.formats.table import KV_LEAVES
from trtforge.ground.safetensors_header import TensorInfo

#: types that no unquantized weight has
QUANTIZED_TYPES = frozenset({"F8_E4M3", "F8_E5M2", "F4", "I8", "U8", "I32"})
_EXPERT_STEMS = r"gate_up_proj|gate_proj|up_proj|down_proj"
_FUSED = re.compile(rf"(?P<module>.+\.(?:{_EXPERT_STEMS}))_(?P<leaf>[a-z0-9_]+)")
_BARE = re.compile(rf".+\.experts\.(?:{_EXPERT_STEMS})")
_QUANTIZER = re.compile(r"(?P<module>.+?)\.(?P<leaf>(?:weight|input|output)_quantizer\..+)")
_LAYER = re.compile(r"(?P<stack>(?:.+\.)?(?:layers|h|blocks))\.(?P<number>\d{1,6})\.(?P<rest>.+)")
_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<number>\d{1,6})\.(?P<rest>.+)")
_EMBEDDINGS = ("*embed*", "*wte", "*wpe", "*.rotary_emb*")
#: linears that loaders multiply as one, by their names below the same parent
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("to_q", "to_k", "to_v"))
#: parts that are scales whatever the record says
_LOOSE_SCALES = frozenset({"weight_scale", "weight_scale_2", "weight_scale_inv", "input_scale", "scales"})
#: bytes of scales that are always read whole, and what is read of a larger tensor where there is more
WHOLE, PIECE, PIECES = 256 << 20, 16 << 10, 16
#: the largest tensor whose values are brought from a hub
BROUGHT = 64 << 10


@dataclass(frozen=True)
class Expected:
    """What a recipe asked for: names from the format table, and the modules by plan (None: not checked).

    ``mixed`` has the ``quant_algo`` of every linear where they differ; ``quant_format`` is then one of them.
    """

    quant_format: str
    kv_cache: str
    quantized: frozenset[str] | None = None
    mixed: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def from_plan(cls, plan: QuantPlan) -> Expected:
        mixed = {name: plan.row_of(name).algorithm for name in plan.quantized} if plan.mixed else {}
        format = plan.rows[0].name if plan.rows else plan.row.name
        return cls(format, plan.kv.name, frozenset(plan.quantized), mixed)


@dataclass
class Read:
    """How much of the scales was read: bytes, of how many, and whether large ones were sampled or left out."""

    bytes: int = 0
    of: int = 0
    sampled: int = 0
    left_out: int = 0


class Checkpoint:
    """Args:
    files: its folder.
    expected: what the recipe asked for; None for one that nobody planned.
    base: the unquantized checkpoint that it was made of, where the caller names it.
    full: read every scale whole.
    """

    def __init__(
        self, files: Files, *, expected: Expected | None = None, base: Files | None = None, full: bool = False
    ) -> None:
        self.files, self.expected, self.base, self.full = files, expected, base, full
        self.read = Read()
        self._stats: dict[str, Stats | None] = {}

    @property
    def shown(self) -> str:
        return self.files.shown

    @property
    def config(self) -> Mapping[str, Any]:
        return self.files.config

    @cached_property
    def record(self) -> Record | None:
        """What it says of its quantization."""
        return read_record(self.files.json, self.files.has)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.files.weights.tensors

    @property
    def bare(self) -> bool:
        """Whether there is a configuration and no weights at all."""
        weights = self.files.weights
        return not weights.tensors and not weights.damaged and weights.index is None and weights.bad_index is None

    @property
    def is_trtllm(self) -> bool:
        """Whether this is a TensorRT-LLM checkpoint."""
        config = self.files.json("config.json")
        return "architectures" not in config and isinstance(config.get("architecture"), str)

    # --- modules ------------------------------------------------------------------------------------

    @cached_property
    def parts(self) -> Mapping[str, Mapping[str, TensorInfo]]:
        """Module → its tensors by their last name."""
        found: dict[str, dict[str, TensorInfo]] = {}
        for name, info in self.tensors.items():
            module, leaf = split_name(name)
            found.setdefault(module, {})[leaf] = info
        return found

    def scheme(self, module: str) -> Scheme | None:
        """How ``module`` is stored when it is quantized, by the record."""
        return self.record.scheme_of(plain(module)) if self.record is not None else None

    def is_quantized(self, module: str) -> bool:
        """Whether the tensors of ``module`` are those of a quantized linear."""
        parts = self.parts[module]
        if (weight_parts() - {"weight"}) & parts.keys():
            return True
        weight = parts.get("weight")
        if weight is None or len(weight.shape) < 2:
            return False
        return weight.dtype in QUANTIZED_TYPES or bool((all_parts() - {"bias", *KV_LEAVES}) & parts.keys())

    def laid_out(self) -> Iterator[tuple[str, Scheme, Layout, Mapping[str, TensorInfo]]]:
        """(module, scheme, layout, tensors by their last name) of the quantized linears whose layout is known."""
        for module in self.quantized:
            scheme = self.scheme(module)
            if scheme is not None and scheme.layout is not None:
                yield module, scheme, scheme.layout, self.parts[module]

    @cached_property
    def linears(self) -> tuple[str, ...]:
        """Every linear, quantized or not, sorted; embeddings only where they are quantized."""

        def is_one(module: str, parts: Mapping[str, TensorInfo]) -> bool:
            if self.is_quantized(module):
                return True
            weight = parts.get("weight")
            two = weight is not None and (len(weight.shape) == 2 or _BARE.fullmatch(plain(module)) is not None)
            return two and not any(fnmatch.fnmatchcase(plain(module), pattern) for pattern in _EMBEDDINGS)

        return tuple(sorted(module for module, parts in self.parts.items() if is_one(module, parts)))

    @cached_property
    def quantized(self) -> tuple[str, ...]:
        """The linears that are stored quantized."""
        return tuple(module for module in self.linears if self.is_quantized(module))

    @cached_property
    def unquantized(self) -> tuple[str, ...]:
        """The linears that are stored as plain weights."""
        stored = set(self.quantized)
        return tuple(module for module in self.linears if module not in stored)

    @cached_property
    def layers(self) -> Mapping[str, Mapping[int, tuple[str, ...]]]:
        """Stack of layers → number → the modules in it."""
        found: dict[str, dict[int, list[str]]] = {}
        for module in self.parts:
            match = _LAYER.fullmatch(plain(module))
            if match is not None:
                found.setdefault(match["stack"], {}).setdefault(int(match["number"]), []).append(match["rest"])
        return {stack: {number: tuple(rest) for number, rest in rows.items()} for stack, rows in found.items()}

    @cached_property
    def experts(self) -> Mapping[tuple[str, str], Mapping[int, str]]:
        """(experts of a layer, linear of an expert) → number → module."""
        found: dict[tuple[str, str], dict[int, str]] = {}
        for module in self.linears:
            match = _EXPERT.fullmatch(module)
            if match is not None:
                found.setdefault((match["experts"], match["rest"]), {})[int(match["number"])] = module
        return found

    def fused(self) -> Iterator[tuple[str, ...]]:
        """Linears that a loader multiplies as one: all that are there of each group."""
        known = set(self.linears)
        for names in FUSED:
            for module in self.linears:
                parent, _, leaf = module.rpartition(".")
                if leaf == names[0]:
                    together = tuple(f"{parent}.{name}" for name in names)
                    present = tuple(name for name in together if name in known)
                    if len(present) > 1:
                        yield present

    # --- values -------------------------------------------------------------------------------------

    @cached_property
    def scales(self) -> Mapping[str, tuple[str, str, TensorInfo, str]]:
        """Tensor → (module, part, where, kind) of everything that multiplies or divides in quantized linears."""
        found = {}
        for module in self.quantized:
            scheme = self.scheme(module)
            known = scheme.layout.parts if scheme is not None and scheme.layout is not None else {}
            for leaf, info in self.parts[module].items():
                kind = known[leaf].kind if leaf in known else "scale" if leaf in _LOOSE_SCALES else ""
                readable = info.dtype in READABLE and (info.dtype != "U8" or kind == "exponent")
                if kind in FACTORS | {"exponent"} and readable and info.elements:
                    found[f"{module}.{leaf}"] = (module, leaf, info, kind)
        return found

    @cached_property
    def kv_scales(self) -> Mapping[str, TensorInfo]:
        """Tensor → where, of the scales of keys and values under their usual names."""
        return {
            f"{module}.{leaf}": parts[leaf]
            for module, parts in self.parts.items()
            for leaf in (*KV_LEAVES, "kv_cache_scaling_factor")
            if leaf in parts
        }

    def prepare(self) -> None:
        """Bring the values that a partial folder lacks, and decide what is sampled."""
        wanted = [item[2] for item in self.scales.values()] + list(self.kv_scales.values())
        wanted += [info for _, info in self.zeros()]
        wanted += [parts["weight_shape"] for parts in self.parts.values() if "weight_shape" in parts]
        self.read.of = sum(info.nbytes for info in wanted)
        if self.files.partial is not None:
            self.files.partial.bring([info for info in wanted if info.nbytes <= BROUGHT])

    def zeros(self) -> Iterator[tuple[str, TensorInfo]]:
        """(module, where) of the packed zero points."""
        for module in self.quantized:
            info = self.parts[module].get("qzeros")
            if info is not None:
                yield module, info

    def raw(self, info: TensorInfo) -> bytes | None:
        """The bytes of a tensor, or pieces of a large one; None where they are not here."""
        if self.files.partial is not None and not self.files.partial.holds(info):
            self.read.left_out += 1
            return None
        if self.full or self.read.of <= WHOLE or info.nbytes <= PIECE * PIECES:
            self.read.bytes += info.nbytes
            return self.files.read(info)
        self.read.sampled += 1
        self.read.bytes += PIECE * PIECES
        step = (info.nbytes // PIECES) // 64 * 64
        return b"".join(self.files.read(info, number * step, PIECE) for number in range(PIECES))

    def stats(self, name: str, info: TensorInfo) -> Stats | None:
        """Of a tensor's values; None where they are not here or of a type that holds no numbers of this kind."""
        if name not in self._stats:
            raw = self.raw(info) if info.dtype in READABLE and info.elements else None
            self._stats[name] = stats(info.dtype, raw) if raw is not None else None
        return self._stats[name]

    def scalar(self, module: str, leaf: str) -> float | None:
        """The value of a part of one element; None where it is no factor at all, which other rules say."""
        info = self.parts.get(module, {}).get(leaf)
        if info is None or info.elements != 1 or info.dtype == "U8":
            return None
        found = self.stats(f"{module}.{leaf}", info)
        return None if found is None or found.bad else found.smallest

    @property
    def experts_wanted(self) -> int | None:
        """How many experts a layer has by config.json."""
        for key in ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"):
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 1:
                return value
        return None

    @property
    def tied(self) -> bool | None:
        """Whether the head is the embedding; None where config.json leaves it to the class."""
        value = self.config.get("tie_word_embeddings")
        return value if isinstance(value, bool) else None


def plain(module: str) -> str:
    """A module's name without its rank."""
    return module.partition("@")[0]


def split_name(name: str) -> tuple[str, str]:
    """Module and part of a tensor; a rank stays with the module."""
    base, at, rank = name.partition("@")
    match = _QUANTIZER.fullmatch(base)
    if match is None and base.rpartition(".")[2] not in ("weight", "bias"):
        fused = _FUSED.fullmatch(base)
        match = fused if fused is not None and fused["leaf"] in _FUSED_PARTS else None
    if match is not None:
        return match["module"] + at + rank, match["leaf"]
    if _BARE.fullmatch(base):
        return base + at + rank, "weight"
    module, _, leaf = base.rpartition(".")
    return module + at + rank, leaf


_FUSED_PARTS = frozenset(
    {"blocks", "scales", "bias", "weight_scale", "weight_scale_2", "weight_scale_inv", "input_scale", "weight_packed"}
)
