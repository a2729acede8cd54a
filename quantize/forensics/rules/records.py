"""Rules on what a checkpoint says of its own quantization."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quantize.forensics.checkpoint import Checkpoint, plain
from quantize.forensics.hits import Hit, hit, rule, said
from quantize.forensics.layouts import known_algorithms, own_format
from quantize.forensics.record import fits, patterns
from trtforge.formats.mixing import MIXED
from trtforge.formats.table import format_row, kv_modes_by, load_formats
from trtforge.rules.sources import MODELOPT_CHANGES, thread
from trtforge.rules.tables import Section

SECTION = Section(200, "What it says of itself")

_EXPORT = "export the checkpoint again"


@rule("TF-QNT-040", "error", "an unknown quantization", MODELOPT_CHANGES, weights=False)
def unknown(checkpoint: Checkpoint) -> Iterator[Hit]:
    """What no reader knows is loaded as plain weights, or not at all."""
    record = checkpoint.record
    if record is None:
        return
    for fault in record.faults:
        yield said(fault, f"known are {', '.join(known_algorithms())}", file=record.file)
    if record.kv is not None and record.kv not in kv_modes_by("algorithm"):
        yield said(f"{record.file} names the unknown KV-cache algorithm {record.kv}", file=record.file)


@rule("TF-AUD-111", "error", "no algorithm beside quantized tensors", thread("MO!1375"))
def null_algorithm(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A loader that finds null takes the checkpoint for an unquantized one, drops the scales and reads packed bytes as
    weights.
    """
    record = checkpoint.record
    if record is not None and record.algorithm is None and not record.schemes and not record.faults:
        yield from hit(
            f"linears are stored quantized, although {record.file} names no algorithm",
            checkpoint.quantized,
            f"set quant_algo (config_groups of compressed-tensors) in {record.file} to what the export is",
            _EXPORT,
            file=record.file,
        )


@rule("TF-AUD-112", "error", "quantized tensors and no record of it", thread("TL!3772"))
def no_record(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Without quantization_config (or hf_quant_config.json) every loader takes the bytes for plain weights."""
    if checkpoint.record is None:
        yield from hit(
            "linears are stored quantized, and nothing in the folder says how",
            checkpoint.quantized,
            "copy quantization_config, or hf_quant_config.json, from the tool's export",
            file="config.json",
        )


@rule("TF-QNT-041", "error", "config.json and hf_quant_config.json disagree", thread("TL!3167"), weights=False)
def disagree(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Some loaders read the one and some the other, so the same checkpoint is loaded in two ways."""
    record = checkpoint.record
    if record is None or record.file != "hf_quant_config.json":
        return
    embedded = record.embedded
    ours = embedded.get("quant_algo") if embedded else None
    if not embedded and checkpoint.expected is None:
        if record.algorithm is not None:
            yield said(
                "config.json has no quantization_config, hf_quant_config.json says " + str(record.algorithm),
                "write the section into config.json: loaders that read only that file see plain weights",
                severity="warning",
                file="config.json",
            )
        return
    if ours != record.algorithm and not (ours is None and embedded.get("config_groups") and record.algorithm == MIXED):
        yield said(
            f"config.json says {ours}, hf_quant_config.json says {record.algorithm}", _EXPORT, file="config.json"
        )


@rule("TF-QNT-042", "error", "not what the recipe asks for", weights=False)
def not_as_asked(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The checkpoint would be measured and served as something else than its recipe says."""
    expected, record = checkpoint.expected, checkpoint.record
    if expected is None:
        return
    algorithm = record.algorithm if record is not None else None
    wanted = MIXED if expected.mixed else format_row(expected.quant_format).algorithm
    if record is not None and algorithm == wanted == MIXED:
        schemes = {name: record.scheme_of(name) for name in expected.mixed}
        other = [name for name, one in schemes.items() if one is None or one.algorithm != expected.mixed[name]]
        yield from hit("linears are stored in another format than the recipe's", other)
    elif wanted == MIXED:
        yield said(f"the recipe mixes formats, the checkpoint holds {algorithm}")
    elif algorithm != wanted:
        row = own_format(algorithm)
        found = row.name if row is not None else algorithm
        yield said(f"the recipe asks for format {expected.quant_format}, the checkpoint holds {found}")
    kv = kv_name(checkpoint)
    if kv != expected.kv_cache:
        yield said(f"the recipe asks for KV cache {expected.kv_cache}, the checkpoint holds {kv}")


def kv_name(checkpoint: Checkpoint) -> str | None:
    """The KV-cache mode: calibrated where scales are stored, the constant one else; None for an unknown algorithm."""
    algorithm = checkpoint.record.kv if checkpoint.record is not None else None
    if algorithm is None:
        return "none"
    wanted = "calibrated" if checkpoint.kv_scales else "constant"
    modes = [mode for mode in load_formats().kv_modes if mode.algorithm == algorithm]
    return next((mode.name for mode in modes if mode.scales == wanted), modes[0].name if modes else None)


@rule(
    "TF-AUD-113", "error", "mixed precision without its list of layers", thread("VL!36312"), cases=(thread("VL!47318"),)
)
def mixed(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Of MIXED_PRECISION only quantized_layers says which linear is stored how; a loader cannot guess it."""
    record = checkpoint.record
    if record is None or record.tool != "modelopt" or record.algorithm != MIXED:
        return
    if not record.schemes:
        yield said(f"{record.file} says {MIXED} and has no quantized_layers", _EXPORT, file=record.file)
        return
    names = {target for scheme in record.schemes for target in scheme.targets}
    unlisted = [
        name for name in checkpoint.quantized if not any(fits("modelopt", target, plain(name)) for target in names)
    ]
    yield from hit(
        f"linears are quantized and not in quantized_layers of {record.file}", unlisted, _EXPORT, file=record.file
    )
    stored = {plain(name) for name in checkpoint.linears}
    absent = [
        name
        for name in names
        if not any(fits("modelopt", name, module) for module in stored) and not _fused(name, stored)
    ]
    yield from hit(f"quantized_layers of {record.file} that are no linears of the checkpoint", absent, file=record.file)


def _fused(name: str, stored: set[str]) -> bool:
    """Whether a listed name is that of fused linears, whose parts are stored."""
    parent, _, leaf = name.rpartition(".")
    parts = {"qkv_proj": "q_proj", "gate_up_proj": "gate_proj"}.get(leaf)
    return (parts is not None and f"{parent}.{parts}" in stored) or any(
        module.startswith(f"{name}.") for module in stored
    )


@rule("TF-AUD-114", "warning", "a pattern that fits nothing", thread("MO!479"), cases=(thread("VL#54547"),))
def idle_patterns(checkpoint: Checkpoint) -> Iterator[Hit]:
    """An ignore list with names of another prefix leaves nothing alone: the loader then wants scales of modules that
    have none.
    """
    record = checkpoint.record
    if record is None or not checkpoint.linears:
        return
    modules = {plain(module) for module in checkpoint.parts}
    parents = {module[:end] for module in modules for end in _ends(module)}
    named = [pattern for pattern in patterns(record) if not any(word in pattern for word in ("lm_head", "embed"))]
    idle = [
        pattern
        for pattern in dict.fromkeys(named)
        if pattern not in parents
        and not _fused(pattern, modules)
        and not any(fits(record.tool, pattern, module) for module in modules)
    ]
    # tools list modules without tensors too (activations, rotary embeddings): those have a parent that is there
    astray = [
        name for name in idle if re.fullmatch(r"[\w.-]+\.[\w-]+", name) and name.rpartition(".")[0] not in parents
    ]
    yield from hit(
        f"patterns of {record.file} fit no module of the checkpoint",
        idle if len(idle) == len(set(named)) else astray,
        "write the names as the tensors have them",
        file=record.file,
    )


def _ends(module: str) -> Iterator[int]:
    """Where each parent of a module's name ends, itself included."""
    yield from (place for place, sign in enumerate(module) if sign == ".")
    yield len(module)
