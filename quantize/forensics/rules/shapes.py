"""Rules on the tensors of a quantized linear: which there are, their types, shapes and names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from quantize.forensics.checkpoint import Checkpoint, plain
from quantize.forensics.hits import Hit, hit, rule
from quantize.forensics.layouts import Layout, Part, Sizes, all_parts, weight_parts
from quantize.forensics.record import Scheme
from trtforge.formats.table import KV_LEAVES
from trtforge.ground.safetensors_header import TensorInfo
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(400, "Tensors of a linear")

#: parts beside the format's that mean nothing wrong
_BESIDE = frozenset({"bias", *KV_LEAVES, "q_scale", "output_scale", "kv_scale", "per_channel_scale"})
_LEFTOVER = re.compile(
    r"(weight|input|output)_quantizer\.|\._amax$|\.amax$|_double_scale$|\._scale$|\.SCB$|\.quant_state\."
)
_SAME_AS = {"weight_scale_inv": "weight_scale", "weight_scale": "weight_scale_inv"}


def _shape(part: Part, scheme: Scheme, sizes: Sizes) -> tuple[tuple[int | None, ...], ...] | None:
    """The shapes that a part may have; None where any will do, None in one where a division leaves a rest."""
    if part.rule is not None:
        wanted = part.rule.expected_shape(sizes.rows, sizes.columns, sizes.group)
        return (wanted, (1,)) if wanted == () else (wanted,)
    if part.shape is None:
        return None
    if part.shape == "scalar" or part.shape == ():
        return ((), (1,), (1, 1))
    if part.shape == "strategy":
        by_rows = ((sizes.rows, 1), (sizes.rows,))
        if scheme.strategy == "channel":
            return by_rows
        if scheme.strategy == "block":
            return ((sizes.term("N^R"), sizes.term("K^C")),)
        if scheme.strategy in ("group", "tensor_group"):
            return ((sizes.rows, sizes.term("K/G")),)
        return ((), (1,), (1, 1))
    return (tuple(sizes.term(term) for term in part.shape),)


def _fits(info: TensorInfo, wanted: tuple[int | None, ...], sizes: Sizes, stacked: bool) -> bool:
    shape = info.shape
    if stacked and shape[:1] == (sizes.experts,):
        shape = shape[1:]
    return shape == wanted


def faults_of(scheme: Scheme, layout: Layout, parts: Mapping[str, TensorInfo]) -> Iterator[str]:
    """What is wrong with one linear's tensors, as short phrases: the same fault reads the same."""
    sizes, said = scheme.sizes(parts), layout.name
    for leaf, part in layout.parts.items():
        info = parts.get(leaf)
        there = scheme.has(part.when)
        if info is None:
            if not part.optional and there and part.kind != "index" and not _under_other_name(leaf, parts):
                yield f"{leaf} is missing"
            continue
        if part.dtypes and info.dtype not in part.dtypes:
            yield f"{leaf} is {info.dtype}, {said} stores {' or '.join(part.dtypes)}"
            continue
        if sizes is None:
            continue
        allowed = _shape(part, scheme, sizes)
        if allowed is None or None in allowed[0] or _half(info, part, layout, sizes) or _partial_group(layout, sizes):
            continue
        stacked = "E" not in str(layout.weight_part.shape) and len(parts[layout.weight].shape) == 3
        if not any(_fits(info, wanted, sizes, stacked) for wanted in allowed):
            group = f", group {sizes.group}" if sizes.group else ""
            yield (
                f"{leaf} is not of the shape that {said} has for its weight (of [{sizes.rows}, "
                f"{sizes.columns}]{group}: "
                f"{list(allowed[0])}, stored {list(info.shape)})"
            )
    for leaf in sorted(set(parts) - set(layout.parts) - _BESIDE):
        if leaf in all_parts() and leaf not in _SAME_AS and leaf != "g_idx":
            yield f"{leaf} does not belong to {said}"


def _under_other_name(leaf: str, parts: Mapping[str, TensorInfo]) -> bool:
    return _SAME_AS.get(leaf) in parts


def _partial_group(layout: Layout, sizes: Sizes) -> bool:
    grouped = any("G" in str(part.shape) for part in layout.parts.values())
    return grouped and bool(sizes.group) and sizes.columns % (sizes.group or 1) != 0


@rule(
    "TF-K7-102",
    "error",
    "the tensors of a linear are not those of its format",
    thread("MO#500"),
    cases=(thread("LC#959"), thread("LC#2255"), thread("VL!54444")),
)
def parts_of_linears(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A loader allocates what the format says; a scale that is not there keeps what was in memory, and one of another
    shape or type ends the load or is read wrongly.
    """
    record = checkpoint.record
    if record is None:
        return
    wrong: dict[str, list[str]] = {}
    for module, scheme, layout, parts in checkpoint.laid_out():
        if not record.ignores(plain(module)):
            for fault in faults_of(scheme, layout, parts):
                wrong.setdefault(re.sub(r" \(of .*\)$", "", fault), []).append(f"{module}|{fault}")
    for fault, found in wrong.items():
        names = [entry.partition("|")[0] for entry in found]
        detail = re.search(r" \(of .*\)$", found[0])
        yield from hit(fault + (detail.group(0) if detail else ""), names, "export again with one version of the tool")


def _half(info: TensorInfo, part: Part, layout: Layout, sizes: Sizes) -> bool:
    """Whether a block scale was made for half the columns: of the packed bytes instead of the weights."""
    if part.kind not in ("scale", "exponent") or part.shape != ("N", "K/G"):
        return False
    packed = "K/" in str(layout.weight_part.shape)  # only packed columns are mistaken for the weights'
    if not packed or not sizes.group or sizes.columns % (2 * sizes.group):
        return False
    return len(info.shape) == 2 and info.shape[1] * 2 * sizes.group == sizes.columns


@rule("TF-AUD-131", "error", "scales for half the columns", thread("MO!2038"))
def half_size(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The scale was computed over the packed bytes instead of the weights: it has half its size, and values that mean
    nothing.
    """
    yield from hit(
        "block scales have half the columns that their weight needs",
        [
            f"{module}.{leaf}"
            for module, scheme, layout, parts in checkpoint.laid_out()
            if (sizes := scheme.sizes(parts)) is not None
            for leaf, part in layout.parts.items()
            if leaf in parts and _half(parts[leaf], part, layout, sizes)
        ],
        "export again from the model before its weights were packed",
    )


@rule(
    "TF-AUD-132",
    "error",
    "a group that does not divide the columns",
    thread("VL!46236"),
    cases=(thread("VL#49949"), thread("AR#643")),
)
def partial_groups(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Kernels read whole groups; a last one that is cut has no scale of its own in any loader."""
    wrong: dict[int, list[str]] = {}
    for module, scheme, layout, parts in checkpoint.laid_out():
        sizes = scheme.sizes(parts)
        if sizes is not None and _partial_group(layout, sizes) and sizes.group:
            wrong.setdefault(sizes.group, []).append(module)
    for group, names in wrong.items():
        yield from hit(
            f"linears whose columns are no multiple of the group of {group}", names, "quantize with a smaller group"
        )


@rule("TF-AUD-133", "error", "packed width and stated shape disagree", thread("VL!46430"))
def stated_shapes(checkpoint: Checkpoint) -> Iterator[Hit]:
    """weight_shape says how many of the packed columns are weights; with another figure the rest is read as weights
    too.
    """
    wrong = []
    for module in checkpoint.quantized:
        parts, scheme = checkpoint.parts[module], checkpoint.scheme(module)
        info, packed = parts.get("weight_shape"), parts.get("weight_packed")
        if info is None or packed is None or scheme is None or info.elements != 2 or info.dtype not in ("I64", "I32"):
            continue
        raw = checkpoint.raw(info)
        if not raw:
            continue
        half = len(raw) // 2
        rows, columns = (int.from_bytes(raw[at : at + half], "little", signed=True) for at in (0, half))
        if rows != packed.shape[0] or not 0 <= packed.shape[1] * scheme.packed - columns < scheme.packed:
            wrong.append(f"{module} ({rows} x {columns}, packed {list(packed.shape)})")
    yield from hit("linears whose weight_shape is not that of weight_packed", wrong, "export again")


@rule(
    "TF-AUD-134",
    "error",
    "the quantizer's own tensors are in the checkpoint",
    thread("MO!2038"),
    cases=(thread("VL!49420"), thread("VL#11802")),
)
def leftovers(checkpoint: Checkpoint) -> Iterator[Hit]:
    """These names are the tool's while it calibrates. No loader knows them, and where they stand in for the scales,
    nothing is scaled.
    """
    yield from hit(
        "tensors that only the quantizer knows",
        [name for name in checkpoint.tensors if _LEFTOVER.search(name) and "svdquant_lora" not in name],
        "export with the tool's own export call (export_hf_checkpoint, save_compressed), not save_pretrained",
    )


@rule("TF-AUD-135", "error", "a prefix stands twice", thread("LC#2568"), cases=(thread("MO!2076"),))
def doubled_prefixes(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Loaders look tensors up by the model's own names; model.model. or language_model.language_model. is none of
    them.
    """
    yield from hit(
        "tensors whose name repeats a prefix",
        [name for name in checkpoint.tensors if re.search(r"(?:^|\.)(model|language_model|transformer)\.\1\.", name)],
        "rename them to the names of the unquantized checkpoint",
    )


@rule("TF-AUD-136", "error", "a scale under another tool's name", thread("VL!54556"))
def renamed(checkpoint: Checkpoint) -> Iterator[Hit]:
    """weight_scale and weight_scale_inv are looked up by name; under the other one the weights stay unscaled."""
    wrong = []
    for module, _, layout, parts in checkpoint.laid_out():
        wrong += [
            f"{module}.{other}"
            for leaf, other in _SAME_AS.items()
            if leaf in layout.parts and other in parts and other not in layout.parts
        ]
    yield from hit(
        "scales have the name that another tool gives them", wrong, "rename them to what the record's tool writes"
    )


@rule("TF-AUD-137", "error", "columns are reordered and no order is stored", thread("TGI#601"))
def orders(checkpoint: Checkpoint) -> Iterator[Hit]:
    """With desc_act the groups follow the order of activations; without g_idx every weight gets another group's
    scale.
    """
    lacking = [
        f"{module}.{leaf}"
        for module, scheme, layout, parts in checkpoint.laid_out()
        if scheme.ordered
        for leaf, part in layout.parts.items()
        if part.kind == "index" and leaf not in parts
    ]
    yield from hit("linears have no g_idx although the record says desc_act", lacking, "export again")


@rule("TF-AUD-138", "error", "a scale without a weight", thread("GPTQ!3077"))
def orphans(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The weight that these tensors belong to was lost, dropped as a duplicate, or renamed."""
    if checkpoint.files.weights.incomplete:
        return
    stored = weight_parts()
    loose = all_parts() - stored - {"bias", "g_idx", "alpha", "zero", "scales"}
    names = [
        f"{module}.{leaf}"
        for module, parts in checkpoint.parts.items()
        if not stored & parts.keys()
        for leaf in parts
        if leaf in loose
    ]
    names += [
        f"{module}.{leaf}"
        for module, parts in checkpoint.parts.items()
        if not stored & parts.keys() and {"qzeros", "scales"} <= parts.keys()
        for leaf in ("qzeros", "scales")
    ]
    yield from hit("scales belong to no weight", names, "export again")
