"""The data card beside a trained head: what it is, of what it was made, what it does, and what it does not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge import __version__
from trtforge.machine.software import tool_versions

if TYPE_CHECKING:
    from trtforge.pipeline.stage import StageContext

CARD = "README.md"


def write_card(folder: Path, context: StageContext, figures: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write ``README.md`` into the head's folder."""
    (folder / CARD).write_text(card(folder, context, figures, record), encoding="utf-8")


def card(folder: Path, context: StageContext, figures: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The card's text (Markdown)."""
    model, text = context.recipe.model, context.inputs["draft-text"].summary
    training = context.inputs["draft-train"].manifest["ingredients"]["section"]
    made = context.inputs["draft-text"].manifest["ingredients"]["section"]
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    target = hashlib.sha256((context.inputs["intake"].path / "model.safetensors").read_bytes()).hexdigest()
    versions = ", ".join(f"{name} {version}" for name, version in tool_versions(("torch", "nvidia-modelopt")).items())
    budget = training["time_budget"]
    lines = [
        f"# An EAGLE-3 drafter for {context.recipe.name}",
        "",
        "One decoder layer that reads three hidden states of its target and drafts its next tokens; useless by itself.",
        "",
        "| | |",
        "|---|---|",
        f"| Target | `{model.source}` |",
        f"| Target's weights, as intake writes them | SHA-256 `{target}` |",
        f"| Head's weights | SHA-256 `{weights}`, {(folder / 'model.safetensors').stat().st_size:,} bytes, bfloat16 |",
        "| Dialect | SpecForge, SGLang; others by `trtforge draft convert` |",
        f"| Draft vocabulary | {training['draft_vocab']} tokens, {record['covered']:.2%} of the training text |",
        f"| Made by | trtforge {__version__}, `trtforge speculate train`; {versions} |",
        f"| Command | `{command(context.recipe.name, made, training)}` |",
        "",
        "## Text",
        f"{text['tokens']:,} tokens that the target itself wrote as answers to {text['prompts']:,} prompts, half of "
        f"them greedily, half sampled (temperature {made['sampled'][0]}, top-p {made['sampled'][1]}), at most "
        f"{made['answer']} tokens each. No text of anybody else is in it but the templates of "
        "`quantize/speculative/prompts.yaml`; prompts of class `self` the target made up itself.",
        "",
        "| Class of prompts | answers | tokens |",
        "|---|---|---|",
        *(f"| {kind} | {count:,} | {text['answer_tokens'][kind]:,} |" for kind, count in text["conversations"].items()),
        "",
        "## Training",
        f"{record['steps']:,} steps of about {training['batch_tokens']:,} tokens (1 draft a roll-out, "
        f"{training['draft_steps']} in the last steps), AdamW at {training['learning_rate']:g}, falling to nothing"
        + (f"; at most {budget / 60:g} minutes of a shared machine" if budget is not None else "")
        + f". The weights are those of step {record['best_step']:,}.",
        "",
        "## Figures",
        f"Greedy chains of {figures['drafts']} drafts, {figures['answer_tokens']} tokens an answer, held-out prompts "
        "of other templates than the training's (`evals/speculation/prompts.yaml`). Accepted length: tokens that a "
        "verification yields, the bonus token included; 95 % intervals, bootstrapped over prompts. Acceptance at a "
        "position is of the drafts that were reached.",
        "",
        "| Class | prompts | accepted length | "
        + " | ".join(f"draft {i + 1}" for i in range(figures["drafts"]))
        + " |",
        "|---|---|---|" + "---|" * figures["drafts"],
        *(_row(kind, found) for kind, found in figures["classes"].items()),
        "",
        "## Limits",
        "- Trained on texts of at most a few hundred tokens; what it does far behind that was not measured.",
        "- English and common programming languages, as far as the target writes them.",
        "- Sampled at a high temperature fewer drafts are accepted than the figures say.",
        "- It drafts for this target alone; the same head serves its quantized forms, at somewhat lower figures.",
        "",
        "The licence is the target's.",
        "",
    ]
    return "\n".join(lines)


def command(name: str, text: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    """The command that makes such a head; with a time budget another machine makes another number of steps."""
    options = {"seed": training["seed"], "tokens": text["tokens"], "draft-vocab": training["draft_vocab"]}
    if training["steps"] is not None:
        options["steps"] = training["steps"]
    else:
        options["epochs"] = f"{training['epochs']:g}"
    if training["time_budget"] is not None:
        options["time-budget"] = f"{training['time_budget']:g}s"
    options["draft-steps"] = training["draft_steps"]
    return " ".join([f"trtforge speculate train {name}.yaml", *(f"--{key} {value}" for key, value in options.items())])


def _row(kind: str, found: Mapping[str, Any]) -> str:
    interval = found["interval"]
    shares = " | ".join("-" if share is None else f"{share:.0%}" for share in found["accepted_by_position"])
    length = f"{found['accepted_length']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"
    return f"| {kind} | {found['prompts']} | {length} | {shares} |"
