"""K16: ranks, devices and launch plans."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.rules.sources import DRAFT_TARGET, thread


def world_size(facts: Facts) -> int:
    """Ranks that the engine runs on: tp x pp (expert parallelism divides the tp ranks)."""
    return facts.recipe.build.parallel.tp * facts.recipe.build.parallel.pp


@rule("TF-K16-001", "more ranks than the target runs", waivable=False)
def ranks_of_target(facts: Facts) -> Iterator[Violation]:
    """These targets run in one process on one device."""
    build = facts.recipe.build
    ranks = build.parallel.tp * build.parallel.pp * build.parallel.ep
    if facts.target.one_rank and ranks > 1:
        yield Violation(
            f"target {build.target} runs 1 rank, the recipe asks for {ranks}",
            f"build.parallel: {{tp: {build.parallel.tp}, pp: {build.parallel.pp}, ep: {build.parallel.ep}}}",
            {"ranks": ranks},
            ["build.parallel: {tp: 1, pp: 1, ep: 1}"],
        )


@rule("TF-K16-002", "more pipeline ranks than layers", needs=("model",), waivable=False)
def pipeline_splits(facts: Facts) -> Iterator[Violation]:
    """A pipeline rank holds at least one layer."""
    model, pp = facts.require_model(), facts.recipe.build.parallel.pp
    if pp > model.layers:
        yield Violation(
            f"{model.layers} layers do not fill pp {pp}",
            facts.asked("build.parallel.pp"),
            {"layers": model.layers, "pp": pp},
            [f"build.parallel.pp: {model.layers}  # or less"],
        )


@rule("TF-K16-003", "more ranks than GPUs here", thread("TL#2021"), needs=("machine",))
def ranks_have_devices(facts: Facts) -> Iterator[Violation]:
    """Every rank needs a GPU of its own; with fewer the server hangs at start or two ranks share one memory."""
    gpus, ranks, parallel = facts.require_machine().gpus, world_size(facts), facts.recipe.build.parallel
    if facts.target.one_rank or not gpus or ranks <= len(gpus):
        return  # a machine without a GPU only writes what another one builds
    sizes = [(tp, pp) for tp in (1, 2, 4, 8, 16) for pp in (1, 2, 4) if tp * pp == len(gpus)]
    yield Violation(
        f"tp {parallel.tp} x pp {parallel.pp} needs {ranks} GPUs, {len(gpus)} are visible",
        f"build.parallel: {{tp: {parallel.tp}, pp: {parallel.pp}}}",
        {"ranks": ranks, "gpus": len(gpus), "names": sorted({gpu.name for gpu in gpus})},
        [
            *(f"build.parallel: {{tp: {tp}, pp: {pp}}}" for tp, pp in sizes),
            *by_hand("CUDA_VISIBLE_DEVICES with more GPUs", "waive this when the engine is served on another machine"),
        ],
    )


@rule("TF-K16-004", "device ids that do not fit the ranks", thread("TB#398"), waivable=False)
def devices_fit_ranks(facts: Facts) -> Iterator[Violation]:
    """gpu_device_ids names one GPU a rank and one set an instance; a GPU in two places is booked twice."""
    text, ranks = facts.recipe.triton.parameters.get("gpu_device_ids"), world_size(facts)
    if not text:
        return
    sets = [[part.strip() for part in group.split(",")] for group in text.split(";")]
    asked = f"triton.parameters.gpu_device_ids: {text}"
    right = ";".join(",".join(str(first * ranks + i) for i in range(ranks)) for first in range(len(sets)))
    remedies = [f'triton.parameters.gpu_device_ids: "{right}"', "remove triton.parameters.gpu_device_ids"]
    wrong = [item for group in sets for item in group if not item.isdigit()]
    sizes = {len(group) for group in sets}
    flat = [item for group in sets for item in group]
    twice = sorted({item for item in flat if flat.count(item) > 1})
    if wrong:
        yield Violation(f"gpu_device_ids holds {wrong[0]!r}, which is no index", asked, {"wrong": wrong}, remedies)
    elif sizes != {ranks}:
        numbers = {"ranks": ranks, "sets": [len(group) for group in sets]}
        yield Violation(
            f"gpu_device_ids names {sorted(sizes)} GPUs a set, the engine has {ranks} ranks", asked, numbers, remedies
        )
    elif twice:
        yield Violation(f"gpu_device_ids names GPU {', '.join(twice)} twice", asked, {"twice": twice}, remedies)


@rule("TF-K16-005", "participant ids that do not fit the ranks", DRAFT_TARGET)
def participants_fit_ranks(facts: Facts) -> Iterator[Violation]:
    """participant_ids names one MPI rank for each rank of the engine; in orchestrator mode rank 0 is the server's."""
    text, ranks = facts.recipe.triton.parameters.get("participant_ids"), world_size(facts)
    if not text:
        return
    ids = [part.strip() for part in text.split(",")]
    first = 1 if facts.recipe.triton.launch == "orchestrator" else 0
    right = ",".join(str(first + rank) for rank in range(ranks))
    problems = []
    if len(ids) != ranks or len(set(ids)) != len(ids) or not all(part.isdigit() for part in ids):
        problems.append(f"participant_ids {text} does not name {ranks} ranks")
    if first and "0" in ids:
        problems.append("participant_ids takes rank 0, which is the orchestrator's")
    for message in problems:
        yield Violation(
            message,
            facts.asked("triton.parameters.participant_ids"),
            {"ranks": ranks, "given": ids, "launch": facts.recipe.triton.launch},
            [f'triton.parameters.participant_ids: "{right}"', "remove triton.parameters.participant_ids"],
        )


@rule(
    "TF-K16-006",
    "more build workers than ranks",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/models/core/qwen/README.md",
    severity="warning",
)
def workers_have_ranks(facts: Facts) -> Iterator[Violation]:
    """A worker builds one rank at a time; the others have nothing to do, and each loads the checkpoint."""
    workers, ranks = facts.recipe.build.trtllm.workers, world_size(facts)
    if facts.target.trtllm_build and workers > ranks:
        yield Violation(
            f"{workers} workers build {ranks} ranks",
            facts.asked("build.trtllm.workers"),
            {"workers": workers, "ranks": ranks},
            [f"build.trtllm.workers: {ranks}"],
        )


@rule("TF-K16-007", "two engines under a leader launch", DRAFT_TARGET)
def two_engines_need_orchestrator(facts: Facts) -> Iterator[Violation]:
    """Leader mode starts one server a rank of one engine; a draft engine of its own needs the orchestrator."""
    recipe, ranks = facts.recipe, world_size(facts)
    if not facts.target.trtllm_build or recipe.speculation.method != "draft_target":
        return
    if ranks > 1 and recipe.triton.launch == "leader":
        yield Violation(
            f"draft and target engine on {ranks} ranks under triton.launch: leader",
            f"triton.launch: leader, speculation.method: draft_target, build.parallel.tp: {recipe.build.parallel.tp}",
            {"ranks": ranks, "engines": 2},
            ["triton.launch: orchestrator", "build.parallel: {tp: 1, pp: 1}"],
        )


@rule("TF-K16-008", "device ids of GPUs that are not here", thread("TB#576"), needs=("machine",))
def devices_are_here(facts: Facts) -> Iterator[Violation]:
    """An id counts the GPUs that the server sees (CUDA_VISIBLE_DEVICES renumbers them); one past the last ends it."""
    text, gpus = facts.recipe.triton.parameters.get("gpu_device_ids"), facts.require_machine().gpus
    ids = [int(part) for part in (text or "").replace(";", ",").split(",") if part.strip().isdigit()]
    if not gpus or not ids or max(ids) < len(gpus):
        return
    ranks = world_size(facts)
    fitting = ",".join(str(index) for index in range(ranks)) if ranks <= len(gpus) else None
    yield Violation(
        f"gpu_device_ids names GPU {max(ids)}, {len(gpus)} are visible (0 to {len(gpus) - 1})",
        facts.asked("triton.parameters.gpu_device_ids"),
        {"ids": ids, "gpus": len(gpus)},
        [
            *([f'triton.parameters.gpu_device_ids: "{fitting}"'] if fitting else []),
            "remove triton.parameters.gpu_device_ids",
            *by_hand("waive this when the server runs on another machine"),
        ],
    )
