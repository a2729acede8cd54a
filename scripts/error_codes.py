"""Generates the code list of ``docs/troubleshooting.md`` from the raise sites.

``python scripts/error_codes.py`` rewrites the generated part; ``--check`` exits 1 when it is out of date.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("trtforge", "quantize", "evals", "builder", "plugins", "runtime", "triton_repo", "launcher")
DOCUMENT = ROOT / "docs" / "troubleshooting.md"
MARK = "<!-- generated below this line by scripts/error_codes.py -->"
CODE = re.compile(r"TF-[A-Z][A-Z0-9]*-\d{3}")
AREAS = {
    "AUD": "Audit of checkpoints",
    "BEN": "Load tests",
    "BLD": "Engine build",
    "BND": "Bundles and verification",
    "CLI": "Command line",
    "DRF": "Drafters",
    "ENV": "The machine lacks something",
    "EVL": "Evaluation and gates",
    "GRF": "Model graph",
    "HLT": "Health of servers",
    "LCH": "Servers and smoke test",
    "OAI": "OpenAI endpoint",
    "OPS": "Ops and the host library",
    "PLN": "Planner",
    "QNT": "Quantization",
    "RCP": "Recipes",
    "RUN": "Runtime and requests",
    "SRC": "Checkpoint intake",
    "STK": "Stacks and what is loaded",
    "STO": "Store and pipeline",
    "TRI": "Triton repositories",
}


def _text(node: ast.expr) -> str | None:
    """A string expression with its holes shown as ``…``; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else "…"
            for value in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return (left or "…") + (right or "…")
    return None


def _messages(tree: ast.Module) -> dict[str, str]:
    """Code → the first sentence that follows it in the same call or row of a table."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = (k.value for k in node.keywords if k.arg in ("message", "reason", "title", "doc"))
            texts = [_text(argument) for argument in (*node.args, *named)]
        elif isinstance(node, ast.Tuple):
            texts = [_text(element) for element in node.elts]
        elif isinstance(node, ast.Dict):
            _add_named(node, found)
            continue
        else:
            continue
        for position, text in enumerate(texts):
            if text is None or not CODE.fullmatch(text):
                continue
            later = [t for t in texts[position + 1 :] if t and " " in t]
            if later:
                found.setdefault(text, later[0])
    return found


def _add_named(table: ast.Dict, found: dict[str, str]) -> None:
    """Tables from a name to its code: the value that the name stands for was refused."""
    for key, value in zip(table.keys, table.values, strict=True):
        name, code = (_text(key) if key is not None else None), _text(value)
        if name is not None and code is not None and CODE.fullmatch(code):
            found.setdefault(code, f"the value of `{name}` is refused")


def collect() -> dict[str, tuple[str, str]]:
    """Every code in the source → (message, module)."""
    codes: dict[str, tuple[str, str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            module = str(path.relative_to(ROOT))
            messages = _messages(ast.parse(source))
            for code in sorted(set(CODE.findall(source))):
                message = messages.get(code, "")
                if code not in codes or (message and not codes[code][0]):
                    codes[code] = (message, module)
    return codes


def render() -> str:
    """The generated part of the document."""
    codes = collect()
    areas: dict[str, list[str]] = {}
    for code in sorted(codes):
        area = code.split("-")[1]
        title = AREAS.get(area, "Preflight rules") if not re.fullmatch(r"K\d+", area) else "Preflight rules"
        areas.setdefault(title, []).append(code)
    lines = [MARK, ""]
    for title in sorted(areas):
        lines += [f"## {title}", "", "| Code | What it says | Where |", "|---|---|---|"]
        for code in areas[title]:
            message, module = codes[code]
            message = " ".join(message.split()).replace("|", "\\|")
            lines.append(f"| {code} | {message or 'worded where it is raised'} | `{module}` |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Write the document, or compare it."""
    current = DOCUMENT.read_text(encoding="utf-8")
    head = current.split(MARK)[0]
    wanted = head + render()
    if "--check" in sys.argv[1:]:
        if current != wanted:
            print("docs/troubleshooting.md is out of date: python scripts/error_codes.py")
            return 1
        return 0
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
