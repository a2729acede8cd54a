"""Chats behind Triton: what is shipped beside a model renders by itself, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from triton_repo.layouts.shipping import TOKENIZER_MODULES, ship

SHIPPED = """
import sys
sys.modules["trtforge"] = sys.modules["runtime"] = None
sys.path.insert(0, sys.argv[1])
import importlib
chats = importlib.import_module("version.chat_template")
print(chats.render_chat("{{ messages[0].content }}", [{"role": "user", "content": "hello"}]))
for template in ("{{ 'a' * 10 ** 9 }}", "{{ 1 / 0 }}"):
    try:
        chats.render_chat(template, [{"role": "user", "content": "hello"}])
    except Exception as error:
        print(type(error).__module__, error.code)
"""


def test_what_is_shipped_beside_a_model_renders_in_its_own_process(tmp_path: Path) -> None:
    (tmp_path / "version").mkdir()
    ship(TOKENIZER_MODULES, tmp_path / "version")
    done = subprocess.run(
        [sys.executable, "-B", "-c", SHIPPED, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout.split() == ["hello", "version.errors", "TF-RUN-094", "version.errors", "TF-RUN-093"], done.stderr
    assert {path.name for path in (tmp_path / "version").iterdir()} == {*TOKENIZER_MODULES.values(), "__pycache__"}
