"""The end of a run: what was made, how good and how fast it is, and the commands that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.json_file import read_json_file
from trtforge.ground.units import format_seconds, format_size
from trtforge.targets import TARGETS

if TYPE_CHECKING:
    from evals.speed.outcome import Outcome
    from trtforge.ground.console import Console
    from trtforge.pipeline.result import RunResult


def show_run(console: Console, name: str, result: RunResult) -> None:
    """Print a run's stages, figures, gates, and the next commands."""
    _show_stages(console, result)
    artifacts = {item.stage: item.artifact for item in result.outcomes if item.artifact is not None}
    bundle = artifacts.get("bundle")
    if bundle is not None:
        console.table("Result", ["figure", "value"], bundle_rows(bundle.summary))
        speed = bundle.manifest.get("measurements", {}).get("bench", {})
        show_sweeps(console, speed.get("sweeps", ()))
        if speed.get("sweeps"):
            from evals.speed.outcome import Outcome

            show_arrivals(console, Outcome.of_json(speed))
    elif artifacts:
        last = list(artifacts)[-1]
        console.table(f"Figures of {last}", ["figure", "value"], figure_rows(artifacts[last].manifest))
    gates = [
        (stage, gate["name"], gate["passed"], gate["detail"])
        for stage, artifact in artifacts.items()
        for gate in artifact.manifest.get("gates") or ()
    ]
    show_gates(console, gates)
    if result.bundle is None:
        console.value(str(artifacts[list(artifacts)[-1]].path) if artifacts else "nothing ran")
        return
    place = str(result.link or result.bundle)
    unseen = result.unseen_gates
    console.print(f"verdict INCOMPLETE: no verdict on {', '.join(unseen)}" if unseen else "verdict PASSED")
    console.print(f"bundle  {place}")
    if result.moved_from is not None:
        console.print(f"        moved from {_described(result.moved_from)} to {_described(result.bundle)}")
    console.print(f"report  {place}/report.html")
    console.print(f"log     {result.log}")
    target = bundle.summary.get("target") if bundle is not None else None
    for line in next_commands(name, place) if target is None else next_commands_elsewhere(place):
        console.print(line)
    if console.mode == "quiet":
        console.value(place)


def show_labelled(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Print labels and texts, the texts below each other."""
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        console.print(f"{label:<{width}}  {text}")


def _described(bundle: Path) -> str:
    """A bundle's folder with its target, where it is still there."""
    try:
        target = read_json_file(bundle / "manifest.json")["stamps"]["target"]
    except (OSError, ValueError, LookupError, TypeError):
        return f"{bundle} (removed)" if not bundle.is_dir() else str(bundle)
    return f"{bundle} (target {target})"


def _show_stages(console: Console, result: RunResult) -> None:
    rows = [
        [
            item.stage,
            item.status,
            format_seconds(item.seconds),
            format_size(_bytes(item.artifact.manifest)) if item.artifact else "",
        ]
        for item in result.outcomes
    ]
    console.table(f"{result.recipe}: {format_seconds(result.seconds)}", ["stage", "status", "time", "size"], rows)


def bundle_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """The bundle's deterministic figures as rows of text."""
    sizes, perplexity, parity = summary["bytes"], summary["perplexity"], summary["parity"]
    rows = [
        ["model", f"{summary['model']} ({summary['architecture']})"],
        ["format", f"{summary['format']}, KV cache {summary['kv_cache']}"],
        ["weights before", format_size(sizes["checkpoint"])],
        [
            "weights after",
            f"{format_size(sizes['quantized'])} ({sizes['quantized'] / max(sizes['checkpoint'], 1):.0%})",
        ],
        ["engine", format_size(sizes["engine"])],
        ["perplexity, baseline", _interval(perplexity["baseline"], ".3f")],
        ["perplexity, quantized", _interval(perplexity["quantized"], ".3f")],
        ["perplexity increase (paired)", _interval(perplexity["increase"], "+.2%")],
    ]
    quality = summary.get("quality", {})
    if (divergence := quality.get("divergence")) is not None:
        rows.append(["  KL divergence from the baseline, nats", _interval(divergence["kl"], ".4f")])
        rows.append(["  same best token as the baseline", _interval(divergence["top1"], ".2%")])
    for who, figures in (("quantized", quality), ("engine", parity)):
        if (suite := figures.get("suite")) is not None:
            one = suite["overall"]
            right = f"{one['candidate_right']} of {one['items']}, baseline {one['baseline_right']}"
            rows.append([f"tasks right, {who}", f"{right}; change {_interval(one['change'], '+.1%')}"])
    if "agreement" in parity:
        what = parity.get("ran", "engine")
        rows.append([f"{what} agrees with the quantized model (top 1)", _interval(parity["agreement"], ".2%")])
        floor = parity.get("floor_raw_agreement")
        beside = "" if floor is None else f"; the quantized model with its own rounding noise: {floor:.2%}"
        rows.append(["  same best token, noise not allowed for", _interval(parity["raw_agreement"], ".2%") + beside])
    if (drafts := summary.get("speculation")) is not None:
        lengths = ", ".join(f"{kind} {value:.2f}" for kind, value in drafts["accepted_length"].items()) or "no draft"
        rows.append([f"tokens that a verification yields ({drafts['method']}, greedy)", lengths])
        same = f"{drafts['answers'] - drafts['beyond_tolerance']} of {drafts['answers']}"
        rows.append(["  answers as without speculation, near ties aside", same])
    smoke = summary.get("smoke")
    if smoke:
        rows.append(["server checks", f"{smoke['passed']} of {smoke['of']} passed"])
    rows.append(["limits", ", ".join(f"{key} {value}" for key, value in summary["limits"].items())])
    if "compiled" in summary:
        rows.append(["compiled", _compiled(summary)])
    for stage, reason in summary.get("not_run", {}).items():
        gates = f"; no verdict on {', '.join(reason['gates'])}" if reason["gates"] else ""
        rows.append([f"not run: {stage}", f"{reason['reason']}{gates}"])
    if summary.get("emulated"):
        rows.append(["emulated, for want of the GPU's matrix units", ", ".join(map(str, summary["emulated"]))])
    return rows


def _compiled(summary: Mapping[str, Any]) -> str:
    if summary["compiled"]:
        return "yes"
    if not TARGETS[summary["target"]].compiled:
        return "nothing to compile: TensorRT-LLM loads the checkpoint when it starts"
    return "NO: compile it on the GPU machine, as the report says; engine/engine.json says why not here"


def _interval(figures: Mapping[str, float], style: str) -> str:
    value, low, high = (format(figures[key], style) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def show_sweeps(console: Console, sweeps: Sequence[Mapping[str, Any]]) -> None:
    """Throughput and latency, a table a target, and where the curve bends."""
    from evals.speed.latency import LATENCY_COLUMNS
    from evals.speed.sweep import DRAFT_COLUMNS, draft_cells

    for sweep in sweeps:
        speculates = any(level.get("speculation") for level in sweep["levels"])
        rows = [
            [
                level["concurrency"],
                f"{level['tokens_per_second']:.1f}",
                *(_ms(level[kind], name) for kind in ("ttft", "itl") for name in LATENCY_COLUMNS),
                level["errors"],
                "-" if level.get("goodput") is None else f"{level['goodput']:.2f}",
                *(draft_cells(level.get("speculation"), "-") if speculates else ()),
            ]
            for level in sweep["levels"]
        ]
        columns = ["requests", "tokens/s"]
        columns += [f"{kind} {name} ms" for kind in ("TTFT", "ITL") for name in LATENCY_COLUMNS]
        knee = sweep.get("knee_concurrency")
        title = f"Speed, {sweep['target']}" + (f" (the curve bends at {knee} requests)" if knee else "")
        drafts = [heading for heading, _ in DRAFT_COLUMNS.values()] if speculates else []
        console.table(title, [*columns, "errors", "goodput/s", *drafts], rows)


def show_arrivals(console: Console, outcome: Outcome) -> None:
    """Requests that arrived by themselves, what TTFT is made of, the line, and the service tax."""
    from evals.speed.outcome import OPEN_COLUMNS, line_table, open_cells, parts_table, tax_table
    from evals.speed.tax import service_tax

    for sweep in outcome.opened:
        title = f"Speed, {sweep.target}, requests that arrive by themselves"
        console.table(title, list(OPEN_COLUMNS), [open_cells(level) for level in sweep.levels])
    tax = tax_table(service_tax(outcome.sweeps, outcome.opened))
    for table in (parts_table(outcome.opened), line_table(outcome.lines), tax):
        if table.rows:
            console.table(table.caption, list(table.columns), [list(row) for row in table.rows])
    for line in outcome.words():
        console.print(line)


def _ms(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name] * 1e3:.1f}" if name in figures else "-"


def show_gates(console: Console, gates: Sequence[tuple[str, str, bool, str]]) -> None:
    """Every gate with the figures that decided it."""
    if gates:
        rows = [[stage, name, "passed" if passed else "missed", detail] for stage, name, passed, detail in gates]
        console.table("Gates", ["stage", "gate", "verdict", "detail"], rows)


def figure_rows(manifest: Mapping[str, Any]) -> list[list[str]]:
    """A stage's figures as rows, nested ones by dotted name; lists and long texts are left to ``--json``."""
    rows: list[list[str]] = []
    for part in ("summary", "measurements"):
        _flatten("", manifest.get(part) or {}, rows)
    return rows


def _flatten(prefix: str, value: Any, rows: list[list[str]]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(f"{prefix}.{key}" if prefix else str(key), item, rows)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        rows.append([prefix, _figure(prefix, value)])
    elif isinstance(value, str) and value and len(value) <= 60:
        rows.append([prefix, value])


def _figure(name: str, value: float) -> str:
    if isinstance(value, int):
        return format_size(value) if name.rpartition(".")[2].endswith("bytes") else str(value)
    return f"{value:.5g}"


def _bytes(manifest: Mapping[str, Any]) -> int:
    return sum(int(item["size"]) for item in manifest.get("files") or ())


def next_commands(name: str, bundle: str) -> list[str]:
    """The commands that serve a bundle and ask it something."""
    from launcher.commands import program
    from launcher.serve import DEFAULT_PORTS, Endpoints

    http, grpc, metrics = (f"127.0.0.1:{DEFAULT_PORTS[kind]}" for kind in ("http", "grpc", "metrics"))
    endpoints = Endpoints(name, http, grpc, metrics)
    return [
        "\nserve it:",
        f"  {program('trtforge')} serve {bundle}",
        "ask it:",
        f"  {endpoints.curl()}",
        f"  {endpoints.curl_stream()}",
        f"  {endpoints.tritonclient()}",
        "check it:",
        f"  {program('trtforge')} verify {bundle}",
    ]


def next_commands_elsewhere(bundle: str) -> list[str]:
    """The commands for a bundle that only another stack on a GPU machine loads."""
    from launcher.commands import program

    return [
        "\nlook at it:",
        f"  {program('trtforge')} engine info {bundle}",
        f"  {program('trtforge')} verify {bundle}",
        "how to use it on a GPU machine:",
        f"  {bundle}/report.md",
    ]
