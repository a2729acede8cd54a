"""Every remedy that lint prints is tried: its edits are made, the rules run again, and the finding must be gone.

No other finding may come in its place, unless the remedy says that it does (``leaves``). What has no edits is for a
person, and there is a reason for each: it needs what no repository holds.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.edits import carry_out
from tests.triton_repo import corpus_llm, corpus_published, corpus_triton  # noqa: F401 - they fill the corpus
from tests.triton_repo.corpus import CORPUS
from tests.triton_repo.planted import PLANTS
from tests.triton_repo.remedy_cases import MORE
from triton_repo.lint.hits import RULES, Finding
from triton_repo.lint.run import lint_repository

CASES: list[tuple[str, Callable[[Path], object]]] = [
    *((f"{plant.code}-{plant.name}".replace(" ", "-"), plant.plant) for plant in PLANTS),
    *((f"{code}-{name}".replace(" ", "-"), build) for name, code, build in MORE),
    *((f"corpus-{item.name}", item.build) for item in CORPUS),
]


def identity(finding: Finding) -> tuple[str, str, str]:
    """What makes two findings the same one before and after an edit; numbers in messages may move."""
    return finding.code, finding.model, finding.severity


@pytest.mark.parametrize(("name", "build"), CASES, ids=[name for name, _ in CASES])
def test_every_remedy_clears_its_finding_and_raises_no_other(tmp_path, name, build):
    here = tmp_path / "first"
    here.mkdir()
    root = here / "repository"
    build(root)
    kept = tmp_path / "kept"
    shutil.copytree(here, kept, symlinks=True)
    before = lint_repository(root).findings
    for finding in before:
        assert finding.remedies and all(remedy.text for remedy in finding.remedies), finding
        for remedy in finding.remedies:
            if not remedy.edits:
                continue
            carry_out(remedy)
            after = Counter(identity(f) for f in lint_repository(root).findings)
            allowed = Counter(identity(f) for f in before)
            allowed[identity(finding)] -= 1
            new = [f for f in (after - allowed).elements() if f[0] not in remedy.leaves]
            assert not new, f"{finding.code} {finding.message!r}: {remedy.text!r} leaves {new}"
            for path in here.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(kept, here, symlinks=True, dirs_exist_ok=True)


def test_every_place_where_a_rule_speaks_is_reached(tmp_path, monkeypatch):
    """So that no remedy is printed that was never tried; ONNX files are in test_lint_model_files.py.

    The faults of starts lie beside the repository (test_lint_launch.py); what would work there is for a person.
    """
    elsewhere = {"model_files.py", "completion.py", "launch.py"}
    spoken: dict[str, set[int]] = {}
    modules = list(RULES.load().values())
    modules.append(import_module("triton_repo.lint.engine_models"))

    def heard(speak):
        def wrapped(*arguments, **options):
            frame = sys._getframe(1)
            spoken.setdefault(Path(frame.f_code.co_filename).name, set()).add(frame.f_lineno)
            return speak(*arguments, **options)

        return wrapped

    for module in dict.fromkeys(modules):
        for name in ("hit", "hit_file", "hit_node", "Hit"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, heard(getattr(module, name)))
    for index, (_, build) in enumerate(CASES):
        root = tmp_path / str(index) / "repository"
        root.parent.mkdir()
        build(root)
        lint_repository(root)
    silent = []
    for module in dict.fromkeys(modules):
        path = Path(str(module.__file__))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in ("hit", "hit_file", "hit_node", "Hit") and path.name not in elsewhere:
                assert isinstance(node, ast.Call) and node.end_lineno is not None
                if not spoken.get(path.name, set()) & set(range(node.lineno, node.end_lineno + 1)):
                    silent.append(f"{path.name}:{node.lineno}")
    assert silent == []


def test_most_remedies_are_edits_and_the_rest_say_that_a_person_is_needed(tmp_path):
    edits, persons = 0, 0
    for index, plant in enumerate(PLANTS):
        root = tmp_path / str(index) / "repository"
        root.parent.mkdir()
        plant.plant(root)
        for finding in lint_repository(root).findings:
            if finding.code == plant.code:
                made = any(remedy.edits for remedy in finding.remedies)
                edits, persons = edits + made, persons + (not made)
                document = finding.to_json()["remedies"]
                assert [item["by"] for item in document] == ["edit" if r.edits else "person" for r in finding.remedies]
                assert finding.remedy == ", or ".join(item["text"] for item in document)
    assert edits > 2 * persons, (edits, persons)
