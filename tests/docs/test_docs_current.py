"""The documents that are generated, or that name things in the tree, agree with the tree."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_code_is_in_troubleshooting():
    result = subprocess.run(
        [sys.executable, "scripts/error_codes.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout


def test_the_known_holes_are_those_of_the_table():
    result = subprocess.run([sys.executable, "scripts/advisories.py", "--check"], cwd=ROOT, capture_output=True)
    assert result.returncode == 0, result.stdout


def test_links_of_the_documents_lead_somewhere():
    broken = []
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8")):
            if "://" not in target and not (document.parent / target).exists():
                broken.append(f"{document.name}: {target}")
    assert broken == []


def test_the_readme_shows_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_make_docs_runs_every_generator():
    marks = re.compile(r"<!--[^>]*?(?:written|generated below this line) by (?:`python )?(?:-m )?([\w./]+)")
    named = {name for path in (ROOT / "docs").glob("*.md") for name in marks.findall(path.read_text(encoding="utf-8"))}
    steps = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ndocs: setup\n")[1].split("\n\n")[0]
    assert named and named == set(re.findall(r"python (?:-m )?([\w./]+)", steps))


def test_extending_lists_its_sections():
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.M)
    listed = re.findall(r"^- \[(.+?)\]\(#(.+?)\)$", text, re.M)
    assert [title for title, _ in listed] == sections
    assert [anchor for _, anchor in listed] == [title.lower().replace(" ", "-") for title in sections]


def test_what_mypy_does_not_read_says_nothing_to_it():
    word = "type: " + "ignore"
    assert [str(path) for path in (ROOT / "tests").rglob("*.py") if word in path.read_text(encoding="utf-8")] == []
