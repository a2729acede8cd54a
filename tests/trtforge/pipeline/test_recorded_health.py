"""The recording that health checks ask for: which answers it takes, and a model that gives none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stages import bundle, bundle_report, smoke

EOS, LONGEST = 2, 6


def offline(**answers: list[int]) -> smoke.Offline:
    return smoke.Offline(
        texts=dict.fromkeys(answers, ""),
        tokens=answers,
        prompts={prompt: [7, 8] for prompt in answers},
        rows={prompt: np.eye(8, dtype=np.float32)[tokens] * 9 for prompt, tokens in answers.items()},
        activations="float32",
        repeats_exactly=True,
        max_input_len=16,
        max_batch_size=2,
        speculates=False,
    )


def recorded(monkeypatch: pytest.MonkeyPatch, said: smoke.Offline) -> tuple[list[list[int]], Any, Any]:
    """The tokens that the server is asked for, and what :func:`record_health` gives."""
    asked: list[list[int]] = []

    def record(url: str, *, answers: Any, **more: Any) -> Any:
        asked.extend([position.token for position in positions] for _, positions in answers)
        return SimpleNamespace(tolerance=0.1)

    monkeypatch.setattr("launcher.health.record.record", record)
    recipe = SimpleNamespace(name="m", triton=SimpleNamespace(layout="native"))
    parity = SimpleNamespace(summary={"noise": 0.0})
    context: Any = SimpleNamespace(inputs={"parity": parity}, progress=SilentProgress(), recipe=recipe)
    server: Any = SimpleNamespace(http_url="127.0.0.1:1", load_seconds=1.0)
    recording, check = smoke.record_health(context, server, said, LONGEST)
    return asked, recording, check


def test_the_token_that_ends_an_answer_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client is given it; an answer of the longest length has none."""
    asked, _, check = recorded(monkeypatch, offline(a=[5, EOS], b=[3, 4, 5, 6, 3, 4], c=[EOS]))
    assert asked == [[3, 4, 5, 6], [5]] and check.passed


def test_a_model_that_answers_with_nothing_has_no_recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, recording, check = recorded(monkeypatch, offline(a=[EOS], b=[EOS]))
    assert (asked, recording) == ([], None) and check.passed
    (tmp_path / smoke.SMOKE_FILE).write_text(json.dumps([{"name": "n", "passed": True, "detail": "d"}]))
    manifest: dict[str, Any] = {"summary": {"server": "2.51"}, "measurements": {}, "files": []}
    stage: Any = SimpleNamespace(path=tmp_path, summary=manifest["summary"], manifest=manifest)
    assert "It was ready" not in bundle_report._server(stage).text
    assert not bundle._holds(stage, smoke.HEALTH_FILE) and bundle._holds(stage, smoke.SMOKE_FILE)
