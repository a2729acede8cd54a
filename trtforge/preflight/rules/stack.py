"""K2, K13, K18, K23: versions, targets and layouts that exist together, and what this version has."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.formats.table import load_formats
from trtforge.ground.names import nearest
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import to_format, to_layout, to_target
from trtforge.rules.sources import ENGINE_PARAMETERS, MODELOPT_CHANGES, thread
from trtforge.stack.tensorrt_versions import is_supported
from trtforge.tables import StackRow
from trtforge.targets import DEFAULT, served_by


def stack_of(facts: Facts) -> StackRow | None:
    """The recipe's stack row: the one named, or the newest of the target."""
    recipe = facts.recipe
    return facts.stacks.row(recipe.stack) if recipe.stack else facts.stacks.newest(recipe.build.target)


@rule("TF-K2-001", "unknown stack", waivable=False)
def known_stack(facts: Facts) -> Iterator[Violation]:
    """A stack is a row of the stack table: versions that belong together."""
    name = facts.recipe.stack
    if name and facts.stacks.row(name) is None:
        target = facts.recipe.build.target
        fitting = [row.name for row in facts.stacks.of(target)]
        near = nearest(name, fitting)
        yield Violation(
            f"stack: {name} is no row of the stack table",
            f"stack: {name}",
            {"known": [row.name for row in facts.stacks.rows], "stacks_of_target": fitting},
            [*(f"stack: {row}" for row in sorted(fitting, key=lambda row: row != near)), "remove stack"],
        )


@rule("TF-K2-002", "the stack does not have the target", waivable=False)
def stack_has_target(facts: Facts) -> Iterator[Violation]:
    """An engine is built and run by one stack."""
    row, target = stack_of(facts), facts.recipe.build.target
    if row is None or target in row.targets or any(item.target == target for item in row.removed):
        return
    works = [other.name for other in facts.stacks.of(target)]
    yield Violation(
        f"stack {row.name} has no target {target}",
        f"stack: {row.name}, build.target: {target}",
        {"targets": list(row.targets), "stacks_of_target": works},
        [*(f"stack: {name}" for name in works), *(to_target(facts, name) for name in row.targets)],
    )


@rule("TF-K2-003", "a Triton release that the stack does not serve with", thread("TB#246"))
def triton_of_stack(facts: Facts) -> Iterator[Violation]:
    """Backends, Python stubs and their numpy are tied to the release."""
    row, version = stack_of(facts), facts.recipe.triton.version
    if row is not None and version and row.triton and version != row.triton:
        yield Violation(
            f"triton.version {version} is not the release of stack {row.name} ({row.triton})",
            facts.asked("triton.version"),
            {"stack": row.name, "triton": row.triton},
            ["remove triton.version", f'triton.version: "{row.triton}"'],
        )


@rule("TF-K13-001", "a Triton layout that does not serve the target", thread("TB#393"), waivable=False)
def layout_serves_target(facts: Facts) -> Iterator[Violation]:
    """A layout's backend loads one kind of artifact."""
    layout, target = facts.recipe.triton.layout, facts.recipe.build.target
    if not facts.target.layouts:
        return  # there is no repository to lay out
    if layout not in facts.target.layouts:
        works, served = list(facts.target.layouts), served_by(layout)
        yield Violation(
            f"triton.layout: {layout} does not serve target {target}",
            facts.asked("triton.layout", "build.target"),
            {"layout_serves": list(served), "layouts_of_target": works},
            [to_layout(facts, name) for name in works] + [to_target(facts, name) for name in served],
        )


@rule("TF-K13-002", "tasks of the harness without the harness", needs=("machine",))
def harness_is_there(facts: Facts) -> Iterator[Violation]:
    """Tasks by name are run by the package lm-eval, which is an extra."""
    tasks = facts.recipe.evals.tasks
    if tasks and "lm-eval" not in facts.require_machine().versions:
        yield Violation(
            f"evals.tasks: {', '.join(tasks)} need the package lm-eval, which is not installed",
            facts.asked("evals.tasks"),
            {"package": "lm-eval"},
            [*by_hand("pip install 'trtforge[harness]'"), "evals.tasks: []"],
        )


@rule(
    "TF-K23-001",
    "an engine backend that the version no longer has",
    "https://github.com/NVIDIA/TensorRT-LLM/pull/15763",
    waivable=False,
)
def backend_exists(facts: Facts) -> Iterator[Violation]:
    """TensorRT-LLM stopped building TensorRT engines after 1.2.1 and Triton's engine backend went with it."""
    row, target = stack_of(facts), facts.recipe.build.target
    for item in row.removed if row is not None else ():
        if item.target == target:
            assert row is not None
            older = [other.name for other in facts.stacks.of(target)]
            yield Violation(
                f"{target} was removed in {item.since}; stack {row.name} does not have it",
                f"stack: {row.name}, build.target: {target}",
                {"removed_since": item.since, "last_stacks": older, "source": item.url},
                [to_target(facts, item.replacement), *(f"stack: {name}" for name in older)],
            )


@rule(
    "TF-K23-004",
    "a format or cache mode that ModelOpt no longer has",
    MODELOPT_CHANGES,
    needs=("format",),
    waivable=False,
)
def formats_of_old(facts: Facts) -> Iterator[Violation]:
    """ModelOpt 0.47 removed the short names with the configurations behind them."""
    name = facts.recipe.quantize.format
    if name in facts.formats or name not in load_formats().removed:
        return
    instead = [other for other in load_formats().removed[name] if other in facts.formats]
    yield Violation(
        f"{name} was removed in ModelOpt 0.47",
        f"quantize.format: {name}",
        {"removed_since": "0.47", "instead": instead},
        [to_format(facts, other) for other in instead],
    )


@rule(
    "TF-K23-005",
    "a parameter that the version no longer reads",
    ENGINE_PARAMETERS,
    needs=("parameters",),
    waivable=False,
)
def parameters_of_old(facts: Facts) -> Iterator[Violation]:
    """It is gone from the configuration: setting it does nothing, and the repository is not written with it."""
    for name, value in facts.recipe.triton.parameters.items():
        row = (facts.parameters or {}).get(name)
        if row is not None and not row.emitted:
            yield Violation(
                f"triton.parameters.{name} ended with TensorRT-LLM {row.until}",
                f"triton.parameters.{name}: {value}",
                {"until": row.until, "meaning": row.meaning},
                [f"remove triton.parameters.{name}"],
            )


@rule("TF-K2-004", "an installed TensorRT-LLM of another stack", thread("TB#190"), needs=("machine",))
def installed_version_fits(facts: Facts) -> Iterator[Violation]:
    """Engines and configurations of one version are refused by another: the version tag does not match."""
    row, found = stack_of(facts), facts.require_machine().versions.get("tensorrt-llm")
    wanted = row.version_of("TensorRT-LLM") if row is not None else None
    if row is None or found is None or wanted is None or not facts.target.tensorrt_llm:
        return
    if _release(wanted) and _release(found) != _release(wanted):
        fitting = [
            other.name
            for other in facts.stacks.of(facts.recipe.build.target)
            if _release(other.version_of("TensorRT-LLM") or "0") == _release(found)
        ]
        yield Violation(
            f"TensorRT-LLM {found} is installed, stack {row.name} is {wanted}",
            f"stack: {row.name}",
            {"installed": found, "stack": wanted},
            [
                *(f"stack: {name}" for name in fitting),
                *by_hand(f"pip install tensorrt-llm=={wanted}, or the stack's container"),
            ],
        )


@rule("TF-K2-005", "an installed TensorRT of another stack", thread("TB#506"), needs=("machine",), severity="warning")
def installed_tensorrt_fits(facts: Facts) -> Iterator[Violation]:
    """An engine loads only in the TensorRT release that built it; the pip wheel of TensorRT-LLM 1.2.1 brings another
    one than the container that serves."""
    row, found = stack_of(facts), facts.require_machine().versions.get("tensorrt")
    wanted = row.version_of("TensorRT") if row is not None else None
    if row is None or found is None or wanted is None or not facts.target.has_plan:
        return
    if _release(wanted) and _release(found)[:2] != _release(wanted)[:2]:
        yield Violation(
            f"TensorRT {found} is installed, stack {row.name} serves with {wanted}",
            f"stack: {row.name}",
            {"installed": found, "stack": wanted},
            by_hand("build in the container that serves", f"pip install tensorrt=={wanted}"),
        )


@rule("TF-K2-007", "a machine that cannot build the target", severity="warning", needs=("machine",), machine_lacks=True)
def machine_builds(facts: Facts) -> Iterator[Violation]:
    """The recipe is sound; the build needs what this machine does not have, and a run would find out only after
    quantization and evaluation."""
    lacks, target = facts.require_machine().lacks, facts.recipe.build.target
    if not lacks:
        return
    yield Violation(
        f"target {target} cannot be built here: " + "; ".join(f"{item.name}: {item.detail}" for item in lacks),
        facts.asked("build.target"),
        {item.name: item.detail for item in lacks},
        by_hand(
            *dict.fromkeys(item.remedy for item in lacks if item.remedy),
            *(f"run in {image}" for image in _containers(facts)),
            "trtforge run RECIPE --until evaluate (everything before the build)",
            "trtforge doctor says what this machine builds and runs",
        ),
    )


def _containers(facts: Facts) -> list[str]:
    """Images that bring what the target's build needs: the stack's; for tensorrt without a stack any whose TensorRT it
    takes."""
    row = stack_of(facts)
    if row is not None and row.container:
        return [row.container]
    if not facts.target.cuda_plugins or facts.recipe.stack:
        return []
    images = [item.container for item in facts.stacks.rows if is_supported(item.version_of("TensorRT") or "")]
    return list(dict.fromkeys(image for image in images if image))


def _release(text: str) -> tuple[int, ...]:
    """``(1, 2, 1)`` of ``1.2.1``, a pre-release counts as its release; empty for a rule such as ``>=2``."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text).release[:3]
    except InvalidVersion:
        return ()


@rule(
    "TF-K2-006",
    "a ModelOpt that the format's configuration was not run with",
    MODELOPT_CHANGES,
    needs=("format", "machine"),
)
def modelopt_fits_format(facts: Facts) -> Iterator[Violation]:
    """ModelOpt renames and removes configurations between releases: the quantizer would find another one, or none."""
    from trtforge.stack.check import fits

    row, found = facts.format, facts.require_machine().versions.get("nvidia-modelopt")
    ranges = [item.versions for item in row.modelopt] if row is not None else []
    if row is not None and found is not None and ranges and not any(fits(rule, found) for rule in ranges):
        yield Violation(
            f"ModelOpt {found} is installed, {row.name} was run with {' or '.join(ranges)}",
            f"quantize.format: {row.name}",
            {"installed": found, "run_with": ranges},
            by_hand(f"pip install 'nvidia-modelopt{ranges[0]}'"),
        )


@rule(
    "TF-K18-005",
    "a transformers that ModelOpt was not run with",
    thread("TL#2302"),
    needs=("machine",),
    severity="warning",
)
def transformers_fits(facts: Facts) -> Iterator[Violation]:
    """Between its major versions transformers renamed the rope's keys; a reader that finds the other spelling falls
    back to its defaults without a word."""
    from trtforge.stack.check import fits

    row, found = facts.stacks.newest(DEFAULT.name), facts.require_machine().versions.get("transformers")
    wanted = row.version_of("transformers") if row is not None else None
    if found is not None and wanted is not None and not fits(wanted, found):
        yield Violation(
            f"transformers {found} is installed, the quantizer was run with {wanted}",
            facts.asked("model.source"),
            {"installed": found, "run_with": wanted},
            by_hand(f"pip install 'transformers{wanted}'"),
        )
