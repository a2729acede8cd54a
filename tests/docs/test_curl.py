"""Every curl that is shown says that it sends JSON: curl's own word is a form, and a long form ends older servers."""

import re
from pathlib import Path

import pytest

from launcher.serve import Endpoints

ROOT = Path(__file__).resolve().parents[2]
HEADER = "-H 'Content-Type: application/json'"
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_documents(path):
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    sending = [line for line in text.splitlines() if re.search(r"\bcurl\b.* (-d|--data\S*) ", line)]
    assert [line for line in sending if HEADER not in line] == []
    assert sending or path.name != "README.md"


def test_code_that_prints_one():
    """Every text with curl in the sources that sends something takes the header from one place."""
    printing = []
    for package in ("trtforge", "launcher", "triton_repo", "builder", "evals", "quantize", "runtime", "scripts"):
        for path in (ROOT / package).rglob("*"):
            if path.suffix in (".py", ".sh", ".yaml", ".md") and path.is_file():
                lines = path.read_text(encoding="utf-8").splitlines()
                printing += [line for line in lines if re.search(r"\bcurl -\S+.* -d ", line)]
    assert printing
    assert [line for line in printing if "{JSON_HEADER}" not in line and HEADER not in line] == []


def test_what_serve_prints():
    shown = Endpoints("m", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    assert HEADER in shown.curl()
    assert HEADER in shown.curl_stream()
