"""What ``trtforge engine info`` says of an engine that speculates: by what, how far, when, and with which weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtforge.console import Console


def show_speculation(console: Console, document: dict[str, Any]) -> None:
    """A table of the engine's record; nothing for an engine that drafts nothing."""
    if document.get("speculation") is None:
        return
    rows = speculation_rows(document["speculation"])
    draft = document.get("draft_engine")
    console.table("Speculation", ["what", "value"], rows if draft is None else [*rows, *draft_rows(draft)])


def speculation_rows(record: dict[str, Any]) -> list[list[str]]:
    """The record in words; see :mod:`trtforge.speculation`."""
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
    rows.append(["lengths", "chosen by measured costs" if policy["adaptive"] else "always the longest"])
    if policy["max_concurrency"] is not None:
        rows.append(["max_concurrency", str(policy["max_concurrency"])])
    if policy["draft_len_schedule"] is not None:
        schedule = ", ".join(f"{length} up to {batch} requests" for batch, length in policy["draft_len_schedule"])
        rows.append(["draft_len_schedule", f"{schedule}, then none"])
    if policy["acceptance_rate_threshold"] is not None:
        share, window = policy["acceptance_rate_threshold"], policy["acceptance_rate_window_size"]
        rows.append(["acceptance threshold", f"off below {share:.0%} over {window} requests"])
    return rows


def draft_rows(draft: dict[str, Any]) -> list[list[str]]:
    """The engine that drafts: what it is, what its linears run as, its part of the pool."""
    from trtforge.recipe.units import format_size

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
