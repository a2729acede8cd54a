"""What ``trtforge engine info`` says of an engine that speculates: by what, how far, when, and with which weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console


def show_speculation(console: Console, document: dict[str, Any]) -> None:
    """A table of the engine's record; nothing for an engine that drafts nothing."""
    if document.get("speculation") is None:
        return
    rows = speculation_rows(document["speculation"])
    draft = document.get("draft_engine")
    console.table("Speculation", ["what", "value"], rows if draft is None else [*rows, *draft_rows(draft)])


def speculation_rows(record: dict[str, Any]) -> list[list[str]]:
    """The record in words; see :mod:`trtforge.drafting.record`."""
    tree, ngram, policy = record["tree"], record["ngram"], record["policy"]
    rows = [["method", record["method"]], ["longest draft", f"{record['max_draft_len']} tokens"]]
    if tree is not None and tree["kind"] == "dynamic":
        shape = f"depth {tree['depth']}, {tree['top_k']} children, best {tree['total']} nodes"
        rows.append(["tree", f"dynamic: {shape}"])
    elif tree is not None:
        rows.append(["tree", f"static: {len(tree['choices'])} nodes, depth {max(map(len, tree['choices']))}"])
    if ngram is not None:
        sizes = f"{ngram['min_matching_ngram_size']} to {ngram['max_matching_ngram_size']} tokens found again"
        rows.append(["n-grams", sizes if record["method"] == "ngram" else f"on top, {sizes}"])
    if record["taps"]:
        rows.append(["taps", f"after layers {', '.join(map(str, record['taps']))}"])
    adaptive = "chosen by measured costs and acceptance" if policy["adaptive"] else "always the longest"
    rows.append(["lengths", adaptive if policy["draft_len_schedule"] is None else "the schedule's"])
    if policy["max_concurrency"] is not None:
        rows.append(["max_concurrency", str(policy["max_concurrency"])])
    if policy["draft_len_schedule"] is not None:
        schedule = ", ".join(f"{length} up to {batch} requests" for batch, length in policy["draft_len_schedule"])
        rows.append(["draft_len_schedule", f"{schedule}, then none"])
    if policy["acceptance_rate_threshold"] is not None:
        share, window = policy["acceptance_rate_threshold"], policy["acceptance_rate_window_size"]
        rows.append(["acceptance threshold", f"off for good below {share:.0%} over {window} steps"])
    return rows


def draft_rows(draft: dict[str, Any]) -> list[list[str]]:
    """The engine that drafts: what it is, what its linears run as, its part of the pool."""
    from trtforge.ground.units import format_size

    facts, cache = draft.get("drafter"), draft["kv_cache"]
    what = f"a {draft['architecture']} model, {draft['quant_format']}"
    if facts is not None:
        tables = f"embedding {facts['embedding']}, head {facts['head']}"
        flags = f", {', '.join(facts['flags'])}" if facts["flags"] else ""
        what = f"EAGLE-3 ({facts['dialect']}): {facts['draft_vocab_size']} draft tokens, {tables}{flags}"
    pool = format_size(cache["num_blocks"] * cache["bytes_per_block"])
    rows = [["draft", what], ["draft: KV pool", f"{pool}, {cache['format']}, under the same block numbers"]]
    for row in draft.get("execution", []):
        native = "native" if row["native"] else "emulated"
        rows.append(["draft: linears", f"{row['linears']} {row['stored']} as {row['executed']}, {native}"])
    return rows


def measured_policy(folder: Path) -> dict[str, Any]:
    """Load the engine as a server does, which measures the costs, and let its policy explain itself.

    Raises:
        ForgeError: ``TF-CLI-018`` the engine drafts nothing; what loading it raises.
    """
    from runtime.offline import Engine

    with Engine.load(folder) as engine:
        speculator = engine.core.speculator
        if speculator is None:
            raise ForgeError(
                "TF-CLI-018",
                "The engine drafts nothing, so there is nothing to measure",
                asked="engine info --measure",
                numbers={"speculation": None},
                why="--measure loads the engine and shows what its policy makes of the costs of drafts.",
                remedies=["leave --measure out", "build the engine from a recipe with a speculation.method"],
            )
        return {"measured": "now", **speculator.policy.explain()}


def recorded_policy(bundle: Path) -> dict[str, Any] | None:
    """What the policy had learned in the stage ``speculation``, where a bundle has brought its evidence."""
    try:
        text = (bundle / "evidence" / "speculation-speed.json").read_text(encoding="utf-8")
        policy = json.loads(text)["policy"]
        return {"measured": "by the stage speculation", **policy} if policy.get("costs") else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def show_policy(console: Console, policy: dict[str, Any] | None) -> None:
    """Costs, acceptance, and the lengths that they lead to; nothing where nothing was measured."""
    if policy is None:
        return
    if not policy["adaptive"]:
        console.value("the policy chooses nothing: lengths are fixed by the recipe")
        return
    when, costs = policy["measured"], policy["costs"]
    console.table(
        f"Speculation: a step of one request, measured {when}",
        ["tokens", "ms"],
        [[tokens, f"{ms:.2f}"] for tokens, ms in costs["verify_ms"].items()],
    )
    if costs["draft_ms"]:
        lengths = sorted({length for row in costs["draft_ms"].values() for length in row}, key=int)
        console.table(
            "Speculation: drafting, ms",
            ["requests", *(f"{length} tokens" for length in lengths)],
            [[requests, *(f"{row[length]:.2f}" for length in lengths)] for requests, row in costs["draft_ms"].items()],
        )
    positions = range(1, policy["max_draft_len"] + 1)
    console.table(
        "Speculation: acceptance by position",
        ["source", "drafts", *map(str, positions)],
        [
            [name, row["drafts"] or "assumed", *(f"{value:.2f}" for value in row["acceptance"][: len(positions)])]
            for name, row in policy["acceptance"].items()
        ],
    )
    sources = sorted({source for row in policy["choices"].values() for source in row})
    console.table(
        "Speculation: draft tokens that pay best, and the speed-up",
        ["requests", *sources],
        [
            [batch, *(_length(row[source]) if source in row else "-" for source in sources)]
            for batch, row in policy["choices"].items()
        ],
    )


def _length(choice: dict[str, Any]) -> str:
    return f"{choice['draft_tokens']} ({choice['speedup']:.2f} x)" if choice["draft_tokens"] else "none"
