"""The end of a run: one table of figures, and the commands that use the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtforge.recipe.units import format_seconds, format_size

if TYPE_CHECKING:
    from trtforge.console import Console
    from trtforge.pipeline.result import RunResult
    from trtforge.recipe.load import LoadedRecipe


def show_run(console: Console, loaded: LoadedRecipe, result: RunResult) -> None:
    """Print what a run made: stages and their times, the figures, and the next commands."""
    for title, columns, rows in tables(result):
        console.table(title, columns, rows)
    if result.bundle is None:
        last = result.outcomes[-1] if result.outcomes else None
        console.value(str(last.artifact.path) if last and last.artifact else "nothing ran")
        return
    bundle = result.link or result.bundle
    console.print(f"Bundle   {bundle}")
    console.print(f"Report   {result.bundle / 'report.html'}")
    console.print(f"Log      {result.log}")
    console.print()
    for line in next_commands(loaded.recipe.name, str(bundle)):
        console.print(line)
    if console.mode == "quiet":
        console.value(str(bundle))


def tables(result: RunResult) -> list[tuple[str, list[str], list[list[Any]]]]:
    """The run's tables: stages, then every figure that the stages reported, then the gates."""
    stages = [
        [item.stage, item.status, format_seconds(item.seconds), format_size(_bytes(item.artifact.manifest)) if item.artifact else ""]
        for item in result.outcomes
    ]
    found: list[tuple[str, list[str], list[list[Any]]]] = [
        (f"{result.recipe}: {format_seconds(result.seconds)}", ["stage", "status", "time", "size"], stages)
    ]
    figures = [row for item in result.outcomes if item.artifact for row in figure_rows(item.stage, item.artifact.manifest)]
    if figures:
        found.append(("Figures", ["stage", "figure", "value"], figures))
    gates = [
        [item.stage, gate["name"], "passed" if gate["passed"] else "missed", gate["detail"]]
        for item in result.outcomes
        if item.artifact
        for gate in item.artifact.manifest.get("gates") or ()
    ]
    if gates:
        found.append(("Gates", ["stage", "gate", "verdict", "detail"], gates))
    return found


def figure_rows(stage: str, manifest: Mapping[str, Any]) -> list[list[Any]]:
    """A stage's scalar figures as rows; nested figures by dotted name."""
    rows: list[list[Any]] = []
    for part in ("summary", "measurements"):
        _flatten(stage, "", manifest.get(part) or {}, rows)
    return rows


def _flatten(stage: str, prefix: str, value: Any, rows: list[list[Any]]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(stage, f"{prefix}.{key}" if prefix else str(key), item, rows)
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        rows.append([stage, prefix, _figure(prefix, value)])


def _figure(name: str, value: float) -> str:
    last = name.rpartition(".")[2]
    if last.endswith("bytes") or last.endswith("bytes_per_block"):
        return format_size(int(value))
    if isinstance(value, int):
        return str(value)
    return f"{value:.4g}"


def _bytes(manifest: Mapping[str, Any]) -> int:
    return sum(int(item["size"]) for item in manifest.get("files") or ())


def next_commands(name: str, bundle: str) -> list[str]:
    """The commands that serve the bundle and ask it something."""
    return [
        "Serve it:",
        f"  trtforge serve {bundle}",
        "Ask it:",
        f"  curl -s localhost:8000/v2/models/{name}/generate -d "
        "'{\"text_input\": \"What is a tensor?\", \"max_tokens\": 48, \"chat\": true}'",
        f"  curl -sN localhost:8000/v2/models/{name}/generate_stream -d "
        "'{\"text_input\": \"What is a tensor?\", \"max_tokens\": 48, \"chat\": true, \"stream\": true}'",
        "Check it:",
        f"  trtforge verify {bundle}",
    ]
