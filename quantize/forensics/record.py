"""What a checkpoint says of its own quantization: the tool, how linears are stored, what is left alone, the KV cache.

Read from ``config.json`` and ``hf_quant_config.json`` (ModelOpt), ``quantize_config.json`` / ``quant_config.json``
(GPTQ and AWQ of before it was embedded), and the section ``quantization`` of a TensorRT-LLM checkpoint. Reading is
lenient: what cannot be understood is listed in :attr:`Record.faults` for a rule to report.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from quantize.forensics.layouts import (
    Layout,
    Sizes,
    compressed_layout,
    layout_named,
    modelopt_layout,
    trtllm_layout,
    unlisted,
)
from trtforge.formats.mixing import MIXED
from trtforge.formats.table import kv_modes_by
from trtforge.ground.safetensors_header import TensorInfo

#: names under which ModelOpt's own section may stand
_MODELOPT_METHODS = frozenset({"modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"})
#: classes that compressed-tensors may name as a target; everything that is a linear
_CLASSES = frozenset({"Linear", "LinearBase", "Embedding", "FusedMoE", "Attention"})


@dataclass(frozen=True)
class Scheme:
    """How the linears that ``targets`` name are stored.

    Attributes:
        layout: the row; None for an algorithm that no row knows.
        targets: exact names, patterns or classes, as the tool writes them; empty: all.
        asymmetric, ordered, static, inputs: which parts the layout has (zero points, the order of columns, a stored
            scale of inputs, quantized inputs at all).
        strategy: of compressed-tensors' scales: tensor, channel, group or block; by_token: those of inputs are computed
            for each token.
    """

    algorithm: str
    layout: Layout | None
    targets: tuple[str, ...] = ()
    group: int | None = None
    bits: int = 4
    block: tuple[int, int] | None = None
    asymmetric: bool = False
    ordered: bool = False
    static: bool = False
    inputs: bool = False
    strategy: str = ""
    by_token: bool = False

    @property
    def packed(self) -> Fraction:
        """Weights in one element of the packed tensor."""
        return Fraction(32, self.bits)

    def has(self, when: str | None) -> bool:
        """Whether parts of that condition are stored."""
        return when is None or bool(getattr(self, when))

    def sizes(self, parts: Mapping[str, TensorInfo]) -> Sizes | None:
        """N, K and the rest of a linear from its stored weight; None for a weight of another rank than the layout's."""
        layout = self.layout
        stored = parts.get(layout.weight) if layout is not None else None
        if layout is None or stored is None or not isinstance(terms := layout.weight_part.shape, tuple):
            return None
        shape, experts = stored.shape, 1
        if len(shape) == len(terms) + 1 and "E" not in terms:
            experts, shape = shape[0], shape[1:]
        if len(shape) != len(terms):
            return None
        found = {"N": 0, "K": 0, "E": experts}
        for term, length in zip(terms, shape, strict=True):
            symbol, _, below = str(term).replace("^", "/").partition("/")
            if symbol in found:
                found[symbol] = int(length * (self.packed if below == "P" else Fraction(below or 1)))
        return Sizes(found["N"], found["K"], self.group or layout.group, self.packed, self.block, found["E"])


@dataclass(frozen=True)
class Record:
    """Attributes:
    tool: modelopt, compressed-tensors, awq, gptq, fp8, mxfp4, tensorrt-llm, or the unknown method's name; "" for none.
    file: where it stands.
    ignored: patterns of what is left alone, as written.
    kv: the KV cache's algorithm.
    algorithm: the one algorithm, MIXED_PRECISION, or None.
    faults: what could not be understood, in sentences.
    """

    tool: str
    file: str
    schemes: tuple[Scheme, ...] = ()
    ignored: tuple[str, ...] = ()
    kv: str | None = None
    algorithm: str | None = None
    section: Mapping[str, Any] = field(default_factory=dict)
    embedded: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...] = ()

    @property
    def understood(self) -> bool:
        """Whether every scheme has a layout, so that tensors can be held against them."""
        return bool(self.schemes) and all(scheme.layout is not None for scheme in self.schemes)

    @cached_property
    def _exact(self) -> Mapping[str, Scheme]:
        return {target: one for one in reversed(self.schemes) for target in one.targets}

    def scheme_of(self, module: str) -> Scheme | None:
        """How ``module`` is stored when it is quantized; None where no scheme names it."""
        # a tool may name what holds the linears: the experts of a layer, say
        for end in (len(module), *reversed(_dots(module))):
            if (exact := self._exact.get(module[:end])) is not None:
                return exact
        # a scheme by patterns before one by the class of all linears, as loaders resolve them
        for one in self.schemes:
            if any(fits(self.tool, pattern, module) for pattern in one.targets if _may_fit(pattern)):
                return one
        return next((one for one in self.schemes if not one.targets or _CLASSES & set(one.targets)), None)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(pattern for pattern in self.ignored if not _may_fit(pattern))

    @cached_property
    def _wild(self) -> tuple[str, ...]:
        return tuple(pattern for pattern in self.ignored if _may_fit(pattern) or self.tool in _LOOSE)

    def ignores(self, module: str) -> bool:
        """Whether the record says that ``module`` is left alone."""
        if any(module[:end] in self._names for end in (*_dots(module), len(module))):
            return True
        return any(fits(self.tool, pattern, module) for pattern in self._wild)

    def implied(self, module: str) -> bool:
        """Whether the tool leaves ``module`` alone without saying so."""
        return any(fnmatch.fnmatchcase(module, pattern) for pattern in unlisted(self.tool))


#: tools whose plain names mean more than a module and what lies below it
_LOOSE = frozenset({"awq", "gptq", "fp8", "tensorrt-llm", "compressed-tensors"})


def _may_fit(pattern: str) -> bool:
    """Whether a pattern is more than a plain name."""
    return pattern.startswith("re:") or any(sign in pattern for sign in "*?[")


def _dots(module: str) -> list[int]:
    return [place for place, sign in enumerate(module) if sign == "."]


def fits(tool: str, pattern: str, module: str) -> bool:
    """Whether a tool's pattern means ``module``; each matches in its own way."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern.removeprefix("re:"), module) is not None
        except re.error:
            return False
    if module == pattern:
        return True
    if tool in ("awq", "gptq"):
        return pattern in module
    if fnmatch.fnmatchcase(module, pattern) or module.startswith(f"{pattern}."):
        return True
    if tool == "mxfp4":
        return fnmatch.fnmatchcase(module, f"{pattern}.*")
    if tool in ("fp8", "tensorrt-llm"):
        return f".{pattern}." in f".{module}."
    return tool == "compressed-tensors" and module.endswith(f".{pattern}")  # vLLM adds the prefixes of its own classes


def read_record(json_of: Callable[[str], Mapping[str, Any]], has: Callable[[str], bool]) -> Record | None:
    """The record of a checkpoint; None where nothing says that it is quantized.

    Args:
        json_of: the JSON object in a file, empty when there is none.
        has: whether there is a file of that name.
    """
    config = json_of("config.json")
    if "architectures" not in config and isinstance(config.get("architecture"), str):
        return _trtllm(config)
    embedded = config.get("quantization_config") or _of_part(config)
    embedded = embedded if isinstance(embedded, dict) else {}
    if has("hf_quant_config.json"):
        written = json_of("hf_quant_config.json")
        section = written.get("quantization", written)
        return _modelopt("hf_quant_config.json", section if isinstance(section, dict) else {}, embedded)
    if embedded:
        return _embedded("config.json", embedded)
    for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
        found = json_of(name)
        if found:
            return _embedded(name, {"quant_method": method, **found})
    return None


def _of_part(config: Mapping[str, Any]) -> Any:
    """The section of a model with several parts, whose text part may carry it."""
    text = config.get("text_config")
    return text.get("quantization_config") if isinstance(text, dict) else None


def _embedded(file: str, section: Mapping[str, Any]) -> Record:
    method = section.get("quant_method")
    method = None if method is None else str(method)
    if method in _MODELOPT_METHODS or (method is None and "quant_algo" in section):
        inner = section.get("quantization", section)
        return _modelopt(file, inner if isinstance(inner, dict) else {}, section)
    readers: Mapping[str, Callable[[str, Mapping[str, Any]], Record]] = {
        "compressed-tensors": _compressed,
        "awq": _awq,
        "gptq": _gptq,
        "fp8": _fp8,
        "mxfp4": _mxfp4,
    }
    reader = readers.get(str(method))
    if reader is None:
        name = str(method or "an unnamed method")
        return Record(name, file, section=section, faults=(f"the method {name} is not known",))
    return reader(file, section)


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _bits(value: Any) -> int:
    """Bits of a weight; four where the record says nothing that a weight can have."""
    found = _count(value)
    return found if found is not None and found <= 32 else 4


# --- ModelOpt -----------------------------------------------------------------------------------


def _modelopt(file: str, section: Mapping[str, Any], embedded: Mapping[str, Any]) -> Record:
    algorithm = section.get("quant_algo")
    algorithm = algorithm if isinstance(algorithm, str) else None
    faults: list[str] = []
    schemes: list[Scheme] = []
    layers = section.get("quantized_layers")
    if algorithm == MIXED:
        by_kind: dict[tuple[str, int | None], list[str]] = {}
        for name, one in layers.items() if isinstance(layers, dict) else ():
            said = one if isinstance(one, dict) else {}
            by_kind.setdefault((str(said.get("quant_algo")), _count(said.get("group_size"))), []).append(name)
        schemes = [_modelopt_scheme(kind, group, tuple(names)) for (kind, group), names in by_kind.items()]
    elif algorithm is not None:
        schemes = [_modelopt_scheme(algorithm, _count(section.get("group_size")), ())]
    unknown = sorted({scheme.algorithm for scheme in schemes if scheme.layout is None})
    if unknown:
        faults.append(f"{file} names the unknown algorithm {', '.join(unknown)}")
    return Record(
        "modelopt",
        file,
        tuple(schemes),
        _strings(section.get("exclude_modules") or section.get("ignore")),
        _kv_algorithm(section),
        algorithm,
        section,
        embedded,
        tuple(faults),
    )


def _modelopt_scheme(algorithm: str, group: int | None, targets: tuple[str, ...]) -> Scheme:
    layout = modelopt_layout(algorithm)
    return Scheme(algorithm, layout, targets, group or (layout.group if layout is not None else None))


def _kv_algorithm(section: Mapping[str, Any]) -> str | None:
    named = section.get("kv_cache_quant_algo")
    if isinstance(named, str):
        return named
    scheme = section.get("kv_cache_scheme")
    if not isinstance(scheme, dict) or scheme.get("dynamic") is True:
        return None
    kind = str(scheme.get("type"))
    mode = kv_modes_by("scheme").get(f"{kind}{_count(scheme.get('num_bits')) or 0}")
    return kind if mode is None else mode.algorithm


# --- compressed-tensors -------------------------------------------------------------------------


def _compressed(file: str, section: Mapping[str, Any]) -> Record:
    groups = section.get("config_groups")
    schemes, faults = [], []
    for name, one in groups.items() if isinstance(groups, dict) else ():
        weights = one.get("weights") if isinstance(one, dict) else None
        if not isinstance(weights, dict):
            continue  # a group of the cache or of activations only
        schemes.append(_compressed_scheme(section, one, weights))
        if schemes[-1].layout is None:
            faults.append(f"{file}: config_groups.{name} is of the unknown format {schemes[-1].algorithm}")
    return Record(
        "compressed-tensors",
        file,
        tuple(schemes),
        _strings(section.get("ignore")),
        _kv_algorithm(section),
        schemes[0].algorithm if len(schemes) == 1 else MIXED if schemes else None,
        section,
        section,
        tuple(faults),
    )


def _compressed_scheme(section: Mapping[str, Any], one: Mapping[str, Any], weights: Mapping[str, Any]) -> Scheme:
    form = str(one.get("format") or section.get("format"))
    bits, kind = _count(weights.get("num_bits")) or 0, str(weights.get("type"))
    if form in ("mixed-precision", "None", "dense"):
        form = _usual_form(bits, kind, _count(weights.get("group_size")))
    inputs = one.get("input_activations")
    quantized = isinstance(inputs, dict)
    dynamic = inputs.get("dynamic") if isinstance(inputs, dict) else None
    structure = weights.get("block_structure")
    sides = [_count(side) for side in structure] if isinstance(structure, list) else []
    block = (sides[0], sides[1]) if len(sides) == 2 and sides[0] and sides[1] else None
    ordered = weights.get("actorder") in ("group", "dynamic", True)
    layout = compressed_layout(form)
    strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor"))
    return Scheme(
        form,
        layout,
        _strings(one.get("targets")),
        _count(weights.get("group_size")) if strategy in ("group", "tensor_group") else None,
        _bits(bits),
        block,
        asymmetric=weights.get("symmetric") is False,
        ordered=ordered,
        static=quantized and dynamic in (False, None),
        inputs=quantized,
        strategy=strategy,
        by_token=isinstance(inputs, dict) and inputs.get("strategy") == "token" and dynamic is True,
    )


def _usual_form(bits: int, kind: str, group: int | None) -> str:
    """The format that compressed-tensors infers where none is named."""
    if kind == "float":
        return {4: "mxfp4-pack-quantized" if group == 32 else "nvfp4-pack-quantized", 8: "float-quantized"}.get(
            bits, "?"
        )
    return "int-quantized" if bits == 8 and group is None else "pack-quantized"


# --- AWQ, GPTQ, FP8, MXFP4 ----------------------------------------------------------------------


def _awq(file: str, section: Mapping[str, Any]) -> Record:
    version = str(section.get("version") or "gemm").lower()
    bits = _bits(section.get("bits") or section.get("w_bit"))
    group = _count(section.get("group_size") or section.get("q_group_size"))
    faults = () if version == "gemm" else (f"{file}: AWQ's version {version} packs in a form of its own",)
    layout = layout_named("awq-gemm") if version == "gemm" else None
    scheme = Scheme("awq", layout, group=group, bits=bits, asymmetric=bool(section.get("zero_point", True)))
    return Record(
        "awq", file, (scheme,), _strings(section.get("modules_to_not_convert")), None, "awq", section, section, faults
    )


def _gptq(file: str, section: Mapping[str, Any]) -> Record:
    scheme = Scheme(
        "gptq",
        layout_named("gptq"),
        group=_count(section.get("group_size")),
        bits=_bits(section.get("bits")),
        asymmetric=not section.get("sym", True),
        ordered=bool(section.get("desc_act")),
    )
    rules = section.get("dynamic")
    negative = (
        [key for key in rules if isinstance(key, str) and key.startswith("-:")] if isinstance(rules, dict) else []
    )
    ignored = (*_strings(section.get("modules_to_not_convert")), *(f"re:{key.removeprefix('-:')}" for key in negative))
    return Record("gptq", file, (scheme,), ignored, None, "gptq", section, section)


def _fp8(file: str, section: Mapping[str, Any]) -> Record:
    block = section.get("weight_block_size")
    blocks = isinstance(block, list) and len(block) == 2 and all(_count(size) for size in block)
    scheme = Scheme(
        "fp8-blocks" if blocks else "fp8-tensor",
        layout_named("fp8-blocks" if blocks else "fp8-tensor"),
        bits=8,
        block=(block[0], block[1]) if blocks and isinstance(block, list) else None,
        static=section.get("activation_scheme") == "static",
        inputs=True,
    )
    ignored = (*_strings(section.get("modules_to_not_convert")), *_strings(section.get("ignored_layers")))
    kv = "FP8" if section.get("kv_cache_scheme") == "static" else None
    return Record("fp8", file, (scheme,), ignored, kv, scheme.algorithm, section, section)


def _mxfp4(file: str, section: Mapping[str, Any]) -> Record:
    scheme = Scheme("mxfp4", layout_named("mxfp4-experts"), group=32)
    return Record(
        "mxfp4", file, (scheme,), _strings(section.get("modules_to_not_convert")), None, "mxfp4", section, section
    )


# --- TensorRT-LLM -------------------------------------------------------------------------------


def _trtllm(config: Mapping[str, Any]) -> Record | None:
    section = config.get("quantization")
    section = section if isinstance(section, dict) else {}
    algorithm, kv = section.get("quant_algo"), section.get("kv_cache_quant_algo")
    algorithm = algorithm if isinstance(algorithm, str) else None
    if algorithm is None and kv is None:
        return None
    schemes = []
    if algorithm is not None:
        layout = trtllm_layout(algorithm)
        group = _count(section.get("group_size")) or (layout.group if layout is not None else None)
        schemes = [Scheme(algorithm, layout, group=group)]
    faults = [f"the layout of TensorRT-LLM's {one.algorithm} is not known" for one in schemes if one.layout is None]
    return Record(
        "tensorrt-llm",
        "config.json",
        tuple(schemes),
        _strings(section.get("exclude_modules")),
        kv if isinstance(kv, str) else None,
        algorithm,
        section,
        section,
        tuple(faults),
    )


def patterns(record: Record) -> Iterator[str]:
    """Every pattern of the record, classes of modules left out."""
    yield from record.ignored
    for scheme in record.schemes:
        yield from (pattern for pattern in scheme.targets if pattern not in _CLASSES)
