"""Rules on which linears are quantized: against the ignore list, the recipe, their siblings, and config.json."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator

from quantize.forensics.checkpoint import Checkpoint, plain
from quantize.forensics.hits import Hit, hit, rule, said
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(300, "Which linears are quantized")

_ROUTERS = ("*mlp.gate", "*.router", "*block_sparse_moe.gate", "*shared_expert_gate", "*feed_forward.router")


def _listed(checkpoint: Checkpoint) -> bool:
    """Whether the record is one that a checkpoint's linears can be held against."""
    record = checkpoint.record
    return record is not None and bool(record.schemes)


@rule("TF-K7-101", "error", "nothing is quantized", thread("LC#2060"))
def nothing(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The records promise quantized linears; a loader looks for scales that are nowhere."""
    record = checkpoint.record
    if _listed(checkpoint) and record is not None and checkpoint.linears and not checkpoint.quantized:
        yield said(f"no linear is quantized, although the records say {record.algorithm}", file=record.file)


@rule(
    "TF-K6-101",
    "error",
    "quantized although it is excluded",
    thread("VL#45102"),
    cases=(thread("LC#996"), thread("VL!45132")),
)
def excluded(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A loader makes an unquantized linear of an excluded module, and has no place for its scales."""
    record = checkpoint.record
    if record is None:
        return
    yield from hit(
        f"quantized although {record.file} excludes them",
        [name for name in checkpoint.quantized if record.ignores(plain(name))],
        "Loaders take them for unquantized weights: take them off the list, or export again with the same one",
        file=record.file,
    )


@rule(
    "TF-K6-102",
    "error",
    "unquantized although nothing excludes it",
    thread("VL!52501"),
    cases=(thread("VL!41994"), thread("CT!733")),
)
def not_excluded(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A loader makes a quantized linear of every module that is not excluded; scales that are not there are left as
    they were allocated.
    """
    record = checkpoint.record
    if record is None or not _listed(checkpoint):
        return
    loose = [
        name
        for name in checkpoint.unquantized
        if not record.ignores(plain(name))
        and not record.implied(plain(name))
        and record.scheme_of(plain(name)) is not None
    ]
    yield from hit(
        f"unquantized although nothing in {record.file} excludes them",
        loose,
        "Loaders look for scales that are not there: add them to the list, or export again",
        file=record.file,
    )


@rule("TF-K6-103", "error", "quantized against the recipe")
def against_plan(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The recipe keeps these linears in their own type because they matter."""
    expected = checkpoint.expected
    if expected is not None and expected.quantized is not None:
        yield from hit("quantized against the recipe's exclude list", set(checkpoint.quantized) - expected.quantized)


@rule("TF-K6-104", "error", "not quantized although the recipe asks for it")
def less_than_planned(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The checkpoint is larger and slower than the recipe says."""
    expected = checkpoint.expected
    if expected is not None and expected.quantized is not None:
        wanted = expected.quantized - set(checkpoint.quantized)
        yield from hit("not quantized although the recipe does not exclude them", wanted)


@rule(
    "TF-AUD-121",
    "warning",
    "a router is quantized",
    thread("VL#25029"),
    cases=("https://github.com/vllm-project/vllm-omni/issues/5573",),
)
def routers(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A router's few weights decide which experts compute; most loaders keep it unquantized and have no place for its
    scales.
    """
    yield from hit(
        "routers are quantized",
        [name for name in checkpoint.quantized if any(fnmatch.fnmatchcase(plain(name), one) for one in _ROUTERS)],
        "exclude them and export again",
    )


@rule("TF-AUD-122", "error", "part of a fused linear is quantized", thread("VL#47473"))
def fused_partly(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Loaders multiply query, key and value as one linear, and gate and up as another; such a linear is quantized
    whole or not at all.
    """
    stored, record = set(checkpoint.quantized), checkpoint.record
    if record is None:
        return
    # what is neither quantized nor excluded is said by another rule
    partly = []
    for together in checkpoint.fused():
        loose = [name for name in together if name not in stored]
        if 0 < len(loose) < len(together) and all(record.ignores(plain(name)) for name in loose):
            parent = together[0].rpartition(".")[0]
            partly.append(f"{parent}: {', '.join(name.rpartition('.')[2] for name in loose)}")
    yield from hit(
        "of linears that are fused, these alone are unquantized", partly, "quantize or exclude them together"
    )


@rule("TF-AUD-123", "error", "fused linears are stored in two formats", thread("VL!47318"))
def fused_formats(checkpoint: Checkpoint) -> Iterator[Hit]:
    """One product has one format; a loader takes that of the first part for all."""
    stored = set(checkpoint.quantized)
    unlike = []
    for together in checkpoint.fused():
        kinds = {
            (scheme.algorithm, scheme.bits, scheme.group)
            for name in together
            if name in stored and (scheme := checkpoint.scheme(name)) is not None
        }
        if len(kinds) > 1:
            unlike.append(together[0].rpartition(".")[0])
    yield from hit("modules whose fused linears have two formats", unlike, "give them one format and export again")


@rule("TF-AUD-124", "error", "layers are missing", thread("LC#2060"))
def layers(checkpoint: Checkpoint) -> Iterator[Hit]:
    """config.json counts layers that the weights do not have: the loader stops, or computes with what was allocated."""
    wanted = checkpoint.config.get("num_hidden_layers")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 < wanted < 10_000 or not checkpoint.layers:
        return
    if checkpoint.files.weights.incomplete:
        return  # said already, and every layer there would be said again
    stacks = {stack: rows for stack, rows in checkpoint.layers.items() if "vis" not in stack and "audio" not in stack}
    if stacks and not checkpoint.is_trtllm:
        stack, rows = max(stacks.items(), key=lambda item: len(item[1]))
        yield from hit(
            f"layers of {stack} have no tensors, config.json counts {wanted}",
            [f"{stack}.{number}" for number in range(wanted) if number not in rows],
            "export again, or correct num_hidden_layers",
        )


@rule("TF-AUD-125", "warning", "a linear that all other layers have", thread("LC#2060"))
def siblings(checkpoint: Checkpoint) -> Iterator[Hit]:
    """One layer in many that lacks a linear is most often a tensor that the export lost."""
    linears = set(checkpoint.linears)
    for stack, rows in checkpoint.layers.items():
        if len(rows) < 8:
            continue
        inside = {
            number: {rest for rest in rests if f"{stack}.{number}.{rest}" in linears and not _is_expert(rest)}
            for number, rests in rows.items()
        }
        counts = Counter(rest for rests in inside.values() for rest in rests)
        lost = [
            f"{stack}.{number}.{rest}"
            for rest, count in counts.items()
            if len(rows) - count <= max(1, len(rows) // 32) and count < len(rows)
            for number, rests in inside.items()
            if rest not in rests and number != max(rows)
        ]
        yield from hit(
            "linears that the other layers have are missing", lost, "compare with the checkpoint that it was made of"
        )


def _is_expert(rest: str) -> bool:
    return ".experts." in f".{rest}."


@rule(
    "TF-AUD-126",
    "error",
    "an expert lacks what the others have",
    thread("VL#45212"),
    cases=(thread("MO!1354"), thread("VL!45320")),
)
def experts_alike(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Experts that calibration never reached have no scale; loaders leave its place at zero, divide by it, and answer
    nonsense whenever that expert is chosen.
    """
    lacking = []
    for rows in checkpoint.experts.values():
        parts = {number: set(checkpoint.parts[module]) for number, module in rows.items()}
        common = Counter(leaf for leaves in parts.values() for leaf in leaves)
        lacking += [
            f"{rows[number]}.{leaf}"
            for leaf, count in common.items()
            if leaf != "bias" and count < len(rows)
            for number, leaves in parts.items()
            if leaf not in leaves
        ]
    yield from hit(
        "tensors that other experts of the layer have are missing",
        lacking,
        "calibrate with text that reaches every expert, or with all experts computing",
    )


@rule("TF-AUD-127", "error", "experts are missing", thread("LC#2060"))
def experts_counted(checkpoint: Checkpoint) -> Iterator[Hit]:
    """config.json counts experts that the weights do not have."""
    wanted = checkpoint.experts_wanted
    if wanted is None or checkpoint.files.weights.incomplete:
        return
    short = [f"{experts}.*.{rest}" for (experts, rest), rows in checkpoint.experts.items() if len(rows) < wanted]
    yield from hit(f"linears are not there for all {wanted} experts of config.json", short, "export again")
