"""Writes docs/preflight.md from the rules and tables: ``python -m trtforge.preflight.docs [FILE]``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from trtforge.preflight.engine import Rule, all_rules
from trtforge.rules.tables import link, rule_table, table
from trtforge.tables import architecture_table
from trtforge.tables.features import feature_table, kernel_table
from trtforge.targets import TARGETS

#: what a kind of fault is about
KINDS: dict[str, str] = {
    "K1": "unfilled or wrong parameters",
    "K2": "versions that do not belong together",
    "K3": "architecture and precision",
    "K4": "group sizes and kernel tiles over the ranks",
    "K5": "heads, KV heads, MLP and experts over the ranks",
    "K6": "vocabulary, tied weights, excluded modules",
    "K7": "scales of quantized checkpoints",
    "K8": "quality that is lost unnoticed",
    "K9": "length and token limits, keys without effect",
    "K10": "engine memory",
    "K11": "host memory and disk",
    "K12": "speculative decoding",
    "K13": "settings that need or exclude each other",
    "K14": "streaming",
    "K15": "where answers end",
    "K16": "ranks, devices, launch",
    "K17": "tokenizer",
    "K18": "rope, layers, pointer files",
    "K19": "texts, data sets, offline machines",
    "K21": "LoRA adapters",
    "K22": "throughput",
    "K23": "what was removed or is not built yet",
    "K24": "beams",
}

_HEADER = """# Preflight

<!-- written by `python -m trtforge.preflight.docs docs/preflight.md`; change trtforge/preflight/docs.py, the rules
or the tables instead -->

`trtforge check RECIPE` looks for faults before anything is loaded, in well under two seconds and without torch; every
`trtforge run` does the same first. A rule reads the recipe, the model's config and headers, small files beside it
(tokenizer, quantization description, scales that are single numbers), the folders of a draft model and of adapters
where they lie here, the shipped tables, and the machine. A finding names what was asked, the numbers, the reason with
its source, and changes that would work, computed from those numbers. A change of the recipe is tried before it is
printed: it is applied and the rules run again. What does not clear its finding is not offered, and what it brings in
turn stands beside it ("then TF-K16-003"). Several errors whose changes might undo each other get one set of changes
that clears all that a recipe can, where there is one ("Together …"). What only a person can do (another checkpoint,
another machine) is said in words. In the JSON document a finding's `ways` are its remedies as data: the keys to `set`
and to `remove`, the codes that it `leaves`, or `by_hand`. A rule whose facts are not known (a model that is not
downloaded yet) is named as skipped, never passed in silence.

| Option | Writes |
|---|---|
| (none) | a table, then each finding with its reason and ways out |
| `--json` | one document: `passed`, `builds_here`, `findings`, `together`, `skipped` |
| `--format sarif` | SARIF 2.1.0 for code scanning, by file and line; skipped rules are a note (`TF-CLI-017`) |
| `--format github` | workflow commands that GitHub shows beside the line; skipped rules are a notice |
| `--no-model` | the same without the model's headers |

`check` exits with 0 when nothing blocks, with 1 when an error does, with 2 when recipe or model cannot be read at all;
`run` exits with 2 when preflight refuses. An error blocks, a warning does not. Where no rule saw the model (it is not
downloaded yet, or `--no-model`) the verdict is "nothing found without the model", not "ready". One warning is about the
machine alone: `TF-K2-007` names what the target's build lacks here. `check` then says "ready, but not to be built on
this machine" and exits with 0; a `run` that goes through the build ends at once with 3, and `run --until evaluate` goes
on.

## Setting a rule aside

A rule is waived by its code, with a justification:

```yaml
waive:
  TF-K3-003: our build of TensorRT-LLM has the kernel, see the internal benchmark of May
```

The finding stays visible as waived, in SARIF as suppressed. The codes and their justifications go into the summary of
the bundle's `manifest.json` (`waived`) and into its `recipe.yaml`. An unknown code and an empty justification are
refused (TF-RCP-014). Rules marked "no" below cannot be waived: what they refuse cannot work at all, so a waiver would
only move the failure to a later hour.
"""

_TABLES = """## Tables

Rules of what goes together are rows of data in `trtforge/tables/`, each with its source: `stack.yaml` (which versions
belong together), `architectures.yaml` (precision by GPU architecture and target), `kernels.yaml` (the shapes that a
format's kernel takes, the head sizes of attention), `features.yaml` (what needs what, what excludes what, which
target has which speculation method, which keys are read by which target), `decoders.yaml` (the classes of models that
are taken). A row is corrected there, never in code.
"""


_COLUMNS: dict[str, Callable[[Rule], str]] = {
    "Code": lambda rule: f"`{rule.code}`",
    "Severity": lambda rule: rule.severity,
    "Waivable": lambda rule: "yes" if rule.waivable else "no",
    "What": lambda rule: rule.title,
    "Why": lambda rule: rule.why,
    "Source": lambda rule: link(rule.source),
}


def render() -> str:
    """The whole document as Markdown."""
    rules = list(all_rules().values())
    parts = [_HEADER, f"## Rules\n\n{len(rules)} rules.\n"]
    for kind, title in KINDS.items():
        parts.append(f"### {kind}: {title}\n")
        parts.append(rule_table(_COLUMNS, [rule for rule in rules if rule.kind == kind]))
    parts += [_TABLES, *_feature_tables()]
    return "\n".join(parts).rstrip() + "\n"


def _feature_tables() -> list[str]:
    features, kernels = feature_table(), kernel_table()
    needs = [(row.feature, row.needs, ", ".join(row.targets), row.why, link(row.source)) for row in features.needs]
    pairs = [
        (" × ".join(row.features), row.support, ", ".join(row.targets), row.why, link(row.source))
        for row in features.combinations
    ]
    methods = [
        (
            row.method,
            row.target,
            f"{row.support} ({', '.join(row.architectures)})" if row.architectures else row.support,
            row.instead or "",
            link(row.source),
        )
        for row in features.methods
    ]
    shapes = [
        (
            row.format,
            ", ".join(row.targets),
            row.kernel,
            ", ".join(map(str, row.groups or ())) or "any",
            f"{row.k} × {row.n}",
            link(row.source),
        )
        for row in kernels.rows
    ]
    attention = [
        (
            row.attention,
            ", ".join(row.targets),
            ", ".join(row.architectures) or "all",
            ", ".join(map(str, row.head_sizes)),
            row.otherwise,
            link(row.source),
        )
        for row in kernels.attention
    ]
    boards = [
        (
            f"`{row.name}`",
            row.title,
            ", ".join(name for name, support in row.formats.items() if support == "yes" and name != "none"),
            ", ".join(name for name, support in row.kv_cache.items() if support == "yes" and name != "none") or "–",
            ", ".join(name for name in row.targets if TARGETS[name].needs_gpu),
        )
        for row in architecture_table().rows
    ]
    return [
        f"### Architectures (as of {architecture_table().as_of})\n",
        table(("Architecture", "GPUs", "Formats with a kernel", "KV caches", "Targets"), boards),
        f"### Kernel shapes (as of {kernels.as_of})\n",
        table(("Format", "Targets", "Kernel", "Group sizes", "K × N multiples", "Source"), shapes),
        "### Head sizes of attention\n",
        table(("Attention", "Targets", "Architectures", "Head sizes", "Others", "Source"), attention),
        f"### Speculation (as of {features.as_of})\n",
        table(("Method", "Target", "Support", "Instead", "Source"), methods),
        "### What needs what\n",
        table(("Feature", "Needs", "Targets", "Why", "Source"), needs),
        "### What does not go together\n",
        table(("Features", "Support", "Targets", "Why", "Source"), pairs),
    ]


def main(arguments: list[str]) -> int:
    """Write the document to the named file, or print it."""
    text = render()
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
