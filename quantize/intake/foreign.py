"""Checkpoints that other tools quantized: which become one of this package's own without loss, and how.

| Arrives as | Goes on as |
|---|---|
| FP8, static scales a tensor (AutoFP8, compressed-tensors) | ``fp8`` |
| FP8, a scale a row, activations a token (compressed-tensors) | ``fp8_rowwise`` |
| NVFP4 (compressed-tensors) | ``nvfp4``, ``w4a16_nvfp4``: the same bytes, global scales as reciprocals |
| four-bit integers in groups, symmetric (compressed-tensors, AutoAWQ, GPTQ) | ``int4_awq`` |
| MXFP4, MXFP8, FP8 blocks under powers of two | unquantized bfloat16, each product exact |

Everything else is refused by its name (``TF-SRC-024``): zero points that shift the weights beyond four bits, columns
in another order than their groups, other scales than these, integers of eight bits. What only values show is found
when the checkpoint is fetched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.forensics.record import Record, Scheme
from quantize.intake import repack
from quantize.intake.prequantized import Prequantized, refused
from quantize.intake.writer import FLOATS, TensorPlan, convert
from trtforge.formats.table import format_row, load_formats
from trtforge.ground.safetensors_header import DTYPE_BITS, TensorInfo

Array = npt.NDArray[Any]
_STORED = {**FLOATS, "I32": np.dtype("<i4"), "U8": np.dtype(np.uint8), "F8_E4M3": np.dtype(np.uint8)}
_STORED |= {"F8_E8M0": np.dtype(np.uint8), "I64": np.dtype("<i8"), "I8": np.dtype(np.int8)}
_KV = re.compile(r"(?P<attention>.+\.self_attn)\.(?P<kind>[kv])_scale")
_DERIVED = frozenset({"weight_shape", "qzeros", "g_idx", "scales", "qweight"})


@dataclass
class Conversion:
    """Attributes:
    target: what the weights become; None: unquantized.
    tensors: every tensor of the result by name; ``file`` says which shard it goes into.
    sources: files that are read.
    record: hf_quant_config.json of the result; None for unquantized weights.
    note: what was done, in a sentence.
    """

    target: Prequantized | None
    note: str
    sources: tuple[str, ...]
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    makers: dict[str, Callable[[], Iterator[Array]]] = field(default_factory=dict)
    dropped: int = 0

    def plan(self, name: str, dtype: str) -> TensorPlan | None:
        """How a tensor that is made anew is written, floats in ``dtype``; None for one that is copied."""
        make = self.makers.get(name)
        if make is None:
            return None
        info = self.tensors[name]
        if self.target is not None:
            return TensorPlan(name, info.dtype, info.shape, make)

        def pieces() -> Iterator[Array]:
            for band in make():
                flat = np.ascontiguousarray(band).reshape(-1)
                written = convert(flat, "F32", dtype, name)
                if dtype == "F16" and not np.array_equal(written.astype(np.float32), flat):
                    raise refused(f"{name}, whose values float16 does not hold: set model.dtype: bfloat16")
                yield written

        return TensorPlan(name, dtype, info.shape, pieces)


def convert_checkpoint(
    path: Path, record: Record, tensors: Mapping[str, TensorInfo], biases: frozenset[str]
) -> Conversion:
    """Plan the conversion of a checkpoint from its headers; values are read when it is written.

    Args:
        record: what it says of itself.
        biases: names of the biases that the architecture has; others that are zero throughout are left out.

    Raises:
        ForgeError: ``TF-SRC-024`` a form that does not go over without loss.
    """
    scheme = _one_scheme(record)
    build = _Builder(path, record, scheme, tensors)
    maker = {
        "ct-pack-quantized": build.int4,
        "awq-gemm": build.int4,
        "gptq": build.int4,
        "ct-nvfp4": build.nvfp4,
        "ct-float-quantized": build.fp8,
        "fp8-tensor": build.fp8,
        "fp8-blocks": build.plain,
        "ct-mxfp4": build.plain,
        "ct-mxfp8": build.plain,
    }.get(scheme.layout.name if scheme.layout is not None else "")
    if maker is None:
        raise refused(build.called)
    if tensors and not build.modules:
        raise refused(f"{build.called}, of which no linear is there")
    return maker(biases)


def _one_scheme(record: Record) -> Scheme:
    if not record.schemes:
        raise refused(record.tool)
    if record.faults:
        raise refused(f"{record.tool} ({record.faults[0]})")
    if len(record.schemes) > 1:
        raise refused(f"{record.tool} with several formats in one checkpoint")
    return record.schemes[0]


class _Builder:
    """The tensors of one checkpoint, by the linears that they belong to."""

    def __init__(self, path: Path, record: Record, scheme: Scheme, tensors: Mapping[str, TensorInfo]) -> None:
        self.path, self.scheme, self.old, self.record = path, scheme, tensors, record
        layout = scheme.layout
        assert layout is not None
        self.layout = layout
        self.called = f"{record.tool} {record.algorithm}" if record.tool != record.algorithm else record.tool
        ending = f".{layout.weight}"
        marks = set(layout.parts) - {layout.weight}
        self.modules = [
            name.removesuffix(ending)
            for name in tensors
            if name.endswith(ending) and any(f"{name.removesuffix(ending)}.{leaf}" in tensors for leaf in marks)
        ]

    def read(self, module: str, leaf: str) -> Array:
        """A part's values, mapped."""
        info = self.old[f"{module}.{leaf}"]
        raw = np.memmap(self.path / info.file, np.uint8, "r", offset=info.offset, shape=(info.nbytes,))
        return raw.view(_STORED[info.dtype]).reshape(info.shape)

    def wide(self, module: str, leaf: str) -> npt.NDArray[np.float32]:
        """A part in float32, which holds every smaller type."""
        values, dtype = self.read(module, leaf), self.old[f"{module}.{leaf}"].dtype
        flat = convert(np.ascontiguousarray(values).reshape(-1), dtype, "F32", f"{module}.{leaf}")
        return np.asarray(flat, np.float32).reshape(values.shape)

    # --- targets ------------------------------------------------------------------------------------

    def fp8(self, biases: frozenset[str]) -> Conversion:
        scheme = self.scheme
        if scheme.strategy == "channel" and scheme.inputs and scheme.by_token:
            return self._rowwise(biases)
        if scheme.strategy not in ("", "tensor"):
            raise refused(f"{self.called} with a scale a {scheme.strategy}")
        if not scheme.static:
            raise refused(f"{self.called} with scales of activations that are computed while it runs")
        result = self._start("fp8", "one FP8 scale a tensor, as ModelOpt stores it")
        for module in self.modules:
            self._keep(result, module, "weight", "weight")
            for leaf in ("weight_scale", "input_scale"):
                self._number(result, module, leaf, leaf, lambda values: values)
        return self._rest(result, biases)

    def _rowwise(self, biases: frozenset[str]) -> Conversion:
        """A scale a row; activations get theirs a token at a time in both."""
        result = self._start("fp8_rowwise", "one FP8 scale a row, as ModelOpt stores it")
        for module in self.modules:
            self._keep(result, module, "weight", "weight")
            rows = self._shape(module)[0]
            if self.old[f"{module}.weight_scale"].elements != rows:
                raise refused(f"{self.called}, where {module} has no scale for each row")
            result.tensors[f"{module}.weight_scale"] = self._like(module, "F32", (rows,))
            result.makers[f"{module}.weight_scale"] = self._wide_maker(module, "weight_scale", (rows,))
        return self._rest(result, biases)

    def nvfp4(self, biases: frozenset[str]) -> Conversion:
        target = "nvfp4" if self.scheme.inputs else "w4a16_nvfp4"
        result = self._start(target, "NVFP4's bytes as they are, global scales as their reciprocals")
        globals_ = [("weight_global_scale", "weight_scale_2"), ("input_global_scale", "input_scale")]
        for module in self.modules:
            self._keep(result, module, "weight_packed", "weight")
            self._keep(result, module, "weight_scale", "weight_scale")
            for old, new in globals_ if self.scheme.inputs else globals_[:1]:
                self._number(result, module, old, new, lambda values: np.float32(1) / values)
        return self._rest(result, biases)

    def int4(self, biases: frozenset[str]) -> Conversion:
        scheme = self.scheme
        if scheme.bits != 4:
            raise refused(f"{self.called} of {scheme.bits} bits")
        if scheme.asymmetric and self.layout.name == "ct-pack-quantized":
            raise refused(f"{self.called} with zero points")
        if scheme.ordered and self.layout.name == "ct-pack-quantized":
            raise refused(f"{self.called} with columns in another order than their groups")
        shapes = {module: self._shape(module) for module in self.modules}
        group = self._group([columns for _, columns in shapes.values()])
        result = self._start("int4_awq", f"four-bit integers in groups of {group}, bit by bit", group=group)
        for module, (rows, columns) in shapes.items():
            result.tensors[f"{module}.weight"] = self._like(module, "U8", (rows // 2, columns))
            result.makers[f"{module}.weight"] = self._checked(module, self._int4_maker(module))
            result.tensors[f"{module}.weight_scale"] = self._like(module, "F32", (rows, columns // group))
            result.makers[f"{module}.weight_scale"] = self._scale_maker(module, columns // group)
        return self._rest(result, biases)

    def plain(self, biases: frozenset[str]) -> Conversion:
        result = self._start(None, f"de-quantized from {self.called}: every product is exact in bfloat16")
        for module in self.modules:
            rows, columns = self._shape(module)
            result.tensors[f"{module}.weight"] = self._like(module, "BF16", (rows, columns))
            result.makers[f"{module}.weight"] = self._checked(module, self._plain_maker(module))
        return self._rest(result, biases)

    # --- parts --------------------------------------------------------------------------------------

    def _start(self, target: str | None, note: str, group: int | None = None) -> Conversion:
        sources = tuple(sorted({info.file for info in self.old.values()}))
        if target is None:
            return Conversion(None, note, sources)
        kv = self._kv_mode()
        row = format_row(target)
        section: dict[str, Any] = {
            "quant_algo": row.algorithm,
            "kv_cache_quant_algo": self.record.kv if kv else None,
        }
        if group or row.default_group_size:
            section["group_size"] = group or row.default_group_size
        record = {"producer": {"name": self.record.tool, "version": "converted"}, "quantization": section}
        return Conversion(
            Prequantized(target, kv), f"{self.called} goes on as {target}: {note}", sources, record=record
        )

    def _kv_mode(self) -> str | None:
        if self.record.kv is None:
            return None
        stored = any(_KV.fullmatch(name) for name in self.old)
        wanted = "calibrated" if stored else "constant"
        modes = [row for row in load_formats().kv_modes if row.algorithm == self.record.kv and row.scales == wanted]
        if not modes or not modes[0].supported:
            raise refused(f"{self.called} with a {self.record.kv} cache")
        return modes[0].name

    def _like(self, module: str, dtype: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self.old[f"{module}.{self.layout.weight}"]
        return replace(info, dtype=dtype, shape=shape, offset=0, nbytes=math.prod(shape) * DTYPE_BITS[dtype] // 8)

    def _keep(self, result: Conversion, module: str, old: str, new: str) -> None:
        """A part with the same bytes under another name."""
        name = f"{module}.{old}"
        if name not in self.old:
            raise refused(f"{self.called} without {name}")
        result.tensors[f"{module}.{new}"] = self.old[name]
        if old != new:
            result.makers[f"{module}.{new}"] = lambda: iter([self.read(module, old)])

    def _number(
        self, result: Conversion, module: str, old: str, new: str, how: Callable[[npt.NDArray[np.float32]], Any]
    ) -> None:
        """A part of one value, as a float32 scalar."""
        info = self.old.get(f"{module}.{old}")
        if info is None or info.elements != 1:
            raise refused(f"{self.called} without one {old} for {module}")
        result.tensors[f"{module}.{new}"] = self._like(module, "F32", ())
        result.makers[f"{module}.{new}"] = lambda: iter([np.asarray(how(self.wide(module, old)), "<f4").reshape(())])

    def _shape(self, module: str) -> tuple[int, int]:
        stored = self.old[f"{module}.{self.layout.weight}"]
        sizes = self.scheme.sizes({self.layout.weight: stored}) if len(stored.shape) == 2 else None
        if sizes is None:
            raise refused(f"{self.called} with experts of one tensor")
        return sizes.rows, sizes.columns

    def _group(self, columns: list[int]) -> int:
        """The group of the result: that of the checkpoint, or one that a scale a row is repeated over."""
        sizes = format_row("int4_awq").group_sizes
        own = self.scheme.group
        if own is not None and own not in sizes:
            raise refused(f"{self.called} in groups of {own}")
        fits = [own] if own is not None else sorted(sizes, reverse=True)
        found = next((size for size in fits if all(width % size == 0 for width in columns)), None)
        if found is None:
            raise refused(f"{self.called} with widths that no group of {', '.join(map(str, sizes))} divides")
        return found

    def _int4_maker(self, module: str) -> Callable[[], Iterator[Array]]:
        _, columns = self._shape(module)
        group = self.scheme.group or columns
        if self.layout.name == "ct-pack-quantized":
            return lambda: repack.int4_bytes(repack.packed_rows(self.read(module, "weight_packed")))
        if self.layout.name == "awq-gemm":
            return lambda: repack.int4_bytes(
                repack.awq_rows(self.read(module, "qweight"), self.read(module, "qzeros"), group)
            )
        less_one = str(self.record.section.get("checkpoint_format") or "gptq") != "gptq_v2"

        def make() -> Iterator[Array]:
            if f"{module}.g_idx" in self.old:
                order = self.read(module, "g_idx")
                if not np.array_equal(order, np.arange(columns) // group):
                    raise repack.Inexact("its columns are in another order than their groups (desc_act)")
            elif self.scheme.ordered:
                raise repack.Inexact("its columns are reordered (desc_act) and no g_idx says how")
            bands = repack.gptq_rows(
                self.read(module, "qweight"), self.read(module, "qzeros"), group, less_one=less_one
            )
            yield from repack.int4_bytes(bands)

        return make

    def _scale_maker(self, module: str, groups: int) -> Callable[[], Iterator[Array]]:
        leaf = "weight_scale" if self.layout.name == "ct-pack-quantized" else "scales"

        def make() -> Iterator[Array]:
            values = self.wide(module, leaf)
            values = values if leaf == "weight_scale" else values.T
            yield np.ascontiguousarray(np.repeat(values, groups // values.shape[1], axis=1))

        return make

    def _plain_maker(self, module: str) -> Callable[[], Iterator[Array]]:
        name = self.layout.name

        def make() -> Iterator[Array]:
            if name == "fp8-blocks":
                block = self.scheme.block or (1, 1)
                scales = self._block_scales(module)
                yield from repack.scaled(repack.e4m3_rows(self.read(module, "weight")), scales, block)
                return
            scales = repack.powers_of_two(np.asarray(self.read(module, "weight_scale")))
            if name == "ct-mxfp4":
                yield from repack.scaled(repack.e2m1_rows(self.read(module, "weight_packed")), scales, (1, 32))
            else:
                yield from repack.scaled(repack.e4m3_rows(self.read(module, "weight")), scales, (1, 32))

        return make

    def _block_scales(self, module: str) -> npt.NDArray[np.float64]:
        if self.old[f"{module}.weight_scale_inv"].dtype == "F8_E8M0":
            return repack.powers_of_two(np.asarray(self.read(module, "weight_scale_inv")))
        return self.wide(module, "weight_scale_inv").astype(np.float64)

    def _checked(self, module: str, make: Callable[[], Iterator[Array]]) -> Callable[[], Iterator[Array]]:
        """``make``, whose inexact values are a refusal by name."""

        def pieces() -> Iterator[Array]:
            try:
                yield from make()
            except repack.Inexact as error:
                raise refused(f"{self.called}, where {module} has no exact form here: {error}") from None

        return pieces

    def _rest(self, result: Conversion, biases: frozenset[str]) -> Conversion:
        """What is not part of a quantized linear: copied, but for KV scales, which are renamed, and invented biases."""
        done = {f"{module}.{leaf}" for module in self.modules for leaf in (*self.layout.parts, *_DERIVED)}
        plain = []
        for name, info in self.old.items():
            if name in done:
                continue
            match = _KV.fullmatch(name)
            if match is not None and result.target is not None and result.target.kv_cache is not None:
                module = f"{match['attention']}.{match['kind']}_proj"
                result.tensors[f"{module}.{match['kind']}_scale"] = replace(
                    info, dtype="F32", shape=(), offset=0, nbytes=4
                )
                result.makers[f"{module}.{match['kind']}_scale"] = self._wide_maker(
                    match["attention"], f"{match['kind']}_scale", ()
                )
            elif match is None and not self._invented(name, info, biases):
                result.tensors[name] = info
                if name.endswith(".weight") and len(info.shape) == 2 and "embed" not in name:
                    plain.append(name.removesuffix(".weight"))
            else:
                result.dropped += 1
        if result.record is not None:
            result.record["quantization"]["exclude_modules"] = sorted({*plain, "lm_head"})
        return result

    def _wide_maker(self, module: str, leaf: str, shape: tuple[int, ...]) -> Callable[[], Iterator[Array]]:
        return lambda: iter([self.wide(module, leaf).reshape(shape)])

    def _invented(self, name: str, info: TensorInfo, biases: frozenset[str]) -> bool:
        """Whether this is a bias of zeros that the packing tool added to a linear without one."""
        if not name.endswith(".bias") or name in biases or name.removesuffix(".bias") not in self.modules:
            return False
        module = name.removesuffix(".bias")
        return not bool(np.asarray(self.read(module, "bias")).any())
