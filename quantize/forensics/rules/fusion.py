"""Rules on scales that must agree where a loader multiplies several linears as one."""

from __future__ import annotations

from collections.abc import Iterator

from quantize.forensics.checkpoint import Checkpoint
from quantize.forensics.hits import Hit, hit, rule
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(600, "Linears that are fused")


def _unlike(checkpoint: Checkpoint, kinds: tuple[str, ...], *, two_level: bool) -> Iterator[tuple[bool, str]]:
    """(whether of an expert, ``parent.{parts}: values``) where a scale of those kinds differs within a fused linear."""
    for together in checkpoint.fused():
        scheme = checkpoint.scheme(together[0])
        if scheme is None or scheme.layout is None or scheme.layout.two_level != two_level:
            continue
        for leaf, part in scheme.layout.parts.items():
            if part.kind not in kinds:
                continue
            values = [checkpoint.scalar(module, leaf) for module in together]
            if None not in values and len(set(values)) > 1:
                parent = together[0].rpartition(".")[0]
                said = ", ".join(f"{value:.4g}" for value in values if value is not None)
                yield ".experts." in f"{parent}.", f"{parent}: {leaf} of {_leaves(together)} {said}"


def _leaves(together: tuple[str, ...]) -> str:
    return "/".join(module.rpartition(".")[2] for module in together)


@rule(
    "TF-AUD-151",
    "warning",
    "fused linears have different global scales",
    thread("AR#2380"),
    cases=(thread("VL!47515"), thread("VL!41769")),
)
def global_scales(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Kernels take one global scale a product: loaders take the largest for all, and the parts with another one are
    scaled wrongly.
    """
    names = [text for expert, text in _unlike(checkpoint, ("global", "divisor"), two_level=True) if not expert]
    yield from hit(
        "fused linears whose global scales differ",
        names,
        "give q, k and v, and gate and up, one scale and export again",
    )


@rule("TF-AUD-152", "error", "gate and up of an expert have different global scales", thread("MO!1411"))
def experts(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Grouped kernels have one global scale for both; with two, models answered in loops."""
    names = [text for expert, text in _unlike(checkpoint, ("global", "divisor"), two_level=True) if expert]
    yield from hit(
        "experts whose gate and up have different global scales", names, "export again with one scale for both"
    )


@rule("TF-AUD-153", "note", "fused linears have different scales of inputs", thread("AR#2380"))
def inputs(checkpoint: Checkpoint) -> Iterator[Hit]:
    """They have one input, so calibration gives them one scale; loaders take the largest."""
    names = [text for two in (True, False) for _, text in _unlike(checkpoint, ("input",), two_level=two)]
    yield from hit("fused linears whose scales of inputs differ", names, "give them one scale and export again")
