"""The part of a report that says how good the model is: figures with intervals, differences as pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.recipe.schema import Recipe

Figures = Mapping[str, Any]


def _interval(figures: Mapping[str, float], style: str) -> str:
    value, low, high = (format(figures[key], style) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def quality_section(baseline: Figures, evaluated: Figures, parity: Figures, recipe: Recipe) -> Any:
    """Baseline, quantized model and engine, from the summaries of their stages."""
    from evals.report import Section, Table

    ran = "agreement" in parity
    perplexity = Table(
        ("perplexity", "value [95 % interval]"),
        (
            ("baseline", _interval(evaluated["baseline"], ".3f")),
            ("quantized", _interval(evaluated["candidate"], ".3f")),
            ("relative increase (paired)", _interval(evaluated["increase"], "+.2%")),
            *_distance(evaluated),
        ),
    )
    others = Table(
        ("check", "figure"),
        (
            ("tokens scored", f"{evaluated['tokens']:,} of {evaluated['corpus']}"),
            ("sane answers, baseline", f"{baseline['sane_answers']} of {baseline['prompts']}"),
            ("sane answers, quantized", f"{evaluated['sane_answers']} of {evaluated['prompts']}"),
            *_free_answers(evaluated),
            *(_engine_rows(parity) if ran else ()),
            *_engine_quality(parity),
        ),
    )
    tables = [perplexity, others, *_task_tables(evaluated, parity), *_long_context_tables(evaluated, parity)]
    tables += [*_layer_tables(evaluated), *_harness_tables(evaluated, parity)]
    text = "Baseline and quantized model are scored on the same tokens and items; intervals of differences are paired."
    return Section("Quality", text, tuple(tables), tuple(_plots(evaluated, parity, recipe)))


def _distance(evaluated: Figures) -> tuple[tuple[str, str], ...]:
    """How far the quantized model's predictions are from the baseline's, beside how far those are from themselves."""
    rows = []
    if (found := evaluated.get("divergence")) is not None:
        rows.append(("KL divergence from the baseline, nats", _interval(found["kl"], ".4f")))
        rows.append(("  same best token", _interval(found["top1"], ".2%")))
    if (noise := evaluated.get("noise")) is not None:
        what = f"the baseline with itself, rounded to bfloat16 ({noise['tokens']:,} tokens)"
        rows.append((f"{what}: increase", _interval(noise["increase"], "+.3%")))
        rows.append(("  KL divergence, nats", _interval(noise["kl"], ".5f")))
        rows.append(("  same best token", _interval(noise["top1"], ".2%")))
    return tuple(rows)


def _free_answers(evaluated: Figures) -> tuple[tuple[str, str], ...]:
    """Free generation against the baseline; nothing in artifacts of earlier versions."""
    found = evaluated["generation"]
    if "mean_edit_share" not in found:
        return ()
    return (
        ("answers that are the baseline's, token by token", f"{found['same']} of {found['prompts']}"),
        ("  tokens before the first difference, on average", f"{found['mean_common_prefix_tokens']:.1f}"),
        ("  edit distance, share of the answer", f"{found['mean_edit_share']:.0%}"),
    )


def _engine_quality(parity: Figures) -> tuple[tuple[str, str], ...]:
    found = parity.get("quality")
    if found is None:
        return ()
    return (
        (f"the engine's perplexity on {found['tokens']:,} tokens", f"{found['perplexity']:.3f}"),
        ("  increase against the baseline (paired)", _interval(found["increase"], "+.2%")),
        ("  KL divergence from the baseline, nats", _interval(found["kl"], ".4f")),
        ("  same best token as the baseline", _interval(found["top1"], ".2%")),
    )


def _task_rows(who: str, figures: Figures) -> list[tuple[str, ...]]:
    found = figures.get("suite")
    tasks = {**(found["tasks"] if found else {}), **figures.get("custom", {})}
    if found:
        tasks["all of the suite"] = found["overall"]
    return [
        (
            who,
            name,
            f"{one['baseline_right']} of {one['items']}",
            f"{one['candidate_right']}",
            f"{one['lost']} lost, {one['gained']} gained",
            _interval(one["change"], "+.1%"),
            f"{one['p_value']:.3g}",
        )
        for name, one in tasks.items()
    ]


def _task_tables(evaluated: Figures, parity: Figures) -> list[Any]:
    from evals.report import Table

    rows = [*_task_rows("quantized", evaluated), *_task_rows("engine", parity)]
    for who, figures in _models(evaluated, parity):
        rows += [(who, task, "–", "–", why, "–", "–") for task, why in figures.get("not_compared", {}).items()]
    if not rows:
        return []
    columns = ("model", "task", "baseline right", "right", "items that changed", "change [95 % interval]", "McNemar p")
    return [Table(columns, tuple(rows), "Tasks")]


def _long_context_tables(evaluated: Figures, parity: Figures) -> list[Any]:
    """The probe of the quantized model and of the engine; lengths that the engine does not reach are named."""
    from evals.report import Table

    probed = [
        (who, figures["long_context"]) for who, figures in _models(evaluated, parity) if "long_context" in figures
    ]
    if not probed:
        return []
    tail = [
        (who, str(row["length"]), f"{row['baseline']:.3f}", f"{row['perplexity']:.3f}",
         _interval(row["increase"], "+.2%"))
        for who, found in probed
        for row in found["tail"]
    ]  # fmt: skip
    tail += [
        (who, str(length), "–", "–", "over the engine's longest prompt: left out")
        for who, found in probed
        for length in found.get("left_out", ())
    ]
    cells = [
        (who, str(c["length"]), f"{c['depth']:.0%}",
         f"{c['baseline_right']} of {c['of']}" if "baseline_right" in c else "–", f"{c['right']} of {c['of']}")
        for who, found in probed
        for c in found["cells"]
    ]  # fmt: skip
    columns = ("model", "context, tokens", "baseline", "perplexity", "increase (paired)")
    return [
        Table(columns, tuple(tail), "The same tokens, longer contexts"),
        Table(("model", "prompt, tokens", "depth of the needle", "baseline found", "found"), tuple(cells), "Needles"),
    ]


def _models(evaluated: Figures, parity: Figures) -> tuple[tuple[str, Figures], ...]:
    return ("quantized", evaluated), ("engine", parity)


def _harness_tables(evaluated: Figures, parity: Figures) -> list[Any]:
    """Metrics of the harness, of the quantized model and of the engine."""
    from evals.report import Table

    rows = tuple(
        (who, name, str(one["documents"]), f"{one['baseline']:.4g}", f"{one['candidate']:.4g}",
         _interval(one["change"], "+.3g"))
        for who, figures in _models(evaluated, parity)
        for name, one in figures.get("harness", {}).items()
    )  # fmt: skip
    columns = ("model", "task and metric", "documents", "baseline", "value", "change [95 % interval]")
    return [Table(columns, rows, "Tasks of the LM Evaluation Harness")] if rows else []


def _layer_tables(evaluated: Figures) -> list[Any]:
    """The parts whose output leaves the baseline's most."""
    from evals.report import Table

    found = evaluated.get("layers")
    if found is None:
        return []
    by_name = {row["name"]: row for row in [*found["layers"], *found["parts"]]}
    rows = tuple(
        (name, f"{by_name[name]['cosine']:.5f}", f"{by_name[name]['snr_db']:.1f} dB") for name in found["worst"]
    )
    return [Table(("module", "cosine with the baseline's output", "signal over error"), rows, "The worst layers")]


def _plots(evaluated: Figures, parity: Figures, recipe: Recipe) -> list[Any]:
    """Differences from the baseline with their paired intervals: of perplexity, of tasks, of layers."""
    from evals.report import Plot, Series

    named = {"quantized": evaluated["increase"]}
    if "quality" in parity:
        named["engine"] = parity["quality"]["increase"]
    if (noise := evaluated.get("noise")) is not None:
        named["baseline, rounded"] = noise["increase"]
    gate = recipe.evals.perplexity.gate
    plots = [
        Plot(
            "Perplexity against the baseline, paired",
            "",
            "relative increase, %, with its 95 % interval",
            (Series.of_intervals("increase", named, 100.0),),
            kind="difference",
            limit=None if gate is None else 100.0 * gate.max_increase,
        )
    ]
    changes = {f"{who}: {task}": one for who, task, one in _changes(evaluated, parity)}
    if changes:
        suite = recipe.evals.suite.gate
        plots.append(
            Plot(
                "Right answers against the baseline, paired",
                "",
                "change, % of the items, with its 95 % interval",
                (Series.of_intervals("change", changes, 100.0),),
                kind="difference",
                limit=None if suite is None else -100.0 * suite.max_drop,
            )
        )
    if contexts := _by_context(evaluated, parity):
        long = recipe.evals.long_context.gate
        plots.append(
            Plot(
                "The same tokens under longer contexts, paired",
                "",
                "relative increase of perplexity, %, with its 95 % interval",
                (Series.of_intervals("increase", contexts, 100.0),),
                kind="difference",
                limit=None if long is None or long.max_increase is None else 100.0 * long.max_increase,
            )
        )
    if (layers := evaluated.get("layers")) is not None:
        shown = [(i, row) for i, row in enumerate(layers["layers"]) if row["snr_db"] is not None]
        series = Series("snr", tuple(float(i) for i, _ in shown), tuple(row["snr_db"] for _, row in shown))
        plots.append(Plot("Signal over error after each layer", "layer", "dB", (series,)))
    return plots


def _by_context(evaluated: Figures, parity: Figures) -> dict[str, Figures]:
    """The tail's paired increase by model and length."""
    return {
        f"{who}: {row['length']:,}": row["increase"]
        for who, figures in _models(evaluated, parity)
        for row in figures.get("long_context", {}).get("tail", ())
    }


def _changes(evaluated: Figures, parity: Figures) -> list[tuple[str, str, Figures]]:
    found = []
    for who, figures in _models(evaluated, parity):
        suite = figures.get("suite")
        if suite:
            tasks = {**suite["tasks"], "all": suite["overall"]}
            found += [(who, name, one["change"]) for name, one in tasks.items()]
        found += [(who, name, one["change"]) for name, one in figures.get("custom", {}).items()]
    return found


def _engine_rows(parity: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return (
        (
            f"{parity.get('ran', 'engine')} agrees with the quantized model (top 1)",
            _interval(parity["agreement"], ".2%"),
        ),
        ("  without the allowance for near ties", _interval(parity["raw_agreement"], ".2%")),
        ("  mean KL divergence", f"{parity['mean_kl']:.2e} nats"),
        ("  positions whose two best tokens lie within the noise", f"{parity['near_tie_share']:.2%}"),
        ("  the noise: a difference of logits up to", f"{parity['near_tie_logits']:.3g}"),
        *_floor(parity),
        *_deployed(parity),
    )


def _deployed(parity: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The built engine itself: its weights, and what it answers."""
    rows = []
    if (weights := parity.get("weights")) is not None:
        rows.append(("weights that the kernels hold otherwise", f"{weights['changed']:,} of {weights['weights']:,}"))
    if (own := parity.get("answers")) is not None:
        rows.append(("the engine's own answers that are sane", f"{own['sane']} of {own['answers']}"))
        rows.append(("  their tokens that the quantized model would choose", f"{own['agreed']} of {own['tokens']}"))
    return tuple(rows)


def _floor(parity: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the quantized model differs from itself by, with rounding added."""
    if parity["floor_kl"] is None:
        return ()
    return (
        ("  the quantized model with itself, rounding added: KL", f"{parity['floor_kl']:.2e} nats"),
        ("  the same: top 1", f"{parity['floor_raw_agreement']:.2%}"),
    )
