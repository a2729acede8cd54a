"""Reads what is compared: bundles, and artifacts of the stage evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.progress import Progress
from trtforge.pipeline.stages.bundle import EVIDENCE_DIR, TASKS_FILE, BundleStage
from trtforge.pipeline.stages.evaluate import EvaluateStage
from trtforge.pipeline.stages.scoring import NLL_FILE, PERPLEXITY_FILE, scores_of
from trtforge.store.addendum import read_addenda
from trtforge.store.verify import verify_content

if TYPE_CHECKING:
    from evals.comparison import Entry
    from evals.perplexity import Scores
    from trtforge.store.integrity import VerifyReport


def read_entries(folders: Sequence[Path], progress: Progress) -> list[Entry]:
    """One entry a folder, in order.

    Raises:
        ForgeError: TF-EVL-024 a folder is damaged, or neither a bundle nor an artifact of evaluate.
    """
    names = _names(folders)
    return [_entry(name, folder, progress) for name, folder in zip(names, folders, strict=True)]


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names; with as much of their paths as tells them apart."""
    for depth in range(1, 12):
        names = ["/".join(folder.absolute().parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [f"{index} {folder}" for index, folder in enumerate(folders, 1)]


def _entry(name: str, folder: Path, progress: Progress) -> Entry:
    report = verify_content(folder, progress=progress)
    faults = [finding for finding in report.findings if finding.severity == "error"]
    stage = (report.manifest or {}).get("stage")
    if faults or stage not in (BundleStage.name, EvaluateStage.name):
        raise ForgeError(
            faults[0].code if faults else "TF-EVL-024",
            f"{folder} cannot be compared: " + (faults[0].message if faults else f"it is {stage or 'nothing sealed'}"),
            asked=str(folder),
            numbers={"faults": len(faults)},
            why="Figures are taken from what was sealed: from bundles, or artifacts of the stage evaluate.",
            remedies=[f"trtforge verify {folder}", "trtforge eval RECIPE --output DIR writes such an artifact"],
        )
    try:
        return _of_bundle(name, report) if stage == BundleStage.name else _of_evaluate(name, report)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ForgeError(
            "TF-EVL-024",
            f"{folder} cannot be compared: {error}",
            asked=str(folder),
            why="Its evidence was written by another version.",
            remedies=["make it anew: trtforge run RECIPE"],
        ) from error


def _of_bundle(name: str, report: VerifyReport) -> Entry:
    from evals.comparison import Entry
    from evals.samples import read_samples_file
    from evals.tasks import answered_of

    root, manifest = report.path, report.manifest or {}
    summary, evidence = manifest["summary"], report.path / EVIDENCE_DIR
    addenda, _ = read_addenda(root, report.manifest_sha256 or "")
    run = read_json_file(root / "report.json")["data"]["gates"]
    speculation = summary.get("speculation")
    facts = {"format": str(summary["format"]), "KV cache": str(summary["kv_cache"])}
    facts["speculation"] = str(speculation["method"]) if speculation else "none"
    speed, later = _speed(manifest["measurements"].get("bench", {})), addenda[-1].content if addenda else {}
    if speed == (None, None, "") and "bench" in later.get("figures", {}):
        speed = _speed({"sweeps": [later["figures"]["bench"]], "machine": {"cpu": later["server"].get("address")}})
    return Entry(
        name,
        facts,
        report.verdict or "INCOMPLETE",
        int(summary["bytes"]["engine"]),
        _scores(evidence / "perplexity-quantized.json", evidence / "nll-quantized.npy"),
        _interval(summary["perplexity"]["increase"]),
        answered_of(read_samples_file(evidence / "tasks-quantized.jsonl")),
        _interval(summary.get("quality", {}).get("divergence", {}).get("kl")),
        *speed,
        gates=[*run, *later.get("gates", ())],
    )


def _of_evaluate(name: str, report: VerifyReport) -> Entry:
    from evals.comparison import Entry
    from evals.samples import read_samples_file
    from evals.tasks import answered_of

    root, manifest = report.path, report.manifest or {}
    summary = manifest["summary"]
    return Entry(
        name,
        {"what": "evaluation without an engine"},
        "PASSED" if manifest["gates_passed"] else "FAILED",
        scores=_scores(root / PERPLEXITY_FILE, root / NLL_FILE),
        increase=_interval(summary["increase"]),
        answers=answered_of(read_samples_file(root / TASKS_FILE)),
        kl=_interval(summary.get("divergence", {}).get("kl")),
        gates=manifest["gates"],
    )


def _scores(figures: Path, losses: Path) -> Scores | None:
    """Losses token by token; None in bundles of earlier versions, which lack them."""
    return scores_of(read_json_file(figures), losses) if losses.is_file() else None


def _interval(figures: Mapping[str, float] | None) -> Any:
    from evals.statistics import Interval

    return None if figures is None else Interval(**figures)


def _speed(bench: Mapping[str, Any]) -> tuple[float | None, float | None, str]:
    """Best tokens a second, median time to the first token at the lowest level, and the machine, behind the server."""
    sweeps = bench.get("sweeps") or []
    if not sweeps:
        return None, None, ""
    levels = sweeps[-1]["levels"]
    lowest = min(levels, key=lambda level: level["concurrency"])
    machine = bench.get("machine", {})
    shown = " ".join(str(machine[key]) for key in ("cpus", "cpu") if machine.get(key))
    return max(level["tokens_per_second"] for level in levels), lowest["ttft"].get("p50"), shown
