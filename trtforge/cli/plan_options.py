"""The options of ``trtforge plan`` in groups; each says what its options ask for, or why they cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trtforge.cli import common
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from builder.planner.hardware import Gpu
    from builder.planner.types import Goal, Workload

GOALS = ("throughput", "latency", "fit")


@dataclass(frozen=True)
class Hardware:
    """The GPUs of the deployment, and what the split over them is chosen for."""

    gpu: Annotated[str, typer.Option(metavar="NAME", help="A GPU of the hardware table, for example h200.")]
    count: Annotated[int, typer.Option(metavar="N", help="GPUs that the deployment has.")] = 1
    goal: Annotated[str, typer.Option(help="throughput, latency or fit: what the split is chosen for.")] = "throughput"
    network: Annotated[str, typer.Option(help="The link between nodes, for example ib-ndr.")] = "ib-ndr"

    def card(self) -> Gpu:
        """The GPU's row; ``TF-PLN-001`` when there is none."""
        from builder.planner.hardware import gpu

        return gpu(self.gpu)

    def chosen_goal(self) -> Goal:
        """``TF-CLI-011`` when it is none."""
        return cast("Goal", common.one_of(self.goal, GOALS, option="--goal", code="TF-CLI-011"))


@dataclass(frozen=True)
class Load:
    """The requests: their lengths from one place, what they share, how many come."""

    isl: Annotated[int | None, typer.Option(help="Prompt tokens of every request.", show_default=False)] = None
    osl: Annotated[int | None, typer.Option(help="Answer tokens of every request.", show_default=False)] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="ISL+OSL:WEIGHT,…", help="A histogram, for example 512+128:3,4096+512:1.", show_default=False
        ),
    ] = None
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One request a line: isl and osl.", show_default=False)
    ] = None
    shared_prefix: Annotated[int, typer.Option(help="Tokens that every prompt begins with.")] = 0
    rate: Annotated[float | None, typer.Option(help="Requests a second; sizes the fleet.", show_default=False)] = None

    def workload(self) -> Workload | None:
        """The load that the options describe; None when they describe none, ``TF-CLI-012`` when they are at odds."""
        from builder.planner import workload

        one_length = self.isl is not None or self.osl is not None
        sources = {"--isl": one_length, "--lengths": self.lengths is not None, "--trace": self.trace is not None}
        given = [name for name, present in sources.items() if present]
        if len(given) > 1:
            raise _excluded(*given, why="Lengths come from one place.")
        if self.trace is not None:
            return workload.trace(self.trace, shared_prefix=self.shared_prefix, rate=self.rate)
        if self.lengths is not None:
            lengths = workload.parse_lengths(self.lengths)
            return workload.histogram(lengths, shared_prefix=self.shared_prefix, rate=self.rate)
        if one_length:
            prompt, answer = (1024 if self.isl is None else self.isl), (256 if self.osl is None else self.osl)
            return workload.fixed(prompt, answer, shared_prefix=self.shared_prefix, rate=self.rate)
        if self.shared_prefix or self.rate is not None:
            raise ForgeError(
                "TF-CLI-012",
                "--shared-prefix and --rate need the lengths of the requests",
                asked="--shared-prefix" if self.shared_prefix else "--rate",
                why="How much is shared and how long a request stays follow from the lengths.",
                remedies=["add --isl and --osl", "add --trace FILE"],
            )
        return None


@dataclass(frozen=True)
class Surroundings:
    """What is known of the model and its GPU beside the recipe."""

    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="config.json of a model that is not here.", show_default=False),
    ] = None
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="RECIPE", help="Another recipe on the same GPU; repeatable.", show_default=False
        ),
    ] = None
    measured: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Device memory of the built engine: the gate of 5 %.", show_default=False),
    ] = None

    def measured_bytes(self) -> int | None:
        """``--measured`` in bytes.

        Raises:
            ForgeError: ``TF-CLI-013`` an empty or zero size is no measurement; ``TF-CLI-012`` with neighbours.
        """
        from trtforge.recipe.units import parse_size

        if self.measured is None:
            return None
        if self.beside:
            raise _excluded("--measured", "--with", why="An engine is measured alone, without its neighbours' memory.")
        try:
            size = int(parse_size(self.measured))
            if size <= 0:
                raise ValueError(f"{self.measured!r} is no size over 0")
        except ValueError as error:
            raise ForgeError(
                "TF-CLI-013", str(error), asked=f"--measured {self.measured!r}", remedies=["--measured 71.3GiB"]
            ) from error
        return size


@dataclass(frozen=True)
class Figures:
    """What speed, speculation and cost take beside the hardware table: prices and measurements."""

    price: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="Of one GPU-hour; else costs are GPU-hours.", show_default=False),
    ] = None
    utilization: Annotated[float, typer.Option(help="Share of the time in which the load is there.")] = 1.0
    acceptance: Annotated[
        float | None, typer.Option(help="Measured acceptance of one draft token.", show_default=False)
    ] = None
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measured over planned times by class of op.", show_default=False),
    ] = None
    graph: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Take the ops from a written graph.", show_default=False)
    ] = None

    def options(self, gpu: str) -> dict[str, Any]:
        """The options of :attr:`builder.planner.types.Facts.options` that speed, speculation and cost read.

        Raises:
            ForgeError: ``TF-PLN-050`` an acceptance, ``TF-PLN-055`` a price or utilization outside its range;
                ``TF-PLN-052``, ``TF-PLN-053`` the calibration; ``TF-PLN-054`` the graph.
        """
        from builder.planner.cost import cost_per_million
        from builder.planner.speculation import expected_tokens

        expected_tokens(0.0 if self.acceptance is None else self.acceptance, 1)
        cost_per_million(1, self.price or 0.0, 1.0, self.utilization)
        found: dict[str, Any] = {
            "price": self.price,
            "utilization": self.utilization,
            "acceptance": self.acceptance,
        }
        if self.calibration is not None:
            from builder.planner.calibration import read_calibration

            found["calibration"] = read_calibration(self.calibration, gpu)
        if self.graph is not None:
            from builder.planner.speed.graph_ops import ops_of_graph

            found["raw_ops"] = ops_of_graph(self.graph)
        return found


@dataclass(frozen=True)
class Answer:
    """What is looked for, shown and written."""

    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the memory chart as SVG.", show_default=False)
    ] = None
    search: Annotated[
        bool, typer.Option("--search", help="Search precision, split, batch, KV cache and drafts under bench.slo.")
    ] = False
    show: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Sections to print: memory, capacity, parallelism, speed, speculation, cost, disaggregation, or all.",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the recommended recipe.", show_default=False),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing file of -o or --chart.")] = False

    def sections(self) -> frozenset[str]:
        """The names of ``--show``; ``all`` stands for every section. ``TF-CLI-011`` for one that is none."""
        from builder.planner.report import SECTIONS

        names = [] if self.show is None else [name.strip() for name in self.show.split(",")]
        for name in names:
            common.one_of(name, (*SECTIONS, "all"), option="--show", code="TF-CLI-011")
        return frozenset(SECTIONS) if "all" in names else frozenset(names)

    def check_files(self) -> None:
        """Refuse, before anything is planned, what could not be written.

        Raises:
            ForgeError: ``TF-CLI-012`` ``--overwrite`` of nothing; the chart's file cannot be written.
        """
        from builder.planner.chart import check_target

        if self.overwrite and self.output is None and self.chart is None:
            raise _needs("--overwrite", "-o FILE", "--chart FILE")
        if self.chart is not None:
            check_target(self.chart, overwrite=self.overwrite)


def _excluded(*given: str, why: str) -> Exception:
    return ForgeError(
        "TF-CLI-012",
        f"{' and '.join(given)} exclude each other",
        asked=" ".join(given),
        why=why,
        remedies=[f"only {name}" for name in given],
    )


def _needs(option: str, *others: str) -> Exception:
    return ForgeError(
        "TF-CLI-012",
        f"{option} needs {' or '.join(others)}",
        asked=option,
        why="It says what to do with a file that is written, and none is.",
        remedies=[f"add {other}" for other in others],
    )
