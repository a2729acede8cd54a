"""Chats behind Triton: a template keeps nobody waiting but its own client, and what is shipped renders by itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trtforge
from runtime.request import Request
from triton_repo.layouts.shipping import TOKENIZER_MODULES, ship
from trtforge.errors import ForgeError

CODE = Path(trtforge.__file__).resolve().parents[1] / "triton_repo" / "layouts" / "native_model.py"


class Sender:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.done = threading.Event()

    def send(self, response: Any = None, flags: int = 0) -> None:
        if response is not None:
            self.sent.append(response)
        if flags:
            self.done.set()


class Asked:
    """A request as Triton's Python backend hands it over."""

    def __init__(self, text: str, chat: bool) -> None:
        self.tensors = {
            "text_input": np.array([[text.encode()]], dtype=object),
            "max_tokens": np.array([[4]], dtype=np.int32),
            "chat": np.array([[chat]]),
        }
        self.sender = Sender()

    def get_response_sender(self) -> Sender:
        return self.sender

    def requested_output_names(self) -> list[str]:
        return ["text_output"]


class SlowChats:
    """An engine whose chats wait for :attr:`go`, and fail then when they say so."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.submitted: list[str | None] = []

    def submit(self, request: Request, callback: Any) -> str:
        if request.messages is not None:
            self.go.wait(30)
            if request.messages[0]["content"] == "bad":
                raise ForgeError("TF-RUN-094", "the chat template takes more than 2 s of processor time")
        self.submitted.append(request.prompt)
        return "key"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    backend = types.ModuleType("triton_python_backend_utils")
    backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1  # type: ignore[attr-defined]
    backend.TritonError = str  # type: ignore[attr-defined]
    backend.InferenceResponse = lambda output_tensors=None, error=None: error or output_tensors  # type: ignore[attr-defined]

    def tensor(request: Asked, name: str) -> Any:
        found = request.tensors.get(name)
        return None if found is None else types.SimpleNamespace(as_numpy=lambda: found)

    backend.get_input_tensor_by_name = tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend)
    # the module's watcher would end this process: its parent is no server
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    spec = importlib.util.spec_from_file_location("native_model_under_test", CODE)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    monkeypatch.undo()
    return loaded


def test_a_slow_template_keeps_nobody_else_waiting(module: Any) -> None:
    model = module.TritonPythonModel()
    model._engine = engine = SlowChats()
    model._inputs = ["text_input", "max_tokens", "chat"]
    model._exclude_default, model._eos, model._live = True, (2,), set()
    model._lock = threading.Lock()
    model._chats = module.ThreadPoolExecutor(2)
    chat, bad, plain = Asked("hello", True), Asked("bad", True), Asked("plain", False)
    model.execute([chat, bad, plain])
    assert engine.submitted == ["plain"]
    engine.go.set()
    assert bad.sender.done.wait(30)
    assert [str(error)[:10] for error in bad.sender.sent] == ["TF-RUN-094"]
    model._chats.shutdown()
    assert engine.submitted == ["plain", None]
    assert len(model._live) == 2


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
