"""The table of rules in ``docs/lint.md``: ``python -m triton_repo.lint.docs docs/lint.md`` rewrites it."""

from __future__ import annotations

import re
from pathlib import Path

from triton_repo.lint.rules import Rule
from triton_repo.lint.run import all_rules

BEGIN = "<!-- rules: written by `python -m triton_repo.lint.docs docs/lint.md` -->"
END = "<!-- end of rules -->"
_AREAS = {
    "rules_files": "Files, names and texts",
    "rules_config": "One model's configuration",
    "rules_backend": "Backend and platform",
    "rules_batching": "Schedulers and warm-up",
    "rules_ensemble": "Ensembles",
    "rules_parameters": "TensorRT-LLM's parameters",
    "rules_settings": "Settings of an engine's model",
    "rules_engine": "Against the TensorRT-LLM engine",
    "rules_chain": "Across TensorRT-LLM's models",
    "rules_llmapi": "The LLM API",
    "rules_llm_arguments": "The LLM API: arguments",
    "rules_llm_speculation": "The LLM API: speculation",
    "rules_vllm": "vLLM",
    "rules_model_files": "The model's file",
    "rules_served": "The LLM API and vLLM: what is served",
    "rules_python": "Models in Python",
    "rules_python_devices": "Models in Python: GPUs",
    "rules_completion": "Models in Python: auto-complete",
    "rules_native": "The native layout",
    "rules_launch": "Starts of a server",
}


def render() -> str:
    """The rules as one Markdown table an area."""
    parts = []
    for module, title in _AREAS.items():
        rows = [rule for rule in all_rules() if rule.module == module]
        parts.append(f"### {title}\n\n| Code | Severity | What | Why | Source |\n|---|---|---|---|---|")
        parts += [_row(rule) for rule in rows]
        parts.append("")
    return "\n".join(parts)


def _row(rule: Rule) -> str:
    cells = [rule.code, rule.severity, rule.title, rule.why, f"[{_label(rule.source)}]({rule.source})"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _label(source: str) -> str:
    thread = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/issues/(\d+)", source)
    return f"{thread[1]}#{thread[2]}" if thread else source.split("/")[2].removeprefix("www.")


def update(document: Path) -> None:
    """Rewrite the generated part of ``document``."""
    text = document.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(f"{head}{BEGIN}\n\n{render()}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    import sys

    update(Path(sys.argv[1]))
