"""Where a starter recipe's engine will run: the target, its GPU, and what the two leave of the model's format.

Policy: a first recipe passes preflight as it stands. What the tables say has no kernel on the GPU is refused before a
line is written; the KV cache is quantized only where target and GPU take that beside the weights' format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtforge.formats.table import UNQUANTIZED, format_row, load_formats
from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest
from trtforge.tables import Architecture, architecture_table
from trtforge.targets import TARGETS, names


@dataclass(frozen=True)
class StarterTarget:
    """``build.target`` and the architecture that it is compiled for; None for what runs on any machine."""

    name: str
    architecture: Architecture | None

    @property
    def has_pool(self) -> bool:
        """Whether the engine has a paged KV pool whose size the recipe says."""
        return TARGETS[self.name].has_pool

    def kv_cache(self, weights: str) -> str:
        """``quantize.kv_cache`` that target and GPU take beside that weight format: ``fp8`` or ``none``."""
        target, row, cache = TARGETS[self.name], format_row(weights), load_formats().first_choice.kv_cache
        # TensorRT-LLM has no fused context attention for 4-bit weights with wide inputs over such a cache
        if row.weight is None or not target.has_pool or (target.tensorrt_llm and row.four_bits_for_wide_inputs):
            return UNQUANTIZED
        gpu = self.architecture
        if gpu is None:
            return cache
        attention = not target.trtllm_build or gpu.context_fp8 == "yes"
        return cache if attention and gpu.kv_cache.get(cache) == "yes" else UNQUANTIZED


def starter_target(name: str, architecture: str | None, weights: str, here: Sequence[str] = ()) -> StarterTarget:
    """The target that ``init`` was asked for.

    Args:
        architecture: such as ``sm_90``; None: the machine's GPU.
        weights: the quantization format.
        here: architectures of the machine's GPUs.

    Raises:
        ForgeError: ``TF-CLI-050`` no such target, or none of this version; ``TF-CLI-051`` an architecture that is not
            known, not named, or that the target is not built for; ``TF-CLI-052`` no kernel for the format on it.
    """
    targets = list(TARGETS)
    if name not in targets:
        near = nearest(name, targets)
        raise ForgeError(
            "TF-CLI-050",
            f"there is no target {name}",
            asked=f"--target {name}",
            numbers={"targets": targets},
            remedies=[f"--target {close}" for close in ([near] if near else targets)],
        )
    table = architecture_table()
    if not TARGETS[name].needs_gpu:
        if architecture is not None:
            raise ForgeError(
                "TF-CLI-051",
                f"the {name} target is not compiled for an architecture",
                asked=f"--target {name} --arch {architecture}",
                why="It runs on the processor or GPU that it finds.",
                remedies=["leave --arch out", *(f"--target {other}" for other in names(lambda t: t.cuda_plugins))],
            )
        return StarterTarget(name, None)
    hosts = {row.name: row for row in table.rows if name in row.targets}
    wanted = architecture or next((found for found in here if found in hosts), None)
    row = hosts.get(wanted) if wanted is not None else None
    if row is None:
        what = f"{wanted} is not among the architectures of {name}" if wanted else f"{name} needs an architecture"
        raise ForgeError(
            "TF-CLI-051",
            what,
            asked=f"--target {name}" + (f" --arch {architecture}" if architecture else ""),
            numbers={"architectures": list(hosts)},
            why="Kernels are chosen for the GPU that will serve, and this machine has none that the target serves."
            if wanted is None
            else "The target has no kernels for it.",
            remedies=[f"--arch {host} ({found.title})" for host, found in hosts.items()],
        )
    if row.support(weights, name) not in ("yes", "disputed") and weights != "none":
        having = [fmt for fmt in row.formats if row.support(fmt, name) == "yes"]
        raise ForgeError(
            "TF-CLI-052",
            f"{weights} has no kernels on {row.name} ({row.title})",
            asked=f"--target {name} --arch {row.name} --format {weights}",
            numbers={"formats": having},
            why="What the GPU cannot compute is widened in memory, or the build fails.",
            remedies=[f"--format {fmt}" for fmt in having],
        )
    return StarterTarget(name, row)
