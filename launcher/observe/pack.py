"""The files of the pack: Prometheus' configuration and rules, a Grafana board, the counters of dcgm-exporter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from launcher.observe.figures import Figures, figures_of
from trtforge.recipe.schema import Recipe

PROMETHEUS, RULES, BOARD, COUNTERS = "prometheus.yml", "rules.yml", "board.json", "dcgm-counters.csv"
#: throttle reasons of the hardware and of heat and power: 0x04, 0x08, 0x20, 0x40, 0x80
_THROTTLES = (0x04, 0x08, 0x20, 0x40, 0x80)
#: (field, kind, help) of what the rules and the board read; names of dcgm-exporter up to 4.8.4
_FIELDS = (
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Copy engine and memory utilization (in %)."),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock (in MHz)."),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Last XID error."),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit ECC errors since the driver was loaded."),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "counter", "NVLink CRC errors of flits."),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "PCIe replays."),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gauge", "Bits of why clocks are held down."),
)


@dataclass(frozen=True)
class Places:
    """Where the pages are, ``HOST:PORT``; ``dcgm`` None: no GPU is watched."""

    server: str
    dcgm: str | None


def pack(recipe: Recipe, places: Places) -> dict[str, str]:
    """The files' contents by name.

    Args:
        recipe: of the bundle: its layout names the figures, its ``bench.slo`` sets the bounds.
    """
    figures = figures_of(recipe.layout, recipe.layout.asked_model(recipe.name))
    files = {
        PROMETHEUS: _yaml(_prometheus(figures, places)),
        RULES: _yaml({"groups": _groups(recipe, figures, places)}),
        BOARD: json.dumps(_board(recipe, figures, places), indent=1) + "\n",
    }
    if places.dcgm is not None:
        head = "# DCGM field, kind for Prometheus, help; dcgm-exporter -f dcgm-counters.csv, up to 4.8.4\n"
        files[COUNTERS] = head + "".join(f"{name}, {kind}, {text}\n" for name, kind, text in _FIELDS)
    return files


def _yaml(data: Any) -> str:
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120))


def _prometheus(figures: Figures, places: Places) -> dict[str, Any]:
    jobs = [{"job_name": "server", "metrics_path": figures.path, "static_configs": [{"targets": [places.server]}]}]
    if places.dcgm is not None:
        jobs.append({"job_name": "dcgm", "static_configs": [{"targets": [places.dcgm]}]})
    return {
        "global": {"scrape_interval": "5s", "evaluation_interval": "15s"},
        "rule_files": [RULES],
        "scrape_configs": jobs,
    }


def _groups(recipe: Recipe, figures: Figures, places: Places) -> list[dict[str, Any]]:
    groups = [{"name": f"{recipe.name}-server", "rules": list(_server_rules(recipe, figures))}]
    if places.dcgm is not None:
        groups.append({"name": f"{recipe.name}-gpu", "rules": list(_gpu_rules(figures))})
    return groups


def _rule(name: str, expr: str, lasts: str, severity: str, summary: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": name, "expr": expr}
    if lasts:
        rule["for"] = lasts
    return rule | {"labels": {"severity": severity}, "annotations": {"summary": summary}}


def _server_rules(recipe: Recipe, figures: Figures) -> Iterator[dict[str, Any]]:
    slo = recipe.bench.slo
    yield _rule("ServerGone", 'up{job="server"} == 0', "1m", "critical", "The server's metrics page does not answer")
    for name, buckets, bound in (
        ("FirstTokenLate", figures.ttft, None if slo is None else slo.ttft_p99),
        ("TokensLate", figures.itl, None if slo is None else slo.itl_p99),
    ):
        if buckets is not None and bound is not None:
            what = "first token" if buckets == figures.ttft else "time between tokens"
            expr = f"histogram_quantile(0.99, {buckets}) > {bound:g}"
            yield _rule(name, expr, "5m", "critical", f"p99 of the {what} is {{{{ $value }}}} s, over {bound:g} s")
    bounds = (
        ("KvCacheFull", figures.kv, "> 0.95", "5m", "warning", "The KV cache is over 95 % full for 5 minutes"),
        ("Preemptions", figures.preemptions, "> 0.1", "5m", "warning", "Requests are preempted: {{ $value }} a second"),
        (
            "RequestsFail",
            figures.errors,
            "> 0.001",
            "5m",
            "critical",
            "{{ $value | humanizePercentage }} of requests fail",
        ),
        (
            "WorkWasted",
            figures.wasted,
            "> 0.05",
            "10m",
            "warning",
            "{{ $value | humanizePercentage }} of tokens are wasted",
        ),
    )
    for name, figure, bound_text, lasts, severity, summary in bounds:
        if figure is not None:
            yield _rule(name, f"{figure} {bound_text}", lasts, severity, summary)


def _gpu_rules(figures: Figures) -> Iterator[dict[str, Any]]:
    if figures.waiting is not None:
        idle = f"avg(DCGM_FI_DEV_GPU_UTIL) < 10 and on () {figures.waiting} > 0"
        yield _rule("GpuIdleWhileRequestsWait", idle, "1m", "critical", "GPUs are idle and requests wait")
    if figures.running is not None:
        flat = f"abs(deriv(({figures.running})[6h:1m])) * 21600 < 1"
        grows = f"max(deriv(DCGM_FI_DEV_FB_USED[6h])) * 21600 > 256 and on () {flat}"
        yield _rule("GpuMemoryGrows", grows, "", "warning", "GPU memory grew by {{ $value }} MiB in 6 h of even load")
    xid = "(changes(DCGM_FI_DEV_XID_ERRORS[10m]) > 0) and DCGM_FI_DEV_XID_ERRORS > 0"
    yield _rule("Xid", xid, "", "critical", "XID error on GPU {{ $labels.gpu }}")
    yield _rule(
        "EccDoubleBit", "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[10m]) > 0", "", "critical", "Double-bit ECC error"
    )
    crc = "increase(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL[10m]) > 0"
    yield _rule("NvlinkCrc", crc, "", "warning", "NVLink CRC errors on GPU {{ $labels.gpu }}")
    replays = "increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m]) > 10"
    yield _rule(
        "PcieReplays", replays, "", "warning", "PCIe replays on GPU {{ $labels.gpu }}: {{ $value }} in 10 minutes"
    )
    yield _rule("GpuHot", "DCGM_FI_DEV_GPU_TEMP > 85", "2m", "warning", "GPU {{ $labels.gpu }} has {{ $value }} °C")
    # PromQL has no bits: one is set where the rest by twice its worth reaches it
    bits = " or ".join(f"(DCGM_FI_DEV_CLOCK_THROTTLE_REASONS % {2 * bit} >= {bit})" for bit in _THROTTLES)
    yield _rule(
        "GpuThrottled", bits, "2m", "warning", "Heat, power or hardware hold the clocks of GPU {{ $labels.gpu }} down"
    )


def _board(recipe: Recipe, figures: Figures, places: Places) -> dict[str, Any]:
    rows: list[tuple[str, str, list[tuple[str, str]]]] = []
    for title, buckets in (("Time to the first token", figures.ttft), ("Time between tokens", figures.itl)):
        if buckets is not None:
            lines = [(f"p{q:g}", f"histogram_quantile({q / 100:g}, {buckets})") for q in (50, 95, 99)]
            rows.append((title, "s", lines))
    load = [(name, found) for name in ("running", "waiting") if (found := getattr(figures, name)) is not None]
    if load:
        rows.append(("Requests", "none", load))
    for title, unit, found in (
        ("Tokens a second", "none", figures.tokens),
        ("KV cache in use", "percentunit", figures.kv),
        ("Prompt tokens found in the cache", "percentunit", figures.hits),
        ("Preemptions a second", "none", figures.preemptions),
        ("Requests that fail", "percentunit", figures.errors),
        ("Tokens wasted", "percentunit", figures.wasted),
    ):
        if found is not None:
            rows.append((title, unit, [(title.lower(), found)]))
    if places.dcgm is not None:
        rows += [
            ("GPU utilization", "percent", [("GPU {{gpu}}", "DCGM_FI_DEV_GPU_UTIL")]),
            ("GPU memory", "decmbytes", [("GPU {{gpu}}", "DCGM_FI_DEV_FB_USED")]),
            ("GPU temperature", "celsius", [("GPU {{gpu}}", "DCGM_FI_DEV_GPU_TEMP")]),
            ("GPU power", "watt", [("GPU {{gpu}}", "DCGM_FI_DEV_POWER_USAGE")]),
        ]
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "expr": expr, "legendFormat": legend, "datasource": source}
                for at, (legend, expr) in enumerate(lines)
            ],
        }
        for number, (title, unit, lines) in enumerate(rows)
    ]
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "title": f"{recipe.name} (trtforge)",
        "uid": re.sub(r"[^a-z0-9-]", "-", f"trtforge-{recipe.name.lower()}")[:40],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [variable]},
        "panels": panels,
    }


def left_out(recipe: Recipe, figures: Figures) -> list[str]:
    """What the layout's pages or the recipe do not let the rules say, for the user."""
    slo = recipe.bench.slo
    found = []
    for what, key, figure in (
        ("first token", "ttft_p99", figures.ttft),
        ("time between tokens", "itl_p99", figures.itl),
    ):
        if figure is None:
            found.append(f"{what}: {recipe.layout.name} has no histogram of it")
        elif getattr(slo, key, None) is None:
            found.append(f"{what}: the recipe sets no bench.slo.{key}")
    if figures.preemptions is None:
        found.append(f"preemptions: {recipe.layout.name} does not count them")
    return found
